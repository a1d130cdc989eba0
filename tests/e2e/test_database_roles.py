"""A server on PostgreSQL whose user may make no tables: the statements of the page grant all that it needs, and no more."""

import re
import shlex
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.postgres_server import PostgresServer
from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess, quadriga

MODEL = "shapes-detector"
SECTION = (
    (ROOT / "docs" / "security.md")
    .read_text()
    .partition("### Who migrates and who writes\n")[2]
    .partition("\n## ")[0]
)
MAKE_ROLES, GRANT = re.findall(r"```sql\n(.*?)```", SECTION, re.DOTALL)
(MIGRATE,) = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
DOCUMENTED = "postgresql://quadriga_owner@db.example.org/quadriga"


def statements(text: str) -> list[str]:
    """Return the statements of a block of SQL."""
    return [statement for part in text.split(";") if (statement := part.strip())]


def execute(url: str, *texts: str) -> None:
    """Run statements, each in a transaction of its own."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        for text in texts:
            connection.execute(text)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def urls(postgres: PostgresServer) -> dict[str, str]:
    """The database that the page makes, by the role that uses it."""
    execute(postgres.url("postgres"), *statements(MAKE_ROLES))
    url = postgres.url("quadriga")
    roles = {role: url.replace("postgres@", f"{role}@") for role in ("quadriga_owner", "quadriga")}
    owner = roles["quadriga_owner"]
    command = MIGRATE.replace(DOCUMENTED, shlex.quote(owner))
    assert "partitions from " in quadriga(*shlex.split(command)[1:]).stdout
    execute(owner, *statements(GRANT))
    return roles


def test_a_server_that_may_make_no_tables_works(urls, data, photo) -> None:
    url = urls["quadriga"]
    server = ServerProcess(
        data, SAMPLE_MODELS / MODEL, "--database", url, "--signals-per-s", "1000"
    )
    with server:
        ids = [server.store(MODEL, photo, metadata={"number": number}) for number in range(6)]
        assert {row["id"] for row in server.query({"meta.number": {"ge": 2}})} == {*ids[2:]}
        path = f"/api/inferences/{ids[0]}"
        assert server.call("PUT", f"{path}/ground-truth", {"annotations": []})[0] == 200
        assert server.call("POST", f"{path}/metadata", {"place": "north"})[0] == 200
        (found,) = server.query({"meta.place": "north"})
        assert (found["id"], found["ground_truth"] is None) == (ids[0], False)
        window = {"from": "-1h", "to": "now"}
        jobs = (
            ("/api/evaluations", {"model": MODEL}),
            ("/api/drift", {"model": MODEL, **window, "baseline": window}),
            ("/api/exports", {"format": "jsonl"}),
        )
        for job_path, body in jobs:
            status, job = server.call("POST", job_path, body)
            assert status == 202, job
            assert server.ended(job["id"])["state"] == "succeeded"
        deletion = {"where": {"meta.number": 1}}
        assert server.call("POST", "/api/inferences/delete", deletion)[0] == 200
        assert {row["id"] for row in server.query({})} == {ids[0], *ids[2:]}
        copies = data.parent / "copies"
        store = ("--data", data, "--database", url)
        assert "by pg_dump" in quadriga("backup", copies, *store).stderr
        assert ": 0 problems" in quadriga("check", *store).stdout
        erasing = ("erase", "meta.number=5", "--yes", "--server", f"http://{server.host}")
        receipt = quadriga(*erasing, code=1).stdout
        assert "1 inferences removed" in receipt
        (remaining,) = re.findall(r"for you to remove:\n((?:  - .*\n)*)", receipt)
        assert "until VACUUM is run by the owner of the tables" in remaining
        assert remaining.count("\n") == 1
        assert {row["id"] for row in server.query({})} == {ids[0], *ids[2:5]}
        execute(urls["quadriga_owner"], "VACUUM")
        rule = {"inferences_days": 1e-5}
        status, answer = server.call("PUT", f"/api/models/{MODEL}/retention", rule)
        assert status == 200, answer
        # A minute is removed once it is over, and is looked for every ten seconds.
        server.wait_until(lambda: server.query({}) == [], timeout_s=100)
        status, ready = server.call("GET", "/ready?verbose")
        assert (status, ready["status"]) == (200, "ready"), ready
        assert quadriga("migrate", "--check", "--database", url).stdout.startswith("at revision")
    log = server.log.read_text()
    assert not re.search(r"WARNING|ERROR", log), log


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE other (id int)",
        "DROP TABLE inference",
        "ALTER TABLE inference ADD COLUMN other int",
        "TRUNCATE inference",
        "UPDATE alembic_version SET version_num = ''",
        "DELETE FROM schema_compatibility",
    ],
)
def test_a_server_may_not_change_tables(urls, statement) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(urls["quadriga"], statement)


def test_a_table_of_a_later_version_is_granted(urls) -> None:
    execute(urls["quadriga_owner"], "CREATE TABLE later (id serial, name text)")
    execute(urls["quadriga"], "INSERT INTO later (name) VALUES ('a')", "SELECT * FROM later")
    execute(urls["quadriga_owner"], "DROP TABLE later")


def test_records_wait_for_a_month_that_the_owner_makes(urls, data, photo) -> None:
    owner = urls["quadriga_owner"]
    with closing(psycopg.connect(owner, autocommit=True)) as connection:
        found = "SELECT inhrelid::regclass::text FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE relkind = 'r'"
        for (name,) in connection.execute(found).fetchall():
            connection.execute(f"DROP TABLE {name}")
    server = ServerProcess(data, SAMPLE_MODELS / MODEL, "--database", urls["quadriga"])
    with server:
        inference_id = server.store(MODEL, photo)
        server.wait_until(lambda: "no partition of" in str(server.call("GET", "/ready?verbose")))
        assert server.log.read_text().count("waits for the database: the database has no partition") == 1  # fmt: skip
        quadriga("migrate", "--database", owner, "--months", "2")
        server.wait_until(
            lambda: server.request("GET", f"/api/inferences/{inference_id}")[0] == 200
        )
    assert not (data / "dead.jsonl").exists()


def test_a_time_that_has_no_partition_is_refused_and_keeps_nothing_waiting(urls, data) -> None:
    sent = {"model": "elsewhere", "task": "OBJECT_DETECTION", "width": 9, "height": 9, "predictions": []}  # fmt: skip
    with ServerProcess(data, SAMPLE_MODELS / MODEL, "--database", urls["quadriga"]) as server:
        old = sent | {"time": "2025-03-31T23:59:59Z"}
        status, answer = server.call("POST", "/api/inferences", old)
        assert (status, "partition" in answer["error"]) == (400, True), answer
        status, answer = server.call("POST", "/api/inferences", {"inferences": [old, sent]})
        assert (status, answer["stored"]) == (200, 1), answer
        (stored,) = server.query({"model": "elsewhere"})
        assert [stored["id"]] == answer["inferences"][1]["ids"]
        quadriga("migrate", "--database", urls["quadriga_owner"], "--months", "1", "--since", "2025-03")  # fmt: skip
        server.wait_until(lambda: server.call("POST", "/api/inferences", old)[0] == 200)
        assert len(server.query({"model": "elsewhere"})) == 2
