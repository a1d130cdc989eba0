"""Other tools' own readers, each in an environment and a process of its own, read what an export writes and a server streams."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quadriga.store.records.records import JournaledChange, TruthStatement
from quadriga.tasks.predictions import shape_of_json
from tests.server_process import IMAGES, ServerProcess
from tests.unit.store.conftest import make_record
from tests.unit.store.exchange_records import MS
from tests.unit.store.tool_datasets import FORMS, SHAPES, SIZE_WH, fill, forget_truth
from tests.unit.store_harness import StoreHarness

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent.parent / ".conformance"
LARGE = {"ultralytics"}
"""Environments that `make clients` leaves out, as they are very large."""

pytestmark = pytest.mark.conformance


SPLIT = {"train": 0.7, "val": 0.3}
PREDICTED = [
    ("cvat", "OBJECT_DETECTION"),
    ("dota", "ORIENTED_OBJECT_DETECTION"),
    ("imagefolder", "IMAGE_CLASSIFICATION"),
]
"""Forms that are exported with predictions, too."""
REWRITTEN = [(form, task) for form, task in FORMS if form in ("cvat", "dota", "imagefolder")]
"""Forms that Datumaro reads, and writes again."""
REWRITTEN_PX = 0.02
"""Maximum distance of a corner: Datumaro rounds centres, sizes and angles to hundredths, then DOTA's corners."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Export a dataset of each form, unpack it, and describe it."""
    folder = tmp_path_factory.mktemp("datasets")
    described: dict[str, Any] = {
        "folder": str(folder),
        "written": str(tmp_path_factory.mktemp("written")),
        "size_wh": SIZE_WH,
        "difficult_id": str(MS << 22),
        "truths": {},
        "predictions": {},
    }
    for form, task in FORMS:
        store = new_store(tmp_path_factory.mktemp("store"))
        described["truths"][task] = fill(store, make_record, task)
        flag_difficult(store, form, task)
        unpack(store, folder / f"{form}-{task}", format=form, split=SPLIT)
        if (form, task) in PREDICTED:
            prediction = {"label": "wrong", "score": 0.25, **SHAPES[task][0]}
            described["predictions"][task] = {
                id_: [prediction] for id_ in described["truths"][task]
            }
            target = folder / f"{form}-{task}-predictions"
            unpack(store, target, format=form, split=SPLIT, annotations="predictions")
        if (form, task) == ("cvat", "OBJECT_DETECTION"):
            unpack(store, folder / "cvat-whole", format=form)
        store.close()
    return described


def new_store(root: Path) -> StoreHarness:
    return StoreHarness(root, f"sqlite:///{root}/store.db")


def flag_difficult(store: StoreHarness, form: str, task: str) -> None:
    """State the ground truth of the first inference again, with every object difficult, if the form can say it."""
    if form not in ("cvat", "dota"):
        return
    seq = MS << 22
    objects = [{**item, "difficult": True} for item in store.ground_truth(seq)]
    statement = TruthStatement("id", str(seq), objects, task=task)
    store.add(JournaledChange(MS + 900 << 22, statement))


def unpack(store: StoreHarness, target: Path, **parameters: Any) -> None:
    file = store.export(target.with_suffix(".zip"), **parameters)
    shutil.unpack_archive(file, target)


@pytest.fixture(scope="module")
def rewritten(datasets: dict[str, Any]) -> Path:
    """Let Datumaro read datasets and write each again; return the folder of them."""
    run_checks("datumaro_datasets", "datasets", datasets)
    return Path(datasets["written"])


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


@pytest.mark.parametrize(
    ("script", "environment"),
    [
        ("supervision_datasets", "datasets"),
        ("pycocotools_datasets", "datasets"),
        ("label_studio_tasks", "datasets"),
        ("ultralytics_datasets", "ultralytics"),
        ("torchvision_folders", "ultralytics"),
    ],
)
def test_a_dataset_is_read_by_the_tool_that_it_is_for(
    datasets: dict[str, Any], script: str, environment: str
) -> None:
    run_checks(script, environment, datasets)


def without_numbers(item: dict[str, Any]) -> tuple[Any, ...]:
    """Return what of an annotation has to come back exactly: label, flag, kind of shape, points of each ring."""
    shape = shape_of_json(item)
    return item["label"], item.get("difficult"), shape.kind, [*map(len, shape.rings or ())]


def pixels(item: dict[str, Any]) -> list[float]:
    """Return the coordinates of an annotation: corners of an oriented box, edges of a box, points of a contour."""
    shape = shape_of_json(item)
    rings = shape.rings or [shape.oriented_corners(*SIZE_WH) or ()]
    return [*(shape.box or ()), *(value for ring in rings for point in ring for value in point)]


@pytest.mark.parametrize(("form", "task"), REWRITTEN)
def test_a_dataset_that_datumaro_read_and_wrote_is_the_same_ground_truth(
    rewritten: Path, tmp_path: Path, form: str, task: str
) -> None:
    store = new_store(tmp_path)
    truths = fill(store, make_record, task)
    flag_difficult(store, form, task)
    expected = {id_: store.ground_truth(int(id_)) for id_ in truths}
    forget_truth(store)
    imported = store.import_file(rewritten / f"{form}-{task}", "ground-truth", task=task)
    assert (imported.matched, imported.unmatched) == (len(truths), 0)
    for id_, annotations in expected.items():
        found = store.ground_truth(int(id_))
        assert [without_numbers(item) for item in found] == [
            without_numbers(item) for item in annotations
        ]
        for item, annotation in zip(found, annotations, strict=True):
            assert pixels(item) == pytest.approx(pixels(annotation), abs=REWRITTEN_PX)
    store.close()


def test_tables_of_a_running_server_are_read_in_a_line(tables: dict[str, Any]) -> None:
    run_checks("table_lines", "tables", tables)
