"""What keys of teams see through the routes: never more than the definition by hand admits, on both databases."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient

from quadriga.engine.api.jobs import job_routes
from quadriga.engine.api.models import ModelEntries, model_routes
from quadriga.engine.api.monitoring.drift import drift_routes
from quadriga.engine.api.monitoring.evaluations import evaluation_routes
from quadriga.engine.api.monitoring.schedules import evaluation_schedule_routes, schedule_routes
from quadriga.engine.jobs.job_kinds import JOB_KINDS
from quadriga.monitor.drift.baselines import BaselineStore
from quadriga.monitor.drift.service import DriftService
from quadriga.monitor.drift.watch.current import CurrentDrift
from quadriga.monitor.drift.watch.schedules import drift_schedules
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.watch.mutes import MuteStore
from quadriga.proto.access import ROLES, Caller
from quadriga.proto.http.chariot import parse_metadata_value
from quadriga.proto.request import RequestContext, set_current_request
from quadriga.store.changes.service import ChangeService
from quadriga.store.database.database import migrate
from quadriga.store.jobs.jobs import Jobs
from quadriga.store.jobs.runner import JobRunner
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.ids import IdSource
from quadriga.store.records.records import InferenceRecord, InputReference, ModelReference
from tests.background import in_background, until
from tests.filter_definition import holds
from tests.unit.http_client import client_of, store_routes
from tests.unit.store.conftest import make_record
from tests.unit.store.random_filters import filters, random_records
from tests.unit.store_harness import StoreHarness

TEAMS = ("", "a", "b")
PATTERNS: tuple[tuple[str, ...], ...] = ((), ("m1",), ("m*",), ("M?", "none"), ("none*",))
IMAGE = b"\x89PNG one image of two teams"
SECRETS = ("hidden", "Zebra")
"""Parts of names that only records of team b have: of a model, a label and a metadata key."""


class Teams:
    """The routes over a store, asked as one caller or another."""

    def __init__(self, store: StoreHarness, served: tuple[str, ...] = ()) -> None:
        self.store = store
        self.jobs = Jobs(store.root / "jobs")
        reader = InferenceReader(
            store.url, store.journal_directory, store.blobs, served=lambda: served
        )
        self.reader = reader
        reports = ReportStore(self.jobs)
        current = CurrentDrift(reports, drift_schedules(store.root / "drift"))
        mutes = MuteStore(store.root / "drift")
        drift = DriftService(self.jobs, reader, BaselineStore(store.root / "baselines"))
        changes = ChangeService(
            reader, store.journal, IdSource(0), parse_metadata_value, erasures=store.erasures
        )
        client = client_of(
            [
                *store_routes(reader, changes),
                *job_routes(self.jobs, reader),
                *model_routes(
                    ModelEntries(list, reader, reports, drift, mutes, current_drift=current)
                ),
                *evaluation_routes(self.jobs, reader, reports),
                *drift_routes(drift),
                *schedule_routes(store.root / "drift", reader, drift=drift),
                *evaluation_schedule_routes(store.root / "evaluation", reader, reports),
            ]
        )
        app, caller_of = client.app, self._caller

        async def as_caller(scope: Any, receive: Any, send: Any) -> None:
            set_current_request(RequestContext(caller=caller_of()))
            await app(scope, receive, send)

        self._team, self._models = "", ()
        self.records: list[InferenceRecord] = []
        self.client = TestClient(as_caller)

    def _caller(self) -> Caller:
        rights = frozenset(ROLES["admin"])
        return Caller(name="test", rights=rights, team=self._team, models=self._models)

    def ask(
        self, method: str, path: str, body: Any = b"", *, team: str = "", models: Any = ()
    ) -> tuple[int, Any]:
        """Send a request as a caller; return status and JSON."""
        self._team, self._models = team, models
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.client.request(method, f"/api/{path}", content=content)
        is_json = answer.headers["content-type"].partition(";")[0] == "application/json"
        return answer.status_code, answer.json() if is_json else answer.content

    def ok(self, method: str, path: str, body: Any = b"", **caller: Any) -> Any:
        """Send a request that succeeds; see `ask`."""
        status, answer = self.ask(method, path, body, **caller)
        assert status in (200, 202), answer
        return answer

    def finished(self, job_id: str) -> Any:
        """Run jobs until one has ended; return it."""
        runner = JobRunner(self.jobs, JOB_KINDS, self.reader, self.store.blobs)
        with in_background(runner.run):
            until(lambda: self.jobs.read(job_id).ended_at is not None)
        return self.jobs.read(job_id, with_log=True)

    def close(self) -> None:
        self.reader.close()


def may_see(record: InferenceRecord, team: str, models: tuple[str, ...]) -> bool:
    """The definition: a record of the key's team, if it has one, of a model that a pattern of the key names, if any."""
    of_team = not team or (record.team or "") == team
    return of_team and (
        not models or any(fnmatchcase(record.model.name, pattern) for pattern in models)
    )


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def random_teams(request, tmp_path_factory) -> Iterator[Teams]:
    """Random records of three teams; those of one model are of team b alone."""
    root, pick = tmp_path_factory.mktemp("teams"), random.Random(11)
    server = None
    if request.param == "sqlite":
        url = f"sqlite:///{root}/store.db"
        migrate(url)
    else:
        server = request.getfixturevalue("postgres")
        url = server.create()
    records = []
    for fields in random_records(pick):
        team = pick.choice(TEAMS)
        if team == "b" and pick.random() < 0.3:
            fields |= {"model": ModelReference("hidden", "9", ""), "task": "ZebraTask"}
        records.append(make_record(**fields, team=team or msgspec.UNSET))
    store = StoreHarness(root, url)
    store.commit(*records)
    teams = Teams(store, served=("m1",))
    with teams.client:
        teams.records = records
        yield teams
    teams.close()
    store.close()
    if server is not None:
        server.drop(url)


