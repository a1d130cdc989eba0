"""The demo of `make demo`: real images to trained models over the wire, stored, and found again.

It knows the server's address and nothing of its inside, save for the drawing of the pictures at the end.
"""

import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from quadriga.client import Client, ClientError
from quadriga.client.transport.calls import json_call
from quadriga.engine.commands.monitoring.datasets import NotServed, own_server, resolve_model
from quadriga.engine.commands.options import DEFAULT_SERVER
from quadriga.engine.serving.tensors.drawing import draw
from quadriga.tasks.image import decode
from quadriga.tasks.predictions import Answer as SpokenAnswer
from quadriga.tasks.predictions import Classification, Detection, OrientedDetection, Segment

HERE = Path(__file__).parent
OUTPUT = Path("demo-output")
MODELS = {
    "classification": "shapes-classifier",
    "detection": "shapes-detector",
    "oriented": "ships-oriented-detector",
    "segmentation": "shapes-segmenter",
    "image-text": "shapes-image-text",
}
KINDS: dict[str, Any] = {
    "classification": Classification,
    "detection": Detection,
    "oriented": OrientedDetection,
    "segmentation": Segment,
    "image-text": SpokenAnswer,
}
PARAMETERS: dict[str, dict[str, Any]] = {"segmentation": {"min_area": 100, "simplify": True}}
"""Parameters of a request besides the image."""
CLIENTS = 4
SHOWN = 4

QUERIES: list[tuple[str, dict[str, Any]]] = [
    ("from camera north", {"meta.camera_id": "north"}),
    ("higher than 100 m, in building A or B, not in fog", {"and": [
        {"meta.altitude": {"gt": 100}},
        {"meta.location.building": {"in": ["A", "B"]}},
        {"not": {"meta.weather": "fog"}},
    ]}),
    ("a circle above 0.8 in the last hour, floor 2 or higher, from north or below 150 m", {"and": [
        {"model": "shapes-detector"},
        {"label": {"name": "circle", "score": {"ge": 0.8}}},
        {"ts": {"ge": "-1h"}},
        {"meta.location.floor": {"ge": 2}},
        {"or": [{"meta.camera_id": "north"}, {"meta.altitude": {"lt": 150}}]},
    ]}),
]  # fmt: skip


class Sample(NamedTuple):
    """One image with what is known of it."""

    task: str
    path: Path
    metadata: dict[str, Any]
    truth: list[dict[str, Any]]


class Answer(NamedTuple):
    """Response of the server to one sample."""

    sample: Sample
    predictions: list[dict[str, Any]]
    inference_id: str
    milliseconds: float


def infer(client: Client, sample: Sample) -> Answer:
    """Send one image with its metadata."""
    parameters: dict[str, Any] = {**PARAMETERS.get(sample.task, {})}
    if sample.task == "image-text":
        parameters["prompts"] = [annotation["context"] for annotation in sample.truth]
    image, model = sample.path.read_bytes(), MODELS[sample.task]
    started = time.perf_counter()
    result = client.infer(
        model, image, sample.metadata, parameters=parameters, input_name=sample.path.name
    )
    elapsed_ms = (time.perf_counter() - started) * 1000
    return Answer(sample, [*map(dict, result.predictions)], str(result.id), elapsed_ms)


def read_samples(task: str) -> list[Sample]:
    """Read the images of one task with their metadata and ground truth."""
    folder = HERE / "images" / task
    rows = {}
    for name, key in (("metadata.jsonl", "metadata"), ("annotations.jsonl", "annotations")):
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        rows[key] = {row["path"]: row[key] for row in map(json.loads, lines)}
    return [
        Sample(task, folder / path, rows["metadata"][path], truth)
        for path, truth in rows["annotations"].items()
    ]


@contextmanager
def server(console: Console, data: Path) -> Iterator[Client]:
    """Run `quadriga serve` on a free port for as long as the block lasts."""
    try:
        with (
            (OUTPUT / "server.log").open("w+b") as log,
            own_server(HERE, data, log) as (url, process),
        ):
            client = Client(url)
            with console.status("Loading the models"):
                for name in MODELS.values():
                    resolve_model(client, name, None)
            yield client
    except (NotServed, ClientError) as error:
        raise SystemExit(f"{error}; see {log.name}") from error
    if process.returncode != 0:
        code = process.returncode
        raise SystemExit(f"expected the server to stop cleanly, got status {code}; see {log.name}")


