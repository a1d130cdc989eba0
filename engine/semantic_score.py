"""The semantic score of each image: how like its model's baseline it is, as `quadriga.monitor.drift.similarity` has it.

It is told and stored, and decides nothing: without references of the model's own embedding there is no score, and
a fault of scoring costs the score alone.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from quadriga.engine.model import Model
from quadriga.engine.recording import Answered
from quadriga.engine.settings import Settings
from quadriga.monitor.drift.similarity import References

REFERENCES = "default.similarity"
"""The file of a model's baseline `default`, in the folder of its name."""

POLL_S = 1.0
"""Between looks at the files."""

PARAMETER = "semantic_score"

_log = logging.getLogger("quadriga.semantic_score")


class SemanticScores:
    """Scores answers; safe from several threads.

    References are read in a thread of their own, never in that of a request.

    Args:
        settings: Of the server.
        models: Gives the names of those that are served.
        poll_s: Seconds between looks at the files.
    """

    def __init__(
        self,
        settings: Settings,
        models: Callable[[], Iterable[str]],
        poll_s: float = POLL_S,
    ) -> None:
        self._settings = settings
        self._models = models
        self._poll_s = poll_s
        self._references: dict[str, References] = {}
        self._seen: dict[str, tuple[int, ...]] = {}
        self._failed: set[str] = set()
        self._stop = threading.Event()
        threading.Thread(target=self._watch, name="semantic-score", daemon=True).start()

    def score(self, model: Model, answered: list[Answered]) -> list[Answered]:
        """Give each of some images of a model its score, where it has an embedding to score."""
        references = self._references.get(model.name)
        if references is None or references.space != model.embedding_space:
            return answered
        return [self._scored(model.name, references, item) for item in answered]

    def headers(self, answered: Sequence[Answered]) -> list[tuple[str, str]]:
        """Write the response header: a score an image, nothing where one has none."""
        scores = _written(answered)
        return [(self._settings.semantic_score_header, scores)] if scores else []

    def parameters(self, answered: Sequence[Answered]) -> dict[str, Any]:
        """Give what the output of some images says of their scores, where that is wanted."""
        wanted = answered[0].wishes.semantic_score
        if wanted is None:
            wanted = self._settings.semantic_score_in_parameters
        scores = _written(answered) if wanted else ""
        if not scores:
            return {}
        return {PARAMETER: answered[0].semantic_score if len(answered) == 1 else scores}

    def close(self) -> None:
        """Read no more references."""
        self._stop.set()

    def _scored(self, name: str, references: References, item: Answered) -> Answered:
        if item.embedding is None:
            return item
        try:
            score = references.score(item.embedding)
        except Exception:  # noqa: BLE001 - whatever it is, the answer goes out
            self._say_once(name, "a score failed")
            return item
        return msgspec.structs.replace(item, semantic_score=round(score, 6))

    def _watch(self) -> None:
        while not self._stop.is_set():
            names = set(self._models())
            for name in names:
                self._look(name)
            for gone in self._seen.keys() - names:
                self._forget(gone)
            self._stop.wait(self._poll_s)

    def _look(self, name: str) -> None:
        """Read a model's references if they are others than before."""
        path = self._settings.baselines_directory / name / REFERENCES
        try:
            found = path.stat()
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if self._seen.get(name) != seen:
                references = References.read(path)
                self._failed.discard(name)
                self._references[name], self._seen[name] = references, seen
                _log.info("%s: scores by %s", name, path)
        except FileNotFoundError:
            self._forget(name)
        except Exception:  # noqa: BLE001 - the thread goes on, with other models and files
            self._references.pop(name, None)
            self._say_once(name, "no scores")

    def _forget(self, name: str) -> None:
        self._seen.pop(name, None)
        self._references.pop(name, None)
        self._failed.discard(name)

    def _say_once(self, name: str, what: str) -> None:
        """Log the present error, unless one of the model was since its references were read."""
        if name not in self._failed:
            self._failed.add(name)
            _log.warning("%s: %s", name, what, exc_info=True)


def _written(answered: Sequence[Answered]) -> str:
    """Write scores with commas between, nothing for one that is none; empty where all are."""
    scores = [item.semantic_score for item in answered]
    if scores.count(None) == len(scores):
        return ""
    return ",".join("" if score is None else f"{score:g}" for score in scores)
