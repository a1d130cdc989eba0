"""Cards of a list: which model, version or file answered, and which score they show."""

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.store.database.database import migrate
from quadriga.store.records.records import InputReference, ModelReference
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import open_page
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

FIRST = 700_000_000_000
BOX = {"xmin": 1, "ymin": 2, "xmax": 30, "ymax": 40}
HOSTILE = "<b>2"
FILES = {
    "1": ModelReference("shapes", "1", "aa" * 32),
    "1 replaced": ModelReference("shapes", "1", "bb" * 32),
    "2": ModelReference("shapes", "2", "cc" * 32),
    "ships": ModelReference("ships", "2", "dd" * 32),
    "hostile": ModelReference("shapes", HOSTILE, "ee" * 32),
}

Serve = Callable[..., Application]


@pytest.fixture
def serve(tmp_path) -> Iterator[Serve]:
    """Yield what makes a server over stored records."""
    servers = []

    def make(*entries: Any) -> Application:
        settings = Settings(models=str(SAMPLE_MODELS), data=str(tmp_path / "data"))
        migrate(settings.database_url)
        store_entries(settings.database_url, settings.journal_directory, entries)
        servers.append(Application(settings))
        assert servers[-1]._keys is not None
        servers[-1]._keys.refresh()
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def grid(server: Application, query: str = "") -> list[str]:
    """Return the words of the cards of the grid, the oldest first, with `|` between their lines."""
    page = open_page(server, f"/console/inferences?view=grid&order=ts{query}")
    assert page.status == 200
    words = re.findall(r'<span class="words">(.*?)</span>\n</a>', page.text, re.DOTALL)
    lines = [re.sub(r"</span>\s*<span class=\"quiet\"><span>", "|", text) for text in words]
    texts = [html.unescape(re.sub(r"<[^>]*>|\n", "", line)) for line in lines]
    return [text.replace("\N{MULTIPLICATION SIGN}", "x") for text in texts]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["1"], [""]),
        (["2", "2"], ["", ""]),
        (["1", "2"], ["version 1", "version 2"]),
        (["1", "ships"], ["shapes 1", "ships 2"]),
        (["2", "ships"], ["shapes 2", "ships 2"]),
        (["1", "1 replaced"], ["file aaaaaaaa", "file bbbbbbbb"]),
        (["1", "1 replaced", "2"], ["version 1 file aaaaaaaa", "version 1 file bbbbbbbb", "version 2"]),
        (["1", "hostile"], ["version 1", f"version {HOSTILE}"]),
    ],
)  # fmt: skip
def test_cards_of_several_models_or_versions_say_which_answered(serve, files, said):
    image = InputReference("image", "blake3:" + "0" * 64, 640, 480, "image/jpeg", kept=True)
    records = [
        make_record(FIRST + number, model=FILES[name], input=image, metadata={"camera": "north"}, predictions=[])
        for number, name in enumerate(files)
    ]  # fmt: skip
    server = serve(*records)
    words = grid(server)
    assert len(words) == len(files)
    for text, expected in zip(words, said, strict=True):
        lines = ["nothing found", "north", *([expected] if expected else [])]
        assert re.sub(r"\d\d:\d\d:\d\d$", "", text) == "|".join(lines)
    newest = open_page(server, "/console/").text
    assert all(html.escape(words) in newest for words in said)
    assert HOSTILE not in newest


def test_single_objects_of_several_versions_say_which_answered(serve):
    image = InputReference("image", "blake3:" + "0" * 64, 640, 480, "image/jpeg", kept=True)
    found = [{"label": "star", "score": 0.5, **BOX}]
    records = [
        make_record(FIRST + number, model=FILES[name], input=image, predictions=found)
        for number, name in enumerate(("1", "hostile"))
    ]
    server = serve(*records)
    page = open_page(server, "/console/inferences?view=objects").text
    assert page.count("<span>version 1</span><time") == 1
    assert page.count(f"<span>version {html.escape(HOSTILE)}</span><time") == 1
    alone = open_page(server, "/console/inferences?view=objects&q=version%3D1").text
    assert "star" in alone
    assert "<span>version 1</span>" not in alone


@pytest.mark.parametrize(
    ("scores", "query", "words", "title"),
    [
        ([], "", "nothing found", None),
        ([0.981], "", "star0.98", "score"),
        ([0.36, 0.9], "", "star x2lowest 0.36", "lowest of 2 scores"),
        ([0.36, 0.9, 0.5], "&q=label%3Dcircle", "circle · star x30.20", "score"),
        ([0.36, 0.9, 0.5], "&q=label%3Dstar", "star x3 · circlelowest 0.36", "lowest of 3 scores"),
        ([None, 0.5], "", "star x20.50", "score"),
        ([None], "", "star", None),
    ],
)
def test_a_card_says_that_its_score_is_the_lowest(serve, scores, query, words, title):
    predictions: list[Any] = [{"label": "star", "score": score, **BOX} for score in scores]
    if query:
        predictions.append({"label": "circle", "score": 0.2, **BOX})
    server = serve(make_record(FIRST, predictions=predictions))
    (text,) = grid(server, query)
    assert text.split("|")[0] == words
    page = open_page(server, f"/console/inferences?view=grid{query}").text
    titles = re.findall(r'<span class="quiet" title="([^"]*)">', page)
    assert titles == ([] if title is None else [title])
