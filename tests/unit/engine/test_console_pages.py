"""Pages of the console over a store: what they show, their links, hostile texts, and what a scope leaves out."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.store.audit.entries import AuditEntry, encode_entry
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import InputReference, ModelReference
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import open_page
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

HOSTILE = "<script>alert(1)</script>"
ATTRIBUTE = "\" onload='alert(1)"
START_MS = 1_790_000_000_000
PAGES = ("/console/", "/console/inferences", "/console/models", "/console/reports", "/console/jobs", "/console/views", "/console/keys",
         "/console/audit", "/console/you")  # fmt: skip


def records() -> Iterator[Any]:
    for number in range(120):
        yield make_record(
            smallest_id_at(START_MS + number * 60_000 + number * 7919 % 40_000) + number,
            input=InputReference("image", f"blake3:{number:064x}", 640, 480, "image/jpeg", kept=True),
            predictions=[{"label": HOSTILE if number % 3 else "ship", "score": 0.5 + number / 300,
                          "xmin": 1, "ymin": 2, "xmax": 300, "ymax": 200}],
            metadata={"camera": ATTRIBUTE if number % 2 else "north", "altitude": number, HOSTILE: HOSTILE},
        )  # fmt: skip
    # No image, no score, a failure, and predictions that are no list of objects.
    model = ModelReference("rows & <b>", "1", "cd" * 32)
    last = smallest_id_at(START_MS + 9_000_000)
    bare = {"model": model, "input": InputReference("rows"), "metadata": {}}
    yield make_record(last, **bare, predictions=[[0.5, 0.25]], task="TENSOR")
    yield make_record(last + 1, **bare, predictions=[], status=500, task="TENSOR")
    yield make_record(last + 2, **bare, predictions={"a": [1]}, task="TENSOR")


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Application]:
    """Yield a server of this machine over a store with hostile texts."""
    folder: Path = tmp_path_factory.mktemp("pages") / "data"
    folder.mkdir()
    store = StoreHarness(folder, f"sqlite:///{folder}/store.db")
    store.commit(*records())
    store.close()
    settings = Settings(models=str(SAMPLE_MODELS), data=str(folder))
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    yield application
    application.close()


def links(text: str) -> set[str]:
    return {html.unescape(link) for link in re.findall(r'(?:href|src)="([^"]*)"', text)}


def cards(text: str) -> int:
    return text.count('class="shot ')


@pytest.mark.parametrize(
    "path", [*PAGES, "/console/inferences?view=table", "/console/models/shapes-detector"]
)
def test_no_text_of_a_client_becomes_markup(server, path):
    page = open_page(server, path)
    assert page.status == 200
    assert "<script>alert" not in page.text
    assert "onload='alert" not in page.text
    assert "rows & <b>" not in page.text
    own = page.text.count('<script type="module" src="/console/static/')
    assert own >= 1
    assert page.text.count("<script") == own


def test_every_link_of_every_page_leads_somewhere(server):
    """Follow the links of all pages, those of facets and times among them."""
    seen: set[str] = set()
    waiting = list(PAGES)
    while waiting and len(seen) < 150:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        page = open_page(server, path.partition("#")[0])
        assert page.status == 200, (path, page.status)
        assert all(link.startswith(("/", "#")) for link in links(page.text)), path
        waiting += sorted(link for link in links(page.text) if is_followed(link))
    assert len([path for path in seen if "?q=" in path]) > 50


def is_followed(link: str) -> bool:
    """Tell links from files, of which none is stored here, and from pages of one inference."""
    is_page = link.startswith("/console") and not link.startswith("/console/static")
    return is_page and re.match(r"/console/inferences/\d", link) is None


def test_a_link_of_a_facet_finds_as_many_as_it_says(server):
    page = open_page(server, "/console/inferences")
    rows = re.findall(
        r'<a href="([^"]*)" rel="nofollow"><span class="box".*?<span class="n">(\d+)</span>',
        page.text,
    )
    assert len(rows) > 8
    for link, count in rows:
        found = open_page(server, html.unescape(link))
        word = "inference" if count == "1" else "inferences"
        assert f"<b>{count} {word}</b>" in found.text, (unquote(link), count)


def test_a_bar_of_the_timeline_finds_its_slice(server):
    page = open_page(server, "/console/inferences")
    bars = re.findall(r'<a href="([^"]*)" aria-label="(\d+): ', page.text)
    assert sum(int(count) for _, count in bars) == 123
    for link, count in bars[:5] + bars[-5:]:
        word = "inference" if count == "1" else "inferences"
        assert f"<b>{count} {word}</b>" in open_page(server, html.unescape(link)).text


def test_pages_follow_one_another_without_gap_or_repetition(server):
    path, ids = "/console/inferences?view=grid&order=ts", []
    while path:
        page = open_page(server, path)
        ids += re.findall(r'href="/console/inferences/(\d+)', page.text)
        following = re.search(r'rel="next" href="([^"]*)"', page.text)
        path = html.unescape(following[1]) if following else ""
        assert bool(ids[48:]) == ("First page" in page.text)
    assert len(ids) == 123
    assert ids == sorted(ids, key=int)


def test_a_page_of_one_inference_keeps_the_filter(server):
    page = open_page(server, "/console/inferences?q=label%3Dship&order=ts")
    assert cards(page.text) == 40
    assert re.search(r'href="/console/inferences/\d+\?q=label%3Dship&amp;order=ts"', page.text)
    assert '<path class="mark o-pred pred" d="M1 2L300 2L300 200L1 200Z"/>' in page.text


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("meta.altitude=gt:", "A value is missing after gt:"),
        ("label=ship & altitude", "“altitude” is compared with nothing"),
        ("nothing=5", "nothing"),
        ("model=shapes-detecto", "shapes-detector"),
        ("(label=ship", "expected a closing parenthesis"),
    ],
)
def test_an_error_stands_at_its_place(server, line, sentence):
    page = open_page(server, f"/console/inferences?q={quote(line)}")
    assert page.status == 400
    assert sentence in html.unescape(page.text)
    assert re.search(r'<pre class="field-error"[^>]*>.*\n *\^</pre>', page.text)
    assert 'class="chip"' in page.text


@pytest.mark.parametrize(
    "query", ["cursor=x", "cursor=MS4x&q=label%3Dship", "q=%ff", "q=a&order=ts&order=ts"]
)
def test_what_is_no_page_is_an_error_that_says_why(server, query):
    page = open_page(server, f"/console/inferences?{query}")
    assert page.status == 400
    assert "</html>" in page.text
    assert "expected" in page.text or "cursor" in page.text


def test_what_finds_nothing_says_which_part_to_remove(server):
    line = "label=ship & meta.camera=north & meta.altitude=gt:500"
    page = open_page(server, f"/console/inferences?q={quote(line)}")
    assert page.status == 200
    assert "No inference matches." in page.text
    hint = re.search(r"<code>([^<]*)</code> there are (\d+)\. <a href=\"([^\"]*)\"", page.text)
    assert hint is not None
    assert html.unescape(hint[1]) == "meta.altitude=gt:500"
    assert f"<b>{hint[2]} inferences</b>" in open_page(server, html.unescape(hint[3])).text


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("meta.camra=north", "<p>No stored inference has the metadata key &#39;camra&#39;; did you mean meta.camera?</p>"),
        ("meta.zoom=3", "<p>No stored inference has the metadata key &#39;zoom&#39;.</p>"),
        ('"meta.<b>"=3', "<p>No stored inference has the metadata key &#39;&lt;b&gt;&#39;.</p>"),
        ("meta.camera=nowhere", None),
    ],
)  # fmt: skip
def test_what_finds_nothing_says_that_nothing_has_its_key(server, line, sentence):
    text = open_page(server, f"/console/inferences?q={quote(line)}").text
    assert "No inference matches." in text
    assert (sentence or "No inference matches.") in text
    assert ("No stored inference has" in text) is (sentence is not None)


def test_several_filters_become_one_line(server):
    page = open_page(server, "/console/inferences?q=label%3Dship&q=meta.altitude%3Dlt:9&view=table")
    assert page.status == 303
    location = page.headers["location"]
    assert location == "/console/inferences?q=label%3Dship+%26+meta.altitude%3Dlt%3A9&view=table"
    assert open_page(server, location).status == 200


def test_an_inference_without_image_or_score_has_a_row(server):
    page = open_page(server, "/console/inferences?q=task%3DTENSOR")
    assert page.status == 200
    assert "<b>3 inferences</b>" in page.text
    assert "<table" in page.text  # as none has an image
    grid = open_page(server, "/console/inferences?q=task%3DTENSOR&view=grid")
    assert grid.text.count("no image kept") == 3


def test_the_overview_of_an_empty_store_says_how_to_begin(tmp_path):
    settings = Settings(models=str(SAMPLE_MODELS / "shapes-detector"), data=str(tmp_path / "data"))
    migrate(settings.database_url)
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    application.repository.load_all()
    for path in PAGES:
        assert open_page(application, path).status == 200, path
    page = open_page(application, "/console/", headers={"host": "127.0.0.1:8123"})
    assert "Nothing stored yet." in page.text
    assert "curl http://127.0.0.1:8123/infer" in html.unescape(page.text)
    assert "YOUR-KEY" not in page.text
    application.close()


def test_who_sees_some_models_sees_nothing_of_others(server, tmp_path):
    settings = Settings(models=str(SAMPLE_MODELS), data=server._settings.data,
                        extras={"sign_on": {"issuer": "https://login.invalid", "client_id": "quadriga", "roles": "groups:ops=operate"}})  # fmt: skip
    with writer_engine(settings.database_url) as engine:
        key = create_key(engine, name="some", roles=["admin"], models=["rows*"])[1]
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    sent = {"authorization": f"Bearer {key}"}
    for path in ("/console/", "/console/inferences", "/console/models"):
        page = open_page(application, path, headers=sent)
        assert page.status == 200
        assert "shapes-detector" not in page.text
        assert "rows &amp; &lt;b&gt;" in page.text
    assert open_page(application, "/console/models/shapes-detector", headers=sent).status == 404
    for path in ("/console/keys", "/console/audit"):
        assert open_page(application, path, headers=sent).status == 403
    application.close()


@pytest.mark.parametrize(
    "path", ["/console/models/x", "/console/reports/1-a", "/console/jobs/x", "/console/nothing"]
)
def test_what_is_not_there_is_a_page_that_says_so(server, path):
    page = open_page(server, path)
    assert page.status == 404
    assert "Nothing is here. The address may be mistyped" in page.text


@pytest.mark.parametrize("hosts", [("pod-0", "pod-0"), ("", ""), ("pod-0", "pod-1"), ("", "pod-1")])
def test_the_audit_log_names_machines_where_they_are_several(tmp_path, hosts):
    folder = tmp_path / "data" / "audit"
    folder.mkdir(parents=True)
    entries = [
        AuditEntry(time=f"2026-11-0{day}T12:00:00.000000Z", action="PUT /a", status=200, host=host)
        for day, host in enumerate(hosts, 1)
    ]
    (folder / "2026-11-01-jobs.jsonl").write_bytes(b"".join(map(encode_entry, entries)))
    migrate(f"sqlite:///{tmp_path}/data/store.db")
    application = Application(Settings(models=str(SAMPLE_MODELS), data=str(tmp_path / "data")))
    assert application._keys is not None
    application._keys.refresh()
    page = open_page(application, "/console/audit").text
    application.close()
    assert page.count("PUT /a</code>") == 2
    differ = len(set(hosts)) > 1
    assert (">Server</th>" in page) is differ
    assert all((f"{host}</td>" in page) is differ for host in hosts if host)