callers = st.fixed_dictionaries(
    {"team": st.sampled_from(TEAMS), "models": st.sampled_from(PATTERNS)}
)


@settings(max_examples=60)
@given(caller=callers, where=filters, limit=st.integers(1, 40))
@example(caller={"team": "", "models": ()}, where={"task": "detection"}, limit=40)
def test_no_route_shows_or_counts_what_a_key_may_not_see(random_teams, caller, where, limit):
    teams, records = random_teams, random_teams.records
    seen = [record for record in records if may_see(record, **caller)]
    matching = {str(record.seq) for record in seen if holds(where, record)}
    status, answer = teams.ask("POST", "inferences/count", {"where": where}, **caller)
    if status == 404:  # a model that the key may see none of is one that is not there
        for name in SECRETS:
            assert caller["team"] in ("", "b") or name not in answer["error"]
        for name in ("m1", "M2"):
            is_known = any(record.model.name == name for record in seen)
            assert is_known or name in str(where) or name not in answer["error"].partition(";")[2]
        return
    assert (status, answer["count"]) == (200, len(matching))
    ids: list[str] = []
    request: dict[str, Any] = {"where": where, "limit": limit, "count": "exact"}
    while True:
        page = teams.ok("POST", "inferences/query", request, **caller)
        assert page["count"] == len(matching)
        ids += [inference["id"] for inference in page["inferences"]]
        for inference in page["inferences"]:
            assert inference.get("team", "") == caller["team"] or not caller["team"]
        if page["cursor"] is None:
            break
        request["cursor"] = page["cursor"]
    assert ids == sorted(matching, key=int, reverse=True)
    body = {"where": where, "group": ["model", "version"], "metrics": ["count", "labels"]}
    groups = teams.ok("POST", "inferences/aggregate", body, **caller)["groups"]
    expected = Counter(
        (record.model.name, record.model.version) for record in seen if str(record.seq) in matching
    )
    assert {(group["model"], group["version"]): group["count"] for group in groups} == expected


