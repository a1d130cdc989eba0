"""Every error that the client raises on purpose.

ClientError
├── InputError            what was given to the client cannot be sent; also a ValueError
├── MissingPackage        a package that the call needs is not installed; also an ImportError
├── Unreachable           no answer: no connection, or it was cut, or the time is over
├── BadAnswer             an answer that is not what the server's API says
├── JobFailed             a job ended without a result
└── ServerRefused         the server answered with an error
    ├── InvalidRequest    400, 413 and others of 4xx
    ├── Unauthenticated   401
    ├── Forbidden         403
    ├── NotFound          404
    ├── Conflict          409, 412
    ├── ServerBusy        429, 503
    └── ServerFault       5xx
"""

import sys
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any


class ClientError(Exception):
    """Base of all errors of the client."""


class InputError(ClientError, ValueError):
    """A value that was given to the client cannot be sent."""


class MissingPackage(ClientError, ImportError):
    """A package that the call needs is not installed."""


class Unreachable(ClientError, ConnectionError):
    """There is no answer from the server.

    Args:
        message: What was tried, and what happened.
        was_sent: Whether the server may have got the request.
    """

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class BadAnswer(ClientError):
    """An answer that is not what the server's API says, such as a page of a proxy."""


class JobFailed(ClientError):
    """A job ended without a result.

    Args:
        message: Reason.
        job: The job as the server has it.
    """

    def __init__(self, message: str, job: Any) -> None:
        super().__init__(message)
        self.job = job


class ServerRefused(ClientError):
    """The server answered with an error.

    Args:
        text: Text of the server.
        status: HTTP status.
        request_id: Id under which the server's log has the request; empty if it sent none.
        retry_after_s: Seconds after which the server wants the request again; None if it says nothing.
    """

    def __init__(
        self, text: str, status: int, request_id: str = "", retry_after_s: float | None = None
    ) -> None:
        about = f" (status {status}, request {request_id})" if request_id else f" (status {status})"
        super().__init__(text + about)
        self.text = text
        self.status = status
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class InvalidRequest(ServerRefused):
    """The server cannot do anything with the request: 400, 413 and others of 4xx."""


class Unauthenticated(ServerRefused):
    """The server wants a valid key: 401."""


class Forbidden(ServerRefused):
    """The key may not do this: 403."""


class NotFound(ServerRefused):
    """There is no such model, inference, job or path: 404."""


class Conflict(ServerRefused):
    """The request contradicts the state of the server: 409, 412."""


class ServerBusy(ServerRefused):
    """The server has too much to do, or is not ready: 429, 503."""


class TruthWarning(UserWarning):
    """What was stated as ground truth may be a mistake, such as a label that the model does not have."""


class ServerFault(ServerRefused):
    """The server or the model failed: 5xx."""


_BY_STATUS: dict[int, type[ServerRefused]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    429: ServerBusy,
    503: ServerBusy,
}


def error_of_status(status: int) -> type[ServerRefused]:
    """Return the class of the error that a status is."""
    return _BY_STATUS.get(status, InvalidRequest if status < 500 else ServerFault)


def show_warnings(answer: Mapping[str, Any], category: type[UserWarning] = UserWarning) -> None:
    """Show the warnings of an answer as those of Python, at the line outside of the client that led to it."""
    for text in answer.get("warnings") or ():
        warnings.warn(str(text), category, stacklevel=_outer_level())


def _outer_level() -> int:
    """Return how many calls above its caller the first one is that is not of the client, as a level of `warnings.warn`."""
    package, level = __name__.removesuffix("errors"), 1
    frame = sys._getframe(1)  # noqa: SLF001 - as warnings.warn does
    while frame.f_back and f"{frame.f_globals.get('__name__')}.".startswith(package):
        frame, level = frame.f_back, level + 1
    return level


def load_package(name: str, purpose: str) -> Any:
    """Import a package that not everybody has.

    Args:
        name: Module to import.
        purpose: What needs it, for the message.

    Raises:
        MissingPackage: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0].replace("PIL", "pillow")
        raise MissingPackage(f"{purpose} needs {package}: pip install {package}") from error
