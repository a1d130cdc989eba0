"""Drift end to end: scenes are sent to a server, window by window, and each window is compared with a baseline.

Seven worlds: nothing changes, night falls, the lens is out of focus, the light is warm, a shape comes that the
model does not know, the camera looks elsewhere (other shapes), there are more objects. Printed of each: how many
windows raised an alarm, and which signal moved most in how many of them. Latency is left out: it says how busy
this machine is.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from quadriga.client import Client, JobFailed
from sample_models.training.scenes import (
    OUTLINES,
    SEVERAL_SHAPES,
    SHAPES,
    Image,
    Recipe,
    draw_scene,
    draw_size_wh,
)
from tests.server_process import SAMPLE_MODELS, ServerProcess

MODEL = "shapes-detector"
SEED = 20261121
LONG_SIDE_PX = (160, 400)
LEFT_OUT = ["latency_ms"]
Change = Callable[[np.random.Generator, Image], Image]


class World(NamedTuple):
    """What is seen, and how."""

    name: str
    recipe: Recipe = SEVERAL_SHAPES
    change: Change = lambda _, image: image


def night(rng: np.random.Generator, image: Image) -> Image:
    """Leave a third of the light, and the grain of a sensor that is turned up."""
    dark = image * 0.35 + rng.normal(0, 6, (*image.shape[:2], 1))
    return np.clip(dark, 0, 255).astype(np.uint8)


def blur(_: np.random.Generator, image: Image) -> Image:
    """Blur an image."""
    return np.asarray(cv2.GaussianBlur(image, (0, 0), 2.0), np.uint8)


def warm(_: np.random.Generator, image: Image) -> Image:
    """Tint an image as lamp light does."""
    return np.clip(image * np.array([1.12, 1.0, 0.8]), 0, 255).astype(np.uint8)


def arrow() -> Any:
    """Return the outline of a shape that the model was not trained on."""
    half = [(0.0, -1.0), (0.7, -0.1), (0.25, -0.1), (0.25, 0.95)]
    return np.array(half + [(-x, y) for x, y in reversed(half[1:])])


OUTLINES["arrow"] = arrow
_ELSEWHERE = ("circle", "circle", "circle", "square", "square", "triangle", "star", "cross")
WORLDS = (
    World("nothing"),
    World("night", change=night),
    World("blur", change=blur),
    World("colour cast", change=warm),
    World("new object class", Recipe((*SHAPES, "arrow", "arrow"), (1, 6), (0.17, 0.45))),
    World("camera moved", Recipe(_ELSEWHERE, (1, 6), (0.17, 0.45))),
    World("more objects", Recipe(SHAPES, (3, 8), (0.17, 0.45))),
)


def draw(world: World, at: int, window: int) -> bytes:
    """Draw a scene of a window, as JPEG; no two are the same."""
    rng = np.random.default_rng((SEED, at, window, WORLDS.index(world)))
    scene = draw_scene(rng, draw_size_wh(rng, LONG_SIDE_PX), world.recipe)
    pixels = world.change(rng, scene.image)[:, :, ::-1]
    encoded: bytes = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 92])[1].tobytes()
    return encoded


class Study:
    """Requests of the study to one server."""

    def __init__(self, client: Client, threads: int, *, stores_images: bool = False) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(threads)
        self._parameters = {} if stores_images else {"store_input": False}

    def send(self, world: World, window: int, count: int) -> dict[str, str]:
        """Send a window of scenes, and return the span of time in which they were sent."""
        start = _now()
        time.sleep(0.01)
        list(self._pool.map(lambda at: self._infer(draw(world, at, window)), range(count)))
        time.sleep(0.5)  # signals are kept after the answers
        return {"from": start, "to": _now()}

    def _infer(self, image: bytes) -> None:
        self._client.infer(MODEL, image, parameters=self._parameters)

    def baseline(self, window: dict[str, str]) -> dict[str, Any]:
        """Create the baseline, and wait for its job."""
        saved = self._client.models.set_baseline(MODEL, **window)
        try:
            return self._client.jobs.wait(saved["job"], progress=False)
        except JobFailed as error:
            raise SystemExit(f"expected a baseline, got {error.job}") from error

    def compare(self, window: dict[str, str], page: Path | None = None) -> dict[str, Any]:
        """Compare a window with the baseline, and return the report; write it as a page, too."""
        try:
            report = self._client.drift(MODEL, progress=False, ignore=LEFT_OUT, **window)
        except JobFailed as error:
            raise SystemExit(f"expected a report, got {error.job}") from error
        if page is not None:
            page.write_text(self._client.reports.page(report["id"]))
        return report


def moved(report: dict[str, Any]) -> Iterator[str]:
    """Return the names of the signals in alarm, by effect over minimum effect, largest first."""
    alarms = [signal for signal in report["signals"] if signal["alarm"]]
    alarms.sort(key=lambda signal: -signal["effect"]["value"] / signal["effect"]["minimum"])
    return (signal["name"] for signal in alarms)


def main() -> None:
    """Run the study and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--images", type=int, default=150, help="of a window")
    parser.add_argument("--baseline", type=int, default=1500, help="images of the baseline")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--pages", type=Path, help="folder for a page of each world's first window")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(
            Path(folder) / "data", SAMPLE_MODELS / MODEL, "--signals-per-s", "1000000"
        ) as server,
    ):
        study = Study(
            Client(f"http://{server.host}"),
            arguments.threads,
            stores_images=arguments.pages is not None,
        )
        study.baseline(study.send(WORLDS[0], arguments.windows, arguments.baseline))
        print(f"{arguments.images} images a window, {arguments.baseline} of the baseline\n")
        print(
            "| world | windows with an alarm | what moved most (windows) | signals in alarm (windows) |"
        )
        print("|---|---|---|---|")
        for world in WORLDS:
            first: Counter[str] = Counter()
            every: Counter[str] = Counter()
            for window in range(arguments.windows):
                page = None
                if arguments.pages is not None and window == 0:
                    page = arguments.pages / f"{world.name.replace(' ', '-')}.html"
                report = study.compare(study.send(world, window, arguments.images), page)
                names = list(moved(report))
                first.update(names[:1])
                every.update(names)
            cells = (_told(first, 2), _told(every, 6))
            print(
                f"| {world.name} | {first.total()} of {arguments.windows} | {' | '.join(cells)} |"
            )


def _told(counted: Counter[str], most: int) -> str:
    return ", ".join(f"{name} {count}" for name, count in counted.most_common(most)) or "-"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    main()