@settings(max_examples=15)
@given(caller=callers)
def test_counts_by_minutes_and_the_list_of_models_are_of_what_a_key_may_see(random_teams, caller):
    teams, records = random_teams, random_teams.records
    seen = [record for record in records if may_see(record, **caller)]
    by_model = Counter(record.model.name for record in seen)
    groups = teams.ok("POST", "inferences/aggregate", {"group": ["model"]}, **caller)
    assert groups["source"] == "rollups"
    assert {group["model"]: group["count"] for group in groups["groups"]} == by_model
    listed = teams.ok("GET", "models", **caller)["models"]
    assert {model["name"]: model["inferences"] for model in listed} == by_model
    for model in listed:
        versions = Counter(
            record.model.version for record in seen if record.model.name == model["name"]
        )
        counted: Counter[str] = Counter()
        for version in model["versions"]:
            counted[version["version"]] += version["inferences"]
        assert counted == versions
    labels = {
        prediction["label"]
        for record in seen
        for prediction in record.predictions
        if isinstance(prediction["label"], str)
    }
    groups = teams.ok("POST", "inferences/aggregate", {"group": ["label"]}, **caller)["groups"]
    assert {group["label"] for group in groups} == labels


@settings(max_examples=40)
@given(caller=callers, position=st.integers(0, 60))
def test_a_record_of_others_is_answered_as_one_that_is_not_there(random_teams, caller, position):
    teams, records = random_teams, random_teams.records
    record = records[position % len(records)]
    absent = str(1 << 60)
    doors = [("GET", "", b""), ("GET", "?presign=1", b""), ("GET", "/input", b""),
             ("POST", "/metadata", {"set": {}}), ("GET", "/metadata/history", b""), ("POST", "/feedback", {}),
             ("GET", "/ground-truth", b""), ("PUT", "/ground-truth", {}), ("DELETE", "/ground-truth", b""),
             ("GET", "/ground-truth/history", b"")]  # fmt: skip
    if may_see(record, **caller):
        assert teams.ok("GET", f"inferences/{record.seq}", **caller)["id"] == str(record.seq)
        return
    for method, path, body in doors:
        status, answer = teams.ask(method, f"inferences/{record.seq}{path}", body, **caller)
        other = teams.ask(method, f"inferences/{absent}{path}", body, **caller)
        assert (status, str(answer).replace(str(record.seq), absent)) == (other[0], str(other[1]))
        assert status == 404


@settings(max_examples=25)
@given(
    caller=callers, name=st.sampled_from(["hidde", "hidden", "m-hidden", "m11", "nothing", "M22"])
)
def test_an_unknown_model_is_near_to_those_alone_that_a_key_may_see(random_teams, caller, name):
    teams, records = random_teams, random_teams.records
    admitted = {record.model.name for record in records if may_see(record, **caller)}
    is_served = not caller["models"] or any(fnmatchcase("m1", one) for one in caller["models"])
    admitted |= {"m1"} if is_served else set()
    paths = [f"models/{name}", f"models/{name}/retention", f"models/{name}/baseline",
             f"models/{name}/drift", f"models/{name}/evaluation", f"models/{name}/drift-schedule"]  # fmt: skip
    for path in paths:
        status, answer = teams.ask("GET", path, **caller)
        if name.lower().removeprefix("m-") in {model.lower() for model in admitted}:
            assert "model not found" not in str(answer)
            continue
        assert status == 404
        named = answer["error"].partition(";")[2]
        for model in ("hidden", "M2", "m1"):
            assert model in admitted or model not in named


TRUTH = [{"label": "circle", "xmin": 1, "ymin": 1, "xmax": 3, "ymax": 3}]


def teams_of(store: StoreHarness) -> Teams:
    teams = Teams(store)
    digest = store.blobs.put(IMAGE)
    image = InputReference("image", digest, 4, height=4, mime="image/png", kept=True)
    store.commit(
        *(
            make_record(
                seq,
                team=team,
                input=image,
                request_id="shared",
                predictions=[TRUTH[0] | {"score": 0.9}],
                metadata={"place": "north"},
            )
            for seq, team in ((1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "b"))
        ),
        make_record(6, request_id="shared"),
    )
    return teams


