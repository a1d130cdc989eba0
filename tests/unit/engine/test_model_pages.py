"""The page of a model: a file that was replaced under its version is told from the one that answers now."""

import html
import json
import re

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.commands.server import model_cells
from quadriga.engine.config.settings import Settings
from quadriga.store.database.database import migrate
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import ModelReference
from tests.onnx_models import COLOURS_TOML, classifier, doubling, tripling
from tests.unit.engine.console_harness import open_page
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

START_MS = 1_790_000_040_000
"""A whole minute."""

MINUTE_MS = 60_000
OLD, NEVER_SERVED = "ab" * 32, "cd" * 32


@pytest.fixture
def served(tmp_path):
    """Yield a server of version 1, whose file was replaced, and the hash of its file; version 3 was removed."""
    colours = classifier(tmp_path / "models" / "colours" / "model.onnx")
    (colours.parent / "model.toml").write_text(COLOURS_TOML)
    doubling(tmp_path / "models" / "gauge" / "1" / "model.onnx")
    tripling(tmp_path / "models" / "gauge" / "2" / "model.onnx")
    settings = Settings(models=str(tmp_path / "models"), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    application.repository.load_all()
    new = application.repository.get("gauge", "1").sha256
    files = [("1", OLD)] * 3 + [("1", new)] * 2 + [("3", NEVER_SERVED)]
    records = [
        make_record(
            smallest_id_at(START_MS + number * MINUTE_MS),
            model=ModelReference("gauge", version, sha256),
            task="TENSOR",
        )
        for number, (version, sha256) in enumerate(files)
    ]
    all_scores = [{"label": "red", "score": 0.7}, {"label": "blue", "score": 0.3}]
    of_colours = make_record(
        smallest_id_at(START_MS),
        model=ModelReference("colours", "1", "ef" * 32),
        task="IMAGE_CLASSIFICATION",
        predictions=all_scores,
    )
    store_entries(settings.database_url, settings.journal_directory, [of_colours, *records])
    yield application, new
    application.close()


def rows(page: str) -> list[str]:
    """Return the rows of the table of versions as texts, with `|` between the cells."""
    table = re.search(r"<tbody>(.*?)</tbody>", page, re.DOTALL)
    assert table is not None
    return [
        "|".join(re.sub(r"<[^>]*>", "", cell).strip() for cell in re.split(r"</t[hd]>", row))
        for row in re.findall(r"<tr>(.*?)</tr>", table[1], re.DOTALL)
    ]


def test_a_replaced_file_is_told_from_the_one_that_answers_now(served):
    application, new = served
    page = open_page(application, "/console/models/gauge").text
    first, second, third, fourth = sorted(rows(page), key=lambda row: (row[0], "replaced" in row))
    assert re.match(rf"1\|ready +now\|.*\|2\|21 September 14:17\|21 September 14:18:00\|{new[:12]}\|", first)  # fmt: skip
    assert re.match(rf"1\|replaced\|.*\|3\|21 September 14:14\|21 September 14:16:00\|{OLD[:12]}\|", second)  # fmt: skip
    assert re.match(r"2\|ready\|.*\|0\|–\|–\|", third)  # noqa: RUF001 - as the page has it
    assert re.match(rf"3\|not served\|.*\|1\|.*\|{NEVER_SERVED[:12]}\|", fourth)
    link = re.search(rf'<a href="([^"]*{OLD[:12]}[^"]*)">1</a>', page)
    assert link is not None
    assert "<b>3 inferences</b>" in open_page(application, html.unescape(link[1])).text


def test_inferences_without_a_file_are_not_those_of_a_replaced_one(tmp_path):
    doubling(tmp_path / "models" / "gauge" / "1" / "model.onnx")
    settings = Settings(models=str(tmp_path / "models"), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    application.repository.load_all()
    records = [
        make_record(smallest_id_at(START_MS + at), model=ModelReference("gauge", "1", sha256), task="TENSOR")
        for at, sha256 in enumerate(["", "", OLD])
    ]  # fmt: skip
    store_entries(settings.database_url, settings.journal_directory, records)
    page = open_page(application, "/console/models/gauge").text
    states = {row.split("|")[1]: row.split("|")[4] for row in rows(page)}
    assert {" ".join(state.split()): n for state, n in states.items()} == {
        "ready now": "0",
        "file unknown": "2",
        "replaced": "1",
    }
    links = re.findall(
        r'<th scope="row"><a href="([^"]*)">1</a></th>.*?<td class="num"[^>]*>(\d)</td>', page
    )
    assert len(links) == 3
    for link, number in links:
        answer = open_page(application, html.unescape(link)).text
        assert f"<b>{number} inference" in answer
    application.close()


@pytest.mark.parametrize(("label", "found"), [("red", True), ("blue", False), ("green", False)])
def test_a_label_of_a_classifier_leads_to_what_it_takes_for_it(served, label, found):
    application, _ = served
    page = open_page(application, "/console/models/colours").text
    assert ">1 inference</a>" in page
    link = re.search(rf'<a class="chip plain" href="([^"]*)">{label}</a>', page)
    assert link is not None
    answer = open_page(application, html.unescape(link[1])).text
    assert ("<b>1 inference</b>" in answer) == found
    assert ("<b>0 inferences</b>" in answer) != found


def test_files_of_one_version_are_counted_as_one(served):
    application, _ = served
    page = open_page(application, "/console/models").text
    row = next(row for row in rows(page) if row.startswith("gauge"))
    assert row.split("|")[2] == "3"


def test_the_list_of_models_says_since_when_each_file_answered(served):
    application, new = served
    answer = json.loads(open_page(application, "/api/models/gauge").text)
    said = {
        (version["version"], version["sha256"]): (version["first_at"], version["last_at"], version["is_replaced"])
        for version in answer["versions"]
    }  # fmt: skip
    assert said["1", OLD] == ("2026-09-21T14:14:00.000Z", "2026-09-21T14:16:00.000Z", True)
    assert said["1", new] == ("2026-09-21T14:17:00.000Z", "2026-09-21T14:18:00.000Z", False)
    assert said["3", NEVER_SERVED][2] is False
    assert [version for (version, _), (first, *_) in said.items() if first is None] == ["2"]
    states = model_cells(answer)[2].split("\n")  # as `quadriga models` prints them
    assert sorted(states) == ["1 ready", "1 replaced", "2 ready", "3 not served"]
