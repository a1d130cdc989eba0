"""Backups: whole, also while the journal moves; incremental by image; beside a PostgreSQL without it; damage is named."""

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from quadriga.store.backup import making
from quadriga.store.backup.checking import check_store
from quadriga.store.backup.contents import read_description
from quadriga.store.backup.making import make_backup
from quadriga.store.backup.places import FolderPlace, find_backup, open_place
from quadriga.store.backup.restoring import restore_backup
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database.sqlite import sqlite_url
from quadriga.store.journal import journal
from quadriga.store.records.disk import try_lock
from quadriga.store.records.errors import NotFoundError, StoreError
from quadriga.store.records.records import TruthStatement
from tests.postgres_server import PostgresServer
from tests.s3_server import BUCKET, S3Server
from tests.unit.store.filled_store import FIRST, IMAGES, filled, with_image
from tests.unit.store.test_copying import contents as rows_of
from tests.unit.store_harness import StoreHarness, commit_journal, select_rows


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside of the data folder."""
    return tmp_path_factory.mktemp("elsewhere")


def backed_up(store: StoreHarness, target: Path, **options):
    return make_backup(store.root, store.url, store.blobs, FolderPlace(target), **options)


def restored(target: Path | str, data: Path, url: str = "") -> tuple[str, FileBlobs]:
    """Restore the newest backup, move what is in its journal, and return its database and images."""
    url = url or f"sqlite:///{data}/store.db"
    blobs = FileBlobs(data / "blobs")
    assert restore_backup(*find_backup(str(target)), data, url, blobs).missing_images == 0
    commit_journal(url, data / "journal")
    return url, blobs


def without_offsets(rows: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the rows of a store without how far its journal is moved."""
    return {table: lines for table, lines in rows.items() if table != "journal_offset"}


def test_a_restored_backup_has_all_that_was_acknowledged(file_store: StoreHarness, elsewhere: Path):
    store = file_store
    filled(store)
    made = backed_up(store, elsewhere / "backups")
    assert (made.description.inferences, made.description.journaled) == (4, 1)
    assert (made.description.images, made.new_images) == (4, 4)
    url, blobs = restored(elsewhere / "backups", elsewhere / "data")
    store.writer.drain()
    assert without_offsets(rows_of(url)) == without_offsets(rows_of(store.url))
    assert select_rows(url, "SELECT name FROM access_key") == [("a person",)]
    assert select_rows(url, "SELECT * FROM worker_number") == []
    assert {entry.key for entry in blobs.entries()} == {e.key for e in store.blobs.entries()}
    for name in ("views/ships.json", "baselines/m/one.json", "url.key"):
        assert (elsewhere / "data" / name).read_text() == (store.root / name).read_text()
    assert (elsewhere / "data" / "url.key").stat().st_mode & 0o077 == 0
    checked = check_store(elsewhere / "data", url, blobs)
    assert (checked.problem_count, checked.inferences, checked.images) == (0, 5, 4)


def test_a_backup_with_a_database_goes_into_sqlite_alone(file_store: StoreHarness, elsewhere: Path):
    filled(file_store)
    backed_up(file_store, elsewhere / "backups")
    with pytest.raises(StoreError, match="or use --no-database beside one that pg_restore"):
        restored(elsewhere / "backups", elsewhere / "data", "postgresql://nobody@nowhere/x")
    assert not (elsewhere / "data").exists()


