"""This version and the next on one database, as in a rolling upgrade and in a step back, with traffic all the time."""

import os
import shlex
import threading
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest

from quadriga.store.database.database import REVISION
from tests.drill.trial import IMAGE, MODEL, Drill, Load, Trial
from tests.next_version import NEXT, WEATHER, WEATHER_OF_OTHERS, write_next_version
from tests.pages import blocks
from tests.server_process import ServerProcess, image_input, quadriga
from tests.unit.store_harness import select_rows

NAME = MODEL.name
ENOUGH = 40
"""Acknowledged requests between two steps."""


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    drill = Drill(tmp_path)
    yield drill
    drill.close()


@pytest.fixture
def url(drill: Drill) -> str:
    """A new database of this version in PostgreSQL."""
    return drill.postgres.create()


@pytest.fixture
def replica(drill: Drill, url: str) -> Iterator[ServerProcess]:
    """A server of the database that is not started yet; it is ended with the test."""
    server = ServerProcess(drill.folder / "a", MODEL, "--database", url)
    yield server
    if server.process is not None and server.process.poll() is None:
        server.kill()


@pytest.fixture(scope="module")
def next_version(tmp_path_factory) -> dict[str, str]:
    """Variables of the environment by which the next version runs, whose revision only adds."""
    return write_next_version(tmp_path_factory.mktemp("next") / "site")


@pytest.fixture(scope="module")
def contracting_version(tmp_path_factory) -> dict[str, str]:
    """Variables of the environment by which a version runs beside which no earlier one may."""
    return write_next_version(tmp_path_factory.mktemp("contracting") / "site", oldest=NEXT)


def migrate(variables: dict[str, str], *arguments: object, code: int = 0) -> str:
    """Run `quadriga migrate` of a version; return what it prints."""
    return quadriga("migrate", *arguments, env={**os.environ, **variables}, code=code).stdout


def run(variables: dict[str, str], command: str, code: int = 0) -> str:
    """Run a `quadriga migrate …` of the page by a version; return what it prints."""
    program, name, *arguments = shlex.split(command)
    assert (program, name) == ("quadriga", "migrate")
    return migrate(variables, *arguments, code=code)


class Reading:
    """A thread that asks whichever server answers for inferences; errors other than a refused connection count."""

    def __init__(self, servers: list[ServerProcess]) -> None:
        self.servers = servers
        self.outcomes: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        body = {"where": {"model": NAME}, "limit": 5}
        number = 0
        while not self._stop.wait(0.1):
            number += 1
            try:
                server = self.servers[number % len(self.servers)]
                status, answer = server.call("POST", "/api/inferences/query", body)
            except ConnectionRefusedError:
                self.outcomes["unreachable"] += 1
            except (OSError, HTTPException, ValueError) as error:
                self.outcomes[repr(error)] += 1
            else:
                self.outcomes[str(status) if status == 200 else f"{status} {answer}"] += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def replace(
    trial: Trial, reading: Reading, server: ServerProcess, variables: dict[str, str]
) -> None:
    """Stop a server in order, while the other answers, and start it again as another version."""
    others = [other for other in trial.servers if other is not server]
    trial.load.point_at(others)
    reading.servers = others
    assert server.stop() == 0
    server.environment = variables
    trial.restart(server, ready=True)
    reading.servers = list(trial.servers)
    trial.load.wait_for(ENOUGH)


def test_two_replicas_go_to_the_next_version_and_back_under_load(
    drill: Drill, next_version
) -> None:
    url = drill.postgres.create(migrated=False)
    flags = ("--database", url, "--grpc-connection-age-s", "1", "--drain-s", "3")
    servers = [drill.server(name, *flags) for name in "ab"]
    load = Load(drill.folder / "clients", pause_s=0.05)
    trial = Trial(drill, "two versions", servers, url=url, load=load).start()
    reading = Reading(servers)
    *_, ask, offered, ask_back, offered_back = [
        block.text.replace("URL", url).replace("2027.09", NEXT).replace("2027.08", REVISION)
        for block in blocks("docs/upgrading.md")
    ]
    try:
        trial.load.wait_for(ENOUGH)
        assert run(next_version, ask, code=1) == offered
        assert migrate(next_version, "--database", url) == f"from {REVISION} to revision {NEXT}\n"
        trial.load.wait_for(ENOUGH)  # both servers are of this version still
        for variables in (next_version, {}):
            for server in servers:
                replace(trial, reading, server, variables)
        assert run({}, ask_back) == offered_back
        assert migrate({}, "--database", url) == offered_back
        reading.stop()
        result = trial.finish("to the next version and back", orderly=True)
    except BaseException:
        trial.abandon()
        raise
    finally:
        reading.stop()
    statement = "SELECT weather, count(*) FROM inference GROUP BY weather"
    weathers = dict(select_rows(url, statement))
    assert result.acknowledged > 7 * ENOUGH
    lost = (result.lost, result.twice, result.failed, result.failed_in_orderly_restarts)
    assert (lost, result.broken) == ((0, 0, 0, 0), ""), result
    assert reading.outcomes.keys() <= {"200", "unreachable"}
    assert reading.outcomes["200"] >= ENOUGH
    assert weathers.keys() == {None, WEATHER}
    log = servers[0].log.read_text()
    assert f"at revision {NEXT} of a newer version: this one, of {REVISION}, may run on it" in log


