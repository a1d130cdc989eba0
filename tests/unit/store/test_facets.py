"""Facets by their definition where all matches are looked at, near it where a sample is, and within what may be seen."""

import itertools
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quadriga.store.browsing import sample
from quadriga.store.browsing.facets import (
    Facets,
    FacetsRequest,
    find_facets,
    histogram,
)
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest, decode_body, request_from_url
from quadriga.store.query.sql.search import Budget
from quadriga.store.records.errors import QueryError
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import (
    InferenceRecord,
    JournaledChange,
    ModelReference,
    TruthStatement,
)
from quadriga.store.records.scope import EVERYTHING, Scope
from tests.filter_definition import holds
from tests.pages import ROOT
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness, store_entries

START_MS = 1_780_000_020_000
HOUR_MS = 3_600_000
MODELS = (ModelReference("ships", "1", "ab" * 32), ModelReference("shapes", "2", "cd" * 32))


def records(count: int, *, team: str = "", seed: int = 1) -> list[InferenceRecord]:
    """Make records of the first eight hours of each of ten days."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        hours = number * 80 / count
        at = START_MS + int((hours // 8 * 24 + hours % 8) * HOUR_MS)
        predictions: Any = [
            {"label": chance.choice(["star", "ring"]), "score": round(chance.random(), 3)}
            for _ in range(chance.randrange(3))
        ]
        metadata: dict[str, Any] = {
            "camera": chance.choice(["north", "north", "north", "east", "<script>alert(1)</script>"]),
            "altitude": round(chance.uniform(-50, 1000), 1),
            "floor": chance.randrange(3),
            "is_night": chance.random() < 0.3,
            "nested": {"key": "x" * chance.randrange(1, 4)},
            "tags": ["a"],
        }  # fmt: skip
        if chance.random() < 0.2:
            del metadata["floor"]
        if chance.random() < 0.1:
            metadata["altitude"] = "unknown"
        made.append(
            make_record(
                smallest_id_at(at) + number,
                team=team or msgspec.UNSET,
                model=chance.choice(MODELS),
                predictions=chance.choice([predictions, predictions, {"raw": 1}]),
                metadata=metadata,
                latency_ms=round(chance.lognormvariate(2, 1), 3),
                status=chance.choice([200, 200, 500]),
            )
        )
    return made


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def stores(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Sequence[InferenceRecord]], InferenceReader]]:
    """Make stores of records; each is made once."""
    made: list[StoreHarness] = []

    def make(stored: Sequence[InferenceRecord]) -> InferenceReader:
        root = tmp_path_factory.mktemp("facets")
        url = f"sqlite:///{root}/store.db"
        if request.param == "postgresql":
            url = request.getfixturevalue("postgres").create()
        store_entries(url, root / "journal", stored)
        made.append(StoreHarness(root, url))
        return made[-1].inferences

    yield make
    for store in made:
        store.close()


@pytest.fixture(scope="module")
def small(stores: Any) -> tuple[list[InferenceRecord], InferenceReader]:
    made = records(400)
    return made, stores(made)


@pytest.fixture(scope="module")
def large(stores: Any) -> tuple[list[InferenceRecord], InferenceReader]:
    made = records(6000)
    return made, stores(made)


def by_field(facets: Facets) -> dict[tuple[str, str], Any]:
    return {(facet.field, facet.type): facet for facet in facets.facets}


def values_of(facets: Facets, field: str, type_: str = "string") -> dict[Any, int]:
    return {value.value: value.count for value in by_field(facets)[field, type_].values}


CLASSES: list[Any] = [
    [{"label": "ring", "score": 0.2}, {"label": "disc", "score": 0.7}, {"label": "star", "score": 0.1}],
    [{"label": "ring", "score": 0.6}, {"label": "disc", "score": 0.3}, {"label": "star", "score": 0.1}],
    [{"label": "ring", "score": 0.4}, {"label": "disc", "score": 0.4}, {"label": "star", "score": 0.2}],
    [{"label": "disc", "score": -0.5}, {"label": "ring", "score": None}],
    [{"label": "ring"}],
    [],
    {"raw": 1},
]  # fmt: skip
"""Predictions of a classifier: with all scores, with equal ones, below 0, without a score, with the best label alone, and none."""


def test_a_classification_has_its_best_label_whatever_others_it_stored(stores: Any) -> None:
    of_classes = [
        make_record(smallest_id_at(START_MS + at), predictions=found, task="IMAGE_CLASSIFICATION")
        for at, found in enumerate(CLASSES)
    ]
    detector = ModelReference("ships", "1", "ab" * 32)
    detected = [
        make_record(smallest_id_at(START_MS + 50 + at), predictions=found, model=detector)
        for at, found in enumerate(CLASSES[:2])
    ]
    inferences = stores([*of_classes, *detected])
    only = {"task": "IMAGE_CLASSIFICATION"}
    assert values_of(find_facets(inferences, FacetsRequest(only)), "label") == {
        "disc": 3,
        "ring": 3,
    }
    everything = find_facets(inferences, FacetsRequest({}))
    assert values_of(everything, "label") == {"disc": 5, "ring": 5, "star": 2}
    assert by_field(everything)["label", "string"].count == 7
    for label, count in values_of(everything, "label").items():
        assert inferences.count(QueryRequest({"best": label})).count == count
        for where in ({"best": label}, {"not": {"best": label}}, {"best": label, **only}):
            expected = [r.seq for r in (*of_classes, *detected) if holds(where, r)]
            assert (
                sorted(int(r.id) for r in inferences.query(QueryRequest(where)).inferences)
                == expected
            )
    assert inferences.count(QueryRequest("label=ring & task=classification")).count == 5
    assert inferences.count(QueryRequest("label=ring:ge:0.2 & task=classification")).count == 3


FILTERS: list[Any] = [
    {},
    {"meta.camera": "north"},
    {"meta.altitude": {"ge": 100, "lt": 300}},
    {"label": {"name": "star", "score": {"ge": 0.5}}},
    {"model": "ships"},
    {"not": {"meta.camera": "north"}},
    {"or": [{"meta.floor": 1}, {"meta.is_night": True}]},
    {"and": [{"latency_ms": {"ge": 8}}, {"meta.floor": {"ge": 1}}]},
    {"ts": {"ge": "2026-05-29T00:00:00Z", "lt": "2026-05-30T00:00:00Z"}},
    {"meta.camera": "nowhere"},
]


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_few_matches_are_counted_exactly(small: Any, where: Any) -> None:
    made, inferences = small
    facets = find_facets(inferences, FacetsRequest(where, values=100))
    if "ts" in where:
        matches = [r for r in made if START_MS // 86_400_000 * 86_400_000 + 86_400_000 <= time_of(r) < START_MS // 86_400_000 * 86_400_000 + 2 * 86_400_000]  # fmt: skip
    else:
        matches = [record for record in made if holds(where, record)]
    assert (facets.count, facets.sampled) == (len(matches), len(matches))
    assert (facets.exact, facets.is_exact_count, facets.more_facets) == (True, True, 0)
    assert sum(bin_.count for bin_ in facets.time) == len(matches)
    if not matches:
        assert (facets.facets, facets.time) == ([], [])
        return
    cameras = Counter(record.metadata["camera"] for record in matches)
    assert values_of(facets, "meta.camera") == cameras
    assert values_of(facets, "model") == Counter(record.model.name for record in matches)
    assert values_of(facets, "status", "number") == Counter(record.status for record in matches)
    nights = Counter(record.metadata["is_night"] for record in matches)
    assert values_of(facets, "meta.is_night", "boolean") == nights
    assert values_of(facets, "ground_truth", "boolean") == {False: len(matches)}
    predictions = [record.predictions for record in matches if isinstance(record.predictions, list)]
    labels = Counter(label for several in predictions for label in {p["label"] for p in several})
    if labels:
        assert values_of(facets, "label") == labels
        assert by_field(facets)["label", "string"].count == sum(map(bool, predictions))
    altitudes: dict[type, list[Any]] = defaultdict(list)
    for record in matches:
        altitudes[type(record.metadata["altitude"])].append(record.metadata["altitude"])
    if altitudes[str]:
        assert values_of(facets, "meta.altitude") == {"unknown": len(altitudes[str])}
    facet = by_field(facets)["meta.altitude", "number"]
    assert (facet.count, facet.distinct) == (len(altitudes[float]), len(set(altitudes[float])))
    for bin_ in facet.histogram:
        assert bin_.count == sum(bin_.low <= altitude < bin_.high for altitude in altitudes[float])
    assert sum(bin_.count for bin_ in facet.histogram) == len(altitudes[float])
    assert by_field(facets)["meta.tags", "other"].count == len(matches)


def time_of(record: InferenceRecord) -> int:
    return (record.seq >> 22) + 1_735_689_600_000


def test_time_is_cut_into_slices_from_the_oldest_to_the_newest_match(small: Any) -> None:
    _, inferences = small
    bins = find_facets(inferences, FacetsRequest()).time
    assert sample.SLICES * 0.39 <= len(bins) <= sample.SLICES
    assert all(one.end == following.start for one, following in itertools.pairwise(bins))
    for bin_ in bins:
        where = {"ts": {"ge": bin_.start, "lt": bin_.end}}
        assert find_facets(inferences, FacetsRequest(where)).count == bin_.count


@pytest.mark.parametrize("where", FILTERS[:8], ids=str)
def test_many_matches_are_estimated_from_a_sample_and_that_is_said(
    large: Any, where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "EXACT_ROWS", sample.ROWS)
    made, inferences = large
    facets = find_facets(inferences, FacetsRequest(where))
    matches = [record for record in made if holds(where, record)]
    assert facets.sampled <= sample.ROWS
    assert facets.exact is (facets.sampled == len(matches))
    if facets.is_exact_count:
        assert facets.count == len(matches)
    assert facets.count == pytest.approx(len(matches), rel=0.15)
    assert sum(bin_.count for bin_ in facets.time) == pytest.approx(facets.count, abs=40)
    cameras = Counter(record.metadata["camera"] for record in matches)
    for camera, count in values_of(facets, "meta.camera").items():
        assert count == pytest.approx(cameras[camera], rel=0.35, abs=30)


def test_of_some_thousands_all_are_looked_at_unless_they_are_large(
    large: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, inferences = large
    where = {"meta.altitude": {"ge": 0, "lt": 600}}
    matches = [record for record in made if holds(where, record)]
    facets = find_facets(inferences, FacetsRequest(where))
    assert (facets.exact, facets.is_exact_count, facets.sampled) == (True, True, len(matches))
    cameras = Counter(record.metadata["camera"] for record in matches)
    assert values_of(facets, "meta.camera") == cameras
    monkeypatch.setattr(sample, "EXACT_CHARACTERS", 10_000)
    facets = find_facets(inferences, FacetsRequest(where))
    assert (facets.exact, facets.is_exact_count, facets.sampled) == (False, True, sample.ROWS)
    assert facets.count == len(matches)


def test_a_rare_match_of_a_filter_without_index_is_estimated(
    large: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, inferences = large
    monkeypatch.setattr(sample, "_ALL", Budget(rows=500, first_batch_rows=500))
    where = {"and": [{"latency_ms": {"ge": 40}}, {"status": 500}]}
    facets = find_facets(inferences, FacetsRequest(where))
    assert not facets.is_exact_count
    assert facets.count == pytest.approx(sum(holds(where, record) for record in made), rel=0.5)
    none = find_facets(inferences, FacetsRequest({"latency_ms": {"ge": 1e9}}))
    assert (none.count, none.sampled, none.exact) == (0, 0, False)
    assert {facet.count for facet in none.facets} == {None}
    assert ("meta.camera", "string") in by_field(none)


def test_what_other_teams_store_changes_nothing(stores: Any) -> None:
    mine = records(3000, team="a", seed=3)
    others = [
        msgspec.structs.replace(
            record,
            seq=record.seq + 5000 + number * 1000,
            metadata={"secret": "b", **record.metadata},
            predictions=[{"label": "secret", "score": 0.5}],
        )
        for number, record in enumerate(records(3000, team="b", seed=4))
    ]
    alone, together = stores(mine), stores([*mine, *others])
    requests = [FacetsRequest(where) for where in FILTERS]
    requests.append(FacetsRequest({"latency_ms": {"ge": 1e9}}))
    for request in requests:
        answers = [
            find_facets(inferences.within(Scope("a")), request) for inferences in (alone, together)
        ]
        assert answers[0] == answers[1]
        assert b"secret" not in msgspec.json.encode(answers[1])
    seen = find_facets(together, FacetsRequest()).facets
    assert "meta.secret" in {facet.field for facet in seen}
    of_models = find_facets(together.within(Scope("b", ("ships",))), FacetsRequest())
    assert values_of(of_models, "model").keys() == {"ships"}


def test_ground_truth_and_its_review_are_counted(store: StoreHarness) -> None:
    made = records(5)
    truth = [{"label": "star", "xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2}]
    statement = TruthStatement("id", str(made[0].seq), truth, review="approved")
    store.commit(*made, JournaledChange(1 << 61, statement))
    facets = find_facets(store.inferences, FacetsRequest())
    assert values_of(facets, "ground_truth", "boolean") == {False: 4, True: 1}
    assert values_of(facets, "ground_truth.review") == {"approved": 1}


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (FacetsRequest(fields=["label"]), {"label"}),
        (FacetsRequest(fields="label,meta.camera"), {"label", "meta.camera"}),
        (FacetsRequest(fields=["meta.absent"]), set()),
        (
            request_from_url("fields=status,score&meta.camera=north&values=1", FacetsRequest),
            {"status", "score"},
        ),
        (
            decode_body(b'{"fields": ["meta.nested.key"], "bins": 2}', FacetsRequest),
            {"meta.nested.key"},
        ),
    ],
)
def test_only_named_fields_are_answered(
    small: Any, request_: FacetsRequest, fields: set[str]
) -> None:
    answer = find_facets(small[1], request_)
    assert {facet.field for facet in answer.facets} == fields
    assert all(len(facet.values) <= request_.values for facet in answer.facets)


BODY = "expected the body to be a JSON object with where, fields, values, bins, metadata_filter"


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: decode_body(b"[", FacetsRequest), BODY),
        (lambda: decode_body(b'{"values": 0}', FacetsRequest), BODY),
        (lambda: decode_body(b'{"bins": 1}', FacetsRequest), BODY),
        (lambda: decode_body(b'{"limit": 1}', FacetsRequest), "unknown field `limit`"),
        (
            lambda: request_from_url("values=0", FacetsRequest),
            "expected fields, values, bins, got: ",
        ),
        (lambda: request_from_url("values=x", FacetsRequest), "got: Expected `int`, got `str`"),
        (
            lambda: request_from_url("bins=1&bins=2", FacetsRequest),
            "expected bins once, got it twice",
        ),
    ],
)
def test_a_bad_request_is_refused_with_its_reason(read: Callable[[], Any], message: str) -> None:
    with pytest.raises(QueryError, match=re.escape(message)):
        read()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (FacetsRequest({"colour": 1}), "expected where.colour to name one of id"),
        (FacetsRequest(fields=["label", "x"]), "expected fields[1] to be one of model,"),
        (FacetsRequest(fields="meta."), "expected fields[0] to be one of model,"),
        (FacetsRequest(fields=["label"] * 65), "expected at most 64 fields, got 65"),
        (request_from_url("limit=5", FacetsRequest), "expected limit to name one of id"),
    ],
)
def test_what_means_nothing_is_refused(small: Any, request_: FacetsRequest, message: str) -> None:
    with pytest.raises(QueryError, match=re.escape(message)):
        find_facets(small[1], request_)


def test_an_empty_store_has_no_facets(store: StoreHarness) -> None:
    answer = find_facets(store.inferences, FacetsRequest())
    assert answer == Facets(0, True, True, 0, time=[], facets=[], more_facets=0)
    assert store.inferences.scope == EVERYTHING


def test_a_single_match_is_one_slice(store: StoreHarness) -> None:
    store.commit(*records(1))
    answer = find_facets(store.inferences, FacetsRequest())
    assert [bin_.count for bin_ in answer.time] == [1]
    assert answer.time[0].start < answer.time[0].end


def test_the_answer_of_the_page_has_the_shape_of_an_answer() -> None:
    blocks = re.findall(
        r"^```json\n(.*?)^```", (ROOT / "docs/query.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (block,) = (block for block in blocks if '"facets"' in block)
    answer = msgspec.json.decode(block, type=Facets)
    assert msgspec.json.decode(block) == msgspec.to_builtins(answer)


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(1 << 63), 1 << 64)


@given(st.lists(numbers.map(float), min_size=1, max_size=50), st.integers(2, 100))
@example([0.0, 1e15, -2.2e-309], 2)
@example([1e-320, 2e-320], 10)  # no end was found among the smallest floats
def test_a_histogram_has_each_number_in_its_bin(values: list[float], bins: int) -> None:
    result = histogram(Counter(values).items(), bins)
    assert len(result) <= bins
    assert sum(bin_.count for bin_ in result) == len(values)
    assert all(math.isfinite(bound) for bin_ in result for bound in (bin_.low, bin_.high))
    if len(result) > 1:
        counts = [sum(bin_.low <= value < bin_.high for value in values) for bin_ in result]
        assert counts == [bin_.count for bin_ in result]
    assert result[0].low <= min(values)
    assert max(values) <= result[-1].high


@pytest.mark.parametrize(
    ("values", "bins", "expected"),
    [
        ([5.0], 10, [(5, 5, 1)]),
        ([1.0, 2.0, 3.0], 3, [(1, 2, 1), (2, 3, 1), (3, 4, 1)]),
        ([0.0, 1.0], 2, [(0, 1, 1), (1, 2, 1)]),
        ([0.1, 0.25, 0.3], 20, [(0.1, 0.12, 1), (0.24, 0.26, 1), (0.3, 0.32, 1)]),
        ([0.3, 0.6, 0.7], 9, [(0.3, 0.35, 1), (0.6, 0.65, 1), (0.7, 0.75, 1)]),
        ([-3.0, 3.0], 2, [(-5, 0, 1), (0, 5, 1)]),
        ([0.0, 999.0], 10, [(0, 100, 1), (900, 1000, 1)]),
        ([1e300, -1e300], 5, [(-1e300, 1e300, 2)]),
        ([0.0, 5e-324], 5, [(0, 5e-324, 2)]),
        ([0.3, 0.1 + 0.2], 2, [(0.3, 0.1 + 0.2, 2)]),
    ],
)
def test_bins_have_round_bounds(
    values: list[float], bins: int, expected: list[tuple[float, float, int]]
) -> None:
    result = histogram(Counter(values).items(), bins)
    if abs(values[0]) == 1e300:
        assert sum(bin_.count for bin_ in result) == 2
        return
    assert [(bin_.low, bin_.high, bin_.count) for bin_ in result] == expected


def test_a_slice_of_the_time_counts_what_a_filter_with_its_bounds_finds(
    database_url: str, tmp_path: Path
) -> None:
    store = StoreHarness(tmp_path, database_url)
    ids = [smallest_id_at(1_790_000_000_000 + number * 7 // 11) + number for number in range(120)]
    store.commit(
        *map(make_record, ids)
    )  # several in a millisecond, and some at the bounds of slices
    slices = find_facets(store.inferences, FacetsRequest()).time
    for slice_ in slices:
        where = {"ts": {"ge": slice_.start, "lt": slice_.end}}
        assert store.inferences.count(QueryRequest(where)).count == slice_.count, slice_
    assert sum(slice_.count for slice_ in slices) == 120
    store.close()


@pytest.mark.parametrize(
    ("first_ms", "last_ms", "slice_ms", "count"),
    [
        (5, 5, 1, 1),
        (5, 44, 1, 40),
        (5, 45, 2, 21),
        (0, 3_600_000, 120_000, 31),
        (59_999, 3_600_000, 120_000, 31),
        (1_790_000_000_123, 1_790_000_000_123 + 37 * 3_600_000, 3_600_000, 38),
        (0, 90 * 86_400_000, 4 * 86_400_000, 23),
        (0, 50 * 365 * 86_400_000, 448 * 86_400_000 * 2, 21),
    ],
)
def test_slices_of_the_time_have_round_lengths(first_ms, last_ms, slice_ms, count):
    length = sample._slice_ms(first_ms, last_ms)
    assert length == slice_ms
    assert last_ms // length - first_ms // length + 1 == count <= sample.SLICES
