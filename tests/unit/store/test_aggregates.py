import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.store.maintenance import aggregates
from quadriga.store.maintenance.aggregates import (
    AggregateRequest,
    Aggregates,
    aggregate,
)
from quadriga.store.query.request import decode_body
from quadriga.store.records.errors import QueryError
from quadriga.store.records.ids import smallest_id_at, time_ms
from quadriga.store.records.records import InferenceRecord, ModelReference, timestamp_text
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

START_MS = 1_780_000_020_000
MINUTE_MS = 60_000
UNITS_MS = {"s": 1000, "m": MINUTE_MS, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
MODELS = [
    (ModelReference(name, version, "ab" * 32), task)
    for name, version, task in [
        ("shapes", "1", "OBJECT_DETECTION"),
        ("shapes", "2", "OBJECT_DETECTION"),
        ("Other", "1", "IMAGE_CLASSIFICATION"),
    ]
]


def some_records() -> list[InferenceRecord]:
    rnd = random.Random(7)
    records = []
    for number in range(300):
        model, task = rnd.choice(MODELS)
        at = START_MS + rnd.choice([1, 3600, 86400 * 3]) * rnd.randrange(10) * 1000
        labels = rnd.choices(["circle", "square", "star\0"], k=rnd.randrange(4))
        predictions: Any = [{"label": label, "score": 0.5} for label in labels]
        records.append(
            make_record(
                smallest_id_at(at + rnd.choice([0, 1, 59_999, 30_000])) + number,
                model=model,
                task=task,
                latency_ms=rnd.choice([0, 0.4, rnd.lognormvariate(3, 2)]),
                status=rnd.choice([200, 200, 500]),
                predictions=rnd.choice([predictions, predictions, {"raw": 1}]),
                metadata={"site": rnd.choice(["a", "b"])},
            )
        )
    return records


RECORDS = some_records()


class AggregateHarness(StoreHarness):
    """A store whose inferences are aggregated."""

    def aggregate(self, **request: Any) -> Aggregates:
        return aggregate(self.inferences, AggregateRequest(**request))


@pytest.fixture
def counted(database_url: str, tmp_path: Path) -> Iterator[AggregateHarness]:
    counted = AggregateHarness(tmp_path, database_url)
    counted.commit(*RECORDS)
    yield counted
    counted.close()


def start_ms(at_ms: int, width: str | None) -> int:
    """Return the beginning of a group by time; weeks begin on Monday."""
    if width is None:
        return 0
    width_ms = int(width[:-1]) * UNITS_MS[width[-1]]
    offset = 4 * 86_400_000 if width[-1] == "w" else 0
    return (at_ms - offset) // width_ms * width_ms + offset


def by_definition(
    records: list[InferenceRecord], width: str | None, names: list[str]
) -> dict[tuple, list[InferenceRecord]]:
    """Return the records of each group."""
    groups: dict[tuple, list[InferenceRecord]] = {} if width or names else {(0,): []}
    for record in records:
        values = {"model": record.model.name, "version": record.model.version, "task": record.task}
        key = (start_ms(time_ms(record.seq), width), *(values[name] for name in names))
        groups.setdefault(key, []).append(record)
    return groups


def labels_of(records: list[InferenceRecord]) -> dict[str, int]:
    mix: dict[str, int] = {}
    for record in records:
        for prediction in record.predictions if isinstance(record.predictions, list) else []:
            label = prediction["label"].replace("\0", "\ufffd")
            mix[label] = mix.get(label, 0) + 1
    return mix


def assert_counted(group: dict[str, Any], records: list[InferenceRecord]) -> None:
    assert group["count"] == len(records)
    errors = sum(record.status >= 500 for record in records)
    assert group["error_rate"] == (errors / len(records) if records else None)
    assert group["labels"] == labels_of(records)
    latencies = sorted(round(record.latency_ms * 1000) / 1000 for record in records)
    for name, quantile in (("latency_p50", 0.5), ("latency_p95", 0.95), ("latency_p99", 0.99)):
        exact = latencies[math.ceil(quantile * len(latencies)) - 1] if latencies else None
        assert group[name] == (exact if exact is None else pytest.approx(exact, rel=0.01, abs=0))
    mean = sum(latencies) / len(latencies) if latencies else None
    assert group["latency_mean"] == (mean if mean is None else pytest.approx(mean, rel=0.01, abs=0))


EVERY = [
    "count", "error_rate", "latency_mean", "latency_p50", "latency_p95", "latency_p99", "labels",
]  # fmt: skip
moments = st.integers(-200, 60 * 24 * 30).map(lambda minute: START_MS + minute * MINUTE_MS)
conditions = {
    "model": st.sampled_from(["shapes", "other", "shapes:2", "none"]),
    "task": st.sampled_from(["OBJECT_DETECTION", "classification"]),
}


def holds(where: dict[str, Any], record: InferenceRecord) -> bool:
    name = record.model.name.lower()
    short = {"OBJECT_DETECTION": "detection"}.get(record.task, "classification")
    at = time_ms(record.seq)
    bounds = where.get("ts", {})
    return (
        where.get("model", name) in {name, f"{name}:{record.model.version}"}
        and where.get("task", short) in {record.task, short}
        and where.get("meta.site", record.metadata["site"]) == record.metadata["site"]
        and ("ge" not in bounds or at >= ms_of(bounds["ge"]))
        and ("lt" not in bounds or at < ms_of(bounds["lt"]))
    )


def ms_of(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


@settings(max_examples=40)
@given(data=st.data())
def test_what_is_counted_equals_the_rows(counted: AggregateHarness, data: st.DataObject) -> None:
    where: dict[str, Any] = data.draw(st.fixed_dictionaries({}, optional=conditions))
    bounds = st.fixed_dictionaries(
        {}, optional={"ge": moments.map(timestamp_text), "lt": moments.map(timestamp_text)}
    )
    if ts := data.draw(bounds):
        where["ts"] = ts
    from_rows = data.draw(st.booleans())
    if from_rows:
        where["meta.site"] = "a"
    width = data.draw(
        st.sampled_from([None, "1m", "7m", "1h", "5h", "1d", "3d", "1w", "2w", "90s"])
    )
    names = [n for n in ("model", "version", "task") if data.draw(st.booleans())]
    group = data.draw(st.permutations([*names, *([{"time": width}] if width else [])]))
    answer = counted.aggregate(where=where, group=group, metrics=EVERY)
    assert answer.source == ("inferences" if from_rows or width == "90s" else "rollups")
    expected = by_definition([record for record in RECORDS if holds(where, record)], width, names)
    keys = [(group.get("time"), *(group[name] for name in names)) for group in answer.groups]
    assert keys == [
        (timestamp_text(start) if width else None, *rest) for start, *rest in sorted(expected)
    ]
    for found, key in zip(answer.groups, sorted(expected), strict=True):
        assert_counted(found, expected[key])


@pytest.mark.parametrize("where", [{}, {"meta.site": {"exists": True}}])
def test_labels_are_groups_too(counted: AggregateHarness, where: dict[str, Any]) -> None:
    answer = counted.aggregate(where=where, group=["label", "model"])
    expected = []
    for (_, model), records in sorted(by_definition(RECORDS, None, ["model"]).items()):
        mix = sorted(labels_of(records).items(), key=lambda item: (-item[1], item[0]))
        expected += [{"model": model, "label": label, "count": n} for label, n in mix]
    assert answer.groups == expected


def test_rollups_answer_any_logic_of_models(counted: AggregateHarness) -> None:
    where = {"not": {"or": [{"model": "shapes:1"}, {"task": {"in": ["classification"]}}]}}
    answer = counted.aggregate(where=where, metrics=["count"])
    expected = sum(record.model.version == "2" for record in RECORDS)
    assert (answer.source, answer.groups) == ("rollups", [{"count": expected}])


@pytest.mark.parametrize(
    "where",
    [
        {"ts": {"gt": "2026-01-01T00:00:00Z"}},
        {"ts": {"le": "2027-01-01T00:00:00Z"}},
        {"ts": {"ge": "2026-01-01T00:00:01Z"}},
        {"ts": {"ge": "-9000000s"}},
        {"or": [{"ts": {"ge": "2026-01-01T00:00:00Z"}}, {"model": "shapes"}]},
        {"latency_ms": {"ge": 0}},
    ],
)
def test_what_rollups_cannot_tell_is_told_by_the_rows(
    counted: AggregateHarness, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 6, 30, 12, 0, 30, tzinfo=UTC)
    monkeypatch.setattr(time, "time_ns", lambda: round(now.timestamp()) * 10**9)
    answer = counted.aggregate(where=where, metrics=["count"])
    assert answer == Aggregates([{"count": len(RECORDS)}], answer.source)
    assert answer.source == "rollups" if where == {"ts": {"ge": "-9000000s"}} else "inferences"


def test_relative_moments_are_cut_to_the_minute(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = smallest_id_at(START_MS)
    counted = AggregateHarness(tmp_path, database_url)
    counted.commit(make_record(cut - 1), make_record(cut))
    monkeypatch.setattr(time, "time_ns", lambda: (START_MS + 3_600_000 + 59_999) * 10**6)
    for where in ({"ts": {"ge": "-1h"}}, {"ts": {"ge": "-60m"}, "request_id": {"exists": True}}):
        assert counted.aggregate(where=where, metrics=["count"]).groups == [{"count": 1}]
    counted.close()


def test_the_newest_are_counted_where_the_time_ends(
    counted: AggregateHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = {"group": ["meta.site"], "metrics": ["count"]}
    whole = counted.aggregate(**everything)
    assert not whole.partial
    assert sum(group["count"] for group in whole.groups) == len(RECORDS)
    monkeypatch.setattr("quadriga.store.query.inferences.IDS_PER_BATCH", 1)
    moments = itertools.chain([0.0, 0.0, 0.0], itertools.repeat(99.0))
    monkeypatch.setattr(
        aggregates, "time", SimpleNamespace(time_ns=time.time_ns, monotonic=lambda: next(moments))
    )
    some = counted.aggregate(**everything)
    assert some.partial
    newest = sorted(RECORDS, key=lambda record: record.seq)[-2:]
    sites = Counter(record.metadata.get("site") for record in newest)
    assert {group["meta.site"]: group["count"] for group in some.groups} == sites


def test_too_many_groups_are_refused(
    counted: AggregateHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quadriga.store.maintenance.aggregates.MAX_GROUPS", 3)
    with pytest.raises(QueryError, match="at most 3 groups"):
        counted.aggregate(group=[{"time": "1m"}])
    monkeypatch.setattr("quadriga.store.maintenance.aggregates.MAX_ROLLUPS", 3)
    with pytest.raises(QueryError, match="at most 3 counts of models and times"):
        counted.aggregate(group=[{"time": "1d"}])
    assert counted.aggregate(metrics=["count"]).groups == [{"count": len(RECORDS)}]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"group": ["colour"]}, r"group\[0\] to be one of model"),
        ({"group": ["model", "model"]}, r"group\[1\]"),
        ({"group": [{"time": "1h"}, {"time": "1d"}]}, r"group\[1\]"),
        ({"group": [{"time": "0h"}]}, r"group\[0\]"),
        ({"group": [{"time": 3}]}, r"group\[0\]"),
        ({"group": [None]}, r"group\[0\]"),
        ({"group": [[]]}, r"group\[0\]"),
        ({"group": ["label"], "metrics": ["latency_p50"]}, "by label to be count alone"),
        ({"where": {"ts": {"ge": "-1x"}}}, "a moment such as"),
        ({"where": 3}, "an object"),
    ],
)
def test_a_request_that_means_nothing_is_refused(
    counted: AggregateHarness, request_: dict[str, Any], reason: str
) -> None:
    with pytest.raises(QueryError, match=reason):
        counted.aggregate(**request_)


@pytest.mark.parametrize("body", [b"[", b"[]", b'{"x": 1}', b'{"metrics": ["mean"]}', b"\xff"])
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(QueryError, match="expected the body"):
        decode_body(body, AggregateRequest)
    assert decode_body(b"", AggregateRequest) == AggregateRequest()


def test_inferences_are_grouped_by_a_metadata_value(store: StoreHarness) -> None:
    values: list[Any] = ["north", 2, 2.0, True, "2", None, {"floor": 1}, ["a"]]
    store.commit(
        *(
            make_record(
                smallest_id_at(START_MS) + number, metadata={} if value is None else {"site": value}
            )
            for number, value in enumerate(values)
        )
    )
    request = AggregateRequest(group=["meta.site"], metrics=["count"])
    answer = aggregate(store.inferences, request)
    assert answer.source == "inferences"
    assert [(group["meta.site"], group["count"]) for group in answer.groups] == [
        (None, 3), (True, 1), (2, 2), ("2", 1), ("north", 1),
    ]  # fmt: skip
    both = aggregate(store.inferences, AggregateRequest(group=["meta.site.floor", "model"]))
    assert [(group["meta.site.floor"], group["count"]) for group in both.groups] == [
        (None, 7),
        (1, 1),
    ]


@pytest.mark.parametrize("group", [["meta."], ["meta.a", "meta.a"], ["metadata.a"]])
def test_a_group_that_is_no_metadata_key_is_refused(store: StoreHarness, group: list[str]) -> None:
    with pytest.raises(QueryError, match=r"label, meta\.<key> and"):
        aggregate(store.inferences, AggregateRequest(group=group))
