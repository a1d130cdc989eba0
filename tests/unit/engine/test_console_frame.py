"""The frame of the console's pages: who sees them, how one logs in with a key, headers, static files, links."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.proto.access import ROLES, Role
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key, revoke_key
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import Answer, open_page

FORM = {"content-type": "application/x-www-form-urlencoded", "origin": "http://localhost"}


def application(folder: Any, **overrides: Any) -> Application:
    """Return a server that has loaded no model."""
    settings = Settings(models=str(SAMPLE_MODELS), data=str(folder / "data"), **overrides)
    migrate(settings.database_url)
    made = Application(settings)
    if made._keys is not None:
        made._keys.refresh()
    return made


@pytest.fixture(scope="module")
def keyed(tmp_path_factory) -> Iterator[tuple[Application, dict[str, str]]]:
    """Yield a server that needs keys, and a key of each role."""
    folder = tmp_path_factory.mktemp("keyed")
    made = application(folder)
    with writer_engine(made._settings.database_url) as engine:
        keys = {role: create_key(engine, name=role, roles=[role])[1] for role in get_args(Role)}
    made._keys.refresh()
    yield made, keys
    made.close()


def log_in(server: Application, key: str, next_path: str = "/console/") -> Answer:
    body = f"key={key}&next={next_path}".encode()
    return open_page(server, "/console/login", method="POST", headers=FORM, body=body)


def session_of(answer: Answer) -> dict[str, str]:
    """Return the header that sends the cookie of a session."""
    return {"cookie": answer.cookies[0].partition(";")[0]}


def test_without_a_key_a_page_asks_for_one_and_a_program_gets_json(keyed):
    server, _ = keyed
    page = open_page(server, "/console/?x=1&y=2")
    assert page.status == 401
    assert 'name="next" value="/console?x=1&amp;y=2"' in page.text
    assert "Inferences" not in page.text
    data = open_page(server, "/console/", headers={"accept": "application/json"})
    assert data.status == 401
    assert '"error"' in data.text


@pytest.mark.parametrize("role", get_args(Role))
def test_a_role_sees_pages_or_reads_why_not(keyed, role):
    server, keys = keyed
    page = open_page(server, "/console/", headers={"authorization": f"Bearer {keys[role]}"})
    if "read" in ROLES[role]:
        assert page.status == 200
        assert "<h1" in page.text
    else:
        assert page.status == 403
        may = {"infer": "run models, not read stored inferences", "metrics": "metrics"}[role]
        assert f"Your key may {may}" in page.text
        assert "`read`" in page.text


def test_a_session_of_a_key_begins_and_ends(keyed):
    server, keys = keyed
    begun = log_in(server, keys["read"], "/console/inferences")
    assert (begun.status, begun.headers["location"]) == (303, "/console/inferences")
    cookie = begun.cookies[0]
    assert re.match(r"__Host-quadriga-session=[\w.-]+; ", cookie)
    for attribute in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"):
        assert attribute.lower() in cookie.lower()
    assert keys["read"].partition(".")[2] not in cookie
    session = session_of(begun)
    assert open_page(server, "/console/", headers=session).status == 200
    you = open_page(server, "/console/you", headers=session)
    assert "Log out" in you.text
    ended = open_page(server, "/console/logout", method="POST", headers={**session, **FORM})
    assert (ended.status, ended.headers["location"]) == (303, "/console/")
    assert open_page(server, "/console/", headers=session).status == 401


def test_a_session_counts_as_long_as_its_key(keyed):
    server, _ = keyed
    with writer_engine(server._settings.database_url) as engine:
        entry, key = create_key(engine, name="short", roles=["read"])
    server._keys.refresh()
    session = session_of(log_in(server, key))
    assert open_page(server, "/console/", headers=session).status == 200
    with writer_engine(server._settings.database_url) as engine:
        revoke_key(engine, entry.id)
    server._keys.refresh()
    assert open_page(server, "/console/", headers=session).status == 401


@pytest.mark.parametrize("key", ["", "quadriga-0123456789ab.abc", "hello", "%ff", "a" * 2000])
def test_a_wrong_key_begins_no_session(keyed, key):
    server, _ = keyed
    answer = log_in(server, key)
    assert (answer.status, answer.cookies) == (400, [])
    assert 'role="alert"' in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "null", "sec-fetch-site": "cross-site"},
        {"host": "evil.example", "origin": "http://evil.example"},
    ],
)
def test_a_page_of_another_site_logs_nobody_in_or_out(keyed, headers):
    server, keys = keyed
    body = f"key={keys['read']}".encode()
    sent = FORM | headers
    assert open_page(server, "/console/login", method="POST", headers=sent, body=body).status == 403
    session = session_of(log_in(server, keys["read"]))
    open_page(server, "/console/logout", method="POST", headers=session | sent)
    assert open_page(server, "/console/", headers=session).status == 200


def test_a_link_of_another_site_leads_through_a_page_of_this_one(keyed):
    server, _ = keyed
    visit = {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    page = open_page(server, "/console/inferences?q=a", headers=visit)
    assert page.status == 200
    assert 'content="0;url=/console/inferences?q=a"' in page.text


@pytest.mark.parametrize("mark", ["", "x", "a.b"])
def test_a_made_up_session_is_nobody(keyed, mark):
    headers = {"cookie": f"__Host-quadriga-session={mark}"}
    assert open_page(keyed[0], "/console/", headers=headers).status == 401


def test_where_browsers_keep_no_session_the_page_says_so(keyed):
    page = open_page(keyed[0], "/console/", headers={"host": "192.0.2.7:8080"})
    assert "Log in over https" in page.text
    assert "<form" not in page.text


@pytest.mark.parametrize(
    ("path", "status"), [("/console/", 200), ("/console/you", 200), ("/console/no/such", 404)]
)
def test_every_page_says_what_a_browser_may_do(tmp_path, path, status):
    server = application(tmp_path)
    page = open_page(server, path)
    assert page.status == status
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "same-origin"
    assert page.headers["cache-control"] == "no-store"
    assert "<style" not in page.text
    assert " style=" not in page.text
    assert open_page(server, path, method="HEAD").status == status
    server.close()


def test_static_files_are_named_by_their_content_and_kept(tmp_path):
    server = application(tmp_path)
    page = open_page(server, "/console/")
    paths = re.findall(r'"(/console/static/[^"]+)"', page.text)
    assert len(paths) >= 4
    for path in paths:
        file = open_page(server, path)
        assert (file.status, bool(file.text)) == (200, True)
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
        again = open_page(server, path, headers={"if-none-match": file.headers["etag"]})
        assert (again.status, again.text) == (304, "")
        folder, _, name = path.rpartition("/")
        older = open_page(server, f"{folder[:-12]}000000000000/{name}")
        assert older.headers["cache-control"] == "no-cache"
    for name in ("frame.html.jinja", "..%2f__init__.py", "__init__.py"):
        assert open_page(server, f"/console/static/x/{name}").status == 404
    server.close()


def test_under_a_base_every_link_of_this_server_begins_with_it(tmp_path):
    server = application(tmp_path, public_url="https://vision.example/base/", insecure=True)
    page = open_page(server, "/console/")
    links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
    assert len(links) > 5
    assert not [link for link in links if not link.startswith("/base/")]
    assert "https://vision.example/base" in page.text or "No model is ready" in page.text
    server.close()


def test_a_server_without_a_store_says_so(tmp_path):
    server = application(tmp_path, store=False)
    page = open_page(server, "/console/")
    assert page.status == 200
    assert "This server stores nothing." in page.text
    server.close()
