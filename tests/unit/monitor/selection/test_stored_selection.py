"""Selecting stored images: who is a candidate, whose embeddings are compared, and what is said of the rest."""

from typing import Any

import numpy as np
import pytest

from quadriga.monitor.selection import stored
from quadriga.monitor.selection.stored import (
    DistinctImages,
    SelectionOptions,
    check_found,
    image_keys,
    select,
)
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.records import (
    REJECTED,
    ImageSignals,
    InputReference,
    ModelReference,
    SignalsOfImages,
    TruthStatement,
)
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

FIRST = 700_000_000_000
SPACE, OTHER_SPACE = "ab" * 8, "cd" * 8
ALL = ["uncertainty", "diversity", "drift"]


class Images:
    """A store that is filled with images, one after the other."""

    def __init__(self, store: StoreHarness) -> None:
        self.store = store
        self.count = 0
        self.entries: list[Any] = []

    def add(
        self,
        score: float | None = 0.9,
        *,
        image: int | None = None,
        degrees: float | None = None,
        space: str = SPACE,
        kept: bool = True,
        version: str = "1",
        semantic_score: Any = None,
        **fields: Any,
    ) -> int:
        """Store an inference; return its number."""
        self.count += 1
        hash_ = f"blake3:{self.count if image is None else image:064x}"
        prediction = {"label": "circle", "xmin": 1.0, "ymin": 1.0, "xmax": 9.0, "ymax": 9.0}
        fields = {
            "predictions": [prediction | ({} if score is None else {"score": score})],
            "input": InputReference("image", hash_, 64, 48, "image/png", kept=kept),
            "model": ModelReference("shapes-detector", version, "ab" * 32),
            "standard": {} if semantic_score is None else {"semantic_score": semantic_score},
        } | fields
        self.entries.append(make_record(FIRST + self.count, **fields))
        if degrees is not None:
            radians = np.deg2rad(degrees)
            embedding = np.array([np.cos(radians), np.sin(radians)], "<f2").tobytes()
            self.embed(self.count, embedding, space)
        return self.count

    def embed(self, number: int, embedding: bytes, space: str = SPACE) -> None:
        """Store the embedding of an inference."""
        signals = ImageSignals(FIRST + number, embedding=embedding, space=space)
        self.entries.append(self.store.sequenced(SignalsOfImages([signals])))

    def label(self, number: int, join: str = "id", review: str = "") -> None:
        """State the ground truth of an inference."""
        statement = TruthStatement(
            join,
            str(FIRST + number),
            [{"label": "circle", "xmin": 1, "ymin": 1, "xmax": 9, "ymax": 9}],
            "mara",
            task="OBJECT_DETECTION",
            review=review,
        )
        self.entries.append(self.store.sequenced(statement))

    def select(self, count: int = 100, by: Any = ALL, **options: Any) -> Any:
        """Select images of the model, once all of them are stored."""
        if self.entries:
            self.store.commit(*self.entries)
            self.entries.clear()
        values = {"model": "shapes-detector", "count": count, "by": by} | options
        return select(self.store.inferences, SelectionOptions(**values))

    def numbers(self, count: int = 100, by: Any = ALL, **options: Any) -> list[int]:
        """Select images; return their numbers."""
        return numbers_of(self.select(count, by, **options))


def numbers_of(selection: Any) -> list[int]:
    return [int(image.inference_id) - FIRST for image in selection.images]


@pytest.fixture
def images(store: StoreHarness) -> Images:
    return Images(store)


def test_only_images_that_can_be_labelled_and_are_not_yet_are_candidates(images):
    images.add()
    images.label(images.add())
    images.add(image=2)  # the bytes of the labelled one
    images.add(kept=False)
    images.add(status=500, predictions=[])
    images.add(image=1)  # the bytes of the first one, newer
    images.label(images.add(), review=REJECTED)
    images.add(input=InputReference("image"))
    images.add(model=ModelReference("other", "1", ""))
    selection = images.select()
    assert sorted(numbers_of(selection)) == [6, 7]
    assert selection.matches == 8
    assert selection.left_out == {
        "with ground truth": 1,
        "without a stored image": 2,
        "failed": 1,
        "on an image that is labelled": 1,
        "on an image that is there already": 1,
    }
    assert selection.candidates == 2


