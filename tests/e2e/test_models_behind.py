"""A detector and the classifier behind it on a real server: the answer by every protocol, what is stored, and keys."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chariot_cases import CASES
from tests.chariot_client import EngineClient, check_engine
from tests.e2e.test_same_answers import WAYS, Place, v2_json
from tests.pages import ROOT, blocks
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, image_input, quadriga

DETECTOR, CLASSIFIER = "shapes-detector", "shapes-classifier"
PAGE = "docs/models.md"
PAGE_TEXT = (ROOT / PAGE).read_text()


def written_then() -> str:
    """Return the table `[then]` of the page."""
    (text,) = [text for language, text in blocks(PAGE) if language == "toml" and "[then]" in text]
    return text


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector with a classifier behind it, and one with a segmentation."""
    folder = tmp_path_factory.mktemp("models")
    for name in (DETECTOR, CLASSIFIER, "ships-oriented-detector", "shapes-segmenter"):
        shutil.copytree(SAMPLE_MODELS / name, folder / name)
    with (folder / DETECTOR / "model.toml").open("a") as file:
        file.write(written_then())
    with (folder / "ships-oriented-detector" / "model.toml").open("a") as file:
        file.write('[then]\nmodel = "m-shapes-segmenter"\n')
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("behind") / "data", models, "--grpc-port", "0")
    server.start()
    yield server
    assert server.stop() == 0


def detections(server: ServerProcess, image: bytes, **parameters):
    """Return the output of the detector, and its detections that have an answer, by label."""
    output = server.infer(DETECTOR, image, **parameters)
    return output, {found["label"]: found for found in output["data"][0] if "then" in found}


def test_the_page_shows_the_answer_and_filters_that_find_it(server, photo):
    (shown,) = [json.loads(text) for language, text in blocks(PAGE) if language == "json"]
    output, answered = detections(server, photo, metadata=json.dumps({"run": "page"}))
    assert set(answered) == {"star", "circle"}
    assert answered["star"] == {
        "label": "star",
        **{
            name: pytest.approx(value, abs=0.1)
            for name, value in shown.items()
            if isinstance(value, float)
        },
        "then": {
            **shown["then"],
            "predictions": [{"label": "star", "score": pytest.approx(0.999, abs=0.001)}],
            "inference_id": answered["star"]["then"]["inference_id"],
        },
    }
    inference_id = output["parameters"]["inference_id"]
    crops = [found["then"]["inference_id"] for found in answered.values()]
    (whole,) = server.query({"id": inference_id})
    assert "then" not in json.dumps(whole["predictions"])
    page = PAGE_TEXT.replace("251122540565495808", inference_id)
    page = page.replace("blake3:e1bb…", whole["input"]["hash"])
    filters = [
        json.loads(line.split("`")[1])
        for line in page.partition("| to find | filter |")[2].partition("\n\n")[0].splitlines()[2:]
    ]
    assert len(filters) == 5
    of_this_run = [
        {row["id"] for row in server.query({"and": [where, {"meta.run": "page"}]})}
        for where in filters
    ]
    assert of_this_run == [set(crops), {inference_id}, set(crops), set(), set(crops)]
    for row in server.query(filters[0]):
        status, headers, data = server.request("GET", f"/api/inferences/{row['id']}/input")
        assert (status, headers["content-type"]) == (200, "image/png")
        again = server.infer(CLASSIFIER, data, store=False)
        assert again["data"][0] == row["predictions"]
        assert row["standard_metadata"]["crop"]["inference_id"] == inference_id
        assert row["metadata"] == {"run": "page"}


@pytest.mark.parametrize("way", [way for way in WAYS if way != "generate"])
@pytest.mark.parametrize("model", [DETECTOR, "ships-oriented-detector"])
def test_every_protocol_has_the_answer_of_the_model_behind(server, way, model):
    place = Place(server, server.grpc)
    folder = "detection" if model == DETECTOR else "oriented"
    image = next((IMAGES / folder).glob("scene_01.*")).read_bytes()
    expected, found = v2_json(place, model, image, {}), WAYS[way](place, model, image, {})
    answers = [prediction["then"] for prediction in found if "then" in prediction]
    assert answers
    ids = {answer["inference_id"] for answer in answers}
    assert len(ids) == len(answers)
    for prediction in (*expected, *found):
        prediction.get("then", {}).pop("inference_id", None)
    assert found == expected


def test_clients_that_know_nothing_of_it_get_what_they_know(server):
    client = EngineClient(f"http://{server.host}", f"m-{DETECTOR}", "OBJECT_DETECTION")
    assert [finding for finding in check_engine(client, CASES) if not finding.ok] == []


