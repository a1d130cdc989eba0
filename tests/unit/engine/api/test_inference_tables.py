"""Inferences as tables: the same types whatever is stored, whole or cut off, and no more than the caller may have."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar

from quadriga.engine.api import store_queries
from quadriga.engine.api.errors import EXCEPTION_HANDLERS
from quadriga.engine.api.store_queries import StoreQueries
from quadriga.engine.api.stored import inference_tables
from quadriga.engine.api.stored.event_streams import EventStreams
from quadriga.engine.api.stored.inference_tables import table_routes
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.proto.access import ANYBODY, STRANGER, Caller
from quadriga.proto.http.asgi import ABORT_EXTENSION
from quadriga.proto.request import RequestContext, set_current_request
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotReadyError
from quadriga.store.records.records import JournaledChange, TruthStatement
from tests.unit.store.conftest import make_record
from tests.unit.store.exchange_records import HOLE, MS, PREDICTIONS, RING, records_of_every_task
from tests.unit.store_harness import StoreHarness

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
arrow_tables = pytest.importorskip("quadriga.store.exchange.arrow_tables")


class Download:
    """A client of a table, in a task of its own."""

    def __init__(
        self,
        routes: Any,
        path: str,
        query: str = "",
        *,
        caller: Caller = ANYBODY,
        identify: Callable[[], Caller] | None = None,
    ) -> None:
        self._routes = routes
        self.was_cut_off = False
        self._scope: Any = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http", "http_version": "1.1",
            "root_path": "", "state": {}, "extensions": {ABORT_EXTENSION: self._cut_off},
        }  # fmt: skip
        self._caller = caller
        self._identify = identify or (lambda: caller)
        self._left = asyncio.Event()
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self.body = b""
        self.task = asyncio.create_task(self._run())

    def _cut_off(self) -> None:
        self.was_cut_off = True
        self._left.set()

    async def _run(self) -> None:
        set_current_request(RequestContext(caller=self._caller, identify=self._identify))
        await self._routes(self._scope, self._receive, self._send)

    async def _receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        await self.may_send.wait()
        self.body += message["body"]
        self.is_complete = not message.get("more_body")

    def leave(self) -> None:
        self._left.set()

    async def end(self) -> "Download":
        """Wait for the end of the response, whatever it is."""
        await asyncio.wait([self.task], timeout=30)
        assert self.task.done()
        return self

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of a whole table of either form."""
        assert (self.status, self.is_complete) == (200, True), self.body[:300]
        if self._scope["path"].endswith(".arrow"):
            return pa.ipc.open_stream(self.body).read_all().to_pylist(maps_as_pydicts="strict")
        return pq.read_table(io.BytesIO(self.body)).to_pylist(maps_as_pydicts="strict")


