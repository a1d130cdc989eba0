"""What evaluating detections costs, beside pycocotools, faster-coco-eval and hotcoco on the same data.

Each side computes COCO's twelve numbers in the same process, turn by turn; all must agree. The peers load
from lists of dicts in memory, as their dataset and results are once their files are read. Ours loads from
arrays, and from rows as the store gives them: the predictions and the truth of each image as JSON text;
with `--store` also from a SQLite store, its pages included. CPU is that of all threads of the process.

The data: 20 objects and 25 detections an image, 80 labels, 1 % crowds, areas that are not w * h.

Flags: `--images 1000 5000`; `--rounds N`; `--slow` for pycocotools beyond 1,000 images; `--large` for
100,000 images alone, shard by shard, with its peak of memory.
"""

import argparse
import contextlib
import io
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import faster_coco_eval
import hotcoco
import msgspec
import numpy as np
import numpy.typing as npt
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from store_records import END_MS, fill, record

from quadriga.monitor.evaluation.evaluators import build_state
from quadriga.monitor.evaluation.objects.detection import DetectionEvaluator
from quadriga.monitor.evaluation.reporting import bootstrap_weights
from quadriga.monitor.evaluation.state import EvaluatedImage, EvaluationState, Table, merge_states
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.query.inferences import InferenceReader, QueryRequest
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import JournaledChange, TruthStatement
from quadriga.store.writing.writer import Writer

LABELS, TRUTHS, FOUND = 80, 20, 25
NAMES = [f"label {number:02}" for number in range(LABELS)]
SHARD = 1000


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
    annotations = [
        {
            "id": number,
            "image_id": image + 1,
            "category_id": label + 1,
            "bbox": box,
            "area": area,
            "iscrowd": crowd,
        }
        for number, (image, label, box, area, crowd) in enumerate(
            zip(
                *(truths[name].tolist() for name in ("image", "label", "box", "area")),
                truths["crowd"].astype(int).tolist(),
                strict=True,
            ),
            1,
        )
    ]
    results = [
        {"image_id": image + 1, "category_id": label + 1, "bbox": box, "score": score}
        for image, label, box, score in zip(
            *(predictions[name].tolist() for name in ("image", "label", "box", "score")),
            strict=True,
        )
    ]
    dataset = {
        "info": {},
        "images": [{"id": number + 1, "width": 1000, "height": 1000} for number in range(images)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(NAMES, 1)],
        "annotations": annotations,
    }
    return Coco(dataset, results)


Row = tuple[int, bytes, bytes]
"""A row of a page of the store: a number, predictions and truth as JSON."""


def rows_of(prediction_table: Table, truths: Table, images: int) -> Iterator[Row]:
    """Return tables as rows of the store."""
    sides = []
    for table in (prediction_table, truths):
        boxes: list[list[dict[str, Any]]] = [[] for _ in range(images)]
        columns = [table[name].tolist() for name in ("image", "label", "corners")]
        more = {name: table[name].tolist() for name in ("score", "crowd") if name in table}
        if "crowd" in table:
            more["area"] = table["area"].tolist()
        for at, (image, label, corners) in enumerate(zip(*columns, strict=True)):
            row = dict(zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True))
            fields = {name: values[at] for name, values in more.items()}
            boxes[image].append({"label": NAMES[label], **fields, **row})
        sides.append(boxes)
    for number, (predictions, there) in enumerate(zip(*sides, strict=True)):
        yield number, msgspec.json.encode(predictions), msgspec.json.encode(there)


def state_of_rows(rows: list[Row]) -> EvaluationState:
    """Turn rows into a state, shard by shard."""
    images = [
        EvaluatedImage(str(seq), msgspec.Raw(predictions), msgspec.Raw(truth))
        for seq, predictions, truth in rows
    ]
    shards = [images[low : low + SHARD] for low in range(0, len(images), SHARD)]
    return merge_states([build_state(DetectionEvaluator(), shard, []) for shard in shards])


@contextlib.contextmanager
def stored(rows: list[Row]) -> Iterator[InferenceReader]:
    """Put rows into a SQLite store, by its own writer."""

    def journaled() -> Iterator[Any]:
        chance, moment = random.Random(0), smallest_id_at(END_MS)
        for number, predictions, truth in rows:
            seq = moment + 2 * number
            inference = record(seq, chance)
            yield msgspec.structs.replace(inference, predictions=msgspec.json.decode(predictions))
            statement = TruthStatement("id", str(seq), msgspec.json.decode(truth))
            yield JournaledChange(seq + 1, statement)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder / "journal", journaled())
        url = f"sqlite:///{folder / 'store.db'}"
        writer = Writer(folder / "journal", url)
        writer.drain()
        writer.close()
        inferences = InferenceReader(
            url, folder / "journal", FileBlobs(folder / "blobs"), timeout_s=60
        )
        yield inferences
        inferences.close()


