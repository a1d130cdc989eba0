"""From an answered request to its records: what is kept of it, its ids, and the standard metadata."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from engine.model import Model
from engine.model_toml import StoreOptions
from engine.room import Room, RoomLimits
from engine.settings import Durability
from proto import chariot
from proto.errors import InvalidRequest
from store.backlog import Backlog
from store.blobs.interface import Blobs, key_of
from store.errors import MetadataError
from store.ids import IdSource
from store.journal import Journal, Position
from store.lag import wait_until_committed
from store.metadata import check
from store.power import GroupSync
from store.records import InferenceRecord, InputReference, ModelReference
from tasks.parameters import ParameterError, flag

COMMIT_WAIT_S = 10.0
"""That an answer with the durability `database` waits for the commit."""

BACKLOG_BYTES = 64 << 20
"""Of inferences with the durability `memory` that wait to be written."""

_RECORD_BYTES = 1024
"""Of a record in memory, beside its image and its predictions."""


class Wishes(msgspec.Struct, frozen=True):
    """What a request wants to have kept of one image."""

    store: bool = True
    store_input: bool = True


KEEP = Wishes()


class Answered(msgspec.Struct, frozen=True):
    """One image, or one set of tensors, with what was answered."""

    input_name: str
    action: str
    predictions: Any
    metadata: dict[str, Any]
    image: bytes | None = None
    """As received, decoded from base64."""
    width: int | None = None
    height: int | None = None
    mime: str | None = None
    wishes: Wishes = KEEP


class Handled(msgspec.Struct, frozen=True):
    """A request to a model that has been answered, or has failed."""

    model: Model
    request_id: str
    protocol: str
    latency_ms: float
    stages_ms: dict[str, float]
    error: str = ""
    """Why the model failed; empty where it did not."""


class Kept(msgspec.Struct, frozen=True):
    """What became of a request in the store."""

    ids: Sequence[str] = ()
    """One an image; empty for what was not kept."""
    stored: bool = True
    """False where there was no room for it."""


def request_metadata(parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Read and check the metadata of one input, in any of the forms that Chariot gives it.

    Raises:
        InvalidRequest: It does not parse, or breaks a rule of the store.
    """
    metadata = chariot.metadata_of(parameters, where)
    try:
        check(metadata)
    except MetadataError as error:
        raise InvalidRequest(f"{where}: {error}") from error
    return metadata


def request_wishes(parameters: Mapping[str, Any], where: str) -> Wishes:
    """Read `store` and `store_input`, by which a request keeps things out of the store.

    Raises:
        InvalidRequest: One of them is neither true nor false.
    """
    if "store" not in parameters and "store_input" not in parameters:
        return KEEP
    try:
        return Wishes(
            flag(parameters, "store", default=True), flag(parameters, "store_input", default=True)
        )
    except ParameterError as error:
        raise InvalidRequest(f"{where}: {error}") from error


