"""What one stored inference is: data only, in the form that the journal keeps and the API answers.

One record per image. A request with several images gives several records with one `request_id`.
"""

import time
import zlib
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, get_args

import msgspec

from quadriga.store.records.ids import COUNTER_BITS, replacement_id, worker_of

_EPOCH = date(1970, 1, 1)
_DAY_MS = 86_400_000


class ModelReference(msgspec.Struct, frozen=True):
    """The model that answered."""

    name: str
    version: str
    sha256: str  # of the model's main file, in hexadecimal digits


class InputReference(msgspec.Struct, frozen=True):
    """The image that was asked about; `None` fields where the input was no image."""

    name: str
    """The input's name in the request."""
    hash: str | None = None
    """`blake3:<hex>` of the bytes as received; the key of the blob if it was kept."""
    width: int | None = None
    """Pixels, after the EXIF orientation is applied."""
    height: int | None = None
    mime: str | None = None
    kept: bool = False
    """Whether the bytes were kept as a blob."""
    bytes: int | None = None
    """Size as received."""
    url: str | msgspec.UnsetType = msgspec.UNSET
    """Answers the bytes for a while, to anybody; only where it was asked for."""


class _Record(msgspec.Struct, frozen=True):
    """One inference, but for its JSON."""

    seq: int
    """63-bit time-ordered id (`quadriga.store.records.ids`); a decimal string on the wire."""
    request_id: str
    image_no: int
    """Position of the image within its request, from 0."""
    model: ModelReference
    task: str
    """Chariot's task type, such as `OBJECT_DETECTION`."""
    action: str
    latency_ms: float
    input: InputReference


class InferenceRecord(_Record, frozen=True):
    """One inference, as journaled."""

    predictions: Any
    """A list of predictions as they went over the wire, or anything that encodes as such."""
    metadata: dict[str, Any]
    """Plain nested JSON; see `quadriga.store.records.metadata` for the rules of keys and values."""
    status: int = 200
    """The HTTP status of the answer: 200, or 500 where the model failed."""
    standard: dict[str, Any] = {}
    """What the engine itself knows: versions, hashes, protocol, milliseconds of each stage."""
    team: str | msgspec.UnsetType = msgspec.UNSET
    """Team whose key made the inference; left out where it belongs to none."""


IDEMPOTENCY_KEY = "idempotency"
"""Key of the standard metadata: the name of an inference whose request may be sent again, in 32 hexadecimal digits."""


class JournaledRecord(_Record, frozen=True):
    """An `InferenceRecord` read back, its JSON left as it was written."""

    predictions: msgspec.Raw
    metadata: msgspec.Raw
    status: int = 200
    standard: msgspec.Raw = msgspec.Raw(b"{}")
    team: str | msgspec.UnsetType = msgspec.UNSET


class MetadataChange(msgspec.Struct, frozen=True, tag="metadata"):
    """Metadata added to an inference, replaced or removed, after it was stored."""

    target: int
    set: dict[str, Any] = {}  # top-level keys and their new values
    remove: list[str] = []  # top-level keys


class TruthStatement(msgspec.Struct, frozen=True, tag="truth"):
    """Ground truth of the inferences that a field selects, stored already or later."""

    join: str
    """Field that selects the inferences: `id`, `request_id`, `input.hash` or `meta.<path>`."""
    value: str
    """Value of the join field; a number or boolean of the metadata as JSON."""
    annotations: list[Any] | None
    """Annotations as on the wire; None removes the ground truth."""
    source: str = ""
    """Who says so."""
    task: str | None = None
    """Chariot's task type, empty for any; None is derived from the annotations."""
    model: str = ""
    """Name of the model; empty for every one."""
    owner: str = "default"
    """Team that states it, and whose inferences it holds for; `default` for one that holds for those of every team."""
    expected: int | None = None
    """Revision that must be current for the statement to be applied, which is joined by `id`: 0 for none,
    `ANY_REVISION` for any; None makes no condition."""
    review: str = ""
    """Review status, one of `REVIEWS`; empty for none."""


ANY_REVISION = -1

REJECTED = "rejected"
"""Review status of ground truth that is not evaluated."""

ReviewStatus = Literal["", "needs_review", "approved", "rejected"]
"""Review status of a statement of ground truth; empty for none."""

REVIEWS: tuple[str, ...] = get_args(ReviewStatus)[1:]
"""Review statuses that can be stated."""


class Feedback(msgspec.Struct, frozen=True, tag="feedback"):
    """What a user says of an inference."""

    target: int
    kind: str  # such as `thumbs`
    value: float | None = None
    comment: str = ""
    source: str = ""


class Deletion(msgspec.Struct, frozen=True, tag="deletion"):
    """Inferences to be removed, with everything that hangs on them."""

    targets: list[int]


class RetentionRule(msgspec.Struct, frozen=True, tag="retention"):
    """How long a model's inferences and inputs are kept; None is for ever."""

    model: str
    inputs_days: float | None = None
    inferences_days: float | None = None
    team: str = ""
    """Team whose inferences the rule is for; empty for those of every team."""


IMAGE_STATISTICS = (
    "brightness", "contrast", "blur", "saturation", "colour_a", "colour_b", "dark", "burnt",
)  # fmt: skip
"""Names of the numbers of an image that drift is told by, in the order in which they are stored."""


