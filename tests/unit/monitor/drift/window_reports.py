"""Reports of windows, and a receiver of alerts, for tests of schedules."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from quadriga.monitor.drift.parameters import DriftParameters
from quadriga.monitor.report.schema import Data, Effect, Report, Signal, Window
from quadriga.store.records.ids import EPOCH_MS
from quadriga.store.records.records import timestamp_text
from tests.background import listening

MODEL = "shapes-detector"
HOUR_S = 3600


def id_at_second(second: int) -> int:
    """The first id of a second of what is stored."""
    return second * 1000 << 22


def time_at_second(second: int) -> str:
    """The time of a second of what is stored."""
    return timestamp_text(EPOCH_MS + second * 1000)


def parameters(hour: int, baseline: Any = "default") -> DriftParameters:
    """Ask for an hour of 1970."""
    start, end = (timestamp_text(at * HOUR_S * 1000) for at in (hour, hour + 1))
    return DriftParameters(
        MODEL, start=start, end=end, baseline=baseline, windows=24, schedule="1h"
    )


def report(hour: int, *, alarms=(), silent=(), effect=0.02, baseline_n=1000) -> Report:
    """Compare signals a, b, c and d, of which some have an alarm and some say nothing."""
    signals = []
    for at, name in enumerate("abcd"):
        alarm = name in alarms
        size = 0.5 + at / 10 if alarm else effect
        status = "insufficient" if name in silent else "ok"
        signals.append(
            Signal(
                name,
                "numeric",
                "ks",
                Effect("wasserstein_iqr", size, 0.1),
                (1000, 200),
                p_adjusted=0.001 if alarm else 0.7,
                alarm=alarm,
                status=status,
            )
        )
    status = "drift" if alarms else "insufficient" if len(silent) == 4 else "ok"
    data = Data(Window(n=200), Window("1969-01-01T00:00:00.000Z", None, baseline_n))
    return Report("drift", "OBJECT_DETECTION", data, id=f"{hour:019d}-0000", status=status, signals=signals)  # fmt: skip


class Receiver:
    """Takes alerts, after as many answers of other statuses as there are."""

    def __init__(self) -> None:
        self.first: list[int] = []
        """Statuses of the next answers; 0 breaks the connection."""
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    @property
    def taken(self) -> list[dict[str, Any]]:
        """Bodies of what was answered 200."""
        return [json.loads(body) for headers, body in self.got if headers["answered"] == "200"]


@contextmanager
def receiver():
    """Listen on a free port for as long as the block lasts."""
    running = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = running.first.pop(0) if running.first else 200
            running.got.append(({**self.headers, "answered": str(status)}, body))
            if status:
                self.send_response(status)
                self.send_header("Location", f"{running.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *_):
            pass

    with listening(Handler) as host:
        running.url = f"http://{host}/hook"
        yield running
