"""The work of `quadriga profile`: where the time of an image goes, and what other options would gain on this machine."""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from quadriga.engine.measures.stopwatch import stages_ms
from quadriga.engine.models.image_graph import ImageGraph, ImageOptions
from quadriga.engine.models.inspection import describe_batching, open_model
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import LoadError, RunError, available_providers
from quadriga.extras.tuning.paired_times import RunTimes, median_factor, time_in_turns
from quadriga.extras.tuning.quantizer import Feeds
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


def profile_model(
    path: Path, image_file: Path, *, callers: int = 0, seconds: float = 5.0
) -> Profile:
    """Profile a model with an image, in this process and without a server.

    Args:
        path: Folder or ONNX file.
        image_file: Image.
        callers: Number of callers of a measurement under load; 0 for none.
        seconds: Longest time of each of the measurements.

    Raises:
        LoadError: The model cannot be loaded, or takes no images.
        quadriga.tasks.image_formats.ImageError: The image cannot be decoded.
    """
    model = open_model(path)
    graph = model.image_predictor
    if not isinstance(graph, ImageGraph):
        raise LoadError(
            f"expected a model of one graph that takes images, got {model.name}: {model.recognition.task}"
        )
    data = image_file.read_bytes()
    image = graph.decode(data, MAX_PIXELS)
    options = graph.read_options({})
    feeds = graph.feeds_of(image)[0]
    runtime = model.recognition.written.runtime
    stages = _measure_stages(graph, data, options, seconds)
    variants = [
        *_measure("threads", graph, _with_threads(model, path), feeds=feeds, seconds=seconds),
        *_measure_batches(
            graph, feeds, seconds, on_device=model.session.providers[0] != DEFAULT_PROVIDER
        ),
    ]
    providers, failed = _with_providers(model, path)
    variants += [*_measure("provider", graph, providers, feeds=feeds, seconds=seconds), *failed]
    return Profile(
        model=model.name,
        width=image.width,
        height=image.height,
        cores=os.cpu_count() or 1,
        threads=runtime.intra_op_threads,
        providers=model.session.providers,
        batching="" if runtime.batching is None else describe_batching(runtime.batching),
        stages=stages,
        total_ms=round(sum(stage.ms for stage in stages), 3),
        variants=variants,
        load=_measure_load(graph, data, options, callers, seconds) if callers else None,
        recommendation=recommend(stages, variants),
    )


def _measure_stages(
    graph: ImageGraph, data: bytes, options: ImageOptions, seconds: float
) -> list[Stage]:
    samples: dict[str, list[float]] = {name: [] for name in _STAGE_ADVICE}
    end_s = time.monotonic() + seconds
    for number in range(_WARM_UP + _STAGE_ROUNDS):
        started_s = time.perf_counter()
        image = graph.decode(data, MAX_PIXELS)
        decode_ms = (time.perf_counter() - started_s) * 1000
        graph.stopwatch.start()
        graph.predict([image], [options])
        stages = stages_ms(0, graph.stopwatch.stop())
        if number < _WARM_UP:
            continue
        stages |= {"decode": decode_ms, "run": stages["infer"]}
        for name, values in samples.items():
            values.append(stages[name])
        if time.monotonic() > end_s:
            break
    medians = {name: statistics.median(values) for name, values in samples.items()}
    total = sum(medians.values()) or 1.0
    return [Stage(name, round(ms, 3), round(ms / total, 3)) for name, ms in medians.items()]


def _reopened(model: Model, path: Path, **runtime: Any) -> ImageGraph:
    """Load the model once more with other options of `[runtime]`; raises as `Model`."""
    file = model.paths[0] if path.is_dir() else path
    other = Model(model.name, model.version, file, overrides={"runtime": runtime})
    assert isinstance(other.image_predictor, ImageGraph)
    return other.image_predictor


