"""Images of a server that keeps them in files, or in S3."""

import json
import subprocess
import sys

import httpx

from tests.s3_server import BUCKET, S3Server
from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess, image_input

CLASSIFIER = "/v2/models/shapes-classifier/infer"
MODEL = SAMPLE_MODELS / "shapes-classifier"


def infer(server: ServerProcess, image: bytes):
    return server.call("POST", CLASSIFIER, {"inputs": [image_input(image)]})


def presigned(server: ServerProcess, answer) -> str:
    inference_id = answer["outputs"][0]["parameters"]["inference_id"]
    status, record = server.call("GET", f"/api/inferences/{inference_id}?presign=true")
    assert status == 200
    status, _, image = server.request("GET", f"/api/inferences/{inference_id}/input")
    assert status == 200
    response = httpx.get(record["input"]["url"])
    assert response.status_code == 200
    assert response.content == image
    return str(response.url)


def test_any_worker_answers_a_signed_url(data, shape):
    with ServerProcess(data, MODEL, "--workers", "2") as server:
        url = presigned(server, infer(server, shape[0])[1])
        assert url.startswith(f"http://{server.host}/api/blobs/")
        assert all(httpx.get(url).content == shape[0] for _ in range(4))
        assert httpx.get(url.replace("expires=", "expires=1")).status_code == 400


def test_images_are_kept_in_s3_and_refused_while_it_is_away(data, shape, photo, monkeypatch):
    s3 = S3Server()
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with ServerProcess(data, MODEL, "--blobs", f"s3://{BUCKET}/here") as server:
        answer = infer(server, shape[0])[1]
        assert presigned(server, answer).startswith(f"{s3.url}/{BUCKET}/here/")
        assert len([name for name in s3.objects if name.startswith("here/")]) == 1
        assert not (data / "blobs").exists()
        s3.close()
        body = json.dumps({"inputs": [image_input(photo)]})
        status, headers, refused = server.request("POST", CLASSIFIER, body)
        assert (status, headers["retry-after"]) == (503, "1")
        assert b"expected the object store to keep" in refused
        inference_id = answer["outputs"][0]["parameters"]["inference_id"]
        assert server.call("GET", f"/api/inferences/{inference_id}/input")[0] == 503
        assert server.call("GET", f"/api/inferences/{inference_id}")[0] == 200
        assert infer(server, shape[0])[0] == 200  # known to be there
        assert len(server.query({})) == 2


def test_a_server_that_has_no_place_for_images_does_not_start(data, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    command = [sys.executable, "-m", "engine.cli", "serve", str(MODEL), "--data", str(data)]
    command += ["--port", "0", "--grpc-port", "-1"]
    for blobs, reason in (("ftp://x", "--blobs"), ("az://images", "Account must be specified")):
        ended = subprocess.run(
            [*command, "--blobs", blobs],
            capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode != 0
        assert reason in ended.stderr
