"""Takes inferences of models that are served elsewhere: reads the body of a request, checks it, and stores it.

What is wrong with one inference refuses that one alone, as bulk requests of ground truth do.
"""

import datetime as dt
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quadriga.engine.config.settings import FullPolicy, Settings
from quadriga.engine.external.descriptions import (
    DescribedModels,
    ModelDescription,
    check_description,
    convert,
)
from quadriga.engine.external.logged_images import (
    ImageLimits,
    LoggedImage,
    SentInference,
    from_base64,
    read_images,
    read_json_object,
    read_request,
    read_response,
    read_task,
)
from quadriga.engine.models.recognition.model_toml import ModelToml
from quadriga.engine.serving.image_inference import MAX_REQUEST_PIXELS
from quadriga.engine.serving.journal_capacity import OutcomeCounters
from quadriga.engine.serving.recording import COMMIT_TIMEOUT_S, Recorder
from quadriga.proto.access import admit_model
from quadriga.proto.errors import Forbidden, InvalidRequest
from quadriga.proto.http.chariot import parse_metadata_value
from quadriga.proto.messages import check_name
from quadriga.proto.request import current_caller, new_request_id
from quadriga.quoting import quoted
from quadriga.store.blobs.interface import Blobs
from quadriga.store.database.rows import storable_text
from quadriga.store.external.logged_keys import (
    Claim,
    ClaimRequest,
    LoggedKeys,
    key_digest,
    random_digest,
)
from quadriga.store.journal.durability import GroupSync, wait_until_committed
from quadriga.store.journal.journal import Journal
from quadriga.store.records.errors import JournalError, MetadataError, StoreError, UnconfirmedError
from quadriga.store.records.ids import EPOCH_MS, MAX_LEAD_MS, IdSource
from quadriga.store.records.metadata import check
from quadriga.store.records.records import (
    ImageSignals,
    InferenceRecord,
    InputReference,
    JournaledChange,
    ModelReference,
    SignalsOfImages,
    is_replay,
)
from quadriga.tasks.parameters import Budget

MAX_ITEMS = 1000
"""Maximum inferences of a request."""

MAX_MODEL_CHARACTERS = 128
MAX_KEY_CHARACTERS = 256
MAX_VERSION_CHARACTERS = 128
MAX_ERROR_CHARACTERS = 4096
MAX_AHEAD_MS = 86_400_000
"""How far ahead of the server's clock a time may be: until then the sender's clock is wrong, beyond that its time means nothing."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MODEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]| (?=[A-Za-z0-9._-]))*", re.ASCII)
_Size = Annotated[int, Meta(ge=1, le=1_000_000)]


class LoggedItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An inference that was made elsewhere, as a client sends it."""

    model: str = ""
    """Name of the model."""
    version: str | int = ""
    task: str | None = None
    """Task, such as `detection`; None is that of the description, or of the predictions."""
    key: str = ""
    """Text by which the sender knows the inference: the same key again stores nothing. Empty for none."""
    request_id: str = ""
    time: str | float | None = None
    """When it was made: RFC 3339 with a time zone, or seconds since 1970; None for now."""
    latency_ms: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    image: str | None = None
    """The image file, base64-encoded."""
    width: _Size | None = None
    """Width of an image that is not sent, pixels."""
    height: _Size | None = None
    predictions: list[Any] | None = None
    """Predictions in the form of this server's responses."""
    request: dict[str, Any] | None = None
    """Body of the request to the other server, V2 or V1."""
    response: dict[str, Any] | None = None
    """Body of its response."""
    description: ModelDescription | None = None
    """What the output tensors mean."""
    metadata: Any = None
    status: Annotated[int, Meta(ge=100, le=599)] = 200
    """HTTP status of the response: 400 and above is a failed inference."""
    error: str = ""
    """Why it failed."""


class ItemTime(msgspec.Struct, frozen=True):
    """When an inference was made."""

    ms: int | None
    """Milliseconds since 1970; None for now."""
    sent: str = ""
    """The time as it was sent, if it lies ahead of the server's clock and is replaced by now."""


def check_model_name(name: str) -> None:
    """Check the name of a model that is served elsewhere.

    Raises:
        InvalidRequest: It could not be a part of a path, or has another meaning here.
    """
    if not name:
        raise InvalidRequest("model is required: the name of the model that made the inference")
    if len(name) > MAX_MODEL_CHARACTERS or _MODEL.fullmatch(name) is None or is_replay(name):
        raise InvalidRequest(
            f"expected model to be at most {MAX_MODEL_CHARACTERS} letters, digits, single spaces, '.', '_' and '-', which "
            f"begins with a letter or a digit, got {quoted(name, 100)}"
        )


