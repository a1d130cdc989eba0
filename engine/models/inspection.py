"""The description of a model by `quadriga inspect`: its file, its tensors, the decisions and their reasons."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quadriga.engine.models.embedding import EmbeddingSource
from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.model import Model
from quadriga.engine.models.model_folders import find_model
from quadriga.engine.models.recognition.decisions import Decision
from quadriga.engine.models.recognition.model_toml import ThenOptions
from quadriga.engine.models.runners.batched_runs import Batching
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.messages import TensorInfo
from quadriga.tasks.segmentation import background
from quadriga.tasks.specification import INTEGERS, InputSpec, ModelSpec


class Inspection(msgspec.Struct, frozen=True):
    """Description of one model."""

    file: str
    size_bytes: int
    sha256: str
    ir_version: int
    opsets: dict[str, int]
    producer: str
    external_data: list[str]
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    batch: str
    """How images of a request run together."""
    unread_outputs: list[str]
    """Outputs from which neither predictions nor the embedding come; empty for tensors."""
    task: str
    family: str
    preprocessing: str
    """Preprocessing in one sentence; empty if the model takes tensors."""
    labels: tuple[str, ...]
    embedding: EmbeddingSource
    decisions: tuple[Decision, ...]
    then: str = ""
    """What `[then]` sends to which model, in one sentence; empty without it."""
    providers: tuple[str, ...] = ()
    """Execution providers that run the graph, in order."""
    background: str = ""
    """How a segmentation treats the background; empty for other tasks."""
    notes: list[str] = []
    """What may be right, but is also what a wrong model.toml looks like."""
    proposals: tuple[str, ...] = ()
    """Lines of model.toml of which one may make a model that answers tensors more than that."""


def open_model(path: Path) -> Model:
    """Load one model as the server would, from its folder or file."""
    file = path if path.is_file() else find_model(path) if path.is_dir() else None
    if file is None:
        candidates = sorted(candidate.name for candidate in path.glob("*.onnx"))
        candidates = candidates or [
            f"the folder {candidate.parent.name}" for candidate in sorted(path.glob("*/*.onnx"))
        ]
        raise LoadError(_nothing_to_open(path, candidates))
    return Model(path.resolve().name, "1", file)


_OTHER_FORMATS = (
    *("*.pt", "*.pth", "*.safetensors", "*.h5"),
    *("*.keras", "*.pb", "*.tflite", "*.engine"),
)
"""Files of models that are no ONNX files."""


def _nothing_to_open(path: Path, candidates: Sequence[str]) -> str:
    """Return an error text for a path without a model, with what is there instead."""
    if not path.exists():
        return f"cannot open {path}: no such file or folder"
    others = sorted(file.name for pattern in _OTHER_FORMATS for file in path.glob(pattern))
    if not candidates and others:
        return f"expected an ONNX file, or a folder with one, at {path}, got {', '.join(others)}: export it to ONNX first"
    return f"expected an ONNX file, or a folder with one, at {path}, got {', '.join(candidates) or 'none'}"


def inspect_model(path: Path) -> Inspection:
    """Load a model as the server would, and describe it."""
    model = open_model(path)
    header, recognition = model.session.header, model.recognition
    graph = model.image_predictor
    return Inspection(
        file=str(path),
        size_bytes=sum(path_.stat().st_size for path_ in model.paths),
        sha256=model.sha256,
        ir_version=header.ir_version,
        opsets={domain or "ai.onnx": version for domain, version in header.opsets.items()},
        producer=header.producer,
        external_data=sorted({path_.location for path_ in header.external_data}),
        inputs=list(model.session.inputs),
        outputs=list(model.session.outputs),
        batch=_batch_text(model),
        unread_outputs=graph.unread_outputs() if isinstance(graph, ImageGraph) else [],
        task=recognition.task,
        family=recognition.family,
        preprocessing=describe_input(model.spec.input) if model.spec else "",
        labels=model.labels,
        embedding=model.embedding,
        decisions=recognition.decisions,
        then=describe_then(recognition.written.then),
        providers=model.session.providers,
        background=_background_text(model.spec) if model.spec else "",
        notes=list(_notes(model.spec)) if model.spec else [],
        proposals=recognition.proposals,
    )


_NAMES_OF_NOTHING = frozenset({"nothing", "none", "empty", "no object", "n/a", "other"})
"""Names of a first label that may be the background without saying so."""


def _background_text(spec: ModelSpec) -> str:
    """Describe which label of a segmentation is never predicted; empty for other tasks."""
    if spec.task != "IMAGE_SEGMENTATION":
        return ""
    index = background(spec)
    if index is None or index < 0:
        return "none: each label is predicted"
    reason = "its name says so" if spec.output.background is None else "[output] background"
    label = spec.labels[index] if index < len(spec.labels) else "the class after the last label"
    return f"{label} (class {index}) is never predicted ({reason})"


def _notes(spec: ModelSpec) -> Iterator[str]:
    """Yield the warnings of `quadriga inspect`: what may be right, but is also what a wrong model.toml looks like."""
    full_scale = spec.input.scale * (2**spec.input.bit_depth - 1)
    if spec.input.mean and max(spec.input.mean) > 1 and full_scale <= 1.001:
        yield (
            f"mean {max(spec.input.mean):g} is above 1, but scale {spec.input.scale:.6g} makes values from 0 to 1: for a mean "
            "and std of values from 0 to 255 write scale = 1.0 in [input]"
        )
    if spec.task == "IMAGE_CLASSIFICATION" and len(spec.labels) == 1:
        yield (
            f"every image is answered {spec.labels[0]!r}, the only label, with its probability: if the score tells two classes "
            f'apart, name both, such as labels = ["not {spec.labels[0]}", "{spec.labels[0]}"]'
        )
    first = spec.labels[0].strip("_ ").lower() if len(spec.labels) > 1 else ""
    if (
        spec.task == "IMAGE_SEGMENTATION"
        and background(spec) is None
        and first in _NAMES_OF_NOTHING
    ):
        yield (
            f"class 0 is {spec.labels[0]!r}, and is predicted like any other: if it is the background, write "
            "background = 0 in [output]"
        )


def print_inspection(inspection: Inspection, console: Console) -> None:
    """Print an inspection for a person."""
    opsets = ", ".join(f"{name} {version}" for name, version in inspection.opsets.items())
    facts = Table.grid(padding=(0, 2))
    rows = [
        ("file", f"{inspection.file} ({inspection.size_bytes:,} bytes)"),
        ("sha256", inspection.sha256),
        ("format", f"IR {inspection.ir_version}, {opsets}, by {inspection.producer or 'unknown'}"),
        ("weights", ", ".join(inspection.external_data) or "inside the file"),
        *(("input", str(tensor)) for tensor in inspection.inputs),
        *(("output", str(tensor)) for tensor in inspection.outputs),
        ("not read", ", ".join(inspection.unread_outputs)),
        ("batch", inspection.batch),
        ("providers", ", ".join(inspection.providers)),
        ("task", inspection.task + (inspection.family and f", family {inspection.family}")),
        ("image", inspection.preprocessing or "none: tensors as they are"),
        ("labels", _labels_text(inspection)),
        ("background", inspection.background),
        ("embedding", _embedding_text(inspection.embedding)),
        ("then", inspection.then),
    ]
    for name, value in rows:
        if value:
            facts.add_row(f"[bold]{name}", Text(value))  # what stands in brackets is no markup
    decided = Table("field", "value", "because")
    for decision in inspection.decisions:
        if decision.field != "labels":
            decided.add_row(*map(Text, (decision.field, str(decision.value), decision.reason)))
    console.print(facts)
    console.print(decided)
    for note in inspection.notes:
        console.print(note, style="yellow", soft_wrap=True, markup=False)
    if inspection.proposals:
        title = "It answers tensors as they are. If it is meant for more, write one of these lines in model.toml, beside the file:"
        console.print(title, style="yellow", soft_wrap=True, markup=False)
        for line in inspection.proposals:
            console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)


def describe_then(then: ThenOptions | None) -> str:
    """Describe in one sentence which crops are sent to which model; empty for none."""
    if then is None:
        return ""
    labels = "" if then.labels is None else f" labelled {' or '.join(then.labels)}"
    score = f" with a score of at least {then.min_score:g}" if then.min_score else ""
    margin = f", with {then.margin:.0%} of the box around them" if then.margin else ""
    version = "" if then.version is None else f" version {then.version}"
    return (
        f"crops of detections{labels}{score}{margin}, at most {then.max_crops} an image, to the model "
        f"{then.model}{version} of the same repository"
    )


def _batch_text(model: Model) -> str:
    batch, batched_runs = "as the graph says", model.session.batched_runs
    if model.image_predictor is not None:
        size = model.image_predictor.batch_size
        batch = f"variable, up to {size} images at once" if size > 0 else f"fixed at {-size}"
        if isinstance(model.image_predictor, ImageGraph) and model.image_predictor.one_by_one:
            batch = f"images run one by one: {model.image_predictor.one_by_one}"
    if batched_runs is None:
        return batch
    return f"{batch}; requests share runs of up to {describe_batching(batched_runs.batching)}"


def describe_batching(batching: Batching) -> str:
    """Describe in a few words how requests share runs."""
    delay = (
        f", after at most {batching.delay_ms:g} ms" if batching.delay_ms else ", without a delay"
    )
    return f"{batching.max} images or rows{delay}"


def _embedding_text(embedding: EmbeddingSource) -> str:
    if embedding.other_model:
        return f"that of the model {embedding.other_model} ({embedding.reason})"
    if embedding.tensor is None:
        return f"none ({embedding.reason})"
    pooled = f", {embedding.pooling}" if embedding.pooling else ""
    length = f", {embedding.length} numbers" if embedding.length else ""
    return f"{embedding.tensor}{pooled}{length} ({embedding.reason})"


def _labels_text(inspection: Inspection) -> str:
    reason = next((d.reason for d in inspection.decisions if d.field == "labels"), "")
    names = ", ".join(inspection.labels[:20]) + (", ..." if len(inspection.labels) > 20 else "")
    return f"{len(inspection.labels)} ({reason}): {names}" if inspection.labels else "none"


_RESIZES = {
    "letterbox": "letterboxed to {size}, centred, border {spec.pad_value}",
    "letterbox_topleft": "letterboxed to {size}, at the top left, border {spec.pad_value}",
    "letterbox_rect": "letterboxed within {size} to multiples of {spec.divisor}, border {spec.pad_value}",
    "stretch": "stretched to {size}",
    "stretch_crop": "stretched, then cropped in the middle to {size} ({fraction:.3g} of it)",
    "shortest_crop": "scaled by its shortest side, then cropped in the middle to {size} ({fraction:.3g} of it)",
    "shortest_longest": "scaled to a shortest side of {width}, no side over {height}",
    "shortest_at_least": "enlarged to a shortest side of {width} if it is smaller, no side over {height}",
    "none": "as it is",
}


def describe_input(spec: InputSpec) -> str:
    """Describe in one sentence how an image becomes the input."""
    width, height = spec.size_wh
    sides = {"size": f"{width} x {height}", "width": width, "height": height}
    resize = _RESIZES[spec.resize].format(spec=spec, fraction=spec.crop_fraction, **sides)
    filtered = f" ({spec.interpolation}, {'antialiased' if spec.antialias else 'no antialias'})"
    colors = {1: "gray", 3: spec.color.upper(), 4: f"{spec.color.upper()} and a fourth band"}
    color = colors.get(spec.channels, f"{spec.channels} bands")
    turned = "turned upright" if spec.exif == "apply" else "as stored"
    values = f"values from 0 to {2**spec.bit_depth - 1}"
    if spec.dtype not in INTEGERS:
        values += f" times {spec.scale:.6g}" if spec.scale != 1 else ""
        if any(spec.mean) or any(value != 1 for value in spec.std):
            mean, std = (
                [round(value, 4) for value in numbers] for numbers in (spec.mean, spec.std)
            )
            values += f", less {mean}, over {std}"
    resized = resize if spec.resize == "none" else resize + filtered
    return f"{turned}, {resized}, {color}, {values}, as {spec.dtype} {spec.layout.upper()}"
