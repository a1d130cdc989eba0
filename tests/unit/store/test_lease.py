"""Servers that share a database never have the same worker numbers, and keep theirs."""

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from quadriga.store.database import lease as leases
from quadriga.store.database.database import writer_engine
from quadriga.store.database.lease import EXPIRE_S, Lease
from quadriga.store.journal.journal import Journal
from quadriga.store.records.errors import StoreError
from quadriga.store.records.ids import IMPORT_WORKER, LEASE_FILE, read_lease
from quadriga.store.writing.writer import Writer
from tests.background import at_once, in_background, until
from tests.unit.store_harness import StoreHarness, run_statements, select_rows

PLACES = "SELECT number, place FROM worker_number ORDER BY number"


class Server:
    """A data folder, and the numbers of the server that runs on it."""

    def __init__(self, url: str, data: Path) -> None:
        self.url = url
        self.data = data
        Journal(data / "journal", 0).close()

    def lease(self, workers: int = 1, run: str = "run") -> Lease:
        return Lease(self.data, self.url, workers, run=run)

    def claim(self, workers: int = 1) -> list[int]:
        """Claim numbers as a server that starts and is killed; return those that its workers read."""
        with writer_engine(self.url) as engine:
            self.lease(workers, run=secrets.token_hex(8)).hold(engine)
        return self.remembered()

    def remembered(self) -> list[int]:
        file = read_lease(self.data)
        return file.numbers if file else []


