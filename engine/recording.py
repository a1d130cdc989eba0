"""From an answered request to its records: what is kept of it, its ids, and the standard metadata."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from quadriga.engine.embedding import Vector
from quadriga.engine.model import Model
from quadriga.engine.recognition.model_toml import StoreOptions
from quadriga.engine.room import Room
from quadriga.engine.settings import Durability, Settings
from quadriga.engine.signalling import Embed, Signalled, Signaller
from quadriga.proto import chariot
from quadriga.proto.errors import InvalidRequest
from quadriga.store.blobs.interface import Blobs, blob_key
from quadriga.store.durability import Backlog, GroupSync, wait_until_committed
from quadriga.store.errors import JournalError, MetadataError
from quadriga.store.ids import IdSource
from quadriga.store.journal import Journal
from quadriga.store.metadata import check
from quadriga.store.records import InferenceRecord, InputReference
from quadriga.tasks.image import Image
from quadriga.tasks.parameters import ParameterError, flag

COMMIT_WAIT_S = 10.0
"""That an answer with the durability `database` waits for the commit."""

BACKLOG_BYTES = 64 << 20
"""Of inferences with the durability `memory` that wait to be written."""

_RECORD_BYTES = 1024
"""Of a record in memory, beside its image and its predictions."""


class Wishes(msgspec.Struct, frozen=True):
    """What a request wants to have kept, and told, of one image."""

    store: bool = True
    store_input: bool = True
    semantic_score: bool | None = None
    """Whether its score is wanted in the output's parameters; None: as the setting says."""


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
    embedding: Vector | None = None
    """The model's own of the image, float32 (D,); None where it has none."""
    pixels: Image | None = None
    """As decoded; only where its signals are wanted."""
    semantic_score: float | None = None
    """How like the model's baseline it is, in (0, 1]; None where that is not known."""


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


def read_wishes(parameters: Mapping[str, Any], where: str) -> tuple[dict[str, Any], Wishes]:
    """Read the metadata of one input, in any of the forms that Chariot gives it, and what is to be kept.

    Raises:
        InvalidRequest: Metadata do not parse, or break a rule of the store, or a wish is neither true
            nor false.
    """
    metadata = chariot.metadata_of(parameters, where)
    try:
        check(metadata)
        return metadata, _wishes(parameters)
    except (MetadataError, ParameterError) as error:
        raise InvalidRequest(f"{where}: {error}") from error


def _wishes(parameters: Mapping[str, Any]) -> Wishes:
    """Read `store` and `store_input`, by which a request keeps things out of the store, and `semantic_score`."""
    if parameters.keys().isdisjoint(Wishes.__struct_fields__):
        return KEEP
    scored = flag(parameters, "semantic_score", default=False)
    return Wishes(
        flag(parameters, "store", default=True),
        flag(parameters, "store_input", default=True),
        None if parameters.get("semantic_score") is None else scored,
    )