def test_images_that_another_version_or_an_older_one_was_labelled_on_are_left_out(images):
    images.label(images.add(version="1", image=77))
    number = images.add(version="2")
    images.add(version="2", image=77)
    assert images.numbers(version="2") == [number]
    first = str(FIRST + number)
    assert images.numbers(where={"id": {"ge": first}}) == [number]


def test_an_empty_result_says_why(images):
    with pytest.raises(NotFoundError, match=r"nothing to label: 0 inferences match$"):
        check_found(images.select(model="shapes-detector", where={"label": "star"}))
    images.label(images.add())
    images.add(kept=False)
    images.add(kept=False)
    expected = "nothing to label: 3 inferences match: 1 with ground truth, 2 without a stored image"
    with pytest.raises(NotFoundError, match=expected):
        check_found(images.select())
    assert images.select().notes == []


def test_bad_requests_are_refused(images):
    images.add()
    with pytest.raises(QueryError, match="uncertainty, diversity or drift"):
        images.select(by=[])
    with pytest.raises(QueryError):
        images.select(where={"nonsense": 1})
    assert images.select(model="SHAPES-detector").matches == 1
    assert images.select(version="9").matches == 0


def test_reasons_have_their_values(images):
    images.label(images.add(degrees=0))
    images.add(0.75, degrees=90, semantic_score=0.25, metadata={"camera_id": "north"})
    images.add(0.5, metadata={"camera_id": 7})
    selection = images.select()
    first, second = selection.images
    assert (first.rank, second.rank) == (1, 2)
    assert (first.source, second.source, selection.source_key) == ("north", "7", "camera_id")
    assert first.hash == f"blake3:{2:064x}"
    assert first.reasons.uncertainty == pytest.approx(0.25)
    assert first.reasons.uncertainty_from == "lowest score"
    assert (first.reasons.drift, first.reasons.semantic_score) == (0.75, 0.25)
    assert first.reasons.distance == pytest.approx(2**0.5, abs=1e-2)
    assert first.reasons.nearest == str(FIRST + 1)
    assert (second.reasons.drift, second.reasons.distance) == (None, None)
    assert selection.labelled == 1
    assert [note.partition(":")[0] for note in selection.notes] == ["drift", "diversity"]
    assert images.select(by=["drift"]).images[0].reasons.uncertainty is None


def test_values_that_are_no_scores_are_left_out_and_said(images):
    for score in (None, "0.9", True, [1]):
        images.add(score, semantic_score="high")
    images.add(0.99, semantic_score=7)
    selection = images.select()
    assert selection.images[0].reasons.uncertainty == pytest.approx(0.01)
    assert len(selection.images) == 5
    assert selection.notes[0].startswith("uncertainty: 4 of 5 images")
    assert selection.notes[1].startswith("drift: 5 of 5 images")
    assert selection.notes[2].startswith("diversity: no image has an embedding")
    assert selection.notes[3].startswith("sources: no image has camera_id, stream, recording")


def test_embeddings_of_two_spaces_are_never_compared(images):
    images.label(images.add(degrees=180, version="1"))
    for degrees in (0, 90):
        images.add(degrees=degrees, space=OTHER_SPACE, version="2")
    images.add(degrees=45, version="1")
    images.add(degrees=10, space=OTHER_SPACE, version="2")
    selection = images.select(by=["diversity"])
    assert selection.labelled == 0  # its embedding is of the rarer space
    numbers = numbers_of(selection)
    assert numbers[-1] == 4
    nearest = {image.reasons.nearest for image in selection.images} - {None}
    assert nearest <= {str(FIRST + number) for number in (2, 3, 5)}
    assert selection.images[-1].reasons.distance is None
    assert "1 of 4 images have no embedding, or one of another" in selection.notes[0]


def test_of_two_spaces_as_frequent_the_newer_one_counts(images):
    images.add(degrees=0, version="1")
    images.add(degrees=0, version="2", space=OTHER_SPACE)
    assert images.numbers(by=["diversity"]) == [2, 1]


