"""The specification of a model whose family is known: each field from the first layer that has it."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from quadriga.engine.recognition.decisions import Decision, Layer, MissingError, decide
from quadriga.engine.recognition.evidence import Evidence
from quadriga.engine.recognition.families import FAMILIES, Family, decoder_defaults
from quadriga.engine.recognition.image_input import decide_input
from quadriga.engine.recognition.labels import decide_labels, find_labels, rf_detr_background
from quadriga.engine.recognition.model_toml import DECODED, check_labels_of_crops, check_use
from quadriga.engine.recognition.outputs import choose_outputs
from quadriga.engine.session import LoadError
from quadriga.tasks.decoders import OF_ONE_OUTPUT, is_table
from quadriga.tasks.segmenters import OF_MAPS
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
    decoder = written.output.get("decoder", family.output.get("decoder", ""))
    label_count = None
    with suppress(LoadError):  # raised again below
        label_count = len((find_labels(evidence) or ((), ""))[0])
    several = evidence.outputs
    evidence, reason = choose_outputs(evidence, family, decoder, label_count)
    names = tuple(tensor.name for tensor in evidence.outputs)
    chosen: Layer = reason, {"name": names} if names != tuple(t.name for t in several) else {}
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
        (f"decoder {output.decoder}", decoder_defaults(output.decoder)),
    ]
    return ModelSpec(
        task=task,
        input=image_input,
        output=output,
        labels=labels,
        defaults=Defaults(**decide(decisions, "defaults", Defaults, layers)),
        tiling=written.tiling,
    )


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
    decoder, first = (
        written.output.get("decoder", family.output.get("decoder", "")),
        evidence.outputs[0],
    )
    if decoder in OF_MAPS:
        layout, reason = evidence.maps_layout()
        layers.append((reason, {"layout": layout}))
    if (decoder in OF_ONE_OUTPUT or is_table(decoder)) and len(first.shape) != 3:
        layers.append((f"shape of output {first.name!r}", {"batch_axis": False}))
    if family.task == "IMAGE_CLASSIFICATION":
        layers.append(_activation(evidence))
    values = decide(decisions, "output", OutputSpec, layers)
    if family.task in DECODED and "decoder" not in values:
        families = [
            name for name, known_family in FAMILIES.items() if known_family.task == family.task
        ]
        text = (
            "[output] decoder or family is required in model.toml, as nothing else gives it; the families are "
            f"{', '.join(families)}"
        )
        raise MissingError({"[output] decoder": text})
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
