"""What the filter line offers: every field and operator of the language with its meaning, and pages that carry it whatever their filter."""

import html
import json
import re
from urllib.parse import quote

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.filter_line import comparison_text, filter_words
from quadriga.store.database.database import migrate
from quadriga.store.query.filters.syntax import (
    FIELDS,
    OPERATORS,
    PROPERTIES,
    SIGNAL_FIELDS,
    kind_of,
)
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import QueryError
from tests.server_process import ROOT, SAMPLE_MODELS
from tests.unit.engine.console_harness import open_page

VALUES = {
    "id": "5",
    "time": "-1h",
    "number": "5",
    "review": "approved",
    "report": "1",
    "presence": "true",
    "hash": "cafe1234",
    "geo": "true",
}
EXAMPLES = {"label": "circle", "box": "score:ge:0.5", "geo": "51.5,-0.12,5km", "ground_truth": "exists:true", "feedback": "exists:true"}  # fmt: skip


def test_every_field_of_the_language_is_offered_with_its_meaning():
    fields = filter_words()["fields"]
    names = [name for name, _, _ in fields]
    assert len(names) == len(set(names))
    assert set(names) == {*FIELDS, *SIGNAL_FIELDS, "label", "best", "box", "geo"}
    assert all(words for _, _, words in fields)
    assert all(kind == (kind_of(name) or name) for name, kind, _ in fields)
    documented = (ROOT / "docs/query.md").read_text("utf-8").partition("## Operators")[0]
    assert all(f"`{name}`" in documented for name in names if not name.startswith("sig."))


def test_every_field_and_operator_that_is_offered_is_read():
    words = filter_words()
    for name, kind, _ in words["fields"]:
        beside = "" if kind != "cell" else "report=1 & "
        QueryRequest(where=f"{beside}{name}={EXAMPLES.get(name, VALUES.get(kind, 'a'))}").parse_filter()  # fmt: skip
        for operator, meaning in words["operators"][kind]:
            value = "true" if operator == "exists" else VALUES.get(kind, "a")
            assert meaning
            QueryRequest(where=f"{beside}{name}={operator}:{value}").parse_filter()
    assert {name for name, _ in words["properties"]} == {*PROPERTIES, "n"}
    for bound, _ in words["bounds"]:
        for name, _ in words["properties"]:
            QueryRequest(where=f"label=circle:{name}:{bound}:1").parse_filter()
    assert {kind for kind in words["operators"] if kind in OPERATORS} == OPERATORS.keys()


@pytest.mark.parametrize("value", ["in", "ne", "eq", "true", "false"])
def test_a_label_that_reads_as_an_operator_is_quoted(value):
    line = comparison_text("label", value)
    assert QueryRequest(where=line).parse_filter() == QueryRequest(where={"label": value}).parse_filter()  # fmt: skip


@pytest.mark.parametrize("line", ["", "label=ship", "it's \"<b>' & data-words='{}'", "'><script>alert(1)</script>", "\u202e", "x" * 3000])  # fmt: skip
def test_each_page_carries_the_words_and_its_filter(tmp_path, line):
    settings = Settings(models=str(SAMPLE_MODELS / "shapes-detector"), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    try:
        page = open_page(application, f"/console/inferences?q={quote(line)}")
    finally:
        application.close()
    field = re.search(r"<input name=\"q\" type=\"text\"[^>]*>", page.text)
    assert field is not None
    attributes = dict(re.findall(r' (data-[a-z]+)="([^"]*)"', field[0]))
    assert html.unescape(attributes["data-line"]) == line
    assert attributes["data-facets"] == "/api/inferences/facets?values=30&amp;bins=10"
    carried = re.search(r"data-words='([^']*)'", field[0])
    assert carried is not None
    assert json.loads(carried[1]) == json.loads(json.dumps(filter_words()))
    try:
        QueryRequest(where=line).parse_filter()
    except QueryError:
        assert page.status == 400
    else:
        assert page.status == 200
