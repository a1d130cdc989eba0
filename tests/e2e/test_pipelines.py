"""The examples for GitHub Actions and GitLab, run as those would: green on a better model, red on a worse one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.server_process import ROOT, SAMPLE_MODELS

EXAMPLES = ROOT / "deploy" / "pipelines"
RELEASED = "quadriga evaluate --model models/released --dataset datasets/test.zip --output models/released.json"


def commands(name: str) -> list[str]:
    """The example's own command lines that evaluate, and that show what came out."""
    example = yaml.safe_load((EXAMPLES / name).read_text())
    if name == "gitlab-ci.yml":
        return example["candidate"]["script"]
    steps = example["jobs"]["evaluate"]["steps"]
    return [step["run"] for step in steps if "candidate" in step.get("run", "")]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": str(folder / "summary")}
    return subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """A repository of models as the examples expect it, with the report of the released one."""
    folder = tmp_path_factory.mktemp("pipeline")
    shutil.copytree(SAMPLE_MODELS / "shapes-detector", folder / "models" / "released")
    (folder / "datasets").mkdir()
    shutil.make_archive(
        str(folder / "datasets" / "test"), "zip", SAMPLE_MODELS / "images" / "detection"
    )
    made = run(RELEASED, folder)
    assert made.returncode == 0, made.stderr
    return folder


def put_candidate(repository: Path, *, is_worse: bool) -> None:
    """Put the released model in as the candidate; the worse one confuses two of its labels."""
    folder = repository / "models" / "candidate"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(repository / "models" / "released", folder)
    if is_worse:
        labels = (folder / "labels.txt").read_text().splitlines()
        (folder / "labels.txt").write_text("\n".join([labels[1], labels[0], *labels[2:]]))


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_first_report_is_made_as_the_example_says(name):
    assert RELEASED in (EXAMPLES / name).read_text()


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_a_pipeline_is_green_on_a_model_as_good_and_red_on_a_worse_one(repository, name):
    evaluate, *after = commands(name)
    put_candidate(repository, is_worse=False)
    green = run(evaluate, repository)
    assert green.returncode == 0, green.stderr
    put_candidate(repository, is_worse=True)
    red = run(evaluate, repository)
    assert red.returncode == 1, red.stderr
    failures = [line for line in red.stderr.splitlines() if line.startswith("quadriga: ")]
    assert len(failures) == 1
    assert ", was 0.9" in failures[0]
    cases = list(ET.parse(repository / "candidate.xml").iter("testcase"))
    assert [len(case) for case in cases] == [0, 1]
    assert cases[1].find("failure").get("message") == failures[0].removeprefix("quadriga: ")
    for command in after:
        assert run(command, repository).returncode == 0
        assert "❌" in (repository / "summary").read_text()
    assert (repository / "candidate.html").stat().st_size > 10_000
