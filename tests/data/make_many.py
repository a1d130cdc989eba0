"""Fills a store with 200,000 inferences by the command line of any version, and compares what it answers.

    python tests/data/make_many.py fill COMMAND DATA [--database URL]
    python tests/data/make_many.py ask COMMAND DATA [--database URL] [--record]

`fill` imports inferences whose ids follow from their numbers: they are the same in every store. `ask` serves the store
by COMMAND, a `quadriga`, and exits with 1 if an answer is not the one of 0.2.0 in `0.2.0/many.answers.json`, which
`--record` writes. Both print the seconds that each step took. This script needs httpx.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import isclose
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
ANSWERS = HERE / "0.2.0" / "many.answers.json"
MODEL = HERE.parents[1] / "sample_models" / "shapes-classifier"
RECORDS = 200_000
EPOCH_MS = 1_735_689_600_000
"""2025-01-01T00:00:00Z, which ids count milliseconds from."""

START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z: when the first inference was made. The last is made 30 days later."""

SPAN_MS = 30 * 86_400_000
LABELS = ("circle", "square", "triangle", "star", "cross", "ring", "arrow", "heart")
DAY_10, DAY_20 = "2026-01-11T00:00:00Z", "2026-01-21T00:00:00Z"
_QUERY, _AGGREGATE = "/api/inferences/query", "/api/inferences/aggregate"
REQUESTS: list[tuple[str, Any]] = [
    ("/api/inferences/count", {"where": {}}),
    (_QUERY, {"limit": 20}),
    (_QUERY, {"limit": 20, "order": "ts", "where": {"ts": {"ge": DAY_10}}}),
    (_QUERY, {"limit": 20, "where": {"label": {"name": "heart", "score": {"ge": 0.99}}}}),
    (_QUERY, {"limit": 20, "where": {"meta.camera_id": "camera-7", "meta.altitude": {"ge": 990}}}),
    (_QUERY, {"limit": 20, "where": {"geo": {"near": [50.0, 7.5], "within": "2km"}}}),
    (_QUERY, {"limit": 20, "where": {"ground_truth.label": "star", "model": "detector-2"}}),
    ("/api/inferences/count", {"where": {"meta.camera_id": {"in": ["camera-1", "camera-2"]}}}),
    (_AGGREGATE, {"group": ["model"]}),
    (_AGGREGATE, {"group": [{"time": "1w"}, "model"], "metrics": ["count", "labels"]}),
    (_AGGREGATE, {"group": ["label"], "where": {"meta.camera_id": "camera-3"}}),
]
EVALUATION = {"model": "detector-0", "where": {"ts": {"lt": DAY_10}}, "resamples": 20}
DRIFT = {
    "model": "detector-1", "from": DAY_20, "to": "2026-01-31T00:00:00Z", "signals": ["score", "predictions"],
    "baseline": {"from": DAY_10, "to": DAY_20},
}  # fmt: skip


def records(count: int) -> Iterator[dict[str, Any]]:
    """Yield inferences of three detectors as an export has them; every fourth has ground truth."""
    chance = random.Random(1)
    for number in range(count):
        made_ms = START_MS + number * SPAN_MS // count
        predictions = [detection(chance) for _ in range(chance.randint(1, 4))]
        model = chance.randrange(3)
        yield {
            "id": str((made_ms - EPOCH_MS << 22) + number % 4096),
            "request_id": f"{chance.getrandbits(128):032x}",
            "model": {"name": f"detector-{model}", "version": "1", "sha256": f"{model:064x}"},
            "task": "OBJECT_DETECTION",
            "latency_ms": round(chance.lognormvariate(2.3, 0.4), 3),
            "input": {
                "hash": f"blake3:{chance.getrandbits(256):064x}", "width": 640, "height": 480, "mime": "image/jpeg",
            },
            "predictions": predictions,
            "metadata": {
                "camera_id": f"camera-{chance.randrange(200)}",
                "altitude": round(chance.uniform(0, 1000), 2),
                "latitude": round(chance.uniform(45, 55), 5),
                "longitude": round(chance.uniform(0, 15), 5),
            },
            "ground_truth": truth_of(predictions, chance) if number % 4 == 0 else None,
        }  # fmt: skip