@pytest.mark.parametrize("join", ["request_id", "request_id of the image", "meta.path"])
@pytest.mark.parametrize(
    "annotations", [[], [{"label": "star", "xmin": 1, "ymin": 1, "xmax": 9, "ymax": 9}]]
)
def test_ground_truth_of_the_whole_image_stays_with_it(server, photo, join, annotations):
    path = f"{join} {len(annotations)}.jpg"
    output, answered = detections(server, photo, metadata=json.dumps({"path": path}))
    (whole,) = server.query({"id": output["parameters"]["inference_id"]})
    values = {"request_id": whole["request_id"], "meta.path": path}
    value = values.get(join, f"{whole['request_id']}#0")
    items = [{"value": value, "annotations": annotations}]
    body = {"join": join.split()[0], "items": items}
    status, answer = server.call("POST", "/api/ground-truth", body)
    assert (status, answer["matched"]) == (200, 1), answer
    crops = server.query({"request_id": whole["id"]})
    assert len(crops) == len(answered) == 2
    assert [row["ground_truth"] for row in crops] == [None, None]


def test_ground_truth_of_a_crop_is_stated_by_its_number(server, photo):
    output, answered = detections(server, photo)
    whole = output["parameters"]["inference_id"]
    items = [{"value": f"{whole}#1", "annotations": [{"label": "star"}]}]
    status, answer = server.call(
        "POST", "/api/ground-truth", {"join": "request_id", "items": items}
    )
    assert (status, answer["matched"]) == (200, 1), answer
    with_truth = [row["id"] for row in server.query({"request_id": whole}) if row["ground_truth"]]
    assert with_truth == [answered["star"]["then"]["inference_id"]]


def test_crops_are_evaluated_as_the_second_model_s_own(server, photo):
    _, answered = detections(server, photo, metadata=json.dumps({"run": "evaluated"}))
    for label, found in answered.items():
        path = f"/api/inferences/{found['then']['inference_id']}/ground-truth"
        assert server.call("PUT", path, {"annotations": [{"label": label}]})[0] == 200
    body = {"model": CLASSIFIER, "where": {"meta.run": "evaluated"}}
    status, job = server.call("POST", "/api/evaluations", body)
    assert status == 202, job
    job = server.ended(job["id"])
    assert job["state"] == "succeeded", job
    report = server.call("GET", f"/api/reports/{job['id']}")[1]
    assert report["data"]["current"]["n"] == 2


def test_an_erasure_by_metadata_takes_crops_too(server, photo):
    output, answered = detections(server, photo, metadata=json.dumps({"person": "p-4711"}))
    (row,) = server.query({"id": answered["star"]["then"]["inference_id"]})
    body = {"where": {"meta.person": "p-4711"}, "erase": True}
    status, receipt = server.call("POST", "/api/inferences/delete", body)
    assert status in (200, 202)
    assert receipt["count"] == 3
    assert server.query({"request_id": output["parameters"]["inference_id"]}) == []
    assert row["input"]["kept"]


def test_crops_of_an_image_are_erased_by_its_hash(server):
    image = (IMAGES / "detection" / "scene_02.jpg").read_bytes()
    output, answered = detections(server, image)
    assert answered
    (whole,) = server.query({"id": output["parameters"]["inference_id"]})
    where = f"std.crop.image={whole['input']['hash']}"
    # The image itself waits for 30 s, as another request may just have sent it; that is tested elsewhere.
    options = ("--yes", "--json", "--wait", "3", "--server", f"http://{server.host}")
    answer = quadriga("erase", where, *options, code=1)
    assert json.loads(answer.stdout)["counts"]["inferences"] >= len(answered)
    assert server.query({"request_id": whole["id"]}) == []
    assert server.query({"id": whole["id"]})


def test_statistics_and_metrics_count_crops_of_the_second_model(server, photo):
    def count():
        row = server.call("GET", f"/v2/models/{CLASSIFIER}/stats")[1]["model_stats"][0]
        return row["inference_count"], row["execution_count"]

    images, runs = count()
    detections(server, photo)
    assert count() == (images + 2, runs + 1)


def test_the_time_of_the_model_behind_is_said_on_request(server, photo):
    body = json.dumps({"inputs": [image_input(photo)]})
    headers = {"Quadriga-Timing": "true"}
    _, received, _ = server.request("POST", f"/v2/models/{DETECTOR}/infer", body, headers)
    times = dict(entry.split(";dur=") for entry in received["server-timing"].split(", "))
    assert float(times["behind"]) > 0
    assert float(times["store"]) > 0


def test_lists_and_inspections_name_the_model_behind(server, models):
    status, entry = server.call("GET", f"/api/models/{DETECTOR}")
    assert (status, entry["versions"][0]["behind"]) == (200, CLASSIFIER)
    assert server.call("GET", f"/api/models/{CLASSIFIER}")[1]["versions"][0]["behind"] is None
    text = quadriga("inspect", models / DETECTOR).stdout
    assert "crops of detections labelled star or circle with a score of at least 0.5" in " ".join(
        text.split()
    )
    described = json.loads(quadriga("inspect", models / DETECTOR, "--json").stdout)
    assert CLASSIFIER in described["then"]


