"""What is this model, and why: from files to a `ModelSpec`, each field with its reason.

Each field is decided by the first of: model.toml, sidecar files (`labels.txt`, `classes.txt`), ONNX
metadata (Ultralytics), shapes. A model that says nothing of its task is served as `TENSOR`.
"""

import ast
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.session import LoadError, Session
from engine.validation import explain
from proto.messages import TensorInfo
from tasks import SHORT_NAMES, TASKS
from tasks.specification import Defaults, InputSpec, ModelSpec, OutputSpec

TENSOR = "TENSOR"
LABEL_FILES = ("labels.txt", "classes.txt", "class_names.txt")


class Decision(msgspec.Struct, frozen=True):
    """One field, what was decided, and why."""

    field: str
    value: Any
    reason: str


class RuntimeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table `[runtime]` of model.toml: how the model is run."""

    max_batch: Annotated[int, Meta(ge=1)] = 8
    """Images of one request that run together, where the model's batch axis is variable."""
    intra_op_threads: Annotated[int, Meta(ge=0)] = 1
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    warmup: bool = True


class StoreOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table `[store]` of model.toml: what is kept."""

    enabled: bool = True
    inputs: Literal["all", "none"] = "all"
    """Whether input images are kept as blobs."""


class Recognition(msgspec.Struct, frozen=True):
    """Everything decided about one model."""

    task: str
    spec: ModelSpec | None
    """None for `TENSOR`."""
    runtime: RuntimeOptions
    store: StoreOptions
    decisions: tuple[Decision, ...]


class _InputTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str | None = None
    size: tuple[int, int] | None = None
    color: Literal["rgb", "bgr"] | None = None
    layout: Literal["nchw", "nhwc"] | None = None
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    resize: Literal["letterbox", "letterbox_topleft", "stretch", "shortest_crop", "none"] | None = (
        None
    )
    pad_value: Annotated[int, Meta(ge=0, le=255)] | None = None
    crop_fraction: Annotated[float, Meta(gt=0, le=1)] | None = None
    interpolation: Literal["nearest", "linear", "cubic", "area"] | None = None
    antialias: bool | None = None
    exif: Literal["apply", "ignore"] | None = None


class _OutputTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    decoder: str | None = None
    activation: Literal["none", "softmax", "sigmoid"] | None = None


class _DefaultsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    score_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    iou_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_detections: Annotated[int, Meta(ge=1)] | None = None
    top_k: Annotated[int, Meta(ge=1)] | None = None


class _ModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    task: str | None = None
    labels: list[str] | str | None = None
    input: _InputTable = _InputTable()
    output: _OutputTable = _OutputTable()
    defaults: _DefaultsTable = _DefaultsTable()
    runtime: RuntimeOptions = RuntimeOptions()
    store: StoreOptions = StoreOptions()


class _Deciding:
    """Collects decisions; the first source that has a value gives it."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []

    def first(self, field: str, *candidates: tuple[Any, str]) -> Any:
        for value, reason in candidates:
            if value is not None:
                self.decisions.append(Decision(field, value, reason))
                return value
        raise LoadError(
            f"expected {field} to be given by model.toml, a file beside it or the ONNX metadata, got none"
        )


def recognise(folder: Path, session: Session, score_threshold: float | None = None) -> Recognition:
    """Decide what a model is.

    Args:
        folder: The folder of the ONNX file, with model.toml and sidecar files.
        session: The loaded model.
        score_threshold: The server's default, where the model says nothing.

    Raises:
        LoadError: model.toml is wrong, or a field is given nowhere.
    """
    table = _read_toml(folder / "model.toml")
    metadata = session.header.metadata
    deciding = _Deciding()
    task = _task(deciding, table, metadata)
    if task == TENSOR:
        return Recognition(task, None, table.runtime, table.store, tuple(deciding.decisions))
    if len(session.inputs) != 1 and table.input.name is None:
        names = ", ".join(tensor.name for tensor in session.inputs)
        raise LoadError(
            f"expected one input for {task}, got {names}: name the image's in model.toml, [input] name"
        )
    tensor = _image_input(session, table.input.name)
    spec = ModelSpec(
        task=task,
        input=_input(deciding, table.input, tensor, metadata),
        output=_output(deciding, table.output, task, metadata),
        labels=_labels(deciding, table, folder, metadata, _class_count(task, session.outputs)),
        defaults=_defaults(deciding, table.defaults, score_threshold),
    )
    return Recognition(task, spec, table.runtime, table.store, tuple(deciding.decisions))


