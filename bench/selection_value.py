"""What a selection of images to label is worth beside a random one, and what it costs to select from a million.

`value`: a linear head over the stored embeddings of shapes-classifier is trained on some labelled images of one camera,
which sees mostly circles. A pool has more from that camera, and a few from three cameras that it has never seen: at
night, with noise, and far away. Of the pool, `--select` images are labelled, chosen in several ways, and the head is
trained again on all labelled images. Its accuracy is that on unseen images of all cameras and labels alike. Printed is
the mean over `--seeds` draws of labelled images and pool, and the difference from random choice, pair by pair, with its
95 % interval of Student's t.

`cost`: seconds and memory of choosing 500 and 10,000 images, as `quadriga select` does before it writes them, on a
SQLite of `--records` inferences with embeddings.
"""

import argparse
import json
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import Process
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from quadriga.engine.models.model import Model
from quadriga.monitor.drift.similarity import References
from quadriga.monitor.selection.choice import Criterion, SelectionCandidates, choose
from quadriga.monitor.selection.diversity import Embedded
from quadriga.monitor.selection.stored import SelectionOptions, select
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database.database import migrate
from quadriga.store.query.inferences import InferenceReader
from quadriga.tasks.image import Image
from tests.server_process import SAMPLE_MODELS
from tests.unseen_scenes import DRAWN

MODEL = "shapes-classifier"
SEED = 20271127
LABELS = ("circle", "square", "triangle", "star", "cross")
LABEL_SHARES = (0.7, 0.15, 0.09, 0.03, 0.03)
"""Shares of the labels in the pool and among the images that are labelled at first."""

POOL_OF_CAMERA = {"day": 800, "night": 40, "noisy": 40, "far": 40}
"""Images of each camera in a pool."""

LABELLED, REFERENCES, TESTED_OF_EACH = 60, 200, 40
"""Images labelled at first, those of the baseline, and those tested of each camera and label."""

DRAWN_OF_LABEL = (1150, 400, 400, 350, 350)
"""Scenes of each label that the parts of all seeds are drawn from."""

FIRST = 30_000_000_000 << 22
BOX = {"xmin": 10, "ymin": 10, "xmax": 90, "ymax": 90}

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.integer]


def _noisy(pixels: Pixels, number: int) -> Pixels:
    noise = np.random.default_rng(number).normal(0, 45, pixels.shape)
    return np.clip(pixels + noise, 0, 255).astype(np.uint8)


