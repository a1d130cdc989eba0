"""A pipeline without a server, and what it journals, for tests of what is kept of requests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quadriga.engine.pipeline import Pipeline
from quadriga.engine.recording import Recorder
from quadriga.engine.repository import ModelRepository
from quadriga.engine.settings import Settings
from quadriga.store.journal import read_frames, segment_paths


def small(**others: Any) -> Settings:
    """Give settings for one thread and small images, without signals."""
    options: dict[str, Any] = {
        "threads": 1,
        "max_queue": 8,
        "max_pixels": 1000,
        "max_images": 8,
        "signals_per_s": 0,
    }
    return Settings(**options | others)


def pipeline_of(
    models: Path, recorder: Recorder | None, settings: Settings, **options: Any
) -> Pipeline:
    """Load the models of a folder into a pipeline."""
    repository = ModelRepository(models)
    repository.load_all()
    return Pipeline(repository, recorder, settings, **options)


def journaled(directory: Path) -> Iterator[bytes]:
    """Give what a journal holds, in order."""
    for path in segment_paths(directory):
        for _, payload, _ in read_frames(path):
            yield payload