def test_two_servers_are_restored_beside_their_database(
    elsewhere: Path, postgres: PostgresServer, tmp_path: Path
):
    """Each leaves two records in its journal, of which the database gets one before it is copied."""
    source, target = postgres.create(), postgres.create(migrated=False)
    servers: list[StoreHarness] = []
    try:
        servers += [StoreHarness(tmp_path / name, source) for name in "ab"]
        for number, store in enumerate(servers):
            store.root.mkdir(exist_ok=True)
            store.commit(with_image(store, 10 * number, number))
            store.journal.append([with_image(store, 10 * number + 1, 2)])
            made = backed_up(store, elsewhere / store.root.name)
            assert not made.description.has_database
            assert (made.description.inferences, made.description.images) == (0, 2)
            assert (made.description.folder, made.description.host) == (store.root.name, socket.gethostname())  # fmt: skip
        servers[0].writer.drain()  # after its backup, before the copy of the database
        assert len(select_rows(source, "SELECT seq FROM inference")) == 3
        dump = elsewhere / "quadriga.dump"
        postgres.run("pg_dump", "--format", "custom", "--file", dump, source)
        postgres.run("pg_restore", "--dbname", target, dump)
        for store in servers:
            name = store.root.name
            restored(elsewhere / name, elsewhere / f"new-{name}", target)
        expected = [(FIRST + number,) for number in (0, 1, 10, 11)]
        assert select_rows(target, "SELECT seq FROM inference ORDER BY seq") == expected
    finally:
        for store in servers:
            store.close()
        postgres.drop(source)
        postgres.drop(target)


def test_a_whole_backup_goes_beside_a_database_if_told(
    file_store: StoreHarness, elsewhere: Path, postgres: PostgresServer
):
    filled(file_store)
    backed_up(file_store, elsewhere / "backups")
    target = postgres.create()
    try:
        place = find_backup(str(elsewhere / "backups"))
        blobs = FileBlobs(elsewhere / "data" / "blobs")
        restore_backup(*place, elsewhere / "data", target, blobs, has_database=False)
        assert select_rows(target, "SELECT count(*) FROM inference") == [(0,)]
        commit_journal(target, elsewhere / "data" / "journal")
        # The segment is in the backup as a whole, and the database knows of no part of it.
        stored = select_rows(target, "SELECT seq FROM inference ORDER BY seq")
        assert stored == [(FIRST + number,) for number in (0, 1, 2, 3, 9)]
    finally:
        postgres.drop(target)


@pytest.mark.parametrize("name", ["site #1", "100%41", "what?"])
def test_a_path_may_have_what_a_uri_has_for_itself(
    file_store: StoreHarness, elsewhere: Path, name: str
):
    filled(file_store)
    data = elsewhere / f"data {name}"
    shutil.copytree(file_store.root, data)
    url = sqlite_url(data / "store.db")
    made = make_backup(data, url, FileBlobs(data / "blobs"), FolderPlace(elsewhere / name))
    assert (made.description.inferences, made.description.journaled) == (4, 1)
    assert made.description.unfound_images == 0
    copy = elsewhere / f"copy {name}"
    restored(elsewhere / name, copy, sqlite_url(copy / "store.db"))
    assert (copy / "store.db").is_file()
    checked = check_store(copy, sqlite_url(copy / "store.db"), FileBlobs(copy / "blobs"))
    assert (checked.inferences, checked.problems) == (5, [])


def test_images_are_copied_once(store: StoreHarness, elsewhere: Path):
    filled(store)
    target = elsewhere / "backups"
    first = backed_up(store, target)
    store.blobs.put(b"another one")
    second = backed_up(store, target)
    assert (second.description.images, second.new_images) == (5, 1)
    assert FolderPlace(target).names() == [first.name, second.name]
    assert find_backup(str(target))[1] == second.name
    # Each is restored with its own images.
    restore_backup(*find_backup(str(target / first.name)), elsewhere / "one", f"sqlite:///{elsewhere}/one.db", FileBlobs(elsewhere / "i"))  # fmt: skip
    assert sum(1 for _ in FileBlobs(elsewhere / "i").entries()) == 4


