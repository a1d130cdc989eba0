import numpy as np
import pytest

from quadriga.tasks import OutputError
from quadriga.tasks.decoders import Candidates
from quadriga.tasks.detection import label_indices
from quadriga.tasks.specification import InputSpec, ModelSpec, OutputSpec


def spec(offset):
    return ModelSpec(
        task="OBJECT_DETECTION",
        input=InputSpec(name="images", size_wh=(64, 64)),
        output=OutputSpec(label_offset=offset),
        labels=("cat", "dog"),
    )


def found(columns: int, *class_ids: int):
    boxes = np.arange(len(class_ids) * columns, dtype=np.float32).reshape(-1, columns)
    return Candidates(boxes, np.ones(len(class_ids), np.float32), np.array(class_ids, np.int64))


# offset, classes of the network; those of the labels, rows that stay
CASES = {
    "none": (1, [], [], []),
    "from 0": (0, [1, 0], [1, 0], [0, 1]),
    "from 1": (1, [1, 2], [0, 1], [0, 1]),
    "background is dropped": (1, [2, 0, 1], [1, 0], [0, 2]),
    "rows that fill up are dropped": (0, [-1, 1, -1], [1], [1]),
}


@pytest.mark.parametrize("columns", [4, 5])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_classes_become_places_in_the_list_of_labels(case, columns):
    offset, class_ids, positions, rows = case
    candidates = found(columns, *class_ids)
    numbered = label_indices(candidates, spec(offset))
    assert numbered.class_ids.tolist() == positions
    np.testing.assert_array_equal(numbered.boxes, candidates.boxes[rows])
    assert numbered.suppress == candidates.suppress


@pytest.mark.parametrize(
    ("offset", "text"), [(0, "class 2 and 2 labels$"), (1, "class 3 and 2 labels counted from 1")]
)
def test_a_class_without_label_is_an_output_error(offset, text):
    with pytest.raises(OutputError, match=text):
        label_indices(found(4, 2 + offset), spec(offset))
