"""Triton's classification extension: the best classes of an output."""

import numpy as np
import pytest

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.http.v2 import infer_and_classify
from quadriga.proto.messages import InferRequest, InferResponse, ModelInfo, RequestedOutput, Tensor


class Answers:
    """A server that answers one tensor, and counts how often."""

    def __init__(self, array):
        self.tensor = Tensor("y", "FP32", array.shape, array)
        self.answered = 0

    def infer(self, request):
        self.answered += 1
        return InferResponse(request.model, "1", request.id, [self.tensor])

    def model_info(self, name, version):
        return ModelInfo(
            name,
            version,
            [version],
            platform="test",
            task="TENSOR",
            inputs=[],
            outputs=[],
            labels=["a", "b"],
        )


def asking(count):
    return InferRequest(
        "m", None, "7", [], requested_outputs=[RequestedOutput("y", {"classification": count})]
    )


@pytest.mark.parametrize(
    ("array", "count", "shape", "elements"),
    [
        (np.array([[1, 3, 2]]), 2, (1, 2), ["3.000000:1:b", "2.000000:2"]),
        (np.array([1, 3]), 9, (2,), ["3.000000:1:b", "1.000000:0:a"]),
        (np.array([[np.nan, 1]]), 2, (1, 2), ["1.000000:1:b", "nan:0:a"]),
        (np.array(5.0), 1, (1,), ["5.000000:0:a"]),
        (np.zeros((0, 3)), 2, (0, 2), []),
        (np.zeros((2, 0)), 2, (2, 0), []),
        (np.zeros(0), 2, (0,), []),
    ],
)
def test_classified_output_has_best_classes_of_each_row(array, count, shape, elements):
    (output,) = infer_and_classify(Answers(array.astype(np.float32)), asking(count)).outputs
    assert (output.datatype, output.shape, output.data) == ("BYTES", shape, elements)


@pytest.mark.parametrize("count", [-1, 1.5, True, "1", [1]])
def test_invalid_number_of_classes_is_refused_before_the_model_runs(count):
    serving = Answers(np.zeros((1, 2), np.float32))
    with pytest.raises(InvalidRequest, match="to be a number of classes"):
        infer_and_classify(serving, asking(count))
    assert serving.answered == 0
