"""What a scene came to: outcomes of all requests beside the rows of the store, and the table of all scenes."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from quadriga.store.database.database import ReaderPool
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError
from tests.drill.client import ACKNOWLEDGED, KEY


class Outcome(NamedTuple):
    """How one request ended."""

    at_s: float
    """Seconds of CLOCK_MONOTONIC."""
    kind: str
    text: str
    """Id of the inference if it was acknowledged, else the reason."""
    took_s: float = 0.0
    """Seconds from the first byte of the request, or from connecting, to the last one of the answer."""


class Result(NamedTuple):
    """One row of the table."""

    scene: str
    harm: str
    acknowledged: int = 0
    lost: int = 0
    twice: int = 0
    failed: int = 0
    """Requests that ended neither acknowledged nor refused."""
    failed_in_orderly_restarts: int | None = None
    outage_s: float = 0.0
    """Longest time without any acknowledgement."""
    note: str = ""
    broken: str = ""
    """Part of the contract that did not hold, beside what was lost or stored twice."""


def read_outcomes(path: Path) -> list[Outcome]:
    """Return the outcomes that a client has written so far."""
    outcomes = []
    for line in path.read_text().splitlines() if path.exists() else ():
        at_s, took_s, kind, text = (*line.split(" ", 3), "", "", "")[:4]
        outcomes.append(Outcome(float(at_s), kind, text, float(took_s or 0)))
    return outcomes


def longest_gap_s(outcomes: Iterable[Outcome]) -> float:
    """Return the longest time between two acknowledgements."""
    times = sorted(outcome.at_s for outcome in outcomes if outcome.kind == ACKNOWLEDGED)
    return max((after - before for before, after in pairwise(times)), default=0.0)


def stored_rows(url: str, timeout_s: float = 30.0) -> list[tuple[int, str]]:
    """Return the id of each stored inference, and the key of its request."""
    until_s = time.monotonic() + timeout_s
    with closing(ReaderPool(url, connections=1, timeout_s=60.0)) as readers:
        while True:
            with suppress(NotReadyError, QueryTimeoutError), readers.snapshot() as connection:
                rows = connection.exec_driver_sql("SELECT seq, meta FROM inference").all()
                return [(seq, msgspec.json.decode(meta).get(KEY, "")) for seq, meta in rows]
            assert time.monotonic() < until_s, f"the database does not answer within {timeout_s} s"
            time.sleep(0.2)


def count_lost_and_twice(
    acknowledged: Sequence[int], rows: Sequence[tuple[int, str]]
) -> tuple[int, int]:
    """Count the acknowledged ids without a row, and the rows beyond the first of a request or of an id."""
    lost = len(set(acknowledged) - {seq for seq, _ in rows})
    keys = Counter(key for _, key in rows if key)
    given_twice = len(acknowledged) - len(set(acknowledged))
    return lost, len([*keys.elements()]) - len(keys) + given_twice


HEADINGS = ("scene", "harm", "acknowledged", "lost", "twice", "failed", "failed in orderly restarts",
            "longest outage", "note")  # fmt: skip


def table(results: Sequence[Result]) -> str:
    """Write results as a Markdown table."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS)]
    for result in results:
        orderly = result.failed_in_orderly_restarts
        notes = [f"BROKEN: {result.broken}"] if result.broken else []
        rows.append(
            (
                result.scene,
                result.harm,
                f"{result.acknowledged:,}",
                str(result.lost),
                str(result.twice),
                str(result.failed),
                "" if orderly is None else str(orderly),
                f"{result.outage_s:.1f} s",
                "; ".join([*notes, *filter(None, [result.note])]),
            )
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