def detection(chance: random.Random) -> dict[str, Any]:
    left, top = round(chance.uniform(0, 500), 2), round(chance.uniform(0, 300), 2)
    return {
        "label": chance.choice(LABELS), "score": round(chance.betavariate(4, 2), 4),
        "xmin": left, "ymin": top, "xmax": left + 100.5, "ymax": top + 60.25,
    }  # fmt: skip


def truth_of(predictions: list[dict[str, Any]], chance: random.Random) -> list[dict[str, Any]]:
    """Return what is there: most of what was detected, moved a little, and sometimes something else."""
    shift = chance.uniform(0, 12)
    return [
        {
            "label": one["label"] if chance.random() < 0.9 else chance.choice(LABELS),
            "xmin": one["xmin"] + shift, "ymin": one["ymin"], "xmax": one["xmax"] + shift, "ymax": one["ymax"],
        }
        for one in predictions
        if chance.random() < 0.9
    ]  # fmt: skip


@contextmanager
def timed(step: str) -> Iterator[None]:
    begun_s = time.perf_counter()
    yield
    print(f"{step}: {time.perf_counter() - begun_s:.1f} s", flush=True)


def fill(command: str, store: list[str], count: int) -> None:
    """Import the inferences into a store."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        with path.open("w") as lines:
            lines.writelines(f"{json.dumps(record)}\n" for record in records(count))
        with timed(f"import of {count} inferences"):
            subprocess.run([command, "import", str(path), *store], check=True)


def answers_of(client: httpx.Client) -> Iterator[tuple[str, Any]]:
    """Ask a server, and yield each question with its answer."""
    for path, body in REQUESTS:
        question = f"{path} {json.dumps(body)}"
        with timed(question):
            answer = client.post(path, json=body).raise_for_status().json()
        if "inferences" in answer:
            answer = [one["id"] for one in answer["inferences"]]
        yield question, answer
    for path, body, part in (
        ("/api/evaluations", EVALUATION, "metrics"),
        ("/api/drift", DRIFT, "signals"),
    ):
        question = f"{path} {json.dumps(body)}"
        with timed(question):
            job = client.post(path, json=body).raise_for_status().json()
            while not job["ended_at"]:
                time.sleep(0.2)
                job = client.get(f"/api/jobs/{job['id']}").json()
        assert job["state"] == "succeeded", job
        report = client.get(f"/api/reports/{job['id']}").json()
        names = ("type", "name", "value", "parameters", "n", "effect", "status")
        yield question, [{name: row[name] for name in names if name in row} for row in report[part]]


@contextmanager
def served(command: str, store: list[str]) -> Iterator[httpx.Client]:
    """Serve a store by a process that is ended; some model has to be served beside it."""
    arguments = ["serve", str(MODEL), *store, "--port", "0", "--grpc-port", "-1"]
    process = subprocess.Popen([command, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with httpx.Client(base_url=url, timeout=600) as client:
            with timed("until the store answers"):
                while client.post(_QUERY, json={"limit": 1}).status_code != 200:
                    time.sleep(0.1)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def is_alike(first: Any, second: Any) -> bool:
    """Tell whether two JSON values are the same, but for the rounding of another processor."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            is_alike(first[key], second[key]) for key in first
        )
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_alike, first, second))
    if isinstance(first, float) and isinstance(second, float):
        return isclose(first, second, rel_tol=1e-6, abs_tol=1e-9)
    return bool(first == second)


def main() -> int:
    """Fill a store, or ask it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("verb", choices=("fill", "ask"))
    parser.add_argument("command", help="the quadriga of some version")
    parser.add_argument("data", help="data folder of the store")
    parser.add_argument("--database", help="URL of its PostgreSQL; SQLite by default")
    parser.add_argument("--record", action="store_true", help="write the answers")
    options = parser.parse_args()
    command = shutil.which(options.command) or options.command
    store = [
        "--data",
        options.data,
        *(["--database", options.database] if options.database else []),
    ]
    if options.verb == "fill":
        fill(command, store, RECORDS)
        return 0
    with served(command, store) as client:
        answers = dict(answers_of(client))
    if options.record:
        lines = (
            f"{json.dumps(question)}: {json.dumps(answer)}" for question, answer in answers.items()
        )
        ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    recorded = json.loads(ANSWERS.read_text())
    different = [
        question for question in recorded if not is_alike(recorded[question], answers[question])
    ]
    for question in different:
        print(f"answered otherwise than by 0.2.0: {question}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
