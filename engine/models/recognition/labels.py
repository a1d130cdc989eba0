"""The labels of a model's classes: their source, and a check that each class has one."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quadriga.engine.config.schema import read_text
from quadriga.engine.models.recognition.decisions import MissingError
from quadriga.engine.models.recognition.evidence import RF_DETR, Evidence, parse_literal
from quadriga.engine.models.recognition.families import FAMILIES, Family
from quadriga.engine.models.runners.session import LoadError
from quadriga.tasks import SHORT_NAMES
from quadriga.tasks.segmentation import begins_with_background
from quadriga.tasks.specification import OutputSpec

_FILES = ("labels.txt", "classes.txt", "class_names.txt")
_CONFIG_LABELS = ("id2label", "label_names", "class_labels")
_LISTS = {name: f"ONNX metadata, {name}" for name in ("character", "labels", "class_names")}
"""Names of metadata with class names: Paddle's and those of people. They count only if their number fits, as a reader
of text has a `character` for every letter. Source: RapidOCR and RapidLayout, their readers of metadata."""
_RF_DETR_NAMES = "ONNX metadata, rfdetr_inference"
_UNNAMED = ("???", "N/A")
"""Placeholders of numbers without a class: of TensorFlow, and of COCO's lists. The first label then stands for the background."""
_WRITE_LABELS = (
    'Write labels = ["first class", "second class"] in model.toml, in the order of the classes, or a file '
    "labels.txt with one label a line"
)


def find_labels(evidence: Evidence) -> tuple[tuple[str, ...], str] | None:
    """Return the class labels and their source; None if no file has any."""
    sources = ((names, location) for names, location in _sources(evidence) if names is not None)
    value, location = next(sources, (None, ""))
    if value is None:
        return None
    labels = parse_labels(value)
    if labels is None:
        raise LoadError(
            f"expected class names in {location}, as a list or with their numbers, got {value!r:.100}. "
            f"{_WRITE_LABELS}"
        )
    first, *others = labels
    labels = (
        first,
        *(f"class_{n}" if name == _UNNAMED[0] else name for n, name in enumerate(others, 1)),
    )
    numbers = sum(label == f"class_{number}" for number, label in enumerate(labels))
    return labels, f"{location}, {numbers} without a name" if numbers else location


def _sources(evidence: Evidence) -> Iterator[tuple[Any, str]]:
    """Yield the possible sources of labels, the decisive first: names, or None, and the source."""
    written = evidence.written.labels
    if isinstance(written, str):
        yield read_label_file(evidence.folder / written), f"model.toml, file {written}"
    yield written, "model.toml, labels"
    yield from _label_files(evidence.folder)
    for name in _CONFIG_LABELS:
        yield evidence.config.get(name) or None, f"config.json, {name}"
    yield _rf_detr_names(evidence.metadata), _RF_DETR_NAMES
    yield evidence.metadata.get("names"), "ONNX metadata, names"
    for name, location in _LISTS.items():
        text = evidence.metadata.get(
            name, ""
        )  # a list as Python or JSON write it, or one name a line
        yield parse_labels(text) or tuple(text.splitlines()) or None, location
    yield evidence.classes or None, "classes that the graph names"


