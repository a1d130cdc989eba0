"""`quadriga drift` of files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from quadriga.engine.cli import main
from quadriga.engine.commands.monitoring.drift import baseline_command, drift_command
from quadriga.monitor.report.saved import ReportStore
from quadriga.store.jobs.jobs import Jobs
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

DOCS = Path(__file__).parents[3] / "docs"
GUIDE = DOCS / "drift.md"
REFERENCE = DOCS / "drift-reference.md"
HOSTILE = "[red]<b>$x\x1b[31m"


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["drift", *map(str, arguments)], env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def write(tmp_path):
    def to(name, shift=0.0, labels=("a", "b"), n=150, **more):
        draw = np.random.default_rng(sum(name.encode()))
        lines = [
            {"score": draw.normal(shift), "x": at % 7, "label": str(draw.choice(labels))} | more
            for at in range(n)
        ]
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return to


def test_verdict_without_drift_comes_first(write) -> None:
    output = run("--baseline", write("a.jsonl"), "--current", write("b.jsonl")).stdout
    assert output.startswith("No drift in 3 signals.")
    assert re.search(
        r"score +(?:ok|may be chance) +ks +0\.\d+ +0\.\d+ \(0\.100\) +150 / 150 +150 / 150", output
    )
    assert "150 rows against 150" in output


def test_alarms_come_first_with_new_labels(write) -> None:
    current = write("b.jsonl", shift=2, labels=("a", HOSTILE), only_here=1)
    output = run("--baseline", write("a.jsonl"), "--current", current).stdout
    assert output.startswith("Drift: 2 of 4 signals changed.")
    rows = re.findall(r"^ (score|label|x|only_here) ", output, re.MULTILINE)
    assert set(rows[:2]) == {"score", "label"}
    assert rows[2:] == ["x", "only_here"]
    assert "New labels of label: [red]<b>$x\N{REPLACEMENT CHARACTER}[31m\n" in output
    assert "Insufficient, only_here: expected values on each side, got 0 and 150" in output


def test_too_few_are_insufficient(write) -> None:
    output = run("--baseline", write("a.jsonl", n=9), "--current", write("b.jsonl", n=9)).stdout
    assert output.startswith("Insufficient: there are too few independent values")


def test_fail_on_drift_sets_the_exit_status(write) -> None:
    same = ("--baseline", write("a.jsonl"), "--current", write("b.jsonl"))
    moved = ("--baseline", write("a.jsonl"), "--current", write("c.jsonl", shift=2))
    run(*same, "--fail-on-drift")
    run(*moved)
    run(*moved, "--fail-on-drift", code=1)
    assert json.loads(run(*moved, "--fail-on-drift", "--json", code=1).stdout)["status"] == "drift"


def test_json_is_all_that_is_printed(write) -> None:
    files = ("--baseline", write("a.jsonl"), "--current", write("b.jsonl", stream="s", t=2))
    options = (
        "--numeric",
        "x",
        "--ignore",
        "score",
        "--alpha",
        0.01,
        "--windows",
        24,
        "--seed",
        7,
        "--kernel",
        "mmd",
    )
    report = json.loads(run(*files, *options, "--json").stdout)
    assert (report["schema"], report["kind"], report["status"]) == ("report/1", "drift", "ok")
    names = {signal["name"]: signal["kind"] for signal in report["signals"]}
    assert names == {"x": "numeric", "label": "categorical", "stream": "categorical", "t": "count"}
    parameters = {
        "alpha": 0.01,
        "windows": 24,
        "seed": 7,
        "kernel": "mmd",
        "time": None,
        "source_key": None,
    }
    assert report["parameters"].items() >= parameters.items()
    assert report["data"]["current"]["n"] == 150


def test_reports_are_written(write, tmp_path) -> None:
    files = ("--baseline", write("a.jsonl"), "--current", write("b.jsonl", shift=2))
    output = run(*files, "--output", tmp_path / "r.html").stdout
    assert "Report: " in output
    assert "b.jsonl against a.jsonl</p>" in (tmp_path / "r.html").read_text()
    run(*files, "--output", tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_bytes())["kind"] == "drift"


def test_wrong_arguments_are_named(write, tmp_path) -> None:
    fine, bad = write("a.jsonl"), tmp_path / "bad.csv"
    bad.write_text("score,x\n1,2\n3\n")
    cases = [
        (("--baseline", fine, "--current", bad), "quadriga: bad.csv:3: expected 2 cells, got 1"),
        (("--baseline", fine, "--current", tmp_path / "none.csv"), "No such file"),
        (("--baseline", fine, "--current", fine, "--numeric", "label"), "a.jsonl:1: expected label"),
        (("--baseline", fine, "--current", fine, "--output", "r.pdf"), "expected a file ending in .html, "),
        (("--baseline", fine, "--current", fine, "--alpha", 2), "0.001<=x<=0.5"),
        (("--baseline", fine), "expected one of --current FILE and --model NAME, got none"),
        (("--current", fine), "--baseline is required with --current"),
        (("--current", fine, "--model", "a"), "got current and model"),
        (("--baseline", fine, "--current", fine, "--from", "-1h"), "--from cannot be used with --current"),
        (("--model", "a", "--numeric", "x"), "--numeric cannot be used with --model"),
        (("--model", "a", "--server", "x", "--data", "d"), "--data cannot be used with --server"),
        (("--model", "a", "--baseline", "x", "--baseline-to", "now"), "--baseline cannot be used with"),
        (("--model", "a", "--from", "x", "--data", tmp_path), "to be a moment such as"),
        (("--model", "a", "--data", tmp_path), "database not found"),
    ]  # fmt: skip
    for arguments, message in cases:
        assert message in run(*arguments, code=2).output


def test_options_are_described() -> None:
    text = REFERENCE.read_text("utf-8")
    sections = "".join(
        text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        for title in ("Drift of files", "Drift of stored inferences")
    )
    for parameter in drift_command.params:
        assert f"`{parameter.opts[0]}`" in sections, parameter.opts[0]
    section = text.partition("\n## Baselines\n")[2].partition("\n## ")[0]
    for parameter in baseline_command.params:
        option = parameter.opts[0]
        assert f"`{option}`" in section or f"`{option} NAME[@VERSION]`" in section, option


def test_documented_example_matches_the_output(tmp_path, monkeypatch) -> None:
    section = GUIDE.read_text("utf-8").partition("## Compare two files\n")[2]
    assert "quadriga drift --baseline march.csv --current april.csv" in section
    monkeypatch.chdir(tmp_path)
    shown = section.partition("```csv\n")[2].partition("```")[0]
    Path("march.csv").write_text(shown)
    Path("april.csv").write_text(shown)
    output = run("--baseline", "march.csv", "--current", "april.csv").stdout
    assert "sorted by created_at, sources camera_id" in output
    assert "Left out, file: " not in output


def test_stored_windows_are_compared_locally(tmp_path) -> None:
    store = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    draw = np.random.default_rng(3)
    for start, shift in ((0, 0.0), (1000, 0.4)):
        scores = draw.uniform(0.1, 0.5, 60) + shift
        store.commit(
            *(
                make_record(
                    (start + at) * 1000 << 22, predictions=[{"label": "a", "score": float(score)}]
                )
                for at, score in enumerate(scores, 1)
            )
        )
    store.close()
    middle = "2025-01-01T00:10:00Z"
    arguments = ("--model", "shapes-detector@1", "--from", middle, "--data", tmp_path)
    window = ("--baseline-to", middle, "--ignore", "latency_ms")
    output = run(*arguments, *window, "--fail-on-drift", code=1).stdout
    assert output.startswith("Drift: 1 of ")
    assert "60 rows against 60" in output
    (kept,) = ReportStore(Jobs(tmp_path / "jobs")).all()
    assert f"Kept as report {kept.id}\n" in output
    assert (kept.kind, kept.status, kept.n) == ("drift", "drift", 60)
    page_options = ("--where", "meta.x=1", "--output", tmp_path / "r.html")
    output = run(
        *arguments, *page_options, "--baseline-from", "2025-01-01T00:00:00Z", code=2
    ).output
    assert "the model 'shapes-detector' has no inferences in the baseline" in output
    assert not (tmp_path / "r.html").exists()


def baseline(*arguments, code=0):
    result = CliRunner().invoke(main, ["baseline", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_a_baseline_of_a_data_folder_is_compared_with(tmp_path) -> None:
    store = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    store.commit(*(make_record(at * 1000 << 22) for at in range(1, 61)))
    store.close()
    here = ("--model", "shapes-detector", "--data", tmp_path)
    assert baseline(*here).stdout.startswith("default of shapes-detector: ready, 60 images\n")
    saved = json.loads(baseline(*here, "--name", "week", "--rolling", "7d", "--json").stdout)
    assert (saved["state"], saved["rolling"], saved["job"]) == ("ready", "7d", None)
    report = json.loads(run(*here, "--json").stdout)
    assert (report["data"]["baseline"]["n"], report["data"]["current"]["n"]) == (60, 60)
    (tmp_path / "other").mkdir()
    for arguments, message in [
        ((*here, "--where", "meta.x=1"), "has no inferences in the baseline"),
        ((*here, "--server", "127.0.0.1:1"), "--server cannot be used with --data or --database"),
        ((*here, "--dataset", tmp_path), "--dataset cannot be used with --data or --database"),
        (("--model", "other", "--data", tmp_path), "model not found: 'other'"),
        (("--model", "a", "--data", tmp_path / "other"), "no store in "),
        (("--model", "a", "--database", f"sqlite:///{tmp_path}/store.db"), "add --data"),
    ]:
        assert message in baseline(*arguments, code=2).output
    kinds = [job.kind for job in Jobs(tmp_path / "jobs").all()]
    assert kinds == ["drift", "baseline"], "what failed leaves nothing"
