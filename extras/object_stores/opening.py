"""Opens the source of a server's models, as the settings name it."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from blake3 import blake3

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.model import Model
from quadriga.engine.models.model_archives import archive_name
from quadriga.engine.models.model_folders import NAME
from quadriga.engine.models.model_host import ModelHost
from quadriga.extras.object_stores.interface import ModelSource, ServedRecord
from quadriga.extras.object_stores.source_watch import SourceWatch
from quadriga.extras.object_stores.watched import WatchedFolder
from quadriga.engine.models.runners.session import LoadError
from quadriga.store.errors import StoreError
from quadriga.store.redaction import without_folders

_RECORD = "served-models.json"
_SHORTEST_POLL_S = 0.2


def open_source(settings: Settings, run_directory: Path | None) -> SourceWatch | None:
    """Return the watch over an object store or a polled folder; None for a folder that is read by request alone.

    Raises:
        LoadError: The optional dependency is not installed, or the URL is none of an object store.
    """
    directory = (run_directory or Path(settings.data) / "run" / "single") / "source"
    poll_s = max(settings.models_poll_s, _SHORTEST_POLL_S) if settings.models_poll_s else 0.0
    if "://" in settings.models:
        return SourceWatch(_fetched(settings), directory, poll_s)
    if not poll_s:
        return None
    record = ServedRecord(directory / _RECORD, "folder")
    return SourceWatch(
        WatchedFolder(Path(settings.models), record, settings.name), directory, poll_s
    )


def _fetched(settings: Settings) -> ModelSource:
    try:
        from quadriga.extras.object_stores.cache import ModelCache  # noqa: PLC0415 - optional dependency
        from quadriga.extras.object_stores.fetched import FetchedModels  # noqa: PLC0415 - as above
        from quadriga.extras.object_stores.objects import ObjectFolder  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        scheme = settings.models.partition("://")[0]
        raise LoadError(f"{scheme}:// requires obstore: pip install 'quadriga[s3]'") from error
    url = settings.models.rstrip("/")
    source_id = blake3(url.encode()).hexdigest()[:16]
    try:
        objects = ObjectFolder(url, settings.max_model_source_bytes)
    except StoreError as error:
        raise LoadError(str(error)) from error
    name = objects.name if NAME.fullmatch(objects.name) and objects.name.strip(".") else "models"
    if settings.name:
        name, source_id = settings.name, f"{source_id}-{settings.name}"
    cache = ModelCache(settings.model_cache_directory / source_id, name)
    record = ServedRecord(Path(settings.data) / _RECORD, source_id)
    return FetchedModels(objects, cache, record)


def try_versions(
    name: str, versions: Mapping[str, Path], score_threshold: float | None, host: ModelHost
) -> None:
    """Load the versions of a model in a process of its own, and drop them; what is packed is not tried.

    Raises:
        LoadError: One does not work; the text is for clients.
    """
    for version, path in versions.items():
        if not path.is_dir() and archive_name(path) is not None:
            continue
        try:
            Model(
                name,
                version,
                path,
                score_threshold=score_threshold,
                host=msgspec.structs.replace(host, origin="trial"),
            )
        except LoadError as error:
            text = without_folders(str(error), path.parent, path)
            raise LoadError(f"version {version}: {text}") from error