def state_of_store(inferences: InferenceReader) -> EvaluationState:
    """Turn all that is stored into a state, page by page."""
    states, cursor = [], None
    while True:
        request = QueryRequest(where={}, order="ts", limit=SHARD, cursor=cursor)
        page = inferences.query(request)
        images = [
            EvaluatedImage(record.id, record.predictions, record.ground_truth)
            for record in page.inferences
        ]
        states.append(build_state(DetectionEvaluator(), images, []))
        cursor = page.cursor
        if cursor is None:
            return merge_states(states)


def state_of_arrays(predictions: Table, truths: Table, images: int) -> EvaluationState:
    """Turn arrays into a state."""
    ids = [str(number) for number in range(images)]
    sizes = np.zeros((images, 2), np.int64)
    return merge_states(
        [
            EvaluationState(
                ids=ids,
                images=ids,
                sizes=sizes,
                slices={},
                labels=NAMES,
                tables={"predictions": predictions, "truths": truths},
                excluded={},
            )
        ]
    )


def numbers_of(state: EvaluationState) -> list[float]:
    """Compute the twelve numbers of a state."""
    evaluated = DetectionEvaluator().evaluate(state)
    headlines = evaluated.headlines(np.ones((1, len(state.ids))))
    return [float(headline.values[0]) for headline in headlines[:12]]


Side = tuple[Callable[[], Any], Callable[[Any], list[float]]]
"""How to load, and how to evaluate what was loaded."""


def peer(data: Coco, coco: Any, evaluation: Any) -> Side:
    """Return a peer that has the form of pycocotools."""

    def load() -> Any:
        truth = coco()
        truth.dataset = data.dataset
        truth.createIndex()
        return truth, truth.loadRes(data.results)

    def evaluate(loaded: Any) -> list[float]:
        coco_evaluation = evaluation(*loaded, "bbox")
        coco_evaluation.evaluate()
        coco_evaluation.accumulate()
        coco_evaluation.summarize()
        return [float(value) for value in coco_evaluation.stats[:12]]

    return load, evaluate


def hotcoco_peer(data: Coco) -> Side:
    """Return hotcoco by its own interface."""

    def load() -> Any:
        truth = hotcoco.COCO(data.dataset)
        return truth, truth.load_res(data.results)

    def evaluate(loaded: Any) -> list[float]:
        coco_evaluation = hotcoco.COCOeval(*loaded, "bbox")
        coco_evaluation.run()
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
    with contextlib.redirect_stdout(io.StringIO()):
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
        "hotcoco": hotcoco_peer(data),
        "faster-coco-eval": peer(data, faster_coco_eval.COCO, faster_coco_eval.COCOeval_faster),
    }
    if images <= SHARD or arguments.slow:
        sides["pycocotools"] = peer(data, COCO, COCOeval)
    with stored(rows) if arguments.store else contextlib.nullcontext() as inferences:
        if inferences:
            sides["ours, a store"] = (lambda: state_of_store(inferences), numbers_of)
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


def large(images: int, resamples: int) -> None:
    """Evaluate many images, from JSON that is made shard by shard; print CPU and peaks of memory."""
    steps: dict[str, float] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        begun = time.process_time()
        result = work()
        steps[name] = steps.get(name, 0.0) + time.process_time() - begun
        if not name.startswith("read"):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(f"{name:24}{steps[name]:8.1f} CPU s, peak {peak:.2f} GiB", flush=True)
        return result

    print(f"{images} images, {FOUND} detections and {TRUTHS} objects each, {LABELS} labels")
    states = []
    for low in range(0, images, SHARD):
        rows = [(low + seq, *texts) for seq, *texts in rows_of(*made(SHARD, low), SHARD)]
        states.append(step("read", partial(state_of_rows, rows)))
    print(f"{'read':24}{steps['read']:8.1f} CPU s")
    state = step("merge", lambda: merge_states(states))
    states.clear()
    evaluated = step("match", lambda: DetectionEvaluator().evaluate(state))
    equal_weights = np.ones((1, images))
    numbers = step("twelve numbers", lambda: evaluated.headlines(equal_weights))
    step("the rest of the report", evaluated.details)
    weights = bootstrap_weights(images, resamples=resamples, seed=0)
    step(f"{resamples} resamples", lambda: evaluated.headlines(weights))
    print(f"AP {numbers[0].values[0]:.4f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow", action="store_true", help="pycocotools on all sizes")
    parser.add_argument("--store", action="store_true", help="rows from a SQLite database")
    parser.add_argument("--large", type=int, nargs="?", const=100_000, help="only so many images")
    parser.add_argument("--resamples", type=int, default=200, help="of --large")
    arguments = parser.parse_args()
    if arguments.large:
        large(arguments.large, arguments.resamples)
        return
    for images in arguments.images:
        compare(images, arguments)


if __name__ == "__main__":
    main()
