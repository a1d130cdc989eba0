"""Requests that a page of somebody else makes a browser send."""

import pytest

from quadriga.engine.access.browsers import BrowserRules, host_name
from quadriga.engine.config.settings import Settings
from quadriga.proto.errors import Forbidden

VISIT = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def allows(
    headers: dict[str, str],
    method="POST",
    path="/api/inferences/delete",
    *,
    scheme="http",
    **settings,
) -> bool:
    rules = BrowserRules(Settings(**settings))
    encoded = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    try:
        rules.check(method, path, encoded, scheme=scheme)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"host": ""}, True),
        ({"host": "127.0.0.1:8080"}, True),
        ({"host": "localhost:8080"}, True),
        ({"host": "LOCALHOST."}, True),
        ({"host": "quadriga.localhost"}, True),
        ({"host": "[::1]:8080"}, True),
        ({"host": "192.168.1.7:8080"}, True),  # an address cannot be pointed elsewhere
        ({"host": "evil.example"}, False),
        ({"host": "localhost.evil.example"}, False),
        ({"host": "127.0.0.1.evil.example"}, False),
        ({"host": "127.0.0.1@evil.example"}, False),
        ({"host": "[evil.example]"}, False),
        ({"host": "\xe9vil.example"}, False),
        ({"host": "localhost:8080", "origin": "http://localhost:8080"}, True),
        ({"host": "localhost:8080", "origin": "http://localhost:8081"}, False),
        ({"host": "localhost:8080", "origin": "http://127.0.0.1:8080"}, False),
        ({"host": "localhost:8080", "origin": "null"}, False),
        ({"host": "localhost:8080", "origin": ""}, False),
        ({"host": "localhost:8080", "origin": "https://evil.example"}, False),
        ({"host": "localhost", "origin": "http://localhost.evil.example"}, False),
        ({"host": "localhost", "sec-fetch-site": "same-origin"}, True),
        ({"host": "localhost", "sec-fetch-site": "none"}, True),
        ({"host": "localhost", "sec-fetch-site": "same-site"}, False),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, False),
        ({"host": "localhost", "sec-fetch-site": "new-word"}, False),
        ({"host": "localhost", **VISIT}, False),  # a form of another page
    ],
)
def test_pages_of_others_change_nothing(headers, allowed):
    assert allows(headers) is allowed


PUBLIC = "https://Models.example.org/vision"


@pytest.mark.parametrize(
    ("scheme", "public_url", "page", "site", "is_own"),
    [
        ("http", "", "http", "", True),
        (
            "https",
            "",
            "https",
            "",
            True,
        ),  # TLS of the server, or of a proxy that is trusted to say so
        ("https", "", "http", "", False),
        ("https", "", "http", "same-origin", False),  # no browser says so
        ("http", PUBLIC, "https", "", True),  # a proxy that is not trusted
        ("http", PUBLIC, "http", "", False),
        ("http", "http://models.example.org", "http", "", True),
        ("http", "https://other.example.org", "http", "", True),  # this request came another way
        ("http", "", "https", "", True),
        ("http", "", "https", "same-origin", True),
        ("http", "", "http", "cross-site", False),  # as Chromium marks it where TLS ends before us
        ("http", "", "http", "same-site", False),  # as others do
        ("http", "", "chrome-extension", "", False),
        ("https", "", "HTTPS", "none", True),
    ],
)
def test_the_scheme_is_a_part_of_the_own_origin(scheme, public_url, page, site, is_own):
    headers = {"host": "models.example.org", "origin": f"{page}://models.example.org"}
    headers |= {"sec-fetch-site": site} if site else {}
    settings = {"host": "0.0.0.0", "public_url": public_url}
    assert allows(headers, scheme=scheme, **settings) is is_own
    rules = BrowserRules(Settings(cors_origins=headers["origin"], **settings))
    encoded = {name.encode(): value.encode() for name, value in headers.items()}
    rules.check("POST", "/api/inferences/delete", encoded, scheme=scheme)
    if site != "none":  # a visit, which may not change anything by a session
        assert rules.may_use_session("POST", encoded, scheme) is is_own


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        (VISIT, True),
        ({**VISIT, "sec-fetch-dest": "iframe"}, False),
        ({**VISIT, "sec-fetch-dest": "object"}, False),
        ({**VISIT, "sec-fetch-mode": "cors"}, False),
        ({**VISIT, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, False),
        ({**VISIT, "origin": "https://evil.example"}, False),
    ],
)
def test_a_link_may_lead_to_a_page_and_nothing_else(headers, allowed):
    assert allows({"host": "localhost", **headers}, "GET", "/api/reports/1/page") is allowed


