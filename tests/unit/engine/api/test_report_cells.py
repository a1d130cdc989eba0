"""All inferences behind each cell of a report's confusion matrix: pages of them, teams, deletion and erasure."""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from litestar import Litestar
from litestar.testing import TestClient

from quadriga.engine.api import store_queries
from quadriga.engine.api.monitoring import evaluations
from quadriga.engine.api.monitoring.evaluations import evaluation_routes
from quadriga.engine.jobs.job_kinds import JOB_KINDS
from quadriga.monitor.report import cells as cells_module
from quadriga.monitor.report.cells import Cell, PairedLabels, cells_of
from quadriga.monitor.report.saved import ReportStore
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.jobs import runner as runner_module
from quadriga.store.jobs.jobs import ID_LISTS_FILE, Jobs
from quadriga.store.jobs.runner import JobRunner
from quadriga.store.maintenance import erased_files
from quadriga.store.maintenance.mentions import Mentions
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.records import TruthStatement
from quadriga.store.records.scope import Scope
from tests.background import in_background, until
from tests.unit.http_client import client_of, store_routes
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

LABELS = ("star", "cross", "ring")
FIRST = 700_000_000_001
Cells = dict[tuple[str, str], list[str]]


class Evaluated(NamedTuple):
    """A store with the report of an evaluation, and what each cell must have."""

    store: StoreHarness
    jobs: Jobs
    client: TestClient[Litestar]
    report_id: str
    cells: Cells

    @property
    def path(self) -> str:
        return f"/api/reports/{self.report_id}/inferences"

    @property
    def file(self) -> Path:
        return self.jobs.directory / self.report_id / ID_LISTS_FILE

    def ids(self, **parameters: Any) -> list[str]:
        """Return the ids of all pages."""
        ids, cursor = [], None
        while True:
            query = parameters | ({} if cursor is None else {"cursor": cursor})
            page = self.client.get(self.path, params=query).json()
            ids += [inference["id"] for inference in page["inferences"]]
            cursor = page["cursor"]
            if cursor is None:
                return ids


def classified(store: StoreHarness) -> Cells:
    """Store answers of a classifier with truth; return the inferences by true and predicted label."""
    chance, cells = random.Random(2), defaultdict(list)
    for seq in range(FIRST, FIRST + 120):
        truth, predicted = chance.choice(LABELS), chance.choice([*LABELS, ""])
        predictions = [{"label": predicted, "score": 0.9}] if predicted else []
        metadata = {"camera": chance.choice(["north", "east"])}
        task = "IMAGE_CLASSIFICATION"
        store.commit(make_record(seq, task=task, predictions=predictions, metadata=metadata))
        store.commit_changes(TruthStatement("id", str(seq), [{"label": truth}], task=task))
        cells[truth, predicted].append(str(seq))
    return cells


def detected(store: StoreHarness) -> Cells:
    """Store answers of a detector with truth; return the inferences by true and predicted label."""
    chance, cells = random.Random(3), defaultdict(list)
    for seq in range(FIRST, FIRST + 120):
        predictions, truths, pairs = [], [], set()
        for place in range(chance.randrange(1, 4)):
            box = {"xmin": place * 100, "ymin": 10, "xmax": place * 100 + 50, "ymax": 60}
            truth, predicted = chance.choice([*LABELS, ""]), chance.choice([*LABELS, ""])
            if truth:
                truths.append({"label": truth, **box})
            if predicted:
                predictions.append({"label": predicted, "score": 0.9, **box})
            if truth or predicted:
                pairs.add((truth, predicted))
        metadata = {"camera": chance.choice(["north", "east"])}
        store.commit(make_record(seq, predictions=predictions, metadata=metadata))
        store.commit_changes(TruthStatement("id", str(seq), truths, task="OBJECT_DETECTION"))
        for pair in pairs:
            cells[pair].append(str(seq))
    return cells


