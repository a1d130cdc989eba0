"""The work of `quadriga profile`: where the time of an image goes, and what other options would gain on this machine."""

import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from quadriga.engine.measures.stopwatch import stages_ms
from quadriga.engine.models.image_graph import ImageGraph, ImageOptions
from quadriga.engine.models.inspection import describe_batching, open_model
from quadriga.engine.models.model import Model
from quadriga.engine.models.runners.session import LoadError, RunError, available_providers
from quadriga.extras.tuning.paired_times import median_factor, time_in_turns
from quadriga.tasks.image import MAX_PIXELS
from quadriga.tasks.parameters import ParameterError

TIE = 1.15
"""Factor below which two times count as equal: a machine's own changes reach as far."""

DEFAULT_PROVIDER = "CPUExecutionProvider"
_NOT_MEASURED = ("AzureExecutionProvider",)
"""Providers that are no alternative: one runs models elsewhere."""

_STAGE_ROUNDS = 100
_VARIANT_ROUNDS = 60
_BATCHES = (2, 4, 8, 16)
_WARM_UP = 3


class Stage(msgspec.Struct, frozen=True):
    """A stage of an image's way."""

    name: Literal["decode", "preprocess", "run", "postprocess"]
    ms: float
    """Median, with one image at a time."""
    share: float
    """Share of the sum of the stages."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """Another way to run the graph, measured in turns with the present one."""

    kind: Literal["threads", "batch", "provider"]
    value: str
    ms: float | None
    """Median of a run, for each image of a batch; None if it does not run."""
    cpu_ms: float | None
    """The same of the processor's time."""
    factor: float | None
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
    predictor = model.image_predictor
    if not isinstance(predictor, ImageGraph):
        raise LoadError(
            f"expected a model of one graph that takes images, got {model.name}: {model.recognition.task}"
        )
    data = image_file.read_bytes()
    image = predictor.decode(data, MAX_PIXELS)
    options = predictor.read_options({})
    stages = _measure_stages(predictor, data, options, seconds)
    feeds = predictor.feeds_of(image)[0]
    runtime = model.recognition.written.runtime
    variants = [
        *_measure_threads(model, path, feeds, seconds),
        *_measure_batches(
            predictor, feeds, seconds, on_device=model.session.providers[0] != DEFAULT_PROVIDER
        ),
        *_measure_providers(model, path, feeds, seconds),
    ]
    load = (
        _measure_load(predictor, data, options, callers=callers, seconds=seconds)
        if callers
        else None
    )
    total_ms = sum(stage.ms for stage in stages)
    return Profile(
        model=model.name,
        width=image.width,
        height=image.height,
        cores=os.cpu_count() or 1,
        threads=runtime.intra_op_threads,
        providers=model.session.providers,
        batching="" if runtime.batching is None else describe_batching(runtime.batching),
        stages=stages,
        total_ms=round(total_ms, 3),
        variants=variants,
        load=load,
        recommendation=recommend(stages, variants),
    )


def _measure_stages(
    predictor: ImageGraph, data: bytes, options: ImageOptions, seconds: float
) -> list[Stage]:
    samples: dict[str, list[float]] = {}
    end_s = time.monotonic() + seconds
    for number in range(_WARM_UP + _STAGE_ROUNDS):
        started_s = time.perf_counter()
        image = predictor.decode(data, MAX_PIXELS)
        decode_ms = (time.perf_counter() - started_s) * 1000
        predictor.stopwatch.start()
        predictor.predict([image], [options])
        stages = stages_ms(0, predictor.stopwatch.stop())
        if number < _WARM_UP:
            continue
        for name, value in (
            ("decode", decode_ms),
            ("preprocess", stages["preprocess"]),
            ("run", stages["infer"]),
            ("postprocess", stages["postprocess"]),
        ):
            samples.setdefault(name, []).append(value)
        if time.monotonic() > end_s:
            break
    medians = {name: statistics.median(values) for name, values in samples.items()}
    total = sum(medians.values()) or 1.0
    return [
        msgspec.convert(
            {"name": name, "ms": round(value, 3), "share": round(value / total, 3)}, Stage
        )
        for name, value in medians.items()
    ]


def _reopened(model: Model, path: Path, **runtime: Any) -> ImageGraph:
    """Load the model once more with other options of `[runtime]`; raises as `Model`."""
    file = model.paths[0] if path.is_dir() else path
    other = Model(model.name, model.version, file, overrides={"runtime": runtime})
    assert isinstance(other.image_predictor, ImageGraph)
    return other.image_predictor


