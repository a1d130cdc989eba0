"""Prometheus metrics of keys, by the id and the name of each, never its secret."""

import time
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quadriga.engine.access.key_counts import KeyTotals
from quadriga.engine.access.key_ring import KeyRing
from quadriga.engine.access.quotas import KeyUse
from quadriga.engine.measures.metric_texts import TEXTS

MAX_KEYS_SHOWN = 1000
"""Keys with numbers of their own, the first ones used; the numbers of all others are summed."""

ENDING_DAYS = 30
"""Days before the end of a key from which its end is shown."""

MAX_ENDING_KEYS = 100
"""Keys whose end is shown, the soonest first."""

OTHER_KEYS = "other"
"""Id and name of the sum of the keys that are not shown."""

_LABELS = ("key", "name")
_TOTALS = {
    "requests": (
        "quadriga_key_requests",
        "Requests admitted with the key. A key that does far more than others may need limits.",
    ),
    "bytes": ("quadriga_key_body_bytes", "Bytes of the bodies of the requests of the key."),
    "stored-bytes": (
        "quadriga_key_stored_bytes",
        "Bytes of images and records stored for the key: who fills the disk.",
    ),
    "export-bytes": (
        "quadriga_key_export_bytes",
        "Bytes of exports downloaded with the key. Much more than usual may be a key that was taken.",
    ),
}


class KeyMetrics(Collector):
    """What the keys have used since the start of the server, summed over its workers, and when keys end that end soon.

    Args:
        keys: The keys; None for a server that needs none.
    """

    def __init__(self, keys: KeyRing | None) -> None:
        self._keys = keys

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its current value."""
        uses = [] if self._keys is None else self._keys.key_uses()
        shown = list(_joined(uses))
        running = GaugeMetricFamily(
            "quadriga_key_requests_running",
            "Requests of the key that are answered now. At the number its limits allow, further ones are refused.",
            labels=_LABELS,
        )
        refused = CounterMetricFamily(
            "quadriga_key_requests_refused",
            "Requests refused by a limit of the key. If it rises, its client should send less, or an administrator raise the limit.",
            labels=[*_LABELS, "limit"],
        )
        for use in shown:
            running.add_metric([use.key_id, use.name], use.totals.in_flight)
            for limit, count in use.totals.refused.items():
                if count:
                    refused.add_metric([use.key_id, use.name, limit], count)
        for counter, (name, text) in _TOTALS.items():
            family = CounterMetricFamily(name, text, labels=_LABELS)
            for use in shown:
                family.add_metric([use.key_id, use.name], use.totals.totals[counter])
            yield family
        yield from (running, refused, self._ends())

    def _ends(self) -> Metric:
        name = "quadriga_key_end_timestamp_seconds"
        ends = GaugeMetricFamily(name, TEXTS[name], labels=_LABELS)
        before_ms = (time.time() + ENDING_DAYS * 86_400) * 1000
        keys = [] if self._keys is None else self._keys.ending_keys(before_ms)
        for key in keys[:MAX_ENDING_KEYS]:
            ends.add_metric([key.id, key.name or key.id], (key.expires_ms or 0) / 1000)
        return ends


def _joined(uses: Iterable[KeyUse]) -> Iterator[KeyUse]:
    """Yield the first keys that are known by name, and then all others as one."""
    rest: KeyTotals | None = None
    for place, use in enumerate(uses):
        if use.name and place < MAX_KEYS_SHOWN:
            yield use
        else:
            rest = use.totals if rest is None else _sum(rest, use.totals)
    if rest is not None:
        yield KeyUse(key_id=OTHER_KEYS, name=OTHER_KEYS, totals=rest)


def _sum(first: KeyTotals, second: KeyTotals) -> KeyTotals:
    return KeyTotals(
        key_id="",
        in_flight=first.in_flight + second.in_flight,
        totals={name: first.totals[name] + second.totals[name] for name in first.totals},
        refused={name: first.refused[name] + second.refused[name] for name in first.refused},
    )
