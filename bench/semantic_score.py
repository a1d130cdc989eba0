"""The semantic score: what one costs, what it adds to a request, and whether it is uniform.

Parts, each of which can be asked for alone: `score` times scores against 1,000 and 10,000 references on one core;
`scenes` scores 2,000 scenes that are not in the baseline, and scenes that were changed; `requests` asks a server
with a baseline and one without, in turn, and prints the CPU of both, of all their processes.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from request_cost import Load
from scipy import stats

from quadriga.engine.models.model import Model
from quadriga.monitor.drift.similarity import MAX_REFERENCES, References, write_references
from quadriga.tasks.image import Image
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess
from tests.unseen_scenes import DRAWN

MODELS = {"shapes-classifier": "classification", "shapes-detector": "detection"}
SEED = 20260131
UNSEEN, CHANGED = 2000, 300
REPEATS = 300

Pixels = npt.NDArray[np.uint8]


def _cast(pixels: Pixels) -> Pixels:
    return np.clip(pixels * np.array([1.3, 1, 0.6]), 0, 255).astype(np.uint8)


def _noisy(pixels: Pixels) -> Pixels:
    noise = np.random.default_rng(0).normal(0, 30, pixels.shape)
    return np.clip(pixels + noise, 0, 255).astype(np.uint8)


CHANGES: dict[str, Callable[[Pixels], Pixels]] = {
    "night: a quarter of the light": lambda pixels: (pixels * 0.25).astype(np.uint8),
    "blur: sigma 1/60 of the height": lambda p: cv2.GaussianBlur(p, (0, 0), p.shape[0] / 60),
    "colour cast: red x 1.3, blue x 0.6": _cast,
    "noise: 30 grey levels": _noisy,
}


def model_of(name: str) -> Model:
    """Load a sample model."""
    return Model(name, "1", SAMPLE_MODELS / name / "model.onnx")


def baseline(folder: Path, model: Model, embeddings: npt.NDArray[np.floating]) -> Path:
    """Write references to the location that a server reads."""
    path = folder / "baselines" / model.name / "default.similarity"
    path.parent.mkdir(parents=True)
    write_references(path, embeddings, np.arange(len(embeddings)), model.embedding_space or "")
    return path


def score() -> None:
    """Time scores on one core, in its own seconds."""
    rng = np.random.default_rng(SEED)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    print(f"{'references':>12}{'numbers':>9}{'median ms':>11}{'90 % below':>12}{'to write s':>12}")
    for count, size in ((1000, 512), (10_000, 128), (10_000, 512)):
        embeddings = np.maximum(rng.normal(size=(count, size)), 0)
        with tempfile.TemporaryDirectory() as folder:
            begun = time.thread_time()
            write_references(Path(folder) / "s", embeddings, np.arange(count), "")
            write_s = time.thread_time() - begun
            references = References.read(Path(folder) / "s")
        times = []
        for new in np.maximum(rng.normal(size=(REPEATS, size)), 0).astype(np.float32):
            begun = time.thread_time()
            references.score(new)
            times.append((time.thread_time() - begun) * 1000)
        usual, most = np.quantile(times, [0.5, 0.9])
        print(f"{count:12,}{size:9}{usual:11.2f}{most:12.2f}{write_s:12.1f}")
    os.sched_setaffinity(0, cores)


def scenes(name: str, count: int) -> None:
    """Score scenes that resemble the baseline, and scenes that do not."""
    model = model_of(name)
    drawn = (scene for scene, _ in DRAWN[name](SEED))

    def embedded(pixels: Pixels) -> npt.NDArray[np.float32]:
        vector = model.embed(Image(pixels))
        assert vector is not None
        return vector

    embeddings = np.stack([embedded(scene) for scene in islice(drawn, count)])
    with tempfile.TemporaryDirectory() as folder:
        references = References.read(baseline(Path(folder), model, embeddings))
    unseen = list(islice(drawn, CHANGED))
    scores = [references.score(embedded(scene)) for scene in unseen]
    scores += [references.score(embedded(scene)) for scene in islice(drawn, UNSEEN - CHANGED)]
    fit = stats.kstest(scores, "uniform")
    print(f"{name}: {count:,} references, {UNSEEN:,} unseen scenes: KS p {fit.pvalue:.3f}")
    print(f"{'':38}{'<= 0.01':>10}{'<= 0.05':>10}")
    print(_rates("nothing changed", scores))
    for change, make in CHANGES.items():
        print(_rates(change, [references.score(embedded(make(scene))) for scene in unseen]))


def _rates(name: str, scores: list[float]) -> str:
    at_most = [100 * float(np.mean(np.array(scores) <= level)) for level in (0.01, 0.05)]
    return f"  {name:36}{at_most[0]:8.1f} %{at_most[1]:8.1f} %"


def requests(name: str, count: int, rounds: int) -> None:
    """Send requests to a server with a baseline and to one without, in turn."""
    model = model_of(name)
    images = [path.read_bytes() for path in sorted((IMAGES / MODELS[name]).glob("*.jpg"))]
    size = len(model.embed(Image(np.zeros((64, 64, 3), np.uint8))))
    embeddings = np.maximum(np.random.default_rng(SEED).normal(size=(MAX_REFERENCES, size)), 0)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        baseline(root / "with", model, embeddings)
        with (
            ServerProcess(root / "without", SAMPLE_MODELS / name) as without,
            ServerProcess(root / "with", SAMPLE_MODELS / name) as scoring,
        ):
            loads = [Load(server, images, 2, name) for server in (without, scoring)]
            rows = [[load(count)[0] for load in loads] for _ in range(rounds + 1)][1:]
            _, headers, _ = scoring.request("POST", f"/v2/models/{name}/infer", loads[0].bodies[0])
            assert "quadriga-semantic-score" in headers
    plain, scored = (statistics.median(column) for column in zip(*rows, strict=True))
    ratio = statistics.median(b / a for a, b in rows)
    print(
        f"{name}: CPU ms a request {plain:.2f} without, {scored:.2f} with {MAX_REFERENCES:,} x {size}"
    )
    print(
        f"  ratio {ratio:.3f}, {min(b / a for a, b in rows):.3f}..{max(b / a for a, b in rows):.3f}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["score", "scenes", "requests"])
    parser.add_argument("--model", dest="models", action="append", choices=MODELS, help="or both")
    parser.add_argument("--references", type=int, default=4000, help="scenes of the baseline")
    parser.add_argument("--requests", type=int, default=300, help="per round")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if "score" in arguments.parts:
        score()
    for name in arguments.models or MODELS:
        if "scenes" in arguments.parts:
            scenes(name, arguments.references)
        if "requests" in arguments.parts:
            requests(name, arguments.requests, arguments.rounds)


if __name__ == "__main__":
    main()
