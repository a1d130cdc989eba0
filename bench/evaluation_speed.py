"""What evaluating detections costs, beside pycocotools, faster-coco-eval and hotcoco on the same data.

Each side computes COCO's twelve numbers in the same process, turn by turn; all must agree. The peers load
from lists of dicts in memory, as their dataset and results are once their files are read. Ours loads from
arrays, and from rows as the store gives them: the predictions and the truth of each image as JSON text.
CPU is that of all threads of the process.

The data: 20 objects and 25 detections an image, 80 labels, 1 % crowds, areas that are not w * h.

Flags: `--images 1000 5000`; `--rounds N`; `--slow` for pycocotools beyond 1,000 images; `--large` for
100,000 images alone, shard by shard, with its peak of memory.
"""

import argparse
import io
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from typing import Any, NamedTuple

import faster_coco_eval
import hotcoco
import msgspec
import numpy as np
import numpy.typing as npt
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from quadriga.monitor.evaluation.evaluators import build_state
from quadriga.monitor.evaluation.objects.detection import DetectionEvaluator
from quadriga.monitor.evaluation.reporting import bootstrap_weights
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationState, Table, merge_states

LABELS, TRUTHS, FOUND = 80, 20, 25
NAMES = [f"label {number:02}" for number in range(LABELS)]
SHARD, RESAMPLES = 1000, 200
STEPS = ("evaluate", "accumulate", "summarize")
"""Steps of pycocotools."""


def made(images: int, seed: int = 0) -> tuple[Table, Table]:
    """Make tables of detections and objects; seven of ten detections lie near an object."""
    pick = np.random.default_rng(seed)

    def table(count: int, corners: npt.NDArray[Any], label: npt.NDArray[Any]) -> Table:
        sides = corners[:, 2:] - corners[:, :2]
        return {
            "image": np.repeat(np.arange(images), count),
            "label": label,
            "area": sides.prod(axis=1),
            "number": np.tile(np.arange(count), images),
            "corners": corners,
            "box": np.concatenate([corners[:, :2], sides], axis=1),
        }

    def corners(count: int) -> npt.NDArray[Any]:
        low = pick.uniform(0, 500, (count, 2))
        return np.concatenate([low, low + np.exp(pick.uniform(2, 5.5, (count, 2)))], axis=1)

    objects, detections = images * TRUTHS, images * FOUND
    truths = table(TRUTHS, corners(objects), pick.integers(0, LABELS, objects))
    truths["area"] *= pick.uniform(0.5, 1, objects)
    truths["crowd"] = pick.random(objects) < 0.01
    truths["difficult"] = np.zeros(objects, bool)
    target = np.repeat(np.arange(images), FOUND) * TRUTHS + pick.integers(0, TRUTHS, detections)
    near = pick.random(detections) < 0.7
    moved = truths["corners"][target] + pick.normal(0, 0.08, (detections, 4)) * np.tile(
        truths["box"][target, 2:], 2
    )
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    same = near & (pick.random(detections) < 0.85)
    predictions = table(
        FOUND,
        np.where(near[:, None], moved, corners(detections)),
        np.where(same, truths["label"][target], pick.integers(0, LABELS, detections)),
    )
    predictions["score"] = np.where(near, pick.beta(3, 2, detections), pick.beta(2, 4, detections))
    return predictions, truths


class Coco(NamedTuple):
    """The data as COCO has it."""

    dataset: dict[str, Any]
    results: list[dict[str, Any]]


def coco_of(predictions: Table, truths: Table, images: int) -> Coco:
    """Return tables as COCO's dataset and results."""
    sides = []
    for table, more in (
        (truths, {"area": truths["area"].tolist(), "iscrowd": truths["crowd"].astype(int).tolist()}),
        (predictions, {"score": predictions["score"].tolist()}),
    ):  # fmt: skip
        columns = {
            "image_id": (table["image"] + 1).tolist(),
            "category_id": (table["label"] + 1).tolist(),
            "bbox": table["box"].tolist(),
        } | more
        sides.append([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])  # fmt: skip
    annotations, results = sides
    dataset = {
        "info": {},
        "images": [{"id": number + 1, "width": 1000, "height": 1000} for number in range(images)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(NAMES, 1)],
        "annotations": [{"id": number, **row} for number, row in enumerate(annotations, 1)],
    }
    return Coco(dataset, results)


