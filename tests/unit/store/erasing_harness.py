"""A store whose inferences are erased as a request does it, and what is in it before."""

import json
import threading
from pathlib import Path
from typing import Any

import msgspec

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.changes.erasures import ErasureReceipt
from quadriga.store.changes.service import ChangeService, DeletionResult
from quadriga.store.maintenance.vacuum import vacuum
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import (
    Feedback,
    ImageSignals,
    InferenceRecord,
    InputReference,
    JournaledChange,
    MetadataChange,
    SignalsOfImages,
    TruthStatement,
)
from tests.background import in_background
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

PERSON = "person-7f3a9c51e2"
EARLIER = "earlier-b8d14477ac"
COMMENT = "comment-55aa10f3d9"
OTHERS = 60


class ErasingHarness(StoreHarness):
    """A store whose inferences are erased as a request does it."""

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root, url)
        self.blobs = FileBlobs(root / "blobs", grace_s=3600)
        self.ids = IdSource(0)
        self.changes = ChangeService(
            self.inferences,
            self.journal,
            self.ids,
            lambda value, _: value,
            erasures=self.erasures,
        )

    def record(self, image: bytes, **fields: Any) -> InferenceRecord:
        """Return a record with an image that is stored and was looked at."""
        key = self.blobs.put(image)
        self.blobs.put_thumbnail(key, 256, image + b"\xff\xd9")
        reference = InputReference("image", key, 8, 8, "image/png", kept=True, bytes=len(image))
        return make_record(self.ids.next(), **({"input": reference} | fields))

    def erase(self, where: Any, **keys: Any) -> ErasureReceipt:
        """Erase while a writer runs, and return the receipt."""
        receipt = self.send(where, **keys).erasure
        assert isinstance(receipt, ErasureReceipt)
        assert (receipt.state, receipt.waiting) == ("complete", [])
        return receipt

    def send(self, where: Any, **keys: Any) -> DeletionResult:
        body = json.dumps({"where": where, "erase": True, **keys}).encode()

        def close_segments(stop: threading.Event) -> None:
            while not stop.wait(0.02):
                self.journal.close_on_request()

        with in_background(self.writer.run), in_background(close_segments):
            return self.changes.delete_inferences(body)

    def eraser_step(self) -> bool:
        """Do one step of the erasures, as a writer does between batches and a worker between appends."""
        self.journal.close_on_request()
        self.writer.drain()
        return self.writer.erase()

    def traces(self, *needles: bytes) -> list[tuple[bytes, str]]:
        """Return which of some bytes are in which files of the data folder, or in their names."""
        files = [path for path in self.root.rglob("*") if path.is_file()]
        return [
            (needle, path.name)
            for path in files
            for needle in needles
            if needle in path.read_bytes() or needle.decode(errors="replace") in path.name
        ]

    def traces_after_vacuum(self, *needles: bytes) -> list[tuple[bytes, str]]:
        """Return as `traces` once SQLite's file is written anew: before, its pages may have copies of rows that it moved."""
        vacuum(self.url)
        return self.traces(*needles)

    def answers(self) -> list[bytes]:
        """Return every inference as it is answered, in order."""
        return [
            msgspec.json.encode(self.inferences.get(str(seq)), order="sorted")
            for seq in self.stored_ids()
        ]


def image_of(number: int) -> bytes:
    return f"picture-{number:08d}-".encode() * 40


def fill(store: ErasingHarness, *, erased: int = 3) -> tuple[list[InferenceRecord], list[bytes]]:
    """Store inferences of a person between those of others; return them, and what would be a trace of them."""
    mine = []
    for number in range(OTHERS):
        if number % (OTHERS // erased) == 7:
            metadata = {"person": PERSON, "note": EARLIER * 30, "n": number}
            mine.append(
                store.record(image_of(1000 + number), metadata=metadata, request_id=f"req-{PERSON}")
            )
            store.journal.append(mine[-1:])
        other = {"person": f"other-{number}", "note": "x" * 50 * (number % 9)}
        store.journal.append([store.record(image_of(number), metadata=other)])
    for record in mine:
        person = {"person": PERSON}
        changes = (
            MetadataChange(record.seq, {"note": f"{EARLIER}-changed"}),
            Feedback(record.seq, "thumbs", 1.0, COMMENT),
            SignalsOfImages([ImageSignals(record.seq, b"\1\2\3\4", b"", "0" * 16)]),
            TruthStatement("id", str(record.seq), [{"label": COMMENT}]),
            TruthStatement("input.hash", str(record.input.hash), [{"label": COMMENT}]),
            TruthStatement("meta.person", person["person"], [{"label": COMMENT}]),
            TruthStatement("request_id", record.request_id, [{"label": COMMENT}]),
        )
        store.journal.append([JournaledChange(store.ids.next(), change) for change in changes])
    store.writer.drain()
    needles = [PERSON.encode(), EARLIER.encode(), COMMENT.encode()]
    for record in mine:
        needles += [str(record.seq).encode(), str(record.input.hash).partition(":")[2].encode()]
    needles += [image_of(1000 + number)[:40] for number in range(OTHERS)]
    return mine, needles


def rows_of_others(store: ErasingHarness, mine: list[InferenceRecord]) -> list[bytes]:
    ids = {str(record.seq).encode() for record in mine}
    return [answer for answer in store.answers() if not any(id_ in answer for id_ in ids)]