def check_texts(item: LoggedItem) -> None:
    """Check the lengths of the texts of an inference.

    Raises:
        InvalidRequest: One is too long.
    """
    check_name("request_id", item.request_id)
    limits = (("key", MAX_KEY_CHARACTERS), ("error", MAX_ERROR_CHARACTERS))
    for name, limit in limits:
        if len(text := getattr(item, name)) > limit:
            raise InvalidRequest(f"expected {name} of at most {limit} characters, got {len(text)}")
    if len(version := str(item.version)) > MAX_VERSION_CHARACTERS or "\0" in version:
        raise InvalidRequest(
            f"expected version to be a text of at most {MAX_VERSION_CHARACTERS} characters, got {quoted(version, 60)}"
        )
    if (item.width is None) != (item.height is None):
        raise InvalidRequest("expected both width and height, or none of them, got one")


def read_time(value: str | float | None, now_ms: int | None = None) -> ItemTime:
    """Read the time of an inference, which a sender's clock gave.

    Up to a minute ahead of this server it is taken as it is; up to a day ahead it counts as now.

    Raises:
        InvalidRequest: It is no time, or before 2025, or more than a day ahead.
    """
    if value is None:
        return ItemTime(None)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    time_ms = _milliseconds(value)
    if time_ms < EPOCH_MS:
        raise InvalidRequest(f"expected time to be from 2025 on, got {quoted(value, 60)}")
    if time_ms > now_ms + MAX_AHEAD_MS:
        raise InvalidRequest(
            f"expected time to be at most a day ahead of this server's clock, got {quoted(value, 60)}"
        )
    if time_ms > now_ms + MAX_LEAD_MS:
        return ItemTime(None, str(value))
    return ItemTime(time_ms)


def _milliseconds(value: str | float) -> int:
    if isinstance(value, int | float):
        if math.isfinite(value) and abs(value) < 1e12:
            return int(value * 1000)
    else:
        with suppress(ValueError):
            moment = dt.datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return int((moment - _EPOCH) / dt.timedelta(milliseconds=1))
    raise InvalidRequest(
        f"expected time in RFC 3339 with a time zone, or seconds since 1970, got {quoted(value, 60)}"
    )


_RECORD_BYTES = 1024


