"""What a client says of a model that is served elsewhere, so that its output tensors can be read as predictions.

A description has the keys of model.toml that say what outputs mean; nothing in it names a file or code of this server.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quadriga.engine.models.recognition.evidence import ANY_CHANNELS, Evidence, channels_axis
from quadriga.engine.models.recognition.families import FAMILIES, Family
from quadriga.engine.models.recognition.model_spec import decide_spec
from quadriga.engine.models.recognition.model_toml import ModelToml, convert_model_toml
from quadriga.engine.models.runners.session import LoadError
from quadriga.monitor.model_files import model_file_path, team_folder
from quadriga.proto.errors import InvalidRequest, unexpected
from quadriga.proto.messages import Tensor, TensorInfo
from quadriga.store.records.disk import translate_disk_errors, write_atomically
from quadriga.store.records.errors import NotFoundError, QueryError
from quadriga.tasks import TASKS, full_name
from quadriga.tasks.decoders import DECODERS, is_table
from quadriga.tasks.segmenters import SEGMENTERS
from quadriga.tasks.specification import ModelSpec

MAX_LABELS = 65_536
"""Maximum labels of a description."""

Converted = TypeVar("Converted")

_NO_FOLDER = Path("/nonexistent")


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description of a model, with the keys of model.toml."""

    task: str
    """Task of the model, such as `detection`."""
    labels: list[str]
    """Label of each class, in the order of the classes."""
    family: str | None = None
    """Family of the model, which decides what the rest does not."""
    input: dict[str, Any] = {}
    """Table `[input]`: how an image becomes the input tensor."""
    output: dict[str, Any] = {}
    """Table `[output]`: how the output tensors are read, such as its `decoder`."""
    defaults: dict[str, Any] = {}
    """Table `[defaults]`, such as the `score_threshold`."""


def check_description(description: ModelDescription, location: str) -> ModelToml:
    """Check a description, and return it as model.toml says it.

    Raises:
        InvalidRequest: It is invalid, or names what a client may not name.
    """
    task = full_name(description.task)
    decoder = description.output.get("decoder", "")
    if task not in TASKS:
        raise unexpected(f"{location}.task", f"one of {', '.join(TASKS)}", description.task)
    family = description.family
    if family is not None and family not in FAMILIES:
        raise unexpected(f"{location}.family", f"one of {', '.join(FAMILIES)}", family)
    is_segmentation = task == "IMAGE_SEGMENTATION"
    decoders = SEGMENTERS if is_segmentation else DECODERS
    if decoder and decoder not in decoders and (is_segmentation or not is_table(decoder)):
        raise unexpected(f"{location}.output.decoder", f"one of {', '.join(decoders)}", decoder)
    if not 0 < len(description.labels) <= MAX_LABELS:
        raise InvalidRequest(
            f"{location}.labels: expected 1 to {MAX_LABELS} labels, got {len(description.labels)}"
        )
    members = msgspec.structs.asdict(description).items()
    try:
        return convert_model_toml({key: value for key, value in members if value not in (None, {})})
    except LoadError as error:
        raise InvalidRequest(f"{location}: {_without_file(error)}") from error


def convert(value: Any, type_: type[Converted], location: str = "") -> Converted:
    """Convert decoded JSON; raise an `InvalidRequest` that begins with the location and names the key."""
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$.", "`").replace("`", "'")
        raise InvalidRequest(f"{location}{text}") from error


def described_spec(
    written: ModelToml, inputs: Sequence[Tensor], outputs: Sequence[Tensor], location: str
) -> ModelSpec:
    """Return how the output tensors of a described model are read.

    Args:
        written: The checked description.
        inputs: Input tensors of the request, where they are known.
        outputs: Output tensors of the response.
        location: Place in the request, for messages.

    Raises:
        InvalidRequest: The description does not say enough, or does not fit the tensors.
    """
    task = full_name(written.task or "")
    family = FAMILIES[written.family] if written.family else Family(task, "")
    if family.task != task:
        raise InvalidRequest(
            f"{location}: expected a family of {task}, got {written.family} of {family.task}"
        )
    evidence = Evidence(
        inputs=(_image_input(written, inputs, location),),
        outputs=tuple(TensorInfo(t.name, t.datatype, t.shape) for t in outputs),
        written=written,
        folder=_NO_FOLDER,
    )
    try:
        return decide_spec([], evidence, family, task=task, score_threshold=None)
    except LoadError as error:
        raise InvalidRequest(f"{location}: {_without_file(error)}") from error


def _image_input(written: ModelToml, inputs: Sequence[Tensor], location: str) -> TensorInfo:
    """Return the input that takes the image: the tensor of the request, or what the description says of it."""
    described = [TensorInfo(t.name, t.datatype, t.shape) for t in inputs]
    image_like = [tensor for tensor in described if channels_axis(tensor, ANY_CHANNELS)]
    if len(image_like) == 1:
        return image_like[0]
    size = written.input.get("size")
    if not (isinstance(size, Sequence) and len(size) == 2):
        raise InvalidRequest(
            f"{location}: input.size is required, [width, height], as no input tensor gives it"
        )
    name, channels = str(written.input.get("name", "images")), written.input.get("channels", 3)
    shape = (-1, channels, size[1], size[0])
    if written.input.get("layout") == "nhwc":
        shape = (-1, size[1], size[0], channels)
    return TensorInfo(name, "FP32", shape)


def _without_file(error: Exception) -> str:
    """Return a text about model.toml as one about a description, which stands in a request."""
    return str(error).replace("in model.toml", "in the description").replace("model.toml: ", "")


class DescribedModels:
    """The descriptions, each of a model of a team; safe to use from several threads and processes.

    Args:
        directory: Folder of the descriptions.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, model: str, team: str) -> ModelDescription | None:
        """Return the description of a model; None where there is none."""
        with suppress(OSError, msgspec.MsgspecError, QueryError):
            return msgspec.json.decode(self._path(model, team).read_bytes(), type=ModelDescription)
        return None

    def put(self, model: str, team: str, description: ModelDescription) -> None:
        """Keep the description of a model in place of an older one.

        Raises:
            quadriga.store.records.errors.JournalError: It cannot be written, as on a full disk.
        """
        path = self._path(model, team)
        with translate_disk_errors("keep the description"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, msgspec.json.encode(description), is_synced=True)

    def labels(self, model: str, team: str) -> Sequence[str]:
        """Return the labels of a model; none where nothing describes it."""
        description = self.find(model, team)
        return () if description is None else description.labels

    def get(self, model: str, team: str) -> ModelDescription:
        """Return the description of a model.

        Raises:
            NotFoundError: There is none.
        """
        description = self.find(model, team)
        if description is None:
            raise NotFoundError(f"description not found: {model!r}")
        return description

    def remove(self, model: str, team: str) -> ModelDescription:
        """Remove the description of a model, and return it; raises as `get`."""
        description = self.get(model, team)
        with translate_disk_errors("remove the description"):
            self._path(model, team).unlink(missing_ok=True)
        return description

    def _path(self, model: str, team: str) -> Path:
        return model_file_path(team_folder(self._directory, team), model.lower(), "json")
