"""Simulated samples for the studies of drift."""

import math
import os
import zlib
from collections.abc import Callable
from functools import partial
from multiprocessing import Pool
from typing import Any

import numpy as np

from quadriga.monitor.drift.metadata import find_source
from quadriga.monitor.drift.samples import build_sample
from quadriga.monitor.drift.significance.decision import ComparisonSettings, combined_p_value
from quadriga.monitor.drift.summary import Summary, as_summary
from quadriga.monitor.report.schema import Signal

LABELS = [f"label{at:02}" for at in range(20)]
SHARES = np.array([0.3, 0.25, 0.2, 0.15, *[0.1 / 16] * 16])
"""Four frequent labels and sixteen rare ones."""
DIMENSIONS = 64
CAMERAS = 4
RECORDING = 25
"""Number of frames in a recording."""
COPIES = 5


def normal(rng: np.random.Generator, n: int) -> Any:
    """Return independent values."""
    return rng.normal(size=n)


def lognormal(rng: np.random.Generator, n: int) -> Any:
    """Return values with a long tail."""
    return rng.lognormal(size=n)


def beta(rng: np.random.Generator, n: int) -> Any:
    """Return values like scores: most near 1."""
    return rng.beta(8, 1.5, size=n)


def rounded(rng: np.random.Generator, n: int) -> Any:
    """Return scores of two digits, many of them tied."""
    return np.round(rng.beta(8, 1.5, size=n), 2)


def counts(rng: np.random.Generator, n: int) -> Any:
    """Return numbers of objects, three on average."""
    return rng.poisson(3, n)


def few(rng: np.random.Generator, n: int) -> Any:
    """Return numbers of objects, mostly none."""
    return rng.poisson(0.3, n)


def labels(rng: np.random.Generator, n: int) -> Any:
    """Return labels, sixteen of twenty of them rare."""
    return np.array(LABELS)[rng.choice(20, n, p=SHARES)]


def embeddings(rng: np.random.Generator, n: int) -> Any:
    """Return independent embeddings."""
    return rng.normal(size=(n, DIMENSIONS)).astype(np.float32)


INDEPENDENT: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "normal": normal,
    "skewed: lognormal": lognormal,
    "skewed: scores, beta(8, 1.5)": beta,
    "tied: scores of two digits": rounded,
    "counts: Poisson(3)": counts,
    "counts: Poisson(0.3)": few,
    "20 labels, 16 of them rare": labels,
}


def quiet(rng: np.random.Generator, n: int, signals: int) -> dict[str, Any]:
    """Return up to ten signals in which nothing changes."""
    columns = [world(rng, n) for world in INDEPENDENT.values()]
    columns += [normal(rng, n), lognormal(rng, n), counts(rng, n)]
    return {f"signal{at}": values for at, values in enumerate(columns[:signals])}


def chain(rng: np.random.Generator, n: int, memory: float = 0.9) -> Any:
    """Return an autoregressive series of unit variance, from its stationary distribution."""
    noise = rng.normal(size=n + 200) * math.sqrt(1 - memory**2)
    values = np.empty(n + 200)
    values[0] = rng.normal()
    for at in range(1, n + 200):
        values[at] = memory * values[at - 1] + noise[at]
    return values[200:]


