"""Images of a server that keeps them in files, or in S3."""

import json

import httpx

from tests.s3_server import BUCKET, S3Server
from tests.server_process import SAMPLE_MODELS, ServerProcess, image_input, quadriga

NAME = "shapes-classifier"
MODEL = SAMPLE_MODELS / NAME


def presigned(server: ServerProcess, inference_id: str) -> str:
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
        url = presigned(server, server.store(NAME, shape[0]))
        assert url.startswith(f"http://{server.host}/api/blobs/")
        assert all(httpx.get(url).content == shape[0] for _ in range(4))
        assert httpx.get(url.replace("expires=", "expires=1")).status_code == 400
        listed = f"http://{server.host}/api/inferences"
        inference_id = server.query({})[0]["id"]
        for address in (
            url,
            listed,
            f"{listed}/{inference_id}",
            f"{listed}/{inference_id}/input",
            f"{listed}/1",
        ):
            assert httpx.get(address).headers["cache-control"] == "private, no-store", address
        small = httpx.get(f"{listed}/{inference_id}/input?w=128")
        assert small.headers["cache-control"] == "private, max-age=3600"


def test_images_are_kept_in_s3_and_refused_while_it_is_away(data, shape, photo, monkeypatch):
    s3 = S3Server()
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with ServerProcess(data, MODEL, "--blobs", f"s3://{BUCKET}/here") as server:
        inference_id = server.store(NAME, shape[0])
        assert presigned(server, inference_id).startswith(f"{s3.url}/{BUCKET}/here/")
        assert len([name for name in s3.objects if name.startswith("here/")]) == 1
        assert not (data / "blobs").exists()
        s3.close()
        body = json.dumps({"inputs": [image_input(photo)]})
        status, headers, refused = server.request("POST", f"/v2/models/{NAME}/infer", body)
        assert (status, headers["retry-after"]) == (503, "1")
        assert b"in the object store" in refused
        assert server.call("GET", f"/api/inferences/{inference_id}/input")[0] == 503
        assert server.call("GET", f"/api/inferences/{inference_id}")[0] == 200
        server.infer(NAME, shape[0])  # known to be there
        assert len(server.query({})) == 2


def test_a_server_that_has_no_place_for_images_does_not_start(data, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    flags = ("--data", data, "--port", "0", "--grpc-port", "-1")
    for blobs, reason in (("ftp://x", "--blobs"), ("az://images", "Account must be specified")):
        assert reason in quadriga("serve", MODEL, *flags, "--blobs", blobs, code=2).stderr
