"""The queue of what to label: its order and reasons, the way through it, the target, rights, teams and hostile names."""

import html
import re
from collections.abc import Iterator
from typing import get_args
from urllib.parse import quote

import pytest

from quadriga.engine.api.models import LastEvaluation, ModelEntry
from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.pages.label import expected_interval
from quadriga.monitor.report.schema import Metric
from quadriga.proto.access import ROLES, Role
from quadriga.store.database.database import migrate
from quadriga.store.records.records import JournaledChange, TruthStatement
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import Answer, keyed_server, open_page
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

HOSTILE = "</script><script>alert(1)</script>"
FIRST = 700_000_000_000
SCORES = {1: [("star", 0.9), ("ring", 0.85)], 2: [("star", 0.2), (HOSTILE, 0.1)], 3: [("ring", 0.6)], 4: [("star", 0.05)]}  # fmt: skip
RECORDS = [
    make_record(
        FIRST + number,
        team="b" if number == 3 else "a",
        metadata={"camera": "north"},
        predictions=[{"label": label, "score": score} for label, score in scores],
    )
    for number, scores in SCORES.items()
]
TRUTH = TruthStatement("id", str(FIRST + 4), [{"label": "star"}], "mara", task="OBJECT_DETECTION")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Application, dict[str, str]]]:
    """Yield a server with inferences, of which the fourth has truth, and a key of each role, and of a team."""
    settings = Settings(
        models=str(SAMPLE_MODELS), data=str(tmp_path_factory.mktemp("label") / "data")
    )
    migrate(settings.database_url)
    entries = [*RECORDS, JournaledChange(FIRST + 100, TRUTH)]
    store_entries(settings.database_url, settings.journal_directory, entries)
    with keyed_server(settings, team={"roles": ["annotate"], "team": "b"}) as keyed:
        yield keyed


def show(keyed: tuple[Application, dict[str, str]], path: str, role: str = "annotate") -> Answer:
    server, keys = keyed
    return open_page(server, f"/console/{path}", headers={"authorization": f"Bearer {keys[role]}"})


def listed(page: Answer) -> list[int]:
    """Return the numbers of the rows."""
    found = re.findall(r'<th scope="row"><a href="/console/inferences/(\d+)', page.text)
    return [int(id_) - FIRST for id_ in found]


@pytest.mark.parametrize("role", get_args(Role))
@pytest.mark.parametrize("path", ["label", "label/next"])
def test_only_who_may_annotate_has_the_queue(keyed, role, path):
    may_annotate = "annotate" in ROLES[role]
    expected = (303 if path == "label/next" else 200) if may_annotate else 403
    assert show(keyed, path, role).status == expected
    if "read" in ROLES[role]:
        assert ("/console/label" in show(keyed, "inferences", role).text) == may_annotate
        grid = show(keyed, "inferences?view=grid", role).text
        assert "data-find" in grid  # who reads chooses and finds, and tags nothing
        assert ("data-tag>" in grid, "data-untag" in grid.replace("data-untagged", "")) == (
            may_annotate,
            may_annotate,
        )


def test_the_queue_says_why_and_leaves_out_what_has_truth(keyed):
    page = show(keyed, "label?q=meta.camera%3Dnorth")
    assert listed(page) == [2, 3, 1]
    assert "Best score 0.20, star" in page.text
    assert "3 without ground truth, all ranked." in page.text
    by_margin = show(keyed, "label?by=margin")
    assert listed(by_margin) == [1, 2, 3]
    assert "No second label" in by_margin.text
    assert HOSTILE not in by_margin.text
    assert html.escape(HOSTILE, quote=False) in by_margin.text
    assert sorted(listed(show(keyed, "label?by=random"))) == [1, 2, 3]


def test_a_filter_that_is_typed_or_removed_stays_on_the_page_with_its_order_and_target(keyed):
    page = show(
        keyed, "label?q=meta.camera%3Dnorth+%26+label%3Dstar&by=margin&target=5&done=2"
    ).text
    form = page[page.index('<form class="query-row"') :].partition("</form>")[0]
    assert 'action="/console/label"' in form
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
    assert dict(hidden) == {
        "by": "margin",
        "target": "5",
        "q": "meta.camera=north &amp; label=star",
    }
    removed = re.findall(r'<a href="([^"]+)" aria-label="Remove', form)
    assert html.unescape(removed[0]) == "/console/label?by=margin&target=5&q=label%3Dstar"
    # The form sends the filter of the page and what is typed as two parameters.
    typed = show(keyed, "label?by=margin&target=5&q=meta.camera%3Dnorth&q=label%3Dstar")
    assert typed.status == 303
    assert typed.headers["location"] == (
        "/console/label?q=meta.camera%3Dnorth+%26+label%3Dstar&by=margin&target=5"
    )
    assert listed(show(keyed, typed.headers["location"].removeprefix("/console/"))) == [1, 2]


@pytest.mark.parametrize(
    ("line", "words"),
    [("camera", "“camera” is compared with nothing"), ("model=gauge", "model not found"), ("(label=star", "closing parenthesis")],
)  # fmt: skip
def test_what_is_no_filter_is_said_on_the_page(keyed, line, words):
    page = show(keyed, f"label?by=margin&q={quote(line)}")
    assert page.status == 400
    assert words in html.unescape(page.text)
    assert 'action="/console/label"' in page.text
    assert 'class="field-error"' in page.text


