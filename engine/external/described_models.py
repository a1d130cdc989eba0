"""Descriptions of models that are served elsewhere, kept in the data folder for all workers."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from quadriga.engine.external.descriptions import ModelDescription
from quadriga.monitor.model_files import model_file_path, team_folder
from quadriga.store.disk import write_atomically
from quadriga.store.errors import NotFoundError, QueryError, translate_disk_errors

_SUFFIX = "json"


class DescribedModels:
    """The descriptions, each of a model of a team; safe to use from several threads and processes.

    Args:
        directory: Folder of the descriptions.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, model: str, team: str) -> ModelDescription | None:
        """Return the description of a model; None where there is none."""
        with suppress(OSError, msgspec.MsgspecError, QueryError):
            return msgspec.json.decode(self._path(model, team).read_bytes(), type=ModelDescription)
        return None

    def put(self, model: str, team: str, description: ModelDescription) -> None:
        """Keep the description of a model in place of an older one.

        Raises:
            quadriga.store.errors.JournalError: It cannot be written, as on a full disk.
        """
        path = self._path(model, team)
        with translate_disk_errors("keep the description"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, msgspec.json.encode(description), is_synced=True)

    def labels(self, model: str, team: str) -> Sequence[str]:
        """Return the labels of a model; none where nothing describes it."""
        description = self.find(model, team)
        return () if description is None else description.labels

    def get(self, model: str, team: str) -> ModelDescription:
        """Return the description of a model.

        Raises:
            NotFoundError: There is none.
        """
        description = self.find(model, team)
        if description is None:
            raise NotFoundError(f"description not found: {model!r}")
        return description

    def remove(self, model: str, team: str) -> ModelDescription:
        """Remove the description of a model, and return it; raises as `get`."""
        description = self.get(model, team)
        with translate_disk_errors("remove the description"):
            self._path(model, team).unlink(missing_ok=True)
        return description

    def _path(self, model: str, team: str) -> Path:
        return model_file_path(team_folder(self._directory, team), model.lower(), _SUFFIX)
