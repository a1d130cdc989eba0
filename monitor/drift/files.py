"""Drift of files: a row for each inference, a column for each signal.

What a column holds is decided from both files, so that one of labels that look like numbers in one file alone
is compared as labels.
"""

import time
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from monitor.drift.columns import (
    Span,
    Unlike,
    as_labels,
    as_numbers,
    as_vectors,
    in_time,
    look,
)
from monitor.drift.comparison import compare
from monitor.drift.decision import Settings
from monitor.drift.samples import DriftError, Kind, Sample, sample
from monitor.drift.tables import Table, Values, read_table
from monitor.report import Data, Report, Window
from store.records import timestamp_text

SOURCE_KEYS = ("camera_id", "stream", "recording")
"""What rows that resemble each other have in common, where nothing else is said; also below `metadata`."""

TIMES = ("created_at", "timestamp")
"""What rows are put in order by, where nothing else is said."""

_NAMES = ("id", "inference_id", "request_id")
_MOST_NAMES = 50
"""More distinct texts than this, and more than half of all of a file, are names and no labels."""


class Asked(msgspec.Struct, frozen=True):
    """What the columns are, where it is not to be inferred."""

    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    embedding: tuple[str, ...] = ()
    """Of lists of numbers; or NAME, whose numbers are the columns NAME_0, NAME_1 and so on."""
    ignore: tuple[str, ...] = ()
    source_key: str | None = None
    """None: the first of `SOURCE_KEYS` that both files have."""
    time: str | None = None
    """None: the first of `TIMES` that both files have."""

    def kinds(self) -> dict[str, Kind]:
        """Return the kinds that were named."""
        named: tuple[tuple[Kind, tuple[str, ...]], ...] = (
            ("numeric", self.numeric),
            ("categorical", self.categorical),
            ("embedding", self.embedding),
        )
        return {name: kind for kind, names in named for name in names}


class _Side(NamedTuple):
    sample: Sample
    span: Span


class _Both(NamedTuple):
    tables: tuple[Table, Table]

    def names(self) -> list[str]:
        """Return the columns of both, in the order of the files."""
        return list(dict.fromkeys(name for one in self.tables for name in one.columns))

    def first(self, names: Iterable[str]) -> str | None:
        """Return the first of these columns that both have."""
        return next(
            (one for one in names if all(one in each.columns for each in self.tables)), None
        )


