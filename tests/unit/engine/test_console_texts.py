"""Words of the console's pages: singular and plural, one name of who is not known, and keys that are told apart."""

import html
import json
import time

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.formats import percent, person
from quadriga.engine.console.frame import Frame
from quadriga.store.database.database import migrate
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import Feedback, JournaledChange, TruthStatement
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import open_page
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

FIRST = 700_000_000_000


@pytest.mark.parametrize(("n", "words"), [(0, "0 images"), (1, "1 image"), (1204, "1,204 images")])
def test_one_is_singular(n, words):
    parts = Frame("", has_store=True)._environment.get_template("parts.html.jinja").module
    assert str(parts.images(n)) == words


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0 %"),
        (1e-9, "less than 0.01 %"),
        (0.0099, "less than 0.01 %"),
        (0.01, "0.01 %"),
        (0.1, "0.1 %"),
        (12.345, "12.35 %"),
        (10.0, "10 %"),
        (100.0, "100 %"),
    ],
)
def test_a_share_that_is_not_nothing_is_not_zero(value, shown):
    assert percent(value) == shown


@pytest.mark.parametrize("failed", [0, 1])
def test_the_overview_says_what_share_failed(settings, server, failed):
    now_ms = time.time_ns() // 1_000_000
    records = [
        make_record(smallest_id_at(now_ms - 60_000) + n, status=500 if n < failed else 200)
        for n in range(4)
    ]
    store_entries(settings.database_url, settings.journal_directory, records)
    page = open_page(server, "/console/").text
    assert ("none in the last 24 hours" in page) is not bool(failed)
    assert ("25 % of the last 24 hours" in page) is bool(failed)
    assert "0.00 %" not in page


@pytest.mark.parametrize(
    ("name", "shown"), [("", "somebody"), ("anybody", "somebody"), ("mara", "mara"), ("nobody", "nobody")]
)  # fmt: skip
def test_who_is_not_known_is_somebody(name, shown):
    assert person(name) == shown


@pytest.fixture
def application(tmp_path):
    """Yield a server that needs no keys, on a store in which its caller has changed things."""
    settings = Settings(models=str(SAMPLE_MODELS), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    record = make_record(FIRST, predictions=[{"label": "star", "score": 0.5}])
    changes = [
        TruthStatement("id", str(FIRST), [{"label": "star"}], "anybody", task="OBJECT_DETECTION"),
        TruthStatement("id", str(FIRST), [], "", task="OBJECT_DETECTION"),
        Feedback(FIRST, "thumbs", 1.0, "", "anybody"),
    ]
    journaled = [JournaledChange(FIRST + 1 + number, change) for number, change in enumerate(changes)]  # fmt: skip
    store_entries(settings.database_url, settings.journal_directory, [record, *journaled])
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    yield application
    application.close()


def test_pages_of_a_server_without_keys_have_one_word_for_who_it_was(application):
    sent = {"content-type": "application/json"}
    body = json.dumps({"query": "label=star"}).encode()
    saved = open_page(application, "/api/views/stars", method="PUT", headers=sent, body=body)
    assert saved.status == 200
    inference = open_page(application, f"/console/inferences/{FIRST}").text
    assert "somebody stated the truth" in inference
    assert "somebody stated that nothing is there" in inference
    assert "somebody: thumbs 1" in inference
    assert '"Saved by">somebody</td>' in open_page(application, "/console/views").text
    audit = open_page(application, "/console/audit").text
    assert '"Who">somebody</td><td data-head="Action"><code' in audit
    for page in (audit, *(open_page(application, path).text for path in ("/console/", "/console/views"))):  # fmt: skip
        assert "anybody" not in page


def test_access_keys_and_shortcuts_are_told_apart(application):
    page = open_page(application, f"/console/inferences/{FIRST}").text
    assert 'data-key="k">API keys</a>' in page
    assert "data-help>Shortcuts <kbd>?</kbd>" in page
    assert "<h1>API keys</h1>" in html.unescape(open_page(application, "/console/keys").text)
