"""A server whose models run on the GPU: several at once, several workers, a reload, and memory that runs out."""

import base64
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.cuda.conftest import CPU, CUDA, copy_model, cuda_table
from tests.onnx_models import doubling
from tests.server_process import IMAGES, MODELS, SAMPLE_MODELS, ServerProcess, image_input

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(300)]

CHECKED = "shapes-classifier"


def write_models(folder, names, runtime=""):
    for name in names:
        copy_model(SAMPLE_MODELS / name, folder / name, f"{cuda_table()}\n{runtime}")
    return folder


def scene(folder):
    return next(path for path in sorted((IMAGES / folder).iterdir()) if path.suffix == ".jpg")


def test_all_sample_models_are_served_on_one_gpu_by_several_workers(tmp_path):
    models = write_models(tmp_path / "models", MODELS.values())
    with ServerProcess(tmp_path / "data", models, "--workers", "2") as server:
        for folder, name in MODELS.items():
            options = {"prompts": ["Describe the image."]} if folder == "image-text" else {}
            image = scene(folder).read_bytes()

            def ask(_, name=name, image=image, options=options):
                return server.infer(name, image, **options)["data"]

            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(ask, range(24)))
            assert answers[0]
            assert [one for one in answers if one != answers[0]] == []
            _, metadata = server.call("GET", f"/v2/models/{name}")
            assert CUDA in json.dumps(metadata["properties"]["providers"])
        _, _, text = server.request("GET", "/metrics")
        line = next(
            line
            for line in text.decode().splitlines()
            if line.startswith("quadriga_model_providers{") and CUDA in line
        )
        assert line.endswith(" 1.0")
    assert "Traceback" not in server.log.read_text()


def test_a_model_on_the_gpu_is_loaded_again(tmp_path):
    models = write_models(tmp_path / "models", [CHECKED])
    image = scene("classification").read_bytes()
    with ServerProcess(tmp_path / "data", models) as server:
        expected = server.infer(CHECKED, image)["data"]
        shutil.copytree(models / CHECKED, tmp_path / "changed")
        with (models / CHECKED / "model.toml").open("a") as file:
            file.write("max_batch = 4\n")
        for _ in range(2):
            status, _, answer = server.request(
                "POST", f"/v2/repository/models/{CHECKED}/load", "{}"
            )
            assert status == 200, answer
            assert server.infer(CHECKED, image)["data"] == expected


def test_a_model_on_the_gpu_runs_in_a_process_of_its_own(tmp_path):
    models = write_models(tmp_path / "models", [CHECKED], 'isolation = "process"')
    image = scene("classification").read_bytes()
    with ServerProcess(tmp_path / "data", models) as server:
        first = server.infer(CHECKED, image)["data"]
        assert server.infer(CHECKED, image)["data"] == first


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_memory_of_the_gpu_that_runs_out_fails_one_request_and_not_the_server(tmp_path, isolation):
    limit = 64 << 20
    path = doubling(tmp_path / "models" / "numbers" / "model.onnx")
    (path.parent / "model.toml").write_text(
        f'[runtime]\n{cuda_table(gpu_mem_limit=limit)}\nisolation = "{isolation}"\n'
    )

    def ask(rows):
        data = np.ones((rows, 3), np.float32).tobytes()
        tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 3]}
        head = json.dumps(
            {"inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}]}
        ).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        return server.request("POST", "/v2/models/numbers/infer", head + data, headers)

    with ServerProcess(tmp_path / "data", tmp_path / "models") as server:
        assert ask(2)[0] == 200
        workers = server.child_pids()
        status, _, answer = ask(limit // 16)
        assert status == 503
        assert b"memory" in answer
        assert b"MiB that its process" not in answer
        assert ask(2)[0] == 200
        assert server.child_pids() == workers


def test_a_small_and_a_large_batch_change_places(tmp_path):
    models = write_models(tmp_path / "models", [CHECKED], "max_batch = 8")
    files = sorted((IMAGES / "classification").glob("*.jpg"))[:8]
    texts = [base64.b64encode(file.read_bytes()).decode() for file in files]
    inputs = [image_input(text, f"image-{number}") for number, text in enumerate(texts)]
    with ServerProcess(tmp_path / "data", models) as server:
        alone = [
            server.call("POST", f"/v2/models/{CHECKED}/infer", {"inputs": [one]})[1]
            for one in inputs
        ]
        status, together = server.call("POST", f"/v2/models/{CHECKED}/infer", {"inputs": inputs})
        assert status == 200, together
        labels = [answer["outputs"][0]["data"][0] for answer in alone]
        for one, output in zip(labels, together["outputs"], strict=True):
            (expected,), (got,) = one, output["data"][0]
            assert got["label"] == expected["label"]
            assert got["score"] == pytest.approx(expected["score"], abs=2e-2)
        _, metadata = server.call("GET", f"/v2/models/{CHECKED}")
        assert CPU in json.dumps(metadata)
