"""Whatever is asked is refused or answered: never an error of ours, on either database."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.query.filters.syntax import FIELDS
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import decode_count, decode_query, query_from_url
from quadriga.store.records.errors import QueryError
from quadriga.store.records.ids import smallest_id_at
from tests.unit.store_harness import store_entries

STRINGS = [
    "'; DROP TABLE inference; --", '"; DROP TABLE inference; --', "' OR '1'='1", "%s", "%", "%%s", "?", "??", ":a",
    "$1", "{0}", "{", "\\", "\\'", "\\u0000", "/* */", "--", ".*", "(a+)+$", "a" * 60_000, "\u202e", "\ufffe", "\U0010ffff",
    "NaN", "Infinity", "null", "9" * 400, "-0", "1e400", "00", "0x10", "1_000", "٣", "", " ", "\t\n", "x\x00y", "\x00",
]  # fmt: skip
NUMBERS = ["0", "-0", "-0.0", "1e308", "-1e308", "1e309", "5e-324", "9223372036854775807", "-9223372036854775808",
           "9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616",
           "1" * 400, "1" * 5000, "9007199254740993", "1.0000000000000000000001", "true", "false", "null"]  # fmt: skip
OPERATORS = ["eq", "ne", "gt", "ge", "lt", "le", "contains", "in", "exists"]
NAMES = [*FIELDS, "meta.a", "std.a", "meta." + "a." * 100 + "a", "label", "box", "geo"]


@pytest.fixture
def inferences(database_url: str, tmp_path: Path, record) -> Iterator[InferenceReader]:
    values: list[Any] = [STRINGS[0], "\ufffe", 1 << 62, 5e-324, 1e308, True, -0.0, {"a": 1}, ["a"]]
    writer = store_entries(database_url, tmp_path / "journal", [
        record(smallest_id_at(1_770_000_000_000) + number, metadata={"a": value}, standard={"a": value},
               predictions=[{"label": value, "score": value, "answer": value, "xmin": value}])
        for number, value in enumerate(values)
    ])  # fmt: skip
    assert (writer.records_committed, writer.records_rejected) == (len(values), 0)
    reader = InferenceReader(database_url, tmp_path / "journal", FileBlobs(tmp_path / "blobs"))
    yield reader
    reader.close()


def ask(inferences: InferenceReader, body: bytes) -> int | None:
    """Return how many were found, None where that was refused in words that can be answered."""
    try:
        return len(inferences.query(decode_query(body)).inferences)
    except QueryError as error:
        str(error).encode()
        return None


def test_any_value_of_any_field(inferences: InferenceReader) -> None:
    operands = [msgspec.json.encode(text).decode() for text in STRINGS] + NUMBERS
    for at, name in enumerate(NAMES):
        for operator in OPERATORS:
            # Every value for metadata; the others take turns.
            for operand in operands if name == "meta.a" else operands[at % 7 :: 7]:
                value = f"[{operand}]" if operator == "in" else operand
                ask(inferences, f'{{"where": {{"{name}": {{"{operator}": {value}}}}}}}'.encode())
    for name in ("label", "geo"):
        for operand in [*operands, *(f'{{"name": {operand}}}' for operand in operands)]:
            ask(inferences, f'{{"where": {{"{name}": {operand}}}}}'.encode())
    assert ask(inferences, b"{}") == 9


def test_any_text_as_a_name_or_a_filter(inferences: InferenceReader) -> None:
    for text in STRINGS:
        ask_everywhere(inferences, text)
    assert ask(inferences, b"{}") == 9


def ask_everywhere(inferences: InferenceReader, text: str) -> None:
    quoted = msgspec.json.encode(text).decode()
    for field in (quoted, f'"meta.{quoted[1:]}', f'"std.{quoted[1:]}'):
        ask(inferences, f'{{"where": {{{field}: 1}}}}'.encode())
        ask(inferences, f'{{"where": {{{field}: {{"exists": true}}}}}}'.encode())
    ask(inferences, f'{{"where": {quoted}}}'.encode())
    ask(inferences, f'{{"cursor": {quoted}}}'.encode())
    ask(inferences, f'{{"metadata_filter": [{{"key": {quoted}, "value": {quoted}}}]}}'.encode())
    for query in (f"meta.a={text}", f"{text}=1", f"q={text}", f"label={text}:ge:1", f"geo={text}"):
        try:
            inferences.query(query_from_url(quote(query, safe="=")))
        except QueryError as error:
            str(error).encode()


DEEP = b"[" * 900 + b"]" * 900


BODIES = [
    b'{"where": {"geo": ' + DEEP + b"}}",
    b'{"where": {"meta.a": ' + DEEP + b"}}",
    b'{"where": {"box": ' + DEEP + b"}}",
    b'{"where": ' + b'{"not": ' * 900 + b"{}" + b"}" * 900 + b"}",
    b'{"where": {"geo": {"polygon": ' + DEEP + b"}}}",
    b'{"where": {"geo": {"near": [1, ' + b"1" * 5000 + b'], "within": "5km"}}}',
    b'{"where": ' + b"1" * 5000 + b"}",
    b'{"where": {"label": {"name": "a", "score": ' + b"1" * 5000 + b"}}}",
    b'{"where": {"geo": {"polygon": [[0, 0], [0, 0], [0, 0]]}}}',
    b'{"where": {"geo": {"polygon": [[90, 0], [-90, 0], [90, 180]]}}}',
    b'{"where": {"geo": {"near": [90, 0], "within": "999999999km"}}}',
    b'{"where": {"geo": {"box": [-90, 180, 90, -180]}}}',
    b'{"where": {"ts": {"ge": "9999-12-31T23:59:59.999999Z"}}}',
    b'{"where": {"ts": {"ge": "0001-01-01T00:00:00+23:59"}}}',
    b'{"where": {"ts": {"in": ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]}}}',
    b'{"where": {"label": {"name": {"in": []}, "n": 0}}}',
    b'{"where": "\\ud800"}',
    b'{"where": {"meta.a": {"in": [' + b"1," * 999 + b"1]}}}",
    b'{"where": {"meta.a": {"in": [' + b"1," * 1000 + b"1]}}}",
    b'{"time_range": {"start": ""}}',
    b'{"gps_box": {"min_lat": 1e308, "min_lon": 0, "max_lat": 0, "max_lon": 0}}',
    b'{"pagination": {"direction": "up"}}',
]


def test_what_is_deep_long_or_at_the_edge(inferences: InferenceReader) -> None:
    for body in BODIES:
        ask(inferences, body)
        try:
            inferences.count(decode_count(body))
        except QueryError as error:
            str(error).encode()
