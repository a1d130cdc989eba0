"""Labels and metadata keys of teams: each team has its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from quadriga.store.changes.ground_truth import link_new
from quadriga.store.database.database import execute, writer_engine
from quadriga.store.database.schema import KeyType
from quadriga.store.maintenance.aggregates import AggregateRequest, aggregate
from quadriga.store.query.columns import label_counts, labelled_ids, source_values
from quadriga.store.query.filters.forms import parse
from quadriga.store.query.filters.syntax import ResolvedFilter
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.names import Catalog
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.sql.search import Planner
from quadriga.store.records.ids import LARGEST_ID
from quadriga.store.records.records import (
    InferenceRecord,
    JournaledRecord,
    ModelReference,
    TruthStatement,
)
from quadriga.store.records.scope import EVERYTHING, Scope
from tests.filter_definition import holds
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness, select_rows, store_entries

TEAMS = ["a", "b", "b", "b", ""]
NAMED = {
    "meta_num": "SELECT k.path, k.type, k.team, d.val, d.seq FROM meta_num AS d JOIN meta_key AS k ON k.id = d.key",
    "meta_str": "SELECT k.path, k.type, k.team, d.val, d.seq FROM meta_str AS d JOIN meta_key AS k ON k.id = d.key",
    "pred": "SELECT k.name, k.team, d.band, d.seq, d.score, d.worst, d.n FROM pred AS d JOIN label AS k ON k.id = d.label",
}


def records(count: int = 40, teams: list[str] = TEAMS) -> list[InferenceRecord]:
    """Return records of teams, with keys and labels that they share and those that only one has."""
    made = []
    for seq in range(1, count + 1):
        team = teams[seq % len(teams)]
        metadata: dict[str, Any] = {"n": seq % 3, "s": f"v{seq % 2}", f"of-{team}": True}
        if seq % 2:
            metadata |= {"latitude": float(seq), "longitude": 20.0}
        made.append(
            make_record(
                seq,
                team=team or msgspec.UNSET,
                model=ModelReference(f"m{seq % 2}", "1", ""),
                metadata=metadata,
                predictions=[
                    {"label": name, "score": (seq % 10) / 10} for name in ("circle", f"of-{team}")
                ],
            )
        )
    return made


def named(url: str) -> dict[str, list[Any]]:
    """Return the indexes and counts of a store, by names in place of ids."""
    contents = {table: sorted(select_rows(url, text)) for table, text in NAMED.items()}
    labels = {str(id_): name for id_, *name in select_rows(url, "SELECT id, name, team FROM label")}
    counts = "SELECT m.name, m.team, r.minute, r.n, r.labels FROM rollup AS r JOIN model AS m ON m.id = r.model_id"
    contents["rollup"] = sorted(
        (*row, sorted((labels[id_], n) for id_, n in msgspec.json.decode(text).items()))
        for *row, text in select_rows(url, counts)
    )
    return contents


def test_keys_are_limited_for_each_team(
    store: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quadriga.store.database.rows.MAX_KEYS", 5)
    greedy = [make_record(seq, team="a", metadata={f"k{seq}": seq}) for seq in range(1, 9)]
    others = [make_record(seq, team="b", metadata={"k8": 8, "own": seq}) for seq in range(9, 12)]
    store.commit(*greedy)
    store.commit(*others)
    expected = {
        "a": {"k1": True, "k8": False, "own": False},
        "b": {"k1": True, "k8": True, "own": True},
        "": {"k1": True, "k8": False, "own": False},
    }
    with store.inferences.snapshot() as connection:
        for team, by_path in expected.items():
            catalog = Catalog(connection, Scope(team))
            assert {path: catalog.is_indexed(path) for path in by_path} == by_path
    for team, ids in (("a", ["8"]), ("b", ["11", "10", "9"]), ("", ["11", "10", "9", "8"])):
        request = QueryRequest({"meta.k8": 8})
        page = store.inferences.within(Scope(team)).query(request)
        assert [inference.id for inference in page.inferences] == ids


@pytest.mark.parametrize(
    "where",
    [
        {"meta.n": 1},
        {"meta.n": {"in": [1, 2]}},
        {"meta.n": {"ge": 1, "lt": 2}},
        {"meta.s": {"exists": True}},
        {"label": "circle"},
        {"label": {"name": "circle", "score": {"ge": 0.5}}},
        {"or": [{"meta.n": 1}, {"meta.s": "v1"}]},
        {"meta.n": 1, "meta.s": "v1"},
        {"geo": {"near": [3, 20], "within": "100km"}},
    ],
)
def test_a_search_of_a_team_reads_entries_of_its_own_and_tests_no_scope(
    store: StoreHarness, where: Any
) -> None:
    store.commit(*records())
    with store.inferences.snapshot() as connection:
        tree = parse(where, 0)
        plan = Planner(connection, ResolvedFilter(tree), Scope("b")).plan
        assert plan.scans
        assert "model_id" not in (plan.predicate.text if plan.predicate else "")
        for scan in plan.scans:
            condition, values = scan.condition
            query = f"SELECT DISTINCT m.team FROM {scan.source} JOIN inference AS i ON i.seq = d.seq JOIN model AS m ON m.id = i.model_id WHERE {condition}"
            assert [*execute(connection, query, values).scalars()] in ([], ["b"])
        within_models = Planner(connection, ResolvedFilter(tree), Scope("b", ("m1",))).plan
        assert within_models.predicate is not None
        assert "model_id" in within_models.predicate.text


@pytest.mark.parametrize(
    "where",
    [
        {"meta.n": 1},
        {"meta.n": {"in": [0, 1, 2, 3, 4]}},
        {"meta.n": {"ge": 1, "lt": 2}},
        {"meta.s": {"exists": True}},
        {"meta.s": {"contains": "1"}},
        {"label": "circle"},
        {"label": {"name": "circle", "score": {"ge": 0.5}}},
        {"label": {"in": ["circle", "of-t1", "of-t2"]}},
        {"or": [{"meta.n": 1}, {"meta.s": "v1"}, {"label": "circle"}]},
        {"not": {"meta.n": 1}},
        {"geo": {"near": [3, 20], "within": "1000km"}},
        {"geo": {"exists": True}},
    ],
)
@pytest.mark.parametrize("narrow_rows", [0, 10_000])
def test_who_sees_all_teams_finds_the_same_with_many(
    many_teams, where: Any, narrow_rows: int
) -> None:
    url, root, made = many_teams
    reader = InferenceReader(
        url, root / "journal", StoreHarness(root, url).blobs, narrow_rows=narrow_rows
    )
    expected = [str(record.seq) for record in made if holds(where, record)]
    assert expected
    pages = [*reader.pages(QueryRequest(where, order="ts", limit=50))]
    assert [inference.id for page in pages for inference in page.inferences] == expected
    assert reader.count(QueryRequest(where)).count == len(expected)
    reader.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def many_teams(request, tmp_path_factory) -> Iterator[tuple[str, Path, list[InferenceRecord]]]:
    """A store of forty teams: more than names of which are merged."""
    root, made = (
        tmp_path_factory.mktemp("many"),
        records(200, [f"t{number}" for number in range(40)]),
    )
    server = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    url = server.create() if server else f"sqlite:///{root}/store.db"
    store_entries(url, root / "writer", made)
    yield url, root, made
    if server:
        server.drop(url)


def test_labels_of_one_name_are_counted_as_one(store: StoreHarness) -> None:
    store.commit(*records())
    ids = list(range(1, 41))
    counts = {"circle": 40, "of-": 8, "of-a": 8, "of-b": 24}
    by_label = AggregateRequest(group=["label"])
    for scope, expected in ((EVERYTHING, counts), (Scope("a"), {"circle": 8, "of-a": 8})):
        reader = store.inferences.within(scope)
        found = aggregate(reader, by_label)
        assert found.source == "rollups"
        assert {group["label"]: group["count"] for group in found.groups} == expected
        seen = [id_ for id_ in ids if not scope.team or TEAMS[id_ % 5] == scope.team]
        assert label_counts(reader, seen) == expected
        labels = {label for label, _ in labelled_ids(reader, "m1", 0, LARGEST_ID, exclude=[])}
        assert labels == set(expected)
        values = source_values(reader, "n", 0, LARGEST_ID)
        assert sorted(id_ for value in values for id_ in value.ids) == seen


def test_joins_that_others_have_stated_cost_a_commit_nothing(store: StoreHarness) -> None:
    store.commit(make_record(1, metadata={"k": "x"}))
    statements: list[str] = []

    def cost(engine: sa.Engine) -> int:
        with engine.begin() as connection:
            statements.clear()
            raw = msgspec.json.encode(make_record(1, metadata={"k": "x"}))
            link_new(connection, [msgspec.json.decode(raw, type=JournaledRecord)])
            return len(statements)

    def state(*paths: str) -> None:
        store.commit_changes(
            *(
                TruthStatement(f"meta.{path}", "x", [{"label": "circle"}], task="OBJECT_DETECTION")
                for path in paths
            )
        )

    with writer_engine(store.url) as engine:
        sa.event.listen(engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
        state("k", *(f"other-{number}" for number in range(30)))
        few = cost(engine)
        state(*(f"more-{number}" for number in range(600)))
        assert cost(engine) == few < 40
        truth = "SELECT t.join_on FROM ground_truth AS g JOIN truth AS t ON t.id = g.truth_id"
        assert store.rows(truth) == [("meta.k",)]


def test_a_key_of_a_team_is_seen_once_it_is_stored(store: StoreHarness) -> None:
    """Remembered ids of names do not hide that another team has a name since."""
    for seq, team in enumerate(["a", "b", "c"], 1):
        store.commit(make_record(seq, team=team, metadata={"k": 1}))
        for where in ({"meta.k": 1}, {"label": "circle"}):
            assert len(store.inferences.query(QueryRequest(where)).inferences) == seq
            own = store.inferences.within(Scope(team)).query(QueryRequest(where))
            assert [inference.id for inference in own.inferences] == [str(seq)]
    with store.inferences.snapshot() as connection:
        assert len(Catalog(connection, EVERYTHING).key_ids("k", KeyType.NUM)) == 3
