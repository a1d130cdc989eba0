"""`quadriga evaluate`, where it needs no server."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import ray
from click.testing import CliRunner

from quadriga.engine.cli import main
from quadriga.engine.commands.monitoring.datasets import _with_all_scores
from quadriga.engine.commands.monitoring.evaluate import _to_parameters, evaluate_command
from quadriga.monitor.evaluation.metric_settings import (
    Bins,
    IouThresholds,
    MetricSettings,
    ScoreThresholds,
    TopK,
)
from quadriga.monitor.evaluation.ray_executor import RayCluster
from quadriga.monitor.report.saved import ReportStore
from quadriga.store.jobs.jobs import Jobs

BOX = {"label": "ship", "xmin": 0, "ymin": 0, "xmax": 10, "ymax": 10}
PAGE = Path(__file__).parents[3] / "docs" / "evaluation-reference.md"


def record(name, **fields):
    predictions = [BOX | {"score": 0.5}]
    return {"id": name, "width": 20, "height": 20, "predictions": predictions, "ground_truth": [BOX]} | fields  # fmt: skip


def run(*arguments, stdin=None, code=0):
    result = CliRunner().invoke(
        main, ["evaluate", *map(str, arguments)], input=stdin, env={"COLUMNS": "200"}
    )
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(record(at, metadata={"a": at % 2})) for at in range(4)))
    return path


def test_records_are_shown_as_a_table(records) -> None:
    output = run("--task", "detection", "--records", records, "--by", "meta.a").stdout
    assert re.search(r"AP, IoU 0.5 +│ 1.000 │ +— │", output)
    assert re.search(r"No interval of AP; AP, IoU 0.5;.*: fewer than 40 objects\.", output)
    assert "4 images" in output
    assert re.search(r"1 +│ +2 │ 1.000", output)


def test_json_is_all_that_is_printed(records) -> None:
    report = json.loads(run("--task", "detection", "--records", records, "--json").stdout)
    assert (report["schema"], report["data"]["current"]["n"]) == ("report/1", 4)
    options = ("--task", "detection", "--records", "-", "--json", "--resamples", 0)
    piped = json.loads(run(*options, stdin=records.read_text()).stdout)
    assert piped["metrics"][0]["value"] == report["metrics"][0]["value"]
    assert piped["metrics"][0]["ci95"] is None


def test_times_are_ordered_and_cut_rows_are_counted(tmp_path) -> None:
    lines = [record(at, created_at=f"2026-01-01T{23 - at % 24:02d}:00:00Z", metadata={"a": at}) for at in range(30)]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ("--task", "detection", "--records", tmp_path / "a.jsonl", "--resamples", 0)
    output = run(*options, "--by", "hour", "--by", "meta.a").stdout
    assert re.findall(r"^│ (\d\d) │", output, re.MULTILINE)[:24] == [
        f"{hour:02d}" for hour in range(24)
    ]
    assert "meta.a: 24 of 30 values" in output


def test_an_empty_file_is_insufficient(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    output = run("--task", "detection", "--records", tmp_path / "a.jsonl").stdout
    assert output.startswith("no image has ground truth for this task: state it")
    assert output.strip().endswith("0 images, too few to draw conclusions")


def test_reports_are_written(records, tmp_path, photo_png) -> None:
    (tmp_path / "images" / "deep").mkdir(parents=True)
    (tmp_path / "images" / "deep" / "9.png").write_bytes(photo_png)
    with records.open("a") as file:
        file.write("\n" + json.dumps(record(9, predictions=[])))
    options = ("--task", "detection", "--records", records, "--images", tmp_path / "images")
    assert "r.json" in run(*options, "--output", tmp_path / "r.json").stdout
    assert json.loads((tmp_path / "r.json").read_text())["kind"] == "evaluation"
    run(*options, "--output", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "<dt>Files</dt><dd>a.jsonl</dd>" in page
    assert "data:image/jpeg" in page


@pytest.fixture
def photo_png():
    folder = Path(__file__).parents[3] / "sample_models" / "images" / "detection"
    return (folder / "scene_06.png").read_bytes()


def test_cocos_files(tmp_path) -> None:
    truth = {
        "images": [{"id": 1}],
        "categories": [{"id": 1, "name": "ship"}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9]}],
    }
    (tmp_path / "t.json").write_text(json.dumps(truth))
    results = [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 1}]
    (tmp_path / "p.json").write_text(json.dumps(results))
    options = ("--truth", tmp_path / "t.json", "--predictions", tmp_path / "p.json")
    assert re.search(r"AP +│ 1.000", run(*options).stdout)
    parameters = json.loads(run(*options, "--json").stdout)["parameters"]
    assert (parameters["truth"], parameters["predictions"]) == ("t.json", "p.json")


MODEL = {"name": "ships", "version": "1", "sha256": "aa", "is_pooled": False}


@pytest.fixture
def data(tmp_path):
    """Store what two models answered to four images, with the truth of three."""
    lines = []
    for at in range(4):
        for nth, model in enumerate(("ships", "other")):
            predictions = [BOX | {"score": 0.5}] if nth == 0 or at == 0 else []
            lines.append(
                {"id": str((at * 2 + nth + 1) << 22), "model": MODEL | {"name": model},
                 "task": "OBJECT_DETECTION", "predictions": predictions, "metadata": {"at": at},
                 "input": {"hash": f"blake3:{at:064x}", "width": 20, "height": 20},
                 "ground_truth": [BOX] if at < 3 else None}
            )  # fmt: skip
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = ["import", str(tmp_path / "in.jsonl"), "--data", str(tmp_path / "data")]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    return tmp_path / "data"


def test_stored_inferences_are_evaluated_and_compared(data) -> None:
    options = ("--model", "ships@1", "--compare", "other", "--slice", "first=meta.at=0")
    output = run(*options, "--slice", 'rest={"meta.at": {"ge": 1}}', "--data", data).stdout
    assert "ships 1" in output
    assert (
        "3 images, left out 1 images whose truth is not known, 3 images in common with other 1"
        in output
    )
    assert re.search(r"AP +│ 1.000 │ +— │ +\+0\.\d+ │", output)
    assert re.search(r"true +│ +1 │ 1.000", output)
    options = ("--model", "ships", "--where", "meta.at=ge:2", "--data", data, "--json")
    report = json.loads(run(*options).stdout)
    assert report["data"]["current"]["n"] == 1
    assert report["model"] == MODEL
    assert (
        "model not found: 'third'; did you mean other?"
        in run("--model", "third", "--data", data, code=2).output
    )


def test_a_stored_evaluation_is_kept_as_those_of_jobs_are(data) -> None:
    options = ("--model", "ships", "--data", data)
    report = json.loads(run(*options, "--json").stdout)
    jobs = Jobs(data / "jobs")
    (kept,) = ReportStore(jobs).all()
    assert (kept.id, kept.n, kept.kind) == (report["id"], 3, "evaluation")
    assert msgspec.json.decode(jobs.result(kept.id).read_bytes()) == report
    assert jobs.read(kept.id).state == "succeeded"
    files = {path.name: path.stat().st_mode & 0o77 for path in (data / "jobs" / kept.id).iterdir()}
    assert files == dict.fromkeys(("job.json", "lock", "report.json", "inferences.jsonl"), 0)
    assert re.search(r"^Kept as report [0-9]+-[0-9a-f]{4}$", run(*options).stdout, re.MULTILINE)
    assert len(jobs.ids()) == 2
    run("--model", "ships", "--where", "meta.at=ge:9", "--data", data, code=2)
    assert (len(jobs.ids()), jobs.removed_ids()) == (2, [])


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (["--no-keep", "--data", "data"], ""),
        (["--database", "sqlite:///data/store.db"], "--database names no data folder: add --data"),
        (["--data", "data"], "cannot store the job: "),
        (["--data", "data"], "belongs to another user: run the command as that user"),
    ],
)
def test_a_report_that_cannot_be_kept_is_printed(data, monkeypatch, options, warning) -> None:
    monkeypatch.chdir(data.parent)
    if "another user" in warning:
        monkeypatch.setattr(os, "geteuid", lambda: -1)
    else:
        (data / "jobs").write_text("no folder")
    result = run("--model", "ships", *options, "--json")
    assert json.loads(result.stdout)["data"]["current"]["n"] == 3
    warned = re.findall(r"^quadriga: the report is not kept: (.*)$", result.stderr, re.MULTILINE)
    assert len(warned) == bool(warning)
    assert warning in "".join(warned)
    assert not (data / "jobs").is_dir()


def test_reports_beside_files_are_not_kept(records, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for options in ((), ("--no-keep",)):
        assert run("--records", records, "--task", "detection", *options).stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == [records.name]


@pytest.mark.parametrize(("label_count", "shown"), [(4, []), (5, []), (6, ["TopKAccuracy, k = 5"])])
def test_tables_leave_out_the_best_k_of_no_more_than_k_labels(label_count, shown, tmp_path) -> None:
    labels = [f"class {at}" for at in range(label_count)]
    lines = [
        {"id": str((at * 2 + nth + 1) << 22), "model": MODEL | {"version": version},
         "task": "IMAGE_CLASSIFICATION", "metadata": {"at": at % 2},
         "predictions": [{"label": label, "score": 1 / label_count} for label in labels],
         "input": {"hash": f"blake3:{at:064x}", "width": 20, "height": 20},
         "ground_truth": [{"label": labels[at % label_count]}]}
        for at in range(12) for nth, version in enumerate("12")
    ]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    data = ("--data", tmp_path / "data")
    arguments = ["import", tmp_path / "in.jsonl", *data]
    assert CliRunner().invoke(main, [*map(str, arguments)]).exit_code == 0
    outputs = [tmp_path / f"r.{suffix}" for suffix in ("html", "md", "xml", "json")]
    written = (text for path in outputs for text in ("--output", path))
    form = ("--model", "ships@2", "--compare", "ships@1", "--by", "meta.at", *data, *written)
    table = run(*form).stdout
    html, markdown, junit, report = (path.read_text() for path in outputs)
    page, _, all_metrics = html.partition("All numbers")
    for text in (table, page, markdown, junit, all_metrics.partition("By slice")[2]):
        assert ("TopKAccuracy" in text) is bool(shown)
        assert "Accuracy" in text
    report = json.loads(report)
    own, other = report["metrics"], report["comparisons"][0]["metrics"]
    for metrics in (own, other, *(slice_["metrics"] for slice_ in report["slices"])):
        top = next(metric for metric in metrics if metric["type"] == "TopKAccuracy")
        assert top["parameters"] == {"k": 5}
        assert (top["value"] is None) is not bool(shown)


def test_a_compared_column_names_the_version(data, tmp_path) -> None:
    output = tmp_path / "a.md"
    table = run("--model", "ships", "--compare", "other", "--data", data, "--output", output).stdout
    assert re.search(r"value ┃ +95 % ┃ +other 1 ┃", table)
    assert "| metric | value | 95 % | than other 1 |" in output.read_text()


def test_chosen_thresholds_are_those_of_every_form(data, records) -> None:
    chosen = ("--iou", 0.75, "--iou", 0.3, "--score", 0.4, "--bins", 4)
    stored = "--model", "ships", "--compare", "other", "--by", "meta.at", "--data", data
    for form in (stored, ("--task", "detection", "--records", records, "--by", "meta.a")):
        report = json.loads(run(*form, *chosen, "--json").stdout)
        expected = {"iou": [0.75, 0.3], "score": [0.4], "bins": 4}
        assert report["parameters"].items() >= expected.items()
        (calibration,) = (metric for metric in report["metrics"] if metric["type"] == "ECE")
        assert (calibration["parameters"]["bins"], calibration["parameters"]["iou"]) == (4, 0.75)
        for part in (*report["slices"], *report["comparisons"]):
            assert part["metrics"][3]["type"] == "F1"
            assert part["metrics"][3]["parameters"] == {"score": 0.4, "iou": 0.75, "label": None}
        table = run(*form, *chosen).stdout
        assert re.search(r"AP, IoU 0.3/0.75 +│ 1.000", table)
        assert re.search(r"F1, score ≥ 0.4, IoU 0.75 +│ 1.000", table)


def test_a_limit_does_not_take_a_mean_over_other_thresholds(records) -> None:
    options = ("--task", "detection", "--records", records, "--iou", 0.5, "--iou", 0.3)
    run(*options, "--fail-under", "AP[iou=0.3/0.5]=0.9", "--fail-under", "AP[iou=0.3]=0.9")
    refused = run(*options, "--fail-under", "mAP=0.1", code=2).stderr
    assert "metric not found: mAP; this report has AP[rule=COCO,iou=0.3/0.5" in refused
    earlier = records.with_name("earlier.json")
    run("--task", "detection", "--records", records, "--output", earlier)
    assert "metric not found" in run(*options, "--fail-if-worse-than", earlier, code=2).stderr


@pytest.mark.parametrize("chosen", [{}, {"iou": (0.5,)}, {"top_k": (1, 2), "bins": 3}])
def test_only_chosen_thresholds_are_sent_to_a_server(chosen) -> None:
    """A server of an earlier version refuses parameters that it does not know."""
    options = {"model": "a", "where": None, "by": (), "resamples": 0, "seed": 0}
    lists = {"slices": (), "compare": ()}
    names = options | lists | {"metrics": MetricSettings(**chosen)}
    sent = _to_parameters(SimpleNamespace(**names))
    expected = {name: list(value) if name != "bins" else value for name, value in chosen.items()}
    assert {
        name: sent[name] for name in sent.keys() & {*MetricSettings().__struct_fields__}
    } == expected


@pytest.mark.parametrize(
    ("option", "schema"),
    [("--top-k", TopK), ("--iou", IouThresholds), ("--score", ScoreThresholds), ("--bins", Bins)],
)
def test_options_have_the_ranges_of_the_parameters(option, schema) -> None:
    (range_,) = (item.type for item in evaluate_command.params if option in item.opts)
    schema = msgspec.json.schema(schema)
    items = schema.get("items", schema)
    assert (range_.min, range_.max) == (items["minimum"], items["maximum"])


def test_a_cluster_says_the_same(data, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(RayCluster, "close", lambda _: None)  # one for both: it takes some seconds
    filter_ = json.dumps({"model": "ships"})
    exported = tmp_path / "ships.parquet"
    CliRunner().invoke(
        main,
        ["export", filter_, "--format", "parquet", "--output", str(exported), "--data", str(data)],
    )
    stored = "--model", "ships", "--data", data
    file = "--records", exported, "--task", "detection"
    headlines = [
        json.loads(run(*options, "--json").stdout)["metrics"][:12]
        for options in (stored, (*stored, "--on", "ray"), file, (*file, "--on", "ray"))
    ]
    ray.shutdown()
    assert headlines[0][0]["value"] == 1.0
    assert headlines[1:] == headlines[:1] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "got none"),
        (["--records", "a", "--model", "b"], "got records and model"),
        (["--records", "a"], "--task is required with --records"),
        (["--model", "a", "--iou", "1.5"], "1.5 is not in the range 0.1<=x<=0.99"),
        (["--model", "a", "--iou", "nan"], "iou: expected at most 4 decimals, got nan"),
        (["--model", "a", "--score", "x"], "'x' is not a valid float range"),
        (["--model", "a", "--top-k", "0"], "0 is not in the range 1<=x<=1000"),
        (["--model", "a", "--bins", "0"], "0 is not in the range 1<=x<=100"),
        (
            ["--model", "a", "--top-k", "2", "--top-k", "2"],
            "top_k: expected each value once, got 2",
        ),
        (["--model", "a", *["--score", "0.5"] * 11], "score: expected at most 10 values, got 11"),
        (
            ["--records", "bad.jsonl", "--task", "detection", "--top-k", "1"],
            "top_k is no setting of OBJECT_DETECTION, which has iou, score, bins",
        ),
        (
            ["--records", "bad.parquet", "--task", "classification", "--iou", "0.5"],
            "iou is no setting of IMAGE_CLASSIFICATION, which has top_k, score, bins",
        ),
        (["--truth", "a"], "--predictions is required with --truth"),
        (["--records", "a", "--task", "detection", "--where", "b"], "--where cannot be used"),
        (["--model", "a", "--split", "b"], "--split cannot be used with --model"),
        (["--model", "a", "--dataset", "b", "--database", "c"], "--database cannot be used"),
        (["--model", "a", "--server", "b", "--data", "c"], "--data cannot be used with --server"),
        (["--model", "a", "--server", "b", "--no-keep"], "--no-keep cannot be used with --server"),
        (["--model", "a", "--server", "127.0.0.1:1"], "no answer from"),
        (
            ["--model", "a", "--output", "b.pdf"],
            "expected a file ending in .html, .json, .md or .xml, got b.pdf",
        ),
        (["--model", "a", "--output", "no/b.json"], "folder not found: no"),
        (
            ["--records", "bad.jsonl", "--task", "detection", "--images", "no"],
            "'no' does not exist",
        ),
        (["--model", "a", "--slice", "b"], "expected NAME=FILTER, got b"),
        (["--model", "a", "--where", "{"], "expected JSON, got {"),
        (["--model", "a", "--where", '{"a": 1}'], "expected where.a to"),
        (
            ["--records", "bad.jsonl", "--task", "detection", "--on", "ray"],
            "--on can only be used with",
        ),
        (["--records", "bad.parquet", "--task", "detection"], "expected bad.parquet to be Parquet"),
        (["--model", "a", "--on", "nowhere://x"], "expected a Ray cluster at 'nowhere://x'"),
        (["--model", "a"], "database not found"),
        (["--records", "none.jsonl", "--task", "detection"], "none.jsonl"),
        (["--records", "bad.jsonl", "--task", "detection"], "bad.jsonl:1: expected JSON"),
        (["--records", "bad.jsonl", "--task", "x"], "as task, got 'x'"),
        (["--truth", "bad.jsonl", "--predictions", "bad.jsonl"], "bad.jsonl: expected JSON"),
        (["--model", "a", "--dataset", "b", "--parameters", "1"], "expected an object, got 1"),
        (
            ["--model", "a", "--dataset", "b", "--data", "d"],
            "--data can only be used with a model folder",
        ),
        (["--model", "no/a", "--dataset", "b"], "model folder not found: no/a"),
        (["--model", "a", "--dataset", "b", "--server", "ftp://x"], "expected a URL such as"),
        (["--model", "a", "--dataset", "b", "--server", "127.0.0.1:1"], "no answer from"),
    ],
)
def test_invalid_arguments_are_reported(tmp_path, monkeypatch, arguments, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bad.jsonl", "bad.parquet"):
        (tmp_path / name).write_text("no")
    result = run(*arguments, code=2)
    words = re.sub(r"[│\s]+", " ", result.output)
    assert message in words


def test_every_flag_is_described() -> None:
    text = PAGE.read_text()
    flags = [flag for option in evaluate_command.params for flag in option.opts]
    assert [flag for flag in flags if f"`{flag}" not in text] == []


def test_a_metric_below_its_limit_fails_a_pipeline(records) -> None:
    base = ("--task", "detection", "--records", records, "--resamples", 0)
    passed = run(*base, "--fail-under", "mAP=0.5", "--fail-under", "AP[iou=0.5,label=ship]=1.0")
    assert "quadriga:" not in passed.stderr
    failed = run(*base, "--fail-under", "mAP=0.5", "--fail-under", "ar[area=small]=1.5", code=1)
    assert "ar[area=small] is 1, expected at least 1.5 (AR[" in failed.stderr
    assert "AP, IoU 0.5" in failed.stdout  # the report is written all the same


def test_an_error_that_exceeds_its_limit_fails_a_pipeline(records) -> None:
    base = ("--task", "detection", "--records", records, "--resamples", 0)
    run(*base, "--fail-under", "ECE=0.6")
    failed = run(*base, "--fail-under", "ECE=0.1", code=1)
    assert "ECE is 0.5, expected at most 0.1" in failed.stderr


@pytest.mark.parametrize(
    ("limit", "error"),
    [
        ("mAP", "expected METRIC=NUMBER"),
        ("mAP=high", "expected METRIC=NUMBER"),
        ("mAP=nan", "expected METRIC=NUMBER"),
        ("=0.5", "expected METRIC=NUMBER"),
        ("AP[iou]=0.5", "expected NAME=VALUE"),
        ("Acuracy=0.5", "metric not found: Acuracy; this report has"),
        ("AP[iou=0.42]=0.5", "this report has AP[rule=COCO,iou=0.50:0.95,area=all,max_dets=100], "),
        ("AP[label=boat]=0.5", "metric not found: AP[label=boat]"),
    ],
)
def test_a_limit_that_cannot_be_checked_is_an_error_of_usage(records, limit, error) -> None:
    options = ("--task", "detection", "--records", records, "--resamples", 0)
    assert error in run(*options, "--fail-under", limit, code=2).stderr


def test_an_undefined_metric_fails_every_limit(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record("1", ground_truth=None)))
    options = ("--task", "detection", "--records", path, "--resamples", 0)
    failed = run(*options, "--fail-under", "mAP=0", code=1)
    assert "mAP is undefined, expected 0: 0 images counted; left out: 1 no_truth" in failed.stderr


def test_a_fall_beyond_chance_fails_a_pipeline(tmp_path) -> None:
    def write(name: str, wrong: int) -> tuple[object, ...]:
        path = tmp_path / f"{name}.jsonl"
        truths = [{"label": "ship" if n >= wrong else "boat"} for n in range(200)]
        rows = [
            {
                "id": str(n),
                "predictions": [{"label": "ship", "score": 0.9}],
                "ground_truth": [truth],
            }
            for n, truth in enumerate(truths)
        ]
        path.write_text("\n".join(map(json.dumps, rows)))
        return ("--task", "classification", "--records", path)

    earlier = tmp_path / "earlier.json"
    run(*write("earlier", 20), "--output", earlier)
    run(*write("same", 24), "--fail-if-worse-than", earlier)
    run(*write("better", 2), "--fail-if-worse-than", earlier)
    failed = run(*write("worse", 60), "--fail-if-worse-than", earlier, code=1)
    assert re.search(
        r"Accuracy is 0.7, was 0.9 in report \S+, more than chance \(0\.0", failed.stderr
    )
    run(*write("exact", 21), "--resamples", 0, "--fail-if-worse-than", earlier, code=1)


def test_one_image_with_two_labels_is_named_and_can_be_left_out(tmp_path) -> None:
    def write(name: str, odd: list[str]) -> tuple[object, ...]:
        path = tmp_path / f"{name}.jsonl"
        answer = [{"label": "ship", "score": 0.45}, {"label": "boat", "score": 0.4}]
        truths = [["ship"]] * 39 + [odd]
        path.write_text(
            "\n".join(
                json.dumps({"id": f"img {at}", "predictions": answer, "ground_truth": [{"label": label} for label in labels]})
                for at, labels in enumerate(truths)
            )
        )  # fmt: skip
        return ("--task", "classification", "--records", path)

    earlier, output = tmp_path / "earlier.json", tmp_path / "now.xml"
    run(*write("whole", ["ship"]), "--output", earlier)
    for odd, text in ((["ship", "boat"], "several labels"), ([], "no label")):
        options = (*write("odd", odd), "--fail-if-worse-than", earlier)
        refused = run(*options, "--output", output, code=2)
        assert f"judged as multi-label: 1 of 40 images with {text} (img 39);" in refused.stdout
        assert "metric not found: Accuracy[score=0.5,rule=all labels]; report " in refused.stderr
        assert refused.stderr.endswith("has Accuracy, as it is single-label and this one multi-label\n")  # fmt: skip
        assert "metric not found" in output.read_text()
        single = run(*options, "--single-label")
        assert f"left out by single_label: 1 of 40 images with {text} (img 39)" in single.stdout


def test_an_earlier_report_that_is_none_is_refused_before_the_work(records, tmp_path) -> None:
    options = ("--task", "detection", "--records", records, "--resamples", 0)
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert "expected a report" in run(*options, "--fail-if-worse-than", other, code=2).stderr
    report = tmp_path / "report.json"
    run(*options, "--output", report)
    document = json.loads(report.read_text()) | {"task": "IMAGE_CLASSIFICATION"}
    other.write_text(json.dumps(document))
    message = "expected an earlier report of OBJECT_DETECTION, got IMAGE_CLASSIFICATION"
    assert message in run(*options, "--fail-if-worse-than", other, code=2).stderr


@pytest.mark.parametrize(
    ("task", "parameters", "sent"),
    [
        ("IMAGE_CLASSIFICATION", {}, {"action": "predict_proba"}),
        ("IMAGE_CLASSIFICATION", {"store": True}, {"store": True, "action": "predict_proba"}),
        ("IMAGE_CLASSIFICATION", {"action": "predict"}, {"action": "predict"}),
        ("IMAGE_CLASSIFICATION", {"top_k": 3}, {"top_k": 3}),
        ("OBJECT_DETECTION", {}, {}),
    ],
)
def test_a_classifier_is_asked_for_all_scores_over_a_dataset(task, parameters, sent) -> None:
    assert _with_all_scores(parameters, task) == sent
