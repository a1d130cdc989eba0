"""A page of another origin in a real browser, on the machine of a developer whose server needs no key."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.browser import Browser
from tests.onnx_models import doubling
from tests.server_process import ServerProcess

pytestmark = pytest.mark.browser

ATTEMPTS = """(async () => {
  const server = %r, refused = [];
  const attempt = async (name, promise) => {
    try { const answer = await promise; refused.push([name, answer.type, answer.status]); }
    catch (error) { refused.push([name, error.name]); }
  };
  const everything = '{"all": true}', remove = server + '/api/inferences/delete';
  await attempt('read', fetch(server + '/v2'));
  await attempt('read blindly', fetch(server + '/v2', {mode: 'no-cors'}));
  await attempt('change', fetch(remove, {method: 'POST', body: everything}));
  await attempt('change blindly', fetch(remove, {method: 'POST', body: everything, mode: 'no-cors'}));
  await attempt('put', fetch(server + '/api/models/doubling/retention', {method: 'PUT', body: '{}'}));
  navigator.sendBeacon(remove, everything);
  const loaded = (element, attributes) => new Promise(done => {
    element.onload = () => done({type: 'loaded'});
    element.onerror = () => done({type: 'failed'});
    Object.assign(element, attributes);
    document.body.append(element);
  });
  await attempt('image', loaded(new Image(), {src: server + '/api/inferences'}));
  await attempt('script', loaded(document.createElement('script'), {src: server + '/v2'}));
  const frame = document.createElement('iframe');
  frame.name = 'target';
  const answered = loaded(frame, {});
  const form = document.createElement('form');
  Object.assign(form, {action: remove, method: 'POST', enctype: 'text/plain', target: 'target'});
  const input = document.createElement('input');
  Object.assign(input, {name: '{"all": true, "x": "', value: '"}'});
  form.append(input);
  document.body.append(form);
  form.submit();
  await answered;
  return refused;
})()"""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>x</title><body>")

    def log_message(self, *_: object) -> None:
        pass


def test_a_page_of_another_origin_can_neither_read_nor_change_anything(tmp_path):
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    pages = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    browser = Browser()
    try:
        with ServerProcess(tmp_path / "data", tmp_path / "models") as server:
            row = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
            status, answer = server.call("POST", "/v2/models/doubling/infer", {"inputs": [row]})
            assert status == 200, answer
            assert len(server.query({})) == 1
            browser.open(f"http://127.0.0.1:{pages.server_port}/")
            outcomes = {
                name: outcome for name, *outcome in browser.run(ATTEMPTS % f"http://{server.host}")
            }
            assert outcomes == {
                "read": ["TypeError"],
                "read blindly": ["opaque", 0],
                "change": ["TypeError"],
                "change blindly": ["opaque", 0],
                "put": ["TypeError"],
                "image": ["failed", None],
                "script": ["failed", None],
            }
            assert len(server.query({})) == 1
            browser.open(f"http://{server.host}/v2")  # the user's own visit
            assert "quadriga" in browser.run("document.body.innerText")
    finally:
        browser.close()
        pages.shutdown()
        pages.server_close()
