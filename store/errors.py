"""What can go wrong in the store; `status` is the HTTP status that the application answers.

StoreError            500  our own fault, or the machine's
├── QueryError        400  a filter, cursor or query that means nothing
├── ChangeError       400  a change of what is stored that cannot be understood
├── MetadataError     400  metadata that breaks the rules of `quadriga.store.metadata`
├── NotFoundError     404  no such inference, or its input was not kept
├── NotReadyError     503  no database yet, or the writer is behind
├── QueryTimeoutError 503  a query that took longer than it may
└── JournalError      503  a record or an image that could not be kept, as on a full disk
    └── Unconfirmed   503  journaled, but not yet as safe as the model's durability asks
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What is raised where text of others cannot be read."""

PYARROW_MISSING = "expected pyarrow for parquet, got none: pip install quadriga[parquet]"


class StoreError(Exception):
    """Anything that the store raises on purpose."""

    status = 500


class QueryError(StoreError):
    """The query cannot be understood."""

    status = 400


class ChangeError(StoreError):
    """The change cannot be understood."""

    status = 400


class MetadataError(StoreError):
    """The metadata breaks a rule of `quadriga.store.metadata`."""

    status = 400


class NotFoundError(StoreError):
    """What was asked for is not there."""

    status = 404


class NotReadyError(StoreError):
    """The store cannot answer yet; the same request may succeed in a moment."""

    status = 503


class QueryTimeoutError(StoreError):
    """The query took longer than it may."""

    status = 503


class JournalError(StoreError):
    """The record or its image could not be kept, so the inference may not be acknowledged."""

    status = 503


class UnconfirmedError(JournalError):
    """The record is journaled and may still be stored, but that is not certain yet."""


@contextmanager
def translate_disk_errors(what: str) -> Iterator[None]:
    """Say what could not be done to a file, as on a full disk.

    Raises:
        JournalError: It could not.
    """
    try:
        yield
    except OSError as error:
        raise JournalError(f"expected to {what}, got: {error.strerror}") from error
