"""What docs/coming-from.md names on this side is there: commands, endpoints, settings, methods of the client, filters."""

import re
import shlex

import pytest
from rich_click import Context, Group

from quadriga.client import Client
from quadriga.client.queries import Query
from quadriga.client.results import Result
from quadriga.engine.cli import main
from quadriga.engine.config.settings import Settings
from quadriga.proto.http.operations import expand_path
from quadriga.store.query.filters.forms import parse
from quadriga.tasks.predictions import Detection
from tests.pages import ROOT

PAGE = (ROOT / "docs" / "coming-from.md").read_text()
REFERENCE = (ROOT / "docs" / "protocols-reference.md").read_text().replace(r"\|", "\0")
ROWS = re.findall(r"^\| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
OURS = [right for _, right in ROWS if right != "here"]
TOKENS = sorted({token for cell in OURS for token in re.findall("`([^`]+)`", cell)})
FILES = {"model.toml", "labels.txt", "quadriga.toml", "MLmodel"}
PARAMETERS = {"content_type", "score_threshold", "max", "delay_ms"}
"""Parameters of requests and keys within a value; the pages that the links beside them lead to have them."""


def offered_endpoints() -> set[tuple[str, str]]:
    """Give the endpoints of the reference, which another test holds against the code, one path each."""
    rows = re.findall(r"^\| endpoint \|.*\n\|[-|]+\n((?:\|.*\n)+)", REFERENCE, re.MULTILINE)
    cells = re.findall(r"^\|([^|]*)\|", "".join(rows), re.MULTILINE)
    return {
        (verb, path)
        for cell in cells
        for endpoint in re.findall("`([^`]+)`", cell)
        for verb in endpoint.rpartition(" ")[0].split(", ")
        for path in expand_path(endpoint.replace("\0", "|").rpartition(" ")[2])
    }


ENDPOINTS = offered_endpoints()


def check_command(text: str) -> None:
    command, words = main, shlex.split(text)[1:]
    while isinstance(command, Group):
        command = command.get_command(Context(command), words.pop(0))
    command.make_context("quadriga", words)


def check_attribute(text: str) -> None:
    name, _, rest = text.partition(".")
    assert name == "client"
    value = Client("http://127.0.0.1:1", key="")
    for attribute in rest.split("."):
        value = getattr(value, attribute)
    assert callable(value)


def check_key_of_model_toml(table: str, key: str) -> None:
    """Another test holds the tables of docs/models.md against the code."""
    models = (ROOT / "docs" / "models.md").read_text()
    assert f"`{key}`" in models.partition(f"\n| `[{table}]`")[2].partition("\n| `[")[0]


@pytest.mark.parametrize("token", TOKENS)
def test_what_is_named_is_there(token, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()
    verb, _, path = token.partition(" ")
    table = re.fullmatch(r"\[(\w+)\] (\w+)", token)
    if token.startswith("quadriga "):
        check_command(token)
    elif verb in {"GET", "POST", "PUT", "DELETE"}:
        assert (verb, path) in ENDPOINTS
    elif token.startswith("client."):
        check_attribute(token)
    elif table:
        check_key_of_model_toml(*table.groups())
    elif token.endswith("()"):
        assert hasattr(Result, token[:-2]) or hasattr(Query, token[:-2])
    elif "=" in token:
        parse(token, now_us=0)
    elif token.startswith("QUADRIGA_…"):
        assert "`QUADRIGA_MAX_QUEUE`" in (ROOT / "docs" / "serving.md").read_text()
    elif token.startswith("OTEL_"):
        assert f"`{token}" in (ROOT / "docs" / "operations.md").read_text()
    elif token == "/console/":
        assert "/console/" in (ROOT / "docs" / "console.md").read_text()
    else:
        known = {*Settings.__struct_fields__, *Detection.__struct_fields__, *FILES, *PARAMETERS}
        assert token in known


def test_parameters_stand_on_the_pages_that_are_linked():
    for cell in OURS:
        for token, page in re.findall(r"\[`(\w+)`[^\]]*\]\(([\w-]+\.md)", cell):
            assert f"`{token}`" in (ROOT / "docs" / page).read_text() or token in REFERENCE, token


def test_each_section_says_what_is_not_here():
    sections = PAGE.split("\n## ")[1:]
    assert [section.partition("\n")[0] for section in sections] == [
        "Triton",
        "KServe",
        "MLServer",
        "Roboflow Inference",
        "FiftyOne",
    ]
    for section in sections:
        assert section.count("\nNot here: ") == 1
        assert section.count("\n| ") >= 8
