"""The objects of an S3 on this machine: which are listed, and how their contents come."""

import errno
import hashlib
import io

import obstore
import pytest
from blake3 import blake3

from quadriga.extras.object_stores import objects as objects_module
from quadriga.extras.object_stores.objects import ObjectFolder
from quadriga.extras.object_stores.source import ChangingSourceError, SourceError
from quadriga.store.blobs.objects import connect
from tests.s3_server import BUCKET, S3Server

URL = f"s3://{BUCKET}/models"


@pytest.fixture(scope="module")
def server():
    running = S3Server()
    yield running
    running.close()


@pytest.fixture
def folder(server, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    for name in list(server.objects):
        del server.objects[name]
    return ObjectFolder(URL, 1000)


def put(*paths, content=b"content"):
    for path in paths:
        obstore.put(connect(f"s3://{BUCKET}"), path, content)


def put_key(server, key, content=b"content"):
    """Put an object under a name that clients would change."""
    from moto.s3.models import s3_backends  # noqa: PLC0415 - slow, and the server has it by now

    (account,) = s3_backends.values()
    account["aws"].put_object(BUCKET, key, content)


@pytest.mark.parametrize(
    ("listed", "left_out"),
    [
        (["a/model.onnx", "a/1/labels.txt", "b c/ä.onnx"], []),
        (["a/model.onnx"], [".git/config", "a/.cache/x", "a/.hidden"]),
        (
            ["a/onnx/model.onnx", "a/config.json", "a/onnx/model.onnx_data", "a/weights.bin"],
            [
                "a/model.safetensors",
                "a/pytorch_model.bin",
                "a/pytorch_model-1-of-2.bin",
                "a/tf_model.h5",
                "a/flax_model.msgpack",
                "a/model.pkl",
                "a/onnx/model_fp16.onnx",
                "a/onnx/model_fp16.onnx_data",
                "a/onnx/model_q4f16.onnx",
            ],
        ),
        (["a/onnx/model_quantized.onnx", "b/model.onnx"], ["b/model_int8.onnx"]),
        (["model.onnx", "1/model_fp16.onnx"], ["model_fp16.onnx"]),
        (["f/x.onnx"], ["f"]),
        ([], ["/".join("abcdefghijklmnopq")]),
    ],
)
def test_what_models_need_is_listed(folder, listed, left_out):
    put(*(f"models/{path}" for path in [*listed, *left_out]), "other/model.onnx", "models.txt")
    assert sorted(folder.list()) == sorted(listed)


@pytest.mark.parametrize("key", ["models/a\\b", "models/a\\..\\b/c"])
def test_names_that_are_no_plain_ones_are_left_out(server, folder, key, caplog):
    put("models/a/model.onnx")
    put_key(server, key)
    for _ in range(2):
        assert list(folder.list()) == ["a/model.onnx"]
    assert caplog.text.count("in the source is ignored") == 1


@pytest.mark.parametrize(
    "key",
    [
        "models/a//b",
        "models/../b",
        "models/./b",
        "models/a/../../b",
        "models/a/\x01",
        "models/\x7f/b",
    ],
)
def test_a_source_with_a_name_that_is_no_path_is_refused(server, folder, key):
    put("models/a/model.onnx")
    put_key(server, key)
    with pytest.raises(SourceError, match="an object whose name is no path") as error:
        folder.list()
    assert BUCKET not in error.value.strerror


def test_sizes_and_numbers_are_limited(folder, monkeypatch):
    put("models/a/model.onnx", content=b"1" * 600)
    folder.list()
    put("models/b/model.onnx", content=b"1" * 401)
    with pytest.raises(SourceError, match=r"more than extras\.object_stores\.max_bytes, 1000"):
        folder.list()
    monkeypatch.setattr(objects_module, "MAX_FILE_BYTES", 599)
    with pytest.raises(SourceError, match="more than 599 bytes") as error:
        folder.list()
    assert error.value.errno == errno.EFBIG
    monkeypatch.setattr(objects_module, "MAX_FILES", 1)
    with pytest.raises(SourceError, match="more than 1 files"):
        folder.list()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 24, 25])
def test_a_content_comes_in_pieces(folder, monkeypatch, size):
    monkeypatch.setattr(objects_module, "PIECE_BYTES", 8)
    content = bytes(range(size))
    put("models/a/model.onnx", content=content)
    file = io.BytesIO()
    digest = folder.fetch("a/model.onnx", folder.list()["a/model.onnx"], file)
    assert (file.getvalue(), digest) == (content, blake3(content).hexdigest())


def test_another_content_than_the_listed_one_is_not_taken(folder):
    put("models/a/model.onnx", content=b"old")
    listed = folder.list()["a/model.onnx"]
    assert listed.etag == hashlib.md5(b"old").hexdigest()
    put("models/a/model.onnx", content=b"new")
    with pytest.raises(ChangingSourceError):
        folder.fetch("a/model.onnx", listed, io.BytesIO())
    obstore.delete(connect(URL), "a/model.onnx")
    with pytest.raises(ChangingSourceError):
        folder.fetch("a/model.onnx", listed, io.BytesIO())


def test_a_server_that_is_away_has_no_secrets_in_its_error(folder, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match="it does not answer") as error:
        ObjectFolder(URL, 1000).list()
    assert error.value.strerror == "cannot list their source: it does not answer"
    assert "secret" not in str(error.value)


def test_a_bucket_that_is_not_there_is_named_in_the_log_alone(server, folder):
    with pytest.raises(SourceError) as error:
        ObjectFolder("s3://nowhere/models", 1000).list()
    assert "nowhere" not in error.value.strerror
    assert "nowhere" in str(error.value) or "NoSuchBucket" in str(error.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://images/models/shapes-detector", "shapes-detector"),
        ("s3://images/models", "models"),
        ("s3://images", "images"),
    ],
)
def test_a_source_is_named_by_the_last_part_of_its_url(folder, url, name):
    assert ObjectFolder(url, 1).name == name
