"""A service that takes logged inferences without a server, and what its journal has."""

import base64
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np

from quadriga.engine.config.settings import Settings
from quadriga.engine.external.descriptions import DescribedModels
from quadriga.engine.external.event_pairs import EventPairs
from quadriga.engine.external.log_service import LogAnswer, LogRecorder, LogService
from quadriga.engine.serving.recording import Recorder
from quadriga.store.blobs.files import open_blobs
from quadriga.store.external.event_halves import EventHalves
from quadriga.store.journal.journal import Journal
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import (
    JournaledChange,
    JournaledRecord,
    SignalsOfImages,
    is_change,
)
from tests.unit.engine.harness import journal_payloads

BOX = {"label": "star", "score": 0.9, "xmin": 1, "ymin": 2, "xmax": 30, "ymax": 40}


def picture(width: int = 8, height: int = 6) -> bytes:
    """Return a PNG file."""
    return cv2.imencode(".png", np.full((height, width, 3), 99, np.uint8))[1].tobytes()


def encoded(data: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(data).decode()


class LogHarness:
    """Takes inferences into a journal of its own."""

    def __init__(self, data: Path, worker: int = 1, **settings: Any) -> None:
        self.data = data
        self.first_place_ms = 0
        self.settings = Settings(data=str(data), **settings)
        ids, journal = IdSource(worker), Journal(self.settings.journal_directory, worker)
        self.blobs = open_blobs(str(data / "blobs"), 3600)
        self.recorder = Recorder(
            ids, journal, self.blobs, settings=self.settings, engine_version="1"
        )
        self.log_recorder = LogRecorder(ids, journal, self.blobs, self.recorder, self.settings)
        self.service = LogService(
            self.log_recorder,
            DescribedModels(data / "descriptions"),
            lambda name: "served" if name.lower() in ("served", "m-served") else name,
            self.settings,
            version="1",
            has_place=lambda time_ms: time_ms >= self.first_place_ms,
        )
        self.halves = EventHalves(data / "events", max_bytes=1_000_000)
        self.events = EventPairs(self.service, self.halves, alone_s=0)

    def log(self, body: Any) -> LogAnswer:
        """Log what a body has."""
        return self.service.log(body if isinstance(body, bytes) else msgspec.json.encode(body))

    def records(self) -> list[JournaledRecord]:
        """Return the journaled records, in order."""
        return [
            msgspec.json.decode(payload, type=JournaledRecord)
            for payload in journal_payloads(self.settings.journal_directory)
            if not is_change(payload)
        ]

    def signals(self) -> list[int]:
        """Return the ids of the inferences that have signals."""
        changes = [
            msgspec.json.decode(payload, type=JournaledChange).change
            for payload in journal_payloads(self.settings.journal_directory)
            if is_change(payload)
        ]
        return [signals.seq for c in changes if isinstance(c, SignalsOfImages) for signals in c.of]

    def predictions(self) -> Any:
        """Return the predictions of the last record."""
        return msgspec.json.decode(self.records()[-1].predictions)

    def standard(self) -> Any:
        """Return the standard metadata of the last record."""
        return msgspec.json.decode(self.records()[-1].standard)

    def close(self) -> None:
        """Close the journal."""
        self.recorder.close()
