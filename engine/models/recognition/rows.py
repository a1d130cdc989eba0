"""Recognition of classifiers whose rows of features come as tensors, such as those of scikit-learn and XGBoost.

Exporters of ai.onnx.ml give a label for each row, and scores as floats (N, K) or, by ZipMap, as maps from classes to
scores. Networks give scores alone.
"""

from collections.abc import Sequence

from quadriga.engine.models.onnx.onnx_file import OnnxHeader
from quadriga.engine.models.recognition.decisions import Decision
from quadriga.engine.models.recognition.evidence import FLOATS, Evidence, check_activation
from quadriga.engine.models.recognition.labels import find_labels
from quadriga.engine.models.recognition.mlflow_folder import mlflow_columns
from quadriga.engine.models.recognition.model_toml import ROWS, check_use
from quadriga.engine.models.runners.session import MAPS, LoadError
from quadriga.proto.messages import TensorInfo
from quadriga.tasks import SHORT_NAMES
from quadriga.tasks.specification import Activation, RowSpec

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
    classes = _classes(header, scores, columns)
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


def _classes(header: OnnxHeader, scores: TensorInfo, columns: int) -> tuple[str, ...]:
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