def _with_threads(model: Model, path: Path) -> dict[str, ImageGraph]:
    """Load the model with other numbers of threads inside of a run."""
    cores = os.cpu_count() or 1
    counts = {1, 2, 4, cores // 2, cores} - {model.recognition.written.runtime.intra_op_threads, 0}
    return {
        str(count): _reopened(model, path, intra_op_threads=count)
        for count in sorted(counts)
        if count <= cores
    }


def _with_providers(model: Model, path: Path) -> tuple[dict[str, ImageGraph], list[Variant]]:
    """Load the model with each other provider that is installed; also return those that do not run."""
    graphs, failed = {}, []
    for name in available_providers():
        if name in (*_NOT_MEASURED, *model.session.providers[:1]):
            continue
        try:
            providers = list(dict.fromkeys([name, DEFAULT_PROVIDER]))
            graphs[name] = _reopened(model, path, providers=providers)
        except (LoadError, RunError) as error:
            problem = str(error).partition("\n")[0]
            failed.append(Variant(kind="provider", value=name, problem=problem))
    return graphs, failed


def _measure(
    kind: Kind, present: ImageGraph, others: Mapping[str, ImageGraph], feeds: Feeds, seconds: float
) -> list[Variant]:
    """Time a run of the present graph and of others, one caller at a time."""
    if not others:
        return []
    graphs = (present, *others.values())
    before, *times = _time([(graph, feeds) for graph in graphs], seconds)
    return [
        _variant(kind, value, after, before.wall_s, after.wall_s)
        for value, after in zip(others, times, strict=True)
    ]


def _measure_batches(
    graph: ImageGraph, feeds: Feeds, seconds: float, *, on_device: bool
) -> list[Variant]:
    """Time runs of several images together, for each image; none if the file fixes their number.

    On a CPU its time counts, as requests share it; a device has a clock of its own, so the time on the wall does.
    """
    sizes = [size for size in _BATCHES if size <= graph.batch_size]
    if not sizes:
        return []
    repeated = [
        {name: np.repeat(feeds[name], size, axis=0) for name in feeds} for size in (1, *sizes)
    ]
    alone, *times = _time([(graph, batch) for batch in repeated], seconds)
    variants = []
    for size, run in zip(sizes, times, strict=True):
        image = RunTimes([s / size for s in run.wall_s], [s / size for s in run.cpu_s])
        compared = (alone.wall_s, image.wall_s) if on_device else (alone.cpu_s, image.cpu_s)
        variants.append(_variant("batch", str(size), image, *compared))
    return variants


def _time(runs: Sequence[tuple[ImageGraph, Feeds]], seconds: float) -> list[RunTimes]:
    tasks = [lambda _, graph=graph, feeds=feeds: graph.run_feeds(feeds) for graph, feeds in runs]
    return time_in_turns(tasks, max_rounds=_VARIANT_ROUNDS, max_s=seconds)


def _variant(
    kind: Kind, value: str, times: RunTimes, before_s: Sequence[float], after_s: Sequence[float]
) -> Variant:
    factor, interval = median_factor(before_s, after_s)
    return Variant(
        kind=kind,
        value=value,
        ms=times.ms,
        cpu_ms=times.cpu_ms,
        factor=factor,
        factor_ci95=interval,
    )


def _measure_load(
    graph: ImageGraph, data: bytes, options: ImageOptions, callers: int, seconds: float
) -> LoadTimes:
    """Let callers decode and predict one image after the other, each in a thread of its own."""
    end_s = time.monotonic() + seconds

    def call(_: int) -> list[float]:
        latencies: list[float] = []
        while not latencies or time.monotonic() < end_s:
            started_s = time.perf_counter()
            graph.predict([graph.decode(data, MAX_PIXELS)], [options])
            latencies.append((time.perf_counter() - started_s) * 1000)
        return latencies

    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(callers) as pool:
        ordered = sorted(chain.from_iterable(pool.map(call, range(callers))))
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
