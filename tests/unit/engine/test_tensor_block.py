"""Tensors in memory that two processes share."""

import os

import msgspec
import numpy as np
import pytest

from quadriga.engine.models.runners import isolated_server
from quadriga.engine.models.runners.isolated_server import BlockFullError, TensorBlock

MIB = 1024 * 1024


@pytest.fixture
def ends():
    """The two ends of one block."""
    here = TensorBlock()
    there = TensorBlock(os.dup(here.descriptor))
    yield here, there
    here.close()
    there.close()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(12, dtype=np.float16).reshape(3, 4).T,
        np.array(7, np.int64),
        np.zeros((0, 5), np.float32),
        np.zeros((2, 3, 0), np.uint8),
        np.array([True, False]),
        np.arange(5 * MIB, dtype=np.float64)[::-2],
        np.array([b"ab", b"c"]),
        np.frombuffer(b"a\0bc\0\0", "V3"),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
@pytest.mark.parametrize("copy", [True, False])
def test_an_array_is_read_as_it_was_written(ends, array, copy):
    here, there = ends
    read = there.read(here.write({"x": array, "y": array}), copy=copy)
    for name in ("x", "y"):
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert read[name].tobytes() == array.tobytes()


def test_texts_and_maps_are_read_as_they_were_written(ends):
    here, there = ends
    texts = np.array([["a", ""], ["\N{SNOWMAN}", b"\xff"]], dtype=object)
    maps = [{1: 0.25, 2: 0.75}, {1: 1.0}]
    read = there.read(here.write({"texts": texts, "maps": maps}), copy=True)
    assert read["texts"].tolist() == texts.tolist()
    assert read["maps"] == maps


def test_a_copy_stays_when_the_block_is_written_again(ends):
    here, there = ends
    places = here.write({"x": np.ones(3)})
    copy, view = there.read(places, copy=True)["x"], there.read(places, copy=False)["x"]
    here.write({"x": np.zeros(3)})
    assert copy.tolist() == [1, 1, 1]
    assert view.tolist() == [0, 0, 0]


def test_a_block_has_a_maximum_size(ends, monkeypatch):
    monkeypatch.setattr(isolated_server, "MAX_BLOCK_BYTES", 64 * MIB)
    here, _ = ends
    with pytest.raises(BlockFullError, match="at most 67108864 bytes, got"):
        here.write({"x": np.zeros(65 * MIB, np.uint8)})
    assert here.size_bytes < MIB


def test_the_other_end_cannot_take_memory_away(ends):
    here, _ = ends
    with pytest.raises(PermissionError):
        os.ftruncate(here.descriptor, 0)


def test_a_place_outside_of_the_block_is_refused(ends):
    here, there = ends
    (place,) = here.write({"x": np.ones(3)})
    with pytest.raises(ValueError, match="offset"):
        there.read([msgspec.structs.replace(place, offset=10**9)], copy=True)


def test_one_end_asks_the_other_to_stop(ends):
    here, there = ends
    assert not there.is_asked_to_stop()
    here.ask_to_stop(stop=True)
    assert there.is_asked_to_stop()
    here.ask_to_stop(stop=False)
    assert not there.is_asked_to_stop()
