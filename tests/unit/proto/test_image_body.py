"""An image as a body: by its type or as the file of a form, with parameters from header, query and fields."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadriga.proto.errors import InvalidRequest, NotFound
from quadriga.proto.http.operations import Dispatcher, HttpRequest, WireOptions
from quadriga.proto.http.v2 import MAX_FIELDS, PARAMETERS_HEADER, operations, read_image
from quadriga.proto.messages import ModelInfo, TensorInfo

PNG = b"\x89PNG\r\n\x1a\n and more"
FORM = b'multipart/form-data; boundary="of it"'
FILE = b'Content-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n' + PNG


def form(*parts):
    return b"".join(b"--of it\r\n%s\r\n" % part for part in parts) + b"--of it--\r\n"


def field(name, text):
    return b'Content-Disposition: form-data; name="%s"\r\n\r\n%s' % (name, text)


def read(body, kind=b"image/png", query=b"", header=None):
    headers = {b"content-type": kind} | ({} if header is None else {PARAMETERS_HEADER: header})
    tensor = read_image(HttpRequest({}, headers, body, query=query), "image")
    assert (tensor.name, tensor.datatype, tensor.shape) == ("image", "BYTES", (1,))
    (image,) = tensor.data
    return image, tensor.parameters


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        (b"", {}),
        (b"score_threshold=0.8&store=false", {"score_threshold": 0.8, "store": False}),
        (b"action=predict_proba", {"action": "predict_proba"}),
        (b"prompt=How%20many+ships%3F", {"prompt": "How many ships?"}),
        (b"prompt=%2242%22&top_k=42", {"prompt": "42", "top_k": 42}),
        (b"metadata=%7B%22camera_id%22%3A+%22north%22%7D", {"metadata": {"camera_id": "north"}}),
        (b"metadata=%7B%22", {"metadata": '{"'}),
        (b"prompt=&x=null", {"prompt": "", "x": None}),
        (b"top_k=1&top_k=2", {"top_k": 2}),
        (b"prompt=%C3%A9%FF", {"prompt": "é\ufffd"}),
    ],
)
def test_parameters_of_a_query_are_json_or_texts(query, parameters):
    assert read(PNG, query=query) == (PNG, parameters)
    assert read(form(FILE), FORM, query) == (PNG, parameters)


def test_form_has_precedence_over_query_and_query_over_header():
    body = form(field(b"a", b"3"), FILE)
    assert read(body, FORM, b"a=2&b=2", b'{"a": 1, "b": 1, "c": 1}')[1] == {"a": 3, "b": 2, "c": 1}


@pytest.mark.parametrize(
    ("body", "image"),
    [
        (form(FILE), PNG),
        (b"before it\r\n" + form(FILE), PNG),
        (form(FILE.replace(PNG, b"")), b""),
        (form(FILE.replace(PNG, b"\r\n--of i\r\n")), b"\r\n--of i\r\n"),
        (form(field(b"image", PNG).replace(b"\r\n", b"\r\nContent-Type: image/png\r\n", 1)), PNG),
    ],
)
def test_file_of_a_form_is_the_image(body, image):
    assert read(body, FORM) == (image, {})


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (form(), FORM, "one file, got 0; other fields: 'none'"),
        (form(field(b"a", b"1")), FORM, "one file, got 0; other fields: 'a'"),
        (form(FILE, FILE), FORM, "one file, got 2"),
        (form(FILE)[:-5], FORM, "expected a form as multipart/form-data"),
        (b"", FORM, "expected a form as multipart/form-data"),
        (PNG, b"multipart/form-data", "boundary"),
        (form(field(b"a", b"\xff"), FILE), FORM, "utf-8"),
        (form(*[field(b"a", b"1")] * MAX_FIELDS, FILE), FORM, "Maximum segment count"),
    ],
)
def test_form_without_one_file_is_refused(body, kind, message):
    with pytest.raises(InvalidRequest, match=message):
        read(body, kind)


@pytest.mark.parametrize(
    ("query", "header", "message"),
    [
        (b"&".join([b"a=1"] * (MAX_FIELDS + 1)), None, "at most 100 parameters"),
        (b"", b"[]", "the header chariot-inference-parameters"),
    ],
)
def test_parameters_that_cannot_be_read_are_refused(query, header, message):
    with pytest.raises(InvalidRequest, match=message):
        read(PNG, query=query, header=header)


PIECES = [b"--of it", b"--", b"\r\n", b"\n", FILE, b":", b"\xff", b'form-data; name="', b"\0"]


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=9)).map(b"".join), st.sampled_from([FORM, b"multipart/form-data; boundary="]) | st.binary().map(lambda end: FORM + end), st.binary(), st.none() | st.binary())  # fmt: skip
def test_any_bytes_are_an_image_or_a_clear_error(body, kind, query, header):
    with suppress(InvalidRequest):
        image, _ = read(body, kind, query, header)
        assert image in body


class TwoModels:
    """A server with the model `shapes`, which takes images, and `gauge`, which takes tensors; it tells what it was asked."""

    def model_info(self, name, version):
        if name not in {"shapes", "gauge"}:
            raise NotFound(f"model not found: {name}")
        is_image = name == "shapes"
        inputs = [TensorInfo("image", "BYTES", (-1,)) if is_image else TensorInfo("x", "FP32", (-1, 2))]  # fmt: skip
        return ModelInfo(name, "1", ["1"], platform="test", task="any", inputs=inputs, outputs=[], takes_images=is_image)  # fmt: skip

    def infer(self, request):
        raise AskedError(request)


class AskedError(Exception):
    """What reached the model."""


def asked(name, body, headers):
    table = Dispatcher(TwoModels(), operations(TwoModels(), WireOptions(server_version="0")), 10**6)
    verbs, parameters = table.match(f"/v2/models/{name}/infer")
    request = HttpRequest(parameters, {key.encode(): value for key, value in headers.items()}, body)
    with pytest.raises((AskedError, InvalidRequest, NotFound)) as raised:
        verbs["POST"].handler(request)
    return raised.value


OCTETS = b"application/octet-stream"
JSON_BODY = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["aGk="]}]}'


@pytest.mark.parametrize(
    ("kind", "body", "data"),
    [
        (b"image/png", PNG, [PNG]),
        (b"IMAGE/X-Any; q=1", b"no image at all", [b"no image at all"]),
        (FORM, form(FILE), [PNG]),
        (OCTETS, PNG, [PNG]),
        (OCTETS, JSON_BODY, ["aGk="]),
        (b"", JSON_BODY, ["aGk="]),
        (b"application/x-www-form-urlencoded", JSON_BODY, ["aGk="]),
    ],
)
def test_body_is_an_image_by_its_type_and_beginning(kind, body, data):
    request = asked("shapes", body, {"content-type": kind, "x-request-id": b"seven"}).args[0]
    assert request.inputs[0].data == data
    assert (request.model, request.version, request.id) == ("shapes", None, "seven")


@pytest.mark.parametrize(
    ("name", "headers", "body", "error", "message"),
    [
        ("gauge", {"content-type": b"image/png"}, PNG, InvalidRequest, "expected tensors for the model 'gauge'"),
        ("gauge", {"content-type": FORM}, form(FILE), InvalidRequest, "'multipart/form-data'"),
        ("gauge", {"content-type": OCTETS}, PNG, InvalidRequest, "got the file of an image"),
        ("shapes", {"content-type": b"text/plain"}, PNG, InvalidRequest, "Content-Type: image/jpeg"),
        ("shapes", {}, PNG, InvalidRequest, "Content-Type: image/jpeg"),
        ("shapes", {"content-type": OCTETS}, b"any", InvalidRequest, "JSON"),
        ("nobody", {"content-type": b"image/png"}, PNG, NotFound, "nobody"),
        ("nobody", {"content-type": FORM}, b"", NotFound, "nobody"),
    ],
)  # fmt: skip
def test_image_where_none_is_taken_is_refused(name, headers, body, error, message):
    raised = asked(name, body, headers)
    assert isinstance(raised, error)
    assert message in str(raised)


def test_length_of_json_has_precedence_over_the_type():
    json_bytes = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 6}}]}'  # fmt: skip
    headers = {"content-type": b"image/png", "inference-header-content-length": b"%d" % len(json_bytes)}  # fmt: skip
    request = asked("shapes", json_bytes + b"\2\0\0\0hi", headers).args[0]
    assert request.inputs[0].data == [b"hi"]