def test_what_is_moved_and_removed_while_a_backup_is_made_is_in_it_once(
    file_store: StoreHarness, elsewhere: Path, monkeypatch
):
    store = file_store
    store.commit(with_image(store, 1, 0))
    store.journal.append([with_image(store, 2, 1)])
    store.journal.close()  # a segment that the writer would remove
    copy_database = making._copy_database

    def move_then_copy(*arguments):
        store.writer.drain()
        assert journal.segment_paths(store.journal_directory)  # it is held
        store.journal.append([with_image(store, 3, 2)])
        store.writer.drain()
        copy_database(*arguments)
        store.commit_changes(TruthStatement("id", str(FIRST + 2), [{"label": "late"}], "mara"))

    monkeypatch.setattr(making, "_copy_database", move_then_copy)
    made = backed_up(store, elsewhere / "backups")
    assert (made.description.inferences, made.description.journaled) == (3, 0)
    url, _ = restored(elsewhere / "backups", elsewhere / "data")
    assert select_rows(url, "SELECT seq FROM inference ORDER BY seq") == [
        (FIRST + number,) for number in (1, 2, 3)
    ]
    assert select_rows(url, "SELECT n FROM rollup") == [(3,)]  # nothing counts twice
    store.writer.drain()
    assert journal.segment_sizes(store.journal_directory).keys() == {
        path.name for path in journal.segment_paths(store.journal_directory)
    }
    assert not journal.are_segments_held(store.journal_directory)


def test_a_segment_that_was_removed_as_the_backup_began_is_not_moved_again(
    file_store: StoreHarness, elsewhere: Path, monkeypatch
):
    store = file_store
    store.journal.append([with_image(store, 1, 0)])
    store.journal.close()
    segment = journal.segment_paths(store.journal_directory)[0]
    copy_journal = making._copy_journal

    def copy_then_remove(source: Path, target: Path):
        names = copy_journal(source, target)
        monkeypatch.setattr(journal, "are_segments_held", lambda _: False)  # it had looked before
        store.writer.drain()
        assert not segment.exists()
        return names

    monkeypatch.setattr(making, "_copy_journal", copy_then_remove)
    made = backed_up(store, elsewhere / "backups")
    assert (made.description.inferences, made.description.journaled) == (1, 0)
    assert not ((elsewhere / "backups" / made.name) / "journal" / segment.name).exists()


def test_an_append_under_way_is_left_out(file_store: StoreHarness, elsewhere: Path):
    store = file_store
    store.commit(with_image(store, 1, 0))
    store.journal.append([with_image(store, 2, 1)])
    segment = journal.segment_paths(store.journal_directory)[-1]
    with segment.open("ab") as file:
        file.write(b"\x40\x00\x00\x00half a frame")
    made = backed_up(store, elsewhere / "backups")
    assert made.description.journaled == 1
    data = elsewhere / "data"
    restored(elsewhere / "backups", data)
    assert not (data / "dead").exists()


def test_a_store_that_has_nothing_yet_is_backed_up(elsewhere: Path):
    data = elsewhere / "data"
    data.mkdir()
    url = f"sqlite:///{data}/store.db"
    made = make_backup(data, url, FileBlobs(data / "blobs"), FolderPlace(elsewhere / "backups"))
    assert (made.description.inferences, made.description.revision, made.description.images) == (
        0,
        "",
        0,
    )
    restore_backup(
        *find_backup(str(elsewhere / "backups")),
        elsewhere / "back",
        url.replace("data", "back"),
        FileBlobs(elsewhere),
    )
    assert not (elsewhere / "back" / "store.db").exists()


def test_without_images_a_backup_says_so(store: StoreHarness, elsewhere: Path):
    filled(store)
    made = backed_up(store, elsewhere / "backups", has_images=False)
    assert (made.description.has_images, made.description.images) == (False, 0)
    assert not (elsewhere / "backups" / "images").exists()


