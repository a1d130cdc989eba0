"""The pictures of docs/console.md, of a real server: `python -m tests.console_pictures`, or `make pictures`; some three minutes.

Models answer the sample images as cameras would have sent them in the last two days: mirrored, by day and by night. In
the last hours one camera is dark and out of focus. All answers, reports and figures are the server's own.
"""

import base64
import io
import json
import math
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import cv2
import numpy as np
from PIL import Image, ImageOps

from sample_models.demo import Sample, read_samples
from tests.browser import Browser
from tests.server_process import MODELS, ROOT, SAMPLE_MODELS, ServerProcess
from tests.two_versions import write_two_versions

SHAPES, SHIPS = MODELS["detection"], MODELS["oriented"]
TASKS = {SHAPES: "object_detection", SHIPS: "oriented_object_detection"}
FOLDER = ROOT / "docs" / "console"
CAMERAS, CHANGED_CAMERA = ("north", "east", "south"), "east"
NIGHT_BRIGHTNESS, CHANGED_BRIGHTNESS, CHANGED_BLUR_PX = 0.45, 0.5, 1.5
STORED = timedelta(hours=48)
WINDOW, WINDOWS, CHANGED_WINDOWS = timedelta(hours=2), 14, 3
IN_SIGHT = "[...document.images].filter((image) => image.getBoundingClientRect().top < innerHeight)"
MISSED = "[...document.querySelectorAll('.object')].find((row) => row.innerText.includes('missed'))"


class Shot(NamedTuple):
    """An image as a camera sends it."""

    at: datetime
    image: bytes
    metadata: dict[str, Any]
    truth: list[dict[str, Any]]


def take_shots(folder: str, *, begin: datetime, end: datetime, count: int, lamps: bool) -> list[Shot]:  # fmt: skip
    """Return what the cameras send in a span of time; with `lamps` nights are as light as days."""
    rng = np.random.default_rng(7)
    samples = read_samples(folder)
    shots = []
    for number in range(count):
        share = (number + rng.uniform()) / count
        at = begin + (end - begin) * (share + 0.03 * math.sin(4 * math.pi * share))
        sample = samples[rng.integers(len(samples))]
        camera = CAMERAS[rng.integers(len(CAMERAS))]
        is_night = not (lamps or 6 <= at.hour < 20)
        metadata = {
            "camera_id": camera,
            **({} if lamps else {"light": "night" if is_night else "day"}),
            "altitude": round(sample.metadata["altitude"] + rng.normal(0, 4), 1),
            "path": f"{begin:%d-%H%M}-{number:04}.jpg",
        }
        brightness = rng.normal(1, 0.06) * (NIGHT_BRIGHTNESS if is_night else 1)
        changed = lamps and camera == CHANGED_CAMERA and at >= end - CHANGED_WINDOWS * WINDOW
        image, truth = see(sample, brightness, mirrored=rng.uniform() < 0.5, changed=changed)
        shots.append(Shot(at, image, metadata, truth))
    return shots


def see(sample: Sample, brightness: float, *, mirrored: bool, changed: bool) -> tuple[bytes, list[dict[str, Any]]]:  # fmt: skip
    """Return a sample image in another light as a file, and its truth; `changed` is dark and out of focus."""
    pixels = cv2.imread(str(sample.path))
    assert pixels is not None
    truth = sample.truth
    if mirrored:
        truth = [mirror(annotation, pixels.shape[1]) for annotation in truth]
        pixels = cv2.flip(pixels, 1)
    if changed:
        pixels = cv2.GaussianBlur(pixels, (0, 0), CHANGED_BLUR_PX)
        brightness *= CHANGED_BRIGHTNESS
    lit = np.clip(pixels * brightness, 0, 255).astype(np.uint8)
    return cv2.imencode(".jpg", lit)[1].tobytes(), truth


def mirror(annotation: dict[str, Any], width_px: int) -> dict[str, Any]:
    """Return an annotation of an image whose left and right have changed places."""
    if box := annotation.get("oriented_bbox"):
        return {**annotation, "oriented_bbox": {**box, "cx": 1 - box["cx"], "r": -box["r"]}}
    sides = {near: width_px - annotation["bbox"][far] for near, far in (("xmin", "xmax"), ("xmax", "xmin"))}  # fmt: skip
    return {**annotation, "bbox": {**annotation["bbox"], **sides}}


