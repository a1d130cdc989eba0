"""The site of the documents, opened as files in Chromium: it is whole, asks nobody else, and its search finds."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.browser import Browser
from tests.server_process import ROOT

pytestmark = pytest.mark.browser

SITE = ROOT / "site"
WORDS = ("index.html", "drift.html", "repository/SECURITY.html")


@pytest.fixture(scope="module")
def site() -> Path:
    assert (SITE / "index.html").is_file(), "the site is not there: make docs"
    return SITE


@pytest.fixture
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.close()


class Links(HTMLParser):
    """What a page links to and loads, and the ids that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"} and value:
                self.found.append(value)
            if name == "id" and value:
                self.ids.add(value)


def test_each_link_leads_to_something(site):
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 25
    broken = []
    for path, links in pages.items():
        for link in links.found:
            if re.match(r"[a-z]+:", link) or path.name == "404.html":
                continue
            place, _, anchor = unquote(link).partition("#")
            target = (path.parent / place).resolve() if place else path
            is_there = target.is_file() and (
                not anchor or target not in pages or anchor in pages[target].ids
            )
            if not is_there:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_every_document_is_a_page(site):
    for document in (ROOT / "docs").glob("*.md"):
        assert (site / f"{document.stem}.html").is_file()
    for notebook in (ROOT / "docs" / "tutorials").glob("*.ipynb"):
        page = (site / "tutorials" / f"{notebook.stem}.html").read_text()
        assert "quadriga.Client" in page
        assert f'href="{notebook.name}" download' in page


@pytest.mark.parametrize("page", WORDS)
def test_a_page_opens_without_an_error_and_without_another_host(site, browser, page):
    browser.open(site / page)
    assert browser.run("document.querySelector('h1').innerText")
    assert browser.errors == []


def test_the_search_finds_a_page_in_a_site_of_files(site, browser):
    browser.open(site / "index.html")
    browser.run("document.querySelector('label[for=__search]').click()")
    browser.run(
        """(() => { const field = document.querySelector('[data-md-component=search-query]');
        field.focus(); field.value = 'journal_hard_bytes'; field.dispatchEvent(new Event('keyup'));
        field.dispatchEvent(new Event('input')); })()"""
    )
    results = browser.wait_for(
        "[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href).join(' ')"
    )
    assert "serving.html" in results or "store.html" in results
    assert not [error for error in browser.errors if "http" in str(error)]
