"""States of shards: however images are dealt out, the same whole comes out."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.monitor.evaluation.evaluators import build_state
from quadriga.monitor.evaluation.state import (
    EvaluatedImage,
    EvaluationError,
    EvaluationState,
    merge_states,
    select_images,
)
from tests.unit.monitor.evaluation.evaluation_images import state_of_shards


class Counted:
    """An evaluation that keeps a row for each prediction."""

    def tables(self, images, labels):
        rows = [
            (at, labels[item["label"]], item["score"])
            for at, image in enumerate(images)
            for item in msgspec.json.decode(image.predictions)
        ]
        image, label, score = zip(*rows, strict=True) if rows else ((), (), ())
        return {
            "predictions": {
                "image": np.array(image, np.int64),
                "label": np.array(label, np.int64),
                "score": np.array(score, np.float64),
            }
        }


def image_of(number, labels, **more):
    predictions = [{"label": label, "score": at / 10} for at, label in enumerate(labels)]
    raw = msgspec.Raw(msgspec.json.encode(predictions))
    return EvaluatedImage(
        id=str(number),
        predictions=raw,
        ground_truth=msgspec.Raw(b"[]"),
        width=number,
        height=2,
        metadata={"camera": {"id": number % 3}},
        **more,
    )


def is_same(first: EvaluationState, second: EvaluationState) -> bool:
    assert first[:2] == second[:2]
    assert first[3:5] == second[3:5]
    assert first.excluded == second.excluded
    np.testing.assert_array_equal(first.sizes, second.sizes)
    for name, table in first.tables.items():
        for key, column in table.items():
            np.testing.assert_array_equal(column, second.tables[name][key])
    return True


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.sampled_from("cab"), max_size=4), max_size=12),
    st.data(),
)
def test_any_dealing_gives_the_same_whole(images, data):
    images = [image_of(number, labels) for number, labels in enumerate(images)]
    shards = data.draw(st.lists(st.integers(0, 3), min_size=len(images), max_size=len(images)))
    order = data.draw(st.permutations(range(len(images))))
    unsharded = state_of_shards(Counted(), images, by=["meta.camera.id"])
    states = [
        build_state(
            Counted(), [images[at] for at in order if shards[at] == shard], ["meta.camera.id"]
        )
        for shard in range(4)
    ]
    assert is_same(merge_states(states), unsharded)
    assert is_same(merge_states([merge_states(states[:2]), merge_states(states[2:])]), unsharded)


def test_images_come_by_number_and_labels_by_text():
    merged_state = merge_states(
        [build_state(Counted(), [image_of(10, "ba"), image_of(9, "b")], [])]
    )
    assert merged_state.ids == ["9", "10"]
    assert merged_state.labels == ["a", "b"]
    assert merged_state.tables["predictions"]["label"].tolist() == [1, 1, 0]
    assert merged_state.tables["predictions"]["image"].tolist() == [0, 1, 1]


def test_an_image_without_truth_is_left_out_and_counted():
    unknown = msgspec.structs.replace(image_of(1, "a"), ground_truth=msgspec.Raw(b"null"))
    merged_state = merge_states(
        [build_state(Counted(), [unknown], []), build_state(Counted(), [image_of(2, "")], [])]
    )
    assert merged_state.ids == ["2"]
    assert merged_state.excluded == {"no_truth": 1}


def test_the_same_image_twice_is_refused():
    with pytest.raises(EvaluationError, match="expected each image once, got '1' twice"):
        merge_states([build_state(Counted(), [image_of(1, "a")], [])] * 2)


def test_a_part_keeps_its_rows_and_all_labels():
    merged_state = merge_states(
        [build_state(Counted(), [image_of(at, "ab"[at % 2 :]) for at in range(4)], [])]
    )
    selected = select_images(merged_state, [1, 2])
    assert selected.ids == ["1", "2"]
    assert selected.labels == ["a", "b"]
    assert selected.tables["predictions"]["image"].tolist() == [0, 1, 1]
    assert selected.sizes[:, 0].tolist() == [1, 2]


def test_slices_are_the_values_of_metadata_and_parts_of_the_time():
    images = [image_of(1, "a", created_at="2026-01-31T22:05:06.000Z"), image_of(2, "a")]
    merged_state = merge_states(
        [build_state(Counted(), images, ["meta.camera.id", "meta.x", "hour", "day"])]
    )
    assert merged_state.slices == {
        "meta.camera.id": ["1", "2"],
        "meta.x": [None, None],
        "hour": ["22", None],
        "day": ["2026-01-31", None],
    }
    with pytest.raises(EvaluationError, match="to slice by, got 'camera'"):
        build_state(Counted(), images, ["camera"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metadata": {"a": "\0"}}, "image '7': expected metadata 'a' to be text without NUL"),
        ({"metadata": {"a.b": 1, "a": {"b": 2}}}, "image '7': expected metadata key 'a.b' once"),
        ({"width": 1 << 70}, "image '7': expected width and height of 0 to .* got 1180591620717411303424"),
        ({"height": -1}, "image '7': expected width and height of 0 to .* got 7 and -1"),
    ],
)  # fmt: skip
def test_what_no_image_can_have_is_refused(fields, message):
    image = msgspec.structs.replace(image_of(7, "a"), **fields)
    with pytest.raises(EvaluationError, match=message):
        build_state(Counted(), [image], ["meta.a"])
