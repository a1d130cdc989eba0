"""Models loaded and unloaded while the server runs: in one process, and in several that meet in a folder."""

import fcntl
import gc
import shutil
import time
import weakref
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

from quadriga.engine.models.model_control import ModelControl
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.overrides import Override
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.access import Caller
from quadriga.proto.errors import (
    InternalError,
    InvalidRequest,
    ModelNotReady,
    NotFound,
    ProtocolError,
    Unsupported,
)
from quadriga.proto.request import RequestContext, set_current_request
from tests.background import at_once, until
from tests.onnx_models import CLASSIFIER_TOML, classifier, doubling, endless, tripling
from tests.text_models import vision_language


@pytest.fixture
def root(tmp_path):
    doubling(tmp_path / "models" / "double" / "model.onnx")
    for version in ("1", "2"):
        doubling(tmp_path / "models" / "versions" / version / "model.onnx")
    return tmp_path / "models"


@pytest.fixture
def repository(root):
    repository = ModelRepository(root)
    repository.load_all()
    return repository


def answer(repository, name="double", version=None):
    """Return the output of a model for 1."""
    model = repository.get(name, version)
    return model.session.run({"x": np.ones((1, 3), np.float32)})["y"][0, 0]


def states(repository, name):
    return {s.version: s.state for s in repository.statuses() if s.name == name}


def states_of_all(repository):
    return {status.name for status in repository.statuses()}


def test_a_load_serves_the_folder_as_it_is_now(root, repository):
    old = repository.get("double")
    tripling(root / "double" / "model.onnx")
    assert answer(repository) == 2
    assert repository.load("M-DOUBLE") == "double"
    assert answer(repository) == 3
    assert old.session.run({"x": np.ones((1, 3), np.float32)})["y"][0, 0] == 2
    tripling(root / "versions" / "11" / "model.onnx")
    shutil.rmtree(root / "versions" / "1")
    repository.load("versions")
    assert states(repository, "versions") == {"11": "READY", "2": "READY"}
    assert answer(repository, "versions") == 3


def test_a_folder_that_appeared_can_be_loaded(root, repository):
    with pytest.raises(NotFound, match="model not found: 'new'; there are double, versions"):
        repository.load("new")
    tripling(root / "new" / "model.onnx")
    with pytest.raises(NotFound):
        repository.get("new")
    repository.load("new")
    assert answer(repository, "m-new") == 3


def test_failed_load_keeps_the_served_version(root, repository):
    (root / "double" / "model.onnx").write_bytes(b"broken")
    (root / "new").mkdir()
    (root / "new" / "model.onnx").write_bytes(b"broken")
    statuses = repository.statuses()
    for name in ("double", "new"):
        with pytest.raises(LoadError, match=f"model '{name}' version 1 failed to load"):
            repository.load(name)
    assert answer(repository) == 2
    assert repository.statuses() == statuses
    (root / "versions" / "2" / "model.onnx").write_bytes(b"broken")
    with pytest.raises(LoadError, match="version 2"):
        repository.load("versions")
    assert answer(repository, "versions", "2") == 2


def test_an_unloaded_model_is_known_and_not_ready(repository):
    assert repository.unload("m-Versions") == "versions"
    assert states(repository, "versions") == {"2": "UNLOADED", "1": "UNLOADED"}
    assert {s.reason for s in repository.statuses() if s.name == "versions"} == {"unloaded"}
    with pytest.raises(ModelNotReady, match="'versions' version 1 is unloaded"):
        repository.get("versions", "1")
    with pytest.raises(NotFound):
        repository.unload("none")
    assert repository.statistics("versions", None) == []
    repository.load("versions")
    assert answer(repository, "versions") == 2


@pytest.mark.parametrize("name", ["double", "colours", "talker"])
def test_a_model_that_is_not_served_any_more_is_freed_at_once(root, name):
    classifier(root / "colours" / "model.onnx")
    (root / "colours" / "model.toml").write_text(CLASSIFIER_TOML)
    vision_language(root / "talker")
    repository = ModelRepository(root)
    repository.load_all()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for change in (repository.load, repository.unload):
            session = weakref.ref(repository.get(name).session)
            change(name)
            assert session() is None
    finally:
        if collecting:
            gc.enable()


def test_changes_before_the_first_load_are_applied(root):
    repository = ModelRepository(root)
    repository.unload("versions")
    tripling(root / "double" / "model.onnx")
    repository.load("double")
    loaded = repository.get("double")
    repository.load_all()
    assert repository.get("double") is loaded
    assert set(states(repository, "versions").values()) == {"UNLOADED"}


