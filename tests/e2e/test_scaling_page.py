"""The commands of the page on scaling move a store that is in use."""

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.clickhouse_server import ClickHouseServer
from tests.postgres_server import PostgresServer
from tests.server_process import ROOT, ServerProcess, quadriga

PAGE = (ROOT / "docs" / "scaling.md").read_text()
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]


@pytest.fixture
def postgres() -> Iterator[str]:
    server = PostgresServer()
    yield server.create(migrated=False)
    server.close()


@pytest.fixture
def clickhouse() -> Iterator[ClickHouseServer]:
    server = ClickHouseServer()
    yield server
    server.close()


def run(command: str, urls: dict[str, str], cwd) -> str:
    for documented, real in urls.items():
        command = command.replace(documented, shlex.quote(real))
    return quadriga(*shlex.split(command)[1:], cwd=cwd).stdout


def test_a_store_in_use_moves_to_postgresql(data, postgres, photo, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    copy = COMMANDS[0]
    urls = {
        "sqlite:////data/store.db": f"sqlite:///{data}/store.db",
        "postgresql://quadriga@postgres/quadriga": postgres,
    }
    server = ServerProcess(data).start()
    stored = [server.store("m-shapes-detector", photo) for _ in range(3)]
    server.query({})
    assert re.search(r"inference 3(, signal \d)? copied", run(copy, urls, tmp_path))
    stored += [server.store("m-shapes-detector", photo) for _ in range(2)]
    assert server.stop() == 0
    copied = run(copy, urls, tmp_path)
    assert re.search(r"inference 2(, signal \d)? copied", copied)
    assert "inferences: 5 in FROM, 5 in TO" in copied
    moved = ServerProcess(data, ROOT / "sample_models", "--database", postgres).start()
    stored.append(moved.store("m-shapes-detector", photo))
    for inference_id in stored:
        moved.wait_until(
            lambda inference_id_=inference_id: (
                moved.request("GET", f"/api/inferences/{inference_id_}")[0] == 200
            )
        )
        status, _, image = moved.request("GET", f"/api/inferences/{inference_id}/input")
        assert (status, image) == (200, photo)
    assert moved.stop() == 0


def test_what_is_stored_is_sent_to_clickhouse_too(
    data, clickhouse, photo, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    database = clickhouse.create()
    urls = {
        "sqlite:////data/store.db": f"sqlite:///{data}/store.db",
        "http://default@clickhouse:8123/quadriga": clickhouse.url(database),
    }
    server = ServerProcess(data).start()
    first_id = server.store("m-shapes-detector", photo)
    assert server.stop() == 0
    server = ServerProcess(
        data, ROOT / "sample_models", "--clickhouse", clickhouse.url(database)
    ).start()
    second_id = server.store("m-shapes-detector", photo)
    assert server.stop() == 0
    seqs = "SELECT toString(seq) AS seq FROM inference ORDER BY seq"
    assert [row["seq"] for row in clickhouse.query(database, seqs)] == [second_id]
    assert not list((data / "journal").glob("*.journal"))
    (copy,) = (command for command in COMMANDS if "clickhouse" in command)
    run(copy, urls, tmp_path)
    clickhouse.query(database, "OPTIMIZE TABLE inference FINAL")
    assert [row["seq"] for row in clickhouse.query(database, seqs)] == [first_id, second_id]


def test_the_archive_is_exported(data, tmp_path, photo, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    server = ServerProcess(data).start()
    server.store("m-shapes-detector", photo)
    assert server.stop() == 0
    (export,) = (command for command in COMMANDS if " export " in command)
    run(f"{export} --data {data}", {}, tmp_path)
    assert (tmp_path / "2026-01.parquet").exists()


def test_every_command_of_the_page_is_run() -> None:
    assert [shlex.split(command)[1] for command in COMMANDS] == [
        "store",
        "store",
        "export",
    ]
