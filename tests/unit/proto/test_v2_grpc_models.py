"""Models over gRPC: readiness, configuration, statistics, loading."""

import pytest

from quadriga.proto.errors import InvalidRequest, Unsupported
from quadriga.proto.grpc.messages import (
    message_class,
)
from tests.unit.proto.echo_grpc import EchoGrpc, called


def test_an_unknown_model_is_not_ready():
    request = message_class("ModelReadyRequest")
    assert called("ModelReady", request(name="m")).ready
    assert not called("ModelReady", request(name="other")).ready


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("RepositoryIndex", {"repository_name": "other"}),
        ("RepositoryModelLoad", {"repository_name": "other", "model_name": "m"}),
        ("RepositoryModelUnload", {"repository_name": "other", "model_name": "m"}),
    ],
)
def test_another_repository_is_refused_as_over_rest(method, fields):
    serving = EchoGrpc()
    request = message_class(f"{method}Request")(**fields)
    with pytest.raises(Unsupported, match=r"without a repository, as there is one, got .*'other'"):
        called(method, request, serving)
    assert serving.loaded == ()


def test_the_configuration_has_whole_shapes():
    config = called("ModelConfig", message_class("ModelConfigRequest")(name="m")).config
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 0)
    kinds = [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in config.input]
    assert kinds == [("x", 13, [-1]), ("y", 10, [2, 3])]


def test_index_has_states_that_clients_know():
    index = called("RepositoryIndex", message_class("RepositoryIndexRequest")())
    assert [(model.name, model.state, model.reason) for model in index.models] == [
        ("ready", "READY", ""),
        ("loading", "LOADING", ""),
        ("failed", "UNAVAILABLE", ""),
        ("unloaded", "UNAVAILABLE", "unloaded"),
    ]
    ready = called("RepositoryIndex", message_class("RepositoryIndexRequest")(ready=True))
    assert [model.name for model in ready.models] == ["ready"]


def test_statistics_are_of_one_model_or_of_all():
    request = message_class("ModelStatisticsRequest")
    (single,) = called("ModelStatistics", request(name="m", version="2")).model_stats
    (every,) = called("ModelStatistics", request()).model_stats
    assert [(statistics.name, statistics.version) for statistics in (single, every)] == [
        ("m", "2"),
        ("all", "1"),
    ]
    assert (single.last_inference, single.inference_count, single.execution_count) == (5, 4, 3)
    spent = single.inference_stats
    assert (spent.success.count, spent.success.ns, spent.fail.count) == (2, 2000, 0)
    assert spent.compute_output.ns == 2**63


@pytest.mark.parametrize(
    "fields", [{"model_name": "m"}, {"repository_name": "m"}], ids=["Triton", "KServe"]
)
def test_models_are_loaded_and_unloaded_by_both_names(fields):
    serving = EchoGrpc()
    request = message_class("RepositoryModelLoadRequest")(**fields)
    answer = called("RepositoryModelLoad", request, serving)
    assert (answer.model_name, answer.isLoaded, serving.loaded) == ("m", True, ("m", None, {}))
    request = message_class("RepositoryModelUnloadRequest")(**fields)
    request.parameters["unload_dependents"].bool_param = True
    answer = called("RepositoryModelUnload", request, serving)
    assert (answer.model_name, answer.isUnloaded, serving.loaded) == ("m", True, ("m",))


def test_a_model_is_loaded_with_configuration_and_files():
    serving = EchoGrpc()
    request = message_class("RepositoryModelLoadRequest")(model_name="m")
    request.parameters["config"].string_param = '{"a": 1}'
    request.parameters["file:1/model.onnx"].bytes_param = b"\0"
    called("RepositoryModelLoad", request, serving)
    assert serving.loaded == ("m", {"a": 1}, {"1/model.onnx": b"\0"})


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("config", "string_param", "{"),
        ("config", "string_param", "[]"),
        ("config", "int64_param", 1),
        ("file:a", "string_param", "a"),
        ("other", "bool_param", True),
    ],
)
def test_other_load_parameters_are_refused(name, kind, value):
    request = message_class("RepositoryModelLoadRequest")(model_name="m")
    setattr(request.parameters[name], kind, value)
    with pytest.raises(InvalidRequest, match="config"):
        called("RepositoryModelLoad", request)