Row = tuple[int, bytes, bytes]
"""A row of a page of the store: a number, predictions and truth as JSON."""


def rows_of(predictions: Table, truths: Table, images: int) -> Iterator[Row]:
    """Return tables as rows of the store."""
    sides = []
    for table, names in ((predictions, ["score"]), (truths, ["crowd", "area"])):
        boxes: list[list[dict[str, Any]]] = [[] for _ in range(images)]
        columns = [table["image"], table["label"], *(table[name] for name in names)]
        corners = table["corners"].tolist()
        for image, label, *values, corner in zip(*(column.tolist() for column in columns), corners, strict=True):  # fmt: skip
            fields = dict(zip((*names, "xmin", "ymin", "xmax", "ymax"), (*values, *corner), strict=True))  # fmt: skip
            boxes[image].append({"label": NAMES[label], **fields})
        sides.append(boxes)
    for number, texts in enumerate(zip(*sides, strict=True)):
        yield number, *map(msgspec.json.encode, texts)


def state_of_rows(rows: list[Row]) -> EvaluationState:
    """Turn rows into a state, shard by shard."""
    images = [
        EvaluatedImage(str(seq), msgspec.Raw(predictions), msgspec.Raw(truth))
        for seq, predictions, truth in rows
    ]
    shards = [images[low : low + SHARD] for low in range(0, len(images), SHARD)]
    return merge_states([build_state(DetectionEvaluator(), shard, []) for shard in shards])


def state_of_arrays(predictions: Table, truths: Table, images: int) -> EvaluationState:
    """Turn arrays into a state."""
    ids = [str(number) for number in range(images)]
    state = EvaluationState(
        ids=ids,
        images=ids,
        sizes=np.zeros((images, 2), np.int64),
        slices={},
        labels=NAMES,
        tables={"predictions": predictions, "truths": truths},
        excluded={},
    )
    return merge_states([state])


def numbers_of(state: EvaluationState) -> list[float]:
    """Compute the twelve numbers of a state."""
    evaluated = DetectionEvaluator().evaluate(state)
    headlines = evaluated.headlines(np.ones((1, len(state.ids))))
    return [float(headline.values[0]) for headline in headlines[:12]]


Side = tuple[Callable[[], Any], Callable[[Any], list[float]]]
"""How to load, and how to evaluate what was loaded."""


def load_coco(data: Coco, coco: Any) -> Any:
    """Load data by a class that has the form of pycocotools."""
    truth = coco()
    truth.dataset = data.dataset
    truth.createIndex()
    return truth, truth.loadRes(data.results)


def load_hotcoco(data: Coco) -> Any:
    """Load data by hotcoco's own interface."""
    truth = hotcoco.COCO(data.dataset)
    return truth, truth.load_res(data.results)


def peer(load: Callable[[], Any], evaluation: Any, *steps: str) -> Side:
    """Return a peer, whose evaluation has these steps."""

    def evaluate(loaded: Any) -> list[float]:
        coco_evaluation = evaluation(*loaded, "bbox")
        for step in steps:
            getattr(coco_evaluation, step)()
        return [float(value) for value in coco_evaluation.stats[:12]]

    return load, evaluate


class Cost(NamedTuple):
    """Seconds of one round."""

    load: float
    evaluate: float
    cpu: float

    @property
    def both(self) -> float:
        """Seconds in all."""
        return self.load + self.evaluate


def timed(side: Side) -> tuple[Cost, list[float]]:
    """Run a side once, silently."""
    load, evaluate = side
    with redirect_stdout(io.StringIO()):
        cpu, begun = time.process_time(), time.perf_counter()
        loaded = load()
        between = time.perf_counter()
        numbers = evaluate(loaded)
        ended = time.perf_counter()
        cpu = time.process_time() - cpu
    return Cost(between - begun, ended - between, cpu), numbers