def store(server: ServerProcess, model: str, version: str, shots: list[Shot]) -> None:
    """Let a model answer images, and store the answers at the times of the images, with the truth of two of three."""

    def answer(shot: Shot) -> dict[str, Any]:
        begun = time.perf_counter()
        output = server.infer(f"{model}/versions/{version}", shot.image, store=False)
        elapsed_ms = (time.perf_counter() - begun) * 1000
        image = base64.b64encode(shot.image).decode()
        return {"time": shot.at.isoformat(), "image": image, "metadata": shot.metadata, "predictions": output["data"][0], "latency_ms": elapsed_ms}  # fmt: skip

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(answer, shots))
    for first in range(0, len(answers), 50):
        body = {"model": model, "version": version, "task": TASKS[model], "inferences": answers[first : first + 50]}  # fmt: skip
        ask(server, "POST", "/api/inferences", body)
    known = [shot for number, shot in enumerate(shots) if number % 3]
    items = [{"value": shot.metadata["path"], "annotations": shot.truth} for shot in known]
    body = {"join": "meta.path", "source": "mara", "task": TASKS[model], "items": items}
    ask(server, "POST", "/api/ground-truth", body)


def ask(server: ServerProcess, method: str, path: str, body: Any = None) -> Any:
    """Send JSON, and return the answer; where that is a job, once it has ended."""
    status, answer = server.call(method, path, body)
    assert status in {200, 202}, answer
    assert not answer.get("refused"), answer
    if status == 202:
        assert server.ended(answer.get("job") or answer["id"])["state"] == "succeeded", answer
    return answer


def write_reports(server: ServerProcess, end: datetime) -> str:
    """Compare the last windows with the time before them, and evaluate; return the path of the evaluation."""
    begin = end - WINDOWS * WINDOW
    times = {"from": (end - STORED).isoformat(), "to": begin.isoformat()}
    ask(server, "PUT", f"/api/models/{SHIPS}/baseline", times)
    for number in range(WINDOWS):
        since = begin + number * WINDOW
        times = {"from": since.isoformat(), "to": (since + WINDOW).isoformat()}
        ask(
            server,
            "POST",
            "/api/drift",
            {"model": SHIPS, "windows": 12, "ignore": ["latency_ms"], **times},
        )
    ask(server, "POST", "/api/evaluations", {"model": SHIPS, "by": ["meta.camera_id"]})
    body = {"model": SHAPES, "version": "2", "by": ["meta.light", "meta.camera_id"]}
    evaluation = ask(server, "POST", "/api/evaluations", body)
    return f"/console/reports/{evaluation['id']}"


def one_missed(server: ServerProcess) -> str:
    """Return the id of an inference that missed one object, with few that are false and many that are right."""
    order = {}
    for inference in server.query({"model": SHIPS, "ground_truth": {"exists": True}}):
        path = f"/api/inferences/{inference['id']}/ground-truth"
        truth = Counter(row["label"] for row in ask(server, "GET", path)["annotations"])
        predicted = Counter(row["label"] for row in inference["predictions"])
        if (truth - predicted).total() == 1:
            order[inference["id"]] = -(predicted - truth).total(), (truth & predicted).total()
    return max(order, key=order.__getitem__)


class Camera:
    """A browser that writes what it shows of a server."""

    def __init__(self, server: ServerProcess) -> None:
        self.browser = Browser()
        self.browser.send("Emulation.setTimezoneOverride", timezoneId="UTC")
        self._address = f"http://{server.host}"

    def open(self, path: str, width: int, height: int, *, scheme: str = "light", **query: str) -> None:  # fmt: skip
        """Show a page of the console."""
        url = f"{self._address}{path}?{urlencode(query)}"
        self.browser.open(url, scheme=scheme, width=width, height=height)

    def click(self, selector: str, until: str) -> None:
        """Click the first of what a selector finds, and wait until an expression holds."""
        self.browser.run(f"document.querySelector({selector!r}).click()")
        self.browser.wait_for(until)

    def write(self, name: str, scale: float = 1) -> None:
        """Write what is in sight, once its images are there and nothing moves."""
        self.browser.wait_for(f"{IN_SIGHT}.every((image) => image.complete)")
        time.sleep(0.5)
        png = base64.b64decode(self.browser.send("Page.captureScreenshot")["data"])
        picture = ImageOps.scale(Image.open(io.BytesIO(png)).convert("RGB"), scale)
        picture.save(FOLDER / name, quality=75, method=6)


