"""A pipeline without a server, and the payloads of its journal, for tests of stored requests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.serving.pipeline import Pipeline
from quadriga.engine.serving.recording import Recorder
from quadriga.store.journal.journal import read_frames, segment_paths


def small_settings(**overrides: Any) -> Settings:
    """Return settings for one thread and small images, without signals."""
    options: dict[str, Any] = {
        "threads": 1,
        "max_queue": 8,
        "max_pixels": 1000,
        "max_images": 8,
        "signals_per_s": 0,
    }
    return Settings(**options | overrides)


def load_pipeline(
    models: Path, recorder: Recorder | None, settings: Settings, **options: Any
) -> Pipeline:
    """Load the models of a folder into a pipeline."""
    repository = ModelRepository(models)
    repository.load_all()
    return Pipeline(repository, recorder, settings, **options)


def journal_payloads(directory: Path) -> Iterator[bytes]:
    """Yield the payloads of a journal, in order."""
    for path in segment_paths(directory):
        for _, payload, _ in read_frames(path):
            yield payload
