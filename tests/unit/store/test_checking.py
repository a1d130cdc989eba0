"""The check of a store names what is wrong with its rows, images, journal and database."""

import shutil

from quadriga.store.backup.checking import check_store
from quadriga.store.journal import journal
from tests.unit.store.filled_store import FIRST, IMAGES, filled, with_image
from tests.unit.store_harness import StoreHarness


def test_the_check_counts_what_waits_in_the_journal(store: StoreHarness):
    filled(store)
    assert check_store(store.root, store.url, store.blobs).journaled == 1
    store.writer.drain()
    assert check_store(store.root, store.url, store.blobs).journaled == 0


def test_the_check_names_what_is_wrong(store: StoreHarness):
    filled(store)
    store.journal.close()
    assert check_store(store.root, store.url, store.blobs).problem_count == 0
    key = str(with_image(store, 50, 0).input.hash)
    digits = key.partition(":")[2]
    path = store.root / "blobs" / digits[:2] / digits
    path.write_bytes(b"x" * len(IMAGES[0]))
    store.execute(f"UPDATE inference SET predictions = '[{{' WHERE seq = {FIRST + 1}")
    segment = journal.segment_paths(store.journal_directory)[-1]
    with segment.open("ab") as file:
        file.write(b"no frame at all, but long enough for a header")
    (store.root / "dead.jsonl").write_text("{}\n{}\n")
    (store.root / "dead").mkdir()
    (store.root / "dead" / "0000-1.journal.7").write_bytes(b"x")
    checked = check_store(store.root, store.url, store.blobs)
    by_kind = {problem.what: problem for problem in checked.problems}
    assert by_kind.keys() == {"row", "image", "journal", "refused"}
    assert by_kind["row"].where == str(FIRST + 1)
    assert key in by_kind["image"].text
    assert by_kind["refused"].text.startswith("2 records")
    journals = [problem.where for problem in checked.problems if problem.what == "journal"]
    assert journals == [segment.name, "dead/0000-1.journal.7"]
    # A fast check sees the file, and does not read it.
    fast = check_store(store.root, store.url, store.blobs, reads_images=False)
    assert fast.problem_count == checked.problem_count - 1
    path.unlink()
    assert check_store(store.root, store.url, store.blobs, reads_images=False).problem_count == 5


def test_the_check_names_a_damaged_database_that_was_set_aside(file_store: StoreHarness):
    file_store.commit(with_image(file_store, 1, 0))
    path = file_store.root / "store.db.damaged-20260131T120000Z"
    path.write_bytes(b"no database")
    checked = check_store(file_store.root, file_store.url, file_store.blobs)
    problems = [(problem.what, problem.where) for problem in checked.problems]
    assert problems == [("database", path.name)]


def test_the_check_of_sqlite_reads_the_whole_file(file_store: StoreHarness):
    store = file_store
    store.commit(*(with_image(store, number, number % 3) for number in range(200)))
    store.close()
    del store.writer
    shutil.copyfile(store.root / "store.db", store.root / "copy.db")
    path = store.root / "copy.db"
    content = bytearray(path.read_bytes())
    third = len(content) // 3
    content[third : 2 * third] = bytes(third)
    path.write_bytes(content)
    checked = check_store(store.root, f"sqlite:///{path}", store.blobs)
    assert any(problem.what in {"database", "row"} for problem in checked.problems)
