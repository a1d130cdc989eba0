"""A request that is stopped ends between images, tiles and tokens, and within a run; it is not stored."""

import math
import shutil
import threading

import cv2
import numpy as np
import pytest

from quadriga.engine.models.runners.session import RunError, Session
from quadriga.proto.errors import ClientLeft, DeadlineExceeded
from quadriga.proto.messages import InferRequest, Tensor
from quadriga.proto.request import Deadline, RequestContext, set_current_request
from tests.onnx_models import counting
from tests.server_process import SAMPLE_MODELS
from tests.text_models import vision_language
from tests.unit.engine.harness import load_pipeline, small_settings

PNG = cv2.imencode(".png", np.zeros((160, 160, 3), np.uint8))[1].tobytes()
TILES = {"tiling": {"size": [16, 16], "overlap": 0}}  # 100 of an image
PROMPT = {"prompts": ["one"], "max_new_tokens": 40}


class CountedDeadline(Deadline):
    """A deadline that is over once a number of runs has begun."""

    __slots__ = ("runs", "runs_allowed")

    def __init__(self, runs_allowed: float) -> None:
        super().__init__()
        self.runs = 0
        self.runs_allowed = runs_allowed

    def interrupt_by(self, interrupt):
        """Count a run, and end the time behind the last one that is allowed."""
        super().interrupt_by(interrupt)
        self.runs += 1
        if self.runs == self.runs_allowed:
            self.shorten(0, "a test")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    shutil.copytree(SAMPLE_MODELS / "shapes-detector", folder / "detector")
    vision_language(folder / "talker")
    counting(folder / "endless" / "model.onnx")
    pipeline = load_pipeline(folder, None, small_settings(max_images=100, max_pixels=50_000))
    yield pipeline
    pipeline.close()


@pytest.fixture
def answering():
    """Return a function that sets the deadline of this thread."""
    yield lambda deadline: set_current_request(RequestContext(deadline=deadline))
    set_current_request(None)


def request(model, images=1, **parameters):
    inputs = [
        Tensor(f"{n}", "BYTES", (1,), data=[PNG], parameters=parameters) for n in range(images)
    ]
    return InferRequest(model, None, "1", inputs)


@pytest.mark.parametrize(
    ("images", "model", "parameters"),
    [(40, "detector", {}), (1, "detector", TILES), (1, "talker", PROMPT)],
    ids=["images", "tiles", "tokens"],
)
def test_no_run_begins_once_the_time_is_over(pipeline, answering, images, model, parameters):
    whole = CountedDeadline(math.inf)
    answering(whole)
    pipeline.infer(request(model, images, **parameters))
    assert whole.runs >= 3
    stopped = CountedDeadline(2)
    answering(stopped)
    with pytest.raises(DeadlineExceeded, match="the limit is a test"):
        pipeline.infer(request(model, images, **parameters))
    assert stopped.runs == 2
    answering(None)
    assert pipeline.infer(request(model, images, **parameters)).outputs


def test_a_stream_ends_between_tokens(pipeline, answering):
    deadline = CountedDeadline(4)
    answering(deadline)
    with pytest.raises(DeadlineExceeded):
        list(pipeline.stream(request("talker", prompt="one", max_new_tokens=40)))
    assert deadline.runs == 4


def test_no_image_is_decoded_once_the_client_has_left(pipeline, answering):
    deadline = Deadline()
    deadline.stop(ClientLeft("gone"))
    answering(deadline)
    failures = pipeline.statistics("detector", None)[0].fail.count
    with pytest.raises(ClientLeft):
        pipeline.infer(request("detector"))
    assert pipeline.statistics("detector", None)[0].fail.count == failures


@pytest.mark.parametrize("device", ["", "cpu"])
def test_a_run_is_interrupted_and_the_model_works_afterwards(tmp_path, answering, device):
    session = Session(counting(tmp_path / "model.onnx"))
    session._device = (device, 0)  # "cpu": through a binding, as on a graphics card
    x, one = np.ones(1, np.float32), np.ones(1, np.int64)
    deadline = Deadline()
    answering(deadline)
    threading.Timer(0.2, lambda: deadline.stop(deadline.exceeded())).start()
    with pytest.raises(DeadlineExceeded):
        session.run_on_device({"x": x, "n": one * 2**60}, "y", [])
    answering(Deadline())
    y, _ = session.run_on_device({"x": x, "n": one * 3}, "y", [])
    assert y == 4
    with pytest.raises(RunError):
        session.run({"x": x})


def test_a_fault_of_a_tensor_model_that_is_stopped_is_not_the_client_s(pipeline, answering):
    inputs = [
        Tensor("x", "FP32", (1,), np.ones(1, np.float32)),
        Tensor("n", "INT64", (1,), np.full(1, 2**60)),
    ]
    deadline = Deadline(0.2)
    answering(deadline)
    threading.Timer(0.2, lambda: deadline.stop(deadline.exceeded())).start()
    with pytest.raises(DeadlineExceeded):
        pipeline.infer(InferRequest("endless", None, "1", inputs))
