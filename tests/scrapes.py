"""What a server's `/metrics` says: samples by name and labels, differences, quantiles."""

import math
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from tests.server_process import ServerProcess

Sample = tuple[str, frozenset[tuple[str, str]]]


def scrape(server: ServerProcess) -> dict[Sample, float]:
    """Read all samples."""
    status, _, text = server.request("GET", "/metrics")
    assert status == 200, text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def total(samples: Mapping[Sample, float], name: str, **labels: str) -> float:
    """Add up the samples of a name that have these labels."""
    wanted = set(labels.items())
    return sum(value for (key, found), value in samples.items() if key == name and wanted <= found)


def is_counter(sample: Sample) -> bool:
    """Check whether a sample may never fall."""
    return sample[0].endswith(("_total", "_count", "_sum", "_bucket"))


def buckets(samples: Mapping[Sample, float], name: str, **labels: str) -> dict[float, float]:
    """Add up the buckets of a histogram by their bounds."""
    bounds = {dict(found)["le"] for key, found in samples if key == f"{name}_bucket"}
    return {
        float(bound): total(samples, f"{name}_bucket", le=bound, **labels)
        for bound in sorted(bounds, key=float)
    }


def quantile(share: float, counts: Mapping[float, float]) -> float:
    """Estimate a quantile as Prometheus' `histogram_quantile` does, linearly within a bucket."""
    rank, lower, below = share * counts[math.inf], 0.0, 0.0
    for bound, count in counts.items():
        if count >= rank:
            if bound == math.inf:
                return lower
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    raise AssertionError("a histogram ends with +Inf")