def test_a_config_stands_for_model_toml_until_the_next_load(repository):
    config = {"task": "tensor", "store": {"enabled": False}}
    repository.load("double", Override(config))
    assert not repository.get("double").recognition.written.store.enabled
    repository.load("versions", Override({"version_policy": {"specific": {"versions": [1]}}}))
    assert states(repository, "versions") == {"1": "READY"}
    repository.load("double")
    assert repository.get("double").recognition.written.store.enabled


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"instance_group": [{}]}, "instance_group"),
        ({"max_batch_size": -1}, "max_batch"),
        ({"max_batch_size": "x"}, "max_batch"),
        ({"input": {"resize": "torn"}}, "resize"),
        ({"output": {"decoder": 3}}, "decoder"),
        ({"runtime": {"providers": ["NoProvider"]}}, "NoProvider"),
        ({"runtime": {"providers": [{"name": "CPUExecutionProvider"}]}}, "list of names"),
    ],
)
def test_disallowed_config_values_are_named(repository, config, message):
    with pytest.raises(LoadError, match=message):
        repository.load("double", Override(config))
    assert answer(repository) == 2


def test_a_config_goes_before_model_toml_key_by_key(root, repository):
    folder = root / "colours"
    classifier(folder / "model.onnx")
    (folder / "model.toml").write_text(
        'task = "classification"\nlabels = {a = 0, b = 1, c = 2}\n[input]\nresize = "stretch"\n'
        '[defaults]\ntop_k = 1\n[runtime]\nmax_batch = 4\n[output]\nactivation = "softmax"\n'
    )
    config = {"runtime": {"warmup": False}, "labels": {"d": 0, "e": 1, "f": 2}}
    repository.load("colours", Override(config))
    recognition = repository.get("colours").recognition
    assert (recognition.written.runtime.max_batch, recognition.written.runtime.warmup) == (4, False)
    assert recognition.spec.labels == ("d", "e", "f")
    repository.load("colours")
    assert repository.get("colours").spec.labels == ("a", "b", "c")


def test_one_process_takes_no_files_without_a_folder(root, repository):
    control = ModelControl(repository)
    tripling(root / "double" / "model.onnx")
    control.load("double", None, {})
    assert answer(repository) == 3
    with pytest.raises(Unsupported):
        control.load("double", None, {"model.onnx": b""})
    control.unload("double")
    with pytest.raises(ModelNotReady):
        repository.get("double")
    with pytest.raises(Unsupported, match="model_control"):
        ModelControl(repository, allowed=False).unload("versions")


def test_files_are_a_model_until_the_next_load(root, repository, tmp_path):
    run = tmp_path / "run"
    control = ModelControl(repository, run, max_file_bytes=10_000)
    graph = tripling(tmp_path / "other" / "model.onnx").read_bytes()
    control.load("double", None, {"model.onnx": graph})
    assert answer(repository) == 3
    control.load("sent", {"runtime": {"warmup": False}}, {"7/model.onnx": graph})
    assert repository.get("sent").version == "7"
    for name, files in (
        ("double", {"model.onnx": b"broken"}),
        ("double", {"labels.txt": b"a"}),
        ("..", {"model.onnx": graph}),
        ("bad name!", {"model.onnx": graph}),
    ):
        with pytest.raises(InvalidRequest):
            control.load(name, None, files)
    assert answer(repository) == 3
    assert len(list((run / "models").iterdir())) == 2
    control.load("double", None, {})
    assert answer(repository) == 2
    control.unload("sent")
    assert list((run / "models").iterdir()) == []
    with pytest.raises(NotFound):
        control.load("sent", None, {})


def pair(root, run, **options):
    """Two workers, as processes of their own would be."""
    controls = []
    for number in range(2):
        repository = ModelRepository(root)
        control = ModelControl(
            repository, run, worker=number, workers=2, max_file_bytes=10_000, **options
        )
        controls.append((repository, control))
    return controls


