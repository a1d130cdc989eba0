"""Samples of servers under load: which count, their medians, and the tables that show them. Nothing here measures.

A sample is flagged if the machine was not the same before and after it, or not this benchmark's alone; a wrong answer voids
the row.
"""

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

    requests: int
    wrong: int
    cpu_ms: float
    """CPU milliseconds of all processes of the server, per request."""
    client_ms: float
    """CPU milliseconds of the client, per request."""
    rate: float
    """Requests per second."""
    p50_ms: float
    p99_ms: float
    neighbour_cores: float
    """Cores that neither the server nor the client used."""
    reference_ms: tuple[float, float]
    """CPU milliseconds of the reference loop before and after."""
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
    """Medians of a row."""

    cpu_ms: float
    rate: float
    p50_ms: float
    p99_ms: float
    client_ms: float
    flag: str
    """`ok`, or why the row does not count."""

    @property
    def is_ok(self) -> bool:
        """Whether the row may be quoted."""
        return self.flag == "ok"


def figures(row: Row, reference_ms: float, needed: int) -> Figures:
    """Return the medians of a row: of the undisturbed samples if there are as many as needed, else of all, flagged."""
    if not row.samples:
        return _without_figures("not measured")
    void = [sample for sample in row.samples if sample.is_void]
    if void:
        first = void[0]
        return _without_figures(
            f"void: {first.failure}"
            if first.failure
            else f"void: {first.wrong} of {first.requests} answers wrong"
        )
    quiet = [sample for sample in row.samples if not sample.flag]
    flag = "ok"
    if len(quiet) < needed:
        disturbed = [sample.flag for sample in row.samples if sample.flag]
        flag = f"{len(quiet)} of {needed} undisturbed"
        if disturbed:
            flag += f" ({disturbed[0]})"
    samples = quiet if flag == "ok" else row.samples
    return Figures(
        cpu_ms=statistics.median(sample.scaled_ms(reference_ms) for sample in samples),
        rate=statistics.median(sample.rate for sample in samples),
        p50_ms=statistics.median(sample.p50_ms for sample in samples),
        p99_ms=statistics.median(sample.p99_ms for sample in samples),
        client_ms=statistics.median(sample.client_ms for sample in samples),
        flag=flag,
    )


def _without_figures(flag: str) -> Figures:
    nothing = float("nan")
    return Figures(
        cpu_ms=nothing, rate=nothing, p50_ms=nothing, p99_ms=nothing, client_ms=nothing, flag=flag
    )


class Results(msgspec.Struct, kw_only=True):
    """A run: what was measured, and on what."""

    date: str
    machine: str
    seconds: float
    """Seconds of each load."""
    rounds: int
    """Undisturbed samples that a row needs."""
    versions: dict[str, str]
    """Version of each peer."""
    rows: list[Row]

    @property
    def reference_ms(self) -> float:
        """Median of the reference loop over the run, to which CPU times are scaled."""
        samples = [sample for row in self.rows for sample in row.samples if not sample.failure]
        values = [value for sample in samples for value in sample.reference_ms]
        return statistics.median(values) if values else float("nan")

    def figures(self, row: Row) -> Figures:
        """Return the medians of a row."""
        return figures(row, self.reference_ms, self.rounds)

    def groups(self) -> Iterator[tuple[int, str, list[tuple[Row, Figures]]]]:
        """Yield the rows of each number of connections and path, with their medians."""
        keys = dict.fromkeys((row.connections, row.path) for row in self.rows)
        for connections, path in keys:
            rows = [row for row in self.rows if (row.connections, row.path) == (connections, path)]
            yield connections, path, [(row, self.figures(row)) for row in rows]


def text_table(results: Results) -> str:
    """Write all rows as text, with the factor of each server's CPU and rate to Quadriga's with its store."""
    lines = [
        f"CPU ms of all processes a request, scaled to a reference loop of {results.reference_ms:.1f} ms"
    ]
    for connections, path, rows in results.groups():
        own = next((numbers for row, numbers in rows if row.server == OWN), None)
        lines.append(f"\n{path}, {connections} connections")
        lines.append(
            f"  {'':20}{'CPU ms':>9}{'x':>7}{'req/s':>9}{'x':>7}{'p50 ms':>9}{'p99 ms':>9}{'client':>8}  flag"
        )
        for row, numbers in rows:
            if numbers.cpu_ms != numbers.cpu_ms:
                lines.append(f"  {row.server:20}{'':58}  {numbers.flag}")
                continue
            cpu, rate = (
                (numbers.cpu_ms / own.cpu_ms, numbers.rate / own.rate) if own else (1.0, 1.0)
            )
            lines.append(
                f"  {row.server:20}{numbers.cpu_ms:9.3f}{cpu:7.2f}{numbers.rate:9.0f}{rate:7.2f}"
                f"{numbers.p50_ms:9.2f}{numbers.p99_ms:9.2f}{numbers.client_ms:8.3f}  {numbers.flag}"
            )
    return "\n".join(lines)


def markdown_table(results: Results, connections: int) -> str:
    """Write the rows that may be quoted: CPU ms and requests per second of each server on each path."""
    paths = list(dict.fromkeys(row.path for row in results.rows))
    servers = list(dict.fromkeys(row.server for row in results.rows))
    cells = {
        (row.server, row.path): results.figures(row)
        for row in results.rows
        if row.connections == connections
    }
    lines = [f"| CPU ms, requests/s | {' | '.join(paths)} |", "|---" * (len(paths) + 1) + "|"]
    for server in servers:
        texts = []
        for path in paths:
            numbers = cells.get((server, path))
            if numbers is None or not numbers.is_ok:
                texts.append("-")
            else:
                texts.append(f"{numbers.cpu_ms:.3g}, {numbers.rate:.0f}")
        lines.append(f"| {server} | {' | '.join(texts)} |")
    return "\n".join(lines)


def behind(results: Results, peers: Sequence[str]) -> list[str]:
    """Say where Quadriga with its store is behind a peer by more than a tie, in CPU or in requests per second."""
    lines = []
    for connections, path, rows in results.groups():
        own = next((numbers for row, numbers in rows if row.server == OWN), None)
        for row, numbers in rows:
            if own is None or row.server not in peers:
                continue
            mark = "" if own.is_ok and numbers.is_ok else " (flagged)"
            place = f"{path}, {connections} connections: {row.server}"
            if own.cpu_ms > TIE * numbers.cpu_ms:
                lines.append(f"{place} takes {numbers.cpu_ms / own.cpu_ms:.2f} of the CPU{mark}")
            if numbers.rate > TIE * own.rate:
                lines.append(f"{place} answers {numbers.rate / own.rate:.2f} times as many{mark}")
    return lines
