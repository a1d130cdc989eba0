"""A model that is tried on its page in Chromium: dropped, pasted, chosen and stored images, errors, what is stored, and commands that do the same."""

import base64
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, quadriga

pytestmark = pytest.mark.browser

IMAGE = IMAGES / "detection" / "scene_01.jpg"
SHOWN = "!document.querySelector('[data-part=answer]').hidden && document.querySelector('[data-part=status]').textContent.includes('answered in')"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield a server with the sample models."""
    with ServerProcess(tmp_path_factory.mktemp("try") / "data", SAMPLE_MODELS) as server:
        yield server


def show(browser, server, model="shapes-detector"):
    """Open the page of a model, which is ready."""
    server.wait_until(lambda: server.request("GET", f"/v2/models/{model}/ready")[0] == 200)
    browser.errors.clear()
    browser.open(f"http://{server.host}/console/models/{model}")
    browser.wait_for("!document.querySelector('[data-try]').hidden")


def give(browser, content, how="drop", name="photo.jpg", type_="image/jpeg"):
    """Drop, paste or choose a file."""
    events = {
        "drop": "document.querySelector('[data-try]').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }))",
        "paste": "document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }))",
        "choose": "(input.files = data.files, input.dispatchEvent(new Event('change')))",
    }
    browser.run(
        f"""(() => {{ const bytes = Uint8Array.from(atob('{base64.b64encode(content).decode()}'), (c) => c.charCodeAt(0));
        const input = document.querySelector('[data-try] input[type=file]'), data = new DataTransfer();
        data.items.add(new File([bytes], {msgspec.json.encode(name).decode()}, {{ type: '{type_}' }}));
        {events[how]}; }})()"""
    )


def rows(browser):
    """Return label and score of each row."""
    return browser.run(
        "[...document.querySelectorAll('[data-part=rows] tr')].map((row) => [row.cells[0].textContent, row.cells[1].textContent])"
    )


def text(browser, part):
    return browser.run(f"document.querySelector('[data-part=\"{part}\"]').textContent")


def answer_of(server, model, content, query="?store=false"):
    """Return what the server predicts."""
    status, _, body = server.request(
        "POST", f"/v2/models/{model}/infer{query}", content, {"Content-Type": "image/jpeg"}
    )
    assert status == 200, body
    return msgspec.json.decode(body)["outputs"][0]["data"][0]


@pytest.mark.parametrize("how", ["drop", "paste", "choose"])
def test_an_image_is_answered_and_drawn_and_nothing_is_stored(browser, server, how) -> None:
    before = len(server.query({}))
    show(browser, server)
    give(browser, IMAGE.read_bytes(), how)
    browser.wait_for(SHOWN)
    expected = answer_of(server, "shapes-detector", IMAGE.read_bytes())
    assert rows(browser) == [[item["label"], f"{item['score']:.2f}"] for item in expected]
    assert text(browser, "count") == str(len(expected))
    assert msgspec.json.decode(text(browser, "json"))["outputs"][0]["data"][0] == expected
    assert "640 \N{MULTIPLICATION SIGN} 480" in text(browser, "status")
    drawn = "document.querySelector('[data-part=stage] canvas').getContext('2d').getImageData(100, 100, 1, 1).data[3]"
    browser.wait_for(f"{drawn} === 255")
    assert len(server.query({})) == before
    assert not [error for error in browser.errors if not isinstance(error, str)], browser.errors


@pytest.mark.parametrize(
    ("model", "labels"),
    [
        ("shapes-classifier", ["cross"]),
        ("shapes-segmenter", None),
        ("ships-oriented-detector", ["plane"]),
        ("shapes-image-text", ["square"]),
    ],
)
def test_models_of_other_tasks_are_tried_alike(browser, server, model, labels) -> None:
    show(browser, server, model)
    if model == "shapes-image-text":
        browser.run("document.querySelector('[data-part=prompt]').value = 'what is there'")
    give(browser, IMAGE.read_bytes())
    browser.wait_for(SHOWN)
    if labels is None:
        labels = [item["label"] for item in answer_of(server, model, IMAGE.read_bytes())]
    assert [label for label, _ in rows(browser)] == labels


def test_the_score_is_asked_for_and_the_commands_do_the_same(browser, server, tmp_path) -> None:
    name = "it's a $(photo).jpg"
    (tmp_path / name).write_bytes(IMAGE.read_bytes())
    show(browser, server)
    give(browser, IMAGE.read_bytes(), name=name)
    browser.wait_for(SHOWN)
    browser.run(
        "{ const score = document.querySelector('[data-part=score]'); score.value = 0.9;"
        " for (const kind of ['input', 'change']) score.dispatchEvent(new Event(kind)); }"
    )
    query = "?store=false&score_threshold=0.9"
    expected = answer_of(server, "shapes-detector", IMAGE.read_bytes(), query)
    browser.wait_for(f"document.querySelectorAll('[data-part=rows] tr').length === {len(expected)}")
    curl = shlex.split(text(browser, "curl").replace("\\\n", " "))
    assert curl[0] == "curl"
    done = subprocess.run(curl, cwd=tmp_path, capture_output=True, check=True)
    assert msgspec.json.decode(done.stdout)["outputs"][0]["data"][0] == expected
    script = text(browser, "python")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=True
    )
    assert all(item["label"].encode() in done.stdout for item in expected)


def test_what_is_asked_to_be_stored_is_stored_and_found(browser, server) -> None:
    show(browser, server)
    browser.run("document.querySelector('[data-part=store]').click()")
    give(browser, IMAGE.read_bytes())
    browser.wait_for("!document.querySelector('[data-part=open]').hidden")
    link = browser.run("document.querySelector('[data-part=open]').href")
    stored = server.query({"id": link.rpartition("/")[2]})
    assert [item["label"] for item in stored[0]["predictions"]] == [row[0] for row in rows(browser)]
    show(browser, server)  # now with a stored image to try
    browser.run("document.querySelector('[data-part=stored]').click()")
    browser.wait_for(SHOWN)
    assert len(rows(browser)) == len(stored[0]["predictions"])


def test_a_file_that_is_no_image_says_so_and_the_next_is_answered(browser, server) -> None:
    show(browser, server)
    give(browser, b"label,score\nstar,0.5\n", name="scores.csv", type_="text/csv")
    browser.wait_for("!document.querySelector('[data-part=problem]').hidden")
    assert "image" in text(browser, "problem")
    give(browser, IMAGE.read_bytes())
    browser.wait_for(SHOWN)
    assert browser.run("document.querySelector('[data-part=problem]').hidden")


def test_names_and_answers_of_strangers_are_text(browser, server) -> None:
    show(browser, server)
    give(browser, IMAGE.read_bytes(), name="<img src=x onerror=document.title='taken'>.jpg")
    browser.wait_for(SHOWN)
    assert browser.run("document.title") != "taken"
    assert "<img" in text(browser, "status")


def test_who_may_not_infer_is_not_asked_for_an_image(tmp_path: Path) -> None:
    keys = {}
    for role in ("read", "operate"):
        made = quadriga("keys", "create", "--role", role, "--json", "--data", tmp_path / "data")
        keys[role] = msgspec.json.decode(made.stdout)["key"]
    with ServerProcess(tmp_path / "data", SAMPLE_MODELS) as server:
        for role, is_shown in (("read", False), ("operate", True)):
            headers = {"Authorization": f"Bearer {keys[role]}"}
            status, _, page = server.request(
                "GET", "/console/models/shapes-detector", None, headers
            )
            assert status == 200
            assert (b"data-try" in page) == is_shown
