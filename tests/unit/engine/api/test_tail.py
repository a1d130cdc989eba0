"""The tail of new inferences as events: what is in them, where they go on, and how many listeners there may be."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar import Litestar

from quadriga.engine.api import store_queries
from quadriga.engine.api.errors import EXCEPTION_HANDLERS
from quadriga.engine.api.store_queries import StoreQueries
from quadriga.engine.api.stored import event_streams, tail
from quadriga.engine.api.stored.event_streams import EventStreams
from quadriga.engine.api.stored.tail import tail_route
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.proto.access import ANYBODY, STRANGER, Caller
from quadriga.proto.request import RequestContext, set_current_request
from quadriga.store.browsing import arrivals
from quadriga.store.browsing.arrivals import NewInferences
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotReadyError
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import JournaledRecord
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

Event = tuple[str, str, Any]
"""Name, id and content of an event."""


class Listener:
    """A client of the tail, in a task of its own, with a context as that of a request."""

    def __init__(
        self,
        routes: Any,
        query: str = "",
        *,
        caller: Caller = ANYBODY,
        headers: dict[str, str] | None = None,
        identify: Callable[[], Caller] | None = None,
    ) -> None:
        self._routes = routes
        sent = {"host": "localhost", "accept": "text/event-stream", **(headers or {})}
        self._scope: Any = {
            "type": "http", "method": "GET", "path": "/api/inferences/tail", "raw_path": b"/api/inferences/tail",
            "query_string": query.encode(), "headers": [(n.encode(), v.encode()) for n, v in sent.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http", "http_version": "1.1",
            "root_path": "", "state": {}, "extensions": {},
        }  # fmt: skip
        self._caller = caller
        self._identify = identify or (lambda: caller)
        self._left = asyncio.Event()
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.status = 0
        self.is_complete = False
        self.text = b""
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        set_current_request(RequestContext(caller=self._caller, identify=self._identify))
        await self._routes(self._scope, self._receive, self._send)

    async def _receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.may_send.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.text += message["body"]
        self.is_complete = not message.get("more_body")

    def leave(self) -> None:
        self._left.set()

    def events(self) -> list[Event]:
        """Parse what was sent, as the specification of server-sent events says."""
        events: list[Event] = []
        name, last_id, lines = "message", "", []
        for line in self.text.decode().splitlines():
            if line == "":
                if lines:
                    events.append((name, last_id, json.loads("\n".join(lines))))
                name, last_id, lines = "message", "", []
                continue
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                lines.append(value)
            elif field == "id":
                last_id = value
        return events

    def ids(self) -> list[int]:
        """Return the ids of the inferences that were sent."""
        return [int(content["id"]) for name, _, content in self.events() if name == "inference"]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.01)


class Place:
    """A store, and the routes that tell of what arrives in it."""

    def __init__(self, store: StoreHarness, *, streams: int = 4, of_key: int = 2) -> None:
        self.store = store
        self.streams = EventStreams(streams, of_key)
        queries = StoreQueries(store.inferences, BoundedThreads("queries", 2, 64, 30.0))
        self.routes: Any = Litestar(
            [tail_route(queries, self.streams)], exception_handlers=EXCEPTION_HANDLERS
        )

    async def listen(self, query: str = "", **options: Any) -> Listener:
        """Begin to listen, and wait for the first words."""
        listener = Listener(self.routes, query, **options)
        await listener.until(lambda: b"retry:" in listener.text or listener.task.done())
        return listener


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(tail, "LOOK_INTERVAL_S", 0.02)
    monkeypatch.setattr(store_queries, "RETRY_INTERVAL_S", 0.02)
    monkeypatch.setattr(arrivals, "SETTLE_MS", 200)
    store = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    store.commit(make_record(1))
    yield Place(store)
    store.close()


def new_id(number: int = 0) -> int:
    """Return an id of now."""
    return smallest_id_at(int(time.time() * 1000)) + number


def new_ids(count: int) -> list[int]:
    """Return ids of one millisecond, of which a look finds all or none."""
    first = new_id(1)  # behind the smallest, which is settled a millisecond before the others
    return list(range(first, first + count))


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(whole())


def test_what_the_filter_finds_is_sent_as_the_api_answers_it(place: Place) -> None:
    async def work() -> None:
        listener = await place.listen("q=meta.camera%3Dnorth&meta.altitude=ge:2")
        ids = [new_id(number) for number in range(4)]
        place.store.commit(
            *(
                make_record(seq, metadata={"camera": camera, "altitude": altitude})
                for seq, camera, altitude in zip(
                    ids, ["north", "north", "east", "north"], [1, 2, 3, 4], strict=True
                )
            )
        )
        await listener.until(lambda: len(listener.events()) == 2)
        expected = [ids[1], ids[3]]
        for (name, event_id, content), seq in zip(listener.events(), expected, strict=True):
            stored = json.loads(msgspec.json.encode(place.store.inferences.get(str(seq))))
            assert (name, event_id) == ("inference", str(seq))
            del stored["feedback"]
            assert content == stored
        listener.leave()
        await listener.task
        assert place.streams.count == 0

    run(work)


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n", "\n\n"])
def test_line_ends_of_clients_forge_no_event(place: Place, line_end: str) -> None:
    forged = f"{line_end}event: end{line_end}data: {{}}{line_end}{line_end}"
    metadata = f'{{{line_end}"note":{line_end}{json.dumps(forged)},"\\u2028":"\u2028event: end"}}'

    async def work() -> None:
        listener = await place.listen()
        values = {
            name: getattr(make_record(new_id()), name) for name in JournaledRecord.__struct_fields__
        }
        values["metadata"] = msgspec.Raw(metadata.encode())
        values["predictions"] = msgspec.Raw(f'[{line_end}{{"label":"a"}}{line_end}]'.encode())
        values["standard"] = msgspec.Raw(b"{}")
        place.store.commit(JournaledRecord(**values))
        await listener.until(lambda: listener.text.endswith(b"}\n\n"))
        text = listener.text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        assert b"\nevent: end" not in text
        listener.text = text
        fields = {line.partition(b":")[0] for line in text.split(b"\n") if line}
        assert fields == {b"retry", b"", b"id", b"event", b"data"}
        content = json.loads(
            b"\n".join(line[6:] for line in text.split(b"\n") if line[:5] == b"data:")
        )
        assert content["metadata"] == json.loads(metadata)
        listener.leave()
        await listener.task

    run(work)


def test_a_team_and_the_models_of_a_key_bound_what_is_sent(place: Place) -> None:
    async def work() -> None:
        rights = frozenset({"read"})
        team = Caller(name="t", key_id="t", rights=rights, team="a")
        other_model = Caller(name="m", key_id="m", rights=rights, models=("ships-*",))
        listeners = [await place.listen(caller=caller) for caller in (team, other_model, ANYBODY)]
        ids = [new_id(number) for number in range(4)]
        place.store.commit(
            *(make_record(seq, team=team) for seq, team in zip(ids, "abab", strict=True))
        )
        await listeners[2].until(lambda: listeners[2].ids() == ids)
        await listeners[0].until(lambda: listeners[0].ids() == [ids[0], ids[2]])
        assert listeners[1].ids() == []
        for listener in listeners:
            listener.leave()
            await listener.task

    run(work)


def test_it_goes_on_behind_the_last_event(place: Place) -> None:
    async def work() -> None:
        ids = [new_id(number - (5000 << 22)) for number in range(6)]
        place.store.commit(*map(make_record, ids))
        by_url = await place.listen(f"after={ids[3]}")
        await by_url.until(lambda: by_url.ids() == ids[4:])
        by_header = await place.listen(f"after={ids[4]}", headers={"last-event-id": str(ids[1])})
        await by_header.until(lambda: by_header.ids() == ids[2:])
        assert [event_id for _, event_id, _ in by_header.events()] == [str(seq) for seq in ids[2:]]
        late = new_id(-(9000 << 22))
        place.store.commit(make_record(late))
        # A listener that goes on behind a lower id would get twice what it has.
        await by_header.until(lambda: by_header.events()[-1][:2] == ("inference", ""))
        assert by_header.ids() == [*ids[2:], late]
        for listener in (by_url, by_header):
            listener.leave()
            await listener.task

    run(work)


def test_the_place_of_what_was_sent_is_in_the_heartbeat(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "HEARTBEAT_S", 0.05)

    async def work() -> None:
        listener = await place.listen()
        begun = new_id(-(1000 << 22))
        await listener.until(lambda: listener.text.count(b": waiting\nid: ") > 3)
        positions = [int(part.partition(b"\n")[0]) for part in listener.text.split(b"\nid: ")[1:]]
        assert positions == sorted(positions)
        assert positions[0] > begun
        assert positions[-1] > positions[0]
        assert listener.events() == []
        listener.leave()
        await listener.task

    run(work)


def test_of_too_many_at_once_the_newest_are_sent(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "MOST_PER_S", 70)
    monkeypatch.setattr(
        arrivals, "MOST_AT_ONCE", 70
    )  # also if a look comes late, on a busy machine

    async def work() -> None:
        listener = await place.listen()
        ids = new_ids(100)
        place.store.commit(*map(make_record, ids))
        await listener.until(lambda: len(listener.events()) == 71)
        assert listener.events()[0] == ("skipped", "", {"count": 30, "is_exact": True})
        assert listener.ids() == ids[30:]
        listener.leave()
        await listener.task

    run(work)


def test_a_listener_that_does_not_read_holds_a_page_and_leaves_its_place(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    read_short = InferenceReader.read_short

    def counted(self: InferenceReader, ids: Any) -> Any:
        read.append(len(ids))
        return read_short(self, ids)

    monkeypatch.setattr(InferenceReader, "read_short", counted)

    async def work() -> None:
        listener = await place.listen()
        listener.may_send.clear()
        ids = new_ids(180)
        place.store.commit(*map(make_record, ids))
        await listener.until(lambda: read)
        await asyncio.sleep(0.3)
        assert read == [tail.PAGE]
        listener.may_send.set()
        await listener.until(lambda: listener.ids() == ids)
        listener.may_send.clear()
        place.store.commit(make_record(new_id()))
        monkeypatch.setattr(event_streams, "_LAST_WORDS_S", 0.05)
        listener.leave()
        await listener.task
        assert place.streams.count == 0

    run(work)


def test_there_are_only_so_many_at_once(place: Place) -> None:
    async def work() -> None:
        key = Caller(name="hand", key_id="k", rights=frozenset({"read"}))
        others = [await place.listen(caller=key) for _ in range(2)]
        refused = await place.listen(caller=key)
        assert (refused.status, refused.is_complete) == (429, True)
        assert b"at most 2 streams at once of the key 'hand'" in refused.text
        others += [await place.listen() for _ in range(2)]
        refused = await place.listen()
        assert refused.status == 503
        assert b"at most 4 streams at once" in refused.text
        others[0].leave()
        await others[0].task
        others.append(await place.listen(caller=key))
        assert others[-1].status == 200
        for listener in others:
            listener.leave()
            await listener.task
        assert place.streams.count == 0

    run(work)


@pytest.mark.parametrize(
    ("query", "headers", "status", "message"),
    [
        ("", {"accept": "application/json"}, 400, "expected Accept: text/event-stream"),
        ("q=(", {}, 400, "expected a comparison"),
        ("after=x", {}, 400, "expected after to be an id"),
        ("", {"last-event-id": "1, 2"}, 400, "expected after to be an id"),
        ("report=no", {}, 404, "no"),
    ],
)
def test_what_cannot_be_answered_is_refused_and_takes_no_place(
    place: Place, query: str, headers: dict[str, str], status: int, message: str
) -> None:
    async def work() -> None:
        listener = Listener(place.routes, query, headers=headers)
        await listener.task
        assert listener.status == status, listener.text
        assert message in json.loads(listener.text)["error"]
        assert place.streams.count == 0

    run(work)


def test_a_key_that_ends_ends_the_tail_and_one_that_changes_changes_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "CHECK_INTERVAL_S", 0.0)

    async def work() -> None:
        now = [ANYBODY]
        listener = await place.listen(identify=lambda: now[0])
        now[0] = Caller(name="t", key_id="t", rights=frozenset({"read"}), team="a")
        await asyncio.sleep(0.1)
        ids = [new_id(number) for number in range(2)]
        place.store.commit(
            *(make_record(seq, team=team) for seq, team in zip(ids, "ba", strict=True))
        )
        await listener.until(lambda: listener.ids() == [ids[1]])
        now[0] = STRANGER
        await listener.task
        name, event_id, content = listener.events()[-1]
        assert (name, event_id, listener.is_complete) == ("end", "", True)
        assert content["error"].startswith("expected a key")
        assert place.streams.count == 0

    run(work)


@pytest.mark.parametrize("reads", [True, False])
def test_the_end_of_the_server_ends_every_tail_and_no_other_begins(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, reads: bool
) -> None:
    monkeypatch.setattr(event_streams, "_LAST_WORDS_S", 0.05)

    async def work() -> None:
        listener = await place.listen()
        if not reads:
            listener.may_send.clear()
            place.store.commit(make_record(new_id()))
            await asyncio.sleep(0.4)
        place.streams.close()
        await listener.task
        assert listener.is_complete is reads
        assert place.streams.count == 0
        listener = await place.listen()
        assert listener.status == 503

    run(work)


def test_a_database_that_is_away_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, failures = NewInferences.look, [0]

    def sometimes(self: NewInferences, inferences: InferenceReader) -> Any:
        if self.position and failures[0] < 5:
            failures[0] += 1
            raise NotReadyError("away")
        return look(self, inferences)

    monkeypatch.setattr(NewInferences, "look", sometimes)

    async def work() -> None:
        listener = await place.listen()
        seq = new_id()
        place.store.commit(make_record(seq))
        await listener.until(lambda: listener.ids() == [seq])
        assert failures == [5]
        listener.leave()
        await listener.task

    run(work)
