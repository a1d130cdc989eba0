"""Predictions for tasks: those of the store where they are there, else by the model, each task for itself."""

import base64
import json
from collections.abc import Iterator

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.extras.label_studio import backend as backend_module
from quadriga.proto.errors import InvalidRequest, ModelFailed, NotFound
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from quadriga.store.records.errors import NotFoundError, StoreError
from quadriga.store.records.records import InputReference, ModelReference
from quadriga.store.records.scope import Scope
from tests.background import in_background
from tests.extras.label_studio.backend_harness import CONFIG, MODEL, BackendHarness
from tests.extras.label_studio.test_image_fetching import PNG, Site, running
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.asgi_request import send_request
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

BOX = {"label": "circle", "score": 0.5, "xmin": 64, "ymin": 48, "xmax": 128, "ymax": 96}


@pytest.fixture
def harness(tmp_path) -> Iterator[BackendHarness]:
    """Yield a backend whose store has an inference of the version that answers, of an older one, and of a team."""
    store = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    with in_background(store.writer.run):
        harness = BackendHarness(store)
        image = InputReference("image", store.blobs.put(PNG), 6, 4, "image/png", kept=True)
        current, older = (ModelReference(MODEL, version, "ab" * 32) for version in "21")
        store.journal.append(
            [
                make_record(1, model=current, predictions=[BOX]),
                make_record(2, model=older, input=image, predictions=[BOX]),
                make_record(3, model=current, predictions=[BOX], team="b"),
                make_record(4, model=older),
                make_record(5, model=current, predictions=[], status=500, input=image),
            ]
        )
        harness.backend._inferences.wait_for_journal()
        yield harness
    store.close()


@pytest.fixture
def site() -> Iterator[Site]:
    with running() as site:
        site.pages["/a.png"] = (200, {}, PNG)
        yield site


def stored(id_: int, **more: object) -> dict[str, object]:
    return {"id": id_, "data": {"image": "/data/x.jpg", "inference_id": str(id_), **more}}


def test_stored_predictions_are_answered_without_a_run(harness):
    answer = harness.predict(stored(1))
    ((prediction,),) = answer["results"]
    assert prediction["model_version"] == answer["model_version"] == f"{MODEL}@2"
    (result,) = prediction["result"]
    assert result["value"] == {"x": 10, "y": 10, "width": 10, "height": 10, "rotation": 0, "rectanglelabels": ["circle"]}  # fmt: skip
    assert harness.runs.requests == []


@pytest.mark.parametrize("id_", [2, 5])
def test_an_image_of_the_store_is_run_and_not_stored_again(harness, id_):
    answer = harness.predict(stored(id_))
    (result,) = answer["results"][0][0]["result"]
    assert (result["original_width"], result["original_height"]) == (6, 4)
    assert result["value"]["rectanglelabels"] == ["square"]
    (request,) = harness.runs.requests
    assert request.inputs[0].data == [PNG]
    assert request.inputs[0].parameters == {"store": False}
    assert request.protocol == "label-studio"


def test_an_image_of_another_server_is_fetched_and_stored_for_its_task(harness, site):
    harness.predict({"id": 70, "data": {"image": f"{site.url}/a.png"}})
    (request,) = harness.runs.requests
    assert request.inputs[0].parameters == {
        "store": True,
        "metadata": {"label_studio": "3.1764277000/task 70"},
    }


def test_a_signed_url_shows_its_image_to_whoever_has_it(harness):
    url = harness.backend._inferences.get_with_input_url(
        "2", "http://localhost/api/blobs/"
    ).input.url
    answer = harness.predict({"id": 2, "data": {"image": url}}, scope=Scope("nobody"))
    assert len(answer["results"][0]) == 1
    with pytest.raises((StoreError, InvalidRequest)):
        harness.predict({"id": 2, "data": {"image": f"{url[:-4]}AAAA"}})


def test_a_task_that_cannot_be_answered_leaves_the_others(harness, site):
    tasks = [
        stored(1),
        stored(99),
        stored(3),
        {"id": 8, "data": {"image": "http://10.0.0.1/a.png"}},
        {"id": 9, "data": {"image": f"{site.url}/a.png"}},
        {"id": 10, "data": None},
        {"id": 11},
        {"data": {"image": f"{site.url}/none"}},
        stored(4),
    ]
    answer = harness.predict(*tasks, scope=Scope("a"))
    assert [len(result) for result in answer["results"]] == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    answer = harness.predict(*tasks)
    assert [len(result) for result in answer["results"]] == [1, 0, 1, 0, 1, 0, 0, 0, 0]
    errors = {error["task"]: error["error"] for error in answer["errors"]}
    assert errors[99] == "inference not found: 99"
    assert "label_studio.hosts allows" in errors[8]
    assert "the data of a task" in errors[10]
    assert errors[4] == "input of 4 is not available: not stored"


def test_where_no_task_can_be_answered_the_first_reason_is_the_error(harness):
    with pytest.raises(NotFoundError, match="inference not found: 99"):
        harness.predict(stored(99), stored(98))
    harness.runs.problem = ModelFailed("the graph failed")
    with pytest.raises(ModelFailed):
        harness.predict(stored(2))


