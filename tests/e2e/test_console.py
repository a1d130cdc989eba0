"""The console of a real server: where it is, as the server prints it, and who gets in with a key."""

import http.cookies
import re
from urllib.parse import urlencode

from tests.pages import blocks
from tests.server_process import SAMPLE_MODELS, ServerProcess

BROWSER = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}


def test_the_server_prints_where_the_console_is(tmp_path):
    (block,) = blocks("docs/console.md")
    prints = r"quadriga serve sample_models +# prints: Console on http://[\d.:]+/console/\n"
    assert re.fullmatch(prints, block.text)
    with ServerProcess(tmp_path / "data") as server:
        assert server.process is not None
        assert server.process.stdout is not None
        line = server.process.stdout.readline()
        assert line == f"Console on http://{server.host}/console/\n"
        status, headers, page = server.request("GET", "/console/", headers=BROWSER)
        assert (status, headers["content-type"].partition(";")[0]) == (200, "text/html")
        assert b"shapes-detector" in page


def test_a_session_of_a_key_holds_in_all_workers_until_the_key_is_revoked(tmp_path):
    key = "quadriga-0123456789ab." + "k" * 43
    server = ServerProcess(tmp_path / "data", SAMPLE_MODELS / "shapes-detector", "--workers", "2")
    server.environment = {"QUADRIGA_ADMIN_KEY": key}
    with server:
        assert server.request("GET", "/console/", headers=BROWSER)[0] == 401
        form = urlencode({"key": key, "next": "/console/keys"})
        sent = {**BROWSER, "Origin": f"http://{server.host}"}
        status, headers, _ = server.request("POST", "/console/login", form, sent)
        assert (status, headers["location"]) == (303, "/console/keys")
        cookie = http.cookies.SimpleCookie(headers["set-cookie"])
        (name, morsel) = next(iter(cookie.items()))
        session = {**BROWSER, "Cookie": f"{name}={morsel.value}"}
        for path in ("/console/", "/console/inferences", "/console/keys", "/console/audit") * 3:
            assert server.request("GET", path, headers=session)[0] == 200, path
        assert server.request("GET", "/api/inferences", headers=session)[0] == 200
        # Without the mark of a page of this server, the cookie is nobody's.
        bare = {"Cookie": session["Cookie"]}
        assert server.request("GET", "/api/inferences", headers=bare)[0] == 401
        other = {**bare, "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
        assert server.request("POST", "/api/inferences/delete", b"{}", other)[0] == 403
        log = server.request("GET", "/console/audit", headers=session)[2].decode()
        assert "log-in" in log
        assert key not in log