def test_a_backup_that_failed_or_was_killed_is_none(
    file_store: StoreHarness, elsewhere: Path, monkeypatch
):
    store, target = file_store, elsewhere / "backups"
    filled(store)
    leftover = target / "20270101T000000Z.part"
    (leftover / "journal").mkdir(parents=True)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(making, "_copy_files", fail)
    with pytest.raises(OSError, match="No space left"):
        backed_up(store, target)
    assert FolderPlace(target).names() == []
    assert [path.name for path in target.iterdir()] == [".lock"]
    with pytest.raises(NotFoundError, match="none that is finished"):
        find_backup(str(target))
    assert not journal.are_segments_held(store.journal_directory)


def test_one_backup_at_a_time_goes_into_a_folder(file_store: StoreHarness, elsewhere: Path):
    target = elsewhere / "backups"
    target.mkdir()
    lock = try_lock(target / ".lock")
    with pytest.raises(StoreError, match="another backup"):
        backed_up(file_store, target)
    lock.close()
    file_store.root.joinpath("journal").mkdir(exist_ok=True)
    names = [backed_up(file_store, target).name for _ in range(3)]
    assert len(set(names)) == 3
    assert FolderPlace(target).names() == names


@pytest.mark.parametrize("name", ["store.db", "journal/id", "images.txt", "files/url.key"])
def test_a_damaged_backup_is_refused_before_anything_is_written(
    file_store: StoreHarness, elsewhere: Path, name: str
):
    filled(file_store)
    made = backed_up(file_store, elsewhere / "backups")
    path = (elsewhere / "backups" / made.name) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    target = elsewhere / "data"
    url = f"sqlite:///{target}/store.db"
    with pytest.raises(StoreError, match="is damaged"):
        restore_backup(
            *find_backup(str(elsewhere / "backups" / made.name)),
            target,
            url,
            FileBlobs(target / "blobs"),
        )
    path.unlink()
    with pytest.raises(StoreError, match="found none"):
        restore_backup(
            *find_backup(str(elsewhere / "backups" / made.name)),
            target,
            url,
            FileBlobs(target / "blobs"),
        )
    assert not target.exists()


def test_a_backup_is_not_made_within_the_data_folder(file_store: StoreHarness):
    file_store.commit(with_image(file_store, 1, 0))
    for target in (file_store.root, file_store.root / "backups", file_store.root / "blobs" / "x"):
        with pytest.raises(StoreError, match="outside of the data folder"):
            backed_up(file_store, target)


def test_nothing_is_written_over(file_store: StoreHarness, elsewhere: Path):
    filled(file_store)
    backed_up(file_store, elsewhere / "backups")
    data = elsewhere / "data"
    data.mkdir()
    (data / "file").touch()
    for url, expected in (
        (f"sqlite:///{data}/store.db", "to be empty"),
        (f"sqlite:///{file_store.root}/store.db", "no database yet"),
    ):
        folder = data if "empty" in expected else elsewhere / "other"
        with pytest.raises(StoreError, match=expected):
            restore_backup(
                *find_backup(str(elsewhere / "backups")), folder, url, FileBlobs(elsewhere / "i")
            )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"form": 2}, "a newer version made it"),
        ({"files": {"../../etc/passwd": {"bytes": 1, "blake3": ""}}}, "within the backup"),
        ({"files": {"/etc/passwd": {"bytes": 1, "blake3": ""}}}, "within the backup"),
        ({"files": 5}, "to describe a backup"),
    ],
)
def test_a_strange_description_is_refused(
    file_store: StoreHarness, elsewhere: Path, changes, expected
):
    made = backed_up(file_store, elsewhere / "backups")
    description = json.loads(((elsewhere / "backups" / made.name) / "backup.json").read_text())
    ((elsewhere / "backups" / made.name) / "backup.json").write_text(
        json.dumps(description | changes)
    )
    with pytest.raises(StoreError, match=expected):
        read_description(elsewhere / "backups" / made.name)


