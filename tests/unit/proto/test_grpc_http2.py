"""Frames of HTTP/2 that no client of gRPC sends, that strangers may send, and that clients of other languages do."""

import asyncio
import base64
import contextlib
import gzip
import socket
import struct
import time
import tracemalloc
import zlib

import grpc
import pytest
from hpack import Decoder, Encoder

from quadriga.proto.grpc import http2 as grpc_http2
from tests.grpc_attacks import BEGIN, FLOODS, LIVE, PREFACE, frame, headers
from tests.unit.proto.test_grpc_server import serving

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
PROTOCOL_ERROR, FLOW_ERROR, SIZE_ERROR, COMPRESSION_ERROR, CALM = 1, 3, 6, 9, 11
END_STREAM, END_HEADERS, PADDED, WITH_PRIORITY = 1, 4, 8, 32
MESSAGE = b"\0\0\0\0\0"


class Wire:
    """A connection of HTTP/2 by its frames."""

    def __init__(self, port, begin=BEGIN):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._read = self.socket.makefile("rb")
        self._decoder = Decoder()
        self.socket.sendall(begin)

    def send(self, *frames):
        with contextlib.suppress(OSError):  # the server may have ended it
            self.socket.sendall(b"".join(frames))

    def next(self):
        """Read a frame: kind, flags, stream, payload; None at the end."""
        try:
            head = self._read.read(9)
            if len(head) < 9:
                return None
            payload = self._read.read(int.from_bytes(head[:3], "big"))
        except OSError:
            return None
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    def until(self, kind):
        """Read up to a frame of a kind; gives its flags and payload."""
        while (found := self.next()) is not None:
            if found[0] == kind:
                return found[1], found[3]
        return None

    def answer(self, stream=1):
        """Read the answer of a call: its headers and trailers, and its bytes."""
        fields, data = {}, b""
        while (found := self.next()) is not None:
            kind, flags, of, payload = found
            if of == stream and kind == HEADERS:
                fields |= dict(self._decoder.decode(payload))
            elif of == stream and kind == DATA:
                data += payload
            if of == stream and flags & END_STREAM and kind in (HEADERS, DATA):
                break
        return fields, data

    def close(self):
        self._read.close()
        self.socket.close()


def run(talk, **limits):
    """Let a function talk to a server; gives what it returns."""

    async def serve():
        async with serving(**limits) as port:
            return await asyncio.to_thread(talk, port)

    return asyncio.run(serve())


def call(block=None, *, data=MESSAGE, stream=1):
    return frame(HEADERS, END_HEADERS, stream, headers() if block is None else block) + frame(
        DATA, END_STREAM, stream, data
    )


