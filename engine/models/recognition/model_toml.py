"""Settings that a user writes beside a model in model.toml, checked key by key.

`[input]`, `[output]` and `[defaults]` take the fields of the specification's structs and stay plain mappings:
a layer above what the other files say. `[tiling]` has its struct there, too, and `[text]` in
`quadriga.engine.models.image_text.generation`. Which tasks have a use for a key, `check_use` knows; which may be set over the
wire, `quadriga.engine.models.overrides`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from quadriga.engine.config.schema import explain_validation_error, read_text
from quadriga.engine.config.settings import Durability, FullPolicy
from quadriga.engine.models.runners.batched_runs import Batching
from quadriga.engine.models.runners.session import CPU, LoadError, WrittenProvider
from quadriga.tasks import SHORT_NAMES
from quadriga.tasks.segmenters import OF_MAPS
from quadriga.tasks.specification import Defaults, InputSpec, OutputSpec, Tiling

Table = TypeVar("Table", bound=msgspec.Struct)


class RuntimeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[runtime]`: how the model is run."""

    max_batch: Annotated[int, Meta(ge=1)] = 8
    """Images of one request that run together if the model's batch axis is variable."""
    batching: Batching | None = None
    """How requests share runs; None where each runs alone."""
    intra_op_threads: Annotated[int, Meta(ge=0)] = 1
    providers: tuple[WrittenProvider, ...] = (CPU,)
    """Execution providers in order of preference: names, or tables of a name and options."""
    provider_fallback: bool = False
    """Whether the next provider takes the place of one that is not installed or does not start."""
    warmup: bool = True
    isolation: Literal["none", "process"] | None = None
    """Whether the model runs in a process of its own; None for the server's setting."""
    memory_limit_mb: Annotated[int, Meta(ge=0)] = 0
    """MiB that its own process may take; 0: 2048 and four times the size of its files."""
    run_limit_s: Annotated[float, Meta(gt=0, le=86400)] = 60.0
    """Seconds that a run in its own process may take."""
    version_labels: tuple[str, ...] = ()
    """Labels of this version in TF Serving's paths, such as `/labels/stable` for `/versions/1`."""


class StoreOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[store]`: which inferences and images are stored."""

    enabled: bool = True
    share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of inferences that are stored, chosen at random; failures of the model are always stored."""
    inputs: Literal["all", "sampled", "none"] | None = None
    """Inputs that are stored as blobs; None for all images, and no tensors."""
    sample_rate: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Share of inputs stored under `sampled`; chosen by their hash, so that duplicates agree."""
    durability: Durability | None = None
    """What an acknowledged inference survives; None for the server's setting."""
    journal_full: FullPolicy | None = None
    """What happens to an inference when the journal is full; None for the server's setting."""


class MonitorOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[monitor]`: the signals of an image with which drift is measured."""

    embedding: str | None = None
    """Tensor of the graph, `none`, or `model:<name>` for another model's; None for the detected one."""
    signals: bool = True
    """Whether statistics of pixels and the embedding are stored."""


class ThenOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[then]`: the model that a detector's crops are sent to."""

    model: Annotated[str, Meta(min_length=1)]
    """Name of a model of the same repository."""
    version: str | int | None = None
    """Version of it; None for the one that answers requests without a version."""
    labels: Annotated[tuple[str, ...], Meta(min_length=1)] | None = None
    """Labels of the detections whose crops are sent; None for all."""
    min_score: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Lowest score of a detection whose crop is sent."""
    max_crops: Annotated[int, Meta(ge=1, le=1000)] = 32
    """Maximum crops of one image, those of the highest scores."""
    margin: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """Fraction of the box's width, and of its height, that a crop has beyond the box on each side."""


class ModelToml(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a model.toml; an absent file counts as an empty one."""

    task: str | None = None
    family: str | None = None
    """Key of `quadriga.engine.models.recognition.families.FAMILIES`."""
    labels: list[str] | dict[str, Any] | str | None = None
    """Labels by index, `{label = index}`, `{index = label}`, or the name of a file."""
    features: list[str] = []
    """Names of the features of a row, in the order of the inputs and their columns."""
    input: dict[str, Any] = {}
    output: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    text: dict[str, Any] = {}
    tiling: Tiling | None = None
    runtime: RuntimeOptions = RuntimeOptions()
    store: StoreOptions = StoreOptions()
    monitor: MonitorOptions = MonitorOptions()
    then: ThenOptions | None = None


SPECIFIED: dict[str, type[msgspec.Struct]]
SPECIFIED = {"input": InputSpec, "output": OutputSpec, "defaults": Defaults}
"""Tables whose keys are the fields of a struct of the specification."""


_DECODED_TASKS = ("detection", "oriented", "segmentation")
DECODED = frozenset(SHORT_NAMES[name] for name in _DECODED_TASKS)
"""Full names of the tasks that read outputs with a decoder."""
_IMAGE_TASKS = ("classification", *_DECODED_TASKS)
ROWS = "a classifier of rows"
"""Task of model.toml's keys for rows of features."""
_USES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tiling", "output.decoder", "output.background"), _DECODED_TASKS),
    "output.activation": ("classification", ROWS, "semantic_logits", "binary", "birefnet"),
    **dict.fromkeys(("output.name", "labels"), (*_IMAGE_TASKS, ROWS)),
    "output.layout": OF_MAPS,
    "features": ("tensor", ROWS),
    "then": ("detection", "oriented"),
    "output.label_offset": ("detection", "oriented", "mask_rcnn", "rf_detr_segment"),
    "output.angle": ("oriented",),
    "output.nms": (
        *("ultralytics", "ultralytics_transposed", "yolov5", "yolox", "yolox_decoded", "damo_yolo"),
        *("ultralytics_obb", "mmdeploy_rotated", "ultralytics_segment"),
    ),
    "defaults.top_k": ("classification", ROWS),
    **{
        f"defaults.{name}": _DECODED_TASKS
        for name in ("score_threshold", "iou_threshold", "max_detections")
    },
    **{f"defaults.{name}": ("segmentation",) for name in ("min_area", "simplify", "epsilon")},
}
"""Tasks and decoders that read a key; every task on images reads the keys that are not listed."""


def check_use(written: ModelToml, task: str, decoder: str) -> None:
    """Refuse keys of model.toml that neither the task nor the decoder reads.

    A decoder given as module:attribute may read every key of its task, such a task every key at all.

    Raises:
        LoadError: A key has no reader.
    """
    short = next((name for name, full in SHORT_NAMES.items() if full == task), task)
    if short not in (*SHORT_NAMES, ROWS):
        return
    own_keys = ["output.nms"] if ":" in decoder else []
    if own_keys and short == "segmentation":
        own_keys += ["output.activation", "output.label_offset"]
    keys = [f"{table}.{key}" for table in SPECIFIED for key in getattr(written, table)]
    keys += [key for key in ("labels", "features", "tiling", "then") if getattr(written, key)]
    for key in keys:
        readers = _USES.get(key, _IMAGE_TASKS)
        if not {short, decoder} & {*readers} and key not in own_keys:
            description = f" with decoder {decoder}" if decoder else ""
            raise LoadError(
                f"{key} in model.toml has no use for {short}{description}, only for {', '.join(readers)}: "
                "remove it"
            )


def check_labels_of_crops(written: ModelToml, labels: Sequence[str]) -> None:
    """Refuse a label of `[then]` that the model never predicts.

    Raises:
        LoadError: There is one.
    """
    chosen = () if written.then is None else written.then.labels or ()
    for label in chosen:
        if labels and label not in labels:
            hint = "".join(f", is it {close}?" for close in get_close_matches(label, labels, n=1))
            raise LoadError(
                f"model.toml: expected labels of [then] among the {len(labels)} labels of the model, got {label!r:.80}{hint}"
            )


def read_model_toml(folder: Path, overrides: Mapping[str, Any] | None = None) -> ModelToml:
    """Read the model.toml of a model folder.

    Args:
        folder: Model folder.
        overrides: Values that take precedence, table by table and key by key.

    Raises:
        LoadError: The file is not TOML, or a key or value is not in the schema.
    """
    values: dict[str, Any] = {}
    try:
        values = tomllib.loads(read_text(folder / "model.toml"))
    except FileNotFoundError:
        pass
    except ValueError as error:
        raise LoadError(f"expected model.toml to be TOML, got: {error}") from error
    for key, value in (overrides or {}).items():
        table: Any = values.get(key)
        merge = isinstance(table, dict) and isinstance(value, dict) and key != "labels"
        values[key] = table | value if merge else value
    return convert_model_toml(values)


def convert_model_toml(values: Mapping[str, Any]) -> ModelToml:
    """Check the contents of a model.toml; raises as `read_model_toml`."""
    written = convert(values, ModelToml, "model.toml:")
    for name, struct in SPECIFIED.items():
        _check(name, struct, getattr(written, name))
    return written


def _check(table: str, struct: type[msgspec.Struct], values: Mapping[str, Any]) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    if unknown := [key for key in values if key not in fields]:
        raise LoadError(
            f"model.toml: expected a key of [{table}] among {', '.join(fields)}, got {unknown[0]!r}"
        )
    struct_of_keys = msgspec.defstruct(table, [(key, fields[key].type) for key in values])
    convert(values, struct_of_keys, f"model.toml: [{table}]")


def convert(values: Mapping[str, Any], struct: type[Table], location: str) -> Table:
    """Convert a table to a struct.

    Raises:
        LoadError: A key or value is invalid; the text begins with `location`.
    """
    try:
        return msgspec.convert(values, struct)
    except msgspec.ValidationError as error:
        raise LoadError(f"{location} {explain_validation_error(error, struct)}") from error