def picture_pages(camera: Camera, evaluation: str, inference_id: str) -> None:
    """Write the pictures of what is stored."""
    for name, path, size, query in (
        ("overview", "/console/", (1280, 900), {}),
        ("inferences", "/console/inferences", (1280, 900), {"q": f"model={SHIPS} & label=ship & box=score:ge:0.8"}),
        ("objects", "/console/inferences", (1200, 900), {"q": "label=star:lt:0.6", "view": "objects"}),
        ("drift", f"/console/models/{SHIPS}/drift", (1280, 1170), {}),
    ):  # fmt: skip
        camera.open(path, *size, **query)
        camera.write(f"{name}-light.webp")
    camera.open(evaluation, 1280, 1000)
    camera.browser.run("scrollTo(0, document.querySelector('[data-labels]').offsetTop - 120)")
    camera.write("evaluation-light.webp")
    camera.open("/console/compare", 1200, 900, a=f"{SHAPES}:1", b=f"{SHAPES}:2")
    camera.click("form[action$=evaluate] button", "document.querySelector('table') !== null")
    camera.write("compare-light.webp")
    path, loaded = f"/console/inferences/{inference_id}", "document.querySelector('[data-still]')?.hidden"  # fmt: skip
    for name, size, scale in (("light", (1250, 781), 0.8), ("dark", (1250, 781), 0.8), ("phone-dark", (320, 800), 1)):  # fmt: skip
        camera.open(path, *size, scheme=name.rpartition("-")[2], q=f"model={SHIPS}")
        camera.browser.wait_for(loaded)
        if scale < 1:
            camera.click("[data-do=edit]", "true")
            camera.browser.run(f"{MISSED}.click()")
        camera.write(f"inference-{name}.jpg", scale)
    camera.open("/console/label", 1200, 800, q=f"model={SHAPES} & version=2", by="score", target="20")  # fmt: skip
    for labelled in range(1, 6):
        camera.click("main a.button.first", loaded)
        camera.click("[data-do=accept]", f"location.search.includes('done={labelled}') && {loaded}")
        camera.click("[data-key=Escape]", "location.pathname.endsWith('/label')")
    camera.write("label-light.webp")


def picture_live(camera: Camera, server: ServerProcess) -> None:
    """Write the live page while images arrive."""
    camera.open("/console/live", 1200, 900, scheme="dark")
    now = datetime.now(UTC)
    for shot in take_shots("oriented", begin=now, end=now + WINDOW, count=70, lamps=True):
        server.store(SHIPS, shot.image, metadata=json.dumps(shot.metadata))
        time.sleep(shot.at.microsecond / 1e6)
    camera.write("live-dark.webp")


def main() -> None:
    """Fill a store with inferences of both models, one of them in two versions, and write the pictures."""
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    take_two_days = partial(take_shots, begin=end - STORED, end=end)
    with tempfile.TemporaryDirectory() as name:
        models = write_two_versions(Path(name) / "models")
        (models / SHIPS).symlink_to(SAMPLE_MODELS / SHIPS)
        with ServerProcess(Path(name) / "data", models, "--signals-per-s", "1000") as server:
            store(server, SHIPS, "1", take_two_days("oriented", count=3600, lamps=True))
            shapes = take_two_days("detection", count=200, lamps=False)
            for version in ("1", "2"):
                store(server, SHAPES, version, shapes)
            server.query({"model": SHAPES}, limit=1)
            camera = Camera(server)
            picture_pages(camera, write_reports(server, end), one_missed(server))
            picture_live(camera, server)
            camera.browser.close()


if __name__ == "__main__":
    main()
