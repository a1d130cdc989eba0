"""Drift through a running server: a baseline, then the same scenes at night."""

import base64
import html
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import cv2
import numpy as np
import pytest

from tests.server_process import IMAGES, ROOT, SAMPLE_MODELS, ServerProcess

PATH = "/v2/models/shapes-detector/infer"
BASELINE = "/api/models/shapes-detector/baseline"
SCENES = sorted((IMAGES / "detection").glob("*.jpg"))
SURE = ["score", "predictions", "area", "image.brightness", "image.contrast", "image.saturation"]
"""Signals that are the same each time, however busy the machine is."""

COMMANDS = f'quadriga() {{ {sys.executable} -m quadriga.engine.cli "$@"; }}\n'


def send(server: ServerProcess, count: int, light: float, seed: int) -> None:
    """Send scenes, each a little darker or brighter than the last."""
    draw = np.random.default_rng(seed)
    for at in range(count):
        pixels = cv2.imread(str(SCENES[int(draw.integers(len(SCENES)))]))
        lit = np.clip(pixels * light * draw.uniform(0.9, 1.1), 0, 255).astype(np.uint8)
        data = cv2.imencode(".jpg", lit)[1].tobytes()
        server.infer("shapes-detector", data, metadata={"camera": ["north", "south"][at % 2]})


def ended(server: ServerProcess, job_id: str) -> None:
    job = server.ended(job_id)
    assert job["state"] == "succeeded", job


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("drift") / "data"
    with ServerProcess(
        data, SAMPLE_MODELS / "shapes-detector", "--signals-per-s", "10000"
    ) as running:
        send(running, 60, 1.0, 1)
        yield running


def moment(server: ServerProcess) -> str:
    """Return a moment after all that was sent until now."""
    (newest,) = server.call(
        "POST", "/api/inferences/query", {"limit": 1, "consistency": "journal"}
    )[1]["inferences"]
    second, millisecond = newest["created_at"].rstrip("Z").rsplit(".", 1)
    return f"{second}.{millisecond}999Z"


def test_the_same_scenes_at_night_raise_an_alarm(server) -> None:
    status, submitted = server.call("PUT", BASELINE, {})
    assert (status, submitted["state"]) == (200, "building")
    ended(server, submitted["job"])
    (baseline,) = server.call("GET", BASELINE)[1]["baselines"]
    assert (baseline["state"], baseline["n"], baseline["task"]) == ("ready", 60, "OBJECT_DETECTION")
    for light, expected in ((1.0, "ok"), (0.3, "drift")):
        since = moment(server)
        send(server, 80, light, 2)
        until = moment(server)
        request = {"model": "shapes-detector", "from": since, "to": until, "signals": SURE}
        status, job = server.call("POST", "/api/drift", request)
        assert status == 202, job
        ended(server, job["id"])
        report = server.call("GET", f"/api/reports/{job['id']}")[1]
        assert (report["kind"], report["status"]) == ("drift", expected)
        assert (report["data"]["baseline"]["n"], report["data"]["current"]["n"]) == (60, 80)
    alarms = {signal["name"] for signal in report["signals"] if signal["alarm"]}
    assert "image.brightness" in alarms
    page = server.request("GET", f"/api/reports/{job['id']}/page")[2].decode()
    assert "image.brightness" in page


CAMERAS = ("north", "east", "south", "west")


def store_yard(
    server: ServerProcess, model: str, hours: float, count: int, change: str
) -> datetime:
    """Store what four cameras saw in the last hours; from some moment on one of them changes. Returns that moment."""
    rng, now = np.random.default_rng(3), datetime.now(UTC)
    onset = now - timedelta(hours=hours) * 0.25
    items = []
    for number in range(count):
        at = now - timedelta(hours=hours) * (1 - (number + rng.uniform()) / count)
        camera = CAMERAS[rng.integers(4)]
        changed = camera == "east" and at >= onset
        pixels = rng.normal(rng.normal(130, 20), 40, (48, 64, 3))
        label = str(rng.choice(["car", "bus"]))
        if changed and change == "dark":
            pixels *= 0.4
        if changed and change == "blur":
            pixels = cv2.GaussianBlur(pixels, (0, 0), 1.5)
        if changed and change == "label":
            label = "van"
        data = cv2.imencode(".png", pixels.clip(0, 255).astype(np.uint8))[1].tobytes()
        items.append(
            {
                "time": at.isoformat(),
                "image": base64.b64encode(data).decode(),
                "metadata": {"camera": camera},
                "predictions": [{"label": label, "score": round(float(rng.uniform(0.6, 1)), 3)}],
            }
        )
    body = {"model": model, "version": "1", "task": "image_classification", "inferences": items}
    status, answer = server.call("POST", "/api/inferences", body)
    assert (status, answer.get("refused", [])) == (200, []), answer
    return onset


