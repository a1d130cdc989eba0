"""Models that misbehave while they are loaded, and which models have a process of their own."""

import threading
import time

import numpy as np
import pytest

from quadriga.engine.measures.shared_counts import SharedCounts
from quadriga.engine.models import model_host
from quadriga.engine.models import repository as model_repository
from quadriga.engine.models.model import Model
from quadriga.engine.models.model_control import ModelControl
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.overrides import MAX_FILES, write_files
from quadriga.engine.models.repository import ModelRepository
from quadriga.engine.models.runners.crashes import ModelRuns
from quadriga.engine.models.runners.isolated_runner import IsolatedRunner
from quadriga.engine.models.runners.session import LoadError, Session
from quadriga.proto.errors import InvalidRequest
from tests.onnx_models import (
    COLOURS_TOML,
    classifier,
    dividing_by_itself,
    doubling,
    endless,
    greedy,
    tripling,
)
from tests.text_models import vision_language

ONES = {"x": np.ones((1, 3), np.float32)}
BILLION = 10**9


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(model_host, "DEFAULT_MEMORY_MB", 64)
    monkeypatch.setattr(model_repository, "MAX_CLIENT_MODELS", 2)


@pytest.fixture
def root(tmp_path):
    doubling(tmp_path / "models" / "double" / "model.onnx")
    return tmp_path / "models"


def is_isolated(model):
    return isinstance(model.runner, IsolatedRunner)


def serve(root, **host):
    """Load the models of a folder; gives the repository, and what clients load models with."""
    repository = ModelRepository(root, host=ModelHost(**host))
    repository.load_all()
    directory = root.parent / "run"
    return repository, ModelControl(repository, directory, max_file_bytes=10**6)


def states(repository):
    return {status.name: (status.state, status.reason) for status in repository.statuses()}


def send(control, name, make, *arguments, config=None, folder):
    """Load a model from a file that a client sends."""
    path = make(folder / f"{name}.onnx", *arguments)
    control.load(name, config or {}, {"model.onnx": path.read_bytes()})


def test_an_endless_warm_up_fails_after_the_time_for_it_and_keeps_no_model_from_loading(root):
    for number in range(6):
        endless(root / f"endless-{number}" / "model.onnx")
        doubling(root / f"later-{number}" / "model.onnx")
    started_s = time.monotonic()
    repository, _ = serve(root, load_timeout_s=1.5)
    assert time.monotonic() - started_s < 60
    for number in range(6):
        state, reason = states(repository)[f"endless-{number}"]
        assert state == "FAILED"
        assert reason == "its warm-up did not end within 1.5 s: see the setting load_timeout_s"
        assert states(repository)[f"later-{number}"] == ("READY", "")


def test_models_behind_a_slow_one_are_ready_before_it(root):
    endless(root / "aaa-endless" / "model.onnx")
    repository = ModelRepository(root, host=ModelHost(load_timeout_s=70))
    loading = threading.Thread(target=repository.load_all, daemon=True)
    loading.start()
    until_s = time.monotonic() + 60
    while states(repository)["double"][0] != "READY":
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert states(repository)["aaa-endless"][0] == "LOADING"
    assert not repository.loaded.is_set()
    loading.join(60)
    assert states(repository)["aaa-endless"][0] == "FAILED"


@pytest.mark.parametrize(
    ("make", "arguments", "reason"),
    [
        (greedy, (BILLION,), "needs more than the 68 MiB that its process may take"),
        (dividing_by_itself, (), "was ended by SIGFPE"),
        (endless, (), "not loaded within 3 s"),
    ],
    ids=["memory", "crash", "time"],
)
@pytest.mark.parametrize("isolation", ["none", "clients"])
def test_a_bad_model_of_a_client_is_refused_before_the_worker_opens_it(
    tmp_path, make, arguments, reason, isolation
):
    root = tmp_path / "models"
    doubling(root / "double" / "model.onnx")
    load_timeout_s = 3 if make is endless else 60
    repository, control = serve(root, isolation=isolation, load_timeout_s=load_timeout_s)
    with pytest.raises(InvalidRequest, match=reason):
        send(control, "bad", make, *arguments, folder=tmp_path)
    assert "bad" not in states(repository)
    assert not list((root.parent / "run" / "models").iterdir())
    assert repository.get("double").session.run(ONES)["y"][0, 0] == 2


def test_a_client_cannot_switch_the_warm_up_of_its_trial_off(root, tmp_path):
    _, control = serve(root, isolation="none")
    config = {"runtime": {"warmup": False, "isolation": "none"}}
    with pytest.raises(InvalidRequest, match="SIGFPE"):
        send(control, "bad", dividing_by_itself, config=config, folder=tmp_path)


