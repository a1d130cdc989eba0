"""Many images, many threads, a fork, and event loops."""

import asyncio
import io
import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quadriga.client import (
    AsyncClient,
    Client,
    FailedInference,
    NotFound,
    Unauthenticated,
    Unreachable,
)
from quadriga.client.errors import InputError
from tests.unit.client.conftest import inferred, json_response

IMAGE = b"image"


def sent_image(request: bytes) -> bytes:
    """Return the image of a request."""
    head, _, body = request.partition(b"\r\n\r\n")
    (line,) = (line for line in head.split(b"\r\n") if line.startswith(b"Inference-Header"))
    return body[int(line.split(b": ")[1]) + 4 :]


def echo(sock, request, _) -> None:
    """Answer with the image's text as the id; one that is called bad is refused."""
    image = sent_image(request)
    if image == b"bad":
        sock.sendall(json_response({"error": "expected an image"}, 400))
    else:
        sock.sendall(inferred(inference_id=image.decode()))


@pytest.fixture
def client(server):
    server.script = echo
    with Client(server.url, key="", retries=0) as client:
        yield client


def test_results_come_in_order_and_a_bad_image_is_an_error_in_its_place(client):
    images = [b"1", b"bad", "missing.jpg", b"4", None, b"6"]
    outcomes = list(client.infer_many("m", images, concurrency=3))
    assert [outcome.ok for outcome in outcomes] == [True, False, False, True, False, True]
    assert [outcome.id for outcome in outcomes if outcome.ok] == ["1", "4", "6"]
    failed = [outcome for outcome in outcomes if isinstance(outcome, FailedInference)]
    assert [outcome.source for outcome in failed] == ["bytes", "missing.jpg", "NoneType"]
    assert "expected an image" in str(failed[0].error)


@pytest.mark.parametrize("form", [list, np.array, pd.Series], ids=["list", "array", "column"])
def test_paths_may_stand_in_an_array_or_a_column(client, tmp_path, form):
    paths = [str(tmp_path / name) for name in ("2", "1")]
    for path in paths:
        Path(path).write_text(Path(path).name)
    assert [outcome.id for outcome in client.infer_many("m", form(paths))] == ["2", "1"]


def test_no_images_have_no_results(client, tmp_path, server):
    assert list(client.infer_many("m", [])) == []
    assert list(client.infer_many("m", tmp_path)) == []
    assert not server.requests


def test_a_folder_is_taken_by_name_without_what_is_no_image(client, tmp_path):
    for name in ("10.JPG", "2.png", "notes.txt", "a.jpg.part"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "folder.jpg").mkdir()
    outcomes = list(client.infer_many("m", tmp_path))
    assert [outcome.source for outcome in outcomes] == [
        str(tmp_path / "10.JPG"),
        str(tmp_path / "2.png"),
    ]


def sent_metadata(server) -> dict[str, dict]:
    """Return the metadata of each request by its image's text; None without."""
    found = {}
    for request in server.requests:
        body = request.partition(b"\r\n\r\n")[2].decode(errors="replace")
        sent, _ = json.JSONDecoder().raw_decode(body)  # the image follows
        text = sent["inputs"][0]["parameters"].get("metadata")
        found[sent_image(request).decode()] = None if text is None else json.loads(text)
    return found


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        (None, {"1": None, "2": None}),
        ({"a": 1}, {"1": {"a": 1}, "2": {"a": 1}}),
        ([{"a": 1}, None], {"1": {"a": 1}, "2": None}),
        (({"a": 1}, {"a": 2}), {"1": {"a": 1}, "2": {"a": 2}}),
        (lambda image: {"size": len(image)} if image == b"2" else None, {"1": None, "2": {"size": 1}}),
    ],
)  # fmt: skip
async def test_metadata_are_of_all_images_or_of_each(client, server, metadata, found):
    list(client.infer_many("m", [b"1", b"2"], metadata))
    assert sent_metadata(server) == found
    server.requests.clear()
    async with AsyncClient(server.url, key="", retries=0) as other:
        assert [outcome.ok async for outcome in other.infer_many("m", [b"1", b"2"], metadata)] == [
            True
        ] * 2
    assert sent_metadata(server) == found


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([{}], "expected metadata for each image, got 1 for 2 images"),
        ([{}] * 3, "got 3 for 2 images"),
        ([{}, "b"], r"expected metadata\[1\] to be a dict, got str"),
        ("ab", "a list with one for each image, or a function, got str"),
        ({1, 2}, "got set"),
        ({"a": object()}, r"expected metadata\['a'\] to be a value of JSON, got object"),
    ],
)
def test_metadata_that_fit_no_images_are_refused_at_once(client, server, metadata, message):
    with pytest.raises(InputError, match=message):
        client.infer_many("m", [b"1", b"2"], metadata)
    assert not server.requests


@pytest.mark.parametrize(("count", "message"), [(1, "got 1 for more images"), (3, "got 3 for 2 images")])  # fmt: skip
def test_metadata_of_images_that_nobody_counted_have_to_be_as_many(client, count, message):
    results = client.infer_many("m", iter([b"1", b"2"]), [{}] * count)
    with pytest.raises(InputError, match=message):
        list(results)