@pytest.mark.parametrize("path", ["/ready", "/v2/health/live", "/v2/health/ready", "/metrics"])
def test_probes_and_scrapers_call_by_any_name(path):
    assert allows({"host": "pod-7.cluster.local"}, "GET", path)
    assert not allows({"host": "pod-7.cluster.local"}, "GET", "/v2")
    assert not allows({"host": "localhost", "origin": "https://evil.example"}, "GET", path)


@pytest.mark.parametrize(
    ("host", "name", "allowed"),
    [
        ("0.0.0.0", "evil.example", True),  # a key is needed there, which browsers do not send
        ("127.0.0.1", "models.example.org", False),
    ],
)
def test_names_without_a_list(host, name, allowed):
    assert allows({"host": name}, host=host) is allowed


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("models.example.org", True),
        ("MODELS.example.org:443", True),
        ("a.lab.example.org", True),
        ("lab.example.org", False),
        ("localhost:8080", True),  # the operator's, on the machine itself
        ("localhost.evil.example", False),
        ("10.0.0.1", True),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_names_with_a_list(host, name, allowed):
    hosts = "models.example.org, *.lab.example.org"
    assert allows({"host": name}, host=host, allowed_hosts=hosts) is allowed


PORT_URL = "https://models.example.org:18443"


@pytest.mark.parametrize(
    ("public_url", "page", "scheme", "site", "is_own"),
    [
        (PORT_URL, PORT_URL, "http", "same-origin", True),  # nginx hands on Host without the port
        (f"{PORT_URL}/base/", PORT_URL.upper(), "https", "", True),
        ("https://models.example.org:443", "https://models.example.org", "http", "", True),
        (PORT_URL, PORT_URL, "http", "cross-site", False),
        (PORT_URL, "https://models.example.org:9", "http", "", False),
        (PORT_URL, "http://models.example.org:18443", "http", "", False),
        ("http://models.example.org:81", "http://models.example.org:81", "http", "", True),
        ("http://models.example.org:81", "http://models.example.org:81", "https", "", False),
        ("", PORT_URL, "https", "same-origin", False),
    ],
)
def test_public_url_is_the_origin_of_the_own_pages(public_url, page, scheme, site, is_own):
    headers = {"host": "models.example.org", "origin": page}
    headers |= {"sec-fetch-site": site} if site else {}
    assert allows(headers, scheme=scheme, host="0.0.0.0", public_url=public_url) is is_own


@pytest.mark.parametrize(
    ("public_url", "own"),
    [("", "http://localhost:8080"), (PORT_URL, PORT_URL)],
)
def test_a_refusal_names_the_origin_that_the_server_takes_for_its_own(public_url, own):
    headers = {b"host": b"localhost:8080", b"origin": b"https://evil.example"}
    with pytest.raises(
        Forbidden,
        match=f"'{own}', or of the setting cors_origins, got one of 'https://evil.example'",
    ):
        BrowserRules(Settings(public_url=public_url)).check("POST", "/v2", headers, scheme="http")


def test_allowed_origins_may_read_and_ask_first():
    settings = Settings(cors_origins="https://Label.example.org/, http://localhost:3000")
    rules = BrowserRules(settings)
    headers = {b"host": b"localhost", b"origin": b"https://label.example.org"}
    rules.check("POST", "/v2", headers, scheme="http")
    assert (b"access-control-allow-origin", b"https://label.example.org") in rules.shared_with(
        headers
    )
    assert rules.preflight(headers) is None
    asked = {**headers, b"access-control-request-method": b"PUT",
             b"access-control-request-headers": b"x-api-key"}  # fmt: skip
    answer = dict(rules.preflight(asked) or [])
    assert b"PUT" in answer[b"access-control-allow-methods"]
    assert answer[b"access-control-allow-headers"] == b"x-api-key"
    for origin in (b"https://label.example.org.evil.example", b"http://label.example.org"):
        other = {**headers, b"origin": origin}
        assert rules.shared_with(other) == []
        with pytest.raises(Forbidden, match="cors_origins"):
            rules.check("GET", "/v2", other, scheme="http")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (b"a", "a"),
        (b" A.B:80 ", "a.b"),
        (b"[::1]:80", "::1"),
        (b"[", ""),
        (b":80", ""),
        (b"a.", "a"),
        (b"a:b:c", "a"),
    ],
)
def test_the_name_in_a_host(host, name):
    assert host_name(host) == name