@pytest.fixture
def two(store: StoreHarness) -> Iterator[Teams]:
    """Two records of team a, three of team b with the same image and request, and one of no team."""
    teams = teams_of(store)
    with teams.client, in_background(store.writer.run):
        yield teams
    teams.close()


@pytest.mark.parametrize(
    "join", [("request_id", "shared"), ("meta.place", "north"), ("input.hash", None)]
)
def test_a_statement_of_a_team_is_for_its_own_inferences(two: Teams, join):
    field, value = join
    value = value or two.ok("GET", "inferences/1")["input"]["hash"]
    body = {"join": field, "items": [{"value": value, "annotations": TRUTH}]}
    stated = two.ok("POST", "ground-truth", body, team="a")
    assert (stated["stated"], stated["matched"]) == (1, 2)
    assert two.ok("GET", "inferences/1/ground-truth", team="a")["owner"] == "a"
    for inference_id in ("3", "6"):
        assert two.ask("GET", f"inferences/{inference_id}/ground-truth")[0] == 404
    assert two.ok("GET", "inferences/3/ground-truth/history", team="b") == {"history": []}
    assert two.ok("POST", "ground-truth", body)["matched"] == (6 if field == "request_id" else 5)
    assert two.ok("GET", "inferences/3/ground-truth", team="b")["owner"] == "default"
    assert two.ok("POST", "ground-truth", body, team="b")["matched"] == 3
    owners = [
        entry["owner"] for entry in two.ok("GET", "inferences/1/ground-truth/history")["history"]
    ]
    assert owners == ["default", "a"]


def test_statements_of_a_team_end_with_its_last_inference_of_the_request(two: Teams):
    body = {"join": "request_id", "items": [{"value": "shared", "annotations": TRUTH}]}
    for team in ("a", "b"):
        two.ok("POST", "ground-truth", body, team=team)
    assert two.ok("POST", "inferences/delete", {"all": True}, team="a")["count"] == 2
    assert two.store.rows("SELECT owner FROM truth") == [("b",)]
    assert two.ok("GET", "inferences/3/ground-truth", team="b")["owner"] == "b"


def test_a_statement_by_an_id_of_another_team_is_one_of_an_id_that_is_not_there(two: Teams):
    def state(value: str) -> Any:
        body = {"join": "id", "items": [{"value": value, "annotations": TRUTH}]}
        return two.ask("POST", "ground-truth", body, team="a")

    assert state("3") == state(str(1 << 60))
    assert two.ask("GET", "inferences/3/ground-truth", team="b")[0] == 404


def test_the_limit_of_matches_counts_a_team_s_own(two: Teams, monkeypatch):
    monkeypatch.setattr("quadriga.store.changes.truth_service.MAX_MATCHED", 2)
    for join, value in (("request_id", "shared"), ("meta.place", "north")):
        body = {"join": join, "items": [{"value": value, "annotations": TRUTH}]}
        assert two.ask("POST", "ground-truth", body, team="a")[0] == 200
        assert two.ask("POST", "ground-truth", body, team="b")[0] == 400


def test_a_key_for_some_models_states_what_is_of_one_of_them(two: Teams):
    two.store.commit(
        make_record(7, team="a", request_id="shared", model=ModelReference("x", "1", ""))
    )
    body: dict[str, Any] = {
        "join": "request_id",
        "items": [{"value": "shared", "annotations": TRUTH}],
    }
    status, answer = two.ask(
        "POST", "ground-truth", body | {"join": "meta.place"}, team="a", models=("shapes-*",)
    )
    assert (status, "model is required" in answer["error"]) == (400, True)
    stated = two.ok("POST", "ground-truth", body, team="a", models=("shapes-*",))
    assert stated["matched"] == 2
    assert two.ask("GET", "inferences/7/ground-truth", team="a")[0] == 404