def compare(images: int, arguments: argparse.Namespace) -> None:
    """Time all sides on the same data, and print their ratios."""
    predictions, truths = made(images)
    data = coco_of(predictions, truths, images)
    rows = list(rows_of(predictions, truths, images))
    sides: dict[str, Side] = {
        "ours, arrays": (lambda: state_of_arrays(predictions, truths, images), numbers_of),
        "ours, rows": (lambda: state_of_rows(rows), numbers_of),
        "hotcoco": peer(partial(load_hotcoco, data), hotcoco.COCOeval, "run"),
        "faster-coco-eval": peer(
            partial(load_coco, data, faster_coco_eval.COCO),
            faster_coco_eval.COCOeval_faster,
            *STEPS,
        ),
    }
    if images <= SHARD or arguments.slow:
        sides["pycocotools"] = peer(partial(load_coco, data, COCO), COCOeval, *STEPS)
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    for number in range(arguments.rounds):
        results = {}
        for name, side in sides.items():
            if name != "pycocotools" or number < 2:
                cost, results[name] = timed(side)
                costs[name].append(cost)
        for name, numbers in results.items():
            np.testing.assert_allclose(
                numbers, results["ours, arrays"], rtol=0, atol=1e-12, err_msg=name
            )
    show(images, costs)


def show(images: int, costs: dict[str, list[Cost]]) -> None:
    """Print the least seconds, and how many times ours from arrays and from rows a side takes."""
    print(f"\n{images} images, {FOUND} detections and {TRUTHS} objects each, {LABELS} labels")
    print(f"{'':36}{'both s':^18}{'':9}{'times, wall':^18}{'times, CPU':^18}")
    print(
        f"{'':18}{'load s':>9}{'eval s':>9}{'least':>9}{'median':>9}{'CPU s':>9}"
        + f"{'arrays':>9}{'rows':>9}" * 2
    )
    least = {
        name: Cost(*(min(values) for values in zip(*pairs, strict=True)))
        for name, pairs in costs.items()
    }
    ours = [least[f"ours, {source}"] for source in ("arrays", "rows")]
    for name, cost in least.items():
        middle = statistics.median(time.both for time in costs[name])
        times = [cost.both / time.both for time in ours] + [cost.cpu / time.cpu for time in ours]
        print(
            f"{name:18}{cost.load:9.3f}{cost.evaluate:9.3f}{cost.both:9.3f}{middle:9.3f}"
            f"{cost.cpu:9.3f}" + "".join(f"{time:9.1f}" for time in times)
        )


def large(images: int) -> None:
    """Evaluate many images, from JSON that is made shard by shard; print CPU and peaks of memory."""
    read_s = 0.0

    def step(name: str, work: Callable[[], Any]) -> Any:
        begun = time.process_time()
        result = work()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{name:24}{time.process_time() - begun:8.1f} CPU s, peak {peak:.2f} GiB", flush=True)
        return result

    print(f"{images} images, {FOUND} detections and {TRUTHS} objects each, {LABELS} labels")
    states = []
    for low in range(0, images, SHARD):
        rows = [(low + seq, *texts) for seq, *texts in rows_of(*made(SHARD, low), SHARD)]
        begun = time.process_time()
        states.append(state_of_rows(rows))
        read_s += time.process_time() - begun
    print(f"{'read':24}{read_s:8.1f} CPU s")
    state = step("merge", lambda: merge_states(states))
    states.clear()
    evaluated = step("match", lambda: DetectionEvaluator().evaluate(state))
    equal_weights = np.ones((1, images))
    numbers = step("twelve numbers", lambda: evaluated.headlines(equal_weights))
    step("the rest of the report", evaluated.details)
    weights = bootstrap_weights(images, resamples=RESAMPLES, seed=0)
    step(f"{RESAMPLES} resamples", lambda: evaluated.headlines(weights))
    print(f"AP {numbers[0].values[0]:.4f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow", action="store_true", help="pycocotools on all sizes")
    parser.add_argument("--large", type=int, nargs="?", const=100_000, help="only so many images")
    arguments = parser.parse_args()
    if arguments.large:
        large(arguments.large)
        return
    for images in arguments.images:
        compare(images, arguments)


if __name__ == "__main__":
    main()
