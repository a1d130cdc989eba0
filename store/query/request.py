"""Request bodies and URLs of queries and counts, and cursors of their pages."""

import base64
import time
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from blake3 import blake3
from msgspec import inspect

from quadriga.store.query.filters import chariot_form, forms
from quadriga.store.query.filters.syntax import Filter
from quadriga.store.query.sql.search import IdRange
from quadriga.store.records.errors import JSON_ERRORS, QueryError

MAX_OFFSET = 100_000
"""Maximum matches that an offset skips: a cursor reaches further, at the cost of the first page."""

_NUMBERS = ("limit", "values", "bins")
Order = Literal["-ts", "ts"]
_Body = TypeVar("_Body", bound=msgspec.Struct)
_Decoded = TypeVar("_Decoded")


class Pagination(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pagination of Chariot's clients."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    offset: int = 0
    sort: str = "created_at"
    direction: str = "descending"


class QueryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of a query."""

    where: Any = None
    """A filter as JSON or as text, see `quadriga.store.query.filters.forms`."""
    order: Order = "-ts"
    """Order of the results: newest or oldest first."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: str | None = None
    """Cursor of the previous page; valid for the same filter and order."""
    count: Literal["none", "capped", "exact"] | None = None
    """Whether to count all matches; `capped` stops at 10,001."""
    consistency: Literal["journal"] | None = None
    """`journal` waits until everything acknowledged so far can be found."""
    pagination: Pagination | None = None
    """Pagination in place of `limit` and `order`, which `decode_query` sets to it."""

    @property
    def offset(self) -> int:
        """Number of matches to skip before the page; a page that a cursor begins skips none."""
        return 0 if self.pagination is None or self.cursor is not None else self.pagination.offset

    def parse_filter(self, now_us: int | None = None) -> Filter:
        """Parse the filter or raise a `QueryError`; `now_us` is the current time, in microseconds since 1970."""
        now_us = time.time_ns() // 1000 if now_us is None else now_us
        return forms.parse(self.where, now_us)


class CountRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of a count."""

    where: Any = None
    consistency: Literal["journal"] | None = None
    """Whether everything acknowledged so far is awaited, as by a query."""
    pagination: Pagination | None = None
    """Pagination of the query that is counted, which changes nothing: Chariot's clients send the same body."""


def decode_query(body: bytes) -> QueryRequest:
    """Decode the body of a query, as `decode_body`; an empty body matches everything."""
    request = decode_body(body, QueryRequest)
    pagination = request.pagination
    if pagination is None:
        return request
    if not 0 <= pagination.offset <= MAX_OFFSET:
        raise QueryError(
            f"expected pagination.offset to be from 0 to {MAX_OFFSET:,}, got {pagination.offset}: further pages "
            "follow by cursor; send the cursor that the page before answered"
        )
    if pagination.offset and request.cursor is not None:
        raise QueryError("pagination.offset and cursor cannot be used together")
    order = {"ascending": "ts", "asc": "ts", "descending": "-ts", "desc": "-ts"}
    if pagination.direction.lower() not in order or pagination.sort.lower() != "created_at":
        raise QueryError(
            f"expected pagination to sort by created_at, {' or '.join(order)}, "
            f"got {pagination.sort[:80]!r}, {pagination.direction[:80]!r}"
        )
    return msgspec.structs.replace(
        request, limit=pagination.limit, order=order[pagination.direction.lower()]
    )


def decode_count(body: bytes) -> QueryRequest:
    """Decode the body of a count, as `decode_body`."""
    request = decode_body(body, CountRequest)
    return QueryRequest(where=request.where, consistency=request.consistency)


def query_from_url(query: str) -> QueryRequest:
    """Parse the query of a URL, or raise a `QueryError`; see `forms.split_url`."""
    return request_from_url(query, QueryRequest, forms.URL_OPTIONS)


def request_from_url(query: str, struct: type[_Body], names: Sequence[str] | None = None) -> _Body:
    """Parse the query of a URL into a request with a filter and options, or raise a `QueryError`.

    Options have some names: those of all fields but the filter, if `names` is None.
    """
    if names is None:
        names = [name for name in struct.__struct_fields__ if name != "where"]
    texts, options = forms.split_url(query, names)
    converted = {
        name: int(value) if value.isdecimal() and name in _NUMBERS and len(value) < 9 else value
        for name, value in options.items()
    }
    try:
        # Each text is parsed by itself, so that none can change the meaning of another.
        where = texts[0] if len(texts) == 1 else {"and": texts}
        return msgspec.convert({"where": where, **converted}, struct)
    except msgspec.ValidationError as error:
        raise QueryError(f"expected {field_names(struct, names)}, got: {error}") from error


def decode_body(body: bytes, struct: type[_Body]) -> _Body:
    """Decode the body of a request with a filter; an empty body is the default request.

    Raises:
        QueryError: The body is not JSON, or not such a request.
    """
    try:
        return decode_filtered(body or b"{}", struct)
    except JSON_ERRORS as error:
        names = ", ".join((field_names(struct), *chariot_form.NAMES))
        raise QueryError(
            f"expected the body to be a JSON object with {names}, got: {error}"
        ) from error


def decode_filtered(body: bytes, type_: type[_Decoded]) -> _Decoded:
    """Decode a body; if its type has a filter in `where`, Chariot's filters beside it become a part of it.

    Raises:
        msgspec.MsgspecError: The body is not JSON, or not of the type; or another of `JSON_ERRORS`.
    """
    has_filter = "where" in getattr(type_, "__struct_fields__", ())
    if not has_filter or not any(name.encode() in body for name in chariot_form.NAMES):
        return msgspec.json.decode(body, type=type_)
    return msgspec.convert(chariot_form.move_into_where(msgspec.json.decode(body)), type_)


def field_names(struct: type[msgspec.Struct], only: Collection[str] = ()) -> str:
    """Return the names of all or some fields of a struct, with their allowed words, for messages."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return ", ".join(
        f"{field.encode_name}{_allowed_words(field.type)}"
        for field in info.fields
        if not only or field.encode_name in only
    )


def _allowed_words(type_: inspect.Type) -> str:
    for member in type_.types if isinstance(type_, inspect.UnionType) else (type_,):
        value_type = member.item_type if isinstance(member, inspect.ListType) else member
        if isinstance(value_type, inspect.LiteralType):
            return f" ({', '.join(map(str, value_type.values))})"
    return ""


def query_digest(request: QueryRequest) -> str:
    """Return a digest that distinguishes queries whose pages do not continue each other."""
    # The last three were filters once: cursors of 0.2.0 are still answered.
    identity: tuple[Any, ...] = (request.order, request.where or {}, [], None, None)
    return str(blake3(msgspec.json.encode(identity, order="sorted")).hexdigest(length=8))


def encode_cursor(seq: int, query: str) -> str:
    """Return the cursor of the page that begins after an id."""
    return base64.urlsafe_b64encode(f"{seq}.{query}".encode()).decode().rstrip("=")


def cursor_range(request: QueryRequest, query: str) -> IdRange:
    """Return the range of ids of the page that a cursor begins.

    Raises:
        QueryError: The cursor does not belong to this query.
    """
    if request.cursor is None:
        return IdRange()
    try:
        padding = "=" * (-len(request.cursor) % 4)
        text = base64.b64decode(request.cursor + padding, altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise QueryError("expected cursor to be one that a page gave, got another text") from error
    seq, _, digest = text.partition(".")
    if digest != query or not (seq.isascii() and seq.isdigit() and len(seq) < 20):
        raise QueryError(
            "the cursor belongs to another filter or order: begin again without a cursor"
        )
    return range_after(int(seq), request.order)


def range_after(seq: int, order: Order) -> IdRange:
    """Return the range of the ids that come after one in an order."""
    return IdRange().after(seq, descending=order == "-ts")