def print_predictions(console: Console, answers: list[Answer]) -> None:
    """Print what the models said, beside the truth."""
    for task, model in MODELS.items():
        mine = [answer for answer in answers if answer.sample.task == task]
        title = f"{model}, {len(mine)} images"
        table = Table("image", "metadata sent", "predicted", "truth", title=title)
        for answer in mine[:SHOWN]:
            metadata = answer.sample.metadata
            place = metadata["location"]
            table.add_row(
                answer.sample.path.name,
                f"{metadata['camera_id']}, {metadata['altitude']} m, "
                f"{place['building']}{place['floor']}, {metadata['weather']}",
                ", ".join(map(in_words, answer.predictions)),
                ", ".join(truth_of(answer.sample)),
            )
        console.print(table)
        truths = [truth_of(answer.sample) for answer in mine]
        if task == "image-text":
            answer_texts = [
                prediction["answer"] for answer in mine for prediction in answer.predictions
            ]
            right, total = (
                sum(map(eq, answer_texts, chain.from_iterable(truths))),
                len(answer_texts),
            )
            console.print(f"{right} of {total} answers word for word as the truth\n")
        else:
            labels = [
                sorted(prediction["label"] for prediction in answer.predictions) for answer in mine
            ]
            right = sum(map(eq, labels, truths))
            console.print(f"{right} of {len(mine)} images with exactly the labels of the truth\n")


def in_words(prediction: dict[str, Any]) -> str:
    """Return a prediction as a short text."""
    if "answer" in prediction:
        return str(prediction["answer"])
    return f"{prediction['label']} {prediction['score']:.2f}"


def truth_of(sample: Sample) -> list[str]:
    """Return the labels of an image, or the answers to its questions."""
    if sample.task == "image-text":
        return [annotation["generated_text"] for annotation in sample.truth]
    return sorted(annotation["class_label"] for annotation in sample.truth)


def run_queries(console: Console, client: Client) -> None:
    """Find what was stored again, by filters of growing difficulty."""
    started = time.perf_counter()
    body: dict[str, Any] = {"limit": 1, "count": "exact", "consistency": "journal"}
    page = client.send(json_call("POST", "/api/inferences/query", body=body))
    elapsed_ms = (time.perf_counter() - started) * 1000
    console.print(f"{page['count']} inferences stored, {elapsed_ms:.0f} ms after the last answer\n")
    for title, filter_text in QUERIES:
        body = {"where": filter_text, "limit": 3, "count": "exact"}
        started = time.perf_counter()
        page = client.send(json_call("POST", "/api/inferences/query", body=body))
        elapsed_ms = (time.perf_counter() - started) * 1000
        if not page["inferences"]:
            raise SystemExit(f"expected matches of {filter_text}, got {page}")
        console.print(f"[bold]{title}[/bold]: {page['count']} inferences in {elapsed_ms:.1f} ms")
        console.print(f"  {json.dumps(filter_text)}", style="dim", soft_wrap=True)
        for record in page["inferences"]:
            labels = ", ".join(in_words(prediction) for prediction in record["predictions"][:4])
            line = f"  {record['id']}  {record['input']['name']:14}  {labels}"
            console.print(line, soft_wrap=True, highlight=False)
        console.print()


def draw_pictures(answers: list[Answer]) -> list[Path]:
    """Write one annotated picture a task: the image with the most predictions."""
    paths = []
    for task in MODELS:
        mine = [answer for answer in answers if answer.sample.task == task]
        best = max(mine, key=lambda answer: len(answer.predictions))
        image = decode(best.sample.path.read_bytes())
        predictions = msgspec.convert(best.predictions, list[KINDS[task]])  # type: ignore[misc]  # chosen at run time
        labels = sorted({label for answer in mine for label in truth_of(answer.sample)})
        picture = draw(image, predictions, labels)
        paths.append(OUTPUT / f"{task}.png")
        cv2.imwrite(str(paths[-1]), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    return paths


def main() -> None:
    """Run the demo."""
    console = Console()
    started = time.perf_counter()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir()
    data = OUTPUT / "data"
    samples = [sample for task in MODELS for sample in read_samples(task)]
    with server(console, data) as client:
        console.print(f"Serving {', '.join(MODELS.values())} on {client.url}\n")
        begun = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            sent = pool.map(partial(infer, client), samples)
            answers = list(
                track(sent, "Sending images", total=len(samples), console=console, transient=True)
            )
        elapsed_s = time.perf_counter() - begun
        print_predictions(console, answers)
        run_queries(console, client)
        middle = statistics.median(answer.milliseconds for answer in answers)
        console.print(
            f"{len(answers)} images in {elapsed_s:.2f} s from {CLIENTS} clients: "
            f"{len(answers) / elapsed_s:.0f} images a second, median {middle:.1f} ms an image"
        )
        for path in draw_pictures(answers):
            console.print(f"Picture: {path}")
    python = Path(sys.executable)
    command = python.parent / "quadriga"
    shown = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    console.print(f"\nDone in {time.perf_counter() - started:.1f} s. Try next:\n")
    for line in (
        f"{shown} serve sample_models --data {data}    # then look at it: {DEFAULT_SERVER}/console/",
        f'{shown} query \'{{"label": "circle", "meta.altitude": {{"ge": 100}}}}\' --data {data}',
        f"{shown} inspect sample_models/shapes-detector",
        "make serve        # and the curl of README.md from another terminal",
        "docs/first-hour.md    # your own ONNX file, from serving it to a report of drift",
    ):
        console.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
