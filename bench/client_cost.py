"""The cost of a client: 1,000 images by quadriga-client, tritonclient and a hand-written loop of httpx, in one run.

Each client is a process of its own that sends the same images one after the other to one server, which stores nothing, so
that the client is what differs; all take turns in rounds. CPU is that of the client's process. Ratios are of each round
to this client, with the interval of the median by resampling the rounds.

tritonclient runs in `.conformance/tritonclient`, which `make clients` makes; without it, it is left out. The other libraries
that the client could stand on are measured with `--libraries`.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRITON_PYTHON = ROOT / ".conformance" / "tritonclient" / "bin" / "python"
MODEL = "shapes-classifier"
METADATA = {"camera_id": "north", "altitude": 120.5, "location": {"floor": 2}}
PARAMETERS = {"store": False, "metadata": json.dumps(METADATA)}
Send = Callable[[bytes], Any]
OURS = "quadriga-client"


def quadriga_sender(url: str) -> Send:
    """Send by this client, and read the scores as an array."""
    from quadriga.client import Client

    client = Client(url, key="")
    parameters = {"store": False}

    def send(image: bytes) -> Any:
        return client.infer(MODEL, image, METADATA, parameters=parameters).scores

    return send


def triton_sender(url: str) -> Send:
    """Send by tritonclient, which puts the image behind the JSON, too, and read the predictions."""
    import numpy as np
    from tritonclient import http

    client = http.InferenceServerClient(url.removeprefix("http://"))

    def send(image: bytes) -> Any:
        tensor = http.InferInput("input-image-0", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([image], dtype=np.object_))
        result = client.infer(MODEL, [tensor], parameters=PARAMETERS)
        predictions = json.loads(result.as_numpy("input-image-0")[0])
        return np.asarray([row["score"] for row in predictions], np.float32)

    return send


def body_of(image: bytes) -> tuple[bytes, dict[str, str]]:
    """Return a request of chariot-v2-kserve with the image behind the JSON."""
    parameters = {**PARAMETERS, "binary_data_size": len(image) + 4}
    tensor = {
        "name": "input-image-0", "shape": [1], "datatype": "BYTES", "parameters": parameters,
    }  # fmt: skip
    text = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return text + len(image).to_bytes(4, "little") + image, headers


def scores_of(text: bytes) -> Any:
    """Read the scores of an answer."""
    import numpy as np

    predictions = json.loads(text)["outputs"][0]["data"][0]
    return np.asarray([row["score"] for row in predictions], np.float32)


def httpx_sender(url: str) -> Send:
    """Send by httpx, as an engineer writes it: JSON with base64."""
    import base64

    import httpx
    import numpy as np

    client = httpx.Client(base_url=url)

    def send(image: bytes) -> Any:
        tensor = {
            "name": "input-image-0", "shape": [1], "datatype": "BYTES", "data": [base64.b64encode(image).decode()],
            "parameters": PARAMETERS,
        }  # fmt: skip
        answer = client.post(f"/v2/models/{MODEL}/infer", json={"inputs": [tensor]})
        answer.raise_for_status()
        predictions = answer.json()["outputs"][0]["data"][0]
        return np.asarray([row["score"] for row in predictions], np.float32)

    return send


def httpx_binary_sender(url: str) -> Send:
    """Send by httpx with the image behind the JSON."""
    import httpx

    client = httpx.Client(base_url=url)

    def send(image: bytes) -> Any:
        body, headers = body_of(image)
        answer = client.post(f"/v2/models/{MODEL}/infer", content=body, headers=headers)
        answer.raise_for_status()
        return scores_of(answer.content)

    return send


def urllib3_sender(url: str) -> Send:
    """Send by urllib3 with the image behind the JSON."""
    import urllib3

    pool = urllib3.PoolManager()

    def send(image: bytes) -> Any:
        body, headers = body_of(image)
        answer = pool.request("POST", f"{url}/v2/models/{MODEL}/infer", body=body, headers=headers)
        return scores_of(answer.data)

    return send


def requests_sender(url: str) -> Send:
    """Send by requests with the image behind the JSON."""
    import requests

    session = requests.Session()

    def send(image: bytes) -> Any:
        body, headers = body_of(image)
        answer = session.post(f"{url}/v2/models/{MODEL}/infer", data=body, headers=headers)
        return scores_of(answer.content)

    return send


SENDERS: dict[str, Callable[[str], Send]] = {
    OURS: quadriga_sender,
    "tritonclient": triton_sender,
    "httpx, base64": httpx_sender,
}
LIBRARIES: dict[str, Callable[[str], Send]] = {
    "httpx, binary": httpx_binary_sender,
    "urllib3, binary": urllib3_sender,
    "requests, binary": requests_sender,
}


class Loop:
    """A client in a process of its own, which sends so many images whenever it is told."""

    def __init__(self, name: str, url: str, images: Path) -> None:
        python = str(TRITON_PYTHON) if name == "tritonclient" else sys.executable
        command = [python, __file__, "--loop", name, url, str(images)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, requests: int) -> tuple[float, float]:
        """Send images; return CPU milliseconds of an image, and images per second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(requests, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a client ended: its error stands above")
        cpu_s, elapsed_s = json.loads(line)
        return cpu_s / requests * 1000, requests / elapsed_s

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def run_loop(name: str, url: str, folder: str) -> None:
    """Send images as often as the parent says, and print CPU seconds and elapsed seconds each time."""
    images = [path.read_bytes() for path in sorted(Path(folder).glob("*.jpg"))]
    send = {**SENDERS, **LIBRARIES}[name](url)
    for line in sys.stdin:
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        for number in range(int(line)):
            scores = send(images[number % len(images)])
            assert scores.shape[0] > 0
        spent = time.process_time() - begun_cpu_s, time.perf_counter() - begun_s
        print(json.dumps(spent), flush=True)


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median of ratios, by resampling."""
    draws = random.Random(0)
    medians = sorted(statistics.median(draws.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[-51]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="of each client, in all rounds")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--libraries", action="store_true", help="measure other libraries, too")
    parser.add_argument("--loop", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loop:
        run_loop(*arguments.loop)
        return
    from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess

    names = [*SENDERS, *(LIBRARIES if arguments.libraries else ())]
    if not TRITON_PYTHON.exists():
        names.remove("tritonclient")
        print(f"{TRITON_PYTHON} is not there (make clients): tritonclient is left out")
    costs: dict[str, list[float]] = {name: [] for name in names}
    rates: dict[str, list[float]] = {name: [] for name in names}
    per_round = max(1, arguments.requests // arguments.rounds)
    with (
        tempfile.TemporaryDirectory() as data,
        ServerProcess(Path(data) / "data", SAMPLE_MODELS) as server,
    ):
        url = f"http://{server.host}"
        loops = {name: Loop(name, url, IMAGES / "classification") for name in names}
        for loop in loops.values():
            loop(min(per_round, 50))  # warms up
        for round_number in range(arguments.rounds):
            order = names[round_number % len(names) :] + names[: round_number % len(names)]
            for name in order:
                cost_ms, rate = loops[name](per_round)
                costs[name].append(cost_ms)
                rates[name].append(rate)
        for loop in loops.values():
            loop.close()
    print(f"{MODEL}, {arguments.rounds} rounds of {per_round} images, one after the other")
    print(
        f"{'':20}{'CPU ms/image':>14}{'of ours':>9}{'interval':>14}{'images/s':>10}{'of ours':>9}"
    )
    for name in names:
        ratios = [cost / ours for cost, ours in zip(costs[name], costs[OURS], strict=True)]
        rate_ratios = [rate / ours for rate, ours in zip(rates[name], rates[OURS], strict=True)]
        low, high = interval(ratios)
        print(
            f"{name:20}{statistics.median(costs[name]):14.3f}{statistics.median(ratios):9.2f}"
            f"{f'{low:.2f}..{high:.2f}':>14}{statistics.median(rates[name]):10.0f}{statistics.median(rate_ratios):9.2f}"
        )


if __name__ == "__main__":
    main()