LARGE = b"\x40\x01a\x7f\xbd\x1d" + b"a" * 3900


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([frame(PING, 0, 0, b"a")], SIZE_ERROR),
        ([frame(PING, 0, 1, bytes(8))], PROTOCOL_ERROR),
        ([frame(WINDOW, 0, 0, b"a")], SIZE_ERROR),
        ([frame(WINDOW, 0, 0, bytes(4))], PROTOCOL_ERROR),
        ([frame(WINDOW, 0, 1, b"\0\0\0\1")], PROTOCOL_ERROR),
        ([frame(RESET, 0, 1, bytes(4))], PROTOCOL_ERROR),
        ([frame(RESET, 0, 0, bytes(4))], PROTOCOL_ERROR),
        ([frame(PUSH, 0, 1, bytes(4))], PROTOCOL_ERROR),
        ([frame(CONTINUATION, 0, 1, b"a")], PROTOCOL_ERROR),
        ([frame(HEADERS, 0, 1, headers()), frame(PING, 0, 0, bytes(8))], PROTOCOL_ERROR),
        ([frame(HEADERS, 0, 1, headers()), frame(CONTINUATION, 4, 3)], PROTOCOL_ERROR),
        ([frame(HEADERS, END_HEADERS, 2, headers())], PROTOCOL_ERROR),
        ([frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + headers()[:9])], PROTOCOL_ERROR),
        ([frame(DATA, 0, 1, b"a")], PROTOCOL_ERROR),
        ([call(b"\xff\xff\xff\xff\x0f")], COMPRESSION_ERROR),
        ([call(b"\xff" * 100)], COMPRESSION_ERROR),
        ([call(b"\0\x7f\xff\xff\xff\xff\xff\xff\xff")], COMPRESSION_ERROR),
        ([call(headers() + LARGE + b"\xbe" * 20)], COMPRESSION_ERROR),
        ([call(headers() + b"\0\x01a\x7f\x81\x7f" + b"a" * 65_536)[:9]], SIZE_ERROR),
        ([frame(HEADERS, 0, 1, headers()), *[frame(CONTINUATION, 0, 1, bytes(16_000))] * 5], CALM),
        ([frame(HEADERS, 0, 1, headers()), *[frame(CONTINUATION, 0, 1)] * 300], CALM),
        ([frame(PING, 0, 0, bytes(8))] * 300, CALM),
        ([frame(SETTINGS, 0, 0)] * 300, CALM),
        ([frame(PRIORITY, 0, 1, bytes(5))] * 300, CALM),
        ([frame(99, 0, 1)] * 300, CALM),
        ([call(), *[frame(DATA, 0, 1)] * 300], CALM),
        ([frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff")], FLOW_ERROR),
        ([frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31))], FLOW_ERROR),
        ([frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 100))], PROTOCOL_ERROR),
        ([frame(SETTINGS, 0, 0, b"a")], SIZE_ERROR),
        ([frame(DATA, 0, 1, b"a")[:3] + b"\0"], None),
    ],
)  # fmt: skip
def test_a_connection_of_wrong_frames_ends_with_a_code(frames, code):
    def talk(port):
        wire = Wire(port)
        wire.send(*frames)
        found = wire.until(GOAWAY) if code is not None else None
        wire.close()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert channel.unary_unary(LIVE)(b"", timeout=20)
        return found and int.from_bytes(found[1][4:8], "big")

    assert run(talk) == code


@pytest.mark.parametrize(
    "block",
    [
        headers(),
        Encoder().encode(
            [(b":method", b"POST"), (b":scheme", b"http"), (b":path", LIVE.encode()), (b"te", b"trailers"),
             (b"content-type", b"application/grpc+proto"), (b"user-agent", b"grpc-go"), (b"x-bin", b"AAE")],
            huffman=True,
        ),
        b"\x20" + headers() + b"\0\x01a\x7f\x99\x74" + b"a" * 15_000,
    ],
    ids=["plain", "table and Huffman", "long"],
)  # fmt: skip
def test_headers_may_come_in_any_form(block):
    def talk(port):
        wire = Wire(port)
        wire.send(call(block))
        answers = [wire.answer()]
        wire.send(
            frame(HEADERS, 0, 3, block[:10]),
            frame(CONTINUATION, 0, 3, block[10:20]),
            frame(CONTINUATION, END_HEADERS, 3, block[20:]),
            frame(DATA, PADDED | END_STREAM, 3, b"\3" + MESSAGE + bytes(3)),
        )
        answers.append(wire.answer(3))
        padded = b"\2" + bytes(5) + block + bytes(2)
        flags = END_HEADERS | PADDED | WITH_PRIORITY
        wire.send(frame(HEADERS, flags, 5, padded), frame(DATA, 0, 5, MESSAGE[:2]))
        wire.send(frame(DATA, 0, 5, MESSAGE[2:]), frame(HEADERS, 5, 5, b"\0\x01a\x01b"))
        answers.append(wire.answer(5))
        wire.close()
        return answers

    for fields, data in run(talk):
        assert (fields[":status"], fields["grpc-status"], data[5:]) == ("200", "0", b"\x08\x01")


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\n\r\n", PREFACE[:5] + b"a", PREFACE + frame(PING, 0, 0, bytes(8))])  # fmt: skip
def test_other_protocols_are_closed_at_once(begin):
    def talk(port):
        wire = Wire(port, begin)
        while wire.next() is not None:
            pass
        wire.close()
        return True

    assert run(talk, handshake_timeout_s=60)


