"""More like this: the page, its links, who may open it, and what a team or a role does not see."""

import html
import re
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.proto.access import ROLES, Role
from quadriga.store.database.database import migrate
from quadriga.store.records.records import (
    ImageSignals,
    InputReference,
    JournaledChange,
    SignalsOfImages,
)
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import Answer, keyed_server, open_page
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

HOSTILE = "</script><script>alert(1)</script>"
FIRST = 700_000_000_000
ANGLES = {1: (1, 0), 2: (0, 1), 3: (1, 1), 4: (4, 1), 6: (1, 0)}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Application, dict[str, str]]]:
    """Yield a server with embeddings, and a key of each role, and of a team."""
    data = tmp_path_factory.mktemp("similar") / "data"
    settings = Settings(models=str(SAMPLE_MODELS), data=str(data))
    migrate(settings.database_url)
    records = [
        make_record(
            FIRST + number,
            team="b" if number == 6 else "a",
            input=InputReference("image", f"blake3:{number:064x}", 640, 480, "image/jpeg"),
            metadata={"camera": HOSTILE if number == 3 else "north"},
        )
        for number in range(1, 7)
    ]
    signals = [
        ImageSignals(FIRST + number, b"", np.array(angle, "<f2").tobytes(), "ab" * 8)
        for number, angle in ANGLES.items()
    ]
    change = JournaledChange(FIRST + 100, SignalsOfImages(signals))
    store_entries(settings.database_url, settings.journal_directory, [*records, change])
    with keyed_server(
        settings, **{team: {"roles": ["read"], "team": team} for team in "ab"}
    ) as keyed:
        yield keyed


def show(keyed: tuple[Application, dict[str, str]], path: str, key: str = "read") -> Answer:
    server, keys = keyed
    headers = {"authorization": f"Bearer {keys[key]}"}
    return open_page(server, f"/console/inferences/{path}", headers=headers)


def shown(page: Answer) -> list[int]:
    """Return the inferences of the page's cards, without the first, which the others are compared with."""
    ids = re.findall(r'<a class="shot [^"]*" href="/console/inferences/(\d+)', page.text)
    return [int(id_) - FIRST for id_ in ids][1:]


@pytest.mark.parametrize("role", get_args(Role))
def test_who_may_read_sees_the_most_similar_first(keyed, role):
    page = show(keyed, f"{FIRST + 1}/similar", role)
    if "read" not in ROLES[role]:
        assert page.status == 403
        return
    assert page.status == 200
    assert shown(page) == [6, 4, 3, 2]
    assert re.findall(r"similarity (-?[0-9.]+)", page.text) == ["1.000", "0.970", "0.707", "0.000"]
    assert "4 with an embedding of the same model were compared" in page.text
    assert page.text.count("<script") == 1
    assert HOSTILE not in page.text


def test_a_team_sees_its_own_alone(keyed):
    page = show(keyed, f"{FIRST + 1}/similar", "a")
    assert (page.status, shown(page)) == (200, [4, 3, 2])
    assert show(keyed, f"{FIRST + 1}/similar", "b").status == 404
    page = show(keyed, f"{FIRST + 6}/similar", "b")
    assert (page.status, shown(page)) == (200, [])
    assert "Nothing to compare with." in page.text


def test_the_filter_stays_and_can_be_left(keyed):
    inference = show(keyed, f"{FIRST + 1}?q=meta.camera%3Dnorth")
    link = re.search(rf'href="([^"]*)" rel="nofollow">{"More like this"}<', inference.text)
    assert link is not None
    assert html.unescape(link[1]) == f"/console/inferences/{FIRST + 1}/similar?q=meta.camera%3Dnorth"  # fmt: skip
    page = show(keyed, f"{FIRST + 1}/similar?q=meta.camera%3Dnorth")
    assert shown(page) == [6, 4, 2]
    assert f'href="/console/inferences/{FIRST + 1}/similar" rel="nofollow">{"Among all"}<' in page.text  # fmt: skip
    assert f'href="/console/inferences/{FIRST + 4}?q=meta.camera%3Dnorth"' in page.text
    by_fields = show(keyed, f"{FIRST + 1}/similar?meta.camera=north")
    assert by_fields.status == 303
    assert by_fields.headers["location"].startswith(f"/console/inferences/{FIRST + 1}/similar?q=")


@pytest.mark.parametrize(("number", "is_there"), [(1, True), (3, True), (5, False)])
def test_the_link_is_there_where_an_embedding_is(keyed, number, is_there):
    page = show(keyed, str(FIRST + number))
    assert page.status == 200
    assert ("More like this" in page.text) is is_there


def test_a_hostile_filter_is_no_markup_and_goes_into_the_link_as_it_is(keyed):
    inference = show(keyed, f"{FIRST + 1}?q=meta.camera%3D%22%3C/script%3E%3Cscript%3Ealert(1)%3C/script%3E%22")  # fmt: skip
    link = re.search(r'href="([^"]*/similar[^"]*)"', inference.text)
    assert link is not None
    page = show(keyed, html.unescape(link[1]).removeprefix("/console/inferences/"))
    assert (page.status, shown(page)) == (200, [3])
    assert HOSTILE not in page.text


@pytest.mark.parametrize(
    ("path", "status"),
    [("1/similar", 404), ("x/similar", 400), (f"{FIRST + 5}/similar", 404), (f"{FIRST + 1}/similar?q=(", 400),
     (f"{FIRST + 1}/similar?q=model%3Dnone", 404)],
)  # fmt: skip
def test_what_is_not_there_or_no_filter_is_said(keyed, path, status):
    page = show(keyed, path)
    assert page.status == status
    assert "</html>" in page.text
