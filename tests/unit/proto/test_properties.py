"""What holds for every tensor, body and header, not only for those that somebody thought of."""

import json
import zlib

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quadriga.proto.datatypes import NUMPY_TYPES, from_raw, to_raw
from quadriga.proto.errors import InvalidRequest, ProtocolError, TooLarge
from quadriga.proto.http.asgi import MIN_BYTES, compress, decompress
from quadriga.proto.http.operations import HttpRequest
from quadriga.proto.http.v2 import _json_bytes, parse_infer, parse_raw, render_infer
from quadriga.proto.messages import InferRequest, InferResponse, ModelInfo, Tensor, TensorInfo

SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
NUMBERS = [*NUMPY_TYPES]
SOME = settings(max_examples=60)
MANY = settings(max_examples=400)


@st.composite
def tensors(draw, datatype, elements=None):
    """Draw a tensor of a datatype; NaN, infinities and the ends of ranges are among the values."""
    shape = draw(SHAPES)
    if datatype == "BYTES":
        count = int(np.prod(shape))
        data = draw(st.lists(elements, min_size=count, max_size=count))
        return Tensor("x", datatype, shape, data)
    return Tensor("x", datatype, shape, draw(arrays.arrays(NUMPY_TYPES[datatype], shape)))


def sent_back(outputs, *, binary):
    """Render tensors as a response, and read that response's tensors as a request's."""
    wish = InferRequest("m", None, "7", [], parameters={"binary_data_output": binary})
    body, json_bytes = render_infer(wish, InferResponse("m", "1", "7", outputs))
    assert (json_bytes is not None) == binary
    as_request = body.replace(b'"outputs":', b'"inputs":', 1)
    return parse_infer(
        as_request,
        "m",
        version=None,
        header_id=None,
        json_bytes=json_bytes - 1 if json_bytes else None,
    ).inputs


def same(actual, expected, *, bits):
    assert (actual.name, actual.datatype) == (expected.name, expected.datatype)
    assert tuple(actual.shape) == tuple(expected.shape)
    if isinstance(expected.data, list):
        encoded = [e.encode() if isinstance(e, str) else e for e in actual.data]
        assert encoded == [e.encode() if isinstance(e, str) else e for e in expected.data]
        return
    assert actual.data.dtype == expected.data.dtype
    if bits:
        assert actual.data.tobytes() == expected.data.tobytes()
        return
    np.testing.assert_array_equal(actual.data, expected.data)
    if expected.data.dtype.kind == "f":
        numbers = ~np.isnan(expected.data)
        np.testing.assert_array_equal(
            np.signbit(actual.data[numbers]), np.signbit(expected.data[numbers])
        )


@pytest.mark.parametrize("datatype", NUMBERS)
@SOME
@given(data=st.data())
def test_numbers_come_back_from_json_and_bit_by_bit_from_bytes(datatype, data):
    several = data.draw(st.lists(tensors(datatype), min_size=1, max_size=3))
    for binary in (False, True):
        for returned, tensor in zip(sent_back(several, binary=binary), several, strict=True):
            same(returned, tensor, bits=binary)


@SOME
@given(tensors("BYTES", st.text()))
def test_texts_come_back_from_json(tensor):
    (returned,) = sent_back([tensor], binary=False)
    same(returned, tensor, bits=False)


@SOME
@given(st.lists(tensors("BYTES", st.binary()), min_size=1, max_size=3))
def test_bytes_come_back_from_bytes(several):
    for returned, tensor in zip(sent_back(several, binary=True), several, strict=True):
        same(returned, tensor, bits=True)


@pytest.mark.parametrize("datatype", [*NUMBERS, "BYTES"])
@SOME
@given(raw=st.binary(max_size=64), shape=st.lists(st.integers(-2, 2**70), max_size=5))
def test_bytes_are_a_whole_tensor_or_refused(datatype, raw, shape):
    try:
        data, checked = from_raw(memoryview(raw), datatype, shape, "input 'x'")
    except ProtocolError:
        return
    written = to_raw(Tensor("x", datatype, checked, data))
    assert len(written) == len(raw)
    if datatype != "BOOL":  # where any byte but 0 is true
        assert written == raw


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["FP32", "BYTES", "INT8", "UINT64", "BOOL", "FP16"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
PARAMETERS = JSON | st.dictionaries(
    st.sampled_from(["binary_data_size", "shared_memory_region", "content_type", "binary_data"]),
    JSON,
)
INPUTS = st.fixed_dictionaries(
    {"name": st.text(max_size=4)},
    optional={
        "shape": st.lists(st.integers(-2, 5), max_size=3) | JSON,
        "datatype": st.sampled_from([*NUMBERS, "BYTES", "BF16"]) | JSON,
        "data": st.lists(JSON, max_size=4) | JSON,
        "parameters": PARAMETERS,
    },
)
BODIES = st.fixed_dictionaries(
    {"inputs": st.lists(INPUTS, max_size=3) | JSON},
    optional={"id": JSON, "parameters": PARAMETERS, "outputs": st.lists(INPUTS, max_size=3) | JSON},
)


def parsed_or_refused(body, json_bytes=None):
    try:
        parse_infer(body, "m", version=None, header_id=None, json_bytes=json_bytes)
    except ProtocolError as error:
        assert 400 <= error.status < 600  # noqa: PT017 - which of both it is, is open


@MANY
@given(body=BODIES, behind=st.binary(max_size=16))
@example(
    body={"inputs": [{"name": "x", "shape": [10**30], "datatype": "INT8", "data": []}]}, behind=b""
)
def test_any_json_is_read_or_refused(body, behind):
    text = json.dumps(body).encode()
    parsed_or_refused(text)
    parsed_or_refused(text + behind, len(text))


@MANY
@given(body=st.binary(max_size=200), length=st.none() | st.integers(0, 200))
def test_any_bytes_are_read_or_refused(body, length):
    parsed_or_refused(body, None if length is None else min(length, len(body)))


@MANY
@given(st.data())
def test_a_damaged_body_is_read_or_refused(data):
    head = json.dumps(
        {
            "id": "7",
            "inputs": [
                {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2.5]},
                {"name": "y", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 7}},
            ],
        }
    ).encode()  # fmt: skip
    body = bytearray(head + b"\x03\0\0\0abc")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        assume(body)
    parsed_or_refused(bytes(body), min(len(head), len(body)))
    parsed_or_refused(bytes(body))


