"""One image, five models, five kinds of ground truth: each model is evaluated against its own."""

import json
from collections.abc import Iterator
from contextlib import closing
from itertools import permutations
from typing import Any

import msgspec
import pytest

from quadriga.monitor.evaluation.parameters import EvaluationParameters
from quadriga.monitor.evaluation.stored import evaluate_stored
from quadriga.monitor.report.schema import Report
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.query.inferences import InferenceReader
from tests.server_process import IMAGES, ServerProcess, quadriga

MODELS = {
    "classification": "shapes-classifier",
    "detection": "shapes-detector",
    "oriented": "ships-oriented-detector",
    "segmentation": "shapes-segmenter",
    "image-text": "shapes-image-text",
}
QUESTION = "How many shapes are there?"
HEADLINES = {
    "classification": "Accuracy",
    "detection": "AP",
    "oriented": "AP",
    "segmentation": "AP",
    "image-text": "ExactMatch",
}
ORDERS = [*permutations(MODELS)][::23]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("tasks") / "data").start()
    yield running
    assert running.stop() == 0


@pytest.fixture
def reader(server: ServerProcess) -> Iterator[InferenceReader]:
    url = f"sqlite:///{server.data}/store.db"
    blobs = FileBlobs(server.data / "blobs")
    with closing(InferenceReader(url, server.data / "journal", blobs)) as reader:
        yield reader


def evaluate(reader: InferenceReader, task: str, note: str) -> Report:
    parameters = {"model": MODELS[task], "where": {"meta.note": note}, "resamples": 0}
    return evaluate_stored(reader, msgspec.convert(parameters, EvaluationParameters))


def headline(report: Report, task: str) -> float | None:
    return next(metric.value for metric in report.metrics if metric.type == HEADLINES[task])


def state(server: ServerProcess, lines: list[dict[str, Any]], **expected: int) -> None:
    status, _, body = server.request(
        "POST", "/api/ground-truth", "\n".join(map(json.dumps, lines)).encode()
    )
    result = json.loads(body)
    assert status == 200, result
    assert result["refused"] == []
    assert {name: result[name] for name in expected} == expected


def send(server: ServerProcess, task: str, image: bytes, **metadata: Any) -> dict[str, Any]:
    """Send an image to the model of a task; return what is stored of it."""
    prompts = {"prompts": [QUESTION]} if task == "image-text" else {}
    inference_id = server.store(MODELS[task], image, metadata=metadata, **prompts)
    (record,) = server.query({"id": inference_id})
    return record


def as_truth(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the predictions of a model as if they were true; of a classifier's the best."""
    predictions = sorted(record["predictions"], key=lambda item: -item.get("score", 0))
    if record["task"] == "IMAGE_CLASSIFICATION":
        predictions = predictions[:1]
    return [{key: item[key] for key in item if key != "score"} for item in predictions]


@pytest.mark.parametrize("key", ["data_hash", "path"])
def test_one_image_is_right_for_five_models_in_any_order(
    server: ServerProcess, reader: InferenceReader, key: str
) -> None:
    image = (IMAGES / "detection" / "scene_01.jpg").read_bytes()
    note = f"one image by {key}"
    records = {task: send(server, task, image, note=note, path=note) for task in MODELS}
    value = {"data_hash": records["detection"]["input"]["hash"], "path": note}[key]
    truths = {task: as_truth(record) for task, record in records.items()}
    # The oriented detector finds no ship among the shapes.
    truths["oriented"] = truths["oriented"] or [
        {"label": "ship", "cx": 0.5, "cy": 0.5, "w": 0.1, "h": 0.1, "r": 0}
    ]
    is_found = bool(as_truth(records["oriented"]))
    for order in ORDERS:
        for task in order:
            state(server, [{key: value, "annotations": truths[task]}], stated=1)
        for task in MODELS:
            report = evaluate(reader, task, note)
            expected = 1 if task != "oriented" or is_found else 0
            assert headline(report, task) == pytest.approx(expected), task
            empty = ["no image has any prediction"] if expected == 0 else []
            assert (report.data.current.n, report.warnings) == (1, empty)
            assert not report.data.excluded.keys() & {"no_truth", "truth_of_other_task"}


def test_five_files_with_the_same_paths_are_five_truths(
    server: ServerProcess, reader: InferenceReader
) -> None:
    lines: dict[str, list[dict[str, Any]]] = {}
    ids: dict[str, list[str]] = {}
    for task in MODELS:
        folder = IMAGES / task
        text = (folder / "annotations.jsonl").read_text().splitlines()[:6]
        lines[task] = [json.loads(line) for line in text]
        for line in lines[task]:
            image = (folder / line["path"]).read_bytes()
            record = send(server, task, image, note="files", path=line["path"])
            ids.setdefault(task, []).append(record["id"])
    expected = {}
    for task in MODELS:
        by_id = [
            {"inference_id": id_, "annotations": line["annotations"]}
            for id_, line in zip(ids[task], lines[task], strict=True)
        ]
        state(server, by_id, stated=len(by_id), matched=len(by_id))
        expected[task] = evaluate(reader, task, "files").metrics
        state(server, [{**line, "annotations": None} for line in by_id], matched=0)
        assert evaluate(reader, task, "files").data.excluded["no_truth"] == len(by_id)
    for order in ORDERS[:3]:
        for task in order:
            state(server, lines[task], stated=len(lines[task]))
        for task in MODELS:
            report = evaluate(reader, task, "files")
            assert report.metrics == expected[task], (task, order)
            assert report.data.current.n == len(lines[task])


def test_truth_of_another_task_is_said_first(server: ServerProcess) -> None:
    image = (IMAGES / "detection" / "scene_02.jpg").read_bytes()
    for number in range(3):
        send(server, "detection", image, note="other", path=f"other/{number}")
    contour = [[{"x": 1, "y": 1}, {"x": 9, "y": 1}, {"x": 9, "y": 9}]]
    contours = [{"label": "star", "contour": contour}]
    state(
        server,
        [{"path": f"other/{number}", "annotations": contours} for number in range(2)],
        stated=2,
        matched=0,
    )
    arguments = ("evaluate", "--model", "shapes-detector", "--where", "meta.note=other")
    output = quadriga(*arguments, "--data", server.data).stdout
    text = (
        "2 of 3 images have only ground truth of another task (IMAGE_SEGMENTATION): not evaluated"
    )
    assert " ".join(output.split()).startswith(text)
    page = server.data.parent / "other.html"
    command = quadriga(*arguments, "--data", server.data, "--json", "--output", page)
    report = json.loads(command.stdout)
    advice = (
        "no image has ground truth for this task: "
        "state it, or choose images that have it, and evaluate again"
    )
    unknown = "not evaluated: 1 images whose truth is not known"
    assert report["warnings"] == [text, advice, unknown]
    assert report["data"]["excluded"] == {"no_truth": 1, "truth_of_other_task": 2}
    assert command.stderr.startswith(f"quadriga: {text}")
    body = page.read_text().partition("</h1>")[2]
    assert body.index(text) < body.index("Insufficient")
