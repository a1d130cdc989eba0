"""Triton's extensions: bodies read and written, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadriga.proto.errors import InvalidRequest, Unsupported
from quadriga.proto.http.operations import Dispatcher, HttpRequest, WireOptions
from quadriga.proto.http.v2_extensions import config_json, operations, parse_load, statistics_json
from quadriga.proto.messages import (
    BatchStatistics,
    Duration,
    ModelInfo,
    ModelStatistics,
    ModelStatus,
    TensorInfo,
)


class Repository:
    """A server that remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def load_model(self, name, config, files):
        self.asked.append(("load", name, config, files))

    def unload_model(self, name):
        self.asked.append(("unload", name))

    def model_statuses(self):
        return [
            ModelStatus("a", "2", "READY"),
            ModelStatus("a", "1", "FAILED", "no ONNX"),
            ModelStatus("b", "1", "LOADING"),
            ModelStatus("c", "1", "UNLOADED", "unloaded"),
        ]


def ask(serving, method, path, body=b""):
    """Give what the endpoint of a path answers."""
    rows = operations(serving, WireOptions(server_version="0"))
    verbs, parameters = Dispatcher(serving, rows, 1000).match(path)
    return json.loads(verbs[method].handler(HttpRequest(parameters, {}, body)).body)


@pytest.mark.parametrize("body", [b"", b" \n", b"{}", b'{"ready": false}', b'{"ready": null}'])
def test_the_index_lists_all_models_with_triton_s_states(body):
    assert ask(Repository(), "POST", "/v2/repository/index", body) == [
        {"name": "a", "version": "2", "state": "READY", "reason": ""},
        {"name": "a", "version": "1", "state": "UNAVAILABLE", "reason": "no ONNX"},
        {"name": "b", "version": "1", "state": "LOADING", "reason": ""},
        {"name": "c", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]


def test_the_index_lists_what_is_ready():
    listed = ask(Repository(), "POST", "/v2/repository/index", b'{"ready": true}')
    assert [(row["name"], row["version"]) for row in listed] == [("a", "2")]


@pytest.mark.parametrize(
    ("body", "config", "files"),
    [
        (b"", None, {}),
        (b"{}", None, {}),
        (b'{"parameters": null}', None, {}),
        (b'{"parameters": {"config": "{\\"task\\": \\"tensor\\"}"}}', {"task": "tensor"}, {}),
        (b'{"parameters": {"config": {"task": "tensor"}}}', {"task": "tensor"}, {}),
        (
            b'{"parameters": {"config": "", "file:1/model.onnx": "AAE=", "file:": ""}}',
            {},
            {"1/model.onnx": b"\0\1", "": b""},
        ),
    ],
)
def test_load_passes_on_configuration_and_files(body, config, files):
    serving = Repository()
    answer = ask(serving, "POST", "/v2/repository/models/a/load", body)
    assert answer == {"name": "a", "load": True}
    assert serving.asked == [("load", "a", config, files)]


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("load", b"["),
        ("load", b"[]"),
        ("load", b'{"x": ' + b"[" * 100_000),
        ("load", b'{"parameters": {"config": "{\\"x\\": ' + b"[" * 100_000 + b'"}}'),
        ("load", b"\xff"),
        ("load", b'{"parameters": []}'),
        ("load", b'{"parameters": {"confg": "{}"}}'),
        ("load", b'{"parameters": {"config": "[]"}}'),
        ("load", b'{"parameters": {"config": "{"}}'),
        ("load", b'{"parameters": {"config": 1}}'),
        ("load", b'{"parameters": {"file:a": "%"}}'),
        ("load", b'{"parameters": {"file:a": 1}}'),
        ("load", '{"parameters": {"file:a": "é"}}'.encode()),
        ("unload", b'{"parameters": {"unload_dependents": "yes"}}'),
        ("unload", b'{"parameters": {"all": true}}'),
    ],
)
def test_unknown_parameters_of_load_and_unload_are_refused(action, body):
    serving = Repository()
    with pytest.raises(InvalidRequest, match="expected"):
        ask(serving, "POST", f"/v2/repository/models/a/{action}", body)
    assert serving.asked == []


@given(
    st.dictionaries(
        st.text(max_size=8), st.one_of(st.text(max_size=8), st.integers(), st.binary()), max_size=3
    )
)
def test_parameters_are_read_or_refused_and_nothing_else(parameters):
    try:
        config, files = parse_load(parameters)
    except InvalidRequest:
        return
    assert config is None or isinstance(config, dict)
    assert all(isinstance(content, bytes) for content in files.values())


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters": {"unload_dependents": true}}'])
def test_an_unload_takes_triton_s_parameter(body):
    serving = Repository()
    answer = ask(serving, "POST", "/v2/repository/models/a/unload", body)
    assert answer == {"name": "a", "unload": True}
    assert serving.asked == [("unload", "a")]


