"""Other tools' own readers, each in an environment and a process of its own, read what an export writes and a server streams."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server_process import IMAGES, ServerProcess
from tests.unit.store.conftest import make_record
from tests.unit.store.test_tool_datasets import FORMS, SIZE_WH, fill
from tests.unit.store_harness import StoreHarness

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent.parent / ".conformance"
LARGE = {"ultralytics"}
"""Environments that `make clients` leaves out, as they are very large."""

pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Export a dataset of each form, unpack it, and describe it."""
    folder = tmp_path_factory.mktemp("datasets")
    described: dict[str, Any] = {"folder": str(folder), "size_wh": SIZE_WH, "truths": {}}
    for form, task in FORMS:
        root = tmp_path_factory.mktemp("store")
        store = StoreHarness(root, f"sqlite:///{root}/store.db")
        described["truths"][task] = fill(store, make_record, task)
        file = store.export(folder / "set.zip", format=form, split={"train": 0.7, "val": 0.3})
        shutil.unpack_archive(file, folder / f"{form}-{task}")
        store.close()
    return described


@pytest.fixture(scope="module")
def tables(server: ServerProcess) -> dict[str, Any]:
    """Store some inferences, and describe them."""
    image = (IMAGES / "detection" / "scene_05.jpg").read_bytes()
    for number in range(3):
        metadata = json.dumps({"camera_id": f"c{number}", "altitude": 100 * number})
        server.infer("shapes-detector", image, metadata=metadata)
    inferences = server.query({})
    return {"http": server.host, "inferences": inferences}


def run_checks(script: str, environment: str, described: dict[str, Any]) -> None:
    python = ENVIRONMENTS / environment / "bin" / "python"
    if environment in LARGE and not python.exists():
        pytest.skip(f"{python} is not there: make clients CLIENTS={environment}")
    assert python.exists(), f"expected {python}: make conformance"
    ran = subprocess.run(
        [python, HERE / "clients" / f"{script}.py"],
        input=json.dumps(described),
        capture_output=True,
        text=True,
        timeout=300,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"check"')]
    failed = [f"{line['check']}: {line['detail']}" for line in lines if not line["ok"]]
    assert not failed, "\n".join(failed)
    assert lines, ran.stdout
    print(f" {script}: {len(lines)} checks passed", file=sys.stderr)


@pytest.mark.timeout(320)
@pytest.mark.parametrize(
    ("script", "environment"),
    [
        ("supervision_datasets", "datasets"),
        ("pycocotools_datasets", "datasets"),
        ("label_studio_tasks", "datasets"),
        ("ultralytics_datasets", "ultralytics"),
    ],
)
def test_a_dataset_is_read_by_the_tool_that_it_is_for(
    datasets: dict[str, Any], script: str, environment: str
) -> None:
    run_checks(script, environment, datasets)


def test_tables_of_a_running_server_are_read_in_a_line(tables: dict[str, Any]) -> None:
    run_checks("table_lines", "tables", tables)
