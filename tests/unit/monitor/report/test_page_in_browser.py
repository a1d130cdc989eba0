"""Pages of reports in a real browser: nothing complains, nothing is cut off."""

import shutil

import pytest

from quadriga.monitor.report.page import render_page
from tests.browser import Browser
from tests.drift_reports import REPORTS
from tests.reports import image_bytes

pytestmark = pytest.mark.browser

CUT_TEXTS = """[...document.querySelectorAll('svg.chart')].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 2 || box.right > frame.right + 2
      || box.top < frame.top - 2 || box.bottom > frame.bottom + 2;
  }).map(text => svg.getAttribute('aria-label').slice(0, 30) + ': ' + text.textContent);
})"""
LOOK = "[getComputedStyle(document.documentElement).backgroundColor, getComputedStyle(document.querySelector('h1')).color]"
TICK = "(() => { const text = document.querySelector('svg.chart text'); return text && getComputedStyle(text).fill })()"
LIGHT = ["rgb(246, 247, 248)", "rgb(19, 24, 29)", "rgb(70, 80, 90)"]
DARK = ["rgb(14, 17, 20)", "rgb(232, 235, 238)", "rgb(179, 188, 197)"]
PAPER = ["rgb(255, 255, 255)", "rgb(0, 0, 0)", "rgb(34, 34, 34)"]
"""Colours of the ground, of the headline, and of the texts in charts."""


@pytest.fixture(scope="module")
def browser():
    chrome = Browser()
    yield chrome
    chrome.close()


@pytest.fixture(scope="module", params=list(REPORTS))
def path(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    file.write_text(render_page(REPORTS[request.param](), image_bytes), "utf-8")
    yield file
    shutil.rmtree(file.parent)


@pytest.mark.parametrize(
    ("shown", "look"),
    [(("light", "screen"), LIGHT), (("dark", "screen"), DARK), (("dark", "print"), PAPER)],
    ids=["light", "dark", "print"],
)
@pytest.mark.parametrize("width", [1200, 390])
def test_page_opens_without_complaints_and_nothing_is_cut(browser, path, shown, look, width):
    browser.errors.clear()
    browser.open(path, scheme=shown[0], medium=shown[1], width=width)
    assert browser.run(LOOK) == look[:2]
    assert browser.run(TICK) in {None, look[2]}
    assert browser.run(CUT_TEXTS) == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("[...document.images].every(image => image.naturalWidth > 0)")
    assert len(browser.picture()) > 1000
    assert browser.errors == []


def test_the_first_screen_says_what_changed_with_images(browser, tmp_path):
    file = tmp_path / "watched.html"
    file.write_text(render_page(REPORTS["watched"](), image_bytes), "utf-8")
    browser.open(file, scheme="light", medium="screen", width=1280)
    bottoms = browser.run(
        """['h1', '.signal .from-to', '.signal image'].map(
        selector => document.querySelector(selector).getBoundingClientRect().bottom)"""
    )
    assert max(bottoms) < 700


def test_page_can_be_printed(browser, path):
    browser.errors.clear()
    browser.open(path, scheme="dark", medium="print")
    assert browser.printed().startswith(b"%PDF")
    assert browser.errors == []


def test_browser_notes_what_a_page_may_not_do(browser, tmp_path):
    file = tmp_path / "page.html"
    policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
    file.write_text(f"{policy}<script>1</script><img src='http://127.0.0.1:9/x.png'>")
    browser.errors.clear()
    browser.open(file)
    assert browser.errors
