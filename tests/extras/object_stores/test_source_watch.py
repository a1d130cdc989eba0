"""The watch over a source: what a start serves, what is loaded when, and what is said of it."""

import shutil

import pytest

from quadriga.engine.models.runners.session import LoadError
from quadriga.extras.object_stores.polled import WatchedFolder
from quadriga.extras.object_stores.source import ServedRecord, SourceError, SourceWatch
from tests.background import at_once
from tests.extras.object_stores.source_harness import MemoryObjects, open_models


class Workers:
    """The loading of a server: contents that begin with `bad` fail, and models that clients changed stay."""

    def __init__(self, source) -> None:
        self.source = source
        self.tried: list[str] = []
        self.loaded: list[str] = []
        self.of_clients: set[str] = set()
        self.others_fail = False

    def check(self, name, versions):
        self.tried.append(name)
        for version, path in versions.items():
            if path.read_bytes().startswith(b"bad"):
                raise LoadError(f"version {version}: no graph")

    def load(self, name):
        if name in self.of_clients:
            return False
        newest = self.source.newest()
        self.check(name, self.source.find(newest)[name])
        self.source.keep({**self.source.served(), name: newest[name]})
        if self.others_fail:
            raise LoadError("worker 1 failed")
        self.loaded.append(name)
        return True

    def serve(self):
        """Return the content of the served versions of each model."""
        return {
            name: [path.read_bytes() for path in versions.values()]
            for name, versions in self.source.find(self.source.served()).items()
        }


class Server:
    """A start of a server: its source, its watch and its workers."""

    def __init__(self, directory, objects, run="run") -> None:
        self.source = open_models(directory, objects)
        self.workers = Workers(self.source)
        self.watch = SourceWatch(
            self.source, directory / run, 0.0, self.workers.check, settle_s=0.0
        )

    def follow(self):
        self.watch.follow(self.workers.load)

    def prepare(self):
        self.watch.prepare()


@pytest.fixture
def objects():
    return MemoryObjects(a__1__model=b"a1", b__model=b"b1")


@pytest.fixture
def server(tmp_path, objects):
    running = Server(tmp_path, objects)
    running.prepare()
    return running


def test_a_first_start_serves_what_there_is_without_a_trial(server):
    assert server.workers.serve() == {"a": [b"a1"], "b": [b"b1"]}
    assert server.workers.tried == []
    assert (server.watch.problem(), server.watch.remark("a")) == (None, "")


def test_every_worker_prepares_and_one_of_them_looks(tmp_path, objects):
    servers = [Server(tmp_path, objects) for _ in range(4)]
    at_once([server.prepare for server in servers])
    assert sorted(objects.fetched) == ["a/1/model.onnx", "b/model.onnx"]
    objects.is_away = True
    Server(tmp_path, objects).prepare()  # a worker that is started again
    with pytest.raises(SourceError):
        Server(tmp_path / "elsewhere", objects).prepare()


def test_new_states_are_loaded_and_unchanged_models_are_not(server, objects):
    objects.put(a__2__model=b"a2", c__model=b"c1")
    server.follow()
    server.follow()
    assert sorted(server.workers.loaded) == ["a", "c"]
    assert server.workers.serve() == {"a": [b"a2", b"a1"], "b": [b"b1"], "c": [b"c1"]}


def test_what_fails_is_not_served_and_not_tried_at_every_look(server, objects):
    objects.put(a__2__model=b"bad")
    for _ in range(3):
        server.follow()
    assert server.workers.tried == ["a"]
    assert server.workers.serve()["a"] == [b"a1"]
    assert server.watch.remark("a") == "newer files of it are not served: version 2: no graph"
    assert server.watch.problem() == "newer files of a are not served: version 2: no graph"
    objects.put(a__2__model=b"a2")
    server.follow()
    assert (server.watch.problem(), server.watch.remark("a")) == (None, "")
    assert server.workers.serve()["a"] == [b"a2", b"a1"]


def test_a_state_that_goes_back_is_no_failure_any_more(server, objects):
    objects.put(a__2__model=b"bad")
    server.follow()
    del objects.contents["a/2/model.onnx"]
    server.follow()
    assert server.watch.problem() is None
    assert server.workers.loaded == []


def test_a_failure_keeps_no_other_model_back(server, objects):
    objects.put(a__1__model=b"bad", b__model=b"b2")
    server.follow()
    assert server.workers.loaded == ["b"]
    assert server.workers.serve() == {"a": [b"a1"], "b": [b"b2"]}


def test_a_model_that_another_worker_does_not_serve_is_loaded_again(server, objects):
    server.workers.others_fail = True
    objects.put(a__1__model=b"a2")
    server.follow()
    assert server.watch.remark("a").endswith("worker 1 failed")
    server.workers.others_fail = False
    server.follow()
    assert server.workers.loaded == []  # not at once
    server.watch._failures["a"].retry_at_s = 0.0
    server.follow()
    assert server.workers.loaded == ["a"]
    assert server.watch.problem() is None