@pytest.mark.parametrize(
    ("method", "path", "expected_text"),
    [
        ("POST", "/v2/repository/other/index", "got repository 'other'"),
        ("POST", "/v2/repository/other/models/a/load", "got repository 'other'"),
        ("POST", "/v2/repository/other/models/a/unload", "got repository 'other'"),
        ("GET", "/v2/trace/setting", "traces"),
        ("POST", "/v2/models/a/trace/setting", "traces"),
        ("GET", "/v2/logging", "log"),
        ("POST", "/v2/logging", "log"),
        ("GET", "/v2/systemsharedmemory/status", "shared memory"),
        ("GET", "/v2/cudasharedmemory/region/r/status", "shared memory"),
        ("POST", "/v2/cudasharedmemory/region/r/register", "shared memory"),
        ("POST", "/v2/systemsharedmemory/unregister", "shared memory"),
        ("POST", "/v2/systemsharedmemory/region/r/unregister", "shared memory"),
    ],
)
def test_unsupported_endpoint_is_501_with_the_reason(method, path, expected_text):
    with pytest.raises(Unsupported, match=expected_text):
        ask(Repository(), method, path)


def test_statistics_have_triton_s_form():
    done = Duration(2, 30)
    batch = BatchStatistics(batch_size=4, compute_input=done)
    written = json.loads(
        json.dumps(
            statistics_json(
                ModelStatistics(
                    name="a",
                    version="1",
                    last_inference_ms=7,
                    inference_count=8,
                    execution_count=2,
                    queue=done,
                    batches=[batch],
                )
            ),
            default=lambda duration: {"count": duration.count, "ns": duration.ns},
        )
    )
    never, twice = {"count": 0, "ns": 0}, {"count": 2, "ns": 30}
    assert written == {
        "name": "a",
        "version": "1",
        "last_inference": 7,
        "inference_count": 8,
        "execution_count": 2,
        "inference_stats": {
            "success": never,
            "fail": never,
            "queue": twice,
            "compute_input": never,
            "compute_infer": never,
            "compute_output": never,
            "cache_hit": never,
            "cache_miss": never,
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": 4,
                "compute_input": twice,
                "compute_infer": never,
                "compute_output": never,
            }
        ],
        "memory_usage": [],
    }


@pytest.mark.parametrize(
    ("inputs", "outputs", "max_batch", "rows"),
    [
        (
            [TensorInfo("x", "FP32", (-1, 3))],
            [TensorInfo("y", "INT64", (-1, 1))],
            8,
            [("TYPE_FP32", [3]), ("TYPE_INT64", [1])],
        ),
        (
            [TensorInfo("x", "FP32", (-1, 3))],
            [TensorInfo("y", "BOOL", (2,))],
            0,
            [("TYPE_FP32", [-1, 3]), ("TYPE_BOOL", [2])],
        ),
        (
            [TensorInfo("x", "BYTES", (-1,))],
            [TensorInfo("y", "FP16", (-1, 3))],
            8,
            [("TYPE_STRING", [1]), ("TYPE_FP16", [3])],
        ),
        (
            [TensorInfo("x", "UINT8", ())],
            [TensorInfo("y", "UINT8", (3,))],
            0,
            [("TYPE_UINT8", [1]), ("TYPE_UINT8", [3])],
        ),
    ],
)
def test_a_config_has_the_batch_apart_where_all_tensors_have_one(inputs, outputs, max_batch, rows):
    info = ModelInfo(
        "a",
        "2",
        ["2", "1"],
        platform="onnx_onnxv1",
        task="TENSOR",
        inputs=inputs,
        outputs=outputs,
        max_batch=8,
    )
    config = config_json(info)
    assert (config["name"], config["platform"]) == ("a", "onnxruntime_onnx")
    assert (config["backend"], config["max_batch_size"]) == ("onnxruntime", max_batch)
    assert config["version_policy"] == {"specific": {"versions": [2, 1]}}
    assert [(t["data_type"], t["dims"]) for t in config["input"] + config["output"]] == rows
    flat = [
        bool(t.shape) and t.shape[1:] == () if max_batch else not t.shape for t in inputs + outputs
    ]
    assert [t.get("reshape") == {"shape": []} for t in config["input"] + config["output"]] == flat


def test_the_statistics_of_all_are_no_model_named_stats():
    rows = operations(Repository(), WireOptions(server_version="0"))
    verbs, parameters = Dispatcher(Repository(), [*rows[::-1], *rows], 1000).match(
        "/v2/models/stats"
    )
    assert (parameters, list(verbs)) == ({}, ["GET"])
