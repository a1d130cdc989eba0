"""The client for `async` code: the methods of `Client`, each awaited, over the same requests.

Each call runs in one of a few threads, which wait for the network; so notebooks, whose event loop runs already, and any
framework can use it. A call that is cancelled goes on in its thread to its end.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import isgeneratorfunction
from typing import Any, Self

from .batches import (
    Batch,
    FailedInference,
    Metadata,
    Progress,
    check_concurrency,
    failure,
    until_fault,
)
from .client import Client
from .errors import ClientError
from .images import Image, source_name
from .queries import Query, StoredInference
from .resources import Resource
from .results import Result
from .stored import Where
from .versions import Version

MAX_THREADS = 64
"""Maximum calls at a time; further ones wait."""

_END = object()


class AsyncClient:
    """A server at a URL, for `async` code; takes the arguments of `Client`.

    Methods of `models`, `traffic`, `schedules`, `inferences`, `truth`, `views`, `jobs`, `reports` and `server` are those of
    `Client`, awaited; those that yield are asynchronous iterators.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = Client(*arguments, **options)
        self._threads = ThreadPoolExecutor(MAX_THREADS, "quadriga-client")
        for name, group in vars(self._client).items():
            if isinstance(group, Resource):
                setattr(self, name, AsyncResource(group, self._run))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    @property
    def url(self) -> str:
        """URL of the server."""
        return self._client.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for calls under way, and close the connections."""
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)
        self._client.close()

    async def infer(
        self,
        model: str,
        image: Image,
        metadata: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Result:
        """Run a model on an image; see `Client.infer`."""
        result: Result = await self._run(self._client.infer, model, image, metadata, **options)
        return result

    async def infer_many(
        self,
        model: str,
        images: Any,
        metadata: Metadata = None,
        *,
        version: Version | None = None,
        parameters: Mapping[str, Any] | None = None,
        concurrency: int = 8,
        progress: bool = False,
        path_key: str | None = "path",
    ) -> AsyncIterator[Result | FailedInference]:
        """Run a model on many images; see `Client.infer_many`."""
        check_concurrency(concurrency)
        batch = await self._run(Batch, images, metadata, path_key)
        shown = Progress(progress, batch.total)
        waiting: deque[tuple[str, asyncio.Task[Result]]] = deque()
        pairs = until_fault(batch)
        fault: Exception | None = None
        try:
            while True:
                pair = await self._run(next, pairs, _END)
                if isinstance(pair, Exception):
                    fault = pair
                if pair is _END or fault is not None:
                    break
                image, own = pair
                if len(waiting) >= concurrency:
                    yield shown.note(await _outcome(*waiting.popleft()))
                call = self.infer(model, image, own, version=version, parameters=parameters)
                waiting.append((source_name(image), asyncio.ensure_future(call)))
            while waiting:
                yield shown.note(await _outcome(*waiting.popleft()))
            if fault is not None:
                raise fault
        finally:
            for _, task in waiting:
                task.cancel()
            await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)
            shown.end()

    async def infer_tensors(self, model: str, inputs: Any, **options: Any) -> dict[str, Any]:
        """Run a model that takes tensors; see `Client.infer_tensors`."""
        answer: dict[str, Any] = await self._run(
            self._client.infer_tensors, model, inputs, **options
        )
        return answer

    async def log(self, model: str, image: Image | None = None, *values: Any, **options: Any) -> list[str]:  # fmt: skip
        """Store an inference of a model that is served elsewhere; see `Client.log`."""
        ids: list[str] = await self._run(self._client.log, model, image, *values, **options)
        return ids

    async def log_many(
        self, model: str, inferences: Sequence[Mapping[str, Any]], *, version: Version | None = None
    ) -> dict[str, Any]:
        """Store inferences of a model that is served elsewhere; see `Client.log_many`."""
        answer: dict[str, Any] = await self._run(
            self._client.log_many, model, inferences, version=version
        )
        return answer

    def query(self, where: Where = None, **options: Any) -> "AsyncQuery":
        """Find stored inferences; see `Client.query`."""
        return AsyncQuery(self._client.query(where, **options), self._run)

    async def evaluate(self, model: str, **options: Any) -> Any:
        """Evaluate a model; see `Client.evaluate`."""
        return await self._run(self._client.evaluate, model, **options)

    async def drift(self, model: str, **options: Any) -> Any:
        """Compare with a baseline; see `Client.drift`."""
        return await self._run(self._client.drift, model, **options)

    async def _run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *arguments, **options))


Run = Callable[..., Awaitable[Any]]


class AsyncResource:
    """The methods of a group of `Client`, awaited."""

    def __init__(self, group: Resource, run: Run) -> None:
        self._group = group
        self._run = run

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._group, name)
        if isgeneratorfunction(method):
            return lambda *arguments, **options: _iterate(method(*arguments, **options), self._run)
        return partial(self._run, method)

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._group) if not name.startswith("_")]

    def __repr__(self) -> str:
        return repr(self._group)


class AsyncQuery:
    """Inferences that a filter finds; see `Query`."""

    def __init__(self, query: Query, run: Run) -> None:
        self._query = query
        self._run = run

    def __repr__(self) -> str:
        return repr(self._query)

    def pages(self) -> AsyncIterator[list[StoredInference]]:
        """Yield lists of inferences; see `Query.pages`."""
        return _iterate(self._query.pages(), self._run)

    async def __aiter__(self) -> AsyncIterator[StoredInference]:
        async for page in self.pages():
            for inference in page:
                yield inference

    async def count(self) -> int:
        """Return how many inferences the filter finds."""
        count: int = await self._run(self._query.count)
        return count

    async def to_pandas(self, *, detections: bool = False, annotations: bool = False) -> Any:
        """Return a `pandas.DataFrame`; see `Query.to_pandas`."""
        return await self._run(
            self._query.to_pandas, detections=detections, annotations=annotations
        )

    async def to_polars(self, *, detections: bool = False, annotations: bool = False) -> Any:
        """Return a `polars.DataFrame`; see `Query.to_polars`."""
        return await self._run(
            self._query.to_polars, detections=detections, annotations=annotations
        )

    async def to_arrow(self, *, detections: bool = False, annotations: bool = False) -> Any:
        """Return a `pyarrow.Table`; see `Query.to_arrow`."""
        return await self._run(self._query.to_arrow, detections=detections, annotations=annotations)


async def _iterate(items: Iterator[Any], run: Run) -> AsyncIterator[Any]:
    """Yield what an iterator yields, each step of which waits in a thread."""
    try:
        while (item := await run(next, items, _END)) is not _END:
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            await run(close)


async def _outcome(source: str, task: "asyncio.Task[Result]") -> Result | FailedInference:
    try:
        return await task
    except ClientError as error:
        return failure(source, error)
