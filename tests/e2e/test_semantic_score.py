"""The semantic score over every protocol, and inferences found by it."""

import base64
import json

import numpy as np
import pytest

from quadriga.engine.models.model import Model
from quadriga.monitor.drift.similarity import References, write_references
from quadriga.proto.grpc.messages import message_class
from quadriga.tasks.image import decode
from tests.e2e.test_grpc import Client
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, image_input

NAME = "shapes-classifier"
HEADER = "quadriga-semantic-score"


def test_every_protocol_tells_the_score_that_is_stored(data, shape):
    model = Model(NAME, "1", SAMPLE_MODELS / NAME / "model.onnx")
    path = data / "baselines" / NAME / "default.similarity"
    path.parent.mkdir(parents=True)
    usual = [
        model.embed(decode(image_path.read_bytes()))
        for image_path in sorted((IMAGES / "classification").glob("*.jpg"))
    ]
    rng = np.random.default_rng(0)
    like = np.concatenate([vector + rng.normal(0, 0.1, (120, len(vector))) for vector in usual])
    write_references(path, like, np.arange(len(like)), model.embedding_space)
    image = shape[0]
    score = round(References.read(path).score(model.embed(decode(image))), 6)
    request = {"inputs": [image_input(image, semantic_score=True)]}
    instances = {"instances": [{"b64": base64.b64encode(image).decode()}]}
    flags = ("--grpc-port", "0")
    with ServerProcess(data, SAMPLE_MODELS / NAME, *flags) as server:
        url = f"/v2/models/{NAME}/infer"
        server.wait_until(
            lambda: HEADER in server.request("POST", url, json.dumps(request))[1], timeout_s=20
        )
        status, headers, answer = server.request("POST", url, json.dumps(request))
        assert (status, float(headers[HEADER])) == (200, score)
        (output,) = json.loads(answer)["outputs"]
        assert output["parameters"]["semantic_score"] == score
        (record,) = server.query({"id": output["parameters"]["inference_id"]})
        assert record["standard_metadata"]["semantic_score"] == score
        assert server.query({"std.semantic_score": {"ge": score}})
        assert not server.query({"std.semantic_score": {"lt": score}})
        for path, body in {
            f"/v1/models/{NAME}:predict": json.dumps(instances),
            f"/api/serve/serve-model-{NAME}-pred/infer": json.dumps(
                {"input": base64.b64encode(image).decode()}
            ),
        }.items():
            status, headers, answer = server.request("POST", path, body)
            assert (status, float(headers[HEADER])) == (200, score), answer
        _, headers, _ = server.request(
            "POST", url, json.dumps({"inputs": [image_input(image), image_input(image, "b")]})
        )
        assert headers[HEADER] == f"{score:g},{score:g}"
        tell_over_grpc(server.grpc, image, score)


def tell_over_grpc(address: str, image: bytes, score: float) -> None:
    request = message_class("ModelInferRequest")(model_name=NAME)
    tensor = request.inputs.add(name="image", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(image)
    tensor.parameters["semantic_score"].bool_param = True
    answer, call = Client(address).call_whole("ModelInfer", request)
    assert float(dict(call.trailing_metadata())[HEADER]) == score
    assert answer.outputs[0].parameters["semantic_score"].double_param == pytest.approx(score)
