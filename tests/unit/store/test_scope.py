"""What a scope admits: by a table, in every plan of a query, and in retention."""

import base64
import random
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.store.database.database import execute, migrate, writer_engine
from quadriga.store.keys.access_keys import create_key, read_keys, rotate_key
from quadriga.store.maintenance.retention import limits_of
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.sql.search import Budget
from quadriga.store.records.errors import StoreError
from quadriga.store.records.records import RetentionRule
from quadriga.store.records.scope import EVERYTHING, Scope, check_team
from tests.filter_definition import holds
from tests.unit.store.conftest import make_record
from tests.unit.store.random_filters import filters, random_records
from tests.unit.store_harness import StoreHarness

NARROW = (0, 12, 10_000)
"""Everything is wide, some is narrow, everything is narrow: each chooses other plans."""


@pytest.mark.parametrize(
    ("scope", "admitted"),
    [
        (EVERYTHING, "a/m b/m /m a/n /n"),
        (Scope("a"), "a/m a/n"),
        (Scope("c"), ""),
        (Scope(models=("m",)), "a/m b/m /m"),
        (Scope("a", ("m",)), "a/m"),
        (Scope("a", ("[mx]", "n*")), "a/m a/n"),
        (Scope("a", ("M",)), ""),
    ],
)
def test_a_scope_admits_a_team_and_models(scope: Scope, admitted: str):
    pairs = [("a", "m"), ("b", "m"), ("", "m"), ("a", "n"), ("", "n")]
    assert [
        f"{team}/{model}" for team, model in pairs if scope.admits(model, team)
    ] == admitted.split()


@pytest.mark.parametrize(
    "team", ["default", "-a", ".a", "a b", "a/b", "é", "a" * 65, "a\n", "..", "%"]
)
def test_a_team_that_is_no_name_is_refused(team: str, database_url: str):
    with writer_engine(database_url) as engine, pytest.raises(StoreError, match="expected a team"):
        create_key(engine, name="x", roles=["read"], team=team)


@pytest.mark.parametrize("team", ["", "a", "Quality-2.north_wing", "a" * 64])
def test_a_key_has_its_team_after_it_is_replaced(team: str, database_url: str):
    check_team(team)
    with writer_engine(database_url) as engine:
        key, _ = create_key(engine, name="x", roles=["read"], team=team)
        rotate_key(engine, key.id, 0)
        with engine.connect() as connection:
            assert [entry.team for entry in read_keys(connection)] == [team, team]


class RandomStore:
    """A store, its records, and a reader for each plan."""

    def __init__(self, store: StoreHarness, records: list[Any], readers: list[Any]) -> None:
        self.store, self.records, self.readers = store, records, readers


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def random_store(request, tmp_path_factory) -> Iterator[RandomStore]:
    """A store with random records of three teams, many of them of others, and a reader for each plan."""
    root, pick = tmp_path_factory.mktemp("scope"), random.Random(5)
    server = None
    if request.param == "sqlite":
        url = f"sqlite:///{root}/store.db"
        migrate(url)
    else:
        server = request.getfixturevalue("postgres")
        url = server.create()
    store = StoreHarness(root, url)
    records = [
        make_record(**fields, team=pick.choice(["a", "b", "b", "b", msgspec.UNSET]))
        for fields in random_records(pick)
    ]
    store.commit(*records)
    readers = [
        InferenceReader(
            url, store.journal_directory, store.blobs, narrow_rows=narrow, budget=Budget(first_batch_rows=narrow or 50)
        )
        for narrow in NARROW
    ]  # fmt: skip
    hasty = Budget(rows=9, seconds=1, first_batch_rows=3)
    readers.append(
        InferenceReader(url, store.journal_directory, store.blobs, narrow_rows=12, budget=hasty)
    )
    yield RandomStore(store, records, readers)
    for reader in readers:
        reader.close()
    store.close()
    if server is not None:
        server.drop(url)


@settings(max_examples=60)
@given(
    where=filters,
    scope=st.sampled_from(
        [Scope("a"), Scope("b"), Scope("c"), Scope("a", ("m1",)), Scope(models=("M*",)), EVERYTHING]
    ),
    order=st.sampled_from(["ts", "-ts"]),
)
def test_every_plan_finds_what_is_within_the_scope(random_store, where, scope, order):
    records, readers = random_store.records, random_store.readers
    seen = {
        record.seq
        for record in records
        if scope.team in ("", record.team or "")
        and (not scope.models or any(fnmatchcase(record.model.name, one) for one in scope.models))
    }
    expected = [record.seq for record in records if record.seq in seen and holds(where, record)]
    expected.sort(reverse=order == "-ts")
    for reader in readers:
        within = reader.within(scope)
        request, ids = QueryRequest(where, order=order, limit=7), []
        for page in within.pages(request):
            ids += [int(inference.id) for inference in page.inferences]
            if page.cursor is not None:
                named = cursor_id(page.cursor)
                beside = named + (1 if order == "ts" else -1)
                assert named in seen or beside in seen  # a cursor tells of no other row
        assert ids == expected
        assert within.count(QueryRequest(where)).count == len(expected)
        assert sorted(id_ for batch in within.matching_ids(where) for id_ in batch) == sorted(
            expected
        )


def cursor_id(cursor: str) -> int:
    """Return the id that a cursor names, which anybody can read."""
    return int(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).partition(b".")[0])


def test_rules_of_a_team_and_of_all_hold_both_for_the_shorter_time(store: StoreHarness):
    store.commit(
        *(
            make_record(seq, team=team or msgspec.UNSET)
            for seq, team in enumerate(["", "a", "b"], 1)
        )
    )
    store.commit_changes(
        RetentionRule("shapes-detector", 3.0, 9.0),
        RetentionRule("shapes-detector", 5.0, 7.0, "a"),
        RetentionRule("shapes-detector", None, 20.0, "b"),
        RetentionRule("shapes-detector", 1.0, 1.0, "c"),
    )
    now_ms, day = 100 * 86_400_000, 1440
    with writer_engine(store.url) as engine, engine.connect() as connection:
        limits = limits_of(connection, now_ms)
        teams = dict(execute(connection, "SELECT id, team FROM model").all())
    days = {
        teams[limit.model_id]: (100 - limit.inputs / day, 100 - limit.inferences / day)
        for limit in limits
    }
    assert days == {"": (3, 9), "a": (3, 7), "b": (3, 9)}