def _measure_threads(model: Model, path: Path, feeds: Any, seconds: float) -> list[Variant]:
    """Time a run with more threads inside of it, one caller at a time."""
    present = model.recognition.written.runtime.intra_op_threads
    cores = os.cpu_count() or 1
    counts = sorted({1, 2, 4, cores // 2, cores} - {present, 0})
    graphs = {
        str(count): _reopened(model, path, intra_op_threads=count)
        for count in counts
        if count <= cores
    }
    return _measure_graphs("threads", model, graphs, feeds=feeds, seconds=seconds)


def _measure_providers(model: Model, path: Path, feeds: Any, seconds: float) -> list[Variant]:
    """Time a run by each other provider that is installed."""
    present = model.session.providers
    graphs: dict[str, ImageGraph] = {}
    failed = []
    for name in available_providers():
        if name in (*_NOT_MEASURED, *present[:1]):
            continue
        others = [] if name == DEFAULT_PROVIDER else [DEFAULT_PROVIDER]
        try:
            graphs[name] = _reopened(model, path, providers=[name, *others])
        except (LoadError, RunError) as error:
            problem = str(error).partition("\n")[0]
            failed.append(
                Variant(
                    kind="provider", value=name, ms=None, cpu_ms=None, factor=None, problem=problem
                )
            )
    return [*_measure_graphs("provider", model, graphs, feeds=feeds, seconds=seconds), *failed]


def _measure_graphs(
    kind: Literal["threads", "provider"],
    model: Model,
    graphs: dict[str, ImageGraph],
    feeds: Any,
    seconds: float,
) -> list[Variant]:
    if not graphs:
        return []
    assert isinstance(model.image_predictor, ImageGraph)
    tasks = [partial(_run, graph, feeds) for graph in (model.image_predictor, *graphs.values())]
    present, *others = time_in_turns(tasks, max_rounds=_VARIANT_ROUNDS, max_s=seconds)
    variants = []
    for value, times in zip(graphs, others, strict=True):
        factor, interval = median_factor(present.wall_s, times.wall_s)
        variants.append(
            Variant(
                kind=kind,
                value=value,
                ms=times.ms,
                cpu_ms=times.cpu_ms,
                factor=factor,
                factor_ci95=interval,
            )
        )
    return variants


def _measure_batches(
    predictor: ImageGraph, feeds: Any, seconds: float, *, on_device: bool
) -> list[Variant]:
    """Time runs of several images together, for each image; none if the file fixes their number.

    On a CPU its time counts, as requests share it; a device has a clock of its own, so the time on the wall does.
    """
    sizes = [size for size in _BATCHES if size <= predictor.batch_size]
    if not sizes:
        return []
    batches = [
        {name: np.repeat(array, size, axis=0) for name, array in feeds.items()}
        for size in (1, *sizes)
    ]
    tasks = [partial(_run, predictor, batch) for batch in batches]
    alone, *others = time_in_turns(tasks, max_rounds=_VARIANT_ROUNDS, max_s=seconds)
    variants = []
    for size, times in zip(sizes, others, strict=True):
        before_s, together_s = (
            (alone.wall_s, times.wall_s) if on_device else (alone.cpu_s, times.cpu_s)
        )
        factor, interval = median_factor(before_s, [value / size for value in together_s])
        variants.append(
            Variant(
                kind="batch",
                value=str(size),
                ms=round(times.ms / size, 3),
                cpu_ms=round(times.cpu_ms / size, 3),
                factor=factor,
                factor_ci95=interval,
            )
        )
    return variants


def _run(graph: ImageGraph, feeds: Any, _: int) -> None:
    graph.run_feeds(feeds)


def _measure_load(
    predictor: ImageGraph, data: bytes, options: ImageOptions, callers: int, seconds: float
) -> LoadTimes:
    """Let callers decode and predict one image after the other, each in a thread of its own."""
    latencies: list[list[float]] = [[] for _ in range(callers)]
    errors: list[Exception] = []
    end_s = time.monotonic() + seconds

    def call(own: list[float]) -> None:
        try:
            while not own or time.monotonic() < end_s:
                started_s = time.perf_counter()
                predictor.predict([predictor.decode(data, MAX_PIXELS)], [options])
                own.append((time.perf_counter() - started_s) * 1000)
        except (RunError, ParameterError) as error:
            errors.append(error)

    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    _in_threads([partial(call, own) for own in latencies])
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    if errors:
        raise errors[0]
    ordered = sorted(value for own in latencies for value in own)
    return LoadTimes(
        callers=callers,
        images=len(ordered),
        images_per_s=round(len(ordered) / wall_s, 1),
        p50_ms=round(ordered[len(ordered) // 2], 3),
        p99_ms=round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        cpu_ms=round(cpu_s * 1000 / len(ordered), 3),
    )


def _in_threads(tasks: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=task, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def recommend(stages: Sequence[Stage], variants: Sequence[Variant]) -> str:
    """Return the one thing to do first, in one line: the largest measured gain, else the largest stage."""
    run_share = next((stage.share for stage in stages if stage.name == "run"), 0.0)
    gains = []
    for variant in variants:
        if variant.factor is None or variant.factor_ci95 is None or variant.factor_ci95[0] < TIE:
            continue
        gain = run_share * (1 - 1 / variant.factor)
        gains.append((gain, variant))
    gains = [(gain, variant) for gain, variant in gains if gain >= 1 - 1 / TIE]
    if gains:
        gain, best = max(gains, key=lambda pair: pair[0])
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