def _read_toml(path: Path) -> _ModelTable:
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _ModelTable)
    except FileNotFoundError:
        return _ModelTable()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LoadError(f"expected model.toml to be TOML, got: {error}") from error
    except msgspec.ValidationError as error:
        raise LoadError(f"model.toml: {explain(error, _ModelTable)}") from error


def _task(deciding: _Deciding, table: _ModelTable, metadata: Mapping[str, str]) -> str:
    declared = None
    if table.task is not None:
        declared = SHORT_NAMES.get(table.task.lower(), table.task.upper())
        if declared not in (*TASKS, TENSOR):
            known = ", ".join(SHORT_NAMES)
            raise LoadError(f"expected task in model.toml to be one of {known}, got {table.task!r}")
    exported = {"detect": "OBJECT_DETECTION", "classify": "IMAGE_CLASSIFICATION"}
    task: str = deciding.first(
        "task",
        (declared, "model.toml"),
        (exported.get(metadata.get("task", "")), "ONNX metadata of Ultralytics, task"),
        (TENSOR, "nothing says what the model is for; tensors in, tensors out"),
    )
    return task


def _image_input(session: Session, name: str | None) -> TensorInfo:
    for tensor in session.inputs:
        if name in (None, tensor.name):
            if len(tensor.shape) != 4:
                raise LoadError(
                    f"expected input {tensor.name!r} to have 4 dimensions, got {list(tensor.shape)}"
                )
            if tensor.datatype not in ("FP32", "FP16", "UINT8"):
                raise LoadError(
                    f"expected input {tensor.name!r} to be FP32, FP16 or UINT8, got {tensor.datatype}"
                )
            return tensor
    names = ", ".join(tensor.name for tensor in session.inputs)
    raise LoadError(f"expected [input] name in model.toml to be one of {names}, got {name!r}")


def _input(
    deciding: _Deciding, table: _InputTable, tensor: TensorInfo, metadata: Mapping[str, str]
) -> InputSpec:
    ultralytics = "ONNX metadata of Ultralytics"
    exported = metadata.get("task")
    _, *sizes = tensor.shape
    by_shape = "nhwc" if sizes[2] in (1, 3) and sizes[0] not in (1, 3) else "nchw"
    layout = deciding.first("input.layout", (table.layout, "model.toml"), (by_shape, "input shape"))
    channels, height, width = sizes if layout == "nchw" else (sizes[2], sizes[0], sizes[1])
    if channels not in (1, 3):
        raise LoadError(f"expected input {tensor.name!r} to have 1 or 3 channels, got {channels}")
    size_wh = deciding.first(
        "input.size",
        ((width, height) if width > 0 and height > 0 else None, "input shape"),
        (table.size, "model.toml"),
        (_exported_size(metadata), f"{ultralytics}, imgsz"),
    )
    if table.size is not None and tuple(table.size) != tuple(size_wh):
        raise LoadError(
            f"expected [input] size in model.toml to be {list(size_wh)} (width, height) as in the file, "
            f"got {list(table.size)}"
        )
    resize = {"detect": "letterbox", "classify": "shortest_crop"}.get(exported or "")
    dtype = {"FP32": "float32", "FP16": "float16", "UINT8": "uint8"}[tensor.datatype]
    fallback = InputSpec(name=tensor.name, size_wh=(1, 1))
    fields: dict[str, Any] = {
        "resize": deciding.first(
            "input.resize", (table.resize, "model.toml"), (resize, f"{ultralytics}, task")
        ),
        "dtype": deciding.first("input.dtype", (dtype, "input type")),
    }
    exported_values: dict[str, Any] = {}
    if exported == "classify":
        exported_values = {"crop_fraction": 1.0, "antialias": True}
    for name in (
        "color",
        "scale",
        "mean",
        "std",
        "pad_value",
        "crop_fraction",
        "interpolation",
        "antialias",
        "exif",
    ):
        fields[name] = deciding.first(
            f"input.{name}",
            (getattr(table, name), "model.toml"),
            (exported_values.get(name), f"{ultralytics}, task"),
            (getattr(fallback, name), "default"),
        )
    for name in ("mean", "std"):
        if len(fields[name]) < channels:
            raise LoadError(f"expected {channels} values in input.{name}, got {len(fields[name])}")
    return InputSpec(
        name=tensor.name,
        size_wh=tuple(size_wh),
        channels=3 if channels == 3 else 1,
        layout=layout,
        **fields,
    )


