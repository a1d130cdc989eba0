"""A worker: uvicorn over the listening socket that all workers share, until it is told to stop."""

import asyncio
import contextlib
import gc
import logging
import math
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from quadriga.engine.access.quotas import KEY
from quadriga.engine.access.tls import RenewedContext, RenewedFiles
from quadriga.engine.assembly.app import Application
from quadriga.engine.config.schema import build_types
from quadriga.engine.config.settings import Settings, parse_proxies
from quadriga.engine.http.http_protocol import HEADER_TIMEOUT_S, with_limits
from quadriga.engine.http.listener import BACKLOG, accept_waiting, drop_new_connections
from quadriga.engine.measures.readiness import BEAT_INTERVAL_S, ProcessStates, worker_name
from quadriga.engine.measures.shared_counts import IN_FLIGHT, SharedCounts
from quadriga.engine.models.model_host import ModelHost
from quadriga.engine.models.runners.crashes import RUNNING
from quadriga.engine.processes.supervisor import ChildTask
from quadriga.proto.http.intake import SPARE_HANDSHAKES, Acceptor

SPARE_DESCRIPTORS = 256
"""Open files of a worker besides its HTTP connections: journal, database, images and gRPC."""

_POLL_INTERVAL_S = 0.05
_KEYS_WAIT_S = 5.0
"""Maximum time that connections wait for the keys; later requests are refused until the database answers."""
_LAST_BYTES_TIMEOUT_S = 3600.0
"""Maximum time that a client has to read the last response of a connection with TLS; without TLS there is no limit."""

_LAST_HANDSHAKES_S = 1.0
"""Maximum time of the handshakes that the end of the worker finds under way."""

OnStop = Callable[[Callable[[], object]], None]
"""Registers a function to call once the worker has to stop."""

_log = logging.getLogger("quadriga")


def serve(task: ChildTask, call_on_stop: OnStop) -> None:
    """Serve until told to stop, then end gracefully.

    Raises:
        quadriga.engine.models.runners.session.LoadError: There is no model to serve, or no location to store images.
    """
    uvloop.run(_serve(task, call_on_stop))


class _Server(uvicorn.Server):
    """uvicorn without signal handlers, as the end comes through standard input, and with limits of TLS handshakes."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.acceptor = Acceptor(
            self._new_connection,
            self._make_place,
            name="",
            handshake_timeout_s=HEADER_TIMEOUT_S,
            last_bytes_timeout_s=_LAST_BYTES_TIMEOUT_S,
        )

    def _make_place(self) -> bool:
        """Make a place for a handshake: that of an idle connection of nobody, or of the handshake that has lasted longest.

        It does not take that of a client with a key, as it may be one that comes to nothing.
        """
        protocol: Any = self.config.http_protocol_class
        connections = len(self.server_state.connections) + len(self.acceptor)
        if connections < protocol.max_connections + SPARE_HANDSHAKES:
            return True
        if protocol.idle.close_one(of_strangers=True):
            return True
        if not self.acceptor.end_one():
            protocol.intake.refused_connections += 1
            return False
        protocol.intake.displaced += 1
        return True

    def _new_connection(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]  # the class is httptools'
            config=self.config, server_state=self.server_state, app_state={}
        )
        return protocol

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections; uvicorn's own would give each handshake a minute, and accept many of them at a time."""
        await self.lifespan.startup()
        self.servers = []
        for listener in sockets or []:
            self.acceptor.start(listener)
        self.started = True

    async def close_listener(self, listener: socket.socket) -> None:
        """Accept the connections that are waiting, and no more; then let them send their requests."""
        duplicate = listener.dup()
        drop_new_connections(duplicate)
        self.acceptor.stop()
        await self.acceptor.finish(accept_waiting(duplicate), _LAST_HANDSHAKES_S)
        duplicate.close()
        await asyncio.sleep(0.2)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(task: ChildTask, call_on_stop: OnStop) -> None:
    tls_files = None if task.tls is None else RenewedFiles(task.settings, task.tls)
    application = _open_application(task, tls_files)
    states, name = ProcessStates(task.processes_fd, task.settings.workers), worker_name(task.number)
    server = _Server(_uvicorn_config(task.settings, application))
    if tls_files is not None:
        tls_files.start()
        server.acceptor.tls = RenewedContext.of(lambda: tls_files.context)
    listener = socket.socket(fileno=task.listener_fd)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    call_on_stop(lambda: loop.call_soon_threadsafe(stop.set))
    beating = asyncio.create_task(_beat(states, name, application))
    # Where another worker answers, this one takes no requests before it can answer them.
    waits = states.has_ready_worker(besides=name)
    states.mark(name, "starting" if waits else "loading")
    loaded, stopped = application.load_models(states, task.number), asyncio.create_task(stop.wait())
    if waits:
        await wait_until(loaded.is_set, stopped)
    # Connections wait, rather than be refused, while the writer of a new folder makes the tables of the keys.
    await wait_until(lambda: application.knows_keys, stopped, _KEYS_WAIT_S)
    if stop.is_set():
        application.close()
        return
    grpc = await application.serve_grpc(task.grpc_address) if task.grpc_address else None
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
    if grpc is not None:
        grpc.refuse_connections()
    await application.drain(task.settings.drain_s)
    grace_s = server.config.timeout_graceful_shutdown or 0
    ending = None if grpc is None else asyncio.create_task(grpc.stop(grace_s))
    await server.close_listener(listener)
    server.should_exit = True
    await serving
    if ending is not None:
        await ending
    beating.cancel()
    application.close()
    _log.info("stopped")