@pytest.fixture
def servers(database_url: str, tmp_path: Path) -> list[Server]:
    return [Server(database_url, tmp_path / f"data-{name}") for name in range(3)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Renewals every moment, so that a test need not wait for them."""
    monkeypatch.setattr(leases, "RENEW_S", 0.05)
    monkeypatch.setattr(leases, "WATCH_S", 1.0)
    return


def age(url: str, seconds: float) -> None:
    """Let some time pass without a sign of any server."""
    statement = f"UPDATE worker_number SET seen_ms = seen_ms - {round(seconds * 1000)}"
    run_statements(url, (statement, ()))


def test_each_data_folder_gets_numbers_of_its_own_and_keeps_them(servers: list[Server]) -> None:
    first, second, third = servers
    assert (first.claim(2), second.claim(), third.claim(3)) == ([0, 1], [2], [3, 4, 5])
    age(first.url, 100 * EXPIRE_S)
    assert (third.claim(3), second.claim(), first.claim(2)) == ([3, 4, 5], [2], [0, 1])


def test_more_workers_keep_the_numbers_of_the_first(servers: list[Server]) -> None:
    first, second, _ = servers
    assert (first.claim(2), second.claim()) == ([0, 1], [2])
    assert first.claim(3) == [0, 1, 3]
    assert first.claim(1) == [0]
    assert second.claim(2) == [2, 4]  # what the first does not use any more stays with it
    assert first.claim(3) == [0, 1, 3]


def test_servers_that_start_at_once_get_different_numbers(
    database_url: str, tmp_path: Path
) -> None:
    servers = [Server(database_url, tmp_path / f"data-{name}") for name in range(6)]
    at_once([server.claim for server in servers])
    assert sorted(number for server in servers for number in server.remembered()) == [*range(6)]


def test_a_number_that_expired_is_given_away_only_if_no_other_is_left(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "IMPORT_WORKER", 3)
    first, second, third = servers
    assert first.claim() == [0]
    age(first.url, EXPIRE_S + 1)
    assert second.claim(2) == [1, 2]
    assert third.claim() == [0]
    with pytest.raises(StoreError, match="expected 1 free worker numbers of 3, got 0"):
        first.claim()
    age(first.url, EXPIRE_S + 1)
    assert first.claim() == [1]


def test_leases_that_ran_out_in_an_outage_are_renewed_by_all_who_come_back(
    servers: list[Server],
) -> None:
    first, second, third = servers
    with writer_engine(first.url) as engine:
        leases_of = [server.lease(2) for server in (first, second)]
        for lease in leases_of:
            lease.hold(engine)
        age(first.url, EXPIRE_S + 1)
        for lease in leases_of:
            lease._due_s = 0.0
            lease.hold(engine)
    assert (first.remembered(), second.remembered(), third.claim()) == ([0, 1], [2, 3], [4])


def test_a_server_whose_lease_was_lost_in_an_outage_comes_back_and_no_record_is_dropped(
    servers: list[Server], record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers gave out one number: each of their records is stored, also those with one id."""
    monkeypatch.setattr(leases, "IMPORT_WORKER", 2)
    first, second, third = servers
    stores = [StoreHarness(server.data, server.url) for server in (first, second)]
    with writer_engine(first.url) as engine:
        lost = first.lease()
        lost.hold(engine)
        age(first.url, EXPIRE_S + 1)
        assert (third.claim(), second.claim()) == ([1], [0])
        for store, name in zip(stores, ("first", "second"), strict=True):
            store.journal.append([record(seq, request_id=f"{name} {seq}") for seq in range(1, 6)])
        stores[1].writer.drain()
        lost._due_s = 0.0
        lease_file = (first.data / LEASE_FILE).read_bytes()
        for of_run in (lost, first.lease()):  # the writer, and one that takes its place meanwhile
            (first.data / LEASE_FILE).write_bytes(lease_file)
            with pytest.raises(StoreError, match="was away for more than a day; start it again"):
                of_run.hold(engine)
        assert first.remembered() == []  # not to begin with it while the database is away
        run_statements(first.url, ("UPDATE worker_number SET seen_ms = 0 WHERE number = 1", ()))
        writer = Writer(first.data / "journal", first.url, lease=first.lease(run="next"))
        writer.drain()
        writer.close()
    assert first.remembered() == [1]
    requests = select_rows(first.url, "SELECT request_id FROM inference ORDER BY request_id")
    expected = [f"{name} {seq}" for name in ("first", "second") for seq in range(1, 6)]
    assert [request for (request,) in requests] == expected
    for store in stores:
        store.close()


def test_a_data_folder_of_release_0_2_0_goes_on_with_its_numbers(servers: list[Server]) -> None:
    server, other, _ = servers
    server.claim(2)
    file = json.loads((server.data / LEASE_FILE).read_bytes())
    old = {name: file[name] for name in ("owner", "database", "run", "numbers")}
    for is_away in (True, False):
        (server.data / LEASE_FILE).write_text(json.dumps({**old, "numbers": [1, 0]}))
        lease = server.lease(2, run="next")
        if is_away:
            lease.remember()
        else:
            with writer_engine(server.url) as engine:
                lease.hold(engine)
        remembered = read_lease(server.data)
        assert remembered is not None
        assert (remembered.run, remembered.numbers) == ("next", [1, 0])
    assert other.claim() == [2]


def test_a_copy_of_a_data_folder_is_refused_while_the_other_is_in_use(
    servers: list[Server], tmp_path: Path, quick: None
) -> None:
    original = servers[0]
    with writer_engine(original.url) as engine, writer_engine(original.url) as copying:
        running = original.lease()
        running.hold(engine)
        shutil.copytree(original.data, tmp_path / "copy")
        copy = Server(original.url, tmp_path / "copy")

        def run(stop: object) -> None:
            while not stop.wait(0.02):
                running.hold(engine)

        with in_background(run):
            expected = "the data folder is a copy of one that a server on .* runs on"
            with pytest.raises(StoreError, match=expected):
                copy.lease().hold(copying)
        running.hold(engine)
    assert (original.remembered(), copy.remembered()) == ([0], [])
    assert original.claim() == [0]


@pytest.mark.parametrize("is_released", [True, False], ids=["stopped", "killed"])
def test_a_data_folder_that_was_moved_keeps_its_numbers(
    servers: list[Server], tmp_path: Path, quick: None, *, is_released: bool
) -> None:
    original = servers[0]
    with writer_engine(original.url) as engine:
        lease = original.lease(2)
        lease.hold(engine)
        if is_released:
            lease.release(engine)
    shutil.copytree(original.data, tmp_path / "moved")
    shutil.rmtree(original.data)
    assert Server(original.url, tmp_path / "moved").claim(2) == [0, 1]


def test_the_server_whose_copy_took_over_is_refused_at_its_next_sign(
    servers: list[Server], tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = servers[0]
    with writer_engine(original.url) as engine, writer_engine(original.url) as copying:
        cut_off = original.lease()
        cut_off.hold(engine)
        age(original.url, 3600)  # the database was away for it
        shutil.copytree(original.data, tmp_path / "copy")
        running = Server(original.url, tmp_path / "copy").lease()
        running.hold(copying)

        def run(stop: object) -> None:
            while not stop.wait(0.02):
                running.hold(copying)

        monkeypatch.setattr(cut_off, "_due_s", 0.0)
        with in_background(run), pytest.raises(StoreError, match="is a copy of one"):
            cut_off.hold(engine)


def test_claims_that_a_restored_database_lacks_are_made_again(servers: list[Server]) -> None:
    first, second, _ = servers
    with writer_engine(first.url) as engine:
        second.claim()
        lease = first.lease(2)
        lease.hold(engine)
        run_statements(first.url, ("DELETE FROM worker_number", ()))
        (first.data / LEASE_FILE).unlink()
        lease._due_s = 0.0
        lease.hold(engine)
    assert (first.remembered(), second.claim()) == ([1, 2], [0])


def test_remembered_numbers_hold_for_their_database_and_their_folder(
    servers: list[Server], tmp_path: Path
) -> None:
    server = servers[0]
    server.claim(2)

    def confirmed(workers: int = 2, url: str = server.url) -> bool:
        Server(url, server.data).lease(workers, run="next").remember()
        file = read_lease(server.data)
        is_confirmed = file is not None and file.run == "next"
        server.claim(2)
        return is_confirmed

    assert confirmed()
    assert confirmed(1)
    assert not confirmed(3)
    assert not confirmed(url="postgresql://elsewhere/quadriga")
    assert confirmed(url=server.url)
    (server.data / "journal" / "id").unlink()
    Server(server.url, server.data).lease(2, run="other").remember()
    assert read_lease(server.data).run != "other"


def test_the_file_names_no_user_and_no_password(tmp_path: Path) -> None:
    hashes = {
        leases._location_hash(sa.make_url(url))
        for url in ("postgresql://a:secret@db/quadriga", "postgresql+psycopg://b@db/quadriga")
    }
    assert len(hashes) == 1


def test_a_writer_renews_what_it_claimed_and_releases_it(
    servers: list[Server], quick: None
) -> None:
    server = servers[0]
    writer = Writer(server.data / "journal", server.url, lease=server.lease(2))
    seen = "SELECT min(seen_ms) FROM worker_number HAVING count(*) = 2"
    with in_background(writer.run):
        until(lambda: select_rows(server.url, seen))
        before = select_rows(server.url, seen)
        until(lambda: select_rows(server.url, seen) > before)
        assert all(place for _, place in select_rows(server.url, PLACES))
    writer.close()
    assert select_rows(server.url, PLACES) == [(0, ""), (1, "")]


def test_the_number_of_imports_is_nobodys(servers: list[Server]) -> None:
    with pytest.raises(StoreError, match=f"of {IMPORT_WORKER}, got {IMPORT_WORKER}"):
        servers[0].claim(IMPORT_WORKER + 1)


def test_a_file_that_cannot_be_written_stops_no_record_and_is_tried_again(
    servers: list[Server], quick: None, record
) -> None:
    server = servers[0]
    in_the_way = server.data / LEASE_FILE
    in_the_way.mkdir()
    writer = Writer(server.data / "journal", server.url, lease=server.lease())
    journal = Journal(server.data / "journal", 0)
    with in_background(writer.run):
        journal.append([record(1)])
        until(lambda: writer.records_committed == 1)
        in_the_way.rmdir()
        until(server.remembered)
    writer.close()
    journal.close()
    assert server.remembered() == [0]
