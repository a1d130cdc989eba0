"""The live page as the server renders it: the newest of a filter, where its script begins, numbers, and the scope."""

import html
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.filter_line import FilterLinks, InferenceFilter
from quadriga.engine.console.frame import Frame
from quadriga.engine.console.pages.live import LIVE_PATH, NEWEST, read_live
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from quadriga.store.records.ids import smallest_id_at
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import open_page
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

HOSTILE = "<script>alert(1)</script>"
COUNT = 70


class Place(NamedTuple):
    """A server over a store of inferences of the last minute, of which each third failed."""

    application: Application
    ids: list[int]
    headers: dict[str, str]
    """Headers with the key of the team `a`."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("live") / "data"
    settings = Settings(models=str(SAMPLE_MODELS), data=str(folder))
    migrate(settings.database_url)
    with writer_engine(settings.database_url) as engine:
        key = create_key(engine, name="a", roles=["read"], team="a")[1]
        every = create_key(engine, name="every", roles=["read"])[1]
    store = StoreHarness(folder, settings.database_url)
    begun_ms = int(time.time() * 1000) - 5000
    ids = [smallest_id_at(begun_ms + number) for number in range(COUNT)]
    store.commit(
        *(
            make_record(
                seq,
                team="b" if number % 2 else "a",
                metadata={"camera": HOSTILE, "number": number},
                status=200 if number % 3 else 500,
            )
            for number, seq in enumerate(ids)
        )
    )
    store.close()
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    yield Place(application, ids, {"": every, "a": key})
    application.close()


def page(place: Place, query: str = "", team: str = "", status: int = 200) -> str:
    headers = {"authorization": f"Bearer {place.headers[team]}"}
    answer = open_page(place.application, f"/console/live{query}", headers=headers)
    assert answer.status == status, answer.text
    return answer.text


def shown(text: str) -> list[int]:
    return [
        int(id_) for id_ in re.findall(r'class="shot [^>]*href="/console/inferences/(\d+)', text)
    ]


def attribute(text: str, name: str) -> str:
    (value,) = re.findall(rf'data-{name}="([^"]*)"', text)
    return html.unescape(value)


def test_it_shows_the_newest_and_its_script_begins_where_all_is_there(place: Place) -> None:
    text = page(place)
    assert shown(text) == place.ids[::-1][:NEWEST]
    after = int(attribute(text, "after"))
    assert place.ids[-1] < after < smallest_id_at(int(time.time() * 1000) - 500)
    assert attribute(text, "tail") == "/api/inferences/tail"
    assert HOSTILE not in text
    assert html.escape(HOSTILE) in text
    assert 'aria-current="page">Live' in text
    assert 'action="/console/live"' in text
    assert 'class="warn">34.29 %' in text


def test_its_script_begins_behind_what_may_be_followed_by_lower_ids(tmp_path) -> None:
    store = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    now_ms = int(time.time() * 1000)
    store.commit(make_record(smallest_id_at(now_ms)))
    links = FilterLinks(InferenceFilter(""), Frame("", has_store=True).link, LIVE_PATH)
    content = read_live(store.inferences, "", links, now_ms=now_ms)
    assert int(content["after"]) < int(content["cards"][0].of.id)
    assert content["minute"] is not None
    assert 0.5 <= content["minute"]["per_minute"] <= 1
    store.close()


def test_a_filter_narrows_it(place: Place) -> None:
    text = page(place, "?q=meta.number%3Dge%3A66")
    assert shown(text) == place.ids[:65:-1]
    assert attribute(text, "query") == "meta.number=ge:66"
    assert 'href="/console/live" aria-label="Remove meta.number=ge:66"' in text
    hostile = page(place, "?q=meta.a%3D%22%3Cscript%3E%5C%22%22")
    assert "<script>" not in hostile.replace('<script type="module"', "")
    assert shown(hostile) == []
    assert "No inference matches yet." in hostile
    headers = {"authorization": f"Bearer {place.headers['']}"}
    answer = open_page(place.application, "/console/live?meta.number=3", headers=headers)
    assert (answer.status, answer.headers["location"][:16]) == (303, "/console/live?q=")


@pytest.mark.parametrize("query", ["?q=meta.altitude%3Dgt%3A", "?q=%28", "?q=model%3Dnone"])
def test_what_is_no_filter_has_neither_list_nor_script(place: Place, query: str) -> None:
    text = page(place, query, status=400)
    assert 'role="alert"' in text
    assert "live.js" not in text


def test_a_team_sees_its_own_alone(place: Place) -> None:
    assert shown(page(place, team="a")) == place.ids[-2::-2]


def test_without_anything_stored_it_says_how_to_begin(tmp_path) -> None:
    application = Application(Settings(models=str(SAMPLE_MODELS), data=str(tmp_path / "data")))
    assert application._keys is not None
    migrate(application._settings.database_url)
    application._keys.refresh()
    text = open_page(application, "/console/live").text
    application.close()
    assert shown(text) == []
    assert "Nothing stored yet." in text
    assert "How to send the first image" in text
