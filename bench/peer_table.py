"""Samples of servers under load: which count, their medians, and the tables that show them. Nothing here measures.

A sample is flagged if the machine was not the same before and after it, or not this benchmark's alone; a wrong answer voids
the row.
"""

import math
import statistics
from collections.abc import Iterator, Sequence

import msgspec

REFERENCE_LIMIT = 1.15
"""Factor between the reference before and after a sample from which on it is flagged."""
NEIGHBOUR_LIMIT = 0.1
"""Cores that other processes may use during a sample."""
TIE = 1.15
"""Factor below which two servers count as equal."""
OWN = "Quadriga, store on"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One load on a server."""

    reference_ms: tuple[float, float]
    """CPU milliseconds of the reference loop before and after."""
    requests: int = 0
    wrong: int = 0
    cpu_ms: float = 0.0
    """CPU milliseconds of all processes of the server, per request."""
    rate: float = 0.0
    """Requests per second."""
    neighbour_cores: float = 0.0
    """Cores that neither the server nor the client used."""
    failure: str = ""
    """Why there are no answers."""

    @property
    def is_void(self) -> bool:
        """Whether an answer was wrong or missing."""
        return bool(self.wrong or self.failure)

    @property
    def flag(self) -> str:
        """Say what disturbed the sample; empty if nothing did."""
        flags = []
        if max(self.reference_ms) > REFERENCE_LIMIT * min(self.reference_ms):
            flags.append("reference {:.0f}/{:.0f}".format(*self.reference_ms))
        if self.neighbour_cores > NEIGHBOUR_LIMIT:
            flags.append(f"neighbours {self.neighbour_cores:.1f}")
        return ", ".join(flags)

    def scaled_ms(self, reference_ms: float) -> float:
        """Return the server's CPU per request as it were at a speed of the reference loop."""
        return self.cpu_ms * reference_ms / statistics.mean(self.reference_ms)


class Row(msgspec.Struct, kw_only=True):
    """All samples of a server on one path, with one number of connections."""

    server: str
    path: str
    connections: int
    samples: list[Sample] = msgspec.field(default_factory=list)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of a row; NaN where it has none."""

    flag: str
    """`ok`, or why the row does not count."""
    cpu_ms: float = math.nan
    rate: float = math.nan

    @property
    def is_ok(self) -> bool:
        """Whether the row may be quoted."""
        return self.flag == "ok"


def figures(row: Row, reference_ms: float, needed: int) -> Figures:
    """Return the medians of a row: of the undisturbed samples if there are as many as needed, else of all, flagged."""
    if not row.samples:
        return Figures(flag="not measured")
    for sample in row.samples:
        if sample.is_void:
            wrong = f"{sample.wrong} of {sample.requests} answers wrong"
            return Figures(flag=f"void: {sample.failure or wrong}")
    samples = [sample for sample in row.samples if not sample.flag]
    flag = "ok"
    if len(samples) < needed:
        disturbed = [f" ({sample.flag})" for sample in row.samples if sample.flag]
        flag = f"{len(samples)} of {needed} undisturbed{''.join(disturbed[:1])}"
        samples = row.samples
    return Figures(
        flag=flag,
        cpu_ms=statistics.median(sample.scaled_ms(reference_ms) for sample in samples),
        rate=statistics.median(sample.rate for sample in samples),
    )


class Results(msgspec.Struct, kw_only=True):
    """A run: what was measured, and on what."""

    date: str
    machine: str
    seconds: float
    """Seconds of each load."""
    rounds: int
    """Undisturbed samples that a row needs."""
    rows: list[Row]

    @property
    def reference_ms(self) -> float:
        """Median of the reference loop over the run, to which CPU times are scaled."""
        samples = [sample for row in self.rows for sample in row.samples if not sample.failure]
        values = [value for sample in samples for value in sample.reference_ms]
        return statistics.median(values) if values else math.nan

    def groups(self) -> Iterator[tuple[int, str, dict[str, Figures]]]:
        """Yield the medians of each server, for each number of connections and path."""
        for connections, path in dict.fromkeys((row.connections, row.path) for row in self.rows):
            yield (
                connections,
                path,
                {
                    row.server: figures(row, self.reference_ms, self.rounds)
                    for row in self.rows
                    if (row.connections, row.path) == (connections, path)
                },
            )


def table(results: Results, connections: int) -> str:
    """Write CPU ms and requests per second of each server on each path; in italics what is not to be quoted, with its reason."""
    paths = {path: rows for number, path, rows in results.groups() if number == connections}
    lines = [f"| CPU ms, requests/s | {' | '.join(paths)} |", "|---" * (len(paths) + 1) + "|"]
    reasons = [""]
    for server in dict.fromkeys(row.server for row in results.rows):
        texts = []
        for path, servers in paths.items():
            row = servers.get(server, Figures(flag="ok"))
            text = "-" if math.isnan(row.cpu_ms) else f"{row.cpu_ms:.3g}, {row.rate:.0f}"
            texts.append(text if row.is_ok else f"*{text}*")
            if not row.is_ok:
                reasons.append(f"{server}, {path}: {row.flag}")
        lines.append(f"| {server} | {' | '.join(texts)} |")
    return "\n".join(lines + reasons)


def behind(results: Results, peers: Sequence[str]) -> list[str]:
    """Say where Quadriga with its store is behind a peer by more than a tie, in CPU or in requests per second."""
    lines = []
    for connections, path, servers in results.groups():
        own = servers.get(OWN, Figures(flag="not measured"))
        for name in filter(servers.__contains__, peers):
            row = servers[name]
            mark = "" if own.is_ok and row.is_ok else " (flagged)"
            place = f"{path}, {connections} connections: {name}"
            if own.cpu_ms > TIE * row.cpu_ms:
                lines.append(f"{place} takes {row.cpu_ms / own.cpu_ms:.2f} of the CPU{mark}")
            if row.rate > TIE * own.rate:
                lines.append(f"{place} answers {row.rate / own.rate:.2f} times as many{mark}")
    return lines
