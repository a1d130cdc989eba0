"""V2 over gRPC as clients speak it, beside REST."""

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quadriga.proto.grpc.messages import REPOSITORY_SERVICE, SERVICE, message_class
from tests.grpc_client import Client, image_request, rows_request
from tests.onnx_models import doubling
from tests.server_process import ROOT, SAMPLE_MODELS, ServerProcess, image_input

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def speaking(tmp_path_factory) -> Iterator[ServerProcess]:
    """Serve sample models, one of tensors and one that fails."""
    folder = tmp_path_factory.mktemp("grpc")
    models = folder / "models"
    doubling(models / "doubling" / "model.onnx")
    (models / "broken").mkdir()
    (models / "broken" / "model.onnx").write_bytes(b"no model")
    for name in ("shapes-detector", "shapes-image-text"):
        (models / name).symlink_to(SAMPLE_MODELS / name)
    flags = ("--grpc-port", "0", "--no-strict-readiness")
    with ServerProcess(folder / "data", models, *flags) as server:
        yield server
    log = server.log.read_text()
    assert "fault of the server" not in log
    assert "never retrieved" not in log


@pytest.fixture(scope="module")
def client(speaking) -> Iterator[Client]:
    with Client(speaking.grpc) as channel:
        yield channel


ROW = np.array([[1, 2, 3]], np.float32)


def test_the_server_and_its_models_are_described(client):
    assert client.call("ServerLive").live
    assert client.call("ServerReady").ready
    about = client.call("ServerMetadata")
    assert about.name == "quadriga"
    assert "classification" in about.extensions
    metadata = client.call("ModelMetadata", name="doubling")
    assert (metadata.versions, metadata.platform) == (["1"], "onnx_onnxv1")
    assert metadata.parameters["task"].string_param == "TENSOR"
    detector = client.call("ModelMetadata", name="shapes-detector")
    assert detector.parameters["task"].string_param == "OBJECT_DETECTION"
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
        ("x", "FP32", [-1, 3])
    ]
    config = client.call("ModelConfig", name="doubling").config
    assert (config.max_batch_size, config.backend) == (8, "onnxruntime")
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [("x", 11, [3])]
    ready = {
        name: client.call("ModelReady", name=name).ready
        for name in ("doubling", "m-doubling", "broken", "absent")
    }
    assert ready == {"doubling": True, "m-doubling": True, "broken": False, "absent": False}


@pytest.mark.parametrize("service", [SERVICE, REPOSITORY_SERVICE])
def test_the_repository_is_listed_by_both_services(client, service):
    index = client.call("RepositoryIndex", service=service)
    states = {model.name: model.state for model in index.models}
    assert states["doubling"] == "READY"
    assert states["broken"] == "UNAVAILABLE"
    ready = client.call("RepositoryIndex", service=service, ready=True)
    assert {model.name for model in ready.models} == states.keys() - {"broken"}


@pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
def test_an_image_is_answered_as_over_rest(speaking, client, photo, raw):
    metadata = '{"camera_id": "north"}'
    request = image_request(photo, metadata=metadata)
    request.id = "mine"
    if raw:
        request.inputs[0].ClearField("contents")
        request.raw_input_contents.append(len(photo).to_bytes(4, "little") + photo)
    answer, call = client.call_whole("ModelInfer", request)
    (output,) = answer.outputs
    if raw:
        assert not output.HasField("contents")
        element = answer.raw_output_contents[0][4:]
    else:
        assert not answer.raw_output_contents
        (element,) = output.contents.bytes_contents
    body = {"inputs": [image_input(photo, "picture", metadata=metadata)]}
    status, expected = speaking.call("POST", "/v2/models/shapes-detector/infer", body)
    assert status == 200
    assert json.loads(element) == expected["outputs"][0]["data"][0]
    assert (answer.id, output.name, list(output.shape)) == ("mine", "picture", [1])
    assert output.parameters["metadata"].string_param == metadata
    inference_id = output.parameters["inference_id"].string_param
    assert dict(call.trailing_metadata())["quadriga-inference-ids"] == inference_id
    (stored,) = speaking.query({"id": inference_id})
    assert stored["metadata"] == {"camera_id": "north"}
    assert stored["standard_metadata"]["protocol"] == "v2-grpc"


def test_prompts_are_a_json_text(speaking, client, photo):
    prompts = ["what shape is it?", "what colour is it?"]
    request = image_request(photo, "shapes-image-text", prompts=json.dumps(prompts))
    (output,) = client.call("ModelInfer", request).outputs
    body = {"inputs": [image_input(photo, prompts=prompts)]}
    _, expected = speaking.call("POST", "/v2/models/shapes-image-text/infer", body)
    (element,) = output.contents.bytes_contents
    assert json.loads(element) == expected["outputs"][0]["data"][0]


@pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
def test_tensors_come_back_as_they_were_sent(client, raw):
    answer = client.call("ModelInfer", rows_request(ROW, raw=raw))
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("y", "FP32", [1, 3])
    if raw:
        assert list(answer.raw_output_contents) == [(ROW * 2).tobytes()]
    else:
        assert list(output.contents.fp32_contents) == [2, 4, 6]


