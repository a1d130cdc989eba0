import itertools
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadriga.store.changes.ground_truth import join_text
from quadriga.store.records.metadata import flatten
from quadriga.store.records.records import Deletion, InputReference, MetadataChange, TruthStatement
from tests.unit.store.conftest import make_record as make_any_record
from tests.unit.store_harness import FIRST_CHANGE_ID, StoreHarness

CAT, DOG = [{"label": "cat"}], [{"label": "dog"}]
HASH = "blake3:" + "a" * 64
IMAGE = InputReference("image", HASH, 1, 1, "image/png")
METADATA = {"camera": "north", "n": 2.0, "big": 1e300, "ok": True, "deep": {"id": "7"}, "l": "x" * 300,
            "odd": (1 << 53) + 1, "seven": 7}  # fmt: skip
JOINS = [
    ("id", "1"),
    ("request_id", "r"),
    ("request_id", "r#2"),
    ("input.hash", HASH),
    ("meta.camera", "north"),
    ("meta.n", "2"),
    ("meta.big", "1e300"),
    ("meta.ok", "true"),
    ("meta.deep.id", "7"),
    ("meta.seven", "7"),
    ("meta.l", "x" * 300),
    ("meta.odd", str((1 << 53) + 1)),
]
OTHERS = [
    ("id", "2"),
    ("request_id", "r#1"),
    ("request_id", "R"),
    ("input.hash", HASH.upper()),
    ("meta.camera", "nort"),
    ("meta.n", "2.0"),
    ("meta.ok", "1"),
    ("meta.deep", "7"),
    ("meta.l", "x" * 299),
    ("meta.odd", str(1 << 53)),
    ("meta.none", "1"),
]


make_record = partial(make_any_record, task="IMAGE_CLASSIFICATION")


def target() -> Any:
    return make_record(1, request_id="r", image_no=2, input=IMAGE, metadata=METADATA)


@pytest.mark.parametrize("comes", ["early", "late"])
def test_truth_is_joined_whether_it_comes_early_or_late(store: StoreHarness, comes: str) -> None:
    for join, value in [*JOINS, *OTHERS]:
        statement = store.sequenced(TruthStatement(join, value, CAT))
        store.commit(*((statement, target()) if comes == "early" else (target(), statement)))
        assert store.ground_truth(1) == (CAT if (join, value) in JOINS else None), (join, value)
        store.execute("DELETE FROM truth")
        store.commit_changes(Deletion([1]))
        assert store.rows("SELECT * FROM ground_truth") == []
    assert store.writer.records_rejected == 0


@pytest.mark.parametrize("comes", ["early", "late"])
@pytest.mark.parametrize(
    ("standard", "by_metadata"),
    [({"crop": {"inference_id": "9"}}, None), ({"error": 'the "crop":{} of a text'}, CAT)],
)
def test_crops_are_not_joined_by_the_metadata_of_their_image(
    store: StoreHarness, comes: str, standard: dict[str, Any], by_metadata: Any
) -> None:
    crop = make_record(
        1, request_id="r", image_no=2, input=IMAGE, metadata=METADATA, standard=standard
    )
    for join, value in JOINS:
        statement = store.sequenced(TruthStatement(join, value, CAT))
        store.commit(*((statement, crop) if comes == "early" else (crop, statement)))
        expected = by_metadata if join.startswith("meta.") else CAT
        assert store.ground_truth(1) == expected, (join, value)
        store.execute("DELETE FROM truth")
        store.commit_changes(Deletion([1]))


def test_the_latest_statement_of_all_joins_holds(store: StoreHarness) -> None:
    store.commit(target())
    store.commit_changes(
        TruthStatement("input.hash", HASH, CAT), TruthStatement("request_id", "r", DOG)
    )
    assert store.ground_truth(1) == DOG
    store.commit_changes(TruthStatement("id", "1", None))
    assert store.ground_truth(1) is None
    store.commit_changes(TruthStatement("meta.camera", "north", []))
    assert store.ground_truth(1) == []
    newest = store.sequenced(TruthStatement("input.hash", HASH, DOG))
    store.commit(newest, store.sequenced(TruthStatement("input.hash", "b" * 64, CAT)))
    assert store.ground_truth(1) == DOG


