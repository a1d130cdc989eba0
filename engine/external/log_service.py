"""Takes inferences of models that are served elsewhere: reads the body of a request, checks it, and stores it.

What is wrong with one inference refuses that one alone, as bulk requests of ground truth do.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pybase64

from quadriga.engine.config.settings import Settings
from quadriga.engine.external.described_models import DescribedModels
from quadriga.engine.external.descriptions import ModelDescription, check_description
from quadriga.engine.external.log_items import (
    MAX_ITEMS,
    MAX_VERSION_CHARACTERS,
    ItemTime,
    LoggedItem,
    check_model_name,
    check_texts,
    convert_item,
    read_time,
)
from quadriga.engine.external.log_recorder import LoggedInference, LogRecorder, LogResult
from quadriga.engine.external.logged_images import ImageLimits, SentInference, read_images
from quadriga.engine.external.logged_predictions import read_task
from quadriga.engine.external.payloads import ReadRequest, ReadResponse, read_request, read_response
from quadriga.engine.models.recognition.model_toml import ModelToml
from quadriga.engine.serving.image_inference import MAX_REQUEST_PIXELS
from quadriga.proto.access import admit_model
from quadriga.proto.errors import Forbidden, InvalidRequest
from quadriga.proto.http.chariot import parse_metadata_value
from quadriga.proto.json_text import check_amount
from quadriga.proto.messages import check_name, new_request_id
from quadriga.proto.request import current_caller
from quadriga.quoting import quoted
from quadriga.store.errors import MetadataError, StoreError
from quadriga.store.logged_keys import key_digest
from quadriga.store.metadata import check
from quadriga.store.records import ModelReference
from quadriga.store.rows import storable_text
from quadriga.tasks.parameters import Budget

PROTOCOL = "logged"
"""Protocol in the standard metadata of what was made elsewhere."""

DEFAULT_VERSION = "1"
"""Version of an inference that names none, as of a model here whose folder has no versions."""

MAX_REFUSED = 100
"""Maximum refused inferences that are listed."""

ResolveName = Callable[[str], str]
"""Returns the name of the model that a name means, or the name itself for a new model."""


class RefusedItem(msgspec.Struct, frozen=True):
    """An inference that was refused."""

    item: int
    reason: str


class LogAnswer(msgspec.Struct, frozen=True):
    """Response to inferences that were made elsewhere."""

    stored: int
    """Number of inferences that were stored now."""
    repeated: int
    """Number of inferences that were stored before, by their keys."""
    inferences: list[LogResult | None]
    """Result of each, in order; null for one that was refused."""
    refused: list[RefusedItem]
    """The first that were refused."""
    refused_more: int


class LogBody(LoggedItem, frozen=True, kw_only=True):
    """One inference, or many with what they have in common."""

    inferences: list[LoggedItem] | msgspec.UnsetType = msgspec.UNSET


class LogService:
    """Takes inferences for all callers; safe to use from several threads.

    Args:
        recorder: Stores them.
        described: Descriptions of models.
        resolve: Finds the model that a name means.
        settings: Settings of the server.
        version: Version of the engine.
        has_place: Says whether inferences of a time, in milliseconds since 1970, can be stored.
    """

    def __init__(
        self,
        recorder: LogRecorder,
        described: DescribedModels,
        resolve: ResolveName,
        settings: Settings,
        *,
        version: str,
        has_place: Callable[[int], bool],
    ) -> None:
        self.recorder = recorder
        self.described = described
        self._resolve = resolve
        self._settings = settings
        self._version = version
        self._has_place = has_place

    def log(self, body: bytes) -> LogAnswer:
        """Store the inferences of a body.

        Raises:
            InvalidRequest: The body is no JSON, has too many inferences, or none that can be stored.
            Forbidden: The key is for none of the models.
            quadriga.store.errors.JournalError: Nothing can be stored.
        """
        items = _items(body)
        limits = self.image_limits()
        read: list[LoggedInference | None] = []
        refused: list[RefusedItem] = []
        first: Exception | None = None
        for number, item in enumerate(items):
            location = f"inferences[{number}]: " if len(items) > 1 else ""
            try:
                read.append(self._read(item, limits))
            except (InvalidRequest, Forbidden) as error:
                read.append(None)
                refused.append(RefusedItem(number, f"{location}{error}"))
                first = first or type(error)(f"{location}{error}")
        self.recorder.counts.add("logged_refused", len(refused))
        stored = self.recorder.store([inference for inference in read if inference is not None])
        if not stored and first is not None:
            raise first
        results = iter(stored)
        repeated = sum(result.repeated for result in stored)
        return LogAnswer(
            stored=len(stored) - repeated,
            repeated=repeated,
            inferences=[None if inference is None else next(results) for inference in read],
            refused=refused[:MAX_REFUSED],
            refused_more=max(len(refused) - MAX_REFUSED, 0),
        )

    def image_limits(self) -> ImageLimits:
        """Return the limits of the images of one request."""
        settings = self._settings
        return ImageLimits(
            settings.max_pixels,
            Budget(MAX_REQUEST_PIXELS, "pixels"),
            Budget(settings.max_images, "images"),
            with_statistics=settings.signals_per_s > 0,
        )

    def model_name(self, name: str) -> str:
        """Check the name of a model, and return the name that this server has for it.

        Raises:
            InvalidRequest: It can be no name of a model.
            Forbidden: The key of the caller is for other models.
        """
        check_model_name(name)
        resolved = self._resolve(name)
        admit_model(current_caller(), name, resolved)
        return resolved

    def read_time(self, value: str | float | None) -> ItemTime:
        """Read the time of an inference; raise an `InvalidRequest` for one that it cannot be stored with."""
        item_time = read_time(value)
        if item_time.ms is not None and not self._has_place(item_time.ms):
            raise InvalidRequest(
                f"expected time to be of a month that the database has a partition of, got {quoted(str(value), 60)}: the "
                "owner of its tables makes one, by quadriga migrate --months"
            )
        return item_time

    def description_of(self, model: str, team: str) -> ModelToml | None:
        """Return the kept description of a model of a team; None where there is none."""
        description = self.described.find(model, team)
        return None if description is None else check_description(description, "description")

    def get_description(self, model: str) -> ModelDescription:
        """Return the description of a model; raises as `model_name`, and a `NotFoundError` where there is none."""
        return self.described.get(self.model_name(model), current_caller().team)

    def remove_description(self, model: str) -> ModelDescription:
        """Remove the description of a model, and return it; raises as `get_description`."""
        return self.described.remove(self.model_name(model), current_caller().team)

    def put_description(self, model: str, body: bytes) -> ModelDescription:
        """Keep the description of a model; raises as `log`."""
        name = self.model_name(model)
        try:
            description = msgspec.json.decode(body, type=ModelDescription)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"expected a description in JSON: {error}") from error
        check_description(description, "description")
        self.described.put(name, current_caller().team, description)
        return description

    def prepare(
        self,
        sent: SentInference,
        limits: ImageLimits,
        *,
        model: str,
        item: LoggedItem,
        metadata: dict[str, Any],
        request_id: str,
        key: Sequence[str] = (),
        protocol: str = PROTOCOL,
        facts: Mapping[str, Any] | None = None,
        team: str | None = None,
    ) -> LoggedInference:
        """Read the images and predictions of an inference, and complete it for the journal.

        Args:
            sent: Images and predictions as they were sent.
            limits: Limits of the request.
            model: Name that this server has for the model.
            item: The fields of the inference; those that `sent` has are not read.
            metadata: Checked metadata.
            request_id: Id of the request; empty for a new one.
            key: What the sender knows the inference by; empty for nothing.
            protocol: How it came.
            facts: Further standard metadata.
            team: Team that the inference belongs to; None for that of the caller.
        """
        team = current_caller().team if team is None else team
        check_name("request_id", request_id)
        time = self.read_time(item.time)
        images = read_images(sent, limits)
        standard: dict[str, Any] = {"engine": self._version, "protocol": protocol, **(facts or {})}
        if item.error:
            standard["error"] = item.error
        if time.sent:
            standard["sent_time"] = time.sent
        version = str(item.version) or ("" if sent.response is None else sent.response.version)
        digests = [
            key_digest(team, model.lower(), *key, str(number))
            for number in range(len(images) if key else 0)
        ]
        version = storable_text(version[:MAX_VERSION_CHARACTERS]) or DEFAULT_VERSION
        status = item.status if not sent.failed or item.status >= 400 else 500
        return LoggedInference(
            model=ModelReference(model, version, ""),
            request_id=request_id or ("-".join(key) if key else "") or new_request_id(),
            time=time,
            images=images,
            metadata=metadata,
            latency_ms=item.latency_ms,
            status=status,
            standard=standard,
            digests=digests,
            team=team,
        )

    def _read(self, item: LoggedItem | InvalidRequest, limits: ImageLimits) -> LoggedInference:
        """Read one inference of a body."""
        if isinstance(item, InvalidRequest):
            raise item
        check_texts(item)
        model = self.model_name(item.model)
        request, response = _bodies(item)
        sent = SentInference(
            image=None if item.image is None else _image_bytes(item.image),
            size_wh=None
            if item.width is None or item.height is None
            else (item.width, item.height),
            predictions=item.predictions,
            request=request,
            response=response,
            description=check_description(item.description, "description")
            if item.description is not None
            else self.description_of(model, current_caller().team)
            if response is not None
            else None,
            task=None if item.task is None else read_task(item.task),
            failed=bool(item.error) or item.status >= 400,
        )
        own = {} if request is None else dict(request.metadata)
        try:
            metadata = {**own, **parse_metadata_value(item.metadata, "metadata")}
            check(metadata)
        except MetadataError as error:
            raise InvalidRequest(str(error)) from error
        ids = (item.request_id, request.id if request else "", response.id if response else "")
        return self.prepare(
            sent,
            limits,
            model=model,
            item=item,
            metadata=metadata,
            request_id=next(filter(None, ids), ""),
            key=(item.key,) if item.key else (),
        )


def known_model_name(name: str, served: ResolveName, stored: ResolveName) -> str:
    """Return the name of the model that a name means: of one that is served here, then of one that has inferences.

    While the database does not answer, the name itself stands for a model that is not served here.
    """
    for resolve in (served, stored):
        try:
            return resolve(name)
        except StoreError:
            continue
    return name


def _items(body: bytes) -> list[LoggedItem | InvalidRequest]:
    """Read a body as inferences; one that cannot be read is its error.

    Raises:
        InvalidRequest: It is no JSON object, or has too many inferences.
    """
    document = _decoded(body)
    listed = document.pop("inferences", None)
    if listed is None:
        return [convert_item(document)]
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_ITEMS:
        count = len(listed) if isinstance(listed, list) else type(listed).__name__
        raise InvalidRequest(f"expected inferences to be a list of 1 to {MAX_ITEMS}, got {count}")
    # What all have in common is wrong for all, and its description is read once.
    if (description := convert_item(document).description) is not None:
        document["description"] = description
    items: list[LoggedItem | InvalidRequest] = []
    for value in listed:
        try:
            if not isinstance(value, dict):
                raise InvalidRequest(f"expected an object, got {type(value).__name__}")
            items.append(convert_item({**document, **value}))
        except InvalidRequest as error:
            items.append(error)
    return items


def _decoded(body: bytes) -> dict[str, Any]:
    check_amount(body)
    try:
        try:
            document = msgspec.json.decode(body)
        except msgspec.DecodeError:  # NaN, or a number without end: its inference can be named
            document = json.loads(body)
            if b"\\u" in body:  # json accepts half a surrogate pair, which is no text
                json.dumps(document, ensure_ascii=False).encode()
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(f"expected a body in JSON: {str(error)[:300]}") from error
    except RecursionError as error:
        raise InvalidRequest("expected a body in JSON, got one nested too deeply") from error
    if not isinstance(document, dict):
        raise InvalidRequest(
            f"expected an inference, or an object with a list of inferences, got {type(document).__name__}"
        )
    return document


def _bodies(item: LoggedItem) -> tuple[ReadRequest | None, ReadResponse | None]:
    """Read the bodies of the other server."""
    if item.predictions is not None and item.response is not None:
        raise InvalidRequest("expected one of predictions and response, got both")
    request = response = None
    if item.request is not None:
        request = read_request(_json_bytes(item.request))
    if item.response is not None:
        response = read_response(_json_bytes(item.response))
    return request, response


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return JSON of a body, in which NaN stays a token."""
    return json.dumps(value, separators=(",", ":")).encode()


def _image_bytes(text: str) -> bytes:
    if text.startswith("data:"):
        _, _, text = text.partition(",")
    try:
        return pybase64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise InvalidRequest(
            f"image: expected a base64-encoded image file, got: {error}"
        ) from error
