"""Replay: a job that runs a version of a model over stored images, and compares its answers with the stored ones.

The answers become inferences of `NAME~replay`. A replay has the time of its original, and an id that follows from the
original and the version. The store knows which originals have a replay, so a job that starts again, or is repeated, sends
no image twice. An image in flight at the end of a run is sent again, and its answer stored once.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from ssl import SSLContext
from typing import Any

import msgspec

from quadriga.client import Client
from quadriga.engine.jobs.bulk_inference import (
    BATCH_IMAGES,
    THREADS,
    ImageOutcome,
    ImageRequests,
    ImageToAsk,
    client_of_team,
    model_text,
)
from quadriga.engine.jobs.job_kinds import ReplayParameters
from quadriga.monitor.evaluation.parameters import EvaluationParameters, OtherModel
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.monitor.evaluation.stored import evaluate_stored
from quadriga.monitor.report.schema import Comparison, ReportedModel
from quadriga.store.browsing.comparison import ComparisonRequest, ModelComparison, compare_pairs
from quadriga.store.jobs.runner import JobRun
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.disk import write_atomically
from quadriga.store.records.errors import NotReadyError, QueryError, QueryTimeoutError
from quadriga.store.records.records import REPLAY_OF, StoredInference, parse_time, replay_name

RESULT = "replay.json"
_GONE = "its image is not stored any more"
_MAX_FAILURES_LOGGED = 20


class ReplayCounts(msgspec.Struct):
    """What became of the inferences to replay."""

    selected: int = 0
    replayed: int = 0
    """Images that were answered, and whose answers are stored."""
    known: int = 0
    """Inferences with a replay of an earlier job, or of an earlier run of this one."""
    gone: int = 0
    """Inferences without a stored image: removed since, never kept, or no image."""
    failed: int = 0
    unstored: int = 0
    """Images whose answers are not stored, as the model's options say or as the store has no room."""


class ReplayedQuality(msgspec.Struct, frozen=True):
    """The metrics of both on the images with ground truth."""

    model: ReportedModel
    comparisons: list[Comparison]
    """The replays; `differences` are the metrics of the originals minus those of the replays."""


class ReplayReport(msgspec.Struct, frozen=True):
    """Result of a replay."""

    counts: ReplayCounts
    comparison: ModelComparison
    """Originals as `a`, and replays as `b`."""
    evaluation: ReplayedQuality | None
    """None without ground truth."""


def run_replay(
    run: JobRun, *, url: str, key: str = "", tls: Callable[[], SSLContext] | None = None
) -> str:
    """Replay inferences, and return the name of the result; arguments as of `run_bulk_inference`.

    Raises:
        StoreError: There is nothing to replay, no image was answered, or the server is away for too long.
    """
    servers: dict[str, Client] = {}

    def server_of(team: str) -> Client:
        if team not in servers:
            servers[team] = client_of_team(url, key, tls, team)
        return servers[team]

    parameters = msgspec.convert(run.job.parameters, ReplayParameters)
    try:
        report = _ReplayRun(run, parameters, server_of).run()
    finally:
        for server in servers.values():
            server.close()
    write_atomically(run.directory / RESULT, msgspec.json.encode(report))
    return RESULT


