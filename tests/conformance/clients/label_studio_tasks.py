"""Label Studio's converter reads the tasks with the labelling interface that came along."""

import json
import tempfile
from pathlib import Path

from label_studio_sdk.converter import Converter
from plain_checks import check, described, near

FOLDER = Path(described["folder"])


def converted(task: str, form: str) -> dict:
    """Convert the tasks of a task to another form; return what was written."""
    root = FOLDER / f"label-studio-{task}"
    converter = Converter((root / "label_config.xml").read_text(), str(root), upload_dir=str(root))
    with tempfile.TemporaryDirectory() as target:
        getattr(converter, f"convert_to_{form}")(str(root / "tasks.json"), target, is_dir=False)
        return json.loads((Path(target) / "result.json").read_text())


@check("boxes to COCO")
def _() -> None:
    task = "OBJECT_DETECTION"
    document = converted(task, "coco")
    names = {category["id"]: category["name"] for category in document["categories"]}
    expected = described["truths"][task]
    with_objects = {id_: items for id_, items in expected.items() if items}
    ids = {image["id"]: Path(image["file_name"]).stem for image in document["images"]}
    assert {*ids.values()} >= with_objects.keys()
    for number, id_ in ids.items():
        found = [item for item in document["annotations"] if item["image_id"] == number]
        assert [names[item["category_id"]] for item in found] == [
            item["label"] for item in expected[id_]
        ]
        for annotation, item in zip(found, expected[id_], strict=True):
            left, top, width, height = annotation["bbox"]
            assert near(
                (left, top, left + width, top + height),
                [item[key] for key in ("xmin", "ymin", "xmax", "ymax")],
            )


@check("choices to JSON")
def _() -> None:
    tasks = converted("IMAGE_CLASSIFICATION", "json")
    expected = described["truths"]["IMAGE_CLASSIFICATION"]
    assert len(tasks) == len(expected)
    for task in tasks:
        (annotation,) = task["annotations"]
        (item,) = expected[task["data"]["inference_id"]]
        assert annotation["result"][0]["value"]["choices"] == [item["label"]]
