"""Recognition of a model: from its files to a `ModelSpec`, each field with its reason.

A field is decided by the first layer that has it: model.toml, sidecar files, ONNX metadata, family, shapes,
default. If several families fit, nothing is guessed: the error names them and the line to write.

Classifiers may take rows of features as tensors, such as those of scikit-learn and XGBoost: exporters of ai.onnx.ml give a
label for each row, and scores as floats (N, K) or, by ZipMap, as maps from classes to scores. Networks give scores alone.
"""

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from quadriga.engine.models.onnx_file import OnnxHeader
from quadriga.engine.models.recognition.decisions import Decision, MissingError
from quadriga.engine.models.recognition.evidence import (
    FLOATS,
    Evidence,
    check_activation,
    gather_evidence,
)
from quadriga.engine.models.recognition.families import FAMILIES, Family, family_named, line_naming
from quadriga.engine.models.recognition.labels import find_labels
from quadriga.engine.models.recognition.mlflow_folder import mlflow_columns
from quadriga.engine.models.recognition.model_spec import decide_spec
from quadriga.engine.models.recognition.model_toml import ROWS, ModelToml, check_use
from quadriga.engine.models.recognition.rules import by_shapes, match_families
from quadriga.engine.models.runners.session import MAPS, LoadError, Session
from quadriga.proto.messages import TensorInfo
from quadriga.tasks import SHORT_NAMES, TASKS, full_name
from quadriga.tasks.decoders import is_table
from quadriga.tasks.specification import Activation, ModelSpec, RowSpec

TENSOR = "TENSOR"


class Recognition(msgspec.Struct, frozen=True):
    """Everything decided about one model."""

    task: str
    family: str
    """Name of the family; empty if model.toml describes the model itself, and for `TENSOR`."""
    spec: ModelSpec | None
    """Specification of an image model; None for rows and for `TENSOR`."""
    decisions: tuple[Decision, ...]
    written: ModelToml
    """Contents of model.toml, such as how the model is run and which inferences are stored."""
    rows: RowSpec | None = None
    """Specification of a classifier of rows of features."""
    proposals: tuple[str, ...] = ()
    """Lines of model.toml of which one may make a model of images more than tensors, for a person to choose."""


def recognise(
    folder: Path, session: Session, written: ModelToml, score_threshold: float | None = None
) -> Recognition:
    """Decide what a model is, from its folder with sidecar files, its graph, and its model.toml.

    Args:
        folder: Model folder with the sidecar files.
        session: The loaded graph.
        written: Contents of model.toml.
        score_threshold: Default of the server, used if the model has none.

    Raises:
        LoadError: A field is invalid or missing, or several families fit.
    """
    everything = gather_evidence(folder, session, written)
    evidence = everything.reading(written.output.get("name", ()))
    task = _written_task(written)
    name, reason = ("", "") if task == TENSOR else _family(evidence, task)
    task_reason = "model.toml"
    if task is None:
        task = FAMILIES[name].task if name else TENSOR
        unknown = "no file says what the model is for; write task in model.toml"
        task_reason = f"family {name}" if name else unknown
    decisions = [Decision("task", task, task_reason)]
    spec = rows = None
    if name:
        decisions.append(Decision("family", name, reason))
    if takes_rows(evidence, task, name):
        rows = decide_rows(decisions, everything, session.header)
    elif maps := [tensor.name for tensor in evidence.outputs if tensor.datatype == MAPS]:
        raise LoadError(
            f"expected {maps[0]!r} to be a tensor, got maps from classes to scores: write "
            'task = "classification" in model.toml for the labels of rows, or export with zipmap=False'
        )
    elif task == TENSOR:
        check_use(written, task, "")
    else:
        family = FAMILIES.get(name, Family(task, ""))
        spec = decide_spec(decisions, evidence, family, task=task, score_threshold=score_threshold)
    return Recognition(
        task,
        name,
        spec,
        decisions=tuple(decisions),
        written=written,
        rows=rows,
        proposals=_proposals(evidence) if task == TENSOR and written.task is None else (),
    )