class Place:
    """A store, and the routes of its tables."""

    def __init__(self, store: StoreHarness, timeout_s: float = 60.0) -> None:
        self.store = store
        self.streams = EventStreams(2, 1)
        queries = StoreQueries(store.inferences, BoundedThreads("queries", 2, 64, 30.0))
        routes = table_routes(queries, self.streams, timeout_s)
        self.routes: Any = Litestar([*routes], exception_handlers=EXCEPTION_HANDLERS)

    def download(self, form: str = "arrow", query: str = "", **options: Any) -> Download:
        return Download(self.routes, f"/api/inferences.{form}", query, **options)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreHarness]:
    monkeypatch.setattr(inference_tables, "PAGE_ROWS", 7)
    monkeypatch.setattr(store_queries, "RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(arrow_tables, "ROW_GROUP_ROWS", 20)
    harness = StoreHarness(tmp_path, f"sqlite:///{tmp_path}/store.db")
    yield harness
    harness.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(whole())


END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
FORMS = pytest.mark.parametrize("form", ["arrow", "parquet"])


@FORMS
def test_a_row_has_what_the_api_answers(store: StoreHarness, form: str) -> None:
    records = records_of_every_task(make_record, store.blobs)
    truth = [{"label": "a", "xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4, "difficult": True}]
    statement = TruthStatement("id", str(records[1].seq), truth, task="OBJECT_DETECTION")
    store.commit(*records, JournaledChange(MS + 200 << 22, statement))

    async def work() -> None:
        download = await Place(store).download(form).end()
        rows = {row["task"]: row for row in reversed(download.rows())}
        detection = rows["OBJECT_DETECTION"]
        (prediction,) = detection["predictions"]
        expected = PREDICTIONS["OBJECT_DETECTION"][0]
        assert {key: value for key, value in prediction.items() if value is not None} == expected
        (annotation,) = detection["ground_truth"]
        assert {key: value for key, value in annotation.items() if value is not None} == truth[0]
        assert detection["id"] == records[1].seq
        assert detection["created_at"].timestamp() * 1000 == 1_769_860_800_124
        assert detection["metadata"] == {"camera": "north", "at.floor": "1", "latitude": "1.5"}
        assert json.loads(detection["metadata_json"])["list"] == [1]
        assert (detection["predictions_json"], detection["ground_truth_json"]) == (None, None)
        assert rows["IMAGE_SEGMENTATION"]["predictions"][0]["contour"] == [RING, HOLE]
        assert rows["IMAGE_SEGMENTATION"]["ground_truth"] is None
        assert rows["TENSOR"]["predictions"] is None
        assert json.loads(rows["TENSOR"]["predictions_json"]) == PREDICTIONS["TENSOR"]
        assert download.headers["content-type"].startswith("application/vnd.apache.")
        assert download.headers["content-disposition"].endswith(f'filename="inferences.{form}"')

    run(work)


@FORMS
@pytest.mark.parametrize("which", ["nothing", "tensors", "odd"])
def test_types_never_depend_on_what_is_stored(store: StoreHarness, form: str, which: str) -> None:
    odd: list[Any] = [
        {"label": 5, "score": "high", "xmin": True, "contour": [[{"x": 1}]], "answers": [1]},
        {"score": 1 << 60, "contour": None, "more": {"deep": []}},
    ]
    predictions = {"tensors": [[1, 2.5]], "odd": odd}.get(which, [])
    store.commit(make_record(1, predictions=predictions, metadata={"a": [], "b": {"c": None}}))

    async def work() -> None:
        query = "id=9" if which == "nothing" else ""
        download = await Place(store).download(form, query).end()
        rows = download.rows()
        if form == "arrow":
            schema = pa.ipc.open_stream(download.body).schema
        else:
            schema = pq.read_schema(io.BytesIO(download.body))
        assert schema.equals(arrow_tables.SCHEMA)
        if which == "odd":
            assert json.loads(rows[0]["predictions_json"]) == odd
            assert rows[0]["predictions"][0]["label"] is None

    run(work)


@FORMS
def test_all_pages_are_sent_in_order(store: StoreHarness, form: str) -> None:
    store.commit(*(make_record(seq, metadata={"odd": seq % 2 == 1}) for seq in range(1, 101)))

    async def work() -> None:
        place = Place(store)
        everything = (await place.download(form).end()).rows()
        assert [row["id"] for row in everything] == [*range(1, 101)]
        odd = (await place.download(form, "meta.odd=true&order=-ts&limit=30").end()).rows()
        assert [row["id"] for row in odd] == [*range(99, 40, -2)]
        assert place.streams.count == 0

    run(work)


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("nonsense(", 400, "expected"),
        ("limit=0", 400, "expected"),
        ("cursor=x", 400, "expected"),
        ("order=sideways", 400, "expected"),
    ],
)
def test_a_query_that_means_nothing_is_refused_before_anything_is_sent(
    store: StoreHarness, query: str, status: int, message: str
) -> None:
    store.commit(make_record(1))

    async def work() -> None:
        download = await Place(store).download("arrow", query).end()
        assert download.status == status
        assert message in json.loads(download.body)["error"]

    run(work)


def test_without_pyarrow_the_answer_says_how_to_get_it(store: StoreHarness, monkeypatch) -> None:
    monkeypatch.setattr(inference_tables, "find_spec", lambda _: None)

    async def work() -> None:
        download = await Place(store).download().end()
        assert download.status == 400
        assert "pip install 'quadriga[parquet]'" in json.loads(download.body)["error"]

    run(work)


def test_a_client_that_leaves_ends_the_work(store: StoreHarness) -> None:
    store.commit(*(make_record(seq) for seq in range(1, 200)))
    pages = []
    query = InferenceReader.query

    async def work() -> None:
        place = Place(store)
        download = place.download()
        download.may_send.clear()
        while not download.status:  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)
        download.leave()
        await download.end()
        assert not download.is_complete
        assert place.streams.count == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InferenceReader, "query", lambda *values: pages.append(1) or query(*values))
        run(work)
    assert len(pages) < 4  # of 29


def test_only_what_the_key_may_see_is_sent(store: StoreHarness) -> None:
    store.commit(*(make_record(seq, team="ab"[seq % 2]) for seq in range(1, 21)))

    async def work() -> None:
        caller = Caller(name="reader", key_id="k", rights=frozenset({"read"}), team="b")
        rows = (await Place(store).download(caller=caller).end()).rows()
        assert [row["id"] for row in rows] == [*range(1, 21, 2)]
        assert {row["team"] for row in rows} == {"b"}

    run(work)


@FORMS
def test_a_table_that_is_cut_off_is_no_table(store: StoreHarness, form: str) -> None:
    store.commit(*(make_record(seq) for seq in range(1, 200)))

    async def work() -> None:
        place = Place(store, timeout_s=0.0)
        download = await place.download(form).end()
        assert (download.status, download.is_complete, download.was_cut_off) == (200, False, True)
        if form == "parquet":
            with pytest.raises(pa.ArrowInvalid):
                pq.read_table(io.BytesIO(download.body))
        assert not download.body.endswith(END_OF_STREAM)

    run(work)


def test_a_key_that_ends_ends_its_table(store: StoreHarness, monkeypatch) -> None:
    monkeypatch.setattr(inference_tables, "CHECK_INTERVAL_S", 0.0)
    store.commit(*(make_record(seq) for seq in range(1, 200)))

    async def work() -> None:
        download = await Place(store).download(identify=lambda: STRANGER).end()
        assert (download.is_complete, download.was_cut_off) == (False, True)

    run(work)


def test_a_database_that_is_away_for_a_moment_is_waited_for(
    store: StoreHarness, monkeypatch
) -> None:
    store.commit(*(make_record(seq) for seq in range(1, 51)))
    calls = []
    query = InferenceReader.query

    def flaky(*values: Any) -> Any:
        calls.append(1)
        if len(calls) in (3, 4, 6):
            raise NotReadyError("away")
        return query(*values)

    monkeypatch.setattr(InferenceReader, "query", flaky)

    async def work() -> None:
        rows = (await Place(store).download().end()).rows()
        assert [row["id"] for row in rows] == [*range(1, 51)]

    run(work)


def test_more_streams_than_may_be_are_refused(store: StoreHarness) -> None:
    store.commit(*(make_record(seq) for seq in range(1, 200)))

    async def work() -> None:
        place = Place(store)
        slow = [place.download() for _ in range(2)]
        for download in slow:
            download.may_send.clear()
        while place.streams.count < 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        refused = await place.download().end()
        assert refused.status == 503
        place.streams.close()  # as at the shutdown of a server
        for download in slow:
            await download.end()
            assert download.was_cut_off
        assert place.streams.count == 0

    run(work)
