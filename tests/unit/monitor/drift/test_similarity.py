"""The semantic score: p-values by their definition, their distribution, files of references."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from quadriga.monitor.drift.samples import DriftError
from quadriga.monitor.drift.similarity import (
    MAX_REFERENCES,
    MIN_REFERENCES,
    NEIGHBOURS,
    References,
    write_references,
)

SPACE = "0123456789abcdef"


def by_definition(references: np.ndarray, new: np.ndarray) -> float:
    """All of them in one bag: the share that is at least as far from its neighbours as the new one."""
    bag = np.concatenate([references, new[None]]).astype(np.float16).astype(np.float64)
    bag /= np.maximum(np.linalg.norm(bag, axis=1, keepdims=True), 1e-300)
    apart = np.sqrt(
        np.maximum(2 - 2 * bag @ bag.T, 0)
    )  # of unit vectors; nought is at right angles
    np.fill_diagonal(apart, np.inf)
    strange = np.sort(apart, axis=1)[:, :NEIGHBOURS].mean(axis=1)
    return float((strange >= strange[-1]).mean())


def references_of(embeddings: np.ndarray) -> References:
    return References(embeddings.astype(np.float16), np.arange(len(embeddings)), SPACE)


@pytest.mark.parametrize(("count", "size"), [(6, 2), (20, 3), (150, 4), (600, 16)])
def test_a_score_is_the_conformal_p_value(count, size):
    rng = np.random.default_rng(count)
    embeddings = rng.normal(size=(count, size))
    references = references_of(embeddings)
    for new in [*rng.normal(size=(6, size)), np.zeros(size)]:
        one_rank = 1.5 / (count + 1) if count > 200 else 0  # a tie in single precision
        assert references.score(new) == pytest.approx(by_definition(embeddings, new), abs=one_rank)


def test_the_smallest_score_is_one_over_n_plus_one():
    rng = np.random.default_rng(0)
    references = references_of(rng.normal(size=(200, 8)) + 10)
    assert references.score(np.full(8, -1.0)) == 1 / 201
    assert references.score(np.full(8, 1.0)) > 0.5


@pytest.mark.parametrize(("count", "size"), [(100, 64), (300, 16)])
def test_scores_are_uniform_where_nothing_changed(count, size):
    rng = np.random.default_rng(count)
    scores = []
    for _ in range(30):  # scores of one baseline depend on each other
        skewed = np.maximum(rng.normal(size=(count + 25, size)), -0.3) + 1
        references = references_of(skewed[:count])
        scores += [references.score(new) for new in skewed[count:]]
    assert stats.kstest(scores, "uniform").pvalue > 0.01


@pytest.mark.parametrize("repeats", [1, 5, 10])
def test_duplicate_images_make_no_false_alarms(tmp_path, repeats):
    rng = np.random.default_rng(0)
    stored = np.repeat(rng.normal(size=(300, 8)), repeats, axis=0)
    assert write_references(tmp_path / "s", stored, np.arange(len(stored)), SPACE) == 300
    references = References.read(tmp_path / "s")
    assert references.ids.tolist() == list(range(0, 300 * repeats, repeats))
    scores = np.array([references.score(new) for new in rng.normal(size=(400, 8))])
    assert 0.01 < (scores <= 0.05).mean() < 0.1


def test_nearest_references_have_their_distances():
    references = References(np.array([[1, 0], [0, 2], [-3, 0], [4, 4], [1, -1], [0, -1]], np.float16),
                            np.array([10, 11, 12, 13, 14, 15]), SPACE)  # fmt: skip
    ids, distances = references.nearest(np.array([7.0, 0.0]), 3)
    assert ids.tolist() == [10, 13, 14]
    assert distances == pytest.approx([0, np.sqrt(2 - 2**0.5), np.sqrt(2 - 2**0.5)], abs=1e-3)
    assert len(references.nearest(np.array([7.0, 0.0]), 99)[0]) == 6


def test_references_from_a_file_give_the_same_scores(tmp_path):
    rng = np.random.default_rng(0)
    embeddings, path = (
        rng.normal(size=(300, 12)).astype(np.float32),
        tmp_path / "default.similarity",
    )
    ids = np.arange(300, dtype=np.int64) << 40
    embeddings[7, 3] = np.nan
    embeddings[8, 3] = 1e30
    assert write_references(path, embeddings, ids, SPACE) == 298
    distinct = [number for number in range(300) if number not in (7, 8)]
    read, built = References.read(path), references_of(embeddings[distinct])
    assert (read.space, read.ids.tolist()) == (SPACE, ids[distinct].tolist())
    for new in rng.normal(size=(20, 12)):
        assert read.score(new) == built.score(new)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("count", [0, MIN_REFERENCES - 1, MAX_REFERENCES + 1])
def test_too_few_or_too_many_references_are_refused(tmp_path, count):
    embeddings = np.random.default_rng(0).normal(size=(count, 2))
    embeddings[:, 0] = np.arange(count)
    with pytest.raises(DriftError, match=f"expected 100 to 10000 .* got {count}"):
        write_references(tmp_path / "s", embeddings, np.arange(count), SPACE)
    assert not list(tmp_path.iterdir())


def torn(path: Path, to: str) -> None:
    complete = path.read_bytes()
    if to == "turned":
        middle = len(complete) // 2
        complete = complete[:middle] + bytes([complete[middle] ^ 255]) + complete[middle + 1 :]
    path.write_bytes(
        {"empty": b"", "half": complete[: len(complete) // 2], "text": b"hello"}.get(to, complete)
    )
    if to == "other arrays":
        with path.open("wb") as file:
            np.savez(file, embeddings=np.zeros((5, 5)))
    if to == "other shapes":
        with path.open("wb") as file:
            np.savez(file, embeddings=np.zeros((5, 5), np.float16), ids=np.arange(5), space="",
                     apart=np.zeros((4, NEIGHBOURS), np.float32))  # fmt: skip


@pytest.mark.parametrize("to", ["empty", "half", "text", "turned", "other arrays", "other shapes"])
def test_an_incomplete_file_is_refused(tmp_path, to):
    path = tmp_path / "default.similarity"
    write_references(path, np.random.default_rng(0).normal(size=(200, 64)), np.arange(200), SPACE)
    torn(path, to)
    with pytest.raises(DriftError, match="similarity: expected "):
        References.read(path)


@pytest.mark.parametrize(
    "embedding",
    [[1.0], [[1.0, 2.0]], [np.nan, 1.0], [1e30, 1.0], []],
    ids=["short", "2-d", "nan", "beyond", "empty"],
)
def test_embeddings_of_the_wrong_shape_have_no_score(embedding):
    references = references_of(np.random.default_rng(0).normal(size=(100, 2)))
    with pytest.raises(DriftError, match="expected an embedding of 2 numbers"):
        references.score(np.array(embedding, np.float32))