def test_an_image_goes_with_its_last_owner_and_says_nothing_of_others(two: Teams):
    digest = two.ok("GET", "inferences/1")["input"]["hash"]
    url = two.ok("GET", "inferences/1?presign=1", team="a")["input"]["url"].partition("/api/")[2]
    assert two.ask("GET", url)[1] == IMAGE
    two.ok("POST", "inferences/delete", {"all": True}, team="a")
    assert two.ask("GET", url)[0] == 404  # though team b has the image
    assert two.ok("GET", "inferences/3/input", team="b") == IMAGE
    assert two.store.blobs.get(digest) == IMAGE
    for seq, team, kept in ((8, "a", False), (9, "a", True)):
        image = InputReference("image", digest, 4, height=4, mime="image/png", kept=kept)
        two.store.journal.append([make_record(seq, team=team, input=image)])
    assert two.ask("GET", "inferences/8/input", team="a")[0] == 404
    assert two.ok("GET", "inferences/9/input", team="a") == IMAGE


def test_a_rule_of_retention_is_a_team_s_own(two: Teams):
    path, rule = "models/shapes-detector/retention", {"inputs_days": 7.0, "inferences_days": 30.0}
    two.ok("PUT", path, rule, team="a")
    assert two.ok("GET", path, team="a")["inferences_days"] == 30
    for team in ("b", ""):
        assert two.ok("GET", path, team=team)["inferences_days"] is None


def test_a_job_and_its_result_are_a_team_s_own(two: Teams):
    job = two.ok("POST", "exports", {}, team="a")
    assert job["scope"] == {"team": "a"}
    assert two.finished(job["id"]).state == "succeeded"
    result = two.ok("GET", f"jobs/{job['id']}/result", team="a")
    lines = [json.loads(line) for line in result.splitlines()]
    assert [(line["id"], line["team"]) for line in lines] == [("1", "a"), ("2", "a")]
    assert [entry["id"] for entry in two.ok("GET", "jobs")["jobs"]] == [job["id"]]
    assert two.ok("GET", "jobs", team="b") == {"jobs": []}
    unknown = "0" * 19 + "-0000"
    for method, path in (("GET", ""), ("POST", "/cancel"), ("GET", "/result")):
        status, answer = two.ask(method, f"jobs/{job['id']}{path}", team="b")
        other = two.ask(method, f"jobs/{unknown}{path}", team="b")
        assert (status, str(answer).replace(job["id"], unknown)) == (404, str(other[1]))


@pytest.mark.parametrize(
    ("made_by", "asked_by", "is_seen"),
    [
        (("a", ()), ("a", ()), True),
        (("a", ()), ("", ()), True),
        (("", ()), ("a", ()), False),
        (("a", ()), ("a", ("shapes-*",)), False),
        (("a", ("shapes-*",)), ("a", ("shapes-*", "x")), True),
        (("a", ("shapes-*",)), ("a", ()), True),
        (("a", ("shapes-detector",)), ("a", ("shapes-*",)), True),
        (("a", ("shapes-?",)), ("a", ("shapes-*",)), False),
        (("", ("shapes-*",)), ("", ("shapes-*",)), True),
    ],
)
def test_a_job_is_seen_by_whoever_sees_all_that_it_saw(two: Teams, made_by, asked_by, is_seen):
    maker, asker = ({"team": team, "models": models} for team, models in (made_by, asked_by))
    job = two.ok("POST", "exports", {}, **maker)
    assert two.ask("GET", f"jobs/{job['id']}", **asker)[0] == (200 if is_seen else 404)
    assert len(two.ok("GET", "jobs", **asker)["jobs"]) == is_seen