def _written_task(written: ModelToml) -> str | None:
    decoder = written.output.get("decoder", "")
    is_offered = is_table(decoder) or decoder == "labelled_boxes"
    if written.task is None and written.family is None and is_offered:
        return family_named(decoder).task
    if written.task is None or ":" in written.task:
        return written.task
    task = full_name(written.task)
    if task not in (*TASKS, TENSOR):
        raise LoadError(
            f"expected task in model.toml to be one of {', '.join(SHORT_NAMES)}, or module:attribute, got {written.task!r}"
        )
    return task


def _family(evidence: Evidence, task: str | None) -> tuple[str, str]:
    """Find the family and the reason; both empty if model.toml suffices or nothing matches."""
    written = evidence.written
    if written.family is not None:
        return _written_family(written.family), "model.toml"
    match = match_families(evidence)
    possible = [name for name in match.families if task in (None, family_named(name).task)]
    if len(possible) == 1 and possible[0] in FAMILIES:
        return possible[0], match.reason
    decoder = written.output.get("decoder", "")
    if task is None and ":" in decoder:
        raise LoadError(
            f"task is required in model.toml beside decoder {decoder!r}, as nothing else says what its "
            "predictions are"
        )
    labels, source = (find_labels(evidence) if possible else None) or ((), "")
    counts = {name: evidence.class_count(family_named(name)) for name in possible}
    fitting = [name for name in possible if not labels or counts[name] in (None, len(labels))]
    if fitting == ["ultralytics"] and possible == ["ultralytics", "ultralytics-obb"]:
        return fitting[0], f"{match.reason}, and the number of labels"
    described = task is not None and ("resize" in written.input or "decoder" in written.output)
    if match.reason and not match.families and task is None:
        raise LoadError(
            f"expected a supported task and export, got another ({match.reason}). "
            'task = "tensor" in model.toml serves its tensors as they are'
        )
    if described or not possible:
        return "", ""
    question = _question(
        evidence, {name: counts[name] for name in fitting or possible}, match.reason
    )
    others = ", ".join(
        f"{name} ({_classes(counts[name])})" for name in possible if name not in fitting
    )
    others = others and f"\nNot for {len(labels)} labels ({source}): {others}"
    raise LoadError(question + (others if fitting else ""))


_NETWORKS = "resnet, resnext, efficientnet, mobilenet, densenet, vgg, vit, convnext, swin"
"""Names of networks, which say nothing of the exporter."""


def _written_family(family: str) -> str:
    """Return a family of model.toml, or raise a `LoadError` that names those that it may mean."""
    if family in FAMILIES:
        return family
    word = family.lower()
    close = difflib.get_close_matches(word, FAMILIES, n=1) or [
        name for name, known in FAMILIES.items() if word in known.description.lower()
    ]
    if word.rstrip("0123456789-_") in _NETWORKS.split(", "):
        close = ["torchvision-classifier", "timm", "hf-classifier"]
    hint = f"; is it {' or '.join(close)}?" if close else ""
    raise LoadError(
        f"expected family in model.toml to be one of {', '.join(FAMILIES)}, got {family!r}{hint}"
    )


def _proposals(evidence: Evidence) -> tuple[str, ...]:
    """Return the lines of model.toml that a model of images, of which nothing says what it is for, may want."""
    if evidence.image_input() is None:
        return ()
    count, lines = None, []
    with suppress(LoadError):
        count = len((find_labels(evidence) or [()])[0]) or None
    for name in by_shapes(evidence, count).families:
        family = family_named(name)
        classes = _classes(evidence.class_count(family))
        hint = "" if count else ": their names in labels.txt, one a line"
        lines.append(f"{line_naming(name)}  # {family.description}, {classes}{hint}")
    tasks = [short for short, task in SHORT_NAMES.items() if task in TASKS]
    return (*lines, *(f'task = "{short}"  # then what else is needed is said' for short in tasks))


_OTHERWISE = (
    "If training prepared images in another way than the family says, write it below [input]: resize, "
    "crop_fraction, interpolation, antialias, color, scale, mean, std."
)


_COLUMNS = (
    "A box is left, top, right, bottom; yxyx is top, left, bottom, right; xywh is centre and size: pixels of the network's "
    "input, or fractions of it where it is normalized. Columns in another order are written in the same way. "
    "If classes count from 1, as in EfficientDet and SSD, write label_offset = 1 below [output]."
)