class ImageSignals(msgspec.Struct, frozen=True, omit_defaults=True):
    """What drift is told by and no row tells, of one image; what is empty says nothing."""

    seq: int
    picture: bytes = b""  # float32, little-endian, in the order of `IMAGE_STATISTICS`
    embedding: bytes = b""  # float16, little-endian
    space: str = ""  # tells which embeddings may be compared: 16 hexadecimal digits


class SignalsOfImages(msgspec.Struct, frozen=True, tag="signals"):
    """Signals of some inferences, made after they were recorded."""

    of: list[ImageSignals]


class StoredSignals(msgspec.Struct, frozen=True):
    """Signals of one inference as the database has them; fields as of `ImageSignals`."""

    picture: bytes | None
    embedding: bytes | None
    space: str | None


Change = MetadataChange | TruthStatement | Feedback | Deletion | RetentionRule | SignalsOfImages


class JournaledChange(msgspec.Struct, frozen=True):
    """A change of what is stored, as journaled between the records: applied by the writer, in order."""

    seq: int
    change: Change


def is_change(payload: bytes) -> bool:
    """Tell whether a frame of the journal holds a change, not a record."""
    return payload.startswith(b'"change":', payload.index(b",") + 1)


def is_add_only(payload: bytes) -> bool:
    """Tell whether a frame adds rows and changes none, so that other servers may write beside it."""
    adds = payload.startswith(b'"change":{"type":"signals"', payload.index(b",") + 1)
    return adds or not is_change(payload)


class StoredFeedback(msgspec.Struct, frozen=True):
    """Feedback as the API answers it."""

    id: str
    created_at: str
    kind: str
    value: float | None
    comment: str
    source: str


class StoredInference(msgspec.Struct, frozen=True):
    """One inference as the API answers it."""

    id: str
    request_id: str
    image_no: int
    model: ModelReference
    task: str
    action: str
    created_at: str
    """RFC 3339, UTC, milliseconds."""
    latency_ms: float
    input: InputReference
    predictions: Any
    """`msgspec.Raw` in fact, as `metadata`: JSON that passes through unread."""
    metadata: Any
    status: int
    standard_metadata: Any
    """What the engine itself wrote; see `InferenceRecord.standard`."""
    team: str | msgspec.UnsetType = msgspec.UNSET
    """Team whose key made the inference; left out where it belongs to none."""
    ground_truth: Any = None
    """Annotations, in the form of predictions without scores; None where there is no truth."""
    ground_truth_review: str | msgspec.UnsetType = msgspec.UNSET
    """Review status of the ground truth, one of `REVIEWS`; left out where it has none."""
    feedback: Any = msgspec.UNSET
    """A list of `StoredFeedback`, oldest first; not in pages."""
    left_out: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Names of the fields whose JSON is damaged, or too large where that is said, and not here; left out for none."""


def json_text(value: Any) -> str:
    """Return JSON as the database has it."""
    return msgspec.json.encode(value).decode()


def parse_time(text: str) -> datetime:
    """Return a time of ISO 8601, such as RFC 3339, in UTC; one without an offset is in UTC.

    Raises:
        ValueError: The text is not a time.
    """
    time = datetime.fromisoformat(text.strip())
    try:
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError(f"expected a time from year 1 to 9999 in UTC, got {text!r}") from error


def now_text() -> str:
    """Return the time as RFC 3339 in UTC."""
    return timestamp_text(time.time_ns() // 1_000_000)


def timestamp_text(milliseconds: int) -> str:
    """Format milliseconds since the epoch as RFC 3339 in UTC, as `2026-01-31T12:00:00.000Z`."""
    day, rest = divmod(milliseconds, _DAY_MS)
    minute, rest = divmod(rest, 60_000)
    second, rest = divmod(rest, 1000)
    return f"{_day_text(day)}T{_minute_text(minute)}:{second:02}.{rest:03}Z"


@lru_cache(1440)
def _minute_text(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


@lru_cache
def _day_text(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).isoformat()


# Replays: answers of a version to stored images, under the name of the model and a suffix that no folder can have. So counts,
# searches, retention, drift and evaluations of a model concern its live inferences alone, and this name asks for its replays.
# Shadows of release 0.2.0, which saw live requests, are stored alike.

REPLAY_SUFFIX, SHADOW_SUFFIX = "~replay", "~shadow"
SUFFIXES = (REPLAY_SUFFIX, SHADOW_SUFFIX)

REPLAY_OF = "replay_of"
"""Key of the standard metadata of a replay, and parameter of its request: the id of the inference that is replayed."""


def replay_name(model: str) -> str:
    """Return the name under which replays of a model are stored."""
    return model if is_replay(model) else model + REPLAY_SUFFIX


def is_replay(name: str) -> bool:
    """Check whether a name is that of replays, or of a shadow."""
    return name.lower().endswith(SUFFIXES)


def live_name(name: str) -> str:
    """Return the name of the model that is replayed; any other name as it is."""
    return name.rpartition("~")[0] if is_replay(name) else name


def replay_id(replayed: int, model: ModelReference) -> int:
    """Return the id of a replay: of the same millisecond as the inference, and the same whenever it is replayed.

    Inferences of one worker and millisecond keep ids of their own, as the model moves all of them equally far.
    """
    text = f"{worker_of(replayed)} {model.name} {model.version} {model.sha256}"
    step = (
        zlib.crc32(text.encode()) % ((1 << COUNTER_BITS) - 1) + 1
    )  # never 0: an import may be replayed
    return replacement_id(replayed, replayed + step)