def evaluate(folder: Path, fill: Callable[[StoreHarness], Cells]) -> Iterator[Evaluated]:
    """Fill a store below a folder, evaluate what is in it, and close it at the end."""
    store, jobs = StoreHarness(folder, f"sqlite:///{folder}/store.db"), Jobs(folder / "jobs")
    cells = fill(store)
    routes = [
        *evaluation_routes(jobs, store.inferences, ReportStore(jobs)),
        *store_routes(store.inferences),
    ]
    with client_of(routes) as client:
        body = json.dumps({"model": "shapes-detector", "resamples": 0})
        answer = client.post("/api/evaluations", content=body)
        assert answer.status_code == 202, answer.text
        report_id = answer.json()["id"]
        blobs = FileBlobs(folder / "blobs")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(runner_module, "POLL_INTERVAL_S", 0.005)
            with in_background(JobRunner(jobs, JOB_KINDS, store.inferences, blobs).run):
                until(lambda: jobs.read(report_id).ended_at is not None)
        assert jobs.read(report_id).state == "succeeded", jobs.read(report_id).error
        yield Evaluated(store, jobs, client, report_id, cells)
    store.close()


@pytest.fixture(scope="module", params=[classified, detected])
def evaluated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Evaluated]:
    """A report that tests only read."""
    yield from evaluate(tmp_path_factory.mktemp("evaluated"), request.param)


@pytest.fixture(params=[classified, detected])
def alterable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Evaluated]:
    """A report of the test's own."""
    yield from evaluate(tmp_path, request.param)


def test_each_cell_has_all_of_its_inferences(evaluated: Evaluated) -> None:
    report = evaluated.client.get(f"/api/reports/{evaluated.report_id}").json()
    confusion = report["confusion"]
    for truth in (*LABELS, ""):
        for predicted in (*LABELS, ""):
            ids = evaluated.cells.get((truth, predicted), [])
            assert evaluated.ids(truth=truth, predicted=predicted, limit=7) == ids[::-1]
            assert evaluated.ids(truth=truth, predicted=predicted, order="ts") == ids
            page = evaluated.client.get(
                evaluated.path, params={"truth": truth, "predicted": predicted, "limit": 2}
            ).json()
            assert (page["count"], page["count_is_exact"]) == (len(ids), True)
            if report["task"] == "IMAGE_CLASSIFICATION" and truth and predicted:
                row, column = map(confusion["labels"].index, (truth, predicted))
                assert confusion["matrix"][row][column] == len(ids)
    for example in confusion["examples"]:
        pair = example["truth"] or "", example["predicted"] or ""
        assert example["inference_id"] in evaluated.cells[pair]


def test_a_side_that_is_left_out_is_any(evaluated: Evaluated) -> None:
    stars = {int(i) for (truth, _), ids in evaluated.cells.items() if truth == "star" for i in ids}
    assert evaluated.ids(truth="star", order="ts") == list(map(str, sorted(stars)))
    everything = {int(i) for ids in evaluated.cells.values() for i in ids}
    assert evaluated.ids(order="ts") == list(map(str, sorted(everything)))
    assert evaluated.ids(truth="unheard of") == []


