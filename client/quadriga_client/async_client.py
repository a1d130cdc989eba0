"""The client for `async` code: the methods of `Client`, each awaited, over the same requests.

Each call runs in one of a few threads, which wait for the network; so notebooks, whose event loop runs already, and any
framework can use it. A call that is cancelled goes on in its thread to its end.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from inspect import isgeneratorfunction
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from .batches import FailedInference
from .client import Client
from .queries import Query, StoredInference
from .resources.resource import Resource
from .resources.stored import Where
from .results import Result

MAX_THREADS = 64
"""Maximum calls at a time; further ones wait."""

P = ParamSpec("P")
T = TypeVar("T")
_END = object()


def _awaited(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    """Return a method of `Client` as one of `AsyncClient`."""

    @wraps(method)
    async def run(self: "AsyncClient", /, *arguments: P.args, **options: P.kwargs) -> T:
        result: T = await self._run(method, self._client, *arguments, **options)
        return result

    return run


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
                setattr(self, name, Awaited(group, self._run))

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

    infer = _awaited(Client.infer)
    infer_tensors = _awaited(Client.infer_tensors)
    log = _awaited(Client.log)
    log_many = _awaited(Client.log_many)
    evaluate = _awaited(Client.evaluate)
    drift = _awaited(Client.drift)

    async def infer_many(
        self, model: str, images: Any, *metadata: Any, **options: Any
    ) -> AsyncIterator[Result | FailedInference]:
        """Run a model on many images; see `Client.infer_many`."""
        results = await self._run(self._client.infer_many, model, images, *metadata, **options)
        async for result in _iterate(results, self._run):
            yield result

    def query(self, where: Where = None, **options: Any) -> "AsyncQuery":
        """Find stored inferences; see `Client.query`."""
        return AsyncQuery(self._client.query(where, **options), self._run)

    async def _run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *arguments, **options))


Run = Callable[..., Awaitable[Any]]


class Awaited:
    """The methods of an object, awaited; those that yield are asynchronous iterators."""

    def __init__(self, subject: Resource | Query, run: Run) -> None:
        self._subject = subject
        self._run = run

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._subject, name)
        if isgeneratorfunction(method):
            return lambda *arguments, **options: _iterate(method(*arguments, **options), self._run)
        return partial(self._run, method)

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._subject) if not name.startswith("_")]

    def __repr__(self) -> str:
        return repr(self._subject)


class AsyncQuery(Awaited):
    """Inferences that a filter finds, with the methods of `Query`."""

    async def __aiter__(self) -> AsyncIterator[StoredInference]:
        async for page in self.pages():
            for inference in page:
                yield inference


async def _iterate(items: Generator[Any], run: Run) -> AsyncIterator[Any]:
    """Yield what an iterator yields, each step of which waits in a thread."""
    try:
        while (item := await run(next, items, _END)) is not _END:
            yield item
    finally:
        await run(items.close)
