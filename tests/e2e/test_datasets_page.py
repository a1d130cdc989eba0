"""The page about datasets: its commands do what it says."""

import shlex
import zipfile

import yaml
from click.testing import CliRunner

from quadriga.engine.cli import main
from tests.pages import ROOT, blocks
from tests.unit.store.conftest import make_record
from tests.unit.store.test_tool_datasets import fill, forget_truth
from tests.unit.store_harness import StoreHarness

LONG_AGO = "-30d"


def run(line: str) -> str:
    """Run a command of the page; its inferences are older than thirty days."""
    words = [word.replace(LONG_AGO, "-9000d") for word in shlex.split(line)[1:]]
    result = CliRunner().invoke(main, words, terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_of_the_page_do_what_it_says(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    store = StoreHarness(tmp_path / "data", f"sqlite:///{tmp_path}/data/store.db")
    by_id = fill(store, make_record, "OBJECT_DETECTION")
    export, imports, printed, *_ = (block.text for block in blocks(ROOT / "docs" / "datasets.md"))
    assert f"{len(by_id)} inferences in shapes.zip" in run(export)
    with zipfile.ZipFile("shapes.zip") as archive:
        data = yaml.safe_load(archive.read("data.yaml"))
        assert {"train", "val", "names"} <= data.keys()
        assert archive.testzip() is None
    (tmp_path / "shapes.zip").rename("corrected.zip")
    forget_truth(store)
    removed = min(by_id)
    store.execute(f"DELETE FROM inference WHERE seq = {removed}")
    dry, written = imports.splitlines()
    for line in (dry, written):
        output = run(line)
        counts, reason = printed.strip().splitlines()
        for count in counts.split(", "):
            assert count in output
        assert reason.split("/")[-1].replace("143324401360699392", removed) in output
        stated = store.rows("SELECT count(*) FROM truth")
        assert stated == [(0,)] if line == dry else [(len(by_id),)]
    store.close()