def test_a_model_that_loads_for_long_keeps_no_other_waiting(root, tmp_path):
    repository = ModelRepository(root, host=ModelHost(load_timeout_s=10, isolation="clients"))
    repository.load_all()
    control = ModelControl(repository, tmp_path / "run", max_file_bytes=10_000, timeout_s=60)
    slow = {"model.onnx": endless(tmp_path / "endless.onnx").read_bytes()}
    quick = {"model.onnx": tripling(tmp_path / "tripling.onnx").read_bytes()}
    ends = {}

    def load(name, files, caller):
        set_current_request(RequestContext(caller=Caller(name=caller, key_id=caller)))
        with pytest.raises(InvalidRequest, match="within 10") if files is slow else nullcontext():
            control.load(name, None, files)
        ends[name] = time.monotonic()

    slow_loads = [partial(load, f"slow-{number}", slow, "a") for number in range(3)]
    at_once([*slow_loads, partial(load, "quick", quick, "b"), partial(load, "double", {}, "b")])
    assert max(ends["quick"], ends["double"]) < min(ends[f"slow-{number}"] for number in range(3))
    _, second, third = sorted(ends[f"slow-{number}"] for number in range(3))
    assert third - second > 8  # a key has two at once
    assert answer(repository, "quick") == 3
    assert {name for name in states_of_all(repository) if name.startswith("slow")} == set()
    assert len(list((tmp_path / "run" / "models").iterdir())) == 1


def test_a_change_reaches_every_worker_before_it_is_answered(root, tmp_path):
    workers = pair(root, tmp_path / "run", timeout_s=20)
    for repository, control in workers:
        control.start()
        repository.load_all()
    (first_repository, first), (second_repository, second) = workers
    tripling(root / "double" / "model.onnx")
    first.load("double", None, {})
    assert (answer(first_repository), answer(second_repository)) == (3, 3)
    second.unload("double")
    for repository in (first_repository, second_repository):
        with pytest.raises(ModelNotReady, match="unloaded"):
            repository.get("double")
    graph = doubling(tmp_path / "other" / "model.onnx").read_bytes()
    second.load("double", None, {"model.onnx": graph})
    assert (answer(first_repository), answer(second_repository)) == (2, 2)
    again = ModelRepository(root)  # a worker that died and starts again
    ModelControl(again, tmp_path / "run", worker=1, workers=2).start()
    again.load_all()
    assert answer(again) == 2
    again.get("double").counters.count_success(5, 0, [(0, 1, 0, None), (0, 2, 0, None)])
    first_repository.get("double").counters.count_success(1, 0, [(0, 1, 0, None), (0, 2, 0, None)])
    until = time.monotonic() + 60
    while first.statistics("double", None)[0].inference_count != 6:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_changes_at_once_follow_each_other(root, tmp_path):
    workers = pair(root, tmp_path / "run", timeout_s=30)
    for repository, control in workers:
        control.start()
        repository.load_all()
    failed = []

    def change(control, name):
        for _ in range(5):
            try:
                control.unload(name)
                control.load(name, None, {})
            except ProtocolError as error:
                failed.append(error)

    names = ("double", "versions")
    at_once([partial(change, control, name) for _, control in workers for name in names])
    assert failed == []
    for repository, _ in workers:
        assert {status.state for status in repository.statuses()} == {"READY"}


def test_a_worker_that_does_not_follow_is_named(root, tmp_path):
    (repository, control), (_, other_control) = pair(root, tmp_path / "run", timeout_s=0.2)
    control.start()
    repository.load_all()
    with pytest.raises(ModelNotReady, match="not yet: worker 1"):
        control.unload("double")
    with (tmp_path / "run" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ModelNotReady, match="no other model to be loaded"):
            other_control.unload("double")


def test_a_worker_that_cannot_follow_says_why(root, tmp_path):
    (first_repository, first), _ = pair(root, tmp_path / "run", timeout_s=20)
    shutil.copytree(root, tmp_path / "others")
    two = ModelRepository(tmp_path / "others")
    second = ModelControl(two, tmp_path / "run", worker=1, workers=2, timeout_s=20)
    for repository, control in ((first_repository, first), (two, second)):
        control.start()
        repository.load_all()
    (tmp_path / "others" / "double" / "model.onnx").write_bytes(b"broken")
    with pytest.raises(InternalError, match="got from worker 1: model 'double' version 1 failed"):
        first.load("double", None, {})
    first.load("versions", None, {})


def test_a_folder_that_takes_nothing_has_one_line_of_log(root, tmp_path, caplog):
    reports = []
    (repository, control), _ = pair(root, tmp_path / "run", queues=lambda: reports.append(1) or [])
    control.start()
    repository.load_all()
    (path,) = (tmp_path / "run").glob("*0*.json")
    path.unlink()
    path.mkdir()  # a file cannot take its place, as on a full disk
    repository.get("double").counters.count_success(1, 0, [(0, 1, 0, None), (0, 2, 0, None)])
    until(lambda: "cannot write to the folder of the workers" in caplog.text)
    attempts = len(reports)
    until(lambda: len(reports) > attempts + 6)  # two for each further attempt
    assert caplog.text.count("cannot write to the folder of the workers") == 1
