"""What a code host reads of the repository names what is there."""

import re

import pytest
import yaml

from tests.pages import ROOT

HOST = ROOT / ".github"


def test_ci_runs_words_of_make_on_the_lowest_and_the_highest_python():
    jobs = yaml.safe_load((HOST / "workflows" / "ci.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    words = [word for command in commands for word in re.findall(r"make (\w+)", command)]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"lint", "demo", "test"} <= set(words) <= set(targets)
    assert all(re.fullmatch(r"make \w+( \|\| make \w+)?", command) for command in commands)
    supported = re.search(r"^PYTHONS := (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert jobs["test"]["strategy"]["matrix"]["python"] == supported.split()


@pytest.mark.parametrize(
    "form", sorted((HOST / "ISSUE_TEMPLATE").iterdir()), ids=lambda path: path.stem
)
def test_forms_of_issues_are_whole(form):
    content = yaml.safe_load(form.read_text())
    assert content.keys() == {"name", "description", "labels", "body"}
    fields = [row for row in content["body"] if row["type"] != "markdown"]
    assert len({row["id"] for row in fields}) == len(fields)
    assert all(row["attributes"]["label"] for row in fields)
    assert any(row.get("validations", {}).get("required") for row in fields)


def test_files_that_texts_for_contributors_name_are_there():
    pages = [path for path in HOST.rglob("*") if path.is_file()]
    named = {name for page in pages for name in re.findall(r"\b[A-Z_]+\.md\b", page.read_text())}
    assert {"SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md"} <= named
    assert all((ROOT / name).exists() for name in named)
