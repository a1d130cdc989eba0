"""Work in other threads, and waiting for what it does."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def until(condition: Callable[[], Any]) -> None:
    """Wait for as long as a condition does not hold, and for a minute at most."""
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, "not within 60 s"
        time.sleep(0.005)


@contextmanager
def in_background(work: Callable[..., Any], *arguments: Any) -> Iterator[threading.Event]:
    """Let a thread work until the end of the block; `work` takes an event last that tells it to end."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(*arguments, stop))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer HTTP until the end of the block; gives `host:port`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(60)


def at_once(calls: Sequence[Callable[[], Any]]) -> None:
    """Make all calls at the same time, each in a thread, and wait for their ends; none may fail."""
    barrier, errors = threading.Barrier(len(calls)), list[Exception]()

    def run(call: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the main thread asserts that there is none
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