def _label_files(folder: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the labels of each file of labels in a folder, and its name."""
    for name in _FILES:
        if (folder / name).is_file():
            yield read_label_file(folder / name), f"file {name}"


def read_label_file(path: Path) -> tuple[str, ...]:
    """Read one label per line; an empty line is a class without a name, so that indices stay right."""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise LoadError(f"expected labels in {path.name}, got: {error}") from error
    lines = [line.strip() for line in text.rstrip().splitlines()]
    return tuple(line or f"class_{number}" for number, line in enumerate(lines))


def parse_labels(names: Any) -> tuple[str, ...] | None:
    """Read class labels in any of their forms: a list, `{label: id}` or `{id: label}`, or their text.

    Returns:
        Labels by index, with `class_<i>` where an index has none; None where it is none of the forms.
    """
    if isinstance(names, str):
        names = parse_literal(names)
    if isinstance(names, list | tuple):
        return tuple(str(name) for name in names) or None
    if not isinstance(names, Mapping) or not names:
        return None
    by_index: dict[int, str] = {}
    for key, value in names.items():
        if str(key).isdecimal() and not isinstance(value, int):
            by_index[int(key)] = str(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            by_index[value] = str(key)
        else:
            return None
    if min(by_index) < 0 or max(by_index) > 100_000:
        return None
    return tuple(by_index.get(index, f"class_{index}") for index in range(max(by_index) + 1))


def _rf_detr_names(metadata: Mapping[str, str]) -> Any:
    """Read `{class number: name}` of RF-DETR's metadata; its text where it is broken, None where absent.

    Source: RF-DETR, `export/_runtime/metadata.py` ExportMetadata.
    """
    text = metadata.get("rfdetr_inference")
    if text is None:
        return None
    try:
        return json.loads(text)["class_id_to_name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text


def decide_labels(
    evidence: Evidence, family: Family, output: OutputSpec
) -> tuple[tuple[str, ...], str]:
    """Decide the label of each class.

    Returns:
        Labels by class index, and the reason.
    """
    labels_and_source = _without_background(evidence, family, find_labels(evidence))
    count = evidence.class_count(family)
    if family.task == "IMAGE_CLASSIFICATION" and count == 1 and labels_and_source is not None:
        count = 2 if len(labels_and_source[0]) == 2 else 1  # of two labels it scores the second
    if labels_and_source is None and family.task not in SHORT_NAMES.values():
        return (), "none given"
    if labels_and_source is None and count is None:
        text = "labels are required: the files give neither names nor number of the classes. "
        raise MissingError({"labels": text + _WRITE_LABELS})
    unnamed = tuple(f"class_{index}" for index in range((count or 0) - output.label_offset))
    if labels_and_source is None:
        folder = evidence.folder.absolute()
        above = next(_label_files(folder.parent), None) if folder.name.isdecimal() else None
        if above is not None and len(above[0]) == len(unnamed):
            labels_and_source = above[0], f"{above[1]} of the folder above"
    labels, reason = labels_and_source or (unnamed, "no names given")
    if set(labels) == set(evidence.classes):
        labels = evidence.classes  # names tell them apart, whatever the order
    extra = output.label_offset + (output.background == len(labels))
    if reason in _LISTS.values() and count not in (None, len(labels) + extra):
        labels, reason = unnamed, f"no names given, as {reason} has {len(labels)}"
        extra = output.label_offset
    if count is not None and len(labels) + extra != count:
        if family.output.get("decoder") in RF_DETR and extra == 0 and len(labels) + 1 == count:
            raise LoadError(
                f"cannot tell which of the {count} classes of RF-DETR is the background, as there are "
                f"{len(labels)} labels ({reason}): the last if training numbered categories from 0, "
                "the first if from 1. Write one of these lines in model.toml, [output]:\n"
                f"  background = {len(labels)}  # the last\n  label_offset = 1  # the first"
            )
        raise LoadError(
            f"expected {count - extra} labels, one per class, got {len(labels)} ({reason})"
        )
    return labels, reason


def _without_background(
    evidence: Evidence, family: Family, named: tuple[tuple[str, ...], str] | None
) -> tuple[tuple[str, ...], str] | None:
    """Leave out a first label that names the background, class 0 of detectors that count from 1, as SSD may."""
    if named is None or "label_offset" in evidence.written.output:
        return named
    labels, reason = named
    is_unnamed = labels[0] in _UNNAMED or (labels[0] == "class_0" and "class_1" not in labels)
    if begins_with_background(labels) or is_unnamed:
        is_left_out = family.output.get("label_offset") == 1
        return (labels[1:], f"{reason}, without {labels[0]}") if is_left_out else named
    if family is FAMILIES["ssd"]:
        raise LoadError(
            f"cannot tell whether the first label, {labels[0]!r}, names class 0 or class 1 of SSD. Write one of these "
            "lines in model.toml, [output]:\n  label_offset = 1  # class 0 is the background, as in most files\n"
            "  label_offset = 0  # class 0 is the first label"
        )
    return named


def rf_detr_background(evidence: Evidence, family: Family) -> tuple[str, dict[str, int]]:
    """Find the background class of RF-DETR metadata: the one after the named classes."""
    names = parse_labels(_rf_detr_names(evidence.metadata)) or ()
    is_one_more = bool(names) and evidence.class_count(family) == len(names) + 1
    has_background = is_one_more and family.output.get("decoder") in RF_DETR
    return _RF_DETR_NAMES, {"background": len(names)} if has_background else {}
