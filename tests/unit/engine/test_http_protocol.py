"""Connections after a response that came before the end of the request."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from quadriga.engine.processes import http_protocol
from quadriga.engine.processes.http_protocol import with_limits
from quadriga.proto.http import send_body
from quadriga.proto.intake import Intake


async def refuse(_, __, send):
    """Answer without reading the body."""
    await send_body(send, 413, b"{}")


async def connect(headers):
    """Send the headers of a request to a server of one's own; gives the reader, the writer and the server."""
    config = uvicorn.Config(refuse, lifespan="off", log_config=None)
    protocol = with_limits(5, 10, Intake())
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"POST / HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n")
    assert (await reader.readuntil(b"\r\n\r\n{}")).startswith(b"HTTP/1.1 413")
    return reader, writer, server


async def close(writer, server):
    writer.close()
    server.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "headers", [b"Content-Length: 100000\r\n", b"Transfer-Encoding: chunked\r\n"]
)
def test_a_body_that_nobody_reads_any_more_has_a_time(monkeypatch, headers):
    monkeypatch.setattr(http_protocol, "LINGER_TIMEOUT_S", 0.2)

    async def send_on(writer):
        while not writer.is_closing():
            writer.write(b"1\r\na\r\n" if b"chunked" in headers else b"a")
            await asyncio.sleep(0.02)

    async def trickle():
        reader, writer, server = await connect(headers)
        sending = asyncio.ensure_future(send_on(writer))
        try:
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            return b""
        finally:
            sending.cancel()
            await close(writer, server)

    assert asyncio.run(trickle()) == b""


def test_a_body_that_ends_in_time_keeps_its_connection(monkeypatch):
    monkeypatch.setattr(http_protocol, "LINGER_TIMEOUT_S", 0.2)

    async def finish():
        reader, writer, server = await connect(b"Content-Length: 3\r\n")
        writer.write(b"abc")
        await asyncio.sleep(0.4)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        answer = await reader.readuntil(b"{}")
        await close(writer, server)
        return answer

    assert asyncio.run(finish()).startswith(b"HTTP/1.1 413")