def _question(evidence: Evidence, counts: Mapping[str, int | None], reason: str) -> str:
    """Return an error text with the possible families, and all that is missing beside the family."""
    missing = {name: _missing(evidence, name) for name in counts}
    known = [questions for questions in missing.values() if questions is not None]
    first, *others = known or [{}]
    shared = {key: text for key, text in first.items() if all(key in other for other in others)}
    lines = []
    for name, count in counts.items():
        classes = f", {_classes(count)}" if count else ""
        own_keys = ", ".join(key for key in missing[name] or () if key not in shared)
        own_keys = own_keys.replace(", [input]", ",")
        needs = f"; needs {own_keys}" if own_keys else ""
        family = family_named(name)
        meaning, decoder = family.description or "others", family.output.get("decoder", "")
        if name == "labelled_boxes":
            meaning = "boxes in pixels of the network's input, labels that count from 0"
        if is_table(decoder):
            meaning = f"{meaning}: columns {decoder}"
        lines.append(f"  {line_naming(name)}  # {meaning}{classes}{needs}")
    lines.append('  task = "tensor"  # tensors in and out, as they are')
    has_tables = any(is_table(family_named(name).output.get("decoder", "")) for name in counts)
    text = f"cannot tell from its files what this model is ({reason}). Write one of these lines in model.toml, beside "
    text += "\n".join(["the file:", *lines, *([_COLUMNS] if has_tables else []), _OTHERWISE])
    if shared:
        text += "\nA family needs these as well:\n- " + "\n- ".join(shared.values())
    return text


def _classes(count: int | None) -> str:
    return f"{count} class" if count == 1 else f"{count} classes"


def _missing(evidence: Evidence, name: str) -> Mapping[str, str] | None:
    """Return what is missing if a model is of this family, by key; None if something does not fit it."""
    family = family_named(name)
    try:
        decide_spec([], evidence, family, task=family.task, score_threshold=None)
    except MissingError as error:
        return error.questions
    except LoadError:  # named once the family is known
        return None
    return {}


_SCORES = ("probabilities", "output_probability")
"""Names of the scores in exports of scikit-learn, XGBoost and LightGBM."""


def takes_rows(evidence: Evidence, task: str, family: str) -> bool:
    """Check whether a classifier takes rows of features: no input has the axes of an image."""
    shapes = [tensor.shape for tensor in evidence.inputs]
    is_classifier = task == SHORT_NAMES["classification"] and not family
    return is_classifier and bool(shapes) and all(len(shape) in (1, 2) for shape in shapes)


def decide_rows(decisions: list[Decision], evidence: Evidence, header: OnnxHeader) -> RowSpec:
    """Decide how the outputs of a classifier of rows are read.

    Raises:
        LoadError: The output with the scores or the labels cannot be found, or a key has no use.
    """
    written = evidence.written
    check_use(written, ROWS, "")
    first_axes = {tensor.shape[0] for tensor in evidence.inputs}
    if first_axes not in ({-1}, {1}):
        raise LoadError(
            "expected rows along the first axis of each input, in any number or one at a time, got "
            f"{', '.join(map(str, evidence.inputs))}: export again with a variable first axis"
        )
    scores = _scores_output(evidence.reading(written.output.get("name", ())).outputs)
    decisions.append(Decision("output.scores", scores.name, f"{scores.datatype} output"))
    names_labels = scores.datatype == MAPS or any(
        tensor.datatype not in FLOATS for tensor in evidence.outputs
    )
    activation, reason = _activation(evidence, scores, is_export=names_labels)
    decisions.append(Decision("output.activation", activation, reason))
    columns = scores.shape[1] if len(scores.shape) == 2 else -1
    classes = _row_classes(header, scores, columns)
    labels, reason = _labels(evidence, classes, columns, names_labels=names_labels)
    if columns == 1 and len(labels) == 2 and "activation" not in written.output:
        raise LoadError(
            f"activation is required in model.toml, [output], as {scores.name!r} has one number for two classes: "
            '"none" if it is the probability of the second, "sigmoid" if it is a margin (decision_function)'
        )
    decisions.append(Decision("labels", len(labels), reason))
    return RowSpec(
        scores=scores.name,
        classes=classes,
        labels=labels,
        activation=activation,
        top_k=written.defaults.get("top_k", 1),
        features=_features(evidence),
        single=first_axes == {1},
    )


