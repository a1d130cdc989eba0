"""Differences of the SQL of SQLite and PostgreSQL for JSON.

Row aliases: `i` is `inference`, `t` is `truth`, `m` is one JSON value, `p` a place. JSON with an escaped
NUL, which PostgreSQL rejects, is read as if it were U+FFFD, as in the tables of names.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

_UNREADABLE = r"'\u0000', '\ufffd'"


class SqlDialect(NamedTuple):
    """SQL fragments of one database; `{0}` stands for a name."""

    metadata: str
    """`FROM` clause with the value at a metadata path as `m`; binds the path."""
    standard: str
    """`FROM` clause with the value at a path of standard metadata as `m`; binds `standard_path(path)`."""
    standard_path: Callable[[str], tuple[Any, ...]]
    number: str
    """Number in `m`; NULL if it is not one, as for `text` and `boolean`."""
    text: str
    boolean: str
    present: str
    predictions: str
    """`FROM` clause with each prediction as `m`."""
    prediction_number: str
    """Number in a field of a prediction, or NULL."""
    prediction_text: str
    contour_extreme: str
    """Smallest or largest (`{1}`) x or y (`{0}`) of the contours of a prediction, or NULL."""
    annotation_labels: str
    """`FROM` clause with the label of each annotation of `t` as `m`."""
    contains: str
    float32: Callable[[str, int], str]
    """Number at an offset in bytes of a text of bytes, float32, little-endian, or NULL beyond its end."""
    in_list: str
    """Condition that an id is in a list as `render_ids` renders it, which it binds."""
    render_ids: Callable[[tuple[int, ...]], str]
    place: str
    """`FROM` clause with latitude and longitude as `p`; no row if there is no place."""
    bind_exact: Callable[[Any], Any]
    """Converts a number to the form in which it is compared exactly."""


def _json_path(path: str) -> tuple[Any, ...]:
    quoted = "".join(f'."{key}"' for key in path.split("."))
    return (f"${quoted}", f"${quoted}")


_LITE_META = "coalesce(i.meta_flat, i.meta)"
_ON_EARTH = "LIMIT 1 OFFSET 0) AS p WHERE abs(p.latitude) <= 90 AND abs(p.longitude) <= 180"
_SQLITE = SqlDialect(
    metadata=f"json_each({_LITE_META}) AS m WHERE m.key = ?",
    standard="(SELECT json_type(i.standard, ?) AS type, json_extract(i.standard, ?) AS value) AS m"
    " WHERE 1 = 1",
    standard_path=_json_path,
    number="CASE WHEN m.type IN ('integer', 'real') THEN m.value END",
    text="CASE WHEN m.type = 'text' THEN m.value END",
    boolean="CASE WHEN m.type IN ('true', 'false') THEN m.type END",
    present="m.type <> 'null'",
    predictions="json_each(CASE WHEN i.prediction_count IS NOT NULL"
    f" THEN replace(i.predictions, {_UNREADABLE}) END) AS m",
    prediction_number="CASE WHEN json_type(m.value, '$.{0}') IN ('integer', 'real')"
    " THEN json_extract(m.value, '$.{0}') END",
    prediction_text="CASE WHEN json_type(m.value, '$.{0}') = 'text'"
    " THEN json_extract(m.value, '$.{0}') END",
    contour_extreme="(SELECT {1}(e.value) FROM json_tree(m.value, '$.contour') AS e"
    " WHERE e.key = '{0}' AND e.type IN ('integer', 'real'))",
    annotation_labels=f"json_tree(replace(t.annotations, {_UNREADABLE})) AS m"
    " WHERE m.key = 'label' AND instr(m.path, '.') = 0",
    contains="instr({0}, ?) > 0",
    float32=lambda column, offset: f"float32_at({column}, {offset})",
    in_list="{0} IN (SELECT value FROM json_each(?))",
    render_ids=lambda ids: f"[{','.join(map(str, ids))}]",
    place=f"(SELECT json_extract({_LITE_META}, '$.latitude') AS latitude,"
    f" json_extract({_LITE_META}, '$.longitude') AS longitude"
    f" WHERE json_type({_LITE_META}, '$.latitude') IN ('integer', 'real')"
    f" AND json_type({_LITE_META}, '$.longitude') IN ('integer', 'real') {_ON_EARTH}",
    bind_exact=lambda value: value,
)


def _decimal(value: Any) -> Any:
    """Return a float as its shortest decimal, which is its form in the JSON of the table."""
    return Decimal(repr(value)) if isinstance(value, float) else value


def _float32_of_bytea(column: str, offset: int) -> str:
    """Return the number that four bytes stand for: there is no conversion, and of a double this one loses nothing."""
    low, middle, high, top = (f"get_byte({column}, {offset + place})" for place in range(4))
    sign = f"CASE WHEN {top} >= 128 THEN -1 ELSE 1 END"
    exponent = f"(({top} & 127) * 2 + ({high} >> 7))"
    fraction = f"((({high} & 127) << 16) + ({middle} << 8) + {low})"
    number = (
        f"({sign}) * (CASE WHEN {exponent} = 0 THEN {fraction} ELSE {fraction} + 8388608 END)"
        f" * power(CAST(2 AS double precision), greatest({exponent}, 1) - 150)"
    )
    return f"CASE WHEN length({column}) >= {offset + 4} THEN {number} END"


_POSTGRESQL = SqlDialect(
    metadata="(SELECT i.meta_flat -> CAST(? AS text) AS v OFFSET 0) AS m WHERE 1 = 1",
    standard=f"(SELECT CAST(replace(i.standard, {_UNREADABLE}) AS jsonb) #> CAST(? AS text[]) AS v"
    " OFFSET 0) AS m WHERE 1 = 1",
    standard_path=lambda path: (path.split("."),),
    number="CASE WHEN jsonb_typeof(m.v) = 'number' THEN CAST(m.v AS numeric) END",
    text="(CASE WHEN jsonb_typeof(m.v) = 'string' THEN m.v #>> '{}' END COLLATE \"C\")",
    boolean="CASE WHEN jsonb_typeof(m.v) = 'boolean' THEN m.v #>> '{}' END",
    present="jsonb_typeof(m.v) <> 'null'",
    predictions="jsonb_array_elements(CASE WHEN i.prediction_count IS NOT NULL"
    f" THEN CAST(replace(i.predictions, {_UNREADABLE}) AS jsonb) END) AS m(v)",
    prediction_number="CASE WHEN jsonb_typeof(m.v -> '{0}') = 'number'"
    " THEN CAST(m.v ->> '{0}' AS double precision) END",
    prediction_text="(CASE WHEN jsonb_typeof(m.v -> '{0}') = 'string' THEN m.v ->> '{0}' END COLLATE \"C\")",
    contour_extreme="(SELECT {1}(CAST(e.v #>> '{{}}' AS double precision))"
    " FROM jsonb_path_query(m.v, '$.contour[*][*].{0}') AS e(v) WHERE jsonb_typeof(e.v) = 'number')",
    annotation_labels=f"jsonb_path_query(CAST(replace(t.annotations, {_UNREADABLE}) AS jsonb), '$[*].label')"
    " AS m(v) WHERE 1 = 1",
    contains="strpos({0}, ?) > 0",
    float32=_float32_of_bytea,
    in_list="{0} = ANY(CAST(? AS bigint[]))",
    render_ids=lambda ids: f"{{{','.join(map(str, ids))}}}",
    place="(SELECT CAST(i.meta_flat ->> 'latitude' AS double precision) AS latitude,"
    " CAST(i.meta_flat ->> 'longitude' AS double precision) AS longitude"
    " WHERE jsonb_typeof(i.meta_flat -> 'latitude') = 'number'"
    f" AND jsonb_typeof(i.meta_flat -> 'longitude') = 'number' {_ON_EARTH}",
    bind_exact=_decimal,
)

DIALECTS = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL}
"""SQL dialect by the name of SQLAlchemy's dialect."""
