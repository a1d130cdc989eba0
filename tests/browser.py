"""A headless Chromium that tells what went wrong on a page: its DevTools protocol over two pipes."""

import base64
import contextlib
import fcntl
import itertools
import os
import shutil
import subprocess
import tempfile
import time

import msgspec

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page in a browser.

    `errors` holds what the console, the network and the content security policy complained about.
    `questions` holds the kinds of dialogs that pages opened; each is answered with yes.
    """

    def __init__(self):
        self.errors = []
        self.questions = []
        self._numbers = itertools.count(1)
        self._kept = b""
        self._stack = contextlib.ExitStack()
        profile = self._stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        theirs_in, self._out = _pipe()
        self._in, theirs_out = _pipe()
        # DevTools reads from descriptor 3 and writes to 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}', PATH, "--headless",
             "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
             "--remote-debugging-pipe", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Page.setLifecycleEventsEnabled", enabled=True)
        # As if its window were in front: without it a page beside others may get no focus events.
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)

    _session = None

    def send(self, method, **params):
        """Send a command and return its result."""
        number = self._write(method, params)
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url, *, scheme="light", medium="screen", width=1200, height=900):
        """Load a page, or a file, and wait until it is there, even if the page before asks whether to leave it."""
        self.questions.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=medium, features=features)
        page = self.send("Page.navigate", url=url if isinstance(url, str) else url.as_uri())
        while not _is_loaded(self._next(), page["loaderId"]):  # the page before may be told of yet
            pass

    def run(self, script):
        """Return what an expression, or its promise, gives on the page."""
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, script, timeout_s=30):
        """Return what an expression gives on the page, once it has loaded and that is true; a page may follow."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                if value := self.run(f"document.readyState === 'complete' && ({script})"):
                    return value
            except AssertionError:  # a page that is left meanwhile
                pass
            assert time.monotonic() < until, (script, self.run("document.body.innerText"))
            time.sleep(0.05)

    def picture(self):
        """Return the whole page as PNG."""
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def printed(self):
        """Return the page as PDF."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])

    def close(self):
        """End the browser."""
        self._session = None
        with contextlib.suppress(OSError):
            self.send("Browser.close")
        self._process.wait(20)
        os.close(self._in)
        os.close(self._out)
        self._stack.close()

    def _write(self, method, params):
        """Send a command and return its number."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, msgspec.json.encode(message) + b"\0")
        return number

    def _next(self):
        """Return the next message and note what it complains about."""
        while b"\0" not in self._kept:
            read = os.read(self._in, 1 << 20)
            if not read:
                raise OSError("the browser has ended")
            self._kept += read
        text, _, self._kept = self._kept.partition(b"\0")
        message = msgspec.json.decode(text)
        method, params = message.get("method"), message.get("params", {})
        if method in {
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Network.loadingFailed",
        }:
            self.errors.append(params)
        if method == "Page.javascriptDialogOpening":  # the page answers nothing until it is closed
            self.questions.append(params["type"])
            self._write("Page.handleJavaScriptDialog", {"accept": True})
        if method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.errors.append(params)
        if method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:")):
                self.errors.append(url)
        return message


def _is_loaded(message, loader):
    """Tell whether a message says that the page of a loader is there."""
    event = message.get("params", {})
    is_of_page = message.get("method") == "Page.lifecycleEvent" and event["loaderId"] == loader
    return is_of_page and event["name"] == "load"


def _pipe():
    """Return a pipe whose descriptors are above those that DevTools wants."""
    low = os.pipe()
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in low]
    for descriptor in low:
        os.close(descriptor)
    return high
