"""Tells the form of a dataset by its files, and reads it."""

from collections.abc import Iterator

from quadriga.store.exchange.dataset_files import DatasetFiles
from quadriga.store.exchange.formats.cvat_reader import cvat_files, read_cvat
from quadriga.store.exchange.formats.dota_reader import is_dota, read_dota
from quadriga.store.exchange.formats.label_folders_reader import read_label_folders
from quadriga.store.exchange.formats.label_studio_reader import read_label_studio, tasks_file
from quadriga.store.exchange.formats.reading import AnnotatedImage, DatasetImages
from quadriga.store.exchange.formats.yolo_reader import is_yolo, read_yolo

FORMS = (
    "annotations.jsonl, COCO's instances*.json or annotations*.json, CVAT's annotations.xml, YOLO's data.yaml with labels, "
    "DOTA's labelTxt, a .json of Label Studio's tasks, or a folder of images for each label"
)
"""Names of the forms of datasets, for errors."""

_READERS = (
    (cvat_files, read_cvat),
    (is_dota, read_dota),
    (is_yolo, read_yolo),
    (tasks_file, read_label_studio),
)
"""Reader of each form, by what it is told by; of no form, folders are labels."""


def read_tool_dataset(files: DatasetFiles, task: str | None) -> Iterator[AnnotatedImage]:
    """Yield the images of a dataset of CVAT, DOTA, YOLO, Label Studio, or of a folder for each label.

    Args:
        files: The files of the dataset.
        task: Full name of the task whose truth it is; None for what the dataset says.

    Raises:
        QueryError: A file is invalid; the message names the place.
        OSError: A file cannot be read.
    """
    images = DatasetImages(files)
    readers = (read for is_form, read in _READERS if is_form(files))
    yield from next(readers, read_label_folders)(images, task)
