"""Replays, and shadows of 0.2.0: found where they are named or linked, and nowhere else; compared with their originals."""

from typing import Any

import msgspec
import pytest

from quadriga.store.browsing.arrivals import NewInferences
from quadriga.store.browsing.comparison import ComparisonRequest, compare
from quadriga.store.browsing.facets import FacetsRequest, find_facets
from quadriga.store.changes.service import ChangeService
from quadriga.store.database.database import writer_engine
from quadriga.store.keys.traffic import read_rules, remove_rule, write_rule
from quadriga.store.maintenance.aggregates import AggregateRequest, aggregate
from quadriga.store.maintenance.retention import limits_of
from quadriga.store.query.inferences import QueryRequest
from quadriga.store.records.errors import QueryError
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import (
    InferenceRecord,
    InputReference,
    ModelReference,
    RetentionRule,
    is_replay,
    live_name,
    replay_id,
    replay_name,
)
from quadriga.store.records.scope import Scope
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

LIVE, REPLAYS = 30, 20


def box(label: str, score: float = 0.9) -> dict[str, Any]:
    return {"label": label, "score": score, "xmin": 0, "ymin": 0, "xmax": 10, "ymax": 10}


def live_and_replay(number: int, kind: str = "replay", **fields: Any) -> list[InferenceRecord]:
    """Return an inference of version 1 and, of the first ones, its replay or that of a shadow."""
    seq = 100 + 10 * number
    image = InputReference("image", f"blake3:{number:064x}", 8, 8)
    common: dict[str, Any] = {"input": image, "metadata": {"camera": number % 2}} | fields
    live = make_record(
        seq,
        model=ModelReference("ships", "1", "ab" * 32),
        predictions=[box("ship")],
        latency_ms=float(number + 1),
        **common,
    )
    if number >= REPLAYS:
        return [live]
    differs = number % 4 == 0
    links = {
        "replay": {"replay_of": str(seq)},
        "shadow": {"shadow": {"inference_id": str(seq), "model": "ships", "version": "1"}},
    }
    replay = make_record(
        seq + 1,
        request_id=str(seq),
        model=ModelReference(f"ships~{kind}", "2", "cd" * 32),
        predictions=[box("buoy", 0.5 + number / 100)] if differs else [box("ship")],
        status=500 if number == 3 else 200,
        standard=links[kind],
        **common,
    )
    return [live, replay]


@pytest.fixture(params=["replay", "shadow"])
def kind(request: pytest.FixtureRequest) -> str:
    """What is stored beside live inferences: replays, or as in 0.2.0 shadows."""
    return str(request.param)


@pytest.fixture
def replayed(store: StoreHarness, kind: str) -> StoreHarness:
    store.add(*(record for number in range(LIVE) for record in live_and_replay(number, kind)))
    return store


def of_kind(value: Any, kind: str) -> Any:
    """Return a filter of replays as one of a kind."""
    link = {"replay": "std.replay_of", "shadow": "std.shadow.inference_id"}[kind]
    text = msgspec.json.encode(value).decode()
    return msgspec.json.decode(text.replace("~replay", f"~{kind}").replace("std.replay_of", link))


NOT_FOUND = {
    "nothing": None,
    "a label": {"label": "ship"},
    "a camera": {"meta.camera": 0},
    "the model": {"model": "ships"},
    "its version": {"version": "1"},
    "another version": {"version": "2"},
    "the task": {"task": "detection"},
    "no other model": {"not": {"model": "boats"}},
    "an image": {"input.hash": f"blake3:{4:064x}"},
    "a range of ids": {"id": {"ge": "0"}},
    "failures": {"status": 500},
}


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_does_not_name_a_replay_finds_none(replayed, name):
    page = replayed.inferences.query(QueryRequest(NOT_FOUND[name], limit=1000, count="exact"))
    assert {inference.model.name for inference in page.inferences} <= {"ships"}
    assert page.count == len(page.inferences)
    assert bool(page.inferences) is (name not in {"another version", "failures"})


