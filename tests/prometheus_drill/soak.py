"""A usual load for some minutes, with the small mishaps of a usual day, in which no alert may fire."""

import shutil
import time
from contextlib import ExitStack
from typing import NamedTuple

from tests.drill.client import ACKNOWLEDGED
from tests.drill.trial import Load
from tests.prometheus_drill.faults_monitoring import (
    DETECTOR,
    compare_window,
    send_scenes,
)
from tests.prometheus_drill.faults_serving import send
from tests.prometheus_drill.stage import Stage, small_disk
from tests.prometheus_drill.watch import repeating
from tests.server_process import SAMPLE_MODELS

DISK_BYTES = 12_000_000_000
"""Size of a disk of memory, so that what others write on this machine's disk is no reason for an alert."""

MISTAKE_EVERY_S, EXPORT_EVERY_S = 2.0, 30.0


class SoakResult(NamedTuple):
    """What happened in a soak."""

    seconds: float
    acknowledged: int
    failed: int
    fired: tuple[str, ...]
    """Alerts that fired."""
    pending: tuple[str, ...]
    """Alerts whose condition was true for a moment."""


def soak(stage: Stage, seconds: float) -> SoakResult:
    """Send a usual load to two replicas of one PostgreSQL; return which alerts fired."""
    url = stage.postgres.create(migrated=False)
    models = stage.models("soak")
    shutil.copytree(SAMPLE_MODELS / DETECTOR, models / DETECTOR)
    flags = ("--database", url, "--workers", "2", "--signals-per-s", "10000")
    with ExitStack() as stack:
        mounted = stack.enter_context(small_disk(stage.folder / "soak-disk", DISK_BYTES))
        folder = "soak-disk" if mounted else "soak"
        servers = [
            stack.enter_context(
                stage.running(stage.server(f"{folder}/{name}", *flags, models=models))
            )
            for name in "ab"
        ]
        first = servers[0]
        send_scenes(first, light=1.0, seed=1)
        status, submitted = first.call("PUT", f"/api/models/{DETECTOR}/baseline", {})
        assert status == 200, submitted
        assert first.ended(submitted["job"])["state"] == "succeeded"
        load = Load(stage.folder / "soak-clients", (("http", 1), ("grpc", 1)), pause_s=0.1)
        load.point_at(servers)
        begun_s = time.monotonic()
        load.start()
        try:
            mistakes = repeating(lambda: send(first, DETECTOR, "{}"), MISTAKE_EVERY_S)
            exports = repeating(
                lambda: first.call("POST", "/api/exports", {"where": {"meta.no": 1}}),
                EXPORT_EVERY_S,
            )
            with mistakes, exports:
                compare_window(first, light=1.0, seed=2)
                time.sleep(max(0.0, begun_s + seconds / 2 - time.monotonic()))
                servers[1].kill_child("worker-0")
                time.sleep(max(0.0, begun_s + seconds - time.monotonic()))
        finally:
            outcomes = load.finish()
        lasted_s = time.monotonic() - begun_s
        fired, pending = (
            tuple(
                sorted(
                    set().union(
                        *(stage.alerts_since(server.host, lasted_s, state) for server in servers)
                    )
                )
            )
            for state in ("firing", "pending")
        )
    acknowledged = sum(outcome.kind == ACKNOWLEDGED for outcome in outcomes)
    return SoakResult(lasted_s, acknowledged, len(outcomes) - acknowledged, fired, pending)
