"""What queries find, by a table and against a predicate written without SQL."""

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.blobs import BlobStore
from store.database import migrate
from store.errors import MetadataError
from store.ids import first_at
from store.inferences import Inferences, QueryRequest
from store.journal import Journal
from store.metadata import check
from store.records import InferenceRecord, InputReference, ModelReference, timestamp_text
from store.writer import Writer

BASE_MS = 1_770_000_000_000
PLANS = (0, 12, 10_000)
"""Everything is wide, some is narrow, everything is narrow."""


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        migrate(f"sqlite:///{directory}/store.db")
        yield Path(directory) / "store.db"


@contextmanager
def stored(template: Path, records: list[InferenceRecord]) -> Iterator[list[Inferences]]:
    """Give readers, one for each plan, of a database with these records."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        shutil.copy(template, root / "store.db")
        journal = Journal(root / "journal", 0)
        journal.append(records)
        journal.close()
        url = f"sqlite:///{root}/store.db"
        writer = Writer(root / "journal", url)
        writer.drain()
        writer.close()
        assert (writer.records_moved, writer.records_dead) == (len(records), 0)
        readers = [
            Inferences(url, root / "journal", BlobStore(root / "blobs"), narrow=narrow)
            for narrow in PLANS
        ]
        try:
            yield readers
        finally:
            for reader in readers:
                reader.close()


def found(inferences: Inferences, where: Any, order: str = "-ts", limit: int = 1000) -> list[int]:
    """Walk all pages."""
    ids: list[int] = []
    cursor = None
    while True:
        request = QueryRequest(where, order, limit, cursor)  # type: ignore[arg-type]
        page = inferences.query(request)
        ids += [int(one.id) for one in page.inferences]
        assert len(page.inferences) == limit or page.cursor is None
        cursor = page.cursor
        if cursor is None:
            return ids


LONG = "x" * 300
TABLE_RECORDS: list[dict[str, Any]] = [
    {"metadata": {"camera": "north", "altitude": 120.5, "location": {"floor": 2, "tags": ["a"]}}},
    {"metadata": {"camera": "North", "altitude": 2, "night": True}},
    {"metadata": {"camera": LONG + "a", "altitude": "120.5", "night": 1}},
    {"metadata": {"camera": LONG + "b", "altitude": (1 << 53) + 1, "night": None}},
    {"metadata": {"location.floor": 2.0, 'odd "key".\\': "é", "camera": "\U0001f600"}},
    {"metadata": {}, "predictions": [{"label": "circle", "score": 0.9}, {"label": "circle", "score": 0.4}]},
    {"metadata": {}, "predictions": [{"label": "circle", "score": 0.3}, {"label": "square", "score": 0.8}]},
    {"metadata": {}, "predictions": [{"label": "circle"}], "latency_ms": 0.001},
    {"metadata": {}, "predictions": {"label": "circle", "score": 0.9}, "action": "embed",
     "model": ModelReference("Ships", "2", ""), "task": "ORIENTED_OBJECT_DETECTION"},
    {"metadata": {}, "predictions": [{"label": "neg", "score": -0.5}], "input": InputReference("x"), "request_id": "r",
     "model": ModelReference("Ships", "10", ""), "task": "TENSOR"},
]  # fmt: skip

FILTERS: list[tuple[Any, str]] = [
    ({}, "0123456789"),
    ({"or": []}, ""),
    ({"not": {"or": []}}, "0123456789"),
    ({"meta.camera": "north"}, "0"),
    ({"meta.camera": {"ne": "north"}}, "123456789"),
    ({"meta.camera": {"gt": "North"}}, "0234"),
    ({"meta.camera": {"lt": "\uffff"}}, "0123"),
    ({"meta.camera": {"gt": "\uffff"}}, "4"),
    ({"meta.camera": LONG + "a"}, "2"),
    ({"meta.camera": LONG}, ""),
    ({"meta.camera": {"gt": LONG + "a"}}, "34"),
    ({"meta.camera": {"ge": LONG[:256], "lt": LONG + "b"}}, "2"),
    ({"meta.camera": {"contains": "xb"}}, "3"),
    ({"meta.camera": {"contains": "orth"}}, "01"),
    ({"meta.camera": {"in": ["north", LONG + "b", 3, True]}}, "03"),
    ({"meta.camera": {"in": []}}, ""),
    ({"meta.altitude": {"ge": 2}}, "013"),
    ({"meta.altitude": {"ge": 2.0, "lt": 120.5}}, "1"),
    ({"and": [{"meta.altitude": {"ge": 2}}, {"and": [{"meta.altitude": {"lt": 120.5}}]}]}, "1"),
    ({"meta.altitude": {"ge": 2, "lt": "2"}}, ""),
    ({"not": {"meta.altitude": {"ge": 2, "lt": 120.5}}}, "023456789"),
    ({"meta.altitude": {"gt": 1 << 53}}, "3"),
    ({"meta.altitude": 1 << 53}, ""),
    ({"meta.altitude": (1 << 53) + 1}, "3"),
    ({"meta.altitude": "120.5"}, "2"),
    ({"meta.altitude": {"in": [2.0, "120.5"]}}, "12"),
    ({"meta.night": True}, "1"),
    ({"meta.night": {"ne": False}}, "0123456789"),
    ({"meta.night": 1}, "2"),
    ({"not": {"meta.night": 1}}, "013456789"),
    ({"meta.night": {"gt": 0}}, "2"),
    ({"meta.night": {"exists": True}}, "12"),
    ({"meta.night": {"exists": False}}, "03456789"),
    ({"meta.location": {"exists": True}}, "0"),
    ({"meta.location.tags": {"exists": True}}, "0"),
    ({"meta.location.floor": 2}, "04"),
    ({'meta.odd "key".\\': {"ge": "e"}}, "4"),
    ({"meta.unknown": 1}, ""),
    ({"not": {"meta.unknown": 1}}, "0123456789"),
    ({"label": "circle", "meta.camera": {"exists": False}}, "567"),
    ({"label": {"ne": "circle"}}, "89"),
    ({"label": {"in": ["square", "circle", "none"]}, "meta.camera": {"exists": False}}, "567"),
    ({"label": {"in": ["square", "circle"]}}, "01234567"),
    ({"label": {"name": "neg", "score": {"lt": 0}}}, "9"),
    ({"label": {"in": []}}, ""),
    ({"label": "unknown"}, ""),
    ({"label": {"name": "circle", "score": {"ge": 0.9}}}, "012345"),
    ({"label": {"name": "circle", "score": {"gt": 0.9}}}, "01234"),
    ({"label": {"name": "circle", "score": {"lt": 0.5}}}, "56"),
    ({"label": {"name": "circle", "score": {"gt": 0.3, "lt": 0.5}}}, "5"),
    ({"label": {"name": "circle", "score": 0.4}}, "5"),
    ({"label": {"name": "circle", "score": {"ge": -5}}}, "0123456"),
    ({"model": "shapes-detector"}, "01234567"),
    ({"model": "SHIPS:2"}, "8"),
    ({"model": "m-ships"}, "89"),
    ({"model": {"in": ["ships", "shapes-detector:1"]}}, "0123456789"),
    ({"model": {"ne": "ships"}}, "01234567"),
    ({"model": "ships:1"}, ""),
    ({"model": {"exists": True}}, "0123456789"),
    ({"task": "detection"}, "01234567"),
    ({"task": "Oriented"}, "8"),
    ({"task": {"in": ["OBJECT_DETECTION", "tensor"]}}, "012345679"),
    ({"action": "embed"}, "8"),
    ({"action": {"contains": "pre"}}, "012345679"),
    ({"request_id": "r"}, "9"),
    ({"request_id": {"in": ["r", "s"]}}, "9"),
    ({"latency_ms": 0.001}, "7"),
    ({"latency_ms": {"ge": 4.2}}, "012345689"),
    ({"input.hash": {"exists": False}}, "9"),
    ({"input.hash": {"ne": "x"}}, "0123456789"),
    ({"input.hash": "blake3:" + "0" * 64}, "012345678"),
    ({"id": str(first_at(BASE_MS + 3))}, "3"),
    ({"id": {"in": [str(first_at(BASE_MS + 3)), str(first_at(BASE_MS + 5)), "9" * 19]}}, "35"),
    ({"id": {"ge": "9" * 19}}, ""),
    ({"ts": timestamp_text(BASE_MS + 4)}, "4"),
    ({"ts": {"gt": timestamp_text(BASE_MS + 4), "le": timestamp_text(BASE_MS + 6)}}, "56"),
    ({"ts": {"in": [timestamp_text(BASE_MS), timestamp_text(BASE_MS + 9)]}}, "09"),
    ({"not": {"ts": {"ge": timestamp_text(BASE_MS + 1)}}}, "0"),
    ({"ts": {"lt": "2026-02-02T02:40:00.0035Z"}}, "0123"),
    ({"ts": {"ge": "2026-02-02T02:40:00.0035Z"}}, "456789"),
    ({"ts": {"ge": "2100-01-01T00:00:00Z"}}, ""),
    ({"ts": {"le": "2100-01-01T00:00:00Z"}}, "0123456789"),
    ({"ts": {"lt": "1950-01-01T00:00:00Z"}}, ""),
    ({"ts": {"gt": timestamp_text(BASE_MS + 6), "lt": timestamp_text(BASE_MS + 2)}}, ""),
    ({"or": [{"meta.camera": "north"}, {"label": {"name": "square"}}, {"id": str(first_at(BASE_MS))}]}, "06"),
    ({"or": [{"meta.camera": "north"}, {"meta.altitude": {"ge": 0}}]}, "013"),
    ({"or": [{"meta.camera": "north", "meta.altitude": {"gt": 1}}, {"request_id": "r"}]}, "09"),
    ({"and": [{"not": {"not": {"meta.night": True}}}, {"or": [{"meta.altitude": 2}]}]}, "1"),
]  # fmt: skip


@pytest.fixture(scope="module")
def table(template: Path, record) -> Iterator[list[Inferences]]:
    records = [
        record(first_at(BASE_MS + number), **fields) for number, fields in enumerate(TABLE_RECORDS)
    ]
    with stored(template, records) as readers:
        yield readers


@pytest.mark.parametrize(("where", "ids"), FILTERS)
def test_a_filter_finds(table: list[Inferences], where: Any, ids: str) -> None:
    expected = [first_at(BASE_MS + int(digit)) for digit in ids]
    for inferences in table:
        assert found(inferences, where, "ts") == expected
        assert found(inferences, where, "-ts", limit=1) == expected[::-1]
        for how in ("exact", "capped"):
            assert inferences.query(QueryRequest(where, limit=1, count=how)).count == len(expected)


@pytest.mark.parametrize("kind", ["and", "or"])
def test_the_largest_filters_can_be_asked(table: list[Inferences], kind: str) -> None:
    deep: dict[str, Any] = {"meta.camera": {"in": [str(n) for n in range(1000)]}}
    for _ in range(14):
        deep = {kind: [{"not": {"label": "circle"}}, deep]}
    many = {kind: [{"meta.camera": {"in": [str(n) for n in range(50)]}}] * 100 + [
        {"label": {"name": "circle", "score": {"lt": 0.5}}}] * 100}  # fmt: skip
    times = {"not": {"ts": {"in": [timestamp_text(n) for n in range(1000)]}}}
    labels = {"label": {"in": [str(n) for n in range(1000)]}}
    for inferences in table:
        for where in (deep, many, times, labels):
            inferences.query(QueryRequest(where, count="exact"))


# What follows compares with plain Python.

NUMBERS = [0, 1, 2, -1, 2.0, 0.1, 1 / 3, 0.30000000000000004, -2.5, 5e-324, 1.7976931348623157e308,
           (1 << 53) - 1, 1 << 53, (1 << 53) + 1, float(1 << 53), (1 << 63) - 1, -(1 << 63)]  # fmt: skip
STRINGS = ["", "a", "A", "ab", "é", "\uffff", "\U0001f600", "1", "true", "x" * 256, "x" * 257,
           "x" * 256 + "a", "%", "a'b\"\\"]  # fmt: skip
scalars = st.sampled_from([*NUMBERS, *STRINGS, True, False])
MODELS = [("m1", "1", "OBJECT_DETECTION"), ("m1", "2", "OBJECT_DETECTION"), ("M2", "1", "TENSOR")]
ACTIONS = ["predict", "embed"]
HASHES = [None, "blake3:" + "0" * 64]
LATENCIES = [0.0, 1.001, 4.35, 7.0]


def is_allowed(given_metadata: dict[str, Any]) -> bool:
    try:
        check(given_metadata)
    except MetadataError:
        return False
    return True


def random_metadata(pick: random.Random, depth: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in pick.sample(["a", "b", "a.b", "n", 'q"'], pick.randint(0, 4)):
        if pick.random() < 0.3 and depth < 2:
            found[key] = random_metadata(pick, depth + 1)
        else:
            found[key] = pick.choice([*NUMBERS, *STRINGS, True, False, None, [1]])
    return found if depth or is_allowed(found) else random_metadata(pick)


def random_records(pick: random.Random) -> list[dict[str, Any]]:
    records = []
    for ms, counter in sorted({(pick.randint(0, 5), pick.randint(0, 40)) for _ in range(160)}):
        name, version, task = pick.choice(MODELS)
        scored = [
            {"label": pick.choice(["a", "b", "c", 1])}
            | (
                {"score": pick.choice([0, 0.25, 0.5, 0.75, 1, None, "1"])}
                if pick.random() < 0.8
                else {}
            )
            for _ in range(pick.randint(0, 3))
        ]
        records.append(
            {
                "seq": first_at(BASE_MS + ms) | counter,
                "request_id": f"r{ms}",
                "model": ModelReference(name, version, ""),
                "task": task,
                "action": pick.choice(ACTIONS),
                "latency_ms": pick.choice(LATENCIES),
                "input": InputReference("x", pick.choice(HASHES)),
                "predictions": scored,
                "metadata": random_metadata(pick),
            }
        )
    return records


def asked(value: st.SearchStrategy[Any], operators: list[str]) -> st.SearchStrategy[Any]:
    """Give a bare value, or one or two operators."""
    operands = {
        "in": st.lists(value, max_size=3),
        "exists": st.booleans(),
        "contains": st.sampled_from(STRINGS),
    }
    one = {operator: operands.get(operator, value) for operator in operators}
    objects = st.fixed_dictionaries({}, optional=one).filter(lambda some: 1 <= len(some) <= 3)
    return st.one_of(value, objects)


ORDERED = ["eq", "ne", "gt", "ge", "lt", "le", "in", "exists"]
moments = st.integers(-1, 6).map(lambda ms: timestamp_text(BASE_MS + ms))
ids = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(
    lambda p: str(first_at(BASE_MS + p[0]) | p[1])
)
meta_values = asked(st.sampled_from([*NUMBERS, *STRINGS]), [*ORDERED, "contains"])
comparisons = st.one_of(
    *[
        st.one_of(meta_values, asked(scalars, ["eq", "ne", "in", "exists"])).map(
            lambda value, path=path: {f"meta.{path}": value}
        )
        for path in ("a", "b", "a.b", "n", 'a.q"', "n.n", "none")
    ],
    asked(moments, ORDERED).map(lambda v: {"ts": v}),
    asked(ids, ORDERED).map(lambda v: {"id": v}),
    asked(st.sampled_from(["r1", "r2", "r9"]), [*ORDERED, "contains"]).map(lambda v: {"request_id": v}),
    asked(st.sampled_from(ACTIONS), [*ORDERED, "contains"]).map(lambda v: {"action": v}),
    asked(st.sampled_from(["m1", "M1:2", "m-m2", "m3"]), ["eq", "ne", "in", "exists"]).map(lambda v: {"model": v}),
    asked(st.sampled_from(["detection", "tensor", "TENSOR"]), ["eq", "ne", "in", "exists"]).map(lambda v: {"task": v}),
    asked(st.sampled_from(LATENCIES), ORDERED).map(lambda v: {"latency_ms": v}),
    asked(st.sampled_from(["blake3:" + "0" * 64, "x"]), [*ORDERED, "contains"]).map(lambda v: {"input.hash": v}),
    asked(st.sampled_from(["a", "b", "z"]), ["eq", "ne", "in"]).map(lambda v: {"label": v}),
    st.builds(
        lambda name, score: {"label": {"name": name, "score": score}},
        st.sampled_from(["a", "b", "c"]),
        asked(st.sampled_from([0, 0.25, 0.5, 1]), ["eq", "gt", "ge", "lt", "le"]),
    ),
)  # fmt: skip
filters = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: {"and": parts}),
        st.lists(inner, max_size=3).map(lambda parts: {"or": parts}),
        inner.map(lambda part: {"not": part}),
        st.tuples(inner, inner).map(lambda pair: {**pair[0], **pair[1]}),
    ),
    max_leaves=6,
)

ABSENT = object()


def lookup(node: dict[str, Any], path: str) -> Any:
    """Find a dotted path in nested objects whose keys may have dots themselves."""
    for key, value in node.items():
        if key == path and value is not None:
            return value
        if path.startswith(key + ".") and isinstance(value, dict):
            inner = lookup(value, path[len(key) + 1 :])
            if inner is not ABSENT:
                return inner
    return ABSENT


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: "number", float: "number", str: "text"}.get(type(value), "other")


def compares(value: Any, operator: str, operand: Any) -> bool:
    if operator == "ne":
        return not compares(value, "eq", operand)
    if operator == "exists":
        return (value is not ABSENT) == operand
    if operator == "in":
        return any(compares(value, "eq", one) for one in operand)
    if kind(value) == "other" or kind(value) != kind(operand):
        return False
    if operator == "contains":
        return operand in value
    sign = (value > operand) - (value < operand)
    return {"eq": sign == 0, "gt": sign > 0, "ge": sign >= 0, "lt": sign < 0, "le": sign <= 0}[
        operator
    ]


def all_hold(value: Any, asked_of_it: Any) -> bool:
    if not isinstance(asked_of_it, dict):
        return compares(value, "eq", asked_of_it)
    return all(compares(value, operator, operand) for operator, operand in asked_of_it.items())


def label_holds(record: InferenceRecord, asked_of_it: Any) -> bool:
    if isinstance(asked_of_it, str):
        return any(one["label"] == asked_of_it for one in record.predictions)
    if "name" in asked_of_it:
        return any(
            one["label"] == asked_of_it["name"]
            and all_hold(one.get("score", ABSENT), asked_of_it["score"])
            for one in record.predictions
        )
    labels = {one["label"] for one in record.predictions}
    return all(
        {"eq": operand in labels, "ne": operand not in labels}[operator]
        if operator != "in"
        else bool(labels & set(operand))
        for operator, operand in asked_of_it.items()
    )


def name_holds(names: set[str], asked_of_it: Any) -> bool:
    if isinstance(asked_of_it, str):
        return asked_of_it.lower() in names
    held = []
    for operator, operand in asked_of_it.items():
        if operator == "exists":
            held.append(operand)
        elif operator == "in":
            held.append(any(one.lower() in names for one in operand))
        else:
            held.append((operand.lower() in names) == (operator == "eq"))
    return all(held)


def holds(where: dict[str, Any], record: InferenceRecord) -> bool:
    return all(part_holds(key, value, record) for key, value in where.items())


def part_holds(key: str, value: Any, record: InferenceRecord) -> bool:
    if key in {"and", "or"}:
        return (all if key == "and" else any)(holds(part, record) for part in value)
    if key == "not":
        return not holds(value, record)
    if key == "label":
        return label_holds(record, value)
    return field_holds(key, value, record)


def field_holds(key: str, value: Any, record: InferenceRecord) -> bool:
    if key == "model":
        name = record.model.name.lower()
        return name_holds({name, f"m-{name}", f"{name}:{record.model.version}"}, value)
    if key == "task":
        return name_holds(
            {"tensor"} if record.task == "TENSOR" else {"object_detection", "detection"}, value
        )
    if key.startswith("meta."):
        return all_hold(lookup(record.metadata, key[5:]), value)
    columns: dict[str, Any] = {
        "id": str(record.seq),  # of equal length, so their text is ordered as they are
        "ts": timestamp_text(record.seq >> 22),
        "request_id": record.request_id,
        "action": record.action,
        "latency_ms": record.latency_ms,
        "input.hash": ABSENT if record.input.hash is None else record.input.hash,
    }
    return all_hold(columns[key], value)


@pytest.fixture(scope="module")
def random_store(
    template: Path, record
) -> Iterator[tuple[list[InferenceRecord], list[Inferences]]]:
    records = [record(**fields) for fields in random_records(random.Random(20))]
    with stored(template, records) as readers:
        yield records, readers


@settings(max_examples=400, deadline=None)
@given(where=filters, order=st.sampled_from(["ts", "-ts"]), limit=st.integers(10, 60))
def test_every_plan_finds_what_the_predicate_holds_for(
    random_store, where: Any, order: str, limit: int
) -> None:
    records, readers = random_store
    expected = sorted(
        (record.seq for record in records if holds(where, record)), reverse=order == "-ts"
    )
    for inferences in readers:
        assert found(inferences, where, order, limit) == expected
        counted = inferences.query(QueryRequest(where, limit=1, count="exact"))
        assert counted.count == len(expected)