def test_bytes_may_come_one_by_one():
    def talk(port):
        wire = Wire(port, b"")
        for one in BEGIN + call():
            wire.send(bytes([one]))
            time.sleep(0.0005)
        answer = wire.answer()
        wire.close()
        return answer[0]["grpc-status"]

    assert run(talk) == "0"


@pytest.mark.parametrize("timeout", [b"9" * 400 + b"S", b"9" * 5000 + b"S", b"\xffS", b"S", b"", b"1", b"9" * 8 + b"H"])  # fmt: skip
def test_a_time_limit_that_is_none_does_not_end_the_connection(timeout):
    block = headers() + Encoder().encode([(b"grpc-timeout", timeout)], huffman=False)

    def talk(port):
        wire = Wire(port)
        wire.send(call(block), call(stream=3))
        found = [wire.answer()[0], wire.answer(3)[0]]
        wire.close()
        return [fields.get("grpc-status") for fields in found]

    assert run(talk) == ["0", "0"]


def test_the_first_bit_of_the_number_of_a_stream_means_nothing():
    def talk(port):
        wire = Wire(port)
        wire.send(call(stream=0x8000_0001), call(stream=3))
        found = [wire.answer()[0], wire.answer(3)[0]]
        wire.close()
        return [fields.get("grpc-status") for fields in found]

    assert run(talk) == ["0", "0"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [({b":method": b"GET"}, "405"), ({b"content-type": b"text/html"}, "415")],
)
def test_what_is_no_call_has_a_status_of_http(fields, status):
    known = {b":method": b"POST", b":path": LIVE.encode(), b"content-type": b"application/grpc"}

    def talk(port):
        wire = Wire(port)
        wire.send(call(Encoder().encode((known | fields).items())))
        found = wire.answer()[0]
        wire.close()
        return found

    assert run(talk)[":status"] == status


@pytest.mark.parametrize(
    ("encoding", "compress", "status"),
    [
        (b"gzip", gzip.compress, "0"),
        (b"deflate", zlib.compress, "0"),
        (b"gzip", bytes, "3"),
        (b"snappy", bytes, "12"),
        (b"gzip", lambda _: gzip.compress(bytes(5000)), "8"),
    ],
)
def test_compressed_messages_are_expanded_within_their_bound(encoding, compress, status):
    message = compress(b"")

    def talk(port):
        wire = Wire(port)
        block = headers() + b"\0\x0dgrpc-encoding" + bytes([len(encoding)]) + encoding
        wire.send(call(block, data=b"\1" + struct.pack(">I", len(message)) + message))
        found = wire.answer()[0]
        wire.close()
        return found["grpc-status"]

    assert run(talk) == status


def test_a_ping_is_answered_and_a_reset_ends_a_call():
    def talk(port):
        wire = Wire(port)
        wire.send(frame(HEADERS, END_HEADERS, 1, headers()), frame(RESET, 0, 1, bytes(4)))
        wire.send(call(stream=3))
        fields, _ = wire.answer(3)
        wire.send(frame(PING, 0, 0, b"8 bytes."))
        found = wire.until(PING)
        wire.close()
        return fields["grpc-status"], found

    assert run(talk) == ("0", (1, b"8 bytes."))


def test_metadata_of_an_answer_can_be_read():
    block = grpc_http2._literal("x-bin", b"\0\1") + grpc_http2._literal("a", "é" * 200)
    assert Decoder().decode(block) == [("x-bin", base64.b64encode(b"\0\1").decode()[:-1]), ("a", "?" * 200)]  # fmt: skip


@pytest.mark.parametrize("size", [20_000, 60_000])
def test_a_call_with_large_metadata_is_answered_as_others(size):
    def talk(port):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            live = channel.unary_unary(LIVE)
            sizes = [len(live(b"", metadata=[("a", "b" * size)], timeout=20)) for _ in range(3)]
            return [*sizes, len(live(b"", timeout=20))]

    assert run(talk) == [2] * 4