def test_the_rest_is_left_when_the_time_is_over(harness, monkeypatch):
    monkeypatch.setattr(backend_module, "ANSWER_S", -1.0)
    with pytest.raises(Exception, match="ask again"):
        harness.predict(stored(1))
    assert harness.predict() == {"results": [], "model_version": f"{MODEL}@2", "errors": []}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "a request of Label Studio"), (b"[]", "a request of Label Studio"), (b"{}", "tasks"),
        (b'{"tasks": 3}', "tasks"), (b'{"tasks": [3]}', "tasks"), (b'{"tasks": [' + b"[" * 9000, "Label Studio"),
        (json.dumps({"tasks": [{}] * 1001}).encode(), "at most 1000 tasks"),
        (b'{"tasks": [{}], "label_config": "<View/>"}', "a tag <RectangleLabels>"),
        (b'{"tasks": [{}], "label_config": "\\ud800"}', "Label Studio"),
    ],
)  # fmt: skip
def test_odd_requests_are_refused(harness, body, message):
    answer = harness.backend.predict(MODEL, body, Scope(), ())
    with pytest.raises(InvalidRequest) as raised:
        answer.send(None)
    assert message in str(raised.value)


def test_a_set_up_needs_the_tag_of_the_model(harness, caplog):
    body = {"project": "3.1", "schema": CONFIG, "hostname": "http://169.254.169.254", "access_token": "t"}  # fmt: skip
    assert harness.backend.setup(MODEL, json.dumps(body).encode()).model_version == f"{MODEL}@2"
    with pytest.raises(InvalidRequest, match="<RectangleLabels>"):
        harness.backend.setup(MODEL, json.dumps({**body, "schema": "<View/>"}).encode())
    assert "a tag <RectangleLabels>" in caplog.text
    with pytest.raises(NotFound):
        harness.backend.setup("other", json.dumps(body).encode())
    assert harness.backend.versions(MODEL).versions == [f"{MODEL}@1", f"{MODEL}@2"]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[tuple[Application, dict[str, str]]]:
    """Yield a server with the sample detector, and a key of some roles."""
    data = tmp_path_factory.mktemp("label-studio") / "data"
    settings = Settings(models=str(SAMPLE_MODELS / MODEL), data=str(data))
    migrate(settings.database_url)
    with writer_engine(settings.database_url) as engine:
        keys = {role: create_key(engine, name=role, roles=[role])[1] for role in ("infer", "read", "annotate")}  # fmt: skip
        keys["both"] = create_key(engine, name="both", roles=["infer", "read"])[1]
        keys["other"] = create_key(engine, name="other", roles=["infer"], models=["x-*"])[1]
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    application.repository.load_all()
    yield application, keys
    application.close()


def ask(server, method: str, word: str, role: str, body: object = None) -> tuple[int, object]:
    """Send a request with the key as the password of Basic, as Label Studio does."""
    application, keys = server
    credentials = base64.b64encode(f"anybody:{keys[role]}".encode()).decode()
    content = b"" if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Basic {credentials}"}
    answer = send_request(
        application, method, f"/label-studio/{MODEL}/{word}", headers, body=content
    )
    return answer.status, json.loads(answer.body)


def test_each_word_needs_its_role(server):
    assert ask(server, "GET", "health", "infer") == (200, {"status": "UP", "model_version": f"{MODEL}@1"})  # fmt: skip
    assert ask(server, "GET", "versions", "infer") == (200, {"versions": [f"{MODEL}@1"]})
    for word, body in (
        ("setup", {"schema": CONFIG}),
        ("predict", {"tasks": [], "label_config": CONFIG}),
    ):
        assert ask(server, "POST", word, "infer", body)[0] == 200
        for role in ("read", "annotate", "other"):
            assert ask(server, "POST", word, role, body)[0] == 403, (word, role)
    event = {"action": "PROJECT_UPDATED"}
    assert ask(server, "POST", "webhook", "annotate", event)[0] == 200
    for role in ("read", "infer"):
        assert ask(server, "POST", "webhook", role, event)[0] == 403
    assert ask(server, "POST", "webhook", "annotate", {"action": "START_TRAINING"})[0] == 501


def test_what_is_stored_needs_a_key_that_reads(server):
    body = {"tasks": [stored(17)], "label_config": CONFIG}
    status, answer = ask(server, "POST", "predict", "infer", body)
    assert (status, answer["error"]) == (403, "expected a key with the role read or annotate or monitor or operate or admin, got one for infer")  # fmt: skip
    status, answer = ask(server, "POST", "predict", "both", body)
    assert (status, answer["error"]) == (404, "inference not found: 17")


def test_a_server_without_settings_fetches_nothing(server):
    with running() as site:
        site.pages["/a.png"] = (200, {}, PNG)
        task = {"id": 1, "data": {"image": f"{site.url}/a.png"}}
        status, answer = ask(server, "POST", "predict", "infer", {"tasks": [task], "label_config": CONFIG})  # fmt: skip
        assert (status, site.asked) == (400, [])
        assert "a host that the setting" in str(answer) or "an address that the setting" in str(answer)  # fmt: skip
