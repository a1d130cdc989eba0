"""What can be done with all that the filter of the list finds: the count stands before, and tagging has a bound."""

import re

import pytest

from quadriga.engine.console.pages import inferences
from tests.unit.engine.console_harness import open_page
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

FIRST = 700_000_000_000


@pytest.fixture
def page(settings, server):
    records = [make_record(FIRST + n) for n in range(3)]
    store_entries(settings.database_url, settings.journal_directory, records)
    return lambda: open_page(server, "/console/inferences?view=grid").text


def test_each_action_says_how_many_it_is_about(page):
    text = page()
    for action in ("Tag", "Label", "Evaluate", "Export"):
        assert f">{action} all 3<" in text
    assert not re.search(r"data-select-all[^>]*disabled", text)


def test_more_than_the_bound_are_not_tagged_at_once(page, monkeypatch):
    monkeypatch.setattr(inferences, "MOST_TAGGED", 2)
    assert re.search(r"data-select-all[^>]* disabled title=\"At most 2 are tagged at once", page())
