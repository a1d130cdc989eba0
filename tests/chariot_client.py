"""Conformance check of an engine with chariot-v2-kserve: a client, and the findings of its cases.

The cases are in `tests.chariot_cases`. They are independent of any server, ours included.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ssl import SSLContext
from typing import Any, Literal
from urllib.parse import urlsplit

import cv2
import msgspec
import numpy as np

from quadriga.tasks import SHORT_NAMES

Severity = Literal["must", "should"]

TASKS = tuple(task for task in SHORT_NAMES.values() if task != "TENSOR")

PROMPTS = ["What is in the picture?", "How many shapes are there?"]


class Finding(msgspec.Struct, frozen=True):
    """Result of one case."""

    case: str
    severity: Severity
    ok: bool
    expected: str
    found: str


class Case(msgspec.Struct, frozen=True):
    """One requirement of the protocol; `check` raises `Mismatch`, or returns a note."""

    name: str
    severity: Severity
    check: Callable[["EngineClient"], str | None]
    tasks: Sequence[str] = TASKS


class Mismatch(Exception):
    """The engine's response differs from the protocol."""

    def __init__(self, expected: str, actual: object) -> None:
        super().__init__(expected)
        self.expected = expected
        self.actual = actual if isinstance(actual, str) else json.dumps(actual, default=repr)


class Reply(msgspec.Struct, frozen=True):
    """Response of the engine."""

    status: int
    body: bytes

    def describe(self) -> str:
        """Return status and beginning of the body in one line."""
        return f"{self.status} {self.body[:160].decode('utf-8', 'replace')}"


class EngineClient:
    """Client of the engine under test: `url` is the part before `/v2`, `task` one of `TASKS`.

    `credentials` are headers of each request, and `tls` the context of connections to a URL with https.
    """

    def __init__(
        self,
        url: str,
        model: str,
        task: str,
        timeout_s: float = 60,
        *,
        credentials: Mapping[str, str] | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self._url = urlsplit(url if "//" in url else f"//{url}", "http")
        self._credentials = credentials or {}
        self._tls = tls
        self._timeout_s = timeout_s
        self.model = model
        self.task = task
        self.image, self.other_image = _picture(320, 240, ".png"), _picture(200, 260, ".jpg")
        self.size_wh = (320, 240)
        """Size of `image`: width, height, in pixels."""

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a request; a body other than bytes is encoded as JSON. Redirects are not followed."""
        host, timeout_s = self._url.netloc, self._timeout_s
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection = (
                HTTPSConnection(host, timeout=timeout_s, context=self._tls)
                if self._url.scheme == "https"
                else HTTPConnection(host, timeout=timeout_s)
            )
            try:
                connection.request(
                    method,
                    f"{self._url.path.rstrip('/')}{path}",
                    sent,
                    {**self._credentials, **(headers or {})},
                )
                response = connection.getresponse()
                return Reply(response.status, response.read())
            finally:
                connection.close()
        except (OSError, HTTPException) as error:
            raise Mismatch("an answer over HTTP", repr(error)) from error

    def infer(self, body: Any, path: str = "", headers: Mapping[str, str] | None = None) -> Reply:
        """Post to the model's infer endpoint."""
        sent_headers = {"Content-Type": "application/json"} if headers is None else headers
        return self.send("POST", path or f"/v2/models/{self.model}/infer/", body, sent_headers)

    def input(self, *images: bytes | str, name: str = "input-image-0", **changes: Any) -> Any:
        """Make an input; `changes` are its parameters."""
        data = [i if isinstance(i, str) else base64.b64encode(i).decode() for i in images]
        prompts = {"prompts": PROMPTS} if self.task == "IMAGE_TEXT_TO_TEXT" else {}
        tensor = {"name": name, "shape": [len(data)], "datatype": "BYTES", "data": data}
        parameters = {**prompts, **changes}
        return {**tensor, "parameters": parameters} if parameters else tensor

    def body(self, *images: bytes | str, **changes: Any) -> Any:
        """Make a body of one input; with one default image if none is given."""
        return {"inputs": [self.input(*(images or [self.image]), **changes)]}

    def infer_json(self, *inputs: Any, **more: Any) -> dict[str, Any]:
        """Send a valid request; return the JSON of the response."""
        body = {"inputs": list(inputs)} if inputs else self.body()
        return checked_json(self.infer({**body, **more}))

    def predictions(self, **parameters: Any) -> list[Any]:
        """Return the predictions for the first image, which may come nested, flat or as JSON texts."""
        data = self.infer_json(self.input(self.image, **parameters))["outputs"][0].get("data")
        try:
            predictions = [
                json.loads(element) if isinstance(element, str) else element
                for element in data or ()
            ]
        except (TypeError, ValueError) as error:
            raise Mismatch("data to hold predictions", data) from error
        return (
            predictions[0]
            if len(predictions) == 1 and isinstance(predictions[0], list)
            else predictions
        )


def checked_json(reply: Reply) -> dict[str, Any]:
    """Parse the JSON of a response; raises `Mismatch` unless it is 200 and an object with outputs."""
    try:
        body = json.loads(reply.body) if reply.status == 200 else None
    except ValueError:
        body = None
    outputs = body.get("outputs") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(outputs, list) or not outputs:
        raise Mismatch("200 and a JSON object with outputs", reply.describe())
    if not all(isinstance(output, dict) for output in outputs):
        raise Mismatch("outputs to be objects", outputs)
    return body


def expect(condition: bool, expected: str, actual: object) -> None:  # noqa: FBT001 - as assert
    """Raise `Mismatch` unless a condition holds."""
    if not condition:
        raise Mismatch(expected, actual)


def check_engine(engine: EngineClient, cases: Sequence[Case]) -> Iterator[Finding]:
    """Run every case of the engine's task."""
    for case in cases:
        if engine.task not in case.tasks:
            continue
        expected = ""
        try:
            actual = case.check(engine) or ""
        except Mismatch as mismatch:
            expected, actual = mismatch.expected, mismatch.actual[:300]
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            expected, actual = (
                "a response in the form of the page",
                repr(error),
            )  # an engine may send anything
        yield Finding(
            case=case.name,
            severity=case.severity,
            ok=not expected,
            expected=expected,
            found=actual,
        )


def _picture(width: int, height: int, kind: str) -> bytes:
    image = np.random.default_rng(5).normal(225, 6, (height, width, 3)).clip(0, 255).astype("u1")
    third = min(width, height) // 4
    cv2.circle(image, (third + 8, third + 8), third * 3 // 4, (40, 40, 220), -1)
    cv2.rectangle(image, (width - 2 * third, third), (width - 20, 2 * third), (60, 160, 40), -1)
    corners = np.array([[20, height - 20], [20 + third, height - 20], [20, height - third - 20]])
    cv2.fillPoly(image, [corners], (210, 90, 30))
    return bytes(cv2.imencode(kind, image)[1])
