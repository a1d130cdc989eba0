"""`quadriga evaluate` over datasets, through servers: the figures of the sample models come out again."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sample_models.training.measure_images import read_labels, read_samples
from sample_models.training.measurement import measure_classifier
from sample_models.training.text_generation import measure_answers
from tests.pages import blocks
from tests.server_process import IMAGES, ROOT, SAMPLE_MODELS, ServerProcess, quadriga
from tests.unseen_scenes import figures, write_unseen

ALL = '{"score_threshold": 0.001}'
"""What average precision ranks."""

LAST_DIGIT = 1.5e-4
"""The figures were measured by code of their own: it suppresses overlaps in pixels of the image, by the polygons of
oriented boxes, where the server does as the family's own program, in the network's pixels and by probIoU."""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "quadriga.engine.cli", "evaluate", *map(str, arguments)]


def evaluate(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    return quadriga("evaluate", *arguments, code=code, timeout_s=250)


def report_of(*arguments: object) -> dict:
    return json.loads(evaluate(*arguments, "--json", "--resamples", 0).stdout)


def value(report: dict, kind: str, **parameters: object) -> float:
    (matching,) = [
        metric["value"]
        for metric in report["metrics"]
        if metric["type"] == kind and parameters.items() <= metric["parameters"].items()
    ]
    return matching


def average_precision(report: dict, iou: object, label: str | None = None) -> float:
    return value(report, "AP", rule="COCO", iou=iou, area="all", max_dets=100, label=label)


@pytest.fixture
def unseen(tmp_path):
    def write(model: str, count: int | None = None) -> Path:
        write_unseen(model, tmp_path / model, count)
        return tmp_path / model

    return write


def test_the_detectors_figures_come_out_again(server, unseen) -> None:
    folder, measured = unseen("shapes-detector"), figures("shapes-detector")
    options = ("--model", "shapes-detector", "--dataset", folder, "--server", server.host)
    report = report_of(*options, "--parameters", ALL)
    assert report["data"]["current"]["n"] == measured["samples"]
    assert round(average_precision(report, 0.5), 4) == measured["map50"]
    assert round(average_precision(report, 0.75), 4) == measured["map75"]
    assert round(average_precision(report, "0.50:0.95"), 4) == measured["map50_95"]
    for label, expected in measured["ap50_per_class"].items():
        assert average_precision(report, 0.5, label) == pytest.approx(expected, abs=LAST_DIGIT)


def test_the_oriented_detectors_figures_come_out_again(server, unseen) -> None:
    model = "ships-oriented-detector"
    folder, measured = unseen(model), figures(model)
    options = ("--model", model, "--dataset", folder, "--server", server.host)
    report = report_of(*options, "--parameters", ALL)
    assert round(average_precision(report, 0.5), 4) == measured["map50"]
    assert round(average_precision(report, 0.75), 4) == measured["map75"]
    for label, expected in measured["ap50_per_class"].items():
        assert average_precision(report, 0.5, label) == pytest.approx(expected, abs=LAST_DIGIT)
    # As with LAST_DIGIT; at high thresholds of overlap a little more.
    assert average_precision(report, "0.50:0.95") == pytest.approx(measured["map50_95"], abs=5e-4)


def test_the_segmenters_figures_come_out_again(server, unseen) -> None:
    model = "shapes-segmenter"
    folder, measured = unseen(model), figures(model)
    report = report_of("--model", model, "--dataset", folder, "--server", server.host)
    assert round(value(report, "mIOU", background=True), 4) == measured["miou"]
    assert round(value(report, "PixelAccuracy"), 4) == measured["pixel_accuracy"]
    for label, expected in measured["iou_per_class"].items():
        if label != "background":
            assert round(value(report, "IOU", label=label), 4) == expected


def test_the_classifier_is_as_good_as_measured_without_a_server(server, unseen) -> None:
    model = "shapes-classifier"
    folder, labels = unseen(model, 200), read_labels(SAMPLE_MODELS / model)
    samples = (
        (image, labels.index(rows[0]["class_label"])) for image, rows in read_samples(folder)
    )
    measured = measure_classifier(SAMPLE_MODELS / model / "model.onnx", samples, labels)
    options = ("--model", model, "--dataset", folder, "--server", server.host, "--top-k", 1)
    report = report_of(*options)
    assert value(report, "Accuracy") == measured["accuracy"] == value(report, "TopKAccuracy", k=1)
    for label, expected in measured["accuracy_per_class"].items():
        assert round(value(report, "Recall", label=label), 4) == expected


def test_answers_are_as_good_as_measured_without_a_server(server, unseen) -> None:
    model = "shapes-image-text"
    folder = unseen(model, 60)
    questions = [
        (image, {row["context"]: row["generated_text"] for row in rows})
        for image, rows in read_samples(folder)
    ]
    wordings = {prompt: (prompt,) for _, answers in questions for prompt in answers}
    measured = measure_answers(SAMPLE_MODELS / model, questions, wordings)["exact_match"]
    prompts = [prompt for _, answers in questions for prompt in answers]
    report = report_of("--model", model, "--dataset", folder, "--server", server.host)
    expected = sum(measured[prompt] for prompt in prompts) / len(prompts)
    assert value(report, "ExactMatch") == pytest.approx(expected, abs=1e-4)


def test_a_run_that_was_ended_goes_on(server, unseen) -> None:
    folder, filter_ = unseen("shapes-detector", 200), {"meta.dataset_snapshot_id": "ended"}
    options = ("--model", "shapes-detector", "--dataset", folder, "--server", server.host)
    options += ("--snapshot", "ended", "--threads", 1)
    is_deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as children of a shell's jobs are
    first_signal = signal.SIGTERM if is_deaf else signal.SIGINT
    for ending, stored in ((signal.SIGKILL, 10), (first_signal, 20)):
        running = subprocess.Popen(command(*options), cwd=ROOT, stderr=subprocess.DEVNULL)
        server.wait_until(lambda least=stored: len(server.query(filter_)) >= least)
        running.send_signal(ending)
        assert running.wait(60) != 0
    count_before = len(server.query(filter_))
    assert 20 <= count_before < 200
    done = evaluate(*options, "--json")
    assert f"{200 - count_before} images sent, {count_before} stored before" in done.stderr
    records = server.query(filter_)
    assert sorted(record["metadata"]["dataset_path"] for record in records) == [
        f"{at:04d}.png" for at in range(200)
    ]
    assert all(record["ground_truth"] for record in records)
    assert json.loads(done.stdout)["data"]["current"]["n"] == 200
    assert "0 images sent, 200 stored before" in evaluate(*options, "--json").stderr


def test_a_folder_for_each_label_with_an_image_that_is_none(server, tmp_path) -> None:
    for line in (IMAGES / "classification" / "annotations.jsonl").read_text().splitlines():
        row = json.loads(line)
        for split in ("train", "val"):
            folder = tmp_path / "set" / split / row["annotations"][0]["class_label"]
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(IMAGES / "classification" / row["path"], folder)
    (tmp_path / "set" / "val" / "circle" / "bad.png").write_text("no image")
    model = "shapes-classifier"
    options = ("--model", model, "--dataset", tmp_path / "set", "--server", server.host)
    done = evaluate(*options, "--split", "val", "--compare", f"{model}@1", "--output", tmp_path / "a.html")  # fmt: skip
    assert "12 images sent, 1 failed" in done.stderr
    assert "val/circle/bad.png: " in done.stderr
    assert "12 images in common with shapes-classifier" in done.stdout
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    records = server.query({"meta.dataset_path": {"contains": "val/"}})
    assert {record["metadata"]["dataset_snapshot_split"] for record in records} == {"val"}
    assert "expected one of the splits train, val, got x" in evaluate(*options, "--split", "x", code=2).stderr  # fmt: skip


def test_the_command_of_the_page_is_answered(server, tmp_path) -> None:
    (block,) = (
        text
        for _, text in blocks("docs/evaluation.md")
        if text.startswith("quadriga evaluate --model sample_models")
    )
    words = shlex.split(block.replace("\\\n", " "))[2:]
    words[words.index("--model") + 1] = "shapes-detector"  # which this server has
    words[words.index("--output") + 1] = str(tmp_path / "report.html")
    done = evaluate(*words, "--server", server.host, "--resamples", 0)
    assert "24 images" in done.stdout
    assert "meta.weather" in (tmp_path / "report.html").read_text()


def test_a_model_folder_is_served_for_as_long(tmp_path) -> None:
    options = ("--model", SAMPLE_MODELS / "shapes-classifier", "--data", tmp_path / "data")
    options += ("--dataset", IMAGES / "classification", "--by", "meta.weather")
    done = evaluate(*options)
    assert "12 images sent" in done.stderr
    assert "meta.weather" in done.stdout
    again = evaluate(*options, "--split", "test", "--json")  # the dataset itself names none
    assert "0 images sent, 12 stored before" in again.stderr
    report = json.loads(again.stdout)
    assert (report["model"]["name"], value(report, "Accuracy")) == ("shapes-classifier", 1.0)
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS / "shapes-classifier") as server:
        assert len(server.query({})) == 12
    shutil.copytree(SAMPLE_MODELS / "shapes-classifier", tmp_path / "gauge" / "2")
    options = ("--dataset", IMAGES / "classification", "--resamples", 0)
    assert "gauge 2" in evaluate("--model", tmp_path / "gauge" / "2", *options).stdout
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.onnx").touch()
    broken = ("--model", tmp_path / "none", "--dataset", IMAGES / "classification")
    assert (
        "quadriga: expected none to be loaded, got UNAVAILABLE" in evaluate(*broken, code=2).stderr
    )


def test_a_model_that_is_not_there_is_said(server) -> None:
    options = ("--dataset", IMAGES / "classification", "--server", server.host)
    assert "404" in evaluate("--model", "none", *options, code=2).stderr
    options = ("--model", "shapes-classifier", "--server", server.host)
    message = evaluate(*options, "--dataset", SAMPLE_MODELS / "shapes-classifier", code=2).stderr
    assert "no dataset found in shapes-classifier" in message
    count_before = len(server.query({}))
    options = ("--model", "shapes-detector", "--server", server.host)
    message = evaluate(*options, "--dataset", IMAGES / "classification", code=2).stderr
    assert "scene_01.jpg': ground_truth[0]: expected a field `xmin`" in message
    options = ("--dataset", IMAGES / "classification", "--server", server.host, "--iou", 0.5)
    message = evaluate("--model", "shapes-classifier", *options, code=2).stderr
    assert "iou is no setting of IMAGE_CLASSIFICATION" in message
    assert len(server.query({})) == count_before