class LoggedInference(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An inference that was made elsewhere, read and checked."""

    model: ModelReference
    request_id: str
    time: ItemTime
    images: Sequence[LoggedImage]
    metadata: dict[str, Any]
    latency_ms: float = 0.0
    status: int = 200
    standard: dict[str, Any] = {}
    """Standard metadata, the same whenever the inference is sent."""
    digests: Sequence[bytes] = ()
    """Digest of the sender's key for each image; empty without a key."""
    team: str = ""


class LogResult(msgspec.Struct, frozen=True):
    """Result of storing an inference that was made elsewhere."""

    ids: list[str]
    """Id of each of its images."""
    request_id: str
    repeated: bool
    """Whether it was stored before, by its key, so that nothing was stored now."""


class LogRecorder:
    """Stores inferences that were made elsewhere; safe to use from several threads.

    Args:
        ids: Ids of this worker.
        journal: Journal of this worker.
        blobs: Images.
        recorder: Recorder of this worker's own inferences, which knows whether the disk takes more.
        settings: Settings of the server.
    """

    def __init__(
        self, ids: IdSource, journal: Journal, blobs: Blobs, recorder: Recorder, settings: Settings
    ) -> None:
        self._ids = ids
        self._journal = journal
        self._blobs = blobs
        self._recorder = recorder
        # Who sends inferences has to know that they are stored: nothing waits in memory, and nothing is shed.
        self._durability = "process" if settings.durability == "memory" else settings.durability
        self._policy: FullPolicy = "block" if settings.journal_full == "block" else "fail"
        self._is_synced = self._durability == "power"
        self._syncing = GroupSync(journal.directory)
        self.keys = LoggedKeys(journal.directory.parent, ids, is_synced=self._is_synced)
        """Ids of what senders sent with a key."""
        self.counts = OutcomeCounters("logged", "logged_repeated", "logged_refused")
        """Images stored; images that were stored before; inferences that were refused."""

    def store(self, inferences: Sequence[LoggedInference]) -> list[LogResult]:
        """Store inferences, or find those that are stored already; on return the server's durability holds.

        Raises:
            JournalError: Nothing is certain to be stored, and so nothing may be acknowledged.
        """
        if not inferences:
            return []
        capacity = self._recorder.capacity
        capacity.admit(self._policy)
        results: list[LogResult] = []
        # A second try has the ids of the first.
        claims = [
            self._claim(item, number) for item in inferences for number in range(len(item.images))
        ]
        write = partial(self._write, inferences, claims, results)
        try:
            write()
        except JournalError as error:
            if not isinstance(error, UnconfirmedError):
                # Else a commit is late, and the disk is well.
                images = sum(len(image.data or b"") for item in inferences for image in item.images)
                self._recorder.failed_writes.note(error, _RECORD_BYTES * len(inferences), images)
            capacity.retry_write(error, self._policy, write)
        return results

    def _claim(self, item: LoggedInference, number: int) -> Claim | ClaimRequest:
        """Return an id of this worker's own for an image; what claims one, where it has a key or a time."""
        if not item.digests and item.time.ms is None:
            return Claim(self._ids.next(), is_stored=False)
        digest = item.digests[number] if item.digests else random_digest()
        return ClaimRequest(digest, item.time.ms)

    def _write(
        self,
        inferences: Sequence[LoggedInference],
        claims: Sequence[Claim | ClaimRequest],
        results: list[LogResult],
    ) -> None:
        """Store the images, then journal the records."""
        results.clear()
        references = [[self._put(image) for image in item.images] for item in inferences]
        if self._is_synced:
            self._blobs.sync(r.hash for row in references for r in row if r.kept and r.hash)
        requests = [claim for claim in claims if isinstance(claim, ClaimRequest)]
        with self.keys.claimed(requests) if requests else nullcontext(()) as claimed:
            remaining = iter(claimed)
            ids = iter([next(remaining) if isinstance(c, ClaimRequest) else c for c in claims])
            self._append(inferences, references, ids, results)

    def _append(
        self,
        inferences: Sequence[LoggedInference],
        references: Sequence[Sequence[InputReference]],
        claims: Iterator[Claim],
        results: list[LogResult],
    ) -> None:
        """Journal what is not stored yet."""
        records: dict[int, InferenceRecord] = {}
        signals = []
        repeated = 0
        for item, row in zip(inferences, references, strict=True):
            ids, is_new = [], False
            for number, (image, reference) in enumerate(zip(item.images, row, strict=True)):
                claim = next(claims)
                ids.append(str(claim.seq))
                if claim.is_stored or claim.seq in records:
                    repeated += 1
                    continue
                is_new = True
                records[claim.seq] = InferenceRecord(
                    seq=claim.seq,
                    request_id=item.request_id,
                    image_no=number,
                    model=item.model,
                    task=image.task,
                    action="predict",
                    latency_ms=item.latency_ms,
                    input=reference,
                    predictions=image.predictions,
                    metadata=item.metadata,
                    status=item.status,
                    standard=item.standard,
                    team=item.team or msgspec.UNSET,
                )
                if image.statistics:
                    signals.append(ImageSignals(claim.seq, image.statistics))
            results.append(LogResult(ids, item.request_id, repeated=not is_new))
        if records:
            entries: list[Any] = list(records.values())
            if signals:
                entries.append(JournaledChange(self._ids.next(), SignalsOfImages(signals)))
            end = self._journal.append(entries, hold_segment=self._is_synced)
            if self._is_synced:
                self._syncing.wait(end)
            elif self._durability == "database":
                wait_until_committed(self._journal.directory, end, COMMIT_TIMEOUT_S)
        self._recorder.capacity.counts.add("stored", len(records))
        self.counts.add("logged", len(records))
        self.counts.add("logged_repeated", repeated)

    def _put(self, image: LoggedImage) -> InputReference:
        """Store an image, and describe it."""
        if image.data is None:
            return InputReference(image.name, None, image.width, height=image.height)
        return InputReference(
            image.name,
            self._blobs.put(image.data),
            image.width,
            height=image.height,
            mime=image.mime,
            kept=True,
            bytes=len(image.data),
        )


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
            quadriga.store.records.errors.JournalError: Nothing can be stored.
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
        standard: Mapping[str, Any] = {"protocol": PROTOCOL},
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
            standard: Standard metadata that says how it came.
            team: Team that the inference belongs to; None for that of the caller.
        """
        team = current_caller().team if team is None else team
        check_name("request_id", request_id)
        time = self.read_time(item.time)
        images = read_images(sent, limits)
        standard = {"engine": self._version, **standard}
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
        if item.predictions is not None and item.response is not None:
            raise InvalidRequest("expected one of predictions and response, got both")
        request = None if item.request is None else read_request(_json_bytes(item.request))
        response = None if item.response is None else read_response(_json_bytes(item.response))
        image = None if item.image is None else from_base64(item.image)
        if item.image is not None and image is None:
            raise InvalidRequest("image: expected a base64-encoded image file, got another text")
        description = None
        if item.description is not None:
            description = check_description(item.description, "description")
        elif response is not None:
            description = self.description_of(model, current_caller().team)
        sent = SentInference(
            image=image,
            size_wh=(item.width, item.height) if item.width and item.height else None,
            predictions=item.predictions,
            request=request,
            response=response,
            description=description,
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
    document, end = read_json_object(body, "body")
    if body[end:].strip():
        raise InvalidRequest(f"body: expected JSON, got more behind byte {end}")
    listed = document.pop("inferences", None)
    if listed is None:
        return [convert(document, LoggedItem)]
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_ITEMS:
        count = len(listed) if isinstance(listed, list) else type(listed).__name__
        raise InvalidRequest(f"expected inferences to be a list of 1 to {MAX_ITEMS}, got {count}")
    # What all have in common is wrong for all, and its description is read once.
    if (description := convert(document, LoggedItem).description) is not None:
        document["description"] = description
    items: list[LoggedItem | InvalidRequest] = []
    for value in listed:
        try:
            if not isinstance(value, dict):
                raise InvalidRequest(f"expected an object, got {type(value).__name__}")
            items.append(convert({**document, **value}, LoggedItem))
        except InvalidRequest as error:
            items.append(error)
    return items


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return JSON of a body, in which NaN stays a token."""
    return json.dumps(value, separators=(",", ":")).encode()
