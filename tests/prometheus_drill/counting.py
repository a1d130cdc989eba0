"""What Prometheus counts of two replicas beside what their clients counted: sums, quantiles, and counters that fall.

A difference is allowed for what nobody can know: a request whose connection was cut by a kill may have been counted or not,
and what a server answered between its last scrape and its own end is lost with its counters.
"""

import bisect
import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from quadriga.engine.measures.model_counts import BOUNDS_S
from tests.drill.client import ACKNOWLEDGED, BUSY, FAILED
from tests.drill.outcomes import Outcome
from tests.drill.trial import Load, start_server
from tests.prometheus_drill.prometheus import Prometheus, resets, rise
from tests.prometheus_drill.stage import Stage
from tests.server_process import ServerProcess

ROUND_S = 5.5
"""Seconds between two kills of the same child: one that died within 5 s is started again more slowly each time."""

_SENDERS = (("http", 2), ("grpc", 1))
_REQUESTS = 'quadriga_requests_total{protocol=~"v2|grpc"}'
_COUNTERS = '{__name__=~"quadriga_.+_(total|count|sum|bucket)"}'
_DURATION = "quadriga_request_duration_seconds_bucket"
_CLIENT_S = 0.003
"""Time that a client needs of its own for a request beside its server on two cores."""
_SCRAPE_SLACK_S = 0.5
"""Time for a scrape beyond the interval, on a busy machine."""


class Harm(NamedTuple):
    """What was done to the servers."""

    restarts: int = 0
    """Ends of a whole server, whose counters begin again at 0."""
    ended_at_s: tuple[float, ...] = ()
    """When those ends were, CLOCK_MONOTONIC."""


class Comparison(NamedTuple):
    """One row of the table."""

    scene: str
    server_count: float
    """Answered requests by the samples of Prometheus, resets allowed for."""
    increase: float
    """The same by `increase`, which extrapolates to the ends of its range."""
    client_count: int
    allowed: int
    """Largest difference that nobody can know better."""
    server_p95_s: float
    client_p95_s: float
    resets: int
    """Largest number of times that a counter of a server fell."""
    restarts: int
    """Largest number of times that a server was started again."""

    def problems(self) -> list[str]:
        """Return what does not agree."""
        texts = []
        if abs(self.server_count - self.client_count) > self.allowed:
            texts.append(f"expected a difference of at most {self.allowed}")
        if not math.isclose(self.increase, self.server_count, rel_tol=0.05, abs_tol=self.allowed):
            texts.append("`increase` is more than 5 % from the samples")
        # What the server cannot see is the clients' own: connecting, and waiting for a processor, on which both are.
        seen_by_both_s = max(self.server_p95_s, self.client_p95_s - _CLIENT_S)
        if abs(_bucket(self.server_p95_s) - _bucket(seen_by_both_s)) > 1:
            texts.append("p95 is more than a bucket from the clients'")
        if self.resets != self.restarts:
            texts.append("counters fell otherwise than by restarts")
        return texts


def _bucket(seconds: float) -> int:
    return bisect.bisect_left(BOUNDS_S, seconds)


def no_harm(_: Sequence[ServerProcess], load: Load, seconds: float) -> Harm:
    """Let the load run."""
    load.wait_for(20)
    time.sleep(seconds)
    return Harm()