@pytest.mark.parametrize("per_frame", [1, 3000])
def test_messages_that_nobody_reads_take_about_their_bytes(per_frame):
    count = 51_000

    def talk(port):
        wire = Wire(port)
        block = headers("/grpc.health.v1.Health/Watch")
        wire.send(frame(HEADERS, END_HEADERS, 1, block), frame(DATA, 0, 1, MESSAGE))
        assert wire.until(DATA)
        tracemalloc.start()
        wire.send(*[frame(DATA, 0, 1, MESSAGE * per_frame)] * (count // per_frame))
        wire.send(frame(PING, 0, 0, bytes(8)))
        assert wire.until(PING)
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        wire.close()
        return held_bytes

    assert 5 * count < run(talk) < 15 * count


def test_messages_are_read_in_order_however_many_come_at_once():
    def talk(port):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            answers = stream(iter([b"\x1a\x04%04d" % number for number in range(3000)]), timeout=60)
            return sum(1 for _ in answers)

    assert run(talk) == 3000


@pytest.mark.parametrize(
    "field",
    [b"\0\x01A\x01a", b"\0\x01a\x04a\r\nb", b"\0\x05:path\x01/", b"\0\x05:late\x01/", b"\0\0\x01a"],
    ids=["a large letter", "lines", "a late path", "another", "no name"],
)
def test_a_call_with_a_wrong_header_ends_alone(field):
    def talk(port):
        wire = Wire(port)
        wire.send(call(headers() + field))
        _, code = wire.until(RESET)
        wire.send(call(headers() + b"\0\x01a\x03 b ", stream=3))
        fields, _ = wire.answer(3)
        wire.close()
        return int.from_bytes(code, "big"), fields["grpc-status"]

    assert run(talk) == (PROTOCOL_ERROR, "0")


@pytest.mark.parametrize(
    ("late", "code"),
    [
        (frame(DATA, 0, 1, MESSAGE), 5),
        (frame(HEADERS, END_HEADERS, 1, b"\0\x01a\x01b"), 5),
        (frame(WINDOW, 0, 1, bytes(4)), PROTOCOL_ERROR),
        (frame(WINDOW, 0, 1, b"\x7f\xff\xff\xff"), FLOW_ERROR),
    ],
)
def test_a_wrong_frame_of_a_call_resets_it(late, code):
    def talk(port):
        wire = Wire(port)
        block = headers("/grpc.health.v1.Health/Watch")
        wire.send(frame(HEADERS, END_HEADERS, 1, block), frame(DATA, END_STREAM, 1, MESSAGE))
        assert wire.until(DATA)
        wire.send(late)
        _, reset = wire.until(RESET)
        wire.send(call(stream=3))
        fields, _ = wire.answer(3)
        wire.close()
        return int.from_bytes(reset, "big"), fields["grpc-status"]

    assert run(talk) == (code, "0")


def test_idle_connections_of_strangers_give_their_places_to_others():
    def talk(port):
        idle = [Wire(port) for _ in range(10)]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert channel.unary_unary(LIVE)(b"", timeout=20)
        ended = idle[0].until(PING)
        for wire in idle:
            wire.close()
        return ended

    assert run(talk) is None


@pytest.mark.parametrize("kind", FLOODS)
def test_no_flood_takes_memory_or_time_of_others(kind):
    """One connection's worth of each kind costs at most half a second of others."""

    def talk(port):
        make, _ = FLOODS[kind]
        until_s, slowest_s = time.monotonic() + 1, 0.0
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            live = channel.unary_unary(LIVE)
            live(b"", timeout=20)
            while time.monotonic() < until_s:
                wire = Wire(port)
                for part, _ in zip(make(), range(20), strict=False):
                    wire.send(part)
                begun_s = time.monotonic()
                live(b"", timeout=20)
                slowest_s = max(slowest_s, time.monotonic() - begun_s)
                wire.close()
        return slowest_s

    assert run(talk, max_connections=100) < 5