class _ReplayRun:
    """One run of a job; see `run_replay`."""

    def __init__(
        self, run: JobRun, parameters: ReplayParameters, server_of: Callable[[str], Client]
    ) -> None:
        if parameters.end is None:  # or a job under steady load would never end
            parameters = msgspec.structs.replace(parameters, end=run.job.created_at)
        self._run = run
        self._inferences = run.inferences
        self._parameters = parameters
        self._server_of = server_of
        self._replay = replay_name(parameters.model)
        self._of_file = {"model.sha256": parameters.sha256} if parameters.sha256 else None
        self._now_us = round(parse_time(run.job.created_at).timestamp() * 1e6)
        self._counts = ReplayCounts()
        self._step = ""
        self._total: int | None = None
        self._oldest_id = ""
        self._asked: dict[str, StoredInference] = {}
        self._failures: list[ImageOutcome] = []

    def run(self) -> ReplayReport:
        """Replay the inferences without a replay, then compare."""
        counts = self._counts
        self._report()
        self._wait_for_journal()
        with suppress(QueryTimeoutError):
            count = self._inferences.count(QueryRequest(self._parameters.selection))
            self._total = min(count.count, self._parameters.limit) if count.is_exact else None
        with ThreadPoolExecutor(THREADS) as pool:
            for page in self._originals():
                self._replay_page(pool, page)
        self._run.log(
            f"{counts.replayed} of {counts.selected} images replayed, {counts.known} known, {counts.gone} gone, "
            f"{counts.failed} failed, {counts.unstored} answers not stored"
        )
        for outcome in self._failures[:_MAX_FAILURES_LOGGED]:
            self._run.log(f"{outcome.path}: {outcome.error}")
        if not counts.selected:
            raise QueryError("no inferences of another version match the filter")
        if not counts.replayed + counts.known:
            reason = f": {self._failures[0].error}" if self._failures else ""
            raise QueryError(
                f"none of {counts.selected} images was replayed, {counts.gone} are gone, "
                f"{counts.unstored} answers are not stored{reason}"
            )
        self._report("comparing answers")
        self._wait_for_journal()
        comparison = compare_pairs(
            self._pairs(),
            ComparisonRequest(self._parameters.model, self._replay),
            (self._parameters.model, self._replay),
            "replay",
            max_pairs=self._parameters.limit,
        )
        if comparison.share is not None and comparison.share_ci95 is not None:
            low, high = comparison.share_ci95
            self._run.log(
                f"{comparison.different} of {comparison.pairs} answers differ: {comparison.share:.1%}, 95 % interval "
                f"{low:.1%} to {high:.1%}"
            )
        self._report("evaluating both versions")
        return ReplayReport(counts, comparison, self._evaluate())

    def _report(self, step: str = "") -> None:
        """Report progress in a step, which a new one ends."""
        self._step = step or self._step
        counts = self._counts
        done = counts.replayed + counts.known + counts.gone + counts.failed + counts.unstored
        self._run.report_progress(done, self._total, self._step)

    def _wait_for_journal(self) -> None:
        with suppress(NotReadyError, QueryTimeoutError):  # the writer lags: take what is committed
            self._inferences.wait_for_journal()

    def _originals(self) -> Iterator[list[StoredInference]]:
        """Yield the inferences to replay, the newest first."""
        remaining = self._parameters.limit
        request = QueryRequest(self._parameters.selection, limit=BATCH_IMAGES)
        for page in self._inferences.pages(request, self._now_us):
            self._report()
            originals = page.inferences[:remaining]
            remaining -= len(originals)
            if originals:
                self._oldest_id = originals[-1].id
                yield originals
            if not remaining:
                return

    def _replays(self, originals: list[StoredInference]) -> dict[str, StoredInference]:
        """Return the replays of inferences by the id of the original."""
        conditions: list[Any] = [
            {"model": f"{self._replay}:{self._parameters.version}"},
            {"request_id": {"in": [original.id for original in originals]}},
            *([] if self._of_file is None else [self._of_file]),
        ]
        page = self._inferences.query(QueryRequest({"and": conditions}, limit=1000))
        return {replay.request_id: replay for replay in page.inferences}

    def _replay_page(self, pool: Executor, originals: list[StoredInference]) -> None:
        known = self._replays(originals)
        self._counts.selected += len(originals)
        self._counts.known += len(known)
        by_team: dict[str, dict[str, StoredInference]] = {}
        for original in originals:
            if original.id in known:
                continue
            if original.input.hash and original.input.kept and original.input.width:
                team = "" if original.team is msgspec.UNSET else original.team
                by_team.setdefault(team, {})[original.id] = original
            else:
                self._counts.gone += 1
        model = model_text(self._parameters.model, self._parameters.version)
        for team, self._asked in by_team.items():
            server = self._server_of(team)
            requests = ImageRequests(server, model, self._prepare, self._report)
            for outcomes in requests.ask_all(pool, list(self._asked)):
                for outcome in outcomes:
                    self._count(outcome)

    def _prepare(self, inference_id: str) -> ImageToAsk:
        """Return an image with metadata, action and prompts of its inference; its other parameters are not stored."""
        original = self._asked[inference_id]
        image = self._run.blobs.get(original.input.hash or "")
        if image is None:
            raise OSError(_GONE)
        parameters: dict[str, Any] = {"action": original.action}
        if original.task == "IMAGE_TEXT_TO_TEXT":
            answers = msgspec.json.decode(original.predictions, type=list[dict[str, Any]])
            parameters["prompts"] = [answer["prompt"] for answer in answers]
        parameters |= self._parameters.parameters
        metadata = bytes(original.metadata).decode()
        own = {"metadata": metadata, REPLAY_OF: inference_id}
        return image, original.input.name or "image", parameters | own

    def _count(self, outcome: ImageOutcome) -> None:
        if outcome.error == _GONE:
            self._counts.gone += 1
        elif outcome.error is not None:
            self._counts.failed += 1
            self._failures.append(outcome)
        elif outcome.inference_id is None:
            self._counts.unstored += 1
        else:
            self._counts.replayed += 1

    def _pairs(self) -> Iterator[tuple[StoredInference, StoredInference]]:
        """Yield each inference with its replay."""
        for originals in self._originals():
            replays = self._replays(originals)
            for original in originals:
                if original.id in replays:
                    yield original, replays[original.id]

    def _evaluate(self) -> ReplayedQuality | None:
        """Evaluate both on the images with ground truth; None without any."""
        parameters = self._parameters
        compared = OtherModel(self._replay, parameters.version, self._of_file)
        oldest = {"id": {"ge": self._oldest_id}}
        try:
            report = evaluate_stored(
                self._inferences,
                EvaluationParameters(
                    parameters.model,
                    where={"and": [parameters.selection, oldest]},
                    compare=[compared],
                ),
                lambda *_: self._report(),
            )
        except EvaluationError as error:
            self._run.log(f"not evaluated: {error}")
            return None
        if not report.data.current.n:
            return None
        for comparison in report.comparisons:
            for metric in comparison.differences:
                if metric.value is not None:
                    self._run.log(f"{metric.type}: originals minus replays {metric.value:+.4f}")
        return ReplayedQuality(report.model, report.comparisons)