def test_a_team_labels_its_own_alone(keyed):
    page = show(keyed, "label", "team")
    assert listed(page) == [3]
    assert "1 without ground truth" in page.text
    others = show(keyed, f"label/next?by=score&after={FIRST + 2}", "team")
    assert others.headers["location"].startswith(f"/console/inferences/{FIRST + 3}?")


def test_each_page_leads_to_the_next_and_the_last_one_back_to_the_queue(keyed):
    location, seen = "/console/label/next?by=score&q=meta.camera%3Dnorth&target=50&done=2", []
    for _ in range(len(SCORES)):
        answer = show(keyed, location.removeprefix("/console/"))
        assert answer.status == 303
        location = answer.headers["location"]
        if location.startswith("/console/label?"):
            break
        page = show(keyed, location.removeprefix("/console/"))
        seen.append(int(location.split("?")[0].rpartition("/")[2]) - FIRST)
        match = re.search(r'data-next="([^"]*)" data-previous=""', page.text)
        assert match is not None
        location = html.unescape(match[1])
    assert seen == [2, 3, 1]
    assert location == "/console/label?q=meta.camera%3Dnorth&by=score&target=50&done=2"


def test_what_was_labelled_counts_and_a_reached_target_ends_the_queue(keyed):
    labelled = show(keyed, f"label/next?by=score&target=3&done=1&after={FIRST + 4}")
    assert labelled.headers["location"].endswith("?by=score&target=3&done=2")
    skipped = show(keyed, f"label/next?by=score&target=3&done=1&after={FIRST + 2}")
    assert skipped.headers["location"] == (
        f"/console/inferences/{FIRST + 3}?by=score&target=3&done=1"
    )
    last = show(keyed, f"label/next?by=score&target=2&done=1&after={FIRST + 4}")
    assert last.headers["location"] == "/console/label?by=score&target=2&done=2"
    page = show(keyed, "label?by=score&target=2&done=2").text
    assert "2 of 2 labelled. The target is reached." in page


def test_after_what_was_deleted_meanwhile_the_queue_begins_anew(keyed):
    answer = show(keyed, "label/next?by=score&after=12345")
    assert answer.headers["location"] == f"/console/inferences/{FIRST + 2}?by=score"


@pytest.mark.parametrize(
    "query",
    ["target=-1", "target=99999999999", "target=%C2%B2", "done=x&target=many", "by=%3Cb%3E"],
)
def test_what_is_no_number_or_order_counts_as_left_out(keyed, query):
    page = show(keyed, f"label?by=score&{query}" if "by=" not in query else f"label?{query}")
    assert page.status == 200
    assert listed(page) == [2, 3, 1]
    assert "<progress" not in page.text


@pytest.mark.parametrize("query", ["q=(((", "by=score&after=x"])
def test_what_is_no_filter_or_id_is_refused(keyed, query):
    assert show(keyed, f"label/next?{query}").status == 400


def test_nothing_to_label_says_so(keyed):
    page = show(keyed, "label?q=meta.camera%3Dnowhere")
    assert page.status == 200
    assert "Nothing left to label." in page.text


def entry(name: str, metric: Metric | None, n: int = 100) -> ModelEntry:
    last = LastEvaluation("report", "2027-01-01T00:00:00Z", n, metric)
    return ModelEntry(
        name=name, id=f"m-{name}", served=True, task=None, versions=[], labels=[], label_count=0, inferences=1,
        errors=0, first_at=None, last_at=None, baseline=None, drift=None, evaluation=last,
    )  # fmt: skip


def test_what_more_truth_makes_of_the_interval_is_said():
    entries = [entry("ships", Metric("AP", 0.6, ci95=(0.5, 0.7))), entry("a b & c", None)]
    said = expected_interval(entries, "model=ships & meta.camera=north", 300)
    assert said == (
        "Last evaluation of ships: AP 0.600 (0.500 to 0.700) on 100 images. "
        "With 300 more it is known to about 0.050 on each side, instead of 0.100."
    )
    assert expected_interval(entries, "model=ships", 0).endswith("on 100 images.")
    for line in ("", "meta.model=ships", "model=ships | model=other", 'model="a b & c"', "model=x"):
        assert expected_interval(entries, line, 50) == ""
    unsure = [entry("ships", Metric("AP", 0.6, ci_reason="fewer than 30 images"), 3)]
    assert expected_interval(unsure, "model=ships", 50) == ""


@pytest.mark.parametrize(
    ("version", "is_pooled", "is_shown"),
    [("2", False, True), ("1", False, False), ("1, 2", True, False), ("2", True, False), ("", False, True)],
)  # fmt: skip
def test_a_number_is_that_of_a_version_only_if_it_is_of_this_one_alone(
    version, is_pooled, is_shown
):
    last = LastEvaluation("report", "", 40, None, version=version, is_pooled=is_pooled)
    assert last.is_of("2") is is_shown
