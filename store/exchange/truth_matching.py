"""Which stored inferences a ground truth of a file is for, and why it is for none."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from quadriga.quoting import quoted
from quadriga.store.changes.ground_truth import (
    Subject,
    candidate_ids,
    join_values,
    read_subjects,
)
from quadriga.store.database.database import ReaderPool
from quadriga.store.query.repeated_ids import first_ids
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError
from quadriga.store.records.truth_scope import derived_task

_TIMEOUT_S = 60.0


class FileTruth(NamedTuple):
    """Ground truth of one image of a file, joined to inferences by a field."""

    place: str
    join: str
    value: str
    annotations: list[dict[str, Any]]
    task: str | None
    """The task that it is of; None for that of the inference, if the annotations fit it."""
    review: str
    image_hash: Callable[[], str | None]
    """Returns the hash of the image, to join by if no inference has the id; None without an image."""


class Match(NamedTuple):
    """What a ground truth is for."""

    inferences: int
    """Number of stored inferences that it applies to."""
    candidates: int
    """Number of stored inferences that it is joined to, of any task, model and team."""
    reason: str
    """Why it applies to none; empty if it does."""


class TruthMatcher:
    """Looks up which stored inferences ground truth applies to.

    Args:
        url: URL of the database, which may not be there yet.
        model: Name of the model that the truth is for; empty for all.
        owner: Owner of the truth.
    """

    def __init__(self, url: str, model: str, owner: str) -> None:
        self._readers = ReaderPool(url, 1, _TIMEOUT_S)
        self._model = model
        self._owner = owner

    def match(self, truths: Sequence[FileTruth]) -> list[Match]:
        """Return what each ground truth is for, in order, among the inferences that are in the database."""
        try:
            joined = self._subjects({(truth.join, truth.value) for truth in truths})
        except (NotReadyError, QueryTimeoutError) as error:
            return [Match(0, 0, str(error))] * len(truths)
        return [self._match(truth, joined.get((truth.join, truth.value), ())) for truth in truths]

    def close(self) -> None:
        """Close the connection."""
        self._readers.close()

    def _subjects(self, keys: set[tuple[str, str]]) -> Mapping[tuple[str, str], list[Subject]]:
        """Return the stored inferences that each join and value match."""
        subjects: dict[tuple[str, str], list[Subject]] = {}
        joins = {join for join, _ in keys}
        known = {(join, value) for join, value in keys if join != "id" or value.isdecimal()}
        with self._readers.snapshot() as connection:
            named = {int(value) for join, value in known if join == "id"}
            first = {
                ("id", str(seq)): ("id", str(first_seq))
                for seq, first_seq in first_ids(connection, named).items()
            }
            stored = {first.get(key, key) for key in known}
            for subject in read_subjects(connection, candidate_ids(connection, stored)):
                for key in join_values(subject, joins):
                    if key in stored:
                        subjects.setdefault(key, []).append(subject)
        return {key: subjects.get(first.get(key, key), []) for key in keys}

    def _match(self, truth: FileTruth, subjects: Sequence[Subject]) -> Match:
        if not subjects:
            reason = f"no stored inference has {truth.join} {quoted(truth.value, 100)}"
            return Match(0, 0, reason)
        matched = 0
        others = set()
        for subject in subjects:
            task = truth.task
            if task is None:
                task = derived_task(truth.annotations, subject.task)
            if not subject.is_of(self._owner):
                others.add("of another team")
            elif subject.is_in_scope(task, self._model):
                matched += 1
            elif self._model not in ("", subject.model):
                others.add(f"of the model {subject.model}")
            else:
                others.add(f"of the task {subject.task}, and the truth is of {task}")
        reason = "" if matched else f"its inference is {'; or '.join(sorted(others))}"
        return Match(matched, len(subjects), reason)