def _far(pixels: Pixels, _: int) -> Pixels:
    height, width = pixels.shape[:2]
    small = cv2.resize(pixels, (width // 3, height // 3), interpolation=cv2.INTER_AREA)
    canvas = np.full_like(pixels, np.median(pixels[:4], axis=(0, 1)).astype(np.uint8))
    top, left = (height - small.shape[0]) // 2, (width - small.shape[1]) // 2
    canvas[top : top + small.shape[0], left : left + small.shape[1]] = small
    return canvas


CAMERAS: dict[str, Callable[[Pixels, int], Pixels]] = {
    "day": lambda pixels, _: pixels,
    "night": lambda pixels, _: (pixels * 0.12).astype(np.uint8),
    "noisy": _noisy,
    "far": _far,
}


class Scenes(NamedTuple):
    """Embedded images of all cameras."""

    embeddings: Floats
    """float16 (N, D)."""
    labels: Integers
    """(N,) positions in `LABELS`."""
    cameras: Integers
    """(N,) positions in `CAMERAS`."""
    pixels: Integers
    """(N,) number of the scene that the image shows."""


def draw() -> Scenes:
    """Draw scenes, and embed each as every camera sees it."""
    model = Model(MODEL, "1", SAMPLE_MODELS / MODEL / "model.onnx")
    rows: list[tuple[Floats, int, int, int]] = []
    missing = [*DRAWN_OF_LABEL]
    for number, (pixels, annotations) in enumerate(DRAWN[MODEL](SEED)):
        label = LABELS.index(annotations[0]["class_label"])
        if missing[label] > 0:
            missing[label] -= 1
            for camera, change in enumerate(CAMERAS.values()):
                vector = model.embed(Image(change(pixels, number)))
                assert vector is not None
                rows.append((vector.astype(np.float16), label, camera, number))
        if not any(missing):
            break
    embeddings, labels, cameras, numbers = zip(*rows, strict=True)
    return Scenes(np.stack(embeddings), np.array(labels), np.array(cameras), np.array(numbers))


class Head:
    """A linear head over embeddings, trained on labelled ones."""

    def __init__(self, embeddings: Floats, labels: Integers) -> None:
        self._scaler = StandardScaler().fit(embeddings.astype(np.float64))
        self._regression = LogisticRegression(C=0.1, max_iter=500).fit(
            self._scaler.transform(embeddings.astype(np.float64)), labels
        )

    def probabilities(self, embeddings: Floats) -> Floats:
        """Return (N, L) the probability of each label that it knows."""
        scaled = self._scaler.transform(embeddings.astype(np.float64))
        return np.asarray(self._regression.predict_proba(scaled))

    def accuracy(self, embeddings: Floats, labels: Integers) -> float:
        """Return the share of right labels."""
        return float(
            self._regression.score(self._scaler.transform(embeddings.astype(np.float64)), labels)
        )


class HeldEmbeddings:
    """Embeddings in memory; the ids of inferences are rows of the pool."""

    def __init__(self, pool: Floats, labelled: Floats) -> None:
        self._pool = pool
        self._labelled = labelled

    def max_rows(self, ids: Integers) -> int:
        """Return that all fit."""
        return len(ids) * 100

    def read(self, ids: Integers) -> Embedded:
        """Return the embeddings of rows of the pool."""
        labelled_ids = -1 - np.arange(len(self._labelled))
        return Embedded(np.arange(len(ids)), self._pool[ids], self._labelled, labelled_ids)


WAYS: dict[str, tuple[Sequence[Criterion], bool]] = {
    "random, cameras alike": ((), True),
    "uncertainty": (("uncertainty",), False),
    "drift": (("drift",), False),
    "diversity": (("diversity",), False),
    "uncertainty,diversity": (("uncertainty", "diversity"), False),
    "uncertainty,diversity,drift": (("uncertainty", "diversity", "drift"), False),
    "uncertainty, cameras alike": (("uncertainty",), True),
    "uncertainty,diversity, cameras alike": (("uncertainty", "diversity"), True),
    "uncertainty,diversity,drift, cameras alike": (("uncertainty", "diversity", "drift"), True),
}
"""What each way selects by, and whether the command knows the cameras."""


def accuracies(scenes: Scenes, count: int, seed: int) -> dict[str, float]:
    """Return the accuracy after labelling images chosen in each way; `before` is that without."""
    rng = np.random.default_rng((SEED, seed))
    left = np.ones(len(scenes.labels), np.bool_)

    def take(camera: int, number: int, shares: Sequence[float]) -> Integers:
        """Draw images of a camera, whose scenes are in no other part."""
        rows: list[int] = []
        for label, wanted in enumerate(rng.multinomial(number, shares)):
            of_label = (scenes.cameras == camera) & (scenes.labels == label) & left
            rows += rng.choice(np.flatnonzero(of_label), wanted, replace=False).tolist()
        left[np.isin(scenes.pixels, scenes.pixels[rows])] = False
        return np.array(rows)

    alike = (1 / len(LABELS),) * len(LABELS)
    tested = np.concatenate(
        [take(c, TESTED_OF_EACH * len(LABELS), alike) for c in range(len(CAMERAS))]
    )
    labelled = take(0, LABELLED, LABEL_SHARES)
    baseline = take(0, REFERENCES, LABEL_SHARES)
    pool = np.concatenate(
        [take(c, number, LABEL_SHARES) for c, number in enumerate(POOL_OF_CAMERA.values())]
    )
    pool = rng.permutation(pool)
    head = Head(scenes.embeddings[labelled], scenes.labels[labelled])
    probabilities = np.sort(head.probabilities(scenes.embeddings[pool]), axis=1)
    references = References(scenes.embeddings[baseline], baseline, "")
    candidates = SelectionCandidates(
        np.arange(len(pool)),
        rng.permutation(len(pool)).astype(np.uint64),
        1 - (probabilities[:, -1] - probabilities[:, -2]),
        drifts=1 - references.scores(scenes.embeddings[pool]),
        sources=np.zeros(len(pool), np.int64),
    )
    embeddings = HeldEmbeddings(scenes.embeddings[pool], scenes.embeddings[labelled])

    def accuracy(chosen: Integers) -> float:
        rows = np.concatenate([labelled, pool[chosen]])
        trained = Head(scenes.embeddings[rows], scenes.labels[rows])
        return trained.accuracy(scenes.embeddings[tested], scenes.labels[tested])

    results = {
        "before": accuracy(np.zeros(0, np.int64)),
        "random": accuracy(rng.choice(len(pool), count, replace=False)),
    }
    for way, (by, knows_cameras) in WAYS.items():
        sources = scenes.cameras[pool] if knows_cameras else candidates.sources
        choice = choose(candidates._replace(sources=sources), count, by, embeddings)
        results[way] = accuracy(np.array([pick.row for pick in choice.picks]))
    results["all of the pool"] = accuracy(np.arange(len(pool)))
    return results


def value(counts: Sequence[int], seeds: int) -> None:
    """Print the accuracy after each way of choosing so many images."""
    scenes = draw()
    for count in counts:
        _print_value(scenes, count, seeds)


def _print_value(scenes: Scenes, count: int, seeds: int) -> None:
    rows = [accuracies(scenes, count, seed) for seed in range(seeds)]
    images = sum(POOL_OF_CAMERA.values())
    print(f"{MODEL}: {count} of {images} images labelled, beside {LABELLED} before; {seeds} seeds")
    print(f"  {'chosen':46}{'accuracy':>10}{'beside random':>16}{'95 % interval':>20}")
    for way in rows[0]:
        of_way = np.array([row[way] for row in rows]) * 100
        differences = of_way - np.array([row["random"] for row in rows]) * 100
        line = f"  {way:46}{of_way.mean():8.1f} %"
        if way != "random":
            half = stats.t.ppf(0.975, seeds - 1) * differences.std(ddof=1) / seeds**0.5
            mean = differences.mean()
            line += f"{mean:+14.1f} %{mean - half:+10.1f} ..{mean + half:+6.1f}"
        print(line, flush=True)


def fill(path: Path, records: int, size: int) -> None:
    """Make a store of inferences with embeddings (size,) and predictions, without images, each of one of 20 cameras."""
    migrate(f"sqlite:///{path}")
    database = sqlite3.connect(path)
    rng = np.random.default_rng(SEED)
    database.execute(
        "INSERT INTO model (id, name, version, sha256, task, team) VALUES (1, 'm', '1', '', 'OBJECT_DETECTION', '')"
    )
    database.execute("INSERT INTO meta_key (id, path, type, team) VALUES (1, 'camera_id', 1, '')")
    columns = (
        "seq, request_id, image_no, model_id, action, status, latency_us, input_name, input_hash, input_width,"
        " input_height, input_mime, input_bytes, input_kept, prediction_count, predictions, meta, standard"
    )
    for start in range(0, records, 10_000):
        numbers = range(start, min(start + 10_000, records))
        scores = rng.random((len(numbers), 3)).round(4)
        ids = [FIRST + (number << 22) for number in numbers]
        rows = [
            (
                id_, f"r{number}", 0, 1, "predict", 200, 4000, "image", f"blake3:{number:064x}", 640, 480, "image/jpeg",
                90_000, 1, 3, json.dumps([{"label": "circle", "score": score, **BOX} for score in of_image]),
                json.dumps({"camera_id": f"camera-{number % 20}"}),
                json.dumps({"protocol": "v2", "semantic_score": round(of_image[0] ** 2, 6)}),
            )
            for id_, number, of_image in zip(ids, numbers, scores.tolist(), strict=True)
        ]  # fmt: skip
        holes = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO inference ({columns}) VALUES ({holes})", rows)
        cameras = [
            (1, f"camera-{number % 20}", id_) for id_, number in zip(ids, numbers, strict=True)
        ]
        database.executemany("INSERT INTO meta_str (key, val, seq) VALUES (?, ?, ?)", cameras)
        vectors = rng.normal(size=(len(ids), size)).astype("<f2")
        signals = [(id_, row.tobytes(), "ab" * 8) for id_, row in zip(ids, vectors, strict=True)]
        database.executemany("INSERT INTO signal (seq, embedding, space) VALUES (?, ?, ?)", signals)
        database.commit()
    database.close()


class PeakMemory:
    """Watches how much memory of its own this process has, beyond that at the beginning; not what the database is mapped to."""

    def __init__(self) -> None:
        self._first_kb = self._peak_kb = _own_memory_kb()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self._peak_kb = max(self._peak_kb, _own_memory_kb())

    def stop(self) -> float:
        """Stop, and return the largest increase in MB."""
        self._stop.set()
        self._thread.join()
        return (self._peak_kb - self._first_kb) / 1024


def _own_memory_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0])