def test_an_evaluation_and_its_report_are_of_a_team_s_own_inferences(two: Teams):
    body = {"join": "request_id", "items": [{"value": "shared", "annotations": TRUTH}]}
    two.ok("POST", "ground-truth", body)
    job = two.ok("POST", "evaluations", {"model": "shapes-detector", "resamples": 10}, team="a")
    finished = two.finished(job["id"])
    assert finished.state == "succeeded", finished
    report = two.ok("GET", f"reports/{job['id']}", team="a")
    assert report["data"]["current"]["n"] == 2
    page = two.ok("GET", f"reports/{job['id']}/page", team="a")
    assert page
    assert [entry["id"] for entry in two.ok("GET", "reports", team="a")["reports"]] == [job["id"]]
    assert two.ok("GET", "reports", team="b") == {"reports": [], "unreadable": []}
    for path in ("", "/page"):
        assert two.ask("GET", f"reports/{job['id']}{path}", team="b")[0] == 404
    assert two.ok("GET", "models/shapes-detector", team="a")["evaluation"]["report"] == job["id"]
    assert two.ok("GET", "models/shapes-detector", team="b")["evaluation"] is None


def test_baselines_and_schedules_are_a_team_s_own(two: Teams):
    baseline, schedule = "models/shapes-detector/baseline", "models/shapes-detector/drift-schedule"
    evaluation = "models/shapes-detector/evaluation-schedule"
    two.ok("PUT", baseline, {"name": "mine", "rolling": "7d"}, team="a")
    two.ok("PUT", schedule, {"every": "1h", "baseline": "mine"}, team="a")
    two.ok("PUT", evaluation, {"every": "1d", "at_least": 0.5}, team="a")
    assert [entry["name"] for entry in two.ok("GET", baseline, team="a")["baselines"]] == ["mine"]
    assert two.ok("GET", schedule, team="a")["baseline"] == "mine"
    assert two.ok("GET", evaluation, team="a")["at_least"] == 0.5
    for team in ("b", ""):
        assert two.ok("GET", baseline, team=team) == {"baselines": []}
        for path in (schedule, evaluation):
            assert two.ask("GET", path, team=team)[0] == 404
            assert two.ask("DELETE", path, team=team)[0] == 404
        body = {"model": "shapes-detector", "baseline": "mine", "from": "2026-01-01T00:00:00Z"}
        assert two.ask("POST", "drift", body, team=team)[0] == 400
    assert two.ask("DELETE", f"{baseline}?baseline=mine", team="b")[0] == 404
    assert two.ok("DELETE", f"{baseline}?baseline=mine", team="a")["name"] == "mine"


def test_a_baseline_is_read_for_keys_of_some_models_too(two: Teams):
    path, some = "models/shapes-detector/baseline", {"team": "a", "models": ("shapes-*",)}
    two.ok("PUT", path, {}, team="a")
    (baseline,) = two.ok("GET", path, **some)["baselines"]
    assert baseline["state"] == "building"
    assert two.ask("GET", f"jobs/{baseline['job']}", **some)[0] == 404
    two.ok("DELETE", path, **some)
    assert two.ok("GET", f"jobs/{baseline['job']}", team="a")["state"] == "cancelled"


def test_metadata_and_feedback_of_a_team_s_own_inferences_change(two: Teams):
    assert two.ok("POST", "inferences/1/metadata", {"set": {"x": 1}}, team="a")["team"] == "a"
    assert two.ok("POST", "inferences/1/feedback", {"kind": "thumbs", "value": 1}, team="a")
    dry = two.ok("POST", "inferences/delete", {"dry_run": True, "all": True}, team="b")
    assert dry["ids"] == ["5", "4", "3"]


def test_who_sees_a_part_only_neither_erases_nor_sees_an_erasure(two: Teams) -> None:
    everywhere = {"where": {"meta.a": 1}, "erase": True}
    two.store.erasures.submit([], ["meta.a"], [])
    for caller in ({"team": "a"}, {"models": ("m1",)}):
        status, answer = two.ask("POST", "inferences/delete", everywhere, **caller)
        assert status == 403
        assert "expected a key for all teams and models to erase" in answer["error"]
        assert two.ok("GET", "erasures", **caller) == {"erasures": []}
        (erasure,) = two.ok("GET", "erasures")["erasures"]
        status, answer = two.ask("GET", f"erasures/{erasure['id']}", **caller)
        assert (status, "not found" in answer["error"]) == (404, True)
