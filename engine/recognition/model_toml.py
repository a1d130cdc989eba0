"""model.toml: what a user writes beside a model, checked key by key.

`[input]`, `[output]` and `[defaults]` take the fields of the specification's structs; what is written
stays a plain mapping, a layer above what the files say.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from quadriga.engine.schema import explain
from quadriga.engine.session import LoadError
from quadriga.engine.settings import Durability, FullPolicy
from quadriga.tasks import SHORT_NAMES
from quadriga.tasks.specification import Defaults, InputSpec, OutputSpec, Tiling

Read = TypeVar("Read", bound=msgspec.Struct)


class RuntimeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table `[runtime]`: how the model is run."""

    max_batch: Annotated[int, Meta(ge=1)] = 8
    """Images of one request that run together, where the model's batch axis is variable."""
    intra_op_threads: Annotated[int, Meta(ge=0)] = 1
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    warmup: bool = True
    version_labels: tuple[str, ...] = ()
    """Names of this version in TF Serving's paths, `/versions/1` as `/labels/stable`."""


class StoreOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table `[store]`: what is kept."""

    enabled: bool = True
    inputs: Literal["all", "sampled", "none"] = "all"
    """Which input images are kept as blobs."""
    sample_rate: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Of the images that are kept where they are sampled: chosen by their hash, so that duplicates agree."""
    durability: Durability | None = None
    """What an acknowledged inference has survived; None for the server's."""
    journal_full: FullPolicy | None = None
    """What becomes of inferences that there is no room for; None for the server's."""


class MonitorOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table `[monitor]`: what is taken of an image to tell whether images have changed."""

    embedding: str | None = None
    """A tensor of the graph, `none`, or `model:<name>` for another model's; None for what is found."""
    signals: bool = True
    """Whether numbers of its pixels and its embedding are kept."""


class ModelToml(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole model.toml; an absent file is an empty one."""

    task: str | None = None
    family: str | None = None
    """A name in `quadriga.engine.recognition.families.FAMILIES`."""
    labels: list[str] | dict[str, Any] | str | None = None
    """Names by index, `{name = index}`, `{index = name}`, or the name of a file."""
    input: dict[str, Any] = {}
    output: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    text: dict[str, Any] = {}
    tiling: Tiling | None = None
    runtime: RuntimeOptions = RuntimeOptions()
    store: StoreOptions = StoreOptions()
    monitor: MonitorOptions = MonitorOptions()


SPECIFIED: dict[str, type[msgspec.Struct]]
SPECIFIED = {"input": InputSpec, "output": OutputSpec, "defaults": Defaults}
"""Tables whose keys are the fields of a struct of the specification."""

_SCORED = ("detection", "oriented", "segmentation")
DECODED = frozenset(SHORT_NAMES[name] for name in _SCORED)
"""Tasks that read outputs with a decoder."""
_IMAGES = ("classification", *_SCORED)
_OF_SCORED = ("score_threshold", "iou_threshold", "max_detections")
_OF_CONTOURS = ("min_area", "simplify", "epsilon")
_USES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tiling", "output.decoder", "output.background"), _SCORED),
    "output.activation": ("classification", "semantic_logits", "binary", "birefnet"),
    "output.label_offset": ("detection", "oriented", "mask_rcnn", "rf_detr_segment"),
    "output.angle": ("oriented",),
    "defaults.top_k": ("classification",),
    **dict.fromkeys((f"defaults.{name}" for name in _OF_SCORED), _SCORED),
    **dict.fromkeys((f"defaults.{name}" for name in _OF_CONTOURS), ("segmentation",)),
}
"""Tasks and decoders that read a key; the keys that are not here are read by all that take images."""


def check_use(written: ModelToml, task: str, decoder: str) -> None:
    """Refuse keys that nothing reads.

    A decoder of one's own may read all that a task hands it, a task of one's own all that there is.
    """
    short = next((name for name, full in SHORT_NAMES.items() if full == task), None)
    if short is None:
        return
    given = [f"{table}.{key}" for table in SPECIFIED for key in getattr(written, table)]
    given += [key for key in ("labels", "tiling") if getattr(written, key) is not None]
    handed = ("output.activation", "output.label_offset") if ":" in decoder else ()
    for key in given:
        readers = _USES.get(key, _IMAGES)
        if short == "segmentation" and key in handed:
            continue
        if short not in readers and decoder not in readers:
            named = f" with decoder {decoder}" if decoder else ""
            raise LoadError(
                f"expected no {key} in model.toml for {short}{named}, as it is for {', '.join(readers)}, "
                "got one"
            )


def read_model_toml(folder: Path, over: Mapping[str, Any] | None = None) -> ModelToml:
    """Read the model.toml of a model's folder; `over` goes before it, table by table and key by key.

    Raises:
        LoadError: It is no TOML, or a key or value is not one of the schema's.
    """
    path = folder / "model.toml"
    values: dict[str, Any] = {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LoadError(f"expected model.toml to be TOML, got: {error}") from error
    for key, value in (over or {}).items():
        table: Any = values.get(key)
        both = isinstance(table, dict) and isinstance(value, dict) and key != "labels"
        values[key] = table | value if both else value
    written = convert(values, ModelToml, "model.toml:")
    for name, struct in SPECIFIED.items():
        _check(name, struct, getattr(written, name))
    return written


def _check(table: str, struct: type[msgspec.Struct], given: Mapping[str, Any]) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    if unknown := [key for key in given if key not in fields]:
        raise LoadError(
            f"model.toml: expected a key of [{table}] among {', '.join(fields)}, got {unknown[0]!r}"
        )
    some = msgspec.defstruct(table, [(key, fields[key].type) for key in given])
    convert(given, some, f"model.toml: [{table}]")


def convert(values: Mapping[str, Any], schema: type[Read], place: str) -> Read:
    """Read what stands at a place as a struct, or say what is wrong there."""
    try:
        return msgspec.convert(values, schema)
    except msgspec.ValidationError as error:
        raise LoadError(f"{place} {explain(error, schema)}") from error