def test_it_does_not_matter_in_which_order_statements_arrive(store: StoreHarness) -> None:
    older, newer, newest = (
        store.sequenced(TruthStatement("request_id", "r", CAT)),
        store.sequenced(TruthStatement("id", "1", None)),
        store.sequenced(TruthStatement("input.hash", HASH, DOG)),
    )
    store.commit(newer, target(), older)
    assert store.ground_truth(1) is None
    store.commit(newest)
    assert store.ground_truth(1) == DOG


def test_truth_follows_a_change_of_the_metadata_that_it_is_joined_on(store: StoreHarness) -> None:
    store.commit_changes(TruthStatement("meta.camera", "north", CAT))
    store.commit(target())
    assert store.ground_truth(1) == CAT
    store.commit_changes(MetadataChange(1, {"camera": "south"}))
    assert store.ground_truth(1) is None
    store.commit_changes(MetadataChange(1, {"camera": "north"}))
    assert store.ground_truth(1) == CAT


def test_one_statement_is_the_truth_of_many(store: StoreHarness) -> None:
    store.commit(*(make_record(seq, input=IMAGE) for seq in range(1, 2100)))
    store.commit_changes(TruthStatement("input.hash", HASH, CAT))
    assert store.rows("SELECT count(*), min(truth_id) FROM ground_truth") == [
        (2099, FIRST_CHANGE_ID + 1)
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [("2.0", "2.0"), (2.0, "2"), (2, "2"), (True, "true"), (-0.0, "0"), (0.1, "0.1"), (1e300, "1e300"),
     (1e15, "1000000000000000"), ((1 << 63) - 1, "9223372036854775807")],
)  # fmt: skip
def test_equal_values_are_named_alike(value, text) -> None:
    assert join_text(value) == text


SCALARS = st.sampled_from(["a", "1", "true", 1, 1.0, 2, True, False, 0.5, "0.5"])
RECORDS = st.tuples(
    st.sampled_from(["r", "s", "r#1"]), st.integers(0, 1), st.sampled_from([None, HASH, HASH[:-1] + "b"]),
    st.dictionaries(st.sampled_from(["k", "o.k", "j"]), SCALARS, max_size=2),
)  # fmt: skip
STATED = st.one_of(
    st.tuples(st.just("id"), st.sampled_from(["1", "2", "3"])),
    st.tuples(st.just("request_id"), st.sampled_from(["r", "s", "r#1", "r#1#0", "s#0"])),
    st.tuples(st.just("input.hash"), st.sampled_from([HASH, HASH[:-1] + "b"])),
    st.tuples(st.sampled_from(["meta.k", "meta.o.k"]), SCALARS.map(join_text)),
)
STEPS = st.lists(
    RECORDS | st.tuples(STATED, st.sampled_from([None, CAT, DOG]), st.integers(0, 9)), max_size=8
)


EXAMPLES = itertools.count(1)


@settings(max_examples=40)
@given(STEPS)
def test_truth_is_the_latest_statement_that_a_record_is_joined_to(
    store: StoreHarness, steps
) -> None:
    # Each example has names of its own, so that all can share one database.
    base = next(EXAMPLES) * 10
    own, records, statements = f"{base}-", {}, {}
    for number, step in enumerate(steps):
        if len(step) == 4:
            request, image, digest, metadata = step
            seq = base + len(records) + 1
            metadata = {f"{own}{key}": value for key, value in metadata.items()}
            digest = digest and own + digest
            records[seq] = (own + request, image, digest, flatten(metadata))
            store.commit(
                make_record(seq, request_id=own + request, image_no=image, metadata=metadata,
                            input=InputReference("x", digest))
            )  # fmt: skip
        else:
            (join, value), annotations, shift = step
            if join == "id":
                value = str(base + int(value))
            elif join.startswith("meta."):
                join = f"meta.{own}{join[5:]}"
            else:
                value = own + value
            statement = store.sequenced(TruthStatement(join, value, annotations))
            statement = type(statement)(
                statement.seq * 100 + number + shift * 10, statement.change
            )  # not in order
            statements[statement.seq] = statement.change
            store.commit(statement)
    for seq, (request, image, digest, metadata) in records.items():
        has = {("id", str(seq)), ("request_id", request), ("request_id", f"{request}#{image}"),
               ("input.hash", digest)}  # fmt: skip
        has |= {(f"meta.{path}", join_text(value)) for path, value in metadata.items()}
        matching = [
            number
            for number, statement in statements.items()
            if (statement.join, statement.value) in has
        ]
        expected = statements[max(matching)].annotations if matching else None
        assert store.ground_truth(seq) == expected
