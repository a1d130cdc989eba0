"""Streams over the wire: errors after the first event, busy servers, clients that go away."""

import asyncio
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadriga.proto.access import ANYBODY
from quadriga.proto.errors import InternalError, InvalidRequest, Overloaded
from quadriga.proto.http.operations import Dispatcher, HttpRequest, WireOptions
from quadriga.proto.http.v2_extensions import IMAGE_KEYS, generate_operations, parse_generate
from quadriga.proto.messages import InferChunk, ModelInfo

PATH = "/v2/models/talker/generate_stream"
BODY = b'{"text_input": "one", "image": "aGk=", "id": "x"}'


class Talker:
    """Answers the words it is given, and raises where one is an error."""

    def __init__(self, *words, busy=False):
        self.words = words
        self.busy = busy
        self.jobs = 0
        self.ended_early = False

    def model_info(self, name, version):
        return ModelInfo(
            name, "1", ["1"], platform="onnx", task="IMAGE_TEXT_TO_TEXT", inputs=[], outputs=[]
        )

    def stream(self, request):
        try:
            for word in self.words:
                if isinstance(word, Exception):
                    raise word
                if isinstance(word, InferChunk):
                    yield word
                else:
                    yield InferChunk(request.model, "1", request.id, word)
        except GeneratorExit:
            self.ended_early = True
            raise

    async def run(self, job, *, is_begun=False, **_):
        self.jobs += 1
        if self.busy and self.jobs > 1 and not is_begun:
            raise Overloaded("expected fewer requests")
        return job()


async def ask(talker, goes_after=None):
    """Send the request; the client leaves after that many parts."""
    sent = []
    gone = asyncio.Event()
    bodies = iter([{"type": "http.request", "body": BODY, "more_body": False}])

    async def receive():
        for message in bodies:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if len(sent) - 1 == goes_after:
            gone.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    dispatcher = Dispatcher(
        talker, generate_operations(talker, WireOptions(server_version="0")), 1000
    )
    scope = {"method": "POST", "headers": []}
    await dispatcher.respond(dispatcher.match(PATH), scope, receive, send, caller=ANYBODY)
    status = sent[0]["status"]
    chunks = [message["body"] for message in sent[1:]]
    if status == 200:
        assert chunks.pop() == b""
    return status, [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks]


@pytest.mark.parametrize(
    ("error", "expected_text"),
    [(InternalError("the graph failed"), "the graph failed"), (ValueError("secret"), "log")],
)
async def test_an_error_after_the_first_event_is_the_last_event(error, expected_text):
    status, events = await ask(Talker("a", "b", error))
    assert status == 200
    assert [event.get("text_output") for event in events] == ["a", "b", None]
    assert expected_text in events[-1]["error"]


async def test_only_inferences_not_stored_are_marked():
    _, events = await ask(Talker("a", InferChunk("m", "1", "r", "b", stored=False)))
    assert [event.get("stored") for event in events] == [None, False]


async def test_an_error_before_the_first_event_has_its_status():
    assert await ask(Talker(InternalError("no"))) == (500, [{"error": "no"}])


async def test_a_stream_that_has_begun_is_not_refused_where_new_requests_are():
    status, events = await ask(Talker("a", "b", busy=True))
    assert status == 200
    assert "".join(event["text_output"] for event in events) == "ab"


async def test_a_client_that_goes_away_ends_the_generation():
    talker = Talker(*["a"] * 1000)
    _, events = await ask(talker, goes_after=3)
    assert talker.ended_early
    assert len(events) < 10


VALUES = st.sampled_from(
    [None, True, 3, "", "a", [], ["a"], ["a", "b"], [3], {}, {"max_tokens": 1}, {"prompts": [1]}]
)
KEYS = st.sampled_from(["id", "text_input", "parameters", "max_tokens", *IMAGE_KEYS])


@given(st.binary() | st.dictionaries(KEYS, VALUES).map(lambda body: json.dumps(body).encode()))
def test_any_body_is_a_request_or_a_clear_error(body):
    with suppress(InvalidRequest):
        request = parse_generate(HttpRequest({"name": "talker", "version": None}, {}, body))
        assert request.id
        assert isinstance(request.inputs[0].data[0], str)
        assert isinstance(request.inputs[0].parameters["prompt"], str)