class Recorder:
    """Keeps inferences in a journal, and their images as blobs; safe from several threads.

    Args:
        ids: Of this process.
        journal: Of this process.
        blobs: Where images are kept.
        limits: How far the database may be behind, and what happens beyond.
        engine_version: As records carry it.
        durability: Of models that say nothing.
    """

    def __init__(
        self,
        ids: IdSource,
        journal: Journal,
        blobs: Blobs,
        limits: RoomLimits,
        engine_version: str,
        *,
        durability: Durability = "process",
    ) -> None:
        self._ids = ids
        self._journal = journal
        self._blobs = blobs
        self._durability = durability
        self._engine_version = engine_version
        self._syncing = GroupSync(journal.directory)
        self._backlog = Backlog(BACKLOG_BYTES)
        self.room = Room(journal.directory, limits)
        """Whether there is room for more, and counters of what became of requests."""

    def record(self, handled: Handled, answered: Sequence[Answered], *, shed: bool = False) -> Kept:
        """Keep one request as the model's durability says; when this returns, that holds.

        Args:
            handled: The request.
            answered: Its images, or its tensors.
            shed: Whether there is no room for it.

        Raises:
            store.errors.JournalError: Nothing is certain to be kept, and so nothing may be acknowledged.
        """
        items = [(number, item) for number, item in enumerate(answered) if item.wishes.store]
        if not items:
            return Kept([""] * len(answered))
        options = handled.model.recognition.store
        seqs: list[int] = []
        # What failed is not acknowledged, and so nobody waits for it.
        full = "shed" if handled.error else options.journal_full
        if shed or not self.room.patiently(full, partial(self._keep, handled, items, seqs)):
            self.room.count("shed", len(items))
            return Kept([""] * len(answered), stored=False)
        self.room.count("failed" if handled.error else "stored", len(items))
        ids = [""] * len(answered)
        for (number, _), seq in zip(items, seqs, strict=True):
            ids[number] = str(seq)
        return Kept(ids)

    def numbers(self) -> dict[str, int]:
        """Give what became of requests, for metrics: those that end in `_total` only rise."""
        counts = msgspec.structs.asdict(self.room.counts)
        return {
            **{f"{name}_total": number for name, number in counts.items()},
            "lost_total": self._backlog.lost,
            "journal_bytes_total": self._journal.appended_bytes,
            "lag_bytes": self.room.lag_bytes(),
        }

    def close(self) -> None:
        """Write what waits in memory, and close the journal."""
        self._backlog.close()
        self._journal.close()

    def _keep(
        self, handled: Handled, items: Sequence[tuple[int, Answered]], seqs: list[int]
    ) -> None:
        """Keep a request as its model's durability says; may be repeated with the ids of the first try."""
        durability = handled.model.recognition.store.durability or self._durability
        if handled.error:
            durability = "process"
        if durability == "memory":
            self._keep_in_memory(handled, items, seqs)
            return
        position = self._write(handled, items, seqs, on_disk=durability == "power")
        if durability == "power":
            self._syncing.wait(position)
        elif durability == "database":
            wait_until_committed(self._journal.directory, position, COMMIT_WAIT_S)

    def _keep_in_memory(
        self, handled: Handled, items: Sequence[tuple[int, Answered]], seqs: list[int]
    ) -> None:
        """Leave the writing to a thread; predictions are written out here, so that their size is known."""
        seqs[:] = seqs or [self._ids.next() for _ in items]
        items = [
            (number, msgspec.structs.replace(item, predictions=msgspec.Raw(text)))
            for number, item in items
            for text in [msgspec.json.encode(item.predictions)]
        ]
        size_bytes = sum(
            _RECORD_BYTES + len(item.image or b"") + len(bytes(item.predictions))
            for _, item in items
        )
        self._backlog.put(partial(self._write, handled, items, seqs), size_bytes)

    def _write(
        self,
        handled: Handled,
        items: Sequence[tuple[int, Answered]],
        seqs: list[int],
        *,
        on_disk: bool = False,
    ) -> Position:
        """Keep the images, then journal the request, so that no record points to nothing.

        Args:
            handled: The request.
            items: What is kept of it, with the number of each image.
            seqs: Their ids; where it is empty it is filled just before the append, so that ids follow the
                journal. They stay those of a failed try, of which the writer may have read whole frames.
            on_disk: Whether images are synced before, and the segment is held to be synced.

        Returns:
            Where the append ends.
        """
        model = handled.model
        inputs = [self._input(model.recognition.store, item) for _, item in items]
        if on_disk:
            self._blobs.sync(each.hash for each in inputs if each.kept and each.hash)
        reference = ModelReference(model.name, model.version, model.sha256)
        standard = self._standard(handled, of_images=items[0][1].image is not None)
        seqs[:] = seqs or [self._ids.next() for _ in items]
        return self._journal.append(
            [
                InferenceRecord(
                    seq=seq,
                    request_id=handled.request_id,
                    image_no=number,
                    model=reference,
                    task=model.recognition.task,
                    action=item.action,
                    latency_ms=handled.latency_ms,
                    input=kept,
                    predictions=item.predictions,
                    metadata=item.metadata,
                    status=500 if handled.error else 200,
                    standard=standard,
                )
                for seq, (number, item), kept in zip(seqs, items, inputs, strict=True)
            ],
            hold=on_disk,
        )

    def _input(self, options: StoreOptions, item: Answered) -> InputReference:
        """Say what the image is, after keeping it if it is to be kept."""
        key, keep, image = None, False, item.image
        if image is not None:
            keep = item.wishes.store_input and options.inputs != "none"
            if keep and options.inputs == "sampled":
                key = key_of(image)
                keep = _is_sampled(key, options.sample_rate)
            if keep:
                key = self._blobs.put(image)
            elif key is None:
                key = key_of(image)
        return InputReference(
            item.input_name,
            key,
            item.width,
            item.height,
            item.mime,
            keep,
            None if image is None else len(image),
        )

    def _standard(self, handled: Handled, *, of_images: bool) -> dict[str, Any]:
        standard: dict[str, Any] = {
            "engine": self._engine_version,
            "protocol": handled.protocol,
            "stages_ms": handled.stages_ms,
        }
        if of_images:
            standard["preprocessing"] = handled.model.preprocessing
        if handled.error:
            standard["error"] = handled.error
        return standard


def _is_sampled(key: str, rate: float) -> bool:
    """Tell whether an image is among those kept: the same answer for the same bytes."""
    return int(key.partition(":")[2][:8], 16) < rate * 2**32