async def test_what_was_sent_before_an_error_has_its_results(client, server):
    def images():
        yield b"1"
        yield b"2"
        raise OSError("the disk is gone")

    def metadata_of(image):
        return {"number": 1 / (image != b"3")}

    async def of_twin(images, metadata):
        async with AsyncClient(server.url, key="", retries=0) as twin:
            async for outcome in twin.infer_many("m", images, metadata):
                found.append(outcome.id)

    for make, metadata in [(images, None), (lambda: [b"1", b"2", b"3"], metadata_of)]:
        found = []
        with pytest.raises((OSError, ZeroDivisionError), match=r"gone|zero"):
            found.extend(outcome.id for outcome in client.infer_many("m", make(), metadata))
        assert found == ["1", "2"]
        found = []
        with pytest.raises((OSError, ZeroDivisionError), match=r"gone|zero"):
            await of_twin(make(), metadata)
        assert found == ["1", "2"]


def test_a_function_that_returns_no_metadata_ends_the_images(client):
    with pytest.raises(InputError, match="expected the metadata of bytes to be a dict, got int"):
        list(client.infer_many("m", [b"1"], len))


def picture_folder(folder):
    for name in ("b.png", "a.jpg", "north/a.jpg", "north/b.jpg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def test_the_name_of_a_file_is_stored_with_its_inference(client, server, tmp_path):
    """It is relative to the folder; ground truth is joined on it."""
    folder = picture_folder(tmp_path)
    cases = [
        (folder, {}, {"a.jpg": "a.jpg", "b.png": "b.png"}),
        (f"{folder}/", {}, {"a.jpg": "a.jpg", "b.png": "b.png"}),
        (f"{folder}/**/*.jpg", {}, {"a.jpg": "a.jpg", "north/a.jpg": "north/a.jpg", "north/b.jpg": "north/b.jpg"}),
        ([folder / "north/a.jpg", str(folder / "b.png")], {}, {"north/a.jpg": "a.jpg", "b.png": "b.png"}),
        (folder / "north", {"path_key": "file"}, {"north/a.jpg": "a.jpg", "north/b.jpg": "b.jpg"}),
        (folder / "north", {"path_key": None}, {"north/a.jpg": None, "north/b.jpg": None}),
        ([folder / "b.png"], {"metadata": {"path": "mine"}}, {"b.png": "mine"}),
    ]  # fmt: skip
    for images, options, expected in cases:
        server.requests.clear()
        assert all(result.ok for result in client.infer_many("m", images, **options))
        key = options.get("path_key") or "path"
        found = sent_metadata(server)
        assert {name: (row or {}).get(key) for name, row in found.items()} == expected, images


def test_a_name_that_is_no_text_is_stored_as_one(client, server, tmp_path):
    name = os.fsdecode(b"\xff.jpg")
    (tmp_path / name).write_bytes(b"1")
    for images in (tmp_path, [tmp_path / name]):
        assert [result.ok for result in client.infer_many("m", images)] == [True]
        assert sent_metadata(server) == {"1": {"path": "\ufffd.jpg"}}


def test_what_has_no_file_has_no_name(client, server, tmp_path):
    path = picture_folder(tmp_path) / "a.jpg"
    with path.open("rb") as file:
        list(client.infer_many("m", [b"1", file]))
    assert sent_metadata(server) == {"1": None, "a.jpg": {"path": "a.jpg"}}


def test_a_failed_inference_has_no_id(client):
    (failed,) = client.infer_many("m", [b"bad"])
    assert (failed.ok, failed.id, failed.source) == (False, None, "bytes")


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (b"x", "expected a folder or an iterable of images, got bytes: infer takes one image"),
        (7, "got int: infer takes one image"),
        (io.BytesIO(b"x"), "got BytesIO: infer takes one image"),
        (np.zeros((5, 7), np.uint8), "got ndarray: infer takes one image"),
        (np.zeros((5, 7, 3), np.uint8), "got ndarray: infer takes one image"),
        ("missing-folder", "expected a folder of images, a pattern or an iterable, got 'missing-folder', which does not exist"),
        ("missing-folder/*.jpg", r"got 'missing-folder/\*.jpg', which no file matches"),
        (__file__, "test_batches.py': infer takes one image"),
        ("photos\0/*.jpg", r"got 'photos\\x00/\*.jpg', which does not exist"),
        ("*\0/**", r"got '\*\\x00/\*\*', which does not exist"),
        ("photos\0", r"got 'photos\\x00', which does not exist"),
        (Path("photos\0/*.jpg"), r"got 'photos\\x00/\*.jpg', which does not exist"),
        ("long" * 2000, "got 'longlong.*, which does not exist"),
        ("long*" * 2000, "got 'long.*, which no file matches"),
    ],
)  # fmt: skip
def test_what_is_no_set_of_images_is_refused_at_once(client, images, message):
    with pytest.raises(InputError, match=message):
        client.infer_many("m", images)