def test_each_version_moves_what_the_other_left_in_its_journal(
    drill: Drill, replica: ServerProcess, url: str, next_version
) -> None:
    server, image = replica, IMAGE.read_bytes()
    migrate(next_version, "--database", url)
    expected: dict[str, str | None] = {}
    moved_as = ((next_version, {}, None), ({}, next_version, WEATHER_OF_OTHERS))
    for journaling, moving, weather in moved_as:
        server.environment = journaling
        server.start()
        drill.postgres.stop("immediate")
        for _ in range(5):
            expected[server.store(NAME, image)] = weather
        server.kill()
        drill.postgres.start()
        server.environment = moving
        server.start()
        server.query({})
        assert server.stop() == 0
    rows = select_rows(url, "SELECT seq, weather FROM inference")
    assert {str(seq): weather for seq, weather in rows} == expected


def test_a_server_with_a_file_goes_to_the_next_version_and_back(
    tmp_path: Path, next_version
) -> None:
    server, image = ServerProcess(tmp_path / "data", MODEL), IMAGE.read_bytes()
    url = f"sqlite:///{server.data}/store.db"
    expected: dict[str, str | None] = {}
    for variables, weather in (({}, None), (next_version, WEATHER), ({}, None)):
        if variables:
            assert "may run meanwhile" in migrate(
                variables, "--check", "--data", server.data, code=1
            )
            migrate(variables, "--data", server.data)
        server.environment = variables
        with server:
            for _ in range(5):
                expected[server.store(NAME, image)] = weather
            assert {record["id"] for record in server.query({})} == expected.keys()
        assert server.process is not None
        assert server.process.returncode == 0
    rows = select_rows(url, "SELECT seq, weather FROM inference")
    assert {str(seq): weather for seq, weather in rows} == expected


def test_an_older_server_writes_nothing_to_a_database_that_asks_for_more(
    replica: ServerProcess, url: str, contracting_version
) -> None:
    server, image = replica.start(), IMAGE.read_bytes()
    acknowledged = [server.store(NAME, image)]
    server.query({})
    checked = migrate(contracting_version, "--check", "--database", url, code=1)
    assert f"stop the servers of revision {REVISION} first: they cannot run on {NEXT}\n" in checked
    migrate(contracting_version, "--database", url)  # though one runs
    acknowledged += [server.store(NAME, image) for _ in range(3)]
    needed = f"needs code of revision {NEXT} or later"
    server.wait_until(
        lambda: needed in server.request("GET", "/v2/health/ready?verbose")[2].decode()
    )
    server.wait_until(
        lambda: needed in str(server.call("POST", "/api/inferences/query", {"where": {}})[1])
    )
    answer = server.call("POST", f"/v2/models/{NAME}/infer", {"inputs": [image_input(image)]})
    assert answer[0] == 200  # its record waits in the journal as well
    acknowledged.append(answer[1]["outputs"][0]["parameters"]["inference_id"])
    assert server.stop() == 75
    assert select_rows(url, "SELECT seq FROM inference") == [(int(acknowledged[0]),)]
    server.start(ready=False)
    assert server.process is not None
    assert server.process.wait(60) == 2
    server.stop()
    assert needed in server.log.read_text()
    assert needed in quadriga("migrate", "--check", "--database", url, code=2).stderr
    server.environment = contracting_version
    with server:
        assert {record["id"] for record in server.query({})} == {*acknowledged}
