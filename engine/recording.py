"""From an answered request to its records: ids, images kept, one append to the journal."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.model import Model
from proto import chariot
from proto.errors import InvalidRequest
from store.blobs import Blobs
from store.errors import MetadataError
from store.ids import IdSource
from store.journal import Journal
from store.metadata import check
from store.records import InferenceRecord, InputReference, ModelReference


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


class Recorder:
    """Keeps inferences in a journal, and their images as blobs; safe from several threads."""

    def __init__(self, ids: IdSource, journal: Journal, blobs: Blobs) -> None:
        self._ids = ids
        self._journal = journal
        self._blobs = blobs

    def record(
        self, model: Model, request_id: str, latency_ms: float, answered: Sequence[Answered]
    ) -> list[str]:
        """Journal one request; when this returns, its records survive the death of the process.

        Images are kept before the journal is written, so that no record points to nothing.

        Returns:
            Ids in the order of `answered`.

        Raises:
            store.errors.JournalError: Nothing was kept, and so nothing may be acknowledged.
        """
        options = model.recognition.store
        reference = ModelReference(model.name, model.version, model.sha256)
        records = []
        for number, item in enumerate(answered):
            keep = options.inputs == "all" and item.image is not None
            key = None
            if item.image is not None:
                key = self._blobs.put(item.image) if keep else self._blobs.key(item.image)
            records.append(
                InferenceRecord(
                    seq=self._ids.next(),
                    request_id=request_id,
                    image_no=number,
                    model=reference,
                    task=model.recognition.task,
                    action=item.action,
                    latency_ms=latency_ms,
                    input=InputReference(
                        item.input_name, key, item.width, item.height, item.mime, keep
                    ),
                    predictions=item.predictions,
                    metadata=item.metadata,
                )
            )
        self._journal.append(records)
        return [str(record.seq) for record in records]

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()