def test_damaged_embeddings_are_as_none(images):
    images.add(degrees=0)
    images.add(degrees=90)
    for embedding in (b"odd", b"\0\0\0\0", np.array([np.nan, 1], "<f2").tobytes()):
        number = images.add()
        images.embed(number, embedding)
    selection = images.select(by=["diversity"])
    assert sorted(numbers_of(selection)[:2]) == [1, 2]
    assert len(selection.images) == 5


def test_one_source_with_everything_gives_everything(images):
    for _ in range(5):
        images.add(metadata={"camera_id": "north"})
    selection = images.select(3)
    assert [image.source for image in selection.images] == ["north"] * 3


def test_sources_share_the_images_and_those_without_the_key_count_as_one(images):
    for number in range(8):
        images.add(0.1 + number / 100, metadata={"place": {"room": "a"}})
    images.add(0.99, metadata={"place": {"room": "b"}})
    images.add(0.98)
    selection = images.select(4, source_keys=["place.room"])
    sources = [image.source for image in selection.images]
    assert sorted(map(str, sources)) == ["None", "a", "a", "b"]
    assert selection.source_key == "place.room"


def test_two_runs_and_later_rows_of_no_match_give_the_same_and_another_seed_may_not(images):
    for number in range(30):
        images.add(0.5, degrees=number * 7 % 60, metadata={"camera_id": f"c{number % 3}"})
    first = images.select(9)
    assert first == images.select(9)
    images.add(model=ModelReference("other", "1", ""))
    assert first.images == images.select(9).images
    others = {tuple(images.numbers(9, by=["uncertainty"], seed=seed)) for seed in range(5)}
    assert len(others) > 1


def test_beyond_the_maximum_the_same_images_are_drawn(images, monkeypatch):
    for number in range(20):
        images.add(0.5 + number / 100)
    everything = images.select(3, by=["uncertainty"])
    assert not everything.notes[0].startswith("candidates")
    monkeypatch.setattr(stored, "MAX_CANDIDATES", 6)
    selection = images.select(20, by=["uncertainty"])
    assert (len(selection.images), selection.candidates) == (6, 6)
    assert selection.notes[0].startswith("candidates: there are more than 6 images")
    assert selection == images.select(20, by=["uncertainty"])
    other = images.select(20, by=["uncertainty"], seed=1)
    assert set(numbers_of(other)) != set(numbers_of(selection))


def test_labelled_images_are_read_up_to_the_limit(images, monkeypatch):
    monkeypatch.setattr(stored, "MAX_LABELLED", 3)
    monkeypatch.setattr(stored, "_EMBEDDINGS_CHUNK", 2)
    for number in range(5):
        images.label(images.add(degrees=number))
    images.add(degrees=90)
    selection = images.select()
    assert selection.labelled == 3
    assert selection.images[0].reasons.distance > 1


def test_other_teams_are_not_seen(images):
    images.add(team="a", degrees=0)
    images.label(images.add(team="b", degrees=90))
    images.add(team="b", degrees=45)
    images.select()
    reader = images.store.inferences.within(Scope(team="a"))
    options = SelectionOptions(model="shapes-detector", count=9, by=ALL)
    selection = select(reader, options)
    assert numbers_of(selection) == [1]
    assert (selection.matches, selection.labelled) == (1, 0)


def test_of_an_image_the_newest_inference_stays_whatever_the_batches():
    for sizes in ([6], [1] * 6, [2, 4]):
        images, start = DistinctImages(3), 0
        keys = np.array([9, 5, 5, 2, 9, 1], np.uint64)
        for size in sizes:
            part = slice(start, start + size)
            images.add(np.arange(6)[part], keys[part])
            start += size
        assert images.is_sampled
        assert images.keys.tolist() == [1, 2, 5]
        assert images.ids.tolist() == [5, 3, 2]


def test_keys_follow_from_the_image_and_the_seed():
    keys = image_keys(["a", "b", "a"], 0)
    assert keys[0] == keys[2] != keys[1]
    assert image_keys(["a"], 1)[0] != keys[0]
    assert image_keys([], 0).tolist() == []
