"""Fields of the forms that pages send."""

from urllib.parse import parse_qs

from quadriga.store.records.errors import QueryError

_MAX_FIELDS = 20


def form_fields(body: bytes) -> dict[str, list[str]]:
    """Return the values of each field that is not empty, or raise a `QueryError`."""
    try:
        return parse_qs(body.decode(), max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise QueryError("expected a form in UTF-8 with few fields") from error


def single_field(fields: dict[str, list[str]], name: str) -> str:
    """Return the first value of a field, without space around it; empty without one."""
    return fields.get(name, [""])[0].strip()