def compare_files(
    baseline: Path,
    current: Path,
    asked: Asked = Asked(),  # noqa: B008 - it is immutable
    settings: Settings | None = None,
) -> Report:
    """Compare two files.

    Args:
        baseline: CSV, JSON lines or Parquet; see `read_table`.
        current: As `baseline`, and not necessarily of the same format.
        asked: What the columns are.
        settings: How they are compared.

    Raises:
        DriftError: A file is none of these, a column is not what it was said to be, or is not there; the
            message begins with the file's name and the line where there is one.
        OSError: A file cannot be read.
    """
    started = time.monotonic()
    both = _Both((_with_vectors(baseline, asked), _with_vectors(current, asked)))
    _check(both, asked)
    when = asked.time or both.first(one for one in TIMES if one not in asked.ignore)
    source = asked.source_key or both.first(
        prefix + one
        for prefix in ("", "metadata.")
        for one in SOURCE_KEYS
        if prefix + one not in asked.ignore
    )
    columns, kinds, left_out = _columns(both, asked, {when, source})
    before, now = (
        _side(table, values, kinds, (when, source))
        for table, values in zip(both.tables, columns, strict=True)
    )
    report = compare(before.sample, now.sample, settings)
    seen = report.data
    seen = Data(_dated(seen.current, now.span), _dated(seen.baseline, before.span))
    read = {
        "baseline": _text(baseline),
        "current": _text(current),
        "time": when,
        "source_key": source,
        "left_out": left_out,
    }
    return msgspec.structs.replace(
        report,
        created=timestamp_text(time.time_ns() // 1_000_000),
        data=seen,
        parameters=read | report.parameters,
        provenance={
            "code": version("quadriga"),
            "libs": {name: version(name) for name in ("numpy", "scipy")},
            "duration_s": round(time.monotonic() - started, 3),
        },
    )


def _with_vectors(path: Path, asked: Asked) -> Table:
    """Read a file; columns NAME_0, NAME_1 and so on become NAME where that is an embedding."""
    table = read_table(path)
    for name in asked.embedding:
        if name in table.columns:
            continue
        parts: list[Any] = []
        while f"{name}_{len(parts)}" in table.columns:
            part = f"{name}_{len(parts)}"
            parts.append(as_numbers(table, part))
            del table.columns[part]
        if parts:
            table.columns[name] = np.stack(parts, axis=1)
    return table


def _check(both: _Both, asked: Asked) -> None:
    """See that what was named is there, and once."""
    names = both.names()
    files = " or ".join(one.name for one in both.tables)
    counts = Counter((*asked.numeric, *asked.categorical, *asked.embedding, *asked.ignore))
    for name, count in counts.items():
        if name not in names:
            raise DriftError(f"expected a column {name!r:.80} in {files}, got {_listed(names)}")
        if count > 1:
            raise DriftError(f"expected to be told once what {name!r:.80} is, got it {count} times")
    for name in filter(None, (asked.source_key, asked.time)):
        for table in both.tables:
            if name not in table.columns:
                got = _listed(list(table.columns))
                raise DriftError(f"expected a column {name!r:.80} in {table.name}, got {got}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return (", ".join(f"{name:.80}" for name in names[:20]) or "none") + more


def _columns(
    both: _Both, asked: Asked, used: set[str | None]
) -> tuple[tuple[dict[str, Values], dict[str, Values]], dict[str, Kind], dict[str, str]]:
    """Return the columns of both sides, their kinds where these are sure, and why others are left out."""
    made: tuple[dict[str, Values], dict[str, Values]] = ({}, {})
    named, kinds, left_out = asked.kinds(), dict[str, Kind](), dict[str, str]()
    for name in both.names():
        if name in asked.ignore or (name in used and name not in named):
            continue
        if name in _NAMES and name not in named:
            left_out[name] = "names inferences"
            continue
        try:
            kind = named.get(name) or _kind(both, name)
            sides = [_values(table, name, kind) for table in both.tables]
        except Unlike as error:
            if name in named:
                raise
            left_out[name] = str(error)
            continue
        if kind == "categorical" and name not in named and _are_names(sides):
            left_out[name] = "hardly any text is there twice"
            continue
        for columns, values in zip(made, sides, strict=True):
            columns[name] = values
        if name in named or kind != "numeric":
            kinds[name] = kind
    return made, kinds, left_out


def _kind(both: _Both, name: str) -> Kind:
    """Infer what a column holds; few integers are told from other numbers later."""
    found = {look(one, name) for one in both.tables} - {None}
    if found <= {"number"}:
        return "numeric"
    if found == {"list"}:
        return "embedding"
    if found & {"list", "other"}:
        raise Unlike("expected numbers, labels, or lists of numbers of one length, got others")
    return "categorical"


def _are_names(sides: list[Values]) -> bool:
    """Tell whether the texts of each side are too many to be labels."""
    texts = [[one for one in side if one is not None] for side in sides]
    counts = [(len(set(one)), len(one)) for one in texts if one]
    return all(distinct > max(_MOST_NAMES, n / 2) for distinct, n in counts) and bool(counts)


def _values(table: Table, name: str, kind: Kind) -> Values:
    """Return a column as `sample` takes it; a file that has it not has no values."""
    if name not in table.columns:
        return [None] * len(table.lines)
    if kind == "categorical":
        return as_labels(table, name)
    return as_numbers(table, name) if kind == "numeric" else as_vectors(table, name)


def _side(
    table: Table,
    columns: dict[str, Values],
    kinds: dict[str, Kind],
    keys: tuple[str | None, str | None],
) -> _Side:
    """Put a file together, in the order of a column with the time, with a column of sources."""
    when, source = keys
    order, span = in_time(table, when)
    sources = None if source is None else as_labels(table, source)
    try:
        return _Side(sample(columns, kinds=kinds, sources=sources, order=order), span)
    except DriftError as error:
        raise DriftError(f"{table.name}: {error}") from error


def _text(path: Path) -> str:
    """Return a path as JSON can hold it."""
    return str(path).encode(errors="replace").decode()


def _dated(window: Window | None, span: Span) -> Window:
    return msgspec.structs.replace(window or Window(), start=span[0], end=span[1])
