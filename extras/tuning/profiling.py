"""The work of `quadriga profile`: where the time of an image goes, and what other options would gain on this machine."""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from quadriga.engine.measures.model_counts import begin_events, stages_ms, take_events
from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.inspection import describe_batching, open_model
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import LoadError, RunError, available_providers
from quadriga.extras.tuning.paired_times import median_factor, time_in_turns
from quadriga.extras.tuning.quantizer import Feeds
from quadriga.proto.request import RequestContext, set_current_request
from quadriga.tasks.image import MAX_PIXELS

TIE = 1.15
"""Factor below which two times count as equal: a machine's own changes reach as far."""

DEFAULT_PROVIDER = "CPUExecutionProvider"
_NOT_MEASURED = ("AzureExecutionProvider",)
"""Providers that are no alternative: one runs models elsewhere."""

_STAGE_ROUNDS = 100
_VARIANT_ROUNDS = 60
_BATCHES = (2, 4, 8, 16)
_WARM_UP = 3

Kind = Literal["threads", "batch", "provider"]


class Stage(msgspec.Struct, frozen=True):
    """A stage of an image's way."""

    name: str
    """`decode`, `preprocess`, `run` or `postprocess`."""
    ms: float
    """Median, with one image at a time."""
    share: float
    """Share of the sum of the stages."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to run the graph, measured in turns with the present one."""

    kind: Kind
    value: str
    ms: float | None = None
    """Median of a run, for each image of a batch; None if it does not run."""
    cpu_ms: float | None = None
    """The same of the processor's time."""
    factor: float | None = None
    """How many times as fast as the present way: 2 is half the time; of batches on a CPU, half its time for an image."""
    factor_ci95: tuple[float, float] | None = None
    problem: str = ""
    """Reason why it does not run."""


class Way(NamedTuple):
    """A way to run the graph."""

    kind: Kind
    value: str
    graph: ImageGraph
    feeds: Feeds
    images: int = 1
    """Images of a run."""
    counts_cpu: bool = False
    """Whether the time of the CPU counts, which requests share; a device has a clock of its own: there that of the wall does."""

    def run(self, _: int) -> None:
        """Run the graph once."""
        self.graph.run_feeds(self.feeds)


class LoadTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Callers that send one image after the other."""

    callers: int
    images: int
    images_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """Time of the processor for each image."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of an image, other ways to run the graph, and a recommendation."""

    model: str
    width: int
    height: int
    cores: int
    threads: int
    providers: tuple[str, ...]
    batching: str
    """How requests share runs; empty where each runs alone."""
    stages: list[Stage]
    total_ms: float
    variants: list[Variant]
    load: LoadTimes | None
    recommendation: str


def profile_model(model: Path, image: Path, *, load: int | None, seconds: float) -> Profile:
    """Profile a model with an image, in this process and without a server.

    Args:
        model: Folder or ONNX file.
        image: Image file.
        load: Number of callers of a measurement under load; None for none.
        seconds: Longest time of each of the measurements.

    Raises:
        LoadError: The model cannot be loaded, or takes no images.
        quadriga.tasks.image.ImageError: The image cannot be decoded.
    """
    opened = open_model(model)
    graph = opened.image_predictor
    if not isinstance(graph, ImageGraph):
        raise LoadError(
            f"expected a model of one graph that takes images, got {opened.name}: {opened.recognition.task}"
        )
    data = image.read_bytes()
    decoded = graph.decode(data, MAX_PIXELS)
    runtime = opened.recognition.written.runtime
    stages = _measure_stages(graph, data, seconds)
    present = Way("threads", "", graph, graph.feeds_of(decoded)[0])
    failed: list[Variant] = []
    ways = [present, *_other_ways(opened, model, present, failed)]
    variants = [*_measure(ways, seconds), *failed]
    return Profile(
        model=opened.name,
        width=decoded.width,
        height=decoded.height,
        cores=os.cpu_count() or 1,
        threads=runtime.intra_op_threads,
        providers=opened.session.providers,
        batching="" if runtime.batching is None else describe_batching(runtime.batching),
        stages=stages,
        total_ms=round(sum(stage.ms for stage in stages), 3),
        variants=variants,
        load=_measure_load(graph, data, load, seconds) if load else None,
        recommendation=recommend(stages, variants),
    )


def _measure_stages(graph: ImageGraph, data: bytes, seconds: float) -> list[Stage]:
    options, end_s = graph.read_options({}), time.monotonic() + seconds
    request = RequestContext()
    set_current_request(request)
    samples: dict[str, list[float]] = {name: [] for name in _STAGE_ADVICE}
    for number in range(_WARM_UP + _STAGE_ROUNDS):
        started_s = time.perf_counter()
        image = graph.decode(data, MAX_PIXELS)
        decode_ms = (time.perf_counter() - started_s) * 1000
        begin_events(request)
        graph.predict([image], [options])
        stages = stages_ms(0, take_events(request))
        stages |= {"decode": decode_ms, "run": stages["infer"]}
        for name, values in samples.items():
            values.append(stages[name])
        if number >= _WARM_UP and time.monotonic() > end_s:
            break
    medians = {name: statistics.median(values[_WARM_UP:]) for name, values in samples.items()}
    total = sum(medians.values()) or 1.0
    return [Stage(name, round(ms, 3), round(ms / total, 3)) for name, ms in medians.items()]


