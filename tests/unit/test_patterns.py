"""Regular expressions read a client's text in one pass: none can be made to try each division of it.

Two unbounded repeats that share characters, with nothing certain between them, divide n characters in n ways. A search
whose pattern begins with an unbounded repeat scans what is left of the text from each of its characters.
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from re import _constants as codes  # the only way to the parsed form of a pattern
from re import _parser as parser

import pytest

from quadriga.proto.http.operations import WireOptions, all_operations, path_pattern

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "extras", "proto", "tasks", "store", "monitor")
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)
MANY = 1000
"""A repeat of fewer characters is bounded."""
CHARACTERS = {chr(code) for code in range(256)}
ASSERTIONS = (codes.AT, codes.ASSERT, codes.ASSERT_NOT)
SEARCHES = re.compile(r"\b(\w+)\.(?:search|finditer|findall|sub|split)\(")


def characters(code, argument):
    """Return those of Latin-1 that one character of a pattern matches."""
    subpattern = parser.SubPattern(parser.State(), [(code, argument)])
    pattern = re._compiler.compile(subpattern)
    return {character for character in CHARACTERS if pattern.match(character)}


def alone(items):
    """Return the characters of which a part of a pattern matches some number in a row."""
    needed, optional = [], set()
    for code, argument in items:
        inner = parts(code, argument)
        matched = set().union(*map(alone, inner)) if inner else set()
        if code in (codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY):
            matched = characters(code, argument)
        if code in ASSERTIONS or (code in REPEATS and argument[0] == 0):
            optional |= matched
        else:
            needed.append(matched)
    return set.intersection(*needed) if needed else optional


def parts(code, argument):
    """Return the alternatives inside of one item of a pattern."""
    if code in REPEATS:
        return [argument[2]]
    if code is codes.SUBPATTERN:
        return [argument[3]]
    if code is codes.BRANCH:
        return argument[1]
    return []


def follow(items, shared):
    """Return the characters that an unbounded repeat may leave to what follows, or raise where another takes them."""
    for code, argument in items:
        inner = parts(code, argument)
        if code in REPEATS:
            least, most, body = argument
            after = follow(body, shared)
            if most >= MANY:
                repeated = alone(body)
                if shared & repeated:
                    raise ValueError(f"two repeats of {min(shared & repeated)!r}")
                follow(body, after)
                after = after | repeated
            shared = after | shared if least == 0 else after
        elif inner:
            shared = set().union(*(follow(alternative, shared) for alternative in inner))
        elif code not in ASSERTIONS:
            shared = shared & characters(code, argument)
    return shared


def begins_with_repeat(items):
    """Whether a pattern begins with an unbounded repeat, and goes on."""
    code, argument = items[0]
    if code in (codes.SUBPATTERN, codes.BRANCH):
        return any(begins_with_repeat([*inner, *items[1:]]) for inner in parts(code, argument))
    return code in REPEATS and argument[1] >= MANY and len(items) > 1


def problem(pattern, *, searched=False):
    """Describe how a client could make a pattern take long; empty if it cannot."""
    items = list(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE))
    if searched and items and begins_with_repeat(items):
        return "a search that begins with a repeat"
    try:
        follow(items, set())
    except ValueError as error:
        return str(error)
    return ""


def compiled(value: object) -> Iterator[re.Pattern]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        yield from compiled(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for element in value:
            yield from compiled(element)


def modules():
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "re.compile(" in text and "migrations" not in path.parts:
                name = ".".join(["quadriga", *path.relative_to(ROOT).with_suffix("").parts])
                yield pytest.param(name, text, id=name)


@pytest.mark.parametrize(("name", "text"), [*modules()])
def test_no_pattern_divides_a_text_in_many_ways(name, text):
    searched = set(SEARCHES.findall(text))
    problems = {
        (attribute, pattern.pattern): text
        for attribute, value in vars(importlib.import_module(name)).items()
        for pattern in compiled(value)
        if (text := problem(pattern, searched=attribute in searched))
    }
    assert problems == {}


def test_no_path_is_divided_in_many_ways():
    operations = all_operations(None, WireOptions(server_version="1"))
    assert [row.path for row in operations if problem(path_pattern(row.path))] == []


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"[0-9]+\.?[0-9]*", r"(a+)*b", r"(?:a|b)*[ab]*c", r"\s*(x?)\s*y", r"a+a+", r"\w+\d\w*!"),
        *(r"(?:x|a+)(?:a*)?b", r"(\w+,?)+;"),
    ],
)
def test_divisions_are_seen(pattern):
    assert problem(re.compile(pattern))


@pytest.mark.parametrize(
    "pattern",
    [r"[0-9]+(\.[0-9]*)?", r"(\.[a-z]+)+", r'(?:"(?:[^"\\]|\\.)*"|[^"&])*', r"\s*\{", r"a{0,99}a*"],
)
def test_patterns_of_one_pass_are_accepted(pattern):
    assert problem(re.compile(pattern)) == ""


def test_searches_that_begin_with_a_repeat_are_seen():
    assert problem(re.compile(r"\s*(\w+),"), searched=True)
    assert problem(re.compile(r"No (\S+)|(\S+) is"), searched=True)
    assert problem(re.compile(r"(?<!\S)(\S+) is"), searched=True) == ""
    assert problem(re.compile(r"\w+"), searched=True) == ""
