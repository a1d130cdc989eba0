"""Every error that the wire can answer, with its HTTP status and gRPC code.

ProtocolError
├── InvalidRequest        400  INVALID_ARGUMENT   something in the request is wrong
├── Unauthenticated       401  UNAUTHENTICATED    no valid key
├── Forbidden             403  PERMISSION_DENIED  a valid key without this right
├── NotFound              404  NOT_FOUND          no such model, version or path
├── MethodNotAllowed      405  UNIMPLEMENTED      the path exists, the verb does not
├── KeyReused             409  ALREADY_EXISTS     the idempotency key was used with another request
├── Unsupported           501  UNIMPLEMENTED      known, and not offered
├── TooSlow               408  DEADLINE_EXCEEDED  the body does not arrive in time
├── TooLarge              413  RESOURCE_EXHAUSTED the body passes the limit
├── UnsupportedMediaType  415  INVALID_ARGUMENT   the body is in a form or a coding that is not read
├── LimitReached          429  RESOURCE_EXHAUSTED the key has used up a limit of its own
├── KeysNotRead           503  UNAVAILABLE        whether the key is valid is not known before the database answers
├── ModelNotReady         503  UNAVAILABLE        loading, it failed to load, or it crashes
├── Overloaded            503  UNAVAILABLE        the server holds too much, or the store cannot keep it
│   ├── WaitTooLong       503  UNAVAILABLE        the queue of the model is too long
│   ├── TooManyCalls      503  RESOURCE_EXHAUSTED the server answers as many calls as it may
│   └── IntakeFull        503  UNAVAILABLE        the bodies of all requests together are too large
├── DeadlineExceeded      503  DEADLINE_EXCEEDED  the time of the request is over
├── ClientLeft            503  CANCELLED          the client closed the connection or cancelled; nobody reads it
└── InternalError         500  INTERNAL           a fault of ours
    └── ModelFailed       500  INTERNAL           the model's graph failed, or its outputs cannot be read

Functions that read a part of a request raise `InvalidRequest`, whose text names the location, the expected and the
actual value. Lower errors (`tasks`, `store`) are translated into these once, in `quadriga.engine.serving.model_request`;
those of the store that are answered as they are have a status, too. How a request that ended with an error is counted
follows from its class: `quadriga.proto.request.outcome_of_error`.
"""

from collections.abc import Sequence
from typing import ClassVar

from quadriga.quoting import quoted


class ProtocolError(Exception):
    """Base of all errors with a status, which each class names in its head; the message is for the client."""

    status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    closes: ClassVar[bool] = False
    """Whether the response ends the connection, as the rest of the request is not read."""

    def __init_subclass__(cls, *, status: int = 0, grpc_code: str = "") -> None:
        cls.status, cls.grpc_code = status or cls.status, grpc_code or cls.grpc_code

    def __init__(self, message: str = "", retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """Whole seconds after which the client may try again; answered with the statuses 429 and 503."""


class InvalidRequest(ProtocolError, status=400, grpc_code="INVALID_ARGUMENT"):
    """The request is malformed or asks for something that does not exist."""


def unexpected(location: str, expected: str, got: object, limit: int = 60) -> InvalidRequest:
    """Return the error of a wrong value in a request, of which the text quotes the first `limit` characters."""
    return InvalidRequest(f"{location}: expected {expected}, got {quoted(got, limit)}")


class Unauthenticated(ProtocolError, status=401, grpc_code="UNAUTHENTICATED"):
    """The request presents no valid key, where one is needed."""


class Forbidden(ProtocolError, status=403, grpc_code="PERMISSION_DENIED"):
    """The key is valid, and has not the right that the request needs."""


class KeysNotRead(ProtocolError, status=503, grpc_code="UNAVAILABLE"):
    """The server has not read its keys yet, since the database does not answer."""


class NotFound(ProtocolError, status=404, grpc_code="NOT_FOUND"):
    """The model, version or path is unknown."""


class MethodNotAllowed(ProtocolError, status=405, grpc_code="UNIMPLEMENTED"):
    """The path does not support this verb."""

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow
        """Verbs that the path supports, for the header `Allow`."""


class KeyReused(ProtocolError, status=409, grpc_code="ALREADY_EXISTS"):
    """The idempotency key of the request was used with another request."""


class Unsupported(ProtocolError, status=501, grpc_code="UNIMPLEMENTED"):
    """A part of the protocol that this server does not offer."""


class TooSlow(ProtocolError, status=408, grpc_code="DEADLINE_EXCEEDED"):
    """The body does not arrive in the time that it has."""

    closes = True


class TooLarge(ProtocolError, status=413, grpc_code="RESOURCE_EXHAUSTED"):
    """The body is larger than the server accepts."""


class UnsupportedMediaType(ProtocolError, status=415, grpc_code="INVALID_ARGUMENT"):
    """The body has a content type or a content coding that this server does not read.

    Source: RFC 9110, section 15.5.16.
    """


class LimitReached(ProtocolError, status=429, grpc_code="RESOURCE_EXHAUSTED"):
    """The key of the request has used up one of its limits.

    Args:
        message: Text for the client.
        retry_after_s: Whole seconds after which it has something again.
        headers: Headers that describe the limit.
    """

    def __init__(
        self, message: str, retry_after_s: int, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(message, retry_after_s)
        self.headers = headers


class ModelNotReady(ProtocolError, status=503, grpc_code="UNAVAILABLE"):
    """The model is known, but is not loaded, or is refused for `retry_after_s` seconds."""


class Overloaded(ProtocolError, status=503, grpc_code="UNAVAILABLE"):
    """The server has as much work as it may hold."""


class WaitTooLong(Overloaded):
    """The request would wait too long for a thread."""


class TooManyCalls(Overloaded, grpc_code="RESOURCE_EXHAUSTED"):
    """The server answers as many calls at a time as it may."""


class DeadlineExceeded(ProtocolError, status=503, grpc_code="DEADLINE_EXCEEDED"):
    """The request takes more time than it has."""


class ClientLeft(ProtocolError, status=503, grpc_code="CANCELLED"):
    """The client no longer waits for the answer."""


class IntakeFull(Overloaded):
    """The process holds as many bytes of bodies as it may."""

    closes = True


class InternalError(ProtocolError):
    """A fault of the server or of the model, not of the request."""


class ModelFailed(InternalError):
    """The model failed: its graph did, or its outputs are not what they should be."""


def translate_recursion_error(error: Exception) -> Exception:
    """Map a RecursionError to InvalidRequest; return other errors unchanged.

    Only JSON has no limit of nesting of its own: a document that its decoder accepts may be too deep for later stages.
    """
    if isinstance(error, RecursionError):
        return InvalidRequest("expected JSON that is nested less deeply")
    return error
