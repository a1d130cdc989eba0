"""Pages of reports, and what stands in them."""

import re
from html.parser import HTMLParser

from quadriga.monitor.report.page import render_page
from tests.reports import image_bytes

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Elements(HTMLParser):
    """The elements of a page; every one that is opened must be closed."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        assert len(attrs) == len(dict(attrs)), f"an attribute twice in {tag}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def made(report):
    return render_page(report, image_bytes)


def words(html):
    return re.sub(r"\s+", " ", " ".join(Elements(html).text))


def cards(html):
    return html.partition('<div class="gallery">')[2]