def _scores_output(outputs: Sequence[TensorInfo]) -> TensorInfo:
    """Find the output with the scores: by its name, else the only one that can hold them."""
    candidates = [
        tensor
        for tensor in outputs
        if tensor.datatype == MAPS or (tensor.datatype in FLOATS and len(tensor.shape) == 2)
    ]
    named = [tensor for tensor in candidates if tensor.name in _SCORES]
    candidates = named or candidates
    if len(candidates) != 1:
        raise LoadError(
            "expected one output with the scores of a row, maps or floats of 2 dimensions, among "
            f"{', '.join(map(str, outputs))}, got {len(candidates)} (scikit-learn: export with zipmap=False)"
        )
    return candidates[0]


def _activation(
    evidence: Evidence, scores: TensorInfo, *, is_export: bool
) -> tuple[Activation, str]:
    """Decide the activation that the scores still need; those of ai.onnx.ml are probabilities."""
    if written := evidence.written.output.get("activation"):
        return written, "model.toml"
    reason, decided = evidence.activation(scores.name)
    if not is_export:
        check_activation(evidence.producers.get(scores.name, ""))
    return "none" if is_export else decided["activation"], reason


def _row_classes(header: OnnxHeader, scores: TensorInfo, columns: int) -> tuple[str, ...]:
    """Return the classes that the graph names, if they are certain to be those of the scores."""
    candidates = header.class_labels
    if scores.datatype == MAPS:
        if not candidates:
            raise LoadError(
                f"expected ZipMap in the graph to name the classes of {scores.name!r}, got none: "
                "export with zipmap=False"
            )
        return candidates[0]
    fitting = [
        classes
        for classes in candidates
        if len(classes) == columns or (columns, len(classes)) == (1, 2)
    ]
    return fitting[0] if len(fitting) == 1 else ()


def _labels(
    evidence: Evidence, classes: tuple[str, ...], columns: int, *, names_labels: bool
) -> tuple[tuple[str, ...], str]:
    """Decide the label of each score, and the reason."""
    count = len(classes) or columns
    labels_and_source = find_labels(evidence)
    if labels_and_source is None:
        if classes:
            return classes, "classes that the graph names"
        if names_labels or count < 1:
            raise LoadError(
                "labels are required: the graph gives neither names nor number of the classes of its scores. "
                'Write labels = ["first class", "second class"] in model.toml, in the order of classes_ of scikit-learn'
            )
        return tuple(f"class_{index}" for index in range(count)), "no names given"
    labels, source = labels_and_source
    if len(labels) == count or count < 1 or (count, len(labels)) == (1, 2):
        return labels, source
    if all(label.isdecimal() and int(label) < len(labels) for label in classes) and classes:
        return tuple(
            labels[int(label)] for label in classes
        ), f"{source}, by the numbers in the graph"
    raise LoadError(f"expected {count} labels, one per class, got {len(labels)} ({source})")


def _features(evidence: Evidence) -> tuple[str, ...]:
    """Return the name of each feature: as written, else as MLflow names them, else by the inputs where each holds one."""
    widths = [tensor.shape[1] if len(tensor.shape) == 2 else 1 for tensor in evidence.inputs]
    written = evidence.written.features
    if written and -1 not in widths and len(written) != sum(widths):
        raise LoadError(
            f"expected {sum(widths)} features in model.toml, one for each column of the inputs, got {len(written)}"
        )
    if len(set(written)) != len(written):
        raise LoadError("expected features in model.toml to have each name once, got one twice")
    if written:
        return tuple(written)
    columns = mlflow_columns(evidence.folder)
    if len(columns) == sum(widths) and -1 not in widths and len(set(columns)) == len(columns):
        return columns
    return tuple(tensor.name for tensor in evidence.inputs) if set(widths) == {1} else ()
