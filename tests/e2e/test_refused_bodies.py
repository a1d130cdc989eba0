"""Large requests that are refused: what they held is free again with their answer, over every protocol."""

import gzip
import json
import re
import threading
from pathlib import Path

import grpc
import pytest

from quadriga.proto.grpc.messages import SERVICE, message_class
from tests.server_process import SAMPLE_MODELS, ServerProcess

NO_IMAGE = b"A" * (24 << 20)
TIMES = 12
MODEL = "shapes-classifier"


@pytest.fixture
def server(tmp_path):
    flags = ("--workers", "1", "--grpc-port", "0", "--no-store")
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS / MODEL, *flags) as server:
        yield server


def memory_mb(process_id):
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


def post(server, *, is_compressed):
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [NO_IMAGE.decode()]}
    body, headers = json.dumps({"inputs": [tensor]}).encode(), {}
    if is_compressed:
        body, headers = gzip.compress(body, 1), {"Content-Encoding": "gzip"}
    path = f"/v2/models/{MODEL}/infer"
    return [server.request("POST", path, body, headers)[0] for _ in range(TIMES)]


def infer_request():
    request = message_class("ModelInferRequest")(model_name=MODEL)
    tensor = request.inputs.add(name="image", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(NO_IMAGE)
    return request.SerializeToString()


def call(channel):
    infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
    request = infer_request()
    codes = []
    for _ in range(TIMES):
        with pytest.raises(grpc.RpcError) as refused:
            infer(request, timeout=60)
        codes.append(refused.value.code())
    return codes


def hold_streams(channel):
    """Send one message on each of many streams that stay open; gives the streams."""
    open_stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    request = infer_request()
    streams = []
    for _ in range(TIMES):
        stream = open_stream(_then_wait(request), timeout=60)
        next(stream)
        streams.append(stream)
    return streams


def _then_wait(request):
    yield request
    threading.Event().wait(30)


@pytest.mark.parametrize("door", ["http", "gzip", "grpc", "stream"])
def test_a_refused_body_is_not_held(server, door):
    def refuse_all():
        if door == "grpc":
            assert set(call(channel)) == {grpc.StatusCode.INVALID_ARGUMENT}
        elif door == "stream":
            streams.extend(hold_streams(channel))
        else:
            assert set(post(server, is_compressed=door == "gzip")) == {400}
        return memory_mb(server.child_pid("worker-0"))

    streams = []
    with grpc.insecure_channel(server.grpc, [("grpc.max_send_message_length", -1)]) as channel:
        first_mb = refuse_all()  # what the process needs for bodies of that size at all
        assert refuse_all() < first_mb + 0.5 * TIMES * len(NO_IMAGE) / 2**20