def kills_of_workers(servers: Sequence[ServerProcess], load: Load, seconds: float) -> Harm:
    """End workers and a writer by SIGKILL, in turns on both servers."""
    until_s = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < until_s:
        begun_s = time.monotonic()
        servers[turn % 2].kill_child(("worker-0", "worker-1", "writer")[turn // 2 % 3])
        load.wait_for(5)
        time.sleep(max(0.0, begun_s + ROUND_S / 2 - time.monotonic()))
        turn += 1
    return Harm()


def rolling_restart(servers: Sequence[ServerProcess], load: Load, seconds: float) -> Harm:
    """Restart both servers by SIGTERM, one after the other, as a deployment does."""
    ended_at_s = []
    for old in servers:
        load.wait_for(20)
        time.sleep(seconds / 4)
        assert old.process is not None
        load.point_at([server for server in servers if server is not old])
        old.process.send_signal(signal.SIGTERM)
        old.process.wait(60)
        ended_at_s.append(time.monotonic())
        start_server(old)
        load.point_at(servers)
    load.wait_for(20)
    time.sleep(seconds / 4)
    return Harm(restarts=1, ended_at_s=tuple(ended_at_s))


def kills_of_replicas(servers: Sequence[ServerProcess], load: Load, seconds: float) -> Harm:
    """End all processes of a server by SIGKILL and start it again, then the other."""
    ended_at_s = []
    for victim in servers:
        load.wait_for(20)
        time.sleep(seconds / 4)
        victim.kill()
        ended_at_s.append(time.monotonic())
        start_server(victim)
        load.point_at(servers)
    load.wait_for(20)
    time.sleep(seconds / 4)
    return Harm(restarts=1, ended_at_s=tuple(ended_at_s))


SCENES: dict[str, Callable[[Sequence[ServerProcess], Load, float], Harm]] = {
    "usual load": no_harm,
    "SIGKILL of workers and writers": kills_of_workers,
    "rolling restart by SIGTERM": rolling_restart,
    "SIGKILL of each replica": kills_of_replicas,
}


def compare_counts(stage: Stage, seconds: float) -> list[Comparison]:
    """Run all scenes on two replicas of one PostgreSQL, and compare after each."""
    url = stage.postgres.create(migrated=False)
    flags = ("--database", url, "--workers", "2", "--grpc-connection-age-s", "1", "--drain-s", "3")
    servers = [stage.server(f"counted-{name}", *flags) for name in "ab"]
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(stage.running(server))
        return [_compare(stage, name, servers, harm, seconds) for name, harm in SCENES.items()]


def _compare(
    stage: Stage,
    scene: str,
    servers: Sequence[ServerProcess],
    do_harm: Callable[[Sequence[ServerProcess], Load, float], Harm],
    seconds: float,
) -> Comparison:
    hosts = [server.host for server in servers]
    load = Load(stage.folder / f"{scene.replace(' ', '-')}-clients", _SENDERS, pause_s=0.02)
    load.point_at(servers)
    stage.prometheus.wait_for_scrapes(hosts)
    begin_s = time.time()
    stage.prometheus.wait_for_scrapes(hosts)
    load.start()
    try:
        harm = do_harm(servers, load, seconds)
    finally:
        outcomes = load.finish()
    stage.prometheus.wait_for_scrapes(hosts)
    return comparison(stage.prometheus, scene, outcomes, harm, begin_s=begin_s, end_s=time.time())


def comparison(
    prometheus: Prometheus,
    scene: str,
    outcomes: Sequence[Outcome],
    harm: Harm,
    *,
    begin_s: float,
    end_s: float,
) -> Comparison:
    """Compare what the clients wrote down with what Prometheus has of the same time."""
    success = _REQUESTS.replace("}", ',outcome="success"}')
    window = f"[{round((end_s - begin_s) * 1000)}ms]"
    acknowledged = [outcome for outcome in outcomes if outcome.kind == ACKNOWLEDGED]
    took_s = sorted(outcome.took_s for outcome in acknowledged)
    p95 = (
        f"histogram_quantile(0.95, sum by (le) (increase({_DURATION}"
        f'{{outcome="success",protocol=~"v2|grpc"}}{window})))'
    )
    unseen_s = prometheus.interval_s + _SCRAPE_SLACK_S
    unseen = sum(
        at_s - unseen_s <= outcome.at_s <= at_s
        for at_s in harm.ended_at_s
        for outcome in acknowledged
    )
    unknown = sum(outcome.kind in (FAILED, BUSY) for outcome in outcomes)
    counters = prometheus.series(_COUNTERS, begin_s, end_s)
    return Comparison(
        scene,
        server_count=sum(map(rise, prometheus.series(success, begin_s, end_s).values())),
        increase=prometheus.value(f"sum(increase({success}{window}))", end_s),
        client_count=len(acknowledged),
        allowed=unseen + unknown,
        server_p95_s=prometheus.value(p95, end_s),
        client_p95_s=took_s[math.ceil(0.95 * len(took_s)) - 1] if took_s else math.nan,
        resets=max(map(resets, counters.values()), default=0),
        restarts=harm.restarts,
    )


def table(rows: Sequence[Comparison]) -> str:
    """Write comparisons as a Markdown table."""
    lines = [
        "| scene | server | by `increase` | clients | difference, allowed | p95 of the server | p95 of the clients | counters fell, restarts |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        difference = f"{row.server_count - row.client_count:+.0f}, {row.allowed}"
        problems = f" **{'; '.join(row.problems())}**" if row.problems() else ""
        lines.append(
            f"| {row.scene} | {row.server_count:,.0f} | {row.increase:,.0f} | {row.client_count:,} | {difference} "
            f"| {row.server_p95_s * 1000:.1f} ms | {row.client_p95_s * 1000:.1f} ms "
            f"| {row.resets}, {row.restarts}{problems} |"
        )
    return "\n".join(lines)
