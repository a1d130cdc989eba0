"""Models of a source in a server's workers: loaded beside each other, by the watch and by clients."""

from contextlib import contextmanager

import numpy as np
import pytest

from quadriga.engine.models.model_control import ModelControl
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.models.runners.session import LoadError
from quadriga.extras.object_stores.source import SourceWatch
from quadriga.proto.errors import InvalidRequest, ModelNotReady, NotFound, Unsupported
from tests.background import until
from tests.extras.object_stores.source_harness import MemoryObjects, open_models
from tests.onnx_models import doubling, tripling


@pytest.fixture
def graphs(tmp_path):
    """Return graphs that double and triple."""
    return {
        factor: make(tmp_path / f"{factor}.onnx").read_bytes()
        for factor, make in ((2, doubling), (3, tripling))
    }


@pytest.fixture
def objects(graphs):
    return MemoryObjects(a__1__model=graphs[2], b__model=graphs[2])


class Worker:
    """A worker of a server whose models come from objects in memory."""

    def __init__(self, directory, objects, number=0, workers=1, *, allowed=True):
        self.source = open_models(directory, objects)
        self.watch = SourceWatch(
            self.source,
            directory / "run" / "source",
            0.0,
            lambda *_: pytest.fail("nothing has changed"),
            settle_s=0.0,
        )
        self.repository = ModelRepository(
            directory / "cache", find=self.watch.find_served, remark=self.watch.remark
        )
        with pytest.raises(ModelNotReady, match="still awaited"):
            self.repository.get("a")
        self.watch.prepare()
        self.repository.fill()
        self.control = ModelControl(
            self.repository,
            directory / "run",
            worker=number,
            workers=workers,
            timeout_s=30.0,
            allowed=allowed,
            watch=self.watch,
        )
        self.control.start()
        self.repository.load_all()

    def follow(self):
        self.watch.follow(self.control.load_newest)

    def answer(self, name="a", version=None):
        """Return the output of a model for 1."""
        model = self.repository.get(name, version)
        return model.session.run({"x": np.ones((1, 3), np.float32)})["y"][0, 0]

    def states(self, name="a"):
        return {
            status.version: (status.state, status.reason)
            for status in self.repository.statuses()
            if status.name == name
        }


@contextmanager
def untouched(worker, name):
    """Check that the loaded versions of a model stay the same objects."""
    before = {v: worker.repository.get(name, v) for v in worker.states(name)}
    yield
    for version, model in before.items():
        assert worker.repository.get(name, version) is model


def test_a_new_version_is_loaded_and_the_others_stay_as_they_are(tmp_path, objects, graphs):
    worker = Worker(tmp_path, objects)
    objects.put(a__2__model=graphs[3])
    with untouched(worker, "a"), untouched(worker, "b"):
        worker.follow()
    assert (worker.answer(), worker.answer(version="1")) == (3, 2)
    del objects.contents["a/2/model.onnx"]
    worker.follow()
    assert list(worker.states()) == ["1"]
    path = worker.repository.get("a").paths[0]
    assert path.is_file()  # the version's own snapshot is held, also where no state needs it


def test_a_sidecar_makes_a_new_state(tmp_path, objects):
    worker = Worker(tmp_path, objects)
    before = worker.repository.get("a")
    objects.contents["a/1/model.toml"] = b'[runtime]\nversion_labels = ["stable"]\n'
    worker.follow()
    assert worker.repository.get("a") is not before
    assert list(worker.repository.info("a").version_labels) == ["stable"]


def test_a_broken_version_leaves_the_old_one_with_the_reason(tmp_path, objects, graphs):
    worker = Worker(tmp_path, objects)
    objects.put(a__2__model=b"broken")
    with untouched(worker, "a"):
        worker.follow()
    ((state, reason),) = worker.states().values()
    assert state == "READY"
    assert reason.startswith("newer files of it are not served: model 'a' version 2 failed to load")
    assert str(tmp_path) not in reason
    objects.put(a__2__model=graphs[3])
    worker.follow()
    assert worker.states() == {"2": ("READY", ""), "1": ("READY", "")}


def test_every_worker_follows(tmp_path, objects, graphs):
    first, second = (Worker(tmp_path, objects, number, 2) for number in range(2))
    objects.put(a__1__model=graphs[3], c__model=graphs[3])
    first.follow()
    for worker in (first, second):
        assert (worker.answer(), worker.answer("b"), worker.answer("c")) == (3, 2, 3)
    until(lambda: len(list((tmp_path / "cache" / "snapshots").iterdir())) == 3)
    objects.put(a__1__model=b"broken")
    second.follow()
    assert (first.answer(), second.answer()) == (3, 3)
    assert first.states() == second.states() != {}


def test_a_worker_that_starts_again_serves_what_the_others_do(tmp_path, objects, graphs):
    first = Worker(tmp_path, objects)
    objects.put(a__1__model=graphs[3])
    first.follow()
    objects.put(a__1__model=b"broken")
    first.follow()
    assert Worker(tmp_path, objects).answer() == 3


def test_a_client_loads_what_is_new(tmp_path, objects, graphs):
    worker = Worker(tmp_path, objects)
    objects.put(a__1__model=graphs[3], new__model=graphs[3])
    worker.control.load("A", None, {})
    worker.control.load("new", None, {})
    assert (worker.answer(), worker.answer("new")) == (3, 3)
    objects.put(a__1__model=b"broken")
    with pytest.raises(InvalidRequest, match="failed to load"):
        worker.control.load("a", None, {})
    with pytest.raises(NotFound, match="model not found"):
        worker.control.load("other", None, {})
    objects.is_away = True
    with pytest.raises(ModelNotReady, match="cannot load 'a': cannot list their source"):
        worker.control.load("a", None, {})
    assert worker.answer() == 3


def test_what_a_client_changed_is_the_client_s(tmp_path, objects, graphs):
    worker = Worker(tmp_path, objects)
    worker.control.unload("a")
    objects.put(a__1__model=graphs[3])
    worker.follow()
    assert worker.states() == {"1": ("UNLOADED", "unloaded")}
    worker.control.load("a", {"defaults": {}, "runtime": {"max_batch": 3}}, {})
    assert (worker.answer(), worker.repository.info("a").max_batch) == (3, 3)
    objects.put(a__1__model=graphs[2])
    worker.follow()
    assert (worker.answer(), worker.repository.info("a").max_batch) == (2, 3)
    assert worker.watch.problem() is None


def test_the_watch_needs_no_leave_of_clients(tmp_path, objects, graphs):
    worker = Worker(tmp_path, objects, allowed=False)
    for change in (lambda: worker.control.load("a", None, {}), lambda: worker.control.unload("a")):
        with pytest.raises(Unsupported):
            change()
    objects.put(a__1__model=graphs[3])
    worker.follow()
    assert worker.answer() == 3


def test_a_model_behind_another_may_come_with_it(tmp_path, objects, graphs):
    worker = Worker(tmp_path, objects)
    calls = []

    def load(name):
        calls.append(name)
        if name == "first" and "second" not in worker.repository.names():
            raise LoadError("the model behind it is not there")
        return worker.control.load_newest(name)

    objects.put(first__model=graphs[2], second__model=graphs[3])
    worker.watch.follow(load)
    assert worker.answer("first") == 2
    assert worker.watch.problem() is None
    assert calls.count("first") == 2