def cameras(rng: np.random.Generator, n: int) -> tuple[Any, list[str]]:
    """Return autoregressive series of cameras, which are a deviation apart, frame by frame."""
    series = [chain(rng, n // CAMERAS + 1) + camera for camera in range(CAMERAS)]
    return np.stack(series, axis=1).ravel()[:n], [f"camera{at % CAMERAS}" for at in range(n)]


def recordings(rng: np.random.Generator, n: int) -> tuple[Any, list[str]]:
    """Return recordings, each a piece of an autoregressive series of its own."""
    series = [chain(rng, RECORDING) for _ in range(math.ceil(n / RECORDING))]
    side = rng.integers(1 << 40)
    return np.concatenate(series)[:n], [f"{side}-{at // RECORDING}" for at in range(n)]


def copies(rng: np.random.Generator, n: int) -> tuple[Any, list[str]]:
    """Return frames repeated five times, with one source per frame."""
    side = rng.integers(1 << 40)
    return np.repeat(rng.normal(size=n // COPIES), COPIES), [
        f"{side}-{at // COPIES}" for at in range(n)
    ]


def copies_of_a_camera(rng: np.random.Generator, n: int) -> tuple[Any, list[str]]:
    """Return frames repeated five times, with one source for all."""
    return np.repeat(rng.normal(size=n // COPIES), COPIES), ["camera"] * n


def sticky_labels(rng: np.random.Generator, n: int) -> tuple[Any, list[str]]:
    """Return labels of a camera, nine in ten of which repeat the previous label."""
    fresh = rng.random(n) > 0.9
    drawn = rng.choice(20, n, p=SHARES)
    last = np.maximum.accumulate(np.where(fresh | (np.arange(n) == 0), np.arange(n), 0))
    return np.array(LABELS)[drawn[last]], ["camera"] * n


def video_embeddings(rng: np.random.Generator, n: int) -> tuple[Any, list[str]]:
    """Return embeddings of a camera, each dimension an autoregressive series."""
    noise = rng.normal(size=(n + 100, DIMENSIONS)) * math.sqrt(1 - 0.81)
    for at in range(1, n + 100):
        noise[at] += 0.9 * noise[at - 1]
    return noise[100:].astype(np.float32), ["camera"] * n


def unkeyed(rng: np.random.Generator, n: int) -> tuple[Any, None]:
    """Return an autoregressive series without a source key."""
    return chain(rng, n), None


def turns(rng: np.random.Generator, n: int, cameras: int = 8) -> tuple[Any, list[str]]:
    """Return autoregressive series of cameras at different levels, frame by frame."""
    series = [chain(rng, n // cameras + 1) + camera / 2 for camera in range(cameras)]
    return np.stack(series, axis=1).ravel()[:n], [f"camera{at % cameras}" for at in range(n)]


def random_turns(rng: np.random.Generator, n: int, cameras: int = 8) -> tuple[Any, list[str]]:
    """Return autoregressive series of cameras at different levels, each frame of any camera."""
    of_frame = rng.integers(0, cameras, n)
    values = np.empty(n)
    for camera in range(cameras):
        of_camera = of_frame == camera
        values[of_camera] = chain(rng, int(of_camera.sum())) + camera / 2
    return values, [f"camera{camera}" for camera in of_frame]


def short_sources(rng: np.random.Generator, n: int) -> tuple[Any, list[str]]:
    """Return autoregressive series of 20 cameras, so that each has few rows."""
    return turns(rng, n, 20)


def lost_copies(rng: np.random.Generator, n: int) -> Any:
    """Return frames repeated five times, in an order that is lost."""
    values = np.repeat(rng.normal(size=n // COPIES), COPIES)
    rng.shuffle(values)
    return values


def nested_turns(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Return frames of eight cameras by turns, and in other columns the camera, and the site of every four."""
    values, cameras = turns(rng, n)
    sites = [f"site{int(camera[-1]) // 4}" for camera in cameras]
    return {"x": values, "meta.site": sites, "meta.cam": cameras}


def without_key(world: Callable[..., Any]) -> Callable[..., Any]:
    """Return a world of which nobody says which row is from which source."""
    return partial(_values, world)


def with_other_key(world: Callable[..., Any]) -> Callable[..., Any]:
    """Return a world whose sources stand in a column that is not known to name them."""
    return partial(_columns, world)


def _values(world: Callable[..., Any], rng: np.random.Generator, n: int) -> Any:
    return world(rng, n)[0]


def _columns(world: Callable[..., Any], rng: np.random.Generator, n: int) -> dict[str, Any]:
    return dict(zip(("x", "meta.cam"), world(rng, n), strict=True))


def values_of(side: Any) -> Any:
    """Return the values of what a world returned: values, with their sources, or with other columns."""
    return np.asarray(
        side[0] if isinstance(side, tuple) else side["x"] if isinstance(side, dict) else side
    )


def sides(drawn: list[Any], settings: ComparisonSettings) -> tuple[Summary, Summary]:
    """Return what a world returned for both sides, with the sources that are found in other columns."""
    samples = []
    for side in drawn:
        values, sources = side if isinstance(side, tuple) else (side, None)
        columns = values if isinstance(values, dict) else {"x": values}
        samples.append(build_sample(columns, sources=sources))
    baseline, current = (as_summary(sample, settings) for sample in samples)
    explanation = find_source(baseline, current, prefix="meta.")
    with_sources = (baseline, current) if explanation is None else explanation[1]
    others = {column.name for column in baseline.sample.columns} - {"x"}
    return with_sources[0].without(others), with_sources[1].without(others)


def p_value(signal: Signal) -> float:
    """Return the p-value of a signal before it is adjusted for other signals and windows."""
    return combined_p_value(signal.p or 0.0, signal.p_part)


def repeat(work: Callable[[int], Any], name: str, count: int) -> list[Any]:
    """Call `work` for each of `count` seeds, in two processes of low priority."""
    first = zlib.crc32(name.encode())
    with Pool(2, os.nice, (10,)) as pool:
        return pool.map(work, range(first, first + count), chunksize=max(count // 20, 1))


def share(flags: list[bool]) -> str:
    """Format a share in percent."""
    return f"{100 * sum(flags) / len(flags):.1f} %"