def test_infinities_are_exact(client):
    array = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    (output,) = client.call("ModelInfer", rows_request(array, raw=False)).outputs
    np.testing.assert_array_equal(output.contents.fp32_contents, array[0])


def test_the_best_classes_of_an_output(client):
    request = rows_request(ROW, raw=False)
    request.outputs.add(name="y").parameters["classification"].int64_param = 2
    (output,) = client.call("ModelInfer", request).outputs
    assert list(output.contents.bytes_contents) == [b"6.000000:2", b"4.000000:1"]


def test_a_tensor_of_32_mib(client):
    array = np.random.default_rng(0).random((2_800_000, 3), np.float32)
    answer = client.call("ModelInfer", rows_request(array))
    assert answer.raw_output_contents[0] == (array * 2).tobytes()


@pytest.mark.parametrize(
    ("method", "request_", "code", "reason"),
    [
        ("ModelInfer", rows_request(ROW, model="absent"), "NOT_FOUND", "absent"),
        ("ModelMetadata", message_class("ModelMetadataRequest")(name="é\n" * 9), "NOT_FOUND", "é"),
        ("ModelInfer", rows_request(ROW, model="broken"), "UNAVAILABLE", "broken"),
        ("ModelInfer", rows_request(ROW[0]), "INVALID_ARGUMENT", "expected shape [-1, 3]"),
        ("ModelInfer", image_request(b"none"), "INVALID_ARGUMENT", "data[0]"),
        ("ModelInfer", b"\xff\xff", "INVALID_ARGUMENT", "ModelInferRequest"),
        ("ServerLive", b"\xff", "INVALID_ARGUMENT", "ServerLiveRequest"),
        ("ModelInfer", bytes(70_000_000), "RESOURCE_EXHAUSTED", "at most 67108864 bytes"),
        ("SystemSharedMemoryStatus", b"", "UNIMPLEMENTED", "SystemSharedMemoryStatus"),
        ("TraceSetting", b"", "UNIMPLEMENTED", "TraceSetting"),
    ],
)
def test_errors_have_a_code_and_a_reason(client, method, request_, code, reason):
    with pytest.raises(grpc.RpcError) as refused:
        client.call(method, request_)
    assert refused.value.code().name == code
    assert reason in refused.value.details()


def test_an_unknown_output_is_refused(client):
    request = rows_request(ROW)
    request.outputs.add(name="z")
    with pytest.raises(grpc.RpcError, match="expected outputs among y, got z"):
        client.call("ModelInfer", request)


def test_a_deadline_ends_a_call_and_not_the_server(client):
    prompts = json.dumps(["what shape is it?"] * 64)
    request = image_request(b"none", "shapes-image-text", prompts=prompts)
    request.inputs[0].contents.bytes_contents[0] = (
        SAMPLE_MODELS / "images" / "detection" / "scene_01.jpg"
    ).read_bytes()
    with pytest.raises(grpc.RpcError) as late:
        client.call("ModelInfer", request, timeout=0.01)
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert client.call("ModelInfer", rows_request(ROW)).outputs


def test_a_stream_answers_each_request_in_order_and_outlives_errors(client):
    requests = [rows_request(ROW * number) for number in range(4)]
    requests[1].model_name = "absent"
    requests[2].parameters["triton_enable_empty_final_response"].bool_param = True
    for number, request in enumerate(requests):
        request.id = str(number)
    answers = list(client.stream(iter(requests)))
    assert [answer.infer_response.id for answer in answers] == ["0", "1", "2", "3"]
    assert ["absent" in answer.error_message for answer in answers] == [False, True, False, False]
    for number in (0, 2, 3):
        (raw,) = answers[number].infer_response.raw_output_contents
        assert raw == (ROW * number * 2).tobytes()
    assert answers[2].infer_response.parameters["triton_final_response"].bool_param


def keyed_rows(key: str, scale: int, *names: str):
    """A request of tensors with further parameters, written in the order of their names."""
    request = rows_request(ROW * scale)
    for name in names:
        request.parameters[name].string_param = name
    request.parameters["metadata"].string_param = json.dumps({"key": key})
    return request


def ids_of(client: Client, key: str, request) -> str:
    """Send a request under a key; gives the ids of what it stored."""
    answer, call = client.call_whole("ModelInfer", request, key=key)
    assert answer.outputs
    return dict(call.trailing_metadata())["quadriga-inference-ids"]


def test_a_call_that_is_sent_again_under_its_key_is_stored_once(speaking, client):
    names = [f"n{number}" for number in range(12)]
    for _ in range(40):  # the model is known to be cheap then, and answers without a thread
        client.call("ModelInfer", rows_request(ROW))
    orders = [names, names[::-1], names[6:] + names[:6]] * 4
    ids, threads = [], []
    for order in orders:
        request = keyed_rows("once", 1, *order)
        threads.append(
            threading.Thread(target=lambda sent=request: ids.append(ids_of(client, "k1", sent)))
        )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == len(orders)
    assert len(set(ids)) == 1
    assert [row["id"] for row in speaking.query({"meta.key": "once"})] == [ids[0]]