def test_missing_images_of_a_backup_are_counted(file_store: StoreHarness, elsewhere: Path):
    filled(file_store)
    backed_up(file_store, elsewhere / "backups")
    image = next(FileBlobs(elsewhere / "backups" / "images").entries())
    digits = image.key.partition(":")[2]
    (elsewhere / "backups" / "images" / digits[:2] / digits).write_bytes(b"damaged")
    data = elsewhere / "data"
    result = restore_backup(
        *find_backup(str(elsewhere / "backups")),
        data,
        f"sqlite:///{data}/store.db",
        FileBlobs(data / "blobs"),
    )
    assert result.missing_images == 1


def test_images_that_are_kept_elsewhere_are_not_found(file_store: StoreHarness, elsewhere: Path):
    store = file_store
    filled(store)
    other = FileBlobs(elsewhere / "other")
    made = make_backup(store.root, store.url, other, FolderPlace(elsewhere / "backups"))
    assert (made.description.images, made.description.unfound_images) == (0, 3)
    other.put(IMAGES[0])
    made = make_backup(store.root, store.url, other, FolderPlace(elsewhere / "backups"))
    assert (made.description.images, made.description.unfound_images) == (1, 2)
    made = backed_up(store, elsewhere / "others", has_images=False)
    assert made.description.unfound_images == 0


def test_a_backup_beside_a_writer_that_never_rests_loses_nothing(
    file_store: StoreHarness, elsewhere: Path
):
    store = file_store
    store.commit(with_image(store, 0, 0))
    stop, acknowledged = threading.Event(), [FIRST]

    def load() -> None:
        number = 1
        while not stop.is_set():
            store.journal.append([with_image(store, number, number % 4)])
            acknowledged.append(FIRST + number)
            number += 1
            if number % 50 == 0:
                store.journal.close()  # a new segment

    writer = store.writer
    threads = [
        threading.Thread(target=load),
        threading.Thread(target=writer.run, args=(stop,)),
    ]
    for thread in threads:
        thread.start()
    try:
        for number in range(3):
            before = len(acknowledged)
            made = backed_up(store, elsewhere / "backups")
            url, blobs = restored(elsewhere / "backups" / made.name, elsewhere / f"data{number}")
            stored = {seq for (seq,) in select_rows(url, "SELECT seq FROM inference")}
            assert set(acknowledged[:before]) <= stored
            (counted,) = select_rows(url, "SELECT sum(n) FROM rollup")[0]
            assert counted == len(stored)
            assert check_store(elsewhere / f"data{number}", url, blobs).problem_count == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_description_is_plain_json(file_store: StoreHarness, elsewhere: Path):
    made = backed_up(file_store, elsewhere / "backups")
    description = msgspec.json.decode(
        ((elsewhere / "backups" / made.name) / "backup.json").read_bytes()
    )
    assert description["form"] == 1
    assert set(description["files"]) >= {"images.txt"}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of a bucket."""
    server = S3Server()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield f"s3://{BUCKET}/backups"
    server.close()


def test_backups_are_kept_in_an_object_store(
    file_store: StoreHarness, elsewhere: Path, bucket: str
):
    store = file_store
    filled(store)
    place = open_place(bucket)
    assert place.names() == []
    first = make_backup(store.root, store.url, store.blobs, place)
    second = make_backup(store.root, store.url, store.blobs, place)
    assert (first.new_images, second.new_images) == (4, 0)
    assert place.names() == [first.name, second.name]
    assert find_backup(f"{bucket}/")[1] == second.name
    url, blobs = restored(f"{bucket}/{first.name}", elsewhere / "data")
    store.writer.drain()
    assert without_offsets(rows_of(url)) == without_offsets(rows_of(store.url))
    assert check_store(elsewhere / "data", url, blobs).problem_count == 0
    with pytest.raises(NotFoundError, match="none that is finished"):
        find_backup(f"{bucket}/20200101T000000Z")
    with pytest.raises(StoreError):
        open_place("s3://")