async def wait_until(
    is_done: Callable[[], bool], stopped: asyncio.Task[Any], limit_s: float = math.inf
) -> None:
    """Wait until something is done, for a time at most, or the server is told to stop."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while not (is_done() or stopped.done()) and loop.time() < end_s:
        await asyncio.wait([stopped], timeout=_POLL_INTERVAL_S)


def _open_application(task: ChildTask, tls_files: RenewedFiles | None) -> Application:
    """Open the server of this worker, with the memory that it shares with the other processes."""
    counts = SharedCounts(task.settings.workers + 1, task.number, task.counts_fd)
    for kind in (KEY, RUNNING):
        for _, cells in counts.of_process(kind, task.number):
            cells[IN_FLIGHT] = 0  # the requests of an earlier process of this worker ended with it
    build_types()
    application = Application(
        task.settings,
        task.number,
        Path(task.run_directory),
        run_id=task.run_id,
        host=ModelHost(is_server=True),
        internal_key=task.internal_key,
        tls_files=tls_files,
        counts=counts,
    )
    gc.collect()
    gc.freeze()  # what there is before models and requests stays: a search through it would stop the loop for 80 ms
    gc.enable()
    return application


def _uvicorn_config(settings: Settings, application: Application) -> uvicorn.Config:
    return uvicorn.Config(
        application.asgi,
        http=with_limits(connection_limit(settings.max_connections), application.intake),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=parse_proxies(settings.trusted_proxies),
        timeout_keep_alive=75,
        # a client that never sends the rest of its body ends before the supervisor kills us all
        timeout_graceful_shutdown=max(1, int(settings.exit_timeout_s * 0.8)),
        backlog=BACKLOG,
    )


async def _beat(states: ProcessStates, name: str, application: Application) -> None:
    """Show the supervisor that the event loop runs, and close the segment of the journal if an erasure asks for it."""
    while True:
        states.beat(name)
        with contextlib.suppress(OSError):  # it is asked for until it is closed
            application.close_journal_on_request()
        await asyncio.sleep(BEAT_INTERVAL_S)


def connection_limit(max_connections: int) -> int:
    """Return how many connections the process can hold, after raising its limit of open files if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + SPARE_DESCRIPTORS
    if soft < needed and soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return max_connections
    return max(min(max_connections, soft - SPARE_DESCRIPTORS), 1)