def form_defaults(page: str) -> dict[str, str]:
    """Return the values with which a browser sends the form of a page."""
    form = page.partition('<form class="form"')[2].partition("</form>")[0]
    values = dict(re.findall(r'<input [^>]*name="(\w+)"[^>]* value="([^"]*)"', form))
    for name, options in re.findall(r'<select [^>]*name="(\w+)"[^>]*>(.*?)</select>', form, re.DOTALL):  # fmt: skip
        chosen = re.search(r'value="([^"]*)" selected', options)
        values[name] = (chosen or re.search(r'value="([^"]*)"', options))[1]
    return {name: html.unescape(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("change", "hours", "count", "expected"),
    [
        ("dark", 20, 200, r"brightness from 5\d to 2\d \(darker\)"),
        ("dark", 48, 400, r"brightness from 5\d to 2\d \(darker\)"),
        ("blur", 90, 240, r"blur from \S+ to \S+ \(softer\)"),
        ("label", 20, 200, r"share of the label van from \S+ % to \d+ % \(more\)"),
        ("none", 20, 200, ""),
    ],
)
def test_the_defaults_of_the_form_lead_to_the_camera_that_changed(server, change, hours, count, expected):  # fmt: skip
    """One camera of four, a part of the window: too little for an alarm, and named in the head with its time."""
    model = f"{change}-{hours}"
    onset = store_yard(server, model, hours, count, change)
    assert len(server.query({"model": model})) == count
    page = server.request("GET", f"/console/reports/new?kind=drift&model={model}")[2].decode()
    form = form_defaults(page)
    assert form["period"] == ("half" if hours < 24 else "day")
    assert "An alarm needs 30 on each side" not in page
    headers = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://{server.host}"}  # fmt: skip
    sent = server.request("POST", "/console/reports/compare", urlencode(form), headers)
    job = sent[1]["location"].rpartition("/")[2].partition("?")[0]
    ended(server, job)
    page = server.request("GET", f"/console/reports/{job}")[2].decode()
    head = re.sub("<[^>]+>", "", re.search("<h1>.*?</h1>", page, re.DOTALL)[0])
    if not expected:
        assert not head.startswith("Where camera"), head
        return
    pattern = rf"Where camera is east from (.*) UTC on \(\d+ images\): .*{expected}"
    named = re.match(pattern, head)
    assert named, head
    first = datetime.fromisoformat(named[1]).replace(tzinfo=UTC)
    assert abs(first - onset) < timedelta(hours=hours) / 10
    assert "<em>" in page.partition("<h1>")[2][:5]


def commands(page: str, title: str) -> list[str]:
    section = (ROOT / "docs" / page).read_text().partition(f"\n## {title}\n")[2]
    blocks = re.findall(r"```sh\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    return re.findall(r"^\S(?:.*\n)(?:  .*\n)*", "".join(blocks), re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "title", "count"),
    [
        ("drift.md", "Compare stored inferences", 2),
        ("drift-reference.md", "Baselines", 4),
        ("drift-reference.md", "Drift of stored inferences", 3),
    ],
)
def test_commands_of_the_pages_are_answered(server, page: str, title: str, count: int) -> None:
    page_commands = commands(page, title)
    assert len(page_commands) == count
    for page_command in page_commands:
        command = page_command.replace(
            " --to -1d --server", " --server"
        )  # nobody was there a day ago
        finished = subprocess.run(
            ["bash", "-c", COMMANDS + command.replace("localhost:8080", server.host)],
            capture_output=True, text=True, timeout=100, check=False, cwd=ROOT,
            env=os.environ | {"QUADRIGA_DATA": str(server.data)},
        )  # fmt: skip
        if command.startswith("curl"):
            answer = json.loads(finished.stdout)
            assert answer.get("state") in {"queued", "building", "ready"}, command
        elif "--baseline-from" in command:  # nobody was there a week ago
            assert "has no inferences in the baseline" in finished.stderr, command
        else:
            assert finished.returncode == 0, finished.stderr
