"""What is stored of each model, and from when until when."""

from typing import Any

import pytest

from quadriga.store.query.model_counts import stored_versions
from quadriga.store.records.ids import TIME_SHIFT
from quadriga.store.records.records import Deletion, ModelReference
from quadriga.store.records.scope import EVERYTHING
from tests.unit.store_harness import StoreHarness

NOON_MS = 1_800_014_400_000
LATE_MS = NOON_MS + 125_250


def at(record: Any, milliseconds: int, number: int = 0, model: str = "gauge", **fields: Any) -> Any:
    reference = ModelReference(model, "1", "ab" * 32)
    return record((milliseconds << TIME_SHIFT) + number, model=reference, **fields)


def times(store: StoreHarness) -> dict[str, tuple[str, str]]:
    with store.inferences.snapshot() as connection:
        versions = stored_versions(connection, EVERYTHING)
    return {version.name: (version.first_at[11:], version.last_at[11:]) for version in versions}


@pytest.fixture
def filled(store: StoreHarness, record: Any) -> StoreHarness:
    store.commit(
        at(record, LATE_MS), at(record, NOON_MS + 30_500), at(record, NOON_MS, model="other"),
        at(record, LATE_MS + 999, 1, team="north"),
    )  # fmt: skip
    return store


def test_the_last_inference_is_known_to_the_millisecond(filled: StoreHarness) -> None:
    assert times(filled) == {
        "gauge": (
            "12:00:00.000Z",
            "12:02:06.249Z",
        ),  # that of a team, as nobody's scope leaves it out
        "other": ("12:00:00.000Z", "12:00:00.000Z"),
    }


def test_of_what_is_not_stored_any_more_the_minute_is_known(filled: StoreHarness) -> None:
    newest = [str(LATE_MS << TIME_SHIFT), str(((LATE_MS + 999) << TIME_SHIFT) + 1)]
    filled.execute(f"DELETE FROM inference WHERE seq IN ({','.join(newest)})")  # as retention does
    assert times(filled)["gauge"] == ("12:00:00.000Z", "12:02:00.000Z")
    filled.execute("DELETE FROM inference")
    assert times(filled)["gauge"] == ("12:00:00.000Z", "12:02:00.000Z")


def test_what_was_deleted_by_hand_does_not_count(filled: StoreHarness) -> None:
    filled.commit_changes(Deletion([LATE_MS << TIME_SHIFT, ((LATE_MS + 999) << TIME_SHIFT) + 1]))
    assert times(filled)["gauge"] == ("12:00:00.000Z", "12:00:30.500Z")
