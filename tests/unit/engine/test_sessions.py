"""Signed texts, where a log-in may lead, and requests by which a session counts."""

import msgspec
import pytest

from quadriga.engine.access.browsers import BrowserRules
from quadriga.engine.access.sessions import CookieSigner, own_path, server_key
from quadriga.engine.config.settings import Settings


class Content(msgspec.Struct, frozen=True):
    text: str


def test_a_signed_text_is_read_with_its_key_and_purpose_only(tmp_path):
    settings = Settings(data=str(tmp_path))
    key = server_key(settings)
    assert key == server_key(settings)
    assert (tmp_path / "session.key").stat().st_mode & 0o777 == 0o600
    signer = CookieSigner(key, "a")
    text = signer.sign(Content("x"))
    assert signer.read(text, Content) == Content("x")
    body, _, mark = text.partition(".")
    bad = ["", ".", body, f"{body}.", f".{mark}", f"{text}x", f"x{text}", f"{text}.", "é" * 20]
    bad += ["a" * 5000, f"{body[:-1]}A.{mark}"]
    assert [signer.read(wrong, Content) for wrong in bad] == [None] * len(bad)
    for other in (CookieSigner(key, "b"), CookieSigner(b"k" * 32, "a")):
        assert other.read(text, Content) is None
    assert signer.read(f"e30.{signer.derive('e30')}", Content) is None  # of another version


@pytest.mark.parametrize(
    ("path", "led_to"),
    [
        ("/console/", "/console/"),
        ("/api/reports/x/page?a=b&c=%20", "/api/reports/x/page?a=b&c=%20"),
        ("/", "/"),
        ("", "/console/"),
        ("//evil.example", "/console/"),
        ("/\\evil.example", "/console/"),
        ("/a\\b", "/console/"),
        ("/\t/evil.example", "/console/"),
        ("/a\n", "/console/"),
        ("https://evil.example", "/console/"),
        ("javascript:alert(1)", "/console/"),
        ("/é", "/console/"),
        ("/" + "a" * 501, "/console/"),
    ],
)
def test_a_log_in_leads_to_paths_of_this_server_only(path, led_to):
    assert own_path(path) == led_to


@pytest.mark.parametrize(
    ("method", "headers", "counts"),
    [
        ("GET", {}, False),
        ("POST", {}, False),
        ("GET", {"sec-fetch-site": "same-origin"}, True),
        ("GET", {"sec-fetch-site": "none"}, True),
        ("POST", {"sec-fetch-site": "same-origin"}, True),
        ("POST", {"sec-fetch-site": "none"}, False),
        ("POST", {"sec-fetch-site": "same-site"}, False),
        ("POST", {"sec-fetch-site": "cross-site", "origin": "http://here"}, False),
        ("POST", {"origin": "http://here"}, True),
        ("GET", {"origin": "https://friend"}, False),
        ("POST", {"origin": "https://friend", "sec-fetch-site": "same-origin"}, False),
        ("POST", {"origin": "null"}, False),
    ],
)
def test_a_session_counts_with_the_mark_of_an_own_page(method, headers, counts):
    rules = BrowserRules(Settings(cors_origins="https://friend"))
    given = {name.encode(): value.encode() for name, value in {"host": "here", **headers}.items()}
    assert rules.may_use_session(method, given, "http") is counts
