"""Log-in, log-out and expiry in Chromium, with an identity provider on another site; a page of that site cannot use the session."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.browser import Browser
from tests.oidc_provider import ProviderProcess
from tests.onnx_models import doubling
from tests.server_process import ServerProcess

pytestmark = pytest.mark.browser

SESSION_S = 25
"""Enough for what one session does here, also on a machine that has no time."""

ATTEMPTS = """(async () => {
  const server = %r, outcomes = [];
  for (const [path, options] of [
    ['/console/account', {credentials: 'include'}],
    ['/console/logout', {credentials: 'include', method: 'POST', mode: 'no-cors'}],
    ['/api/inferences/delete', {credentials: 'include', method: 'POST', mode: 'no-cors', body: '{}'}],
  ]) {
    try { const answer = await fetch(server + path, options); outcomes.push([answer.type, answer.status]); }
    catch (error) { outcomes.push([error.name]); }
  }
  return outcomes;
})()"""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        link = self.path.partition("?")[2]
        self.wfile.write(f"<!doctype html><title>x</title><a href='{link}'>there</a>".encode())

    def log_message(self, *_: object) -> None:
        pass


def cookies(browser):
    return {cookie["name"]: cookie for cookie in browser.send("Network.getAllCookies")["cookies"]}


def log_in(browser, server):
    """Log in by the pages, as a person does."""
    browser.open(f"http://{server.host}/console/")
    browser.wait_for("document.querySelector('.button.first')?.innerText === 'Log in'")
    browser.run("document.querySelector('.button.first').click()")
    browser.wait_for("location.hostname === 'localhost' && !!document.querySelector('form')")
    browser.run("""(() => {
        const button = [...document.querySelectorAll('button, input')].find(e => e.value === 'mara');
        if (button) { button.click(); return; }
        const form = document.querySelector('form'), input = form.querySelector('[name=sub]');
        input.value = 'mara';
        form.requestSubmit();
    })()""")
    browser.wait_for("document.querySelector('.nav a[aria-current]')?.innerText === 'Overview'")


def test_log_in_log_out_and_expiry_in_a_browser(tmp_path):
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    pages = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    browser = Browser()
    try:
        with ProviderProcess() as provider:  # at `localhost`: another site than 127.0.0.1
            short = {"engine.config.settings": {"SESSION_HOURS": SESSION_S / 3600}}
            with ServerProcess(
                tmp_path / "data", tmp_path / "models", *provider.flags(), constants=short
            ) as server:
                address = f"http://{server.host}"
                server.wait_until(lambda: server.request("GET", "/console/login")[0] == 302)
                log_in(browser, server)
                text = browser.run("document.body.innerText")
                assert "mara@example.org" in text
                assert "quality" in text
                assert browser.run("document.cookie") == ""
                session = cookies(browser)["__Host-quadriga-session"]
                assert (session["secure"], session["httpOnly"], session["sameSite"]) == (
                    True,
                    True,
                    "Strict",
                )
                assert "__Host-quadriga-login" not in cookies(browser)
                assert "code=" not in browser.run("location.href")
                # A page of another site, with the browser that has the session.
                browser.open(f"http://localhost:{pages.server_port}/?{address}/console/")
                assert browser.run(ATTEMPTS % address) == [
                    ["TypeError"],
                    ["opaque", 0],
                    ["opaque", 0],
                ]
                browser.run("document.querySelector('a').click()")  # a link leads to the console
                browser.wait_for("document.querySelector('.who')?.innerText.includes('mara')")
                browser.open(f"{address}/console/you")
                browser.wait_for("document.querySelector('h1')?.innerText === 'Account'")
                # Log-out.
                browser.run("document.querySelector('form[action$=logout] button').click()")
                browser.wait_for("document.querySelector('h1')?.innerText === 'Log in'")
                assert "__Host-quadriga-session" not in cookies(browser)
                browser.open(f"{address}/console/")
                assert browser.run("document.querySelector('h1').innerText") == "Log in"
                # Expiry.
                log_in(browser, server)
                began_s = time.monotonic()
                time.sleep(max(0.0, SESSION_S + 1 - (time.monotonic() - began_s)))
                browser.open(f"{address}/console/")
                assert browser.run("document.querySelector('h1').innerText") == "Log in"
                browser.open(f"{address}/console/account")
                assert "expected a key" in browser.run("document.body.innerText")
                assert not [
                    error for error in browser.errors if "Content Security Policy" in str(error)
                ]
                for scheme, ground in (
                    ("light", "rgb(246, 247, 248)"),
                    ("dark", "rgb(14, 17, 20)"),
                ):
                    browser.open(f"{address}/console/", scheme=scheme)
                    assert browser.run("getComputedStyle(document.body).backgroundColor") == ground
    finally:
        browser.close()
        pages.shutdown()
        pages.server_close()
