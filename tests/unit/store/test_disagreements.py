"""Images on which two models answer differently: by definition, page by page, and within what may be seen."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quadriga.store.browsing import comparison as module
from quadriga.store.browsing.comparison import (
    DisagreementsRequest,
    differences,
    find_disagreements,
)
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import decode_body
from quadriga.store.query.sql.search import Budget
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.store.records.records import (
    InferenceRecord,
    InputReference,
    ModelReference,
    StoredInference,
)
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

A, B = "ships:1", "ships:2"
HASHES = [f"blake3:{number:064x}" for number in range(40)]


def answered(
    seq: int, image: int | None, version: str, label: str, **fields: Any
) -> InferenceRecord:
    reference = InputReference("image", None if image is None else HASHES[image], 8, 8)
    return make_record(
        seq,
        model=ModelReference("ships", version, "ab" * 32),
        input=reference,
        predictions=[{"label": label, "score": 0.9, "xmin": 0, "ymin": 0, "xmax": 10, "ymax": 10}],
        **fields,
    )


def some_records() -> list[InferenceRecord]:
    chance, records = random.Random(5), []
    for seq in range(1, 241):
        version, image = chance.choice("123"), chance.choice([*range(40), None])
        metadata = {"camera": chance.choice(["north", "east"])}
        team = chance.choice(["a", "a", "b"])
        label = chance.choice(["ship", "buoy"])
        records.append(answered(seq, image, version, label, metadata=metadata, team=team))
    return records


def expected(records: list[InferenceRecord], camera: str | None = None) -> list[tuple[str, str]]:
    """Return the pairs of ids by definition, the newest first."""
    newest: dict[Any, InferenceRecord] = {}
    for record in records:
        if record.model.version == "2" and record.input.hash:
            newest[record.input.hash] = record
    pairs = []
    for record in reversed(records):
        other = newest.get(record.input.hash)
        is_matched = camera is None or record.metadata["camera"] == camera
        is_compared = record.model.version == "1" and other and is_matched
        if is_compared and record.predictions != other.predictions:
            pairs.append((str(record.seq), str(other.seq)))
    return pairs


@pytest.fixture
def reader(database_url: str, tmp_path: Path) -> Iterator[InferenceReader]:
    store = StoreHarness(tmp_path, database_url)
    store.commit(*some_records())
    yield store.inferences
    store.close()


def pages(reader: InferenceReader, request: DisagreementsRequest) -> list[tuple[str, str]]:
    """Return the pairs of ids of all pages."""
    pairs, count = [], 0
    while True:
        page = find_disagreements(reader, request)
        pairs += [(pair.a.id, pair.b.id) for pair in page.disagreements]
        assert all((pair.only_a, pair.only_b) == ([0], [0]) for pair in page.disagreements)
        assert len(page.disagreements) <= request.limit
        count += 1
        assert count < 300
        if page.cursor is None:
            return pairs
        request = msgspec.structs.replace(request, cursor=page.cursor)


@pytest.mark.parametrize("limit", [1, 7, 200])
@pytest.mark.parametrize("batch", [3, 200])
def test_each_disagreement_is_on_one_page(
    reader: InferenceReader, monkeypatch: pytest.MonkeyPatch, limit: int, batch: int
) -> None:
    monkeypatch.setattr(module, "_BATCH", batch)
    request = DisagreementsRequest(A, B, limit=limit)
    pairs = expected(some_records())
    assert len(pairs) > 10
    assert pages(reader, request) == pairs
    ascending = msgspec.structs.replace(request, order="ts")
    assert pages(reader, ascending) == pairs[::-1]
    where = {"meta.camera": "north"}
    norths = expected(some_records(), "north")
    assert pages(reader, msgspec.structs.replace(request, where=where)) == norths


def test_what_was_gone_through_is_counted(reader: InferenceReader) -> None:
    page = find_disagreements(reader, DisagreementsRequest(A, B, limit=200))
    records = [r for r in some_records() if r.model.version == "1" and r.input.hash]
    images = {r.input.hash for r in some_records() if r.model.version == "2"}
    compared = sum(record.input.hash in images for record in records)
    assert (page.compared, page.alone) == (compared, len(records) - compared)
    assert (page.cursor, page.partial) == (None, False)


def test_limits_end_a_page_that_a_cursor_continues(
    reader: InferenceReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH", 4)
    monkeypatch.setattr(module, "MAX_COMPARED", 8)
    request = DisagreementsRequest(A, B, limit=200)
    page = find_disagreements(reader, request)
    assert page.partial
    assert page.compared + page.alone == 8
    assert pages(reader, request) == expected(some_records())
    reader.budget = Budget(rows=5, first_batch_rows=5)
    assert pages(reader, msgspec.structs.replace(request, where={"latency_ms": {"gt": 1}})) == expected(some_records())  # fmt: skip


def test_a_team_compares_its_own_inferences_alone(reader: InferenceReader) -> None:
    of_a = [record for record in some_records() if record.team == "a"]
    assert pages(reader.within(Scope("a")), DisagreementsRequest(A, B)) == expected(of_a)
    assert pages(reader.within(Scope("c")), DisagreementsRequest(A, B)) == []
    of_models = reader.within(Scope("", ("buoys*",)))
    assert pages(of_models, DisagreementsRequest(A, B)) == []


BODY = "expected the body to be a JSON object with a, b, where, score, iou, order"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "missing required field `a`"),
        (b'{"a": "ships:1"}', "missing required field `b`"),
        (b'{"a": "", "b": "x"}', BODY),
        (b'{"a": "x", "b": "y", "score": 2}', BODY),
        (b'{"a": "x", "b": "y", "iou": 0}', BODY),
        (b'{"a": "x", "b": "y", "limit": 201}', BODY),
        (b'{"a": "x", "b": "y", "colour": 1}', "unknown field `colour`"),
        (b'{"a": "ships", "b": "ships:2"}', "expected a and b to be two models, or two versions"),
        (b'{"a": "ships:1", "b": "ships:2", "where": {"colour": 1}}', "to name one of id"),
        (b'{"a": "ships:1", "b": "ships:2", "cursor": "x"}', "expected cursor to be one that a"),
    ],
)
def test_a_bad_request_is_refused_with_its_reason(
    reader: InferenceReader, body: bytes, message: str
) -> None:
    with pytest.raises(QueryError, match=re.escape(message)):
        find_disagreements(reader, decode_body(body, DisagreementsRequest))


def test_an_unknown_model_is_named(reader: InferenceReader) -> None:
    reader._served = set  # as a server has it
    for request in (DisagreementsRequest("ship", B), DisagreementsRequest(A, "ship:9")):
        with pytest.raises(NotFoundError, match="model not found: 'ship'; did you mean ships"):
            find_disagreements(reader, request)


def test_a_cursor_belongs_to_its_comparison(reader: InferenceReader) -> None:
    cursor = find_disagreements(reader, DisagreementsRequest(A, B, limit=1)).cursor
    with pytest.raises(QueryError, match="the cursor belongs to another filter or order"):
        find_disagreements(reader, DisagreementsRequest(B, A, limit=1, cursor=cursor))


def box(label: str, left: float, score: float = 0.9, size: float = 10) -> dict[str, Any]:
    corners = {"xmin": left, "ymin": 0, "xmax": left + size, "ymax": size}
    return {"label": label, "score": score, **corners}


def turned(cx: Any, r: Any = 0.0) -> dict[str, Any]:
    return {"label": "ship", "score": 0.9, "cx": cx, "cy": 0.5, "w": 0.5, "h": 0.125, "r": r}


def contour(left: float) -> dict[str, Any]:
    ring = [{"x": left, "y": 1}, {"x": left + 4, "y": 1}, {"x": left + 2, "y": 5}]
    return {"label": "ship", "score": 0.9, "contour": [ring]}


DETECTION, CLASSES, ORIENTED, SEGMENTS, TEXT = (
    "OBJECT_DETECTION", "IMAGE_CLASSIFICATION", "ORIENTED_OBJECT_DETECTION", "IMAGE_SEGMENTATION", "IMAGE_TEXT_TO_TEXT",
)  # fmt: skip


@pytest.mark.parametrize(
    ("task", "a", "b", "expected_sides"),
    [
        (DETECTION, [], [], ([], [])),
        (DETECTION, [box("ship", 0)], [], ([0], [])),
        (DETECTION, [box("ship", 0)], [box("ship", 3)], ([], [])),
        (DETECTION, [box("ship", 0)], [box("ship", 4)], ([0], [0])),
        (DETECTION, [box("ship", 0)], [box("buoy", 0)], ([0], [0])),
        (DETECTION, [box("ship", 0, 0.4)], [], ([], [])),
        (DETECTION, [box("ship", 0, 0.5)], [], ([0], [])),
        (DETECTION, [box("ship", 0), box("ship", 0)], [box("ship", 1)], ([1], [])),
        (DETECTION, [box("ship", 2, 0.6), box("ship", 0, 0.8)], [box("ship", 1)], ([0], [])),
        (DETECTION, [box("ship", 0), box("ship", 50)], [box("ship", 50), box("ship", 0)], ([], [])),
        (DETECTION, [box("ship", 0, size=0)], [box("ship", 0, size=0)], ([], [])),
        (DETECTION, [box("ship", 0, size=0)], [box("ship", 1, size=0)], ([0], [0])),
        (CLASSES, [{"label": "a", "score": 0.3}, {"label": "b", "score": 0.2}], [{"label": "b", "score": 0.1}, {"label": "a", "score": 0.4}], ([], [])),
        (CLASSES, [{"label": "a", "score": 0.3}, {"label": "b", "score": 0.2}], [{"label": "b", "score": 0.9}], ([0], [0])),
        (CLASSES, [], [{"label": "b", "score": 0.9}], ([], [0])),
        (ORIENTED, [{"label": "a", "score": 0.9, "cx": 0}], [{"label": "a", "score": 0.9, "cx": 1}], ([], [])),
        (ORIENTED, [turned(0.5)], [turned(0.5, 3.14159)], ([], [])),
        (ORIENTED, [turned(0.5)], [turned(0.5, 1.5708)], ([0], [0])),  # the other way
        (ORIENTED, [turned(0.3)], [turned(0.7)], ([0], [0])),
        (ORIENTED, [turned("0.3")], [turned([])], ([], [])),
        (SEGMENTS, [contour(0)], [contour(1)], ([], [])),
        (SEGMENTS, [contour(0)], [contour(3)], ([0], [0])),
        (SEGMENTS, [{"label": "ship", "contour": [[{"x": "?"}]]}], [{"label": "ship", "contour": []}], ([], [])),
        (TEXT, [{"prompt": "?", "answer": "yes"}], [{"prompt": "?", "answer": "no"}], ([0], [0])),
        (TEXT, [{"prompt": "?", "answer": "yes"}], [{"prompt": "?", "answer": "yes"}], ([], [])),
        ("TENSOR", {"outputs": [1]}, {"outputs": [2]}, ([], [])),
        (DETECTION, [{"label": 5, "score": "x"}], [{"label": None}], ([0], [0])),
    ],
)  # fmt: skip
def test_two_answers_differ_where_a_prediction_has_no_counterpart(
    task: str, a: Any, b: Any, expected_sides: tuple[list[int], list[int]]
) -> None:
    sides = [stored(task, predictions) for predictions in (a, b)]
    assert differences(*sides, score=0.5, iou=0.5) == expected_sides
    mirrored = differences(*sides[::-1], score=0.5, iou=0.5)
    assert tuple(map(len, mirrored[::-1])) == tuple(map(len, expected_sides))


def stored(task: str, predictions: Any) -> StoredInference:
    return StoredInference(
        id="1",
        request_id="",
        image_no=0,
        model=ModelReference("ships", "1", ""),
        task=task,
        action="",
        created_at="",
        latency_ms=1,
        input=InputReference("image", None, 8, 8),
        predictions=msgspec.Raw(msgspec.json.encode(predictions)),
        metadata=msgspec.Raw(b"{}"),
        status=200,
        standard_metadata=msgspec.Raw(b"{}"),
    )
