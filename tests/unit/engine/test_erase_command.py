"""The command `quadriga erase` against servers that answer as written down."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from blake3 import blake3
from click.testing import CliRunner, Result

from quadriga.engine.cli import main

HASH = f"blake3:{'0' * 64}"
RECEIPT = {
    "id": "1795541056789012345-9c1f",
    "created_at": "2027-01-01T00:00:00.000Z",
    "state": "complete",
    "ended_at": "2027-01-01T00:00:01.000Z",
    "fields": ["meta.person"],
    "counts": {"inferences": 1200, "joins": 1, "images": 2, "new_kind": 4},
    "waiting": [],
    "remaining": [],
    "kept": ["backups"],
}
RUNNING = RECEIPT | {"state": "running", "ended_at": None, "waiting": ["job 1 has not ended"]}


class Server:
    """Answers each request with the next answer, and keeps the requests."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.requests: list[tuple[str, Any]] = []
        requests, answers = self.requests, self.answers

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                requests.append((f"{self.command} {self.path}", json.loads(body or b"null")))
                status, answer = answers.pop(0)
                encoded = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

            do_GET = do_POST  # noqa: N815 - the name that http.server calls

            def log_message(self, *_: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def erase(self, *words: object, code: int = 0) -> Result:
        """Run the command against this server."""
        url = f"http://127.0.0.1:{self.http.server_port}"
        result = CliRunner().invoke(
            main, ["erase", *map(str, words), "--server", url], terminal_width=200
        )
        assert result.exit_code == code, result.output
        return result


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()
    assert server.answers == []


def answer(receipt: dict[str, Any], *, more: bool = False, count: int = 1200) -> tuple[int, Any]:
    status = 200 if receipt["state"] == "complete" else 202
    return status, {"count": count, "ids": [], "more": more, "erasure": receipt}


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["meta.person=a & label=circle"], {"where": "meta.person=a & label=circle"}),
        (['{"meta.person": "a"}'], {"where": {"meta.person": "a"}}),
        (["--image", HASH], {"where": {"input.hash": HASH}}),
        (["--image", HASH, "--image", HASH], {"where": {"input.hash": HASH}}),
        (["--all"], {"all": True}),
    ],
    ids=["text", "json", "hash", "one hash twice", "all"],
)
def test_what_is_selected_is_sent(
    server: Server, arguments: list[str], body: dict[str, Any]
) -> None:
    server.answers.append(answer(RECEIPT))
    server.erase(*arguments, "--yes")
    sent = {"dry_run": False, "all": False, "erase": True} | body
    assert server.requests == [("POST /api/inferences/delete", sent)]


def test_images_are_found_by_the_hash_of_their_bytes(server: Server, tmp_path: Any) -> None:
    image = tmp_path / "photo.jpg"
    image.write_bytes(b"picture" * 500_000)  # larger than what is read at once
    server.answers.append(answer(RECEIPT))
    server.erase("--image", image, "--image", HASH, "--yes")
    digest = f"blake3:{blake3(image.read_bytes()).hexdigest()}"
    assert server.requests[0][1]["where"] == {"input.hash": {"in": sorted([digest, HASH])}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected one of FILTER, --image and --all, got none"),
        (["meta.a=1", "--all"], "expected one of FILTER, --image and --all, got several"),
        (["meta.a=1", "--image", HASH], "got several"),
        (["--image", "no.jpg"], "expected a file or blake3: and 64 hex digits, got no.jpg"),
        (["--image", HASH.upper()], "expected a file or blake3: and 64 hex digits"),
        (["{meta.a"], "expected FILTER to be JSON, got {meta.a"),
        (["meta.a=1", "--wait", "-1"], "x>=0"),
    ],
    ids=str,
)
def test_a_bad_selection_asks_no_server(server: Server, arguments: list[str], message: str) -> None:
    output = server.erase(*arguments, "--yes", code=2).output
    assert message in " ".join(output.replace("│", " ").split())
    assert server.requests == []


def test_without_a_terminal_nothing_is_asked_or_erased(server: Server) -> None:
    output = server.erase("meta.a=1", code=2).output
    assert "--yes is required where nobody can be asked" in output
    assert server.requests == []


def test_the_receipt_says_what_is_removed_and_what_is_kept(server: Server) -> None:
    server.answers.append(answer(RECEIPT))
    assert server.erase("meta.a=1", "--yes").stdout.splitlines() == [
        "erasure 1795541056789012345-9c1f is complete",
        "  1,200 inferences removed",
        "  1 values that ground truth was joined by, removed with its statements",
        "  2 images removed",
        "  4 new_kind",
        "May be kept elsewhere, out of its reach:",
        "  - backups",
    ]


def test_what_remains_is_said_and_is_no_success(server: Server) -> None:
    receipt = RECEIPT | {"remaining": ["drift/\x1b[2Ja: it mentions what was erased"]}
    server.answers.append(answer(receipt))
    output = server.erase("meta.a=1", "--yes", code=1).stdout
    assert "Remains on this server, for you to remove:\n  - drift/" in output
    assert "\x1b" not in output


def test_an_erasure_that_goes_on_is_waited_for(server: Server) -> None:
    server.answers += [answer(RUNNING), (200, RUNNING), (200, RECEIPT)]
    assert json.loads(server.erase("meta.a=1", "--yes", "--json").stdout) == RECEIPT
    path = "GET /api/erasures/1795541056789012345-9c1f"
    assert [name for name, _ in server.requests[1:]] == [path, path]


def test_waiting_ends_when_it_shall(server: Server) -> None:
    server.answers.append(answer(RUNNING))
    output = server.erase("meta.a=1", "--yes", "--wait", "0", code=1).stdout
    assert "goes on; its receipt comes at GET /api/erasures/1795541056789012345-9c1f" in output
    assert "It waits for:\n  - job 1 has not ended" in output


def test_it_goes_on_until_nothing_matches(server: Server) -> None:
    last = RECEIPT | {"counts": {"inferences": 1}}
    server.answers += [answer(RECEIPT, more=True), answer(last, count=1)]
    lines = server.erase("meta.a=1", "--yes", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [RECEIPT, last]


def test_a_search_in_vain_is_not_repeated_for_ever(server: Server) -> None:
    server.answers.append(answer(RECEIPT, more=True, count=0))
    assert "narrow the filter" in server.erase("meta.a=1", "--yes", code=2).output


@pytest.mark.parametrize(
    ("status", "hint"),
    [(400, ""), (401, ": set QUADRIGA_API_KEY or QUADRIGA_API_KEY_FILE"), (403, "")],
)
def test_a_refusal_is_an_error(server: Server, status: int, hint: str) -> None:
    server.answers.append((status, {"error": "expected a key for all teams"}))
    output = server.erase("meta.a=1", "--yes", code=2).output
    assert output.strip() == f"quadriga: expected a key for all teams ({status}){hint}"