@pytest.mark.parametrize("concurrency", [0, -1, 1000])
def test_a_concurrency_that_is_none_is_refused_at_once(client, concurrency):
    with pytest.raises(InputError, match="1 to 256"):
        client.infer_many("m", [], concurrency=concurrency)


def test_no_more_images_are_taken_than_are_needed_soon(client):
    taken = 0

    def images():
        nonlocal taken
        for number in range(10_000):
            taken += 1
            yield b"%d" % number

    results = client.infer_many("m", images(), concurrency=4)
    assert next(results).id == "0"
    assert taken <= 9
    results.close()  # ends threads and requests
    assert taken <= 9
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("quadriga-client")]


@pytest.mark.parametrize(("status", "kind"), [(401, Unauthenticated), (404, NotFound)])
def test_an_error_of_all_images_ends_them(client, server, status, kind):
    server.answers(json_response({"error": "no"}, status))
    with pytest.raises(kind):
        list(client.infer_many("m", (b"%d" % number for number in range(100_000))))
    assert len(server.requests) < 50


def test_a_server_that_goes_away_ends_them(client, server):
    results = client.infer_many("m", (b"%d" % number for number in range(100_000)))
    next(results)
    server.close()
    with pytest.raises(Unreachable):
        list(results)


def test_a_hundred_thousand_names_are_no_burden(client, tmp_path):
    names = [tmp_path / f"{number:06d}.jpg" for number in range(100_000)]
    os.link(_file(tmp_path), names[0])
    for name in names[1:]:
        name.symlink_to(names[0])
    results = client.infer_many("m", tmp_path)
    assert [next(results).source for _ in range(3)] == [str(name) for name in names[:3]]
    results.close()


def _file(folder):
    path = folder / "first"
    path.write_bytes(b"1")
    return path


def test_progress_is_shown_on_stderr_alone(client, capsys):
    list(client.infer_many("m", [b"1", b"bad"], progress=True))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2/2 images" in captured.err
    assert "1 failed" in captured.err


@pytest.mark.parametrize(
    "case",
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
def test_progress_is_shown_by_itself_on_a_terminal_alone(client, capsys, monkeypatch, case):
    is_terminal, progress, is_shown = case
    monkeypatch.setattr("quadriga.client.progress.FIRST_SHOWN_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    list(client.infer_many("m", [b"1", b"bad"], progress=progress))
    assert ("2/2 images" in capsys.readouterr().err) == is_shown


def test_a_short_call_shows_nothing_by_itself(client, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("quadriga.client.progress.FIRST_SHOWN_S", 60.0)
    list(client.infer_many("m", [b"1"]))
    assert capsys.readouterr().err == ""


def test_threads_share_a_client(client, server):
    answers: dict[int, list] = {}

    def infer(number: int) -> None:
        answers[number] = [client.infer("m", b"%d-%d" % (number, n)).id for n in range(30)]

    threads = [threading.Thread(target=infer, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: [f"{number}-{n}" for n in range(30)] for number in range(12)}
    assert server.connections <= 12


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_uses_connections_of_its_own(client, server):
    client.infer("m", b"parent")
    assert server.connections == 1
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, json.dumps([client.infer("m", b"child").id]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert client.infer("m", b"parent again").id == "parent again"
    os.waitpid(child, 0)
    assert json.loads(os.read(reader, 1000)) == ["child"]
    os.close(reader)
    assert server.connections == 2


async def test_a_loop_that_runs_already_can_use_both_clients(client, server):
    assert client.infer("m", b"plain").id == "plain"
    async with AsyncClient(server.url, key="", retries=0) as other:
        result = await other.infer("m", b"1", {"a": 1}, version="2")
        assert result.id == "1"
        assert b"/versions/2/infer" in server.requests[-1]
        found = await asyncio.gather(*(other.infer("m", b"%d" % n) for n in range(20)))
        assert [result.id for result in found] == [str(n) for n in range(20)]
        images = [b"1", b"bad", b"3"]
        outcomes = [outcome async for outcome in other.infer_many("m", images, concurrency=2)]
        assert [outcome.ok for outcome in outcomes] == [True, False, True]


async def test_the_loop_goes_on_while_a_server_is_slow(server):
    server.script = lambda sock, *_: time.sleep(0.3) or sock.sendall(inferred())
    async with AsyncClient(server.url, key="", retries=0) as client:
        call = asyncio.ensure_future(client.infer("m", IMAGE))
        ticks = 0
        while not call.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks > 3
        assert call.result().ok


def test_the_async_client_has_the_methods_of_the_other():
    plain, other = Client("http://h", key=""), AsyncClient("http://h", key="")
    shared = {"send", "open_stream"}  # the inside of the plain one
    names = {name for name in dir(plain) if not name.startswith("_")} - shared
    assert names <= {name for name in dir(other) if not name.startswith("_")}
    for group in ("models", "traffic", "schedules", "inferences", "truth", "views", "jobs", "reports", "server"):  # fmt: skip
        methods = {name for name in dir(getattr(plain, group)) if not name.startswith("_")}
        assert set(dir(getattr(other, group))) == methods
    with pytest.raises(AttributeError, match="no attribute 'infr'"):
        other.infr  # noqa: B018