INFOS = [
    ModelInfo(
        "m",
        "1",
        ["1"],
        platform="p",
        task="TENSOR",
        inputs=[TensorInfo("x", datatype, shape)],
        outputs=[],
    )
    for datatype in (*NUMBERS, "BYTES")
    for shape in ((), (-1,), (-1, 3), (-1, -1), (-1, -1, -1), (2, 2), (0, -1), (3, 0))
]


@MANY
@given(body=st.binary(max_size=64), info=st.sampled_from(INFOS))
def test_any_bytes_are_a_raw_request_or_refused(body, info):
    try:
        request = parse_raw(body, info, None, None)
    except ProtocolError:
        return
    (tensor,) = request.inputs
    assert int(np.prod(tensor.shape)) == len(tensor.data if tensor.datatype == "BYTES" else tensor.data.ravel())  # fmt: skip


@MANY
@given(written=st.binary(max_size=20) | st.from_regex(rb"[-+0-9_ .e]{1,20}", fullmatch=True))
def test_any_length_of_json_is_read_or_refused(written):
    call = HttpRequest({}, {b"inference-header-content-length": written}, b"x" * 30)
    try:
        length = _json_bytes(call)
    except InvalidRequest:
        return
    assert 0 <= length <= 30


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"GZIP", b" x-gzip"])
@SOME
@given(body=st.binary(max_size=2000))
def test_any_bytes_are_decompressed_or_refused(encoding, body):
    try:
        plain = decompress(body, encoding, 1000)
    except ProtocolError:
        return
    assert len(plain) <= 1000


@MANY
@given(encoding=st.binary(max_size=20))
def test_any_encoding_is_supported_or_refused(encoding):
    try:
        assert decompress(b"abc", encoding, 10) == b"abc"
    except ProtocolError as error:
        is_supported = encoding.strip().lower() in (b"gzip", b"x-gzip", b"deflate")
        assert ("Content-Encoding" in str(error)) == (not is_supported)  # noqa: PT017 - which of both it is, is open


@SOME
@given(body=st.binary(max_size=64).map(lambda chunk: chunk * 64), accepted=st.sampled_from([b"gzip", b"deflate", b"gzip;q=0.5, deflate", b"br, *;q=0.1, gzip"]))  # fmt: skip
def test_compressed_bodies_decompress_to_the_same_bytes(body, accepted):
    small, headers = compress(body, accepted)
    encoding = dict(headers).get(b"content-encoding", b"identity")
    assert (encoding == b"identity") == (len(body) < MIN_BYTES)
    assert decompress(small, encoding, len(body)) == body


@MANY
@given(accepted=st.binary(max_size=30) | st.from_regex(rb"(gzip|deflate|\*)(;q=[0-9.]{1,4})?(, ?gzip;q=[.01]+)?", fullmatch=True))  # fmt: skip
@example(accepted=b"gzip;q=.")
@example(accepted=b"gzip;q=1.0.0")
def test_any_accepted_encoding_is_answered(accepted):
    body = b"a" * MIN_BYTES
    small, headers = compress(body, accepted)
    assert decompress(small, dict(headers).get(b"content-encoding", b""), len(body)) == body


@pytest.mark.parametrize("bits", [16 + zlib.MAX_WBITS, zlib.MAX_WBITS])
def test_decompression_bomb_is_refused_before_it_is_decompressed(bits):
    encoder = zlib.compressobj(9, wbits=bits)
    bomb = encoder.compress(bytes(64 * 1024 * 1024)) + encoder.flush()
    assert len(bomb) < 100_000
    with pytest.raises(TooLarge):
        decompress(bomb, b"gzip" if bits > 16 else b"deflate", 1_000_000)
    trailing = zlib.compress(b"small") + bomb
    with pytest.raises(InvalidRequest):
        decompress(trailing, b"deflate", 1_000_000)
