"""A worker: uvicorn over the listening socket that all workers share, until it is told to stop."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
import uvloop

from quadriga.engine.app import Application
from quadriga.engine.processes.http_protocol import with_header_timeout
from quadriga.engine.processes.listener import BACKLOG, accept_waiting, drop_new_connections
from quadriga.engine.processes.supervisor import ChildTask
from quadriga.engine.readiness import ReadinessFlags

OnStop = Callable[[Callable[[], object]], None]
"""Registers a function to call once the worker has to stop."""

_log = logging.getLogger("quadriga")


def serve(task: ChildTask, call_on_stop: OnStop) -> None:
    """Serve until told to stop, then end gracefully.

    Raises:
        quadriga.engine.session.LoadError: There is no model to serve, or no location to store images.
    """
    uvloop.run(_serve(task, call_on_stop))


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the end comes through standard input."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(task: ChildTask, call_on_stop: OnStop) -> None:
    application = Application(task.settings, task.number, Path(task.run_directory))
    config = uvicorn.Config(
        application.asgi,
        http=with_header_timeout(task.settings.header_timeout_s),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        # a client that never sends the rest of its body ends before the supervisor kills us all
        timeout_graceful_shutdown=max(1, int(task.settings.exit_timeout_s * 0.8)),
        backlog=BACKLOG,
    )
    server = _Server(config)
    listener = socket.socket(fileno=task.listener_fd)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    call_on_stop(lambda: loop.call_soon_threadsafe(stop.set))
    readiness = ReadinessFlags(task.readiness_fd, task.settings.workers)
    grpc = await application.serve_grpc(task.grpc_address) if task.grpc_address else None
    application.load_models(readiness, task.number)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await asyncio.wait(
        [serving, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED
    )
    await application.drain(task.settings.drain_s)
    grace_s = config.timeout_graceful_shutdown or 0
    ending = None if grpc is None else asyncio.create_task(grpc.stop(grace_s))
    await _close_listener(server, listener)
    server.should_exit = True
    await serving
    if ending is not None:
        await ending
    application.close()
    _log.info("stopped")


async def _close_listener(server: _Server, listener: socket.socket) -> None:
    """Accept the connections that are waiting, and no more; then let them send their requests."""
    loop = asyncio.get_running_loop()
    config, state = server.config, server.server_state
    duplicate = listener.dup()
    for accepting in server.servers:
        accepting.close()
    drop_new_connections(duplicate)
    for connection in accept_waiting(duplicate):
        await loop.connect_accepted_socket(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]  # the class is httptools'
            connection,
        )
    duplicate.close()
    await asyncio.sleep(0.2)