def test_models_that_clients_changed_are_left_to_them(server, objects):
    server.workers.of_clients.add("a")
    objects.put(a__1__model=b"a2")
    server.follow()
    assert server.workers.serve()["a"] == [b"a1"]
    server.workers.of_clients.clear()
    server.follow()
    assert server.workers.serve()["a"] == [b"a2"]


def test_a_model_that_left_the_source_is_served_until_the_next_start(tmp_path, server, objects):
    del objects.contents["b/model.onnx"]
    server.follow()
    assert server.workers.serve() == {"a": [b"a1"], "b": [b"b1"]}
    again = Server(tmp_path, objects, "run2")
    again.prepare()
    assert again.workers.serve() == {"a": [b"a1"]}


def test_a_source_that_is_away_changes_nothing_but_what_is_said(server, objects):
    objects.is_away = True
    for _ in range(2):
        server.follow()
    status = server.watch.status()
    assert (
        server.watch.problem()
        == "cannot list their source: it does not answer; the models are served as they were"
    )
    assert status.failed_looks == 2
    assert server.workers.serve() == {"a": [b"a1"], "b": [b"b1"]}
    objects.is_away = False
    server.follow()
    assert server.watch.problem() is None
    assert server.watch.status().seen_at >= status.seen_at > 0


def test_a_start_without_the_source_serves_the_cache(tmp_path, server, objects):
    objects.is_away = True
    again = Server(tmp_path, objects, "run2")
    again.prepare()
    assert again.workers.serve() == {"a": [b"a1"], "b": [b"b1"]}
    assert "does not answer" in again.watch.problem()
    assert again.watch.status().seen_at == server.watch.status().seen_at


def test_a_start_tries_what_has_changed_and_falls_back(tmp_path, server, objects):
    objects.put(a__2__model=b"bad", b__model=b"b2", c__model=b"bad too")
    again = Server(tmp_path, objects, "run2")
    again.prepare()
    assert sorted(again.workers.tried) == ["a", "b"]
    assert again.workers.serve() == {"a": [b"a1"], "b": [b"b2"], "c": [b"bad too"]}
    assert again.watch.remark("a") == "newer files of it are not served: version 2: no graph"


def test_all_workers_say_what_the_one_that_looks_knows(tmp_path, server, objects):
    other = Server(tmp_path, objects)
    objects.put(a__2__model=b"bad")
    server.follow()
    assert other.watch.problem() == server.watch.problem() is not None
    other.watch.note_loaded("a", other.watch.newest())
    assert server.watch.problem() is None


def test_a_load_by_a_client_looks_first(server, objects):
    objects.put(a__1__model=b"a2")
    server.watch.look_for_client(1.0)
    assert server.source.newest() != server.source.served()
    objects.is_away = True
    with pytest.raises(SourceError):
        server.watch.look_for_client(1.0)


def test_a_data_folder_that_is_removed_ends_no_watch(tmp_path, server, objects):
    shutil.rmtree(tmp_path / "run")
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(tmp_path / "data")
    objects.put(c__model=b"c1")
    server.follow()
    assert sorted(server.workers.loaded) == ["a", "b", "c"]
    assert server.workers.serve() == {"a": [b"a1"], "b": [b"b1"], "c": [b"c1"]}
    with server.watch._try_lead() as lock:
        assert not lock.closed


def test_reasons_are_not_endless(server, objects):
    def fail(name):
        raise LoadError("x" * 100_000)

    objects.put(a__1__model=b"a2")
    server.watch.follow(fail)
    assert len(server.watch.remark("a")) < 1100


def test_a_fault_of_the_server_ends_no_watch(server, objects, caplog):
    def fail(name):
        raise ZeroDivisionError

    objects.put(a__1__model=b"a2")
    server.watch.follow(fail)
    assert server.watch.problem().startswith("a fault of the server")
    assert "ZeroDivisionError" in caplog.text
    server.follow()
    assert server.watch.problem() is None


def test_a_folder_is_followed_once_its_files_stay_as_they_are(tmp_path):
    root = tmp_path / "models"
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        (root / name / "model.onnx").write_bytes(b"1")
    source = WatchedFolder(root, ServedRecord(tmp_path / "run" / "served.json", "folder"))
    tried = []
    watch = SourceWatch(source, tmp_path / "run", 0.0, lambda *_: tried.append(1), settle_s=0.001)
    watch.prepare()
    assert not tried  # a start serves what there is
    loaded = []

    def load(name):
        loaded.append(name)
        source.keep({**source.served(), name: source.newest()[name]})
        return True

    watch.follow(load)
    assert loaded == []
    (root / "a" / "model.onnx").write_bytes(b"22")
    (root / "c").mkdir()
    (root / "c" / "model.onnx").write_bytes(b"3")
    (root / "b" / "labels.txt").write_text("x")
    watch.follow(load)
    assert sorted(loaded) == ["a", "b", "c"]
    root.rename(tmp_path / "away")
    watch.follow(load)
    assert watch.problem().startswith("their folder cannot be read")
    assert str(tmp_path) not in watch.problem()
    (tmp_path / "away").rename(root)
    watch.follow(load)
    assert (watch.problem(), len(loaded)) == (None, 3)
