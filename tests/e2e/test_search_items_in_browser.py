"""Items of the filter line in Chromium that are more than their text: words that are sent, and numbers with all their digits."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.e2e.test_console_pages_in_browser import ask, open_page
from tests.e2e.test_console_search_in_browser import (
    GRID,
    focus,
    module,
    press,
    suggested,
    wait_for_item,
    write,
)
from tests.server_process import SAMPLE_MODELS, ServerProcess

pytestmark = pytest.mark.browser

LARGE = 2**53 + 1


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield a server with inferences that have large numbers."""
    with ServerProcess(tmp_path_factory.mktemp("items") / "data", SAMPLE_MODELS) as server:
        inferences = [{"predictions": [], "width": 9, "height": 9, "metadata": {"frame": LARGE + 2 * n}} for n in range(2)]  # fmt: skip
        body = {"model": "ships", "task": "detection", "inferences": inferences}
        ask(server, "POST", "/api/inferences", body)
        ask(server, "POST", "/api/inferences/query", {"consistency": "journal", "limit": 1})
        yield server


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("miss", "missed"),
        ("missed", "missed"),
        ("blurr", "blurred"),
        ("false pos", "false positives"),
        ("label=ship & wro", "label=ship & wrong"),
        ("not label", "ground_truth=exists:false"),
        ("annot", "ground_truth=exists:true"),
    ],
)
def test_words_for_what_was_wrong_are_offered(browser, server, text, first):
    open_page(browser, server, GRID)
    assert suggested(browser, text)[0] == first


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (LARGE, str(LARGE)),
        (-(2**63), str(-(2**63))),
        (1_790_000_000_123_456_789, "1790000000123456789"),
        (1_790_000_000_123, "1790000000123"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1 / 3, "0.3333333333333333"),
        (0.3, "0.3"),
        (5, "5"),
    ],
)
def test_a_number_has_all_its_digits(browser, server, number, text):
    open_page(browser, server, GRID)
    call = f"m.decoded({json.dumps(json.dumps([number]))}).map(m.valueText)"
    assert module(browser, call) == [text]


def test_a_large_number_that_is_taken_finds_its_inference(browser, server):
    open_page(browser, server, GRID)
    focus(browser)
    write(browser, "meta.frame=")
    wait_for_item(browser, str(LARGE))
    write(browser, str(LARGE))
    press(browser, "Enter")
    browser.wait_for("document.querySelectorAll('.chip').length === 1")
    assert parse_qs(urlsplit(browser.run("location.href")).query)["q"] == [f"meta.frame={LARGE}"]
    assert "1 inference" in browser.run("document.querySelector('main').textContent")


def test_a_word_for_what_was_wrong_is_sent_and_answered(browser, server):
    open_page(browser, server, GRID)
    focus(browser)
    write(browser, "miss")
    wait_for_item(browser, "missed")
    press(browser, "ArrowDown")
    press(browser, "Enter")
    browser.wait_for("document.querySelector('[role=alert]') !== null")
    assert parse_qs(urlsplit(browser.run("location.href")).query)["q"] == ["missed"]
    words = "“missed” is what an evaluation finds, and none has found any yet."
    assert words in browser.run("document.querySelector('[role=alert]').textContent")