def test_a_filter_must_hold_too(evaluated: Evaluated) -> None:
    query = {"meta.camera": "north", "truth": "star", "predicted": "cross"}
    ids = evaluated.ids(**query, limit=3)
    found = evaluated.store.inferences.query(QueryRequest({"meta.camera": "north"}, limit=1000))
    norths = {inference.id for inference in found.inferences}
    assert ids == [i for i in reversed(evaluated.cells["star", "cross"]) if i in norths]
    assert evaluated.ids(q="(meta.camera=nowhere)", truth="star") == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("limit=0", "expected truth, predicted, order (-ts, ts), limit, cursor, got: Expected `int` >= 1"),
        ("order=up", "got: Invalid enum value 'up'"),
        ("cursor=x", "expected cursor to be one that a page gave"),
        ("colour=red", "expected colour to name one of id"),
        ("count=exact", "expected count to name one of id"),
        ("truth=a&truth=b", "expected truth once, got it twice"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_with_its_reason(
    evaluated: Evaluated, query: str, message: str
) -> None:
    response = evaluated.client.get(f"{evaluated.path}?truth=star&{query}" if "truth" not in query else f"{evaluated.path}?{query}")  # fmt: skip
    assert response.status_code == 400
    assert message in response.json()["error"]


def test_a_cursor_belongs_to_its_cells(evaluated: Evaluated) -> None:
    page = evaluated.client.get(f"{evaluated.path}?truth=star&limit=1").json()
    response = evaluated.client.get(f"{evaluated.path}?truth=ring&cursor={page['cursor']}")
    assert response.status_code == 400
    assert "the cursor belongs to another filter or order" in response.json()["error"]


def test_a_report_without_lists_says_so(alterable: Evaluated) -> None:
    alterable.file.unlink()
    response = alterable.client.get(alterable.path)
    assert response.status_code == 404
    assert "it has no confusion matrix, or is of an earlier release" in response.json()["error"]
    other = alterable.path.replace(alterable.report_id, "1795541056789012345-9c1f")
    assert alterable.client.get(other).status_code == 404


def test_another_team_sees_neither_report_nor_inferences(
    evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "caller_scope", lambda: Scope("b"))
    assert evaluated.client.get(evaluated.path).status_code == 404


def filtered_ids(evaluated: Evaluated, where: Any, **options: Any) -> list[str]:
    """Return the ids of all pages of a query."""
    ids, body = [], {"where": where, "limit": 5} | options
    while True:
        answer = evaluated.client.post("/api/inferences/query", content=json.dumps(body))
        assert answer.status_code == 200, answer.text
        page = answer.json()
        ids += [inference["id"] for inference in page["inferences"]]
        if page["cursor"] is None:
            return ids
        body["cursor"] = page["cursor"]


def test_a_filter_may_name_cells_of_a_report(evaluated: Evaluated) -> None:
    report, cells = evaluated.report_id, evaluated.cells
    stars = cells["star", "cross"]
    text = f"report={report} & truth=star & predicted=cross"
    assert filtered_ids(evaluated, text) == stars[::-1]
    assert filtered_ids(evaluated, text, order="ts") == stars
    where = {"report": report, "truth": "star", "predicted": "cross"}
    assert filtered_ids(evaluated, where) == stars[::-1]
    assert filtered_ids(evaluated, {"and": [{k: v} for k, v in where.items()]}) == stars[::-1]
    page = evaluated.client.get("/api/inferences", params=where).json()
    assert [inference["id"] for inference in page["inferences"]] == stars[::-1]
    everything = sorted({int(i) for ids in cells.values() for i in ids})
    assert filtered_ids(evaluated, {"report": report}, order="ts") == list(map(str, everything))
    either = sorted({int(i) for name in ("cross", "") for i in cells.get(("star", name), [])})
    where = {"report": report, "truth": "star", "predicted": {"in": ["cross", ""]}}
    assert filtered_ids(evaluated, where, order="ts") == list(map(str, either))
    assert filtered_ids(evaluated, f'report={report} & truth="" & predicted=star', order="ts") == [
        str(i) for i in sorted(map(int, cells.get(("", "star"), [])))
    ]
    assert filtered_ids(evaluated, {"report": report, "truth": "unheard of"}) == []


def test_cells_combine_with_every_other_filter(evaluated: Evaluated) -> None:
    report, cells = evaluated.report_id, evaluated.cells
    stars, rings = set(cells["star", "cross"]), set(cells["ring", "ring"])
    norths = set(filtered_ids(evaluated, "meta.camera=north"))
    star, ring = (f"(report={report} & truth={t} & predicted={p})" for t, p in (("star", "cross"), ("ring", "ring")))  # fmt: skip
    everything = set(filtered_ids(evaluated, None))
    for where, expected in (
        (f"{star} & meta.camera=north", stars & norths),
        (f"{star} | {ring}", stars | rings),
        (f"{star} & {ring}", stars & rings),
        (f"!{star} & meta.camera=north", norths - stars),
        (f"{star} | meta.camera=north", stars | norths),
        (f"!{star}", everything - stars),
    ):
        ids = filtered_ids(evaluated, where, limit=1000)
        assert len(ids) == len(set(ids))
        assert set(ids) == expected, where
        body = json.dumps({"where": where})
        counted = evaluated.client.post("/api/inferences/count", content=body).json()
        assert counted == {"count": len(expected), "is_exact": True}
        facets = evaluated.client.post("/api/inferences/facets", content=body).json()
        assert facets["count"] == len(expected)
    query = {"q": f"{star}"}
    middle = cells["star", "cross"][1]
    answer = evaluated.client.get(f"/api/inferences/{middle}/neighbours", params=query).json()
    assert answer["previous"] == cells["star", "cross"][2]
    assert answer["next"] == cells["star", "cross"][0]


@pytest.mark.parametrize("evaluated", [classified], indirect=True)
def test_a_filter_with_an_unknown_report_is_not_found(evaluated: Evaluated) -> None:
    for report in ("1795541056789012345-9c1f", "../..", "x" * 300, ""):
        for path in ("query", "count", "facets", "aggregate"):
            body = json.dumps({"where": {"report": report}})
            answer = evaluated.client.post(f"/api/inferences/{path}", content=body)
            assert answer.status_code == 404, path
            assert answer.json()["error"].startswith("report not found: ")


@pytest.mark.parametrize("evaluated", [classified], indirect=True)
def test_a_filter_shows_a_team_its_own_reports(
    evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_queries, "caller_scope", lambda: Scope("b"))
    body = json.dumps({"where": {"report": evaluated.report_id}})
    answer = evaluated.client.post("/api/inferences/query", content=body)
    assert answer.status_code == 404


def test_an_erasure_takes_ids_out_and_leaves_the_report(alterable: Evaluated) -> None:
    report = alterable.file.with_name("report.json").read_text()
    erased = next(id_ for ids in alterable.cells.values() for id_ in ids if id_ not in report)
    assert f'"{erased}"'.encode() in alterable.file.read_bytes()
    mentions = Mentions([int(erased)], [], [])
    before = alterable.ids()
    assert erased_files.remove_jobs(alterable.jobs, mentions) == 0
    assert f'"{erased}"'.encode() not in alterable.file.read_bytes()
    assert alterable.ids() == [id_ for id_ in before if id_ != erased]


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'{"ids": 5}', b'{"ids": [5]}', b'{"truth": "123456"}']
)
def test_a_damaged_list_that_mentions_what_is_erased_goes(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / ID_LISTS_FILE
    path.write_bytes(b'{"ids": ["7"]}\n' + line + b" 123456\n")
    erased_files._take_out(path, Mentions([123456], [], []))
    assert b"123456" not in path.read_bytes()
    assert path.read_bytes().startswith(b'{"ids": ["7"]}\n')


def test_full_cells_have_their_newest_inferences_and_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cells_module, "MAX_CELL_IDS", 3)
    monkeypatch.setattr(cells_module, "MAX_IDS", 4)
    image, truth = np.arange(6), np.array([0, 0, 0, 0, -1, -1])
    pairs = PairedLabels(image, truth, np.array([0, 0, 0, 0, 0, 0]))
    assert cells_of(["a"], list("123456"), pairs) == [
        Cell(None, "a", ["5", "6"]),
        Cell("a", "a", ["3", "4"], more=True),
    ]
    empty = np.zeros(0, np.int64)
    assert cells_of([], [], PairedLabels(empty, empty, empty)) == []
