"""Searches run beside other requests, and only for as long as somebody waits for them."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from quadriga.engine.api.store_queries import StoreQueries
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.store.database.database import Cancellation, ReaderPool, execute
from quadriga.store.records.errors import QueryCancelledError
from tests.background import until
from tests.unit.store.test_database import ENDLESS
from tests.unit.store_harness import StoreHarness


def client(leave: asyncio.Event) -> SimpleNamespace:
    """Make a request whose client leaves when it is told to."""
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    return SimpleNamespace(receive=receive)


async def test_a_client_that_leaves_ends_its_query(store: StoreHarness) -> None:
    store.writer.drain()
    queries = StoreQueries(store.inferences, BoundedThreads("queries", 1, 9, 30.0))
    leave, running = asyncio.Event(), threading.Event()

    def search(inferences) -> None:
        with inferences.snapshot() as connection:
            running.set()
            execute(connection, ENDLESS).all()

    searching = asyncio.ensure_future(queries.run(client(leave), search))
    waiting = asyncio.ensure_future(queries.run(client(leave), search))
    await asyncio.to_thread(running.wait, 30)
    assert running.is_set()
    await asyncio.sleep(0.05)  # until the statement runs
    leave.set()
    for ended in (searching, waiting):
        with pytest.raises(QueryCancelledError, match="its client left"):
            await ended
    stays = client(asyncio.Event())
    count = "SELECT count(*) FROM inference"

    def look(inferences) -> list[tuple[int]]:
        with inferences.snapshot() as connection:
            return [tuple(row) for row in execute(connection, count)]

    for _ in range(3):  # the connection of the query that was ended is of use to others
        assert await queries.run(stays, look) == [(0,)]


def test_a_cancelled_reader_asks_nothing_more_and_others_go_on(store: StoreHarness) -> None:
    store.writer.drain()
    readers = ReaderPool(store.url)
    cancellation = Cancellation()
    view = readers.cancelled_by(cancellation)
    with view.snapshot() as connection:
        assert execute(connection, "SELECT 1").scalar_one() == 1
    cancellation.cancel()
    with pytest.raises(QueryCancelledError), view.snapshot():
        raise AssertionError
    with readers.snapshot() as connection:
        assert execute(connection, "SELECT 1").scalar_one() == 1
    readers.close()


def test_a_cancellation_reaches_a_query_in_another_thread(store: StoreHarness) -> None:
    store.writer.drain()
    readers, cancellation, errors = ReaderPool(store.url), Cancellation(), []

    def search() -> None:
        try:
            with readers.cancelled_by(cancellation).snapshot() as connection:
                execute(connection, ENDLESS)
        except QueryCancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=search)
    thread.start()
    until(lambda: cancellation._interrupts)
    time.sleep(0.05)
    cancellation.cancel()
    thread.join(4)
    assert not thread.is_alive()
    assert len(errors) == 1
    readers.close()