class Recorder:
    """Keeps inferences in a journal, and their images as blobs; safe from several threads.

    Ids and journal are this process's own; `embed` asks another model for an embedding.
    """

    def __init__(
        self,
        ids: IdSource,
        journal: Journal,
        blobs: Blobs,
        settings: Settings,
        engine_version: str,
        *,
        embed: Embed = lambda *_: (None, None),
    ) -> None:
        self._ids = ids
        self._journal = journal
        self._blobs = blobs
        self._settings = settings
        self._engine_version = engine_version
        self._syncing = GroupSync(journal.directory)
        self._backlog = Backlog(BACKLOG_BYTES)
        self.room = Room(journal.directory, settings)
        """Whether there is room for more, and counters of what became of requests."""
        is_behind = self.room.is_behind
        self._signaller = Signaller(ids, journal, settings.signals_per_s, is_behind, embed)

    def choose(self, model: Model, count: int) -> Collection[int]:
        """Choose those of a request's images, by position, whose pixels are wanted for signals."""
        if self._has_signals(model):
            return self._signaller.choose(model.name, count)
        return ()

    def record(self, handled: Handled, answered: Sequence[Answered], *, shed: bool = False) -> Kept:
        """Keep one request, unless it is to be shed; on return the model's durability holds.

        Raises:
            quadriga.store.errors.JournalError: Nothing is certain to be kept, and so nothing may be acknowledged.
        """
        options = handled.model.recognition.written.store
        full, durability = options.journal_full, options.durability or self._settings.durability
        if handled.error:  # it is not acknowledged, and so nobody waits for it
            full, durability = "shed", "process"
        seqs: dict[int, int] = {}
        keep = self._keep_in_memory if durability == "memory" else self._keep
        if not shed:
            try:
                keep(handled, answered, seqs, durability)
            except JournalError as error:
                again = partial(keep, handled, answered, seqs, durability)
                shed = not self.room.insist(error, full, again)
        if shed:
            wanted = sum(item.wishes.store for item in answered)
            self.room.counts.add("shed", wanted)
            return Kept([""] * len(answered), stored=not wanted)
        self.room.counts.add("failed" if handled.error else "stored", len(seqs))
        ids = [""] * len(answered)
        for number, seq in seqs.items():
            ids[number] = str(seq)
        if not handled.error and self._has_signals(handled.model):
            self._signal(handled.model, answered, seqs)
        return Kept(ids)

    def numbers(self) -> dict[str, int]:
        """Give what became of requests, for metrics: those that end in `_total` only rise."""
        return {
            **self.room.counts.totals(),
            "lost_total": self._backlog.lost,
            "journal_bytes_total": self._journal.appended_bytes,
            "lag_bytes": self.room.lag_bytes(),
            **self._signaller.counts.totals(),
        }

    def close(self) -> None:
        """Write what waits in memory, and close the journal."""
        self._backlog.close()
        self._signaller.close()
        self._journal.close()

    def _has_signals(self, model: Model) -> bool:
        """Tell whether a model has signals; what may be lost with the process has none."""
        written = model.recognition.written
        lasts = (written.store.durability or self._settings.durability) != "memory"
        return lasts and written.monitor.signals and self._settings.signals_per_s > 0

    def _signal(self, model: Model, answered: Sequence[Answered], seqs: Mapping[int, int]) -> None:
        """Hand over the images that are recorded now."""
        space, other = model.embedding_space, model.embedding.other
        images = [(seq, answered[n]) for n, seq in seqs.items() if answered[n].image is not None]
        chosen = [
            Signalled(seq, item.pixels, item.embedding, space, other)
            for seq, item in images
            if item.pixels is not None
        ]
        if images:
            self._signaller.put(chosen, len(images) - len(chosen))

    def _keep_in_memory(
        self, handled: Handled, answered: Sequence[Answered], seqs: dict[int, int], _: Durability
    ) -> None:
        """Leave it to a thread; predictions are written out here, so that their size is known."""
        items, size_bytes = list(answered), 0
        for number, item in enumerate(answered):
            if item.wishes.store:
                seqs.setdefault(number, self._ids.next())
                text = msgspec.json.encode(item.predictions)
                items[number] = msgspec.structs.replace(item, predictions=msgspec.Raw(text))
                size_bytes += _RECORD_BYTES + len(item.image or b"") + len(text)
        if seqs:
            self._backlog.put(partial(self._keep, handled, items, seqs, "memory"), size_bytes)

    def _keep(
        self,
        handled: Handled,
        answered: Sequence[Answered],
        seqs: dict[int, int],
        durability: Durability,
    ) -> None:
        """Keep the images, then journal the request, so that no record points to nothing.

        Missing ids, by number, are added just before the append, so that they follow the journal.
        They stay those of a failed try, of which the writer may have read whole frames.
        """
        recognition, on_disk = handled.model.recognition, durability == "power"
        inputs = []
        for number, item in enumerate(answered):
            if item.wishes.store:
                inputs.append((number, item, self._input(recognition.written.store, item)))
        if not inputs:
            return
        if on_disk:
            self._blobs.sync(each.hash for _, _, each in inputs if each.kept and each.hash)
        standard = self._standard(handled, inputs[0][1])
        records = []
        for number, item, kept in inputs:
            score = item.semantic_score
            records.append(
                InferenceRecord(
                    seq=seqs.setdefault(number, self._ids.next()),
                    request_id=handled.request_id,
                    image_no=number,
                    model=handled.model.reference,
                    task=recognition.task,
                    action=item.action,
                    latency_ms=handled.latency_ms,
                    input=kept,
                    predictions=item.predictions,
                    metadata=item.metadata,
                    status=500 if handled.error else 200,
                    standard=standard if score is None else {**standard, "semantic_score": score},
                )
            )
        position = self._journal.append(records, hold_segment=on_disk)
        if on_disk:
            self._syncing.wait(position)
        elif durability == "database":
            wait_until_committed(self._journal.directory, position, COMMIT_WAIT_S)

    def _input(self, options: StoreOptions, item: Answered) -> InputReference:
        """Say what the image is, after keeping it if it is to be kept."""
        image = item.image
        if image is None:
            return InputReference(item.input_name, None, item.width, item.height, item.mime)
        key, keep = None, item.wishes.store_input and options.inputs != "none"
        if keep and options.inputs == "sampled":
            key = blob_key(image)
            keep = _is_sampled(key, options.sample_rate)
        key = self._blobs.put(image) if keep else key or blob_key(image)
        return InputReference(
            item.input_name, key, item.width, item.height, item.mime, keep, len(image)
        )

    def _standard(self, handled: Handled, first: Answered) -> dict[str, Any]:
        standard: dict[str, Any] = {
            "engine": self._engine_version,
            "protocol": handled.protocol,
            "stages_ms": handled.stages_ms,
        }
        if first.image is not None:
            standard["preprocessing"] = handled.model.preprocessing
        if handled.error:
            standard["error"] = handled.error
        return standard


def _is_sampled(key: str, rate: float) -> bool:
    """Tell whether an image is among those kept: the same answer for the same bytes."""
    return int(key.partition(":")[2][:8], 16) < rate * 2**32
