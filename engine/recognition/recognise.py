"""Recognition of a model: from its files to a `ModelSpec`, each field with its reason.

A field is decided by the first layer that has it: model.toml, sidecar files, ONNX metadata, family, shapes,
default. If several families fit, nothing is guessed: the error names them and the line to write.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from quadriga.engine.recognition import rules
from quadriga.engine.recognition.decisions import Decision, Layer, decide
from quadriga.engine.recognition.evidence import Evidence, gather_evidence
from quadriga.engine.recognition.families import FAMILIES, Family
from quadriga.engine.recognition.image_input import decide_input
from quadriga.engine.recognition.labels import (
    class_count,
    decide_labels,
    find_labels,
    rf_detr_background,
)
from quadriga.engine.recognition.model_toml import DECODED, ModelToml, check_use
from quadriga.engine.session import LoadError, Session
from quadriga.tasks import SHORT_NAMES, TASKS, full_name
from quadriga.tasks.specification import Defaults, ModelSpec, OutputSpec

TENSOR = "TENSOR"


class Recognition(msgspec.Struct, frozen=True):
    """Everything decided about one model."""

    task: str
    family: str
    """Name of the family; empty if model.toml describes the model itself, and for `TENSOR`."""
    spec: ModelSpec | None
    """Specification of an image model; None for `TENSOR`."""
    decisions: tuple[Decision, ...]
    written: ModelToml
    """Contents of model.toml, such as how the model is run and which inferences are stored."""


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
    evidence = gather_evidence(folder, session, written)
    task = _written_task(written)
    name, reason = ("", "") if task == TENSOR else _family(evidence, task)
    task_reason = "model.toml"
    if task is None:
        if not name:
            _check_own_decoder(written)
        task = FAMILIES[name].task if name else TENSOR
        unknown = "no file says what the model is for; write task in model.toml"
        task_reason = f"family {name}" if name else unknown
    decisions = [Decision("task", task, task_reason)]
    spec = None
    if name:
        decisions.append(Decision("family", name, reason))
    if task == TENSOR:
        check_use(written, task, "")
    else:
        family = FAMILIES.get(name, Family(task, ""))
        spec = _spec(decisions, evidence, family, task=task, score_threshold=score_threshold)
    return Recognition(task, name, spec, decisions=tuple(decisions), written=written)


def _spec(
    decisions: list[Decision],
    evidence: Evidence,
    family: Family,
    task: str,
    score_threshold: float | None,
) -> ModelSpec:
    written, family_source = evidence.written, f"family: {family.description}"
    image_input = decide_input(decisions, evidence, family)
    output = _output(decisions, evidence, family)
    check_use(written, task, output.decoder)
    labels, labels_reason = decide_labels(evidence, family, output)
    decisions.append(Decision("labels", len(labels), labels_reason))
    server = {} if score_threshold is None else {"score_threshold": score_threshold}
    layers: list[Layer] = [
        ("model.toml", written.defaults),
        ("setting of the server", server),
        (family_source, family.defaults),
    ]
    return ModelSpec(
        task=task,
        input=image_input,
        output=output,
        labels=labels,
        defaults=Defaults(**decide(decisions, "defaults", Defaults, layers)),
        tiling=written.tiling,
    )


def _written_task(written: ModelToml) -> str | None:
    if written.task is None or ":" in written.task:
        return written.task
    task = full_name(written.task)
    if task not in (*TASKS, TENSOR):
        names = ", ".join(SHORT_NAMES)
        raise LoadError(
            f"expected task in model.toml to be one of {names}, or module:attribute, got {written.task!r}"
        )
    return task


def _family(evidence: Evidence, task: str | None) -> tuple[str, str]:
    """Find the family and the reason; both empty if model.toml suffices or nothing matches."""
    written = evidence.written
    family = written.family
    if family in FAMILIES:
        return family, "model.toml"
    if family is not None:
        names = ", ".join(FAMILIES)
        close = difflib.get_close_matches(family, FAMILIES, n=1)
        hint = f"; is it {close[0]}?" if close else ""
        raise LoadError(f"expected family in model.toml to be one of {names}, got {family!r}{hint}")
    match = rules.match_families(evidence)
    if match is None:
        return "", ""
    possible = [name for name in match.families if task in (None, FAMILIES[name].task)]
    if len(possible) == 1:
        return possible[0], match.reason
    labels = find_labels(evidence) if possible else None
    counts = {name: class_count(FAMILIES[name], evidence) for name in possible}
    if labels is not None:
        fitting = [name for name in possible if counts[name] in (None, len(labels[0]))]
        if len(fitting) == 1:
            return fitting[0], f"{match.reason}, and the number of labels"
    described = task is not None and ("resize" in written.input or "decoder" in written.output)
    if not match.families and task is None:
        raise LoadError(
            f"expected a supported task and export, got another ({match.reason}). "
            'task = "tensor" in model.toml serves its tensors as they are'
        )
    if described or not possible:
        return "", ""
    if task is None:
        _check_own_decoder(written)
    raise LoadError(_question(counts, match.reason))


def _check_own_decoder(written: ModelToml) -> None:
    """Require a task beside a decoder given as module:attribute."""
    decoder = written.output.get("decoder", "")
    if ":" in decoder:
        raise LoadError(
            f"task is required in model.toml beside decoder {decoder!r}, as nothing else says what its "
            "predictions are"
        )


def _question(counts: Mapping[str, int | None], reason: str) -> str:
    """Return an error text with the possible families and the lines to choose from."""
    lines = []
    for name, count in counts.items():
        classes = f", {count} {'class' if count == 1 else 'classes'}" if count else ""
        lines.append(f'  family = "{name}"  # {FAMILIES[name].description}{classes}')
    lines.append('  task = "tensor"  # tensors in and out, as they are')
    return (
        f"cannot tell from its files what this model is ({reason}). "
        "Write one of these lines in model.toml, beside the file:\n" + "\n".join(lines)
    )


def _output(decisions: list[Decision], evidence: Evidence, family: Family) -> OutputSpec:
    written = evidence.written
    layers: list[Layer] = [
        ("model.toml", written.output),
        (f"family: {family.description}", family.output),
    ]
    if "label_offset" not in written.output:
        layers.append(rf_detr_background(evidence, family))
    if family.task == "IMAGE_CLASSIFICATION":
        layers.append(_activation(evidence))
    values = decide(decisions, "output", OutputSpec, layers)
    if family.task in DECODED and "decoder" not in values:
        families = [
            name for name, known_family in FAMILIES.items() if known_family.task == family.task
        ]
        raise LoadError(
            "[output] decoder or family is required in model.toml, as nothing else gives it; the families are "
            f"{', '.join(families)}"
        )
    return msgspec.convert(values, OutputSpec)


def _activation(evidence: Evidence) -> Layer:
    """Decide the activation that a classifier's output still needs, so that none is applied twice."""
    first = evidence.outputs[0].name
    producer = evidence.producers.get(first, "")
    if producer in ("Softmax", "Sigmoid"):
        return f"operator behind {first!r} is {producer}", {"activation": "none"}
    if evidence.config.get("problem_type") == "multi_label_classification":
        return "config.json, problem_type", {"activation": "sigmoid"}
    if set(evidence.outputs[0].shape[1:]) <= {1}:  # the softmax of a single value is always 1
        return "one class", {"activation": "sigmoid"}
    return f"operator behind {first!r} is {producer or 'unknown'}", {"activation": "softmax"}