def test_a_client_cannot_give_itself_more_memory(root, tmp_path):
    _, control = serve(root, isolation="clients")
    config = {"runtime": {"memory_limit_mb": 100_000, "isolation": "none"}}
    with pytest.raises(InvalidRequest, match="more than the 68 MiB"):
        send(control, "bad", greedy, BILLION, config=config, folder=tmp_path)


def test_a_configuration_of_a_client_is_tried_first_as_well(root):
    dividing_by_itself(root / "bad" / "model.onnx")
    (root / "bad" / "model.toml").write_text("[runtime]\nwarmup = false\n")
    repository, control = serve(root)
    old = repository.get("bad")
    with pytest.raises(InvalidRequest, match="SIGFPE"):
        control.load("bad", {"runtime": {"warmup": True}}, {})
    assert repository.get("bad") is old


@pytest.mark.parametrize(
    ("isolation", "expected"), [("none", False), ("clients", True), ("all", True)]
)
def test_models_of_clients_have_a_process_of_their_own_as_the_setting_says(
    root, tmp_path, isolation, expected
):
    repository, control = serve(root, isolation=isolation)
    send(control, "triple", tripling, folder=tmp_path)
    model = repository.get("triple")
    assert is_isolated(model) is expected
    assert model.session.run(ONES)["y"][0, 0] == 3
    assert is_isolated(repository.get("double")) is (isolation == "all")
    control.unload("triple")


def test_the_number_of_models_of_clients_is_limited(root, tmp_path):
    _, control = serve(root)
    for name in ("a", "b", "a"):
        send(control, name, tripling, folder=tmp_path)
    with pytest.raises(InvalidRequest, match="at most 2 models of clients"):
        send(control, "c", tripling, folder=tmp_path)
    control.unload("a")
    send(control, "c", tripling, folder=tmp_path)
    control.load("double", None, {})


def test_the_number_of_files_is_limited(tmp_path):
    files = {f"f{number}": b"" for number in range(MAX_FILES + 1)}
    with pytest.raises(InvalidRequest, match="at most 1000 files, got 1001"):
        write_files(files, tmp_path / "run", 10**6)
    assert not (tmp_path / "run").exists()


def test_the_number_of_threads_inside_a_run_is_limited(root):
    _, control = serve(root)
    with pytest.raises(InvalidRequest, match="four per core, got 600"):
        control.load("double", {"runtime": {"intra_op_threads": 600}}, {})
    with pytest.raises(LoadError, match="got 600"):
        Session(root / "double" / "model.onnx", intra_op_threads=600)


@pytest.mark.parametrize(
    ("written", "setting", "expected"),
    [
        ("", "none", False),
        ("", "clients", False),
        ("", "all", True),
        ('isolation = "process"', "none", True),
        ('isolation = "none"', "all", False),
    ],
)
def test_model_toml_goes_before_the_setting(root, written, setting, expected):
    (root / "double" / "model.toml").write_text(f"[runtime]\n{written}\n")
    repository, _ = serve(root, isolation=setting)
    assert is_isolated(repository.get("double")) is expected


def test_a_model_that_crashed_or_is_suspected_gets_a_process_of_its_own_until_a_client_loads_it(
    root,
):
    tripling(root / "triple" / "model.onnx")
    doubling(root / "other" / "model.onnx")
    counts = SharedCounts()
    ModelRuns(counts, "double", "1").suspect()
    triple = ModelRuns(counts, "triple", "1")
    triple.count_crash("SIGFPE")
    repository, control = serve(root, counts=counts)
    assert is_isolated(repository.get("double"))
    assert is_isolated(repository.get("triple"))
    assert not is_isolated(repository.get("other"))
    control.load("triple", None, {})
    assert not is_isolated(repository.get("triple"))
    assert not triple.needs_isolation()
    assert is_isolated(repository.get("double"))


def test_images_are_answered_alike_in_both_kinds_of_process(tmp_path):
    path = classifier(tmp_path / "colours" / "model.onnx")
    (path.parent / "model.toml").write_text(COLOURS_TOML)
    own = Model("colours", "1", path, host=ModelHost(isolation="all"))
    local = Model("colours", "1", path)
    image = np.random.default_rng(1).integers(0, 255, (1, 3, 8, 8)).astype(np.float32)
    assert is_isolated(own)
    feeds = {"image": image}
    assert (own.session.run(feeds)["logits"] == local.session.run(feeds)["logits"]).all()


def test_the_graphs_of_a_text_model_share_one_process(tmp_path):
    folder = vision_language(tmp_path / "text")
    model = Model("text", "1", folder, host=ModelHost(isolation="all"))
    package = model.image_predictor
    runners = {session._runner for session in package._reader.decoder.inputs_by_session}
    assert runners == {package._encoder._runner} == {model.runner}
