"""Handlers of the HTTP API: names, threads, and OPTIONS of paths with several verbs."""

import threading

from litestar import Litestar
from litestar.params import FromPath, RawBody
from litestar.testing import TestClient

from quadriga.engine.api.openapi import NOT_READY, NOT_STORED
from quadriga.engine.api.routes import delete, get, options_routes, put

PATH = "/things/{name:str}"


@get(PATH, need="read", errors={503: NOT_READY})
def get_thing(name: FromPath[str]) -> list[str]:
    return [name, threading.current_thread().name]


@put(PATH, need="operate", errors={503: NOT_STORED}, status=202)
def put_thing(name: FromPath[str], body: RawBody) -> list[str]:
    return [f"{name} {body.decode()}", threading.current_thread().name]


@delete(PATH, need="operate")
async def delete_thing(name: FromPath[str]) -> list[str]:
    return [name, threading.current_thread().name]


@get("/things", need="read")
def list_things() -> list[str]:
    return []


HANDLERS = [get_thing, put_thing, delete_thing, list_things]
APP = Litestar([*options_routes(HANDLERS), *HANDLERS])


def test_plain_functions_run_in_a_thread_and_coroutines_on_the_loop():
    with TestClient(APP) as client:
        answers = [
            client.get("/things/a"),
            client.put("/things/a", content=b"b"),
            client.delete("/things/a"),
        ]
    assert [answer.status_code for answer in answers] == [200, 202, 200]
    (got, get_thread), (changed, put_thread), (_, loop_thread) = [a.json() for a in answers]
    assert (got, changed) == ("a", "a b")
    assert loop_thread not in {get_thread, put_thread}


def test_operations_of_the_document_are_named_after_their_functions():
    operations = APP.openapi_schema.to_schema()["paths"]["/things/{name}"]
    assert {verb: operation["summary"] for verb, operation in operations.items()} == {
        "get": "GetThing",
        "put": "PutThing",
        "delete": "DeleteThing",
    }
    assert {*operations["put"]["responses"]} >= {"202", "503"}


def test_options_names_every_verb_of_a_path():
    with TestClient(APP) as client:
        several, one = client.options("/things/a"), client.options("/things")
    assert (several.status_code, several.headers["allow"]) == (204, "DELETE, GET, OPTIONS, PUT")
    assert (one.status_code, one.headers["allow"]) == (204, "GET, OPTIONS")


def test_a_handler_declares_what_it_needs():
    assert [handler.opt["need"] for handler in HANDLERS] == ["read", "operate", "operate", "read"]
    assert [handler.opt["need"] for handler in options_routes(HANDLERS)] == ["nothing"]