def _reopened(model: Model, path: Path, **runtime: Any) -> ImageGraph:
    """Load the model once more with other options of `[runtime]`; raises as `Model`."""
    file = model.paths[0] if path.is_dir() else path
    other = Model(model.name, model.version, file, overrides={"runtime": runtime})
    assert isinstance(other.image_predictor, ImageGraph)
    return other.image_predictor


def _other_ways(model: Model, path: Path, present: Way, failed: list[Variant]) -> Iterator[Way]:
    """Yield other ways to run a model: threads of a run, images in it, and providers; those that do not run go to `failed`."""
    cores, threads = os.cpu_count() or 1, model.recognition.written.runtime.intra_op_threads
    counts = {1, 2, 4, cores // 2, cores} - {threads, 0}
    for count in sorted(count for count in counts if count <= cores):
        graph = _reopened(model, path, intra_op_threads=count)
        yield Way("threads", str(count), graph, present.feeds)
    first = model.session.providers[0]
    for size in (size for size in _BATCHES if size <= present.graph.batch_size):
        feeds = {name: np.repeat(array, size, axis=0) for name, array in present.feeds.items()}
        yield Way("batch", str(size), present.graph, feeds, size, first == DEFAULT_PROVIDER)
    for name in (name for name in available_providers() if name not in (*_NOT_MEASURED, first)):
        providers = list(dict.fromkeys([name, DEFAULT_PROVIDER]))
        try:
            yield Way("provider", name, _reopened(model, path, providers=providers), present.feeds)
        except (LoadError, RunError) as error:
            problem = str(error).partition("\n")[0]
            failed.append(Variant(kind="provider", value=name, problem=problem))


def _measure(ways: Sequence[Way], seconds: float) -> Iterator[Variant]:
    """Time ways in turns with the first, the present one; of several images in a run, the time of each counts."""
    runs = [way.run for way in ways]
    present, *times = time_in_turns(runs, max_rounds=_VARIANT_ROUNDS, max_s=3 * seconds)
    for way, run in zip(ways[1:], times, strict=True):
        kind = "cpu_s" if way.counts_cpu else "wall_s"
        after_s = [value_s / way.images for value_s in getattr(run, kind)]
        factor, interval = median_factor(getattr(present, kind), after_s)
        yield Variant(
            kind=way.kind,
            value=way.value,
            ms=round(run.ms / way.images, 3),
            cpu_ms=round(run.cpu_ms / way.images, 3),
            factor=factor,
            factor_ci95=interval,
        )


def _measure_load(graph: ImageGraph, data: bytes, callers: int, seconds: float) -> LoadTimes:
    """Let callers decode and predict one image after the other, each in a thread of its own."""
    options, end_s = graph.read_options({}), time.monotonic() + seconds
    request = RequestContext()
    set_current_request(request)

    def call(_: int) -> list[float]:
        latencies: list[float] = []
        while not latencies or time.monotonic() < end_s:
            started_s = time.perf_counter()
            graph.predict([graph.decode(data, MAX_PIXELS)], [options])
            latencies.append((time.perf_counter() - started_s) * 1000)
        return latencies

    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(callers) as pool:
        ordered = sorted(ms for own in pool.map(call, range(callers)) for ms in own)
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    return LoadTimes(
        callers=callers,
        images=len(ordered),
        images_per_s=round(len(ordered) / wall_s, 1),
        p50_ms=round(ordered[len(ordered) // 2], 3),
        p99_ms=round(ordered[int(len(ordered) * 0.99)], 3),
        cpu_ms=round(cpu_s * 1000 / len(ordered), 3),
    )


def recommend(stages: Sequence[Stage], variants: Sequence[Variant]) -> str:
    """Return the one thing to do first, in one line: the largest measured gain, else the largest stage."""
    run_share = next((stage.share for stage in stages if stage.name == "run"), 0.0)
    gains = [
        (run_share * (1 - 1 / variant.factor), variant)
        for variant in variants
        if variant.factor and variant.factor_ci95 and variant.factor_ci95[0] >= TIE
    ]
    gain, best = max(gains, key=lambda pair: pair[0], default=(0.0, None))
    if best is not None and gain >= 1 - 1 / TIE:
        return _ADVICE[best.kind].format(variant=best, percent=round(100 * gain))
    largest = max(stages, key=lambda stage: stage.share)
    return _STAGE_ADVICE[largest.name].format(percent=round(100 * largest.share))


_ADVICE = {
    "threads": "one image at a time takes {percent} % less with intra_op_threads = {variant.value} under [runtime]; with "
    "several callers at once one thread each answers more",
    "batch": "send {variant.value} images in a request: each takes {percent} % less than alone; if many clients send one each, try "
    "batching = {{max = {variant.value}}} under [runtime]",
    "provider": 'an image takes {percent} % less with providers = ["{variant.value}"] under [runtime]',
}
_STAGE_ADVICE = {
    "decode": "decoding takes {percent} % of the time: send smaller images, or JPEG in place of PNG",
    "preprocess": "preparing takes {percent} % of the time: send images of the size of the model's input",
    "run": "the graph takes {percent} % of the time: try `quadriga quantize`, or a smaller model",
    "postprocess": "reading the outputs takes {percent} % of the time: a higher score_threshold leaves fewer candidates",
}
"""Advice by the stage that takes most, in the order of the stages."""
