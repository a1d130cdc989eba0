"""Events of KServe's logger: a request and a response with one id become one inference.

They come separately, in any order, at any worker, once, twice or never. Each is written before it is acknowledged; who
brings the second stores the inference. What is alone after a while is stored as it is.

Source: KServe, pkg/logger: types, extensions and bodies of the events.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec
from blake3 import blake3

from quadriga.engine.external.log_service import (
    LoggedInference,
    LoggedItem,
    LogResult,
    LogService,
    check_model_name,
    read_time,
)
from quadriga.engine.external.logged_images import SentInference, read_request, read_response
from quadriga.engine.serving.journal_capacity import OutcomeCounters
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import MAX_NAME_CHARACTERS, check_name
from quadriga.proto.request import current_caller
from quadriga.quoting import quoted
from quadriga.store.external.event_halves import EventHalves, HalfKind, Pair, WaitingHalf
from quadriga.store.records.errors import MetadataError, StoreError
from quadriga.store.records.metadata import check

KINDS: Mapping[str, HalfKind] = {
    "org.kubeflow.serving.inference.request": "request",
    "org.kubeflow.serving.inference.response": "response",
}
"""Types of the events of KServe's logger."""

PROTOCOL = "kserve-logger"

ALONE_S = 300.0
"""Seconds after which a half counts as alone."""

MAX_UNREAD_BYTES = 65_536
"""Maximum bytes of a response that are kept as text, if it cannot be read."""

_SWEEP_S = 10.0
_SWEPT_AT_ONCE = 500
_NO_RESPONSE = "no response was logged"
_log = logging.getLogger(__name__)


class EventHalf(msgspec.Struct, frozen=True, kw_only=True):
    """One event, as it waits for the other."""

    id: str
    kind: HalfKind
    model: str
    namespace: str = ""
    component: str = ""
    endpoint: str = ""
    time: str = ""
    metadata: dict[str, Any] = {}
    team: str = ""
    body: bytes = b""


class EventResult(msgspec.Struct, frozen=True):
    """Response to an event."""

    id: str
    """Id of the event."""
    state: Literal["waiting", "stored", "repeated", "late"]
    """`waiting` for the other half; `stored` as an inference; `repeated`, as it came before; `late`, as the other half was
    stored alone meanwhile."""
    inference_ids: list[str] = []


class _Mark(msgspec.Struct, frozen=True):
    """What is known of a pair that is stored."""

    ids: list[str]
    kinds: list[HalfKind]
    """The halves that the inference was made of."""