def cost(records: int, count: int, size: int) -> None:
    """Print what a selection takes."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.db"
        filling = Process(target=fill, args=(Path(folder) / "store.db", records, size))
        filling.start()  # in a process of its own, as its memory does not count
        filling.join()
        inferences = InferenceReader(
            url, Path(folder) / "journal", FileBlobs(Path(folder) / "blobs")
        )
        memory = PeakMemory()
        begun, begun_cpu = time.monotonic(), time.process_time()
        options = SelectionOptions(model="m", count=count, by=["uncertainty", "diversity", "drift"])
        selection = select(inferences, options)
        assert len(selection.images) == count
        seconds, cpu_s = time.monotonic() - begun, time.process_time() - begun_cpu
        inferences.close()
    added_mb = memory.stop()
    print(
        f"{count} of {records:,} inferences, embeddings of {size} numbers: {seconds:.1f} s, {cpu_s:.1f} s of CPU, "
        f"{added_mb:.0f} MB of memory"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["value", "cost"])
    parser.add_argument("--select", type=int, action="append", help="default: 50 and 150")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=256, help="numbers of an embedding")
    arguments = parser.parse_args()
    if "value" in arguments.parts:
        value(arguments.select or [50, 150], arguments.seeds)
    if "cost" in arguments.parts:
        for count in (500, 10_000):
            cost(arguments.records, count, arguments.size)


if __name__ == "__main__":
    main()
