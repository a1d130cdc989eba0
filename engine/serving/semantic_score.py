"""The semantic score of each image: its similarity to the model's baseline, by `quadriga.monitor.drift.similarity`.

Scores are sent and stored, and decide nothing: without references of the model's own embedding space there is no
score, and a failure to score costs the score alone.
"""

import logging
import threading
from collections.abc import Callable, Iterable

import msgspec

from quadriga.engine.config.settings import Settings
from quadriga.engine.models.model import Model
from quadriga.engine.serving.recording import ImageResult
from quadriga.monitor.drift.similarity import References
from quadriga.monitor.model_files import team_folder, teams_with_files

REFERENCES_FILE = "default.similarity"
"""File of the baseline `default`, in the folder of a model's name."""

POLL_INTERVAL_S = 1.0
"""Seconds between checks of the files."""

_log = logging.getLogger("quadriga.semantic_score")

_ModelOfTeam = tuple[str, str]
"""A team, empty for none, and the name of a model: each team has baselines of its own."""


class SemanticScores:
    """Scores images; safe to use from several threads.

    References are read in a thread of their own, never in that of a request.

    Args:
        settings: Settings of the server.
        model_names: Returns the names of the models that are served.
        poll_interval_s: Seconds between checks of the files.
    """

    def __init__(
        self,
        settings: Settings,
        model_names: Callable[[], Iterable[str]],
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self._settings = settings
        self._model_names = model_names
        self._poll_interval_s = poll_interval_s
        self._references: dict[_ModelOfTeam, References] = {}
        self._file_states: dict[_ModelOfTeam, tuple[int, ...]] = {}
        self._failed: set[_ModelOfTeam] = set()
        self._stop = threading.Event()
        threading.Thread(target=self._watch, name="semantic-score", daemon=True).start()

    def score(self, model: Model, results: list[ImageResult], team: str = "") -> list[ImageResult]:
        """Add to each result of a model its semantic score by the team's baseline, where it has an embedding to score."""
        references = self._references_of(model, team)
        if references is None:
            return results
        key = (team, model.name)
        return [self._score_one(key, references, result) for result in results]

    def has_references(self, model: Model, team: str = "") -> bool:
        """Check whether images of a model are scored by the team's baseline."""
        return self._references_of(model, team) is not None

    def _references_of(self, model: Model, team: str) -> References | None:
        references = self._references.get((team, model.name))
        fits = references is not None and references.space == model.embedding_space
        return references if fits else None

    def close(self) -> None:
        """Stop reading references."""
        self._stop.set()

    def _score_one(
        self, key: _ModelOfTeam, references: References, result: ImageResult
    ) -> ImageResult:
        if result.embedding is None:
            return result
        try:
            score = references.score(result.embedding)
        except Exception:  # noqa: BLE001 - whatever it is, the response goes out
            self._log_once(key, "an image could not be scored")
            return result
        return msgspec.structs.replace(result, semantic_score=round(score, 6))

    def _watch(self) -> None:
        while not self._stop.is_set():
            teams = teams_with_files(self._settings.baselines_directory)
            keys = {(team, name) for team in teams for name in self._model_names()}
            for key in keys:
                self._read_references(key)
            for gone in self._file_states.keys() - keys:
                self._forget(gone)
            self._stop.wait(self._poll_interval_s)

    def _read_references(self, key: _ModelOfTeam) -> None:
        """Read a model's references if their file has changed."""
        team, name = key
        path = team_folder(self._settings.baselines_directory, team) / name / REFERENCES_FILE
        try:
            status = path.stat()
            file_state = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._file_states.get(key) != file_state:
                references = References.read(path)
                self._failed.discard(key)
                self._references[key], self._file_states[key] = references, file_state
                _log.info("%s: semantic scores by %s", name, path)
        except FileNotFoundError:
            self._forget(key)
        except Exception:  # noqa: BLE001 - the thread goes on, with other models and files
            self._references.pop(key, None)
            self._log_once(key, "no semantic scores")

    def _forget(self, key: _ModelOfTeam) -> None:
        self._file_states.pop(key, None)
        self._references.pop(key, None)
        self._failed.discard(key)

    def _log_once(self, key: _ModelOfTeam, failure: str) -> None:
        """Log the current exception, unless one of the model was logged since its references were read."""
        if key not in self._failed:
            self._failed.add(key)
            _log.warning("%s: %s", key[1], failure, exc_info=True)