FOUND = {
    "its name": ({"model": "ships~replay"}, REPLAYS),
    "its name and version": ({"model": "SHIPS~replay:2"}, REPLAYS),
    "its name with a version beside": ({"model": "ships~replay", "version": "2"}, REPLAYS),
    "its failures": ({"model": "ships~replay", "status": 500}, 1),
    "both names": ({"model": {"in": ["ships", "ships~replay"]}}, LIVE + REPLAYS),
    "the live inference": ({"request_id": "100"}, 1),
    "its id": ({"id": "101"}, 1),
    "ids": ({"id": {"in": ["100", "101"]}}, 2),
    "what it is linked by": ({"std.replay_of": {"exists": True}}, REPLAYS),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_replay_is_found_by_its_name_or_its_links(replayed, kind, name):
    where, count = FOUND[name]
    assert len(replayed.page_ids(where=of_kind(where, kind), limit=1000)) == count


def test_pages_of_everything_are_whole_beside_replays(replayed):
    pages = list(replayed.inferences.pages(QueryRequest(limit=7)))
    ids = [int(inference.id) for page in pages for inference in page.inferences]
    assert ids == [100 + 10 * number for number in reversed(range(LIVE))]
    assert all(len(page.inferences) == 7 for page in pages[:-1])


def test_counts_facets_and_the_tail_leave_replays_out(replayed, kind):
    reader = replayed.inferences
    (group,) = aggregate(reader, AggregateRequest()).groups
    assert group["count"] == LIVE
    (group,) = aggregate(reader, AggregateRequest({"model": f"ships~{kind}"})).groups
    assert group["count"] == REPLAYS
    facets = {facet.field: facet for facet in find_facets(reader, FacetsRequest()).facets}
    assert [(value.value, value.count) for value in facets["model"].values] == [("ships", LIVE)]
    arrivals = NewInferences(None, "1")
    assert len(arrivals.look(reader).ids) == LIVE


DELETED = {
    "an image": ({"input.hash": f"blake3:{4:064x}"}, ["141", "140"]),
    "the model": ({"and": [{"model": "ships"}, {"input.hash": f"blake3:{4:064x}"}]}, ["140"]),
    "the replay": ({"and": [{"model": "ships~replay"}, {"status": 500}]}, ["131"]),
}


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("name", DELETED)
def test_what_is_to_go_leaves_no_copy_unless_the_filter_names_a_model(replayed, kind, name, erase):
    changes = ChangeService(
        replayed.inferences,
        replayed.journal,
        IdSource(0),
        lambda value, _: value,
        erasures=replayed.erasures,
    )
    where, ids = DELETED[name]
    body = msgspec.json.encode({"where": of_kind(where, kind), "dry_run": True, "erase": erase})
    result = changes.delete_inferences(body)
    assert result.count == len(ids)
    assert result.ids == ([] if erase else ids)


def test_a_rule_of_retention_holds_for_replays(replayed):
    replayed.commit_changes(RetentionRule("ships", inputs_days=1))
    with replayed.inferences.snapshot() as connection:
        assert len(limits_of(connection, 10**13)) == 2


@pytest.mark.parametrize("pattern", ["ships", "sh*", "ships~{kind}"])
def test_who_may_see_a_model_may_see_its_replays(replayed, kind, pattern):
    reader = replayed.inferences.within(Scope("", (pattern.format(kind=kind),)))
    ids = [one.id for one in reader.query(QueryRequest({"model": f"ships~{kind}"})).inferences]
    assert len(ids) == REPLAYS
    other = replayed.inferences.within(Scope("", ("boats",)))
    assert other.query(QueryRequest({"id": "101"})).inferences == []


def test_names():
    assert replay_name("ships") == replay_name(replay_name("ships")) == "ships~replay"
    assert live_name("ships~replay") == live_name("ships~shadow") == live_name("ships") == "ships"
    assert not is_replay("replay")
    assert is_replay("SHIPS~SHADOW")


def test_ids_of_replays_have_the_time_of_the_original_and_differ_by_original_and_file():
    second = ModelReference("ships", "2", "cd" * 32)
    third = msgspec.structs.replace(second, version="3")
    replaced = msgspec.structs.replace(second, sha256="ef" * 32)
    originals = [
        ms << 22 | worker << 12 | counter
        for ms in (7, 8)
        for worker in (0, 1, 1023)
        for counter in (0, 1, 4095)
    ]
    for model in (second, third, replaced):
        ids = [replay_id(one, model) for one in originals]
        assert [one >> 22 for one in ids] == [one >> 22 for one in originals]
        assert ids == [replay_id(one, model) for one in originals]
        assert not set(ids) & set(originals)
        assert all(one >> 12 & 1023 == 1023 for one in ids)
        of_one_worker = [replay_id(8 << 22 | 1 << 12 | counter, model) for counter in range(4096)]
        assert len(set(of_one_worker)) == 4096
    assert len({replay_id(originals[0], model) for model in (second, third, replaced)}) == 3


def test_a_replay_is_compared_with_the_inferences_it_is_linked_to(replayed, kind):
    result = compare(replayed.inferences, ComparisonRequest("ships:1", "ships:2", limit=3))
    assert result.paired_by == kind
    assert (result.a.model, result.a.version) == ("ships", "1")
    assert (result.b.model, result.b.version, result.b.failed) == (f"ships~{kind}", "2", 1)
    assert (result.pairs, result.different) == (REPLAYS - 1, 5)
    assert result.share == pytest.approx(5 / 19)
    low, high = result.share_ci95
    assert (low, high) == (pytest.approx(0.1181, abs=1e-4), pytest.approx(0.4879, abs=1e-4))
    assert result.a.latency_ms.p50 == 11.0  # of 1 to 20 but 4
    assert [(count.label, count.a, count.b) for count in result.labels] == [
        ("ship", 19, 14),
        ("buoy", 0, 5),
    ]
    assert [(pair.a.id, pair.b.id) for pair in result.disagreements] == [
        ("260", "261"),
        ("220", "221"),
        ("180", "181"),
    ]
    back = compare(replayed.inferences, ComparisonRequest("ships:2", "ships:1", limit=3))
    assert (back.a, back.b) == (result.b, result.a)
    assert back.share == result.share
    filtered = ComparisonRequest("ships:1", "ships:2", {"meta.camera": 1})
    assert (
        compare(replayed.inferences, filtered).pairs,
        compare(replayed.inferences, filtered).different,
    ) == (9, 0)


def test_versions_that_answered_the_same_images_are_compared_without_a_replay(store):
    for number in range(6):
        image = InputReference("image", f"blake3:{number // 2:064x}", 8, 8)
        label = "ship" if number < 4 else "buoy"
        for version in ("1", "2"):
            store.add(
                make_record(
                    100 + 10 * number + int(version),
                    model=ModelReference("ships", version, "ab" * 32),
                    input=image,
                    predictions=[box("ship" if version == "1" else label)],
                )
            )
    result = compare(store.inferences, ComparisonRequest("ships:1", "ships:2"))
    assert (result.paired_by, result.pairs, result.different) == ("image", 3, 1)


REFUSED = {
    "twice the same": (("ships:1", "ships:1"), QueryError),
    "a version and all": (("ships", "ships:1"), QueryError),
    "replays and their own version": (("ships~replay:2", "ships:2"), QueryError),
    "a shadow and its own version": (("ships~shadow:2", "ships:2"), QueryError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused(store, name):
    store.add(
        *(make_record(seq, model=ModelReference("ships", str(seq), "ab" * 32)) for seq in (1, 2))
    )
    (a, b), error = REFUSED[name]
    with pytest.raises(error):
        compare(store.inferences, ComparisonRequest(a, b))


def test_nothing_in_common_is_no_share(store):
    store.add(
        *(
            make_record(
                seq,
                model=ModelReference("ships", str(seq), "ab" * 32),
                input=InputReference("image", f"blake3:{seq:064x}", 8, 8),
            )
            for seq in (1, 2)
        )
    )
    result = compare(store.inferences, ComparisonRequest("ships:1", "ships:2"))
    assert (result.pairs, result.share, result.share_ci95, result.disagreements) == (
        0,
        None,
        None,
        [],
    )


def test_rules_of_traffic_are_written_read_and_removed(store):
    store.add(*live_and_replay(0))
    with writer_engine(store.url) as engine:
        first = write_rule(engine, "ships", '{"shares":{"1":1.0}}', "somebody")
        assert write_rule(engine, "ships", '{"shares":{"1":1.0}}', "somebody else") == first
        changed = write_rule(engine, "ships", '{"shares":{"2":1.0}}', "somebody else")
        boats = write_rule(engine, "boats", "{}", "ä\n'\"")
        with store.inferences.snapshot() as connection:
            assert read_rules(connection) == [boats, changed]
        assert changed.changed_ms >= first.changed_ms
        remove_rule(engine, "ships")
        remove_rule(engine, "ships")
        with store.inferences.snapshot() as connection:
            assert read_rules(connection) == [boats]


def test_labels_of_classifiers_are_the_best_of_each_image(store: StoreHarness) -> None:
    def answer(number: int, version: str, **scores: float) -> InferenceRecord:
        return make_record(
            (number << 22) + int(version),
            model=ModelReference("sorter", version, version * 64),
            task="IMAGE_CLASSIFICATION",
            input=InputReference("image", f"blake3:{number:064x}", 4, height=3, mime="image/png"),
            predictions=[{"label": label, "score": score} for label, score in scores.items()],
        )

    first = [answer(number, "1", circle=0.4, square=0.3) for number in range(1, 5)]
    second = [answer(number, "2", circle=0.6 - 0.1 * number, square=0.35) for number in range(1, 5)]
    store.commit(*first, *second)
    result = compare(store.inferences, ComparisonRequest("sorter:1", "sorter:2"))
    assert (result.pairs, result.different) == (4, 2)
    assert [(count.label, count.a, count.b) for count in result.labels] == [
        ("circle", 4, 2),
        ("square", 0, 2),
    ]
