"""Stores inferences that were made elsewhere: in the journal of the worker, with the promises of its own inferences."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from quadriga.engine.config.settings import FullPolicy, Settings
from quadriga.engine.external.log_items import ItemTime
from quadriga.engine.external.logged_images import LoggedImage
from quadriga.engine.serving.journal_capacity import OutcomeCounters
from quadriga.engine.serving.recording import COMMIT_TIMEOUT_S, Recorder
from quadriga.store.blobs.interface import Blobs
from quadriga.store.durability import GroupSync, wait_until_committed
from quadriga.store.errors import JournalError, UnconfirmedError
from quadriga.store.ids import IdSource
from quadriga.store.journal import AppendPosition, Journal
from quadriga.store.logged_keys import Claim, ClaimRequest, LoggedKeys, random_digest
from quadriga.store.records import (
    ImageSignals,
    InferenceRecord,
    InputReference,
    JournaledChange,
    ModelReference,
    SignalsOfImages,
)

_RECORD_BYTES = 1024
_ACTION = "predict"


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
        requests = [
            ClaimRequest(item.digests[number] if item.digests else random_digest(), item.time.ms)
            for item in inferences
            if _is_claimed(item)
            for number in range(len(item.images))
        ]
        own_ids: dict[tuple[int, int], int] = {}
        write = partial(self._write, inferences, requests, own_ids, results)
        try:
            write()
        except JournalError as error:
            if not isinstance(
                error, UnconfirmedError
            ):  # else a commit is late, and the disk is well
                images = sum(len(image.data or b"") for item in inferences for image in item.images)
                self._recorder.failed_writes.note(error, _RECORD_BYTES * len(inferences), images)
            capacity.retry_write(error, self._policy, write)
        return results

    def _write(
        self,
        inferences: Sequence[LoggedInference],
        requests: Sequence[ClaimRequest],
        own_ids: dict[tuple[int, int], int],
        results: list[LogResult],
    ) -> None:
        """Store the images, then journal the records; a second try has the ids of the first."""
        results.clear()
        references = [[self._put(image) for image in item.images] for item in inferences]
        if self._is_synced:
            self._blobs.sync(r.hash for row in references for r in row if r.kept and r.hash)
        with self._claims(requests) as claims:
            remaining = iter(claims)
            ids = [
                [
                    next(remaining)
                    if _is_claimed(item)
                    else Claim(
                        own_ids.setdefault((place, number), self._ids.next()), is_stored=False
                    )
                    for number in range(len(item.images))
                ]
                for place, item in enumerate(inferences)
            ]
            self._append(inferences, references, ids, results)

    @contextmanager
    def _claims(self, requests: Sequence[ClaimRequest]) -> Iterator[list[Claim]]:
        """Claim ids for the context, if any have to be."""
        if not requests:
            yield []
            return
        with self.keys.claimed(requests) as claims:
            yield claims

    def _append(
        self,
        inferences: Sequence[LoggedInference],
        references: Sequence[Sequence[InputReference]],
        claims: Sequence[Sequence[Claim]],
        results: list[LogResult],
    ) -> None:
        """Journal what is not stored yet."""
        records: dict[int, InferenceRecord] = {}
        signals = []
        repeated = 0
        for item, row, item_claims in zip(inferences, references, claims, strict=True):
            is_new = False
            images = zip(item.images, row, item_claims, strict=True)
            for number, (image, reference, claim) in enumerate(images):
                if claim.is_stored or claim.seq in records:
                    repeated += 1
                    continue
                is_new = True
                records[claim.seq] = _record(
                    claim.seq, item, number, image=image, reference=reference
                )
                if image.statistics:
                    signals.append(ImageSignals(claim.seq, image.statistics))
            ids = [str(claim.seq) for claim in item_claims]
            results.append(LogResult(ids, item.request_id, repeated=not is_new))
        if records:
            entries: list[Any] = list(records.values())
            if signals:
                entries.append(JournaledChange(self._ids.next(), SignalsOfImages(signals)))
            self._wait(self._journal.append(entries, hold_segment=self._is_synced))
        self._recorder.capacity.counts.add("stored", len(records))
        self.counts.add("logged", len(records))
        self.counts.add("logged_repeated", repeated)

    def _wait(self, end: AppendPosition) -> None:
        if self._is_synced:
            self._syncing.wait(end)
        elif self._durability == "database":
            wait_until_committed(self._journal.directory, end, COMMIT_TIMEOUT_S)

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


def _is_claimed(item: LoggedInference) -> bool:
    """Check whether the ids of an inference have to be claimed: others are this worker's own."""
    return bool(item.digests) or item.time.ms is not None


def _record(
    seq: int,
    item: LoggedInference,
    number: int,
    image: LoggedImage,
    reference: InputReference,
) -> InferenceRecord:
    return InferenceRecord(
        seq=seq,
        request_id=item.request_id,
        image_no=number,
        model=item.model,
        task=image.task,
        action=_ACTION,
        latency_ms=item.latency_ms,
        input=reference,
        predictions=image.predictions,
        metadata=item.metadata,
        status=item.status,
        standard=item.standard,
        team=item.team or msgspec.UNSET,
    )