def _exported_size(metadata: Mapping[str, str]) -> tuple[int, int] | None:
    size = _literal(metadata.get("imgsz", ""))
    if isinstance(size, list) and len(size) == 2 and all(isinstance(side, int) for side in size):
        return size[1], size[0]
    return None


def _output(
    deciding: _Deciding, table: _OutputTable, task: str, metadata: Mapping[str, str]
) -> OutputSpec:
    ultralytics = "ONNX metadata of Ultralytics, task"
    if task == "OBJECT_DETECTION":
        exported = "ultralytics" if metadata.get("task") == "detect" else None
        decoder = deciding.first(
            "output.decoder", (table.decoder, "model.toml"), (exported, ultralytics)
        )
        return OutputSpec(decoder=decoder)
    already = "none" if metadata.get("task") == "classify" else None
    activation = deciding.first(
        "output.activation",
        (table.activation, "model.toml"),
        (already, f"{ultralytics}: softmax is in the graph"),
    )
    return OutputSpec(activation=activation)


def _class_count(task: str, outputs: Sequence[TensorInfo]) -> int | None:
    """Read the number of classes off the output's shape, where it shows."""
    shape = outputs[0].shape
    if task == "IMAGE_CLASSIFICATION":
        return shape[1] if len(shape) >= 2 and shape[1] > 0 else None
    return shape[1] - 4 if len(shape) == 3 and shape[1] > 4 else None


def _labels(
    deciding: _Deciding,
    table: _ModelTable,
    folder: Path,
    metadata: Mapping[str, str],
    count: int | None,
) -> tuple[str, ...]:
    written = table.labels
    reason = "model.toml"
    if isinstance(written, str):
        written, reason = _lines(folder / written), f"model.toml, {written}"
    sidecar = next((name for name in LABEL_FILES if (folder / name).is_file()), None)
    names = _literal(metadata.get("names", ""))
    if isinstance(names, dict):
        names = [str(names[index]) for index in sorted(names)]
    labels = deciding.first(
        "labels",
        (written, reason),
        (_lines(folder / sidecar) if sidecar else None, f"file {sidecar}"),
        (names, "ONNX metadata of Ultralytics, names"),
        ([f"class_{index}" for index in range(count)] if count else None, "no names given"),
    )
    if count is not None and len(labels) != count:
        source = deciding.decisions[-1].reason
        raise LoadError(
            f"expected {count} labels, as the model has classes, got {len(labels)} ({source})"
        )
    return tuple(labels)


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"expected labels in {path.name}, got: {error}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _defaults(
    deciding: _Deciding, table: _DefaultsTable, score_threshold: float | None
) -> Defaults:
    values: dict[str, Any] = {}
    for name in Defaults.__struct_fields__:
        values[name] = deciding.first(
            f"defaults.{name}",
            (getattr(table, name), "model.toml"),
            (score_threshold if name == "score_threshold" else None, "setting of the server"),
            (getattr(Defaults(), name), "default"),
        )
    return Defaults(**values)


def _literal(text: str) -> Any:
    """Read a Python literal, as Ultralytics writes its metadata; None where it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
