"""The specification of a model whose family is known: each field from the first layer that has it."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from quadriga.engine.models.recognition.decisions import Decision, Layer, MissingError, decide
from quadriga.engine.models.recognition.evidence import FLOATS, Evidence
from quadriga.engine.models.recognition.families import DECODER_DEFAULTS, FAMILIES, Family
from quadriga.engine.models.recognition.image_input import decide_input
from quadriga.engine.models.recognition.labels import decide_labels, find_labels, rf_detr_background
from quadriga.engine.models.recognition.model_toml import DECODED, check_labels_of_crops, check_use
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.messages import TensorInfo
from quadriga.tasks.decoders import reads_one_output
from quadriga.tasks.segmenters import OF_MAPS, OF_ONE_MAP
from quadriga.tasks.specification import Defaults, ModelSpec, OutputSpec

Part = TypeVar("Part")


def decide_spec(
    decisions: list[Decision],
    evidence: Evidence,
    family: Family,
    task: str,
    score_threshold: float | None,
) -> ModelSpec:
    """Decide every field of a model's specification, and append the reasons to `decisions`.

    Raises:
        MissingError: Nothing gives some fields; it names all of them.
        LoadError: A field is invalid.
    """
    written, family_source = evidence.written, f"family: {family.description}"
    evidence, chosen = _choose_outputs(evidence, family)
    questions: dict[str, str] = {}
    image_input = _ask_later(questions, lambda: decide_input(decisions, evidence, family))
    output = _ask_later(questions, lambda: _output(decisions, evidence, family, chosen))
    read_output = output or OutputSpec()
    check_use(written, task, read_output.decoder)
    named = _ask_later(questions, lambda: decide_labels(evidence, family, read_output))
    if image_input is None or output is None or named is None:
        raise MissingError(questions)
    labels, labels_reason = named
    check_labels_of_crops(written, labels)
    decisions.append(Decision("labels", len(labels), labels_reason))
    server = {} if score_threshold is None else {"score_threshold": score_threshold}
    layers: list[Layer] = [
        ("model.toml", written.defaults),
        ("setting of the server", server),
        (family_source, family.defaults),
        (f"decoder {output.decoder}", DECODER_DEFAULTS.get(output.decoder, {})),
    ]
    return ModelSpec(
        task=task,
        input=image_input,
        output=output,
        labels=labels,
        defaults=Defaults(**decide(decisions, "defaults", Defaults, layers)),
        tiling=written.tiling,
    )


def _choose_outputs(evidence: Evidence, family: Family) -> tuple[Evidence, Layer]:
    """Choose the output of several that is read: by the number of labels, its shape, and its name.

    Returns:
        The evidence with the chosen outputs alone, and a layer that names them; as it was where all are read.

    Raises:
        LoadError: Several fit; it names the lines to write.
    """
    outputs, decoder = evidence.outputs, _decoder(evidence, family)
    choices = _choices_of_boxes(outputs) if decoder == "labelled_boxes" else []
    if family.task == "IMAGE_CLASSIFICATION" or reads_one_output(decoder) or decoder in OF_ONE_MAP:
        if decoder in OF_ONE_MAP:
            evidence = evidence.reading([t.name for t in outputs if len(t.shape) > 2])
        count = None
        with suppress(LoadError):  # raised with the other questions
            count = len((find_labels(evidence) or [()])[0]) or None
        fitting = evidence.main_outputs or evidence.outputs
        counted = [
            t for t in evidence.outputs if evidence.reading(t.name).class_count(family) == count
        ]
        fitting = counted if count and counted else fitting
        fitting = evidence.reading([t.name for t in fitting]).main_outputs or fitting
        choices = [(tensor.name,) for tensor in fitting]
    if len(outputs) == 1 or not choices:
        return evidence, ("", {})
    if len(choices) > 1:
        names = [json.dumps(choice if choice[1:] else choice[0]) for choice in choices]
        lines = "".join(f"\n  name = {name}" for name in names)
        raise LoadError(
            "cannot tell which output of the graph is read. Write one of these lines in model.toml, "
            f"[output]:{lines}"
        )
    return evidence.reading(choices[0]), ("names and shapes of the outputs", {"name": choices[0]})


def _choices_of_boxes(outputs: Sequence[TensorInfo]) -> list[tuple[str, ...]]:
    """Return the names that boxes, labels and scores of as many rows may have, where exporters number the outputs."""
    boxes = [t for t in outputs if t.shape[-1:] == (4,) and t.datatype in FLOATS]
    if {"boxes", "labels", "scores"} <= {tensor.name for tensor in outputs} or len(boxes) != 1:
        return []
    rows = [tensor for tensor in outputs if tensor.shape == boxes[0].shape[:-1]]
    labels = [tensor.name for tensor in rows if tensor.datatype not in FLOATS]
    scores = [tensor.name for tensor in rows if tensor.datatype in FLOATS]
    return [(boxes[0].name, label, score) for label in labels for score in scores]


def _ask_later(questions: dict[str, str], decide_part: Callable[[], Part]) -> Part | None:
    """Decide one part; None if something is missing, which is added to `questions`."""
    try:
        return decide_part()
    except MissingError as error:
        questions.update(error.questions)
        return None


def _output(
    decisions: list[Decision], evidence: Evidence, family: Family, chosen: Layer
) -> OutputSpec:
    written = evidence.written
    layers: list[Layer] = [
        ("model.toml", written.output),
        chosen,
        (f"family: {family.description}", family.output),
    ]
    if "label_offset" not in written.output:
        layers.append(rf_detr_background(evidence, family))
    decoder, first = _decoder(evidence, family), evidence.outputs[0]
    if decoder in OF_MAPS:
        layout, reason = evidence.maps_layout()
        layers.append((reason, {"layout": layout}))
    is_classifier = family.task == "IMAGE_CLASSIFICATION"
    is_one_row = is_classifier and evidence.row_shape == first.shape != ()
    if is_one_row or (reads_one_output(decoder) and len(first.shape) != 3):
        layers.append((f"shape of output {first.name!r}", {"batch_axis": False}))
    if is_classifier:
        layers.append(_activation(evidence))
    values = decide(decisions, "output", OutputSpec, layers)
    if family.task in DECODED and "decoder" not in values:
        families = ", ".join(name for name in FAMILIES if FAMILIES[name].task == family.task)
        text = "[output] decoder or family is required in model.toml, as nothing else gives it; the families are "
        raise MissingError({"[output] decoder": text + families})
    return msgspec.convert(values, OutputSpec)


def _decoder(evidence: Evidence, family: Family) -> str:
    return str(evidence.written.output.get("decoder", family.output.get("decoder", "")))


def _activation(evidence: Evidence) -> Layer:
    """Decide the activation that a classifier's output still needs."""
    in_graph = evidence.activation(evidence.outputs[0].name)
    if in_graph[1]["activation"] == "none":
        return in_graph
    if evidence.config.get("problem_type") == "multi_label_classification":
        return "config.json, problem_type", {"activation": "sigmoid"}
    if set(evidence.row_shape) <= {1}:  # the softmax of a single value is always 1
        return "one class", {"activation": "sigmoid"}
    return in_graph