def test_a_validation_says_that_the_other_model_is_not_run(models, tmp_path):
    image = next((IMAGES / "detection").glob("scene_01.*"))
    output = tmp_path / "picture.png"
    answer = quadriga("validate", models / DETECTOR, "--image", image, "--output", output)
    assert "not run here" in " ".join(answer.stdout.split())


def test_a_detector_is_not_ready_while_the_model_behind_it_is_unloaded(server, photo):
    path = f"/v2/repository/models/{CLASSIFIER}"
    assert server.call("POST", f"{path}/unload", {})[0] == 200
    try:
        body = {"inputs": [image_input(photo)]}
        status, answer = server.call("POST", f"/v2/models/{DETECTOR}/infer", body)
        assert status == 503
        assert answer["error"] == (
            f"model '{DETECTOR}' needs the model behind it: model '{CLASSIFIER}' version 1 is unloaded"
        )
        status, _, ready = server.request("GET", f"/v2/models/{DETECTOR}/ready")
        assert status == 400
        assert b"needs the model behind it" in ready
    finally:
        assert server.call("POST", f"{path}/load", {})[0] == 200
    assert detections(server, photo)[1]


def test_a_load_that_makes_a_circle_is_refused(server):
    config = {"then": {"model": CLASSIFIER, "labels": ["no such label"]}}
    for name, parameters, text in (
        (DETECTOR, config, "expected labels of [then]"),
        (DETECTOR, {"then": {"model": DETECTOR}}, "expected no model behind itself"),
        (CLASSIFIER, {"then": {"model": DETECTOR}}, "has no use for classification"),
    ):
        body = {"parameters": {"config": json.dumps(parameters)}}
        status, answer = server.call("POST", f"/v2/repository/models/{name}/load", body)
        assert status == 400
        assert text in answer["error"]


def test_two_workers_and_a_process_of_its_own_answer_alike(models, photo, tmp_path):
    own = tmp_path / "models"
    shutil.copytree(models, own)
    with (own / CLASSIFIER / "model.toml").open("a") as file:
        file.write('\n[runtime]\nisolation = "process"\nbatching = {max = 16}\n')
    with ServerProcess(tmp_path / "data", own, "--workers", "2") as server:
        seen = []
        for _ in range(8):
            _, answered = detections(server, photo)
            seen.append({name: found["then"]["predictions"] for name, found in answered.items()})
        assert set(seen[0]) == {"star", "circle"}
        for other in seen[1:]:
            assert other.keys() == seen[0].keys()
            for name, predictions in other.items():
                assert predictions[0]["label"] == name
                assert predictions[0]["score"] == pytest.approx(seen[0][name][0]["score"], abs=1e-5)
        assert len(server.query({"model": CLASSIFIER})) == 16


def test_a_key_for_the_detector_gets_its_answers_and_finds_no_crops(models, photo, tmp_path):
    server = ServerProcess(tmp_path / "data", models, "--host", "127.1")
    with server:
        server.wait_until((server.data / "admin.key").exists)

        def key(*options):
            made = quadriga("keys", "create", *options, "--json", "--data", server.data)
            return json.loads(made.stdout)["key"]

        def send(path, secret, body):
            headers = {"X-API-Key": secret}
            status, _, answer = server.request("POST", path, json.dumps(body), headers)
            return status, json.loads(answer)

        line = key("--role", "operate", "--models", DETECTOR, "--team", "quality")
        analyst = key("--role", "read", "--team", "quality")
        server.wait_until(lambda: send("/api/inferences/query", analyst, {})[0] == 200)
        body = {"inputs": [image_input(photo)]}
        status, answer = send(f"/v2/models/{DETECTOR}/infer", line, body)
        assert status == 200, answer
        assert sum("then" in found for found in answer["outputs"][0]["data"][0]) == 2
        assert send(f"/v2/models/{CLASSIFIER}/infer", line, body)[0] == 403
        found = {"consistency": "journal"}
        rows = send("/api/inferences/query", line, found)[1]["inferences"]
        assert [row["model"]["name"] for row in rows] == [DETECTOR]
        rows = send("/api/inferences/query", analyst, found)[1]["inferences"]
        assert [row["model"]["name"] for row in rows] == [CLASSIFIER] * 2 + [DETECTOR]
        assert {row["team"] for row in rows} == {"quality"}
        config = json.dumps({"then": {"model": "shapes-segmenter"}})
        load = {"parameters": {"config": config}}
        assert send(f"/v2/repository/models/{DETECTOR}/load", line, load)[0] == 403
