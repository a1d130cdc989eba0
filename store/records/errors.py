"""Errors of the store; `status` is the HTTP status of the response.

StoreError               500  a fault of the server or its machine
├── QueryError           400  an invalid filter, cursor or query
├── ChangeError          400  an invalid change of stored data
├── MetadataError        400  metadata that breaks the rules of `quadriga.store.records.metadata`
├── OutOfScopeError      403  an action that touches more than the caller may see
├── NotFoundError        404  an inference that does not exist, or whose input was not stored
├── DamagedError         409  a stored file that is damaged, or that a newer version wrote
├── KeyReusedError       409  an idempotency key that another request has used
├── RevisionError        412  a change of a revision that is no longer current
├── NotReadyError        503  no database yet, or the writer is behind
│   ├── NotAppliedError  503  a change that is journaled, and not applied yet
│   ├── OtherVersionError 503 tables of another version, which this one may not use
│   └── MissingPartitionError 503 a month without a partition, which the server's user may not make
├── QueryTimeoutError    503  a query that took too long
├── QueryCancelledError  503  a query whose client left
├── TooManyJobsError     503  as many jobs wait as may
├── AuditError           503  what cannot be written to the audit log, as on a full disk
└── JournalError         503  a record or an image that cannot be stored, as on a full disk
    └── UnconfirmedError 503  journaled, but not yet as durable as the model's settings require
"""

import msgspec

JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions that decoding JSON text of others may raise."""

PYARROW_MISSING = "Parquet requires pyarrow: pip install 'quadriga[parquet]'"


class StoreError(Exception):
    """Base class of all errors that the store raises on purpose.

    Args:
        message: The text for clients, without anything of this machine.
        detail: Paths, hosts or the text of a library, for the log and for who runs a command.
    """

    status = 500

    def __init__(self, message: str = "", *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


def full_text(error: Exception) -> str:
    """Return the message of an error with its detail, for the log and for who runs a command."""
    detail = getattr(error, "detail", "")
    return f"{error} ({detail})" if detail else str(error)


class QueryError(StoreError):
    """The query is invalid."""

    status = 400


class ChangeError(StoreError):
    """The change is invalid."""

    status = 400


class MetadataError(StoreError):
    """The metadata breaks a rule of `quadriga.store.records.metadata`."""

    status = 400


class OutOfScopeError(StoreError):
    """The action touches more than the caller may see."""

    status = 403


class DamagedError(StoreError):
    """What the request is about cannot be read, as its file is damaged or a newer version wrote it."""

    status = 409


class KeyReusedError(StoreError):
    """The idempotency key of the request was used with another request."""

    status = 409


class NotFoundError(StoreError):
    """The requested item does not exist."""

    status = 404


class RevisionError(StoreError):
    """The revision that a request expects is not the current one."""

    status = 412


class NotReadyError(StoreError):
    """The store is not ready; the same request may succeed in a moment."""

    status = 503


class NotAppliedError(NotReadyError):
    """A change is journaled and will be applied; sent again, it is a second change."""

    is_journaled = True


class OtherVersionError(NotReadyError):
    """The tables are those of another version, and this one may not use them, or not yet."""


class MissingPartitionError(NotReadyError):
    """A month of PostgreSQL's tables has no partition, and the server's user may not make one."""


class QueryTimeoutError(StoreError):
    """The query took longer than its timeout."""

    status = 503


class QueryCancelledError(StoreError):
    """The query was ended, as nobody waits for its result."""

    status = 503

    def __init__(self) -> None:
        super().__init__("the query was cancelled, as its client left")


class TooManyJobsError(StoreError):
    """Too many jobs wait; the same request may succeed once some have ended."""

    status = 503
    retry_after_s = 30


class AuditError(StoreError):
    """The audit log cannot be written, so nothing is done that would have to be in it."""

    status = 503


class JournalError(StoreError):
    """The record or its image cannot be stored, so the inference must not be acknowledged."""

    status = 503


class UnconfirmedError(JournalError):
    """The record is journaled and may still be stored, but its durability is not confirmed."""
