"""Signals of images come after their records, and a worker that is killed loses no inference for them."""

from pathlib import Path

import numpy as np

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.records import IMAGE_STATISTICS
from tests.server_process import IMAGES, SAMPLE_MODELS, ServerProcess, image_input

MODEL = "shapes-classifier"


def send(server: ServerProcess, *images: bytes, **parameters) -> list[int]:
    inputs = [image_input(ids, f"image-{n}", **parameters) for n, ids in enumerate(images)]
    status, answer = server.call("POST", f"/v2/models/{MODEL}/infer", {"inputs": inputs})
    assert status == 200, answer
    id_lists = [output.get("parameters", {}).get("inference_id") for output in answer["outputs"]]
    return [int(ids) for ids in id_lists if ids]


def test_images_have_signals_and_a_killed_worker_loses_no_inference(tmp_path: Path) -> None:
    images = [path.read_bytes() for path in sorted((IMAGES / "classification").glob("*.jpg"))[:4]]
    data = tmp_path / "data"
    inferences = InferenceReader(
        f"sqlite:///{data}/store.db", data / "journal", FileBlobs(data / "b")
    )
    server = ServerProcess(data, SAMPLE_MODELS / MODEL, "--signals-per-s", "1000000")
    with server:
        sent = send(server, *images)
        sent += send(server, images[0], store_input=False)
        assert send(server, images[0], store=False) == []
        server.wait_until(lambda: len(inferences.signals(sent)) == 5)
        stored = inferences.signals(sent)
        assert {(len(signal.embedding), len(signal.space)) for signal in stored.values()} == {
            (128, 16)
        }
        pictures = [np.frombuffer(stored[seq].picture, "<f4") for seq in sent]
        assert all(
            len(picture) == len(IMAGE_STATISTICS) and np.isfinite(picture).all()
            for picture in pictures
        )
        assert (pictures[0] == pictures[4]).all()
        assert (pictures[0] != pictures[1]).any()
        counted = b"quadriga_store_signals_total 5.0"
        server.wait_until(lambda: counted in server.request("GET", "/metrics")[2])
        late = [seq for _ in range(5) for seq in send(server, *images)]
        server.kill_child("worker")
        server.wait_until(
            lambda: {*sent, *late} <= {seq for page in inferences.matching_ids({}) for seq in page}
        )
    assert set(inferences.signals(late)) <= set(late)
    inferences.close()
