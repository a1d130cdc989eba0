"""Handlers of the HTTP API: its verbs, with what all routes have in common, and OPTIONS of paths with several verbs."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any

import litestar
from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import Operation

from quadriga.proto.access import Need

Decorator = Callable[[Callable[..., Any]], HTTPRouteHandler]


def _handler(
    verb: type[HTTPRouteHandler],
    path: str,
    *,
    need: Need,
    errors: Mapping[int, ResponseSpec] | None = None,
    operation: type[Operation] | None = None,
    status: int = 200,
    **options: Any,
) -> Decorator:
    """Return the decorator of a handler; one that is no coroutine runs in a thread.

    Args:
        verb: Class of the framework's handlers of this verb.
        path: Path.
        need: What the caller needs.
        errors: Error responses, and others that need a description.
        operation: Describes the body or the query, where the signature of the function does not.
        status: Status of success.
        options: Further options of the framework; `audited=True` if the route takes data away.
    """
    if operation is not None:
        options["operation_class"] = operation

    def decorate(function: Callable[..., Any]) -> HTTPRouteHandler:
        answer = function if iscoroutinefunction(function) else _in_thread(function)
        return verb(path, need=need, responses=errors, status_code=status, **options)(answer)

    return decorate


get = partial(_handler, litestar.get)
post = partial(_handler, litestar.post)
put = partial(_handler, litestar.put)
delete = partial(_handler, litestar.delete)


def _in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    # Not litestar's `sync_to_thread`: of three handlers of one path, litestar 2 wraps the first twice.
    @wraps(function)
    async def answer(**arguments: Any) -> Any:
        return await asyncio.to_thread(function, **arguments)

    return answer


def options_routes(handlers: Iterable[HTTPRouteHandler]) -> list[HTTPRouteHandler]:
    """Return the handlers of OPTIONS for the paths with several verbs; they have to come before the others.

    The framework alone would name only the first verb of a path.
    """
    verbs: dict[str, set[str]] = defaultdict(set)
    for handler in handlers:
        for path in handler.paths:
            verbs[path] |= {str(verb) for verb in handler.http_methods}
    return [_options_route(path, *of_path) for path, of_path in verbs.items() if len(of_path) > 1]


def _options_route(path: str, *verbs: str) -> HTTPRouteHandler:
    @litestar.route(
        path, http_method="OPTIONS", status_code=204, include_in_schema=False, need="nothing"
    )
    async def answer_options() -> Response[None]:
        return Response(None, headers={"Allow": ", ".join(sorted([*verbs, "OPTIONS"]))})

    return answer_options
