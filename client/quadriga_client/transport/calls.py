"""Requests to the server as data, and answers read: shared by the plain and the async client."""

import json
import secrets
from collections.abc import Callable, Mapping
from datetime import date, time
from typing import Any
from urllib.parse import quote, urlencode

from ..errors import BadAnswer, InputError, error_of_status
from .connections import Call, Response

SHOWN_CHARACTERS = 200
"""Maximum length of a part of a bad answer in a message."""


def path_of(template: str, *values: object, query: Mapping[str, object] | None = None) -> str:
    """Return a path with values in the places of `{}`, and a query of those values that are `present`."""
    path = template.format(*(quote(str(value), safe="") for value in values))
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in present(**(query or {})).items()
    }
    return f"{path}?{urlencode(texts)}" if texts else path


def read_call(template: str, *values: object, query: Mapping[str, object] | None = None) -> Call:
    """Make a request that reads something."""
    return Call("GET", path_of(template, *values, query=query), is_repeatable=True)


def json_call(
    method: str,
    template: str,
    *values: object,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    is_repeatable: bool | None = None,
    query: Mapping[str, object] | None = None,
) -> Call:
    """Make a request with JSON; PUT and DELETE are repeatable unless they have a condition (RFC 9110, section 9.2.2)."""
    if is_repeatable is None:
        is_repeatable = method in {"PUT", "DELETE"} and not headers
    return Call(
        method,
        path_of(template, *values, query=query),
        () if body is None else (encode_json(body, "the body"),),
        {"Content-Type": "application/json", **(headers or {})},
        is_repeatable=is_repeatable,
    )


def present(**values: Any) -> dict[str, Any]:
    """Return the values that are not None; a `_` at the end of a name is dropped, as in `from_`."""
    return {name.rstrip("_"): value for name, value in values.items() if value is not None}


def encode_json(value: Any, subject: str) -> bytes:
    """Encode JSON; numbers of numpy are numbers, dates and times are texts of ISO 8601.

    Raises:
        InputError: It has a value that JSON does not have, such as NaN; the message names its place.
    """
    try:
        return json.dumps(
            value, allow_nan=False, separators=(",", ":"), default=_json_value
        ).encode()
    except (TypeError, ValueError, RecursionError) as error:
        is_endless = isinstance(error, RecursionError) or "Circular" in str(error)
        fault = "" if is_endless else _first_fault(value, subject)
        raise InputError(fault or f"expected {subject} to be JSON: {error}") from error


def _json_value(value: Any) -> Any:
    """Return what stands for a value that JSON does not have: a number of numpy, a date or a time."""
    if isinstance(value, date | time):  # a datetime is a date
        text = value.isoformat()
        return None if text == "NaT" else text  # a time that pandas lacks
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        item = value.item()
        if value.dtype.kind not in "mM" or not isinstance(item, int):
            return item
        if value.dtype.kind == "M":  # so fine that the item is a bare count
            return str(value)
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def _first_fault(value: Any, place: str) -> str:
    """Return what is wrong with the first value that JSON does not have; empty if there is none."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not (key is None or isinstance(key, str | int | float)):
                return f"expected the keys of {place} to be texts, got {key!r:.80}"
            if fault := _first_fault(item, f"{place}[{key!r:.80}]"):
                return fault
        return ""
    if isinstance(value, list | tuple):
        faults = (_first_fault(item, f"{place}[{n}]") for n, item in enumerate(value))
        return next(filter(None, faults), "")
    try:
        json.dumps(value, allow_nan=False, default=_json_value)
    except (TypeError, ValueError):
        return f"expected {place} to be a value of JSON, got {type(value).__name__} {value!r:.80}"
    return ""


def new_key() -> str:
    """Return a random idempotency key, which is the request's id, too."""
    return secrets.token_hex(16)


Read = Callable[[Response], Any]
"""Reads an answer that is no error."""


def read_json(response: Response) -> Any:
    """Return the JSON of an answer; None for an empty one.

    Raises:
        BadAnswer: It is no JSON.
    """
    if not response.body:
        return None
    try:
        return json.loads(response.body)
    except (ValueError, RecursionError) as error:
        raise bad_answer("JSON", response) from error


def read_text(response: Response) -> str:
    """Return an answer as text."""
    return response.body.decode(errors="replace")


def read_bytes(response: Response) -> bytes:
    """Return an answer as it is."""
    return response.body


def bad_answer(expected: str, response: Response) -> BadAnswer:
    """Return the error of an answer that is not what was expected."""
    kind = response.headers.get("content-type", "no content type")
    shown = response.body[:SHOWN_CHARACTERS].decode(errors="replace")
    return BadAnswer(
        f"expected {expected} from the server, got {kind} of {len(response.body)} bytes: {shown!r}"
    )


def check_answer(response: Response, url: str) -> None:
    """Raise the error that an answer is, if it is one.

    Raises:
        ServerRefused: The server answered with an error.
        BadAnswer: It wants the request at another address.
    """
    status = response.status
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        target = response.headers.get("location", "nowhere")[:SHOWN_CHARACTERS]
        raise BadAnswer(
            f"{url} answers {status}, a redirect to {target!r}: it is not followed, as the key would go there. Use its "
            "final URL"
        )
    try:
        text = str(json.loads(response.body)["error"])
    except (ValueError, TypeError, KeyError, RecursionError):
        text = response.body[:SHOWN_CHARACTERS].decode(errors="replace") or "no text"
    request_id = response.headers.get("x-request-id", "")
    raise error_of_status(status)(text, status, request_id, retry_after_s(response))


def retry_after_s(response: Response) -> float | None:
    """Return the seconds that `Retry-After` asks to wait; None if it has none that can be read."""
    value = response.headers.get("retry-after", "").strip()
    return float(value) if value.isdigit() and len(value) < 10 else None
