"""How soon alerts fire after their fault, and end after its mend."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from typing import NamedTuple

from tests.prometheus_drill.prometheus import Firing
from tests.prometheus_drill.stage import Stage
from tests.server_process import ServerProcess

PATIENCE_S = 240.0
"""Seconds for an alert to fire, and to end."""


OF_ALL_SERVERS = frozenset({"QuadrigaKeyEnds"})
"""Alerts that are one for all servers on a database, and so name none of them."""


class Alarm(NamedTuple):
    """One row of the table."""

    alert: str
    fault: str
    fired_s: float | None
    """Seconds from the fault until it fired; None if it did not."""
    silent_s: float | None
    """Seconds from the mend until it was silent; None if it was not."""
    beside: tuple[str, ...] = ()
    """Other alerts of the same server that fired at any time of the fault."""
    broken: str = ""
    """Reason why the fault could not be played to its end."""

    def is_right(self) -> bool:
        """Check whether the alert fired and ended."""
        return self.fired_s is not None and self.silent_s is not None and not self.broken


class Watch:
    """Watches the alerts of one server while a fault is played.

    Args:
        stage: What all parts of the drill share.
        fault: What is done, in a few words.
    """

    def __init__(self, stage: Stage, fault: str) -> None:
        self._stage = stage
        self._fault = fault
        self._server: ServerProcess | None = None
        self._begun_s = 0.0
        self._fired: dict[str, float | None] = {}
        self.alarms: list[Alarm] = []

    def begin(self, server: ServerProcess) -> None:
        """Note the time of the fault, before which no alert of the server may fire."""
        self._server = server
        early = [
            firing for firing in self._stage.prometheus.firing() if firing.instance == server.host
        ]
        assert not early, f"before the fault: {early}"
        self._begun_s = time.monotonic()

    def fires(self, *alerts: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until alerts fire."""
        assert self._server is not None
        until_s = time.monotonic() + timeout_s
        for alert in alerts:
            firing = self._firing(alert)
            left_s = max(0.0, until_s - time.monotonic())
            fired = self._stage.wait_until_fires(firing, left_s) is not None
            self._fired[alert] = time.monotonic() - self._begun_s if fired else None

    def _firing(self, alert: str) -> Firing:
        assert self._server is not None
        return Firing(alert, "" if alert in OF_ALL_SERVERS else self._server.host)

    def mended(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the alerts end, now that the fault is mended, and write down what happened."""
        assert self._server is not None
        begun_s = time.monotonic()
        silent = {}
        for alert in self._fired:
            left_s = max(0.0, begun_s + timeout_s - time.monotonic())
            firing = self._firing(alert)
            ended = self._stage.wait_until_silent(firing, left_s) is not None
            silent[alert] = time.monotonic() - begun_s if ended else None
        seen = self._stage.alerts_since(self._server.host, begun_s - self._begun_s + timeout_s)
        for alert, fired_s in self._fired.items():
            beside = tuple(sorted(seen - set(self._fired)))
            self.alarms.append(Alarm(alert, self._fault, fired_s, silent[alert], beside))
        self._fired.clear()


@contextmanager
def repeating(
    action: Callable[[], object], pause_s: float = 0.1, threads: int = 1
) -> Iterator[None]:
    """Do something again and again, in threads, until the end of the block; what fails is tried again."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(pause_s):
            with suppress(OSError, HTTPException, AssertionError):
                action()

    workers = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        stop.set()
        for worker in workers:
            worker.join(90)


def table(alarms: Sequence[Alarm], factor: float) -> str:
    """Write alarms as a Markdown table."""

    def seconds(value: float | None) -> str:
        return "**never**" if value is None else f"{value:.0f} s"

    lines = [
        f"| alert | fault | fired after (times of the rules / {factor:g}) | silent after the mend | fired beside |",
        "| --- | --- | --- | --- | --- |",
    ]
    for alarm in alarms:
        broken = f" **{alarm.broken}**" if alarm.broken else ""
        lines.append(
            f"| {alarm.alert} | {alarm.fault}{broken} | {seconds(alarm.fired_s)} | {seconds(alarm.silent_s)} "
            f"| {', '.join(alarm.beside)} |"
        )
    return "\n".join(lines)