class EventPairs:
    """Brings the halves of logged inferences together; safe to use from several threads and processes.

    Args:
        service: Stores inferences.
        halves: The halves that wait.
        alone_s: Seconds after which a half counts as alone.
    """

    def __init__(
        self, service: LogService, halves: EventHalves, *, alone_s: float | None = None
    ) -> None:
        self._service = service
        self._halves = halves
        self._alone_s = ALONE_S if alone_s is None else alone_s
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._waiting = (0, 0)
        """Number and bytes of the halves that wait, as of the last sweep."""
        self.counts = OutcomeCounters(
            "events",  # halves that were acknowledged
            "events_repeated",  # of these, those that were there already
            "events_paired",  # pairs that were stored as one inference
            "events_alone",  # halves that were stored alone
            "events_late",  # halves that came when the other was stored alone already
            "events_unread",  # pairs whose predictions could not be read
        )

    def start(self) -> None:
        """Look after halves that stay alone, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="event-halves", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def take(self, attributes: Mapping[str, Any], body: bytes) -> EventResult:
        """Take an event: keep it, or store the inference whose second half it is.

        Raises:
            InvalidRequest: It is none of KServe's logger, or its body cannot be read.
            Forbidden: The key of the caller is for other models.
            quadriga.store.records.errors.JournalError: It cannot be kept now.
        """
        half = read_half(attributes, body, current_caller().team)
        self._service.model_name(half.model)
        (read_request if half.kind == "request" else read_response)(half.body)  # or it is refused
        pair = pair_of(half)
        self.counts.add("events")
        with self._halves.alone(pair):
            if (done := self._halves.done(pair)) is not None:
                mark = msgspec.json.decode(done, type=_Mark)
                is_late = half.kind not in mark.kinds
                self.counts.add("events_late" if is_late else "events_repeated")
                return EventResult(half.id, "late" if is_late else "repeated", mark.ids)
            other: HalfKind = "response" if half.kind == "request" else "request"
            if self._halves.get(pair, half.kind) is not None:
                self.counts.add("events_repeated")
            data = msgspec.msgpack.encode(half)
            self._halves.put(pair, half.kind, data, current_caller().key_id)
            if self._halves.get(pair, other) is None:
                return EventResult(half.id, "waiting")
            result = self._join(pair)
            assert result is not None  # one half was written just now
            self.counts.add("events_paired")
            return EventResult(half.id, "stored", result.ids)

    def counters(self) -> dict[str, float]:
        """Return counters of events, for metrics."""
        waiting, waiting_bytes = self._waiting
        return {
            **self.counts.totals(),
            **self._service.recorder.counts.totals(),
            "events_waiting": waiting,
            "events_waiting_bytes": waiting_bytes,
        }

    def sweep(self) -> int:
        """Store the halves that stayed alone; return how many."""
        stored = 0
        for waiting in self._halves.waiting(self._alone_s):
            if stored >= _SWEPT_AT_ONCE or self._closing.is_set():
                break
            try:
                stored += self._store_alone(waiting)
            except (StoreError, OSError) as error:
                _log.warning("events cannot be stored alone now, and wait: %s", error)
                break
            except Exception:  # noqa: BLE001 - the others must not wait for it
                _log.exception("an event cannot be stored alone, and waits")
        self._waiting = self._halves.counts()
        return stored

    def _run(self) -> None:
        while not self._closing.wait(_SWEEP_S):
            try:
                while self.sweep() >= _SWEPT_AT_ONCE and not self._closing.is_set():
                    pass
            except Exception:  # noqa: BLE001 - the loop must go on
                _log.exception("events that are alone cannot be stored, and wait")

    def _store_alone(self, waiting: WaitingHalf) -> bool:
        pair = waiting.pair
        with self._halves.alone(pair):
            if self._halves.get(pair, waiting.kind) is None:  # another worker was faster
                return False
            is_pair = all(self._halves.get(pair, kind) is not None for kind in KINDS.values())
            if self._join(pair) is None:
                return False
            self.counts.add("events_paired" if is_pair else "events_alone")
            return True

    def _join(self, pair: Pair) -> LogResult | None:
        """Store what is there of a pair as one inference, under the team that sent it; None if nothing is."""
        halves = [half for kind in KINDS.values() if (half := self._read(pair, kind)) is not None]
        if not halves:
            return None
        by_kind = {half.kind: half for half in halves}
        result = self._store(by_kind.get("request"), by_kind.get("response"))
        self._halves.finish(pair, msgspec.json.encode(_Mark(result.ids, list(by_kind))))
        return result

    def _read(self, pair: Pair, kind: HalfKind) -> EventHalf | None:
        """Read a half; one that a loss of power damaged is removed."""
        data = self._halves.get(pair, kind)
        if data is None:
            return None
        try:
            return msgspec.msgpack.decode(data, type=EventHalf)
        except msgspec.MsgspecError:
            _log.error("a logged %s is damaged, and removed: %d bytes", kind, len(data))
            self._halves.remove(pair, kind)
            return None

    def _store(self, request: EventHalf | None, response: EventHalf | None) -> LogResult:
        """Store what is there as one inference, also if it cannot be read: it was acknowledged."""
        half = request or response
        assert half is not None
        service, standard = self._service, {"protocol": PROTOCOL, "event_id": half.id}
        item = LoggedItem(
            time=self._known_time(half.time),
            latency_ms=_latency_ms(request, response),
            error="" if response is not None else _NO_RESPONSE,
            status=200 if response is not None else 500,
        )
        model = service.model_name(half.model)

        def prepare(sent: SentInference) -> LoggedInference:
            metadata = {} if sent.request is None else dict(sent.request.metadata)
            metadata |= _metadata(half)
            try:
                check(metadata)
            except MetadataError as error:
                raise InvalidRequest(f"request: {error}") from error
            return service.prepare(
                sent,
                service.image_limits(),
                model=model,
                item=item,
                metadata=metadata,
                request_id=half.id,
                key=("event", half.namespace, half.component, half.endpoint, half.id),
                standard=standard,
                team=half.team,
            )

        try:
            sent = SentInference(
                request=None if request is None else read_request(request.body),
                response=None if response is None else read_response(response.body),
                description=service.description_of(model, half.team),
                failed=response is None,
            )
            inference = prepare(sent)
        except InvalidRequest as error:
            self.counts.add("events_unread")
            standard["unread"] = str(error)[:1000]
            inference = _prepare_unread(prepare, request, response)
        return service.recorder.store([inference])[0]

    def _known_time(self, text: str) -> str | None:
        """Return the time of an event; None where it is no time that an inference may have."""
        with suppress(InvalidRequest):
            self._service.read_time(text)
            return text
        return None


def _prepare_unread(
    prepare: Callable[[SentInference], LoggedInference],
    request: EventHalf | None,
    response: EventHalf | None,
) -> LoggedInference:
    """Keep what cannot be read: the images, if those can be, and the text of the response."""
    text = "" if response is None else response.body[:MAX_UNREAD_BYTES].decode(errors="replace")
    if request is not None:
        with suppress(InvalidRequest):
            return prepare(SentInference(request=read_request(request.body), unread=text))
    return prepare(SentInference(unread=text))


def read_half(attributes: Mapping[str, Any], body: bytes, team: str) -> EventHalf:
    """Read the attributes of an event.

    Raises:
        InvalidRequest: It is none of KServe's logger.
    """
    kind = KINDS.get(str(attributes.get("type")))
    if kind is None:
        raise InvalidRequest(
            f"expected a CloudEvent of type {' or '.join(KINDS)}, got {quoted(attributes.get('type'), 80)}"
        )
    texts = {
        name: str(attributes.get(name) or "")
        for name in ("id", "inferenceservicename", "namespace", "component", "endpoint", "time")
    }
    for name, text in texts.items():
        check_name(f"attribute {name!r}", text)
        if "\0" in text or text.encode(errors="replace").decode() != text:  # half a surrogate pair
            raise InvalidRequest(
                f"expected attribute {name!r} to be Unicode without NUL, got {quoted(text, 60)}"
            )
    service, component = texts["inferenceservicename"], texts["component"]
    if not service:
        raise InvalidRequest(
            "expected the attribute inferenceservicename, as KServe's logger sends it, got none"
        )
    model = service if component in ("", "predictor") else f"{service}-{component}"
    check_model_name(model)
    return EventHalf(
        id=texts["id"],
        kind=kind,
        model=model,
        namespace=texts["namespace"],
        component=component,
        endpoint=texts["endpoint"],
        time=texts["time"],
        metadata={
            name: value
            for name in ("metadata", "annotations")
            if (value := _json_attribute(attributes.get(name)))
        },
        team=team,
        body=body,
    )


def pair_of(half: EventHalf) -> Pair:
    """Return the pair that a half is of: that of its team, its model and its id alone."""
    parts = (half.model, half.namespace, half.endpoint, half.id)
    text = b"\0".join(part.encode(errors="surrogatepass") for part in parts)
    return Pair(half.team, blake3(text).hexdigest())


def _json_attribute(value: Any) -> dict[str, Any]:
    """Read an attribute that is an object in JSON; empty for any other."""
    if isinstance(value, str) and len(value) <= 16 * MAX_NAME_CHARACTERS:
        with suppress(msgspec.MsgspecError, RecursionError, ValueError):
            return msgspec.json.decode(value, type=dict[str, Any])
    return {}


def _metadata(half: EventHalf) -> dict[str, Any]:
    """Return the metadata of an inference: what the event says beside its body."""
    places = {name: getattr(half, name) for name in ("namespace", "component", "endpoint")}
    kserve: dict[str, Any] = {name: text for name, text in places.items() if text}
    headers = half.metadata.get("metadata") or {}
    if headers:
        kserve["headers"] = {
            str(name).replace(".", "_"): values[0]
            if isinstance(values, list) and values
            else values
            for name, values in headers.items()
        }
    if half.metadata.get("annotations"):
        kserve["annotations"] = {
            str(name).replace(".", "_"): value
            for name, value in half.metadata["annotations"].items()
        }
    metadata = {"kserve": kserve} if kserve else {}
    try:
        check(metadata)
    except MetadataError:
        return {"kserve": places}
    return metadata


def _latency_ms(request: EventHalf | None, response: EventHalf | None) -> float:
    """Return the milliseconds between the times of both events; 0 where they are not known."""
    if request is None or response is None:
        return 0.0
    now_ms = time.time_ns() // 1_000_000
    try:
        begin, end = (read_time(half.time, now_ms).ms for half in (request, response))
    except InvalidRequest:
        return 0.0
    return float(max(end - begin, 0)) if begin is not None and end is not None else 0.0