@pytest.mark.parametrize(
    ("key", "code", "reason"),
    [
        ("k2", "ALREADY_EXISTS", "another request"),
        ("", "INVALID_ARGUMENT", "1 to 255 visible ASCII"),
        ("a b", "INVALID_ARGUMENT", "1 to 255 visible ASCII"),
        ("x" * 256, "INVALID_ARGUMENT", "1 to 255 visible ASCII"),
    ],
)
def test_a_key_of_another_call_or_none_is_refused(speaking, client, key, code, reason):
    ids_of(client, "k2", keyed_rows("first", 1))
    with pytest.raises(grpc.RpcError, match=reason) as refused:
        client.call_whole("ModelInfer", keyed_rows("second", 2), key=key)
    assert refused.value.code().name == code
    assert len(speaking.query({"meta.key": "first"})) == 1
    assert not speaking.query({"meta.key": "second"})


def test_a_client_that_goes_away_leaves_nothing_behind(speaking, client):
    with Client(speaking.grpc) as leaving:
        streams = [leaving.stream(iter(threading.Event().wait, True)) for _ in range(3)]
        watch = health_pb2_grpc.HealthStub(leaving.channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=60
        )
        assert next(watch).status == SERVING
        for stream in streams:
            stream.cancel()
    assert client.call("ServerLive").live


def test_what_cannot_be_kept_may_be_sent_again(tmp_path, photo):
    with (
        ServerProcess(tmp_path / "data", SAMPLE_MODELS, "--grpc-port", "0") as server,
        Client(server.grpc) as client,
    ):
        blobs = tmp_path / "data" / "blobs"
        shutil.rmtree(blobs, ignore_errors=True)
        blobs.write_bytes(b"no folder")
        with pytest.raises(grpc.RpcError, match="cannot store") as refused:
            client.call("ModelInfer", image_request(photo))
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        (answer,) = client.stream(iter([image_request(photo)]))
        assert "cannot store" in answer.error_message
        body = json.dumps({"inputs": [image_input(photo)]})
        status, headers, _ = server.request("POST", "/v2/models/shapes-detector/infer", body)
        assert (status, headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("", SERVING),
        (SERVICE, SERVING),
        ("doubling", SERVING),
        ("m-doubling", SERVING),
        ("broken", NOT_SERVING),
        ("absent", None),
    ],
)
def test_health(client, name, state):
    health = health_pb2_grpc.HealthStub(client.channel)
    request = health_pb2.HealthCheckRequest(service=name)
    if state is None:
        with pytest.raises(grpc.RpcError) as refused:
            health.Check(request, timeout=10)
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND
        watch = health.Watch(request, timeout=10)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()
        return
    assert health.Check(request, timeout=10).status == state
    statuses = health.List(health_pb2.HealthListRequest(), timeout=10).statuses
    assert statuses[name.removeprefix("m-")].status == state


def test_reflection_describes_every_service(client):
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)

    def ask(**fields):
        requests = iter([reflection_pb2.ServerReflectionRequest(**fields)])
        (answer,) = stub.ServerReflectionInfo(requests, timeout=10)
        return answer

    services = [s.name for s in ask(list_services="").list_services_response.service]
    assert {SERVICE, REPOSITORY_SERVICE, "grpc.health.v1.Health"} < set(services)
    for service in services:
        files = ask(file_containing_symbol=service).file_descriptor_response.file_descriptor_proto
        described = [descriptor_pb2.FileDescriptorProto.FromString(file) for file in files]
        names = [f"{file.package}.{s.name}" for file in described for s in file.service]
        assert service in names


def test_the_program_in_the_documents_runs(speaking, tmp_path):
    page = (ROOT / "docs" / "protocols-reference.md").read_text().partition("\n## gRPC\n")[2]
    compile_, program = re.findall(r"```(?:sh|python)\n(.*?)```", page, re.DOTALL)[:2]
    for name in ("proto", "sample_models"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "client.py").write_text(program.replace("localhost:8081", speaking.grpc))
    command = f"{compile_}\npython client.py".replace("python ", f"{sys.executable} ")
    finished = subprocess.run(
        ["bash", "-ec", command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    *predictions, stored = finished.stdout.splitlines()
    assert [line.split()[0] for line in predictions] == ["cross", "star"]
    assert speaking.query({"id": stored.removeprefix("stored as ")})


def test_a_port_in_use_is_refused_even_if_it_could_be_shared(speaking, tmp_path):
    def said(port: int) -> str:
        flags = ("--grpc-port", str(port))
        server = ServerProcess(tmp_path / "data", SAMPLE_MODELS, *flags)
        with pytest.raises(AssertionError, match=f"port {port} for gRPC.*in use"):
            server.start()
        assert server.stop() == 2
        return server.log.read_text()

    assert "-1" in said(int(speaking.grpc.split(":")[1]))
    with socket.socket() as occupied:
        occupied.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        assert "-1" in said(occupied.getsockname()[1])
