"""The models as the peers run them: onnxruntime and OpenCV, the same code for each, so that servers are compared.

A run has one thread without spinning; processes or threads are for the cores. It imports nothing of Quadriga, and each peer
imports it into an environment of its own. FastAPI has a handler of its own, as people write it.
"""

import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import onnxruntime
import pybase64

Array = npt.NDArray[Any]

CORES = os.cpu_count() or 1
DETECTOR_LABELS = ("circle", "square", "triangle", "star", "cross")
SCORE_THRESHOLD, IOU_THRESHOLD = 0.25, 0.7
PAD_VALUE = 114

cv2.setNumThreads(1)


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Open a graph with one thread a run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def decode_base64(text: str | bytes) -> bytes:
    """Decode the base64 of a JPEG."""
    return pybase64.b64decode(text, validate=True)


def decode_jpeg(jpeg: bytes) -> Array:
    """Decode a JPEG to uint8 (H, W, 3), RGB."""
    pixels = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR_RGB)
    if pixels is None:
        raise ValueError("expected a JPEG")
    return pixels


class Classifier:
    """A classifier: the best label of an image, or the scores of a tensor."""

    def __init__(self, path: Path) -> None:
        self._session = open_session(path)
        self._side = self._session.get_inputs()[0].shape[2]

    def scores(self, tensor: Array) -> Array:
        """Run the model on float32 (N, 3, H, W); return the scores (N, K)."""
        scores: Array = self._session.run(["scores"], {"image": tensor})[0]
        return scores

    def recognise(self, jpeg: bytes) -> dict[str, Any]:
        """Decode an image, run the model, and return the best label with its probability."""
        resized = cv2.resize(
            decode_jpeg(jpeg), (self._side, self._side), interpolation=cv2.INTER_LINEAR
        )
        row = self.scores(cv2.dnn.blobFromImage(resized, 1 / 255))[0]
        powers = np.exp(row - row.max())
        number = int(powers.argmax())
        return {"labels": [f"class {number}"], "scores": [float(powers[number] / powers.sum())]}


def letterbox(pixels: Array, side: int) -> tuple[Array, float, int, int]:
    """Fit an image into a square, centred; return it with its scale, and the padding on the left and above."""
    height, width = pixels.shape[:2]
    scale = min(side / width, side / height)
    new_width, new_height = round(width * scale), round(height * scale)
    left, top = (side - new_width) // 2, (side - new_height) // 2
    square = np.full((side, side, 3), PAD_VALUE, np.uint8)
    square[top : top + new_height, left : left + new_width] = cv2.resize(
        pixels, (new_width, new_height), interpolation=cv2.INTER_LINEAR
    )
    return square, scale, left, top


def detections(output: Array, scale: float, left: int, top: int) -> dict[str, Any]:
    """Read the output (1, 4 + K, N) of the detector: labels, scores, and boxes as xyxy in pixels of the image."""
    rows = output[0].T
    best = rows[:, 4:].max(axis=1)
    rows = rows[best > SCORE_THRESHOLD]
    scores, classes = rows[:, 4:].max(axis=1), rows[:, 4:].argmax(axis=1)
    xywh = rows[:, :4].copy()
    xywh[:, :2] -= xywh[:, 2:] / 2
    numbers = np.asarray(
        cv2.dnn.NMSBoxesBatched(
            xywh.tolist(), scores.tolist(), classes.tolist(), SCORE_THRESHOLD, IOU_THRESHOLD
        ),
        int,
    ).ravel()
    boxes = xywh[numbers]
    boxes[:, 2:] += boxes[:, :2]
    boxes = (boxes - [left, top, left, top]) / scale
    return {
        "labels": [DETECTOR_LABELS[number] for number in classes[numbers]],
        "scores": scores[numbers].tolist(),
        "boxes": boxes.tolist(),
    }


class Detector:
    """The sample detector: labels, scores and boxes of an image."""

    def __init__(self, path: Path) -> None:
        self._session = open_session(path)
        self._side = self._session.get_inputs()[0].shape[2]

    def recognise(self, jpeg: bytes) -> dict[str, Any]:
        """Decode an image, run the model, and return what it detects."""
        square, scale, left, top = letterbox(decode_jpeg(jpeg), self._side)
        output = self._session.run(None, {"images": cv2.dnn.blobFromImage(square, 1 / 255)})[0]
        return detections(output, scale, left, top)


def load_model(path: Path) -> Any:
    """Load a model; the name of its folder says which kind it is."""
    return (Detector if "detector" in path.parent.name else Classifier)(path)


def load_models(folder: str | Path) -> dict[str, Any]:
    """Load every model below a folder by its name."""
    return {path.parent.name: load_model(path) for path in Path(folder).glob("*/model.onnx")}


def answer(models: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Answer a body of those that have no V2: nested numbers of a tensor, or a JPEG in base64."""
    model = models[body["model"]]
    if "image" in body:
        result: dict[str, Any] = model.recognise(decode_base64(body["image"]))
        return result
    return {"scores": model.scores(np.asarray(body["data"], np.float32)).tolist()}


def peer_settings() -> tuple[str, int, int]:
    """Read the folder of models, and the ports of HTTP and gRPC, from the environment."""
    return (
        os.environ["PEER_MODELS"],
        int(os.environ["PEER_HTTP_PORT"]),
        int(os.environ["PEER_GRPC_PORT"]),
    )


def model_names(folder: str) -> list[str]:
    """Name the models of a folder."""
    return sorted(path.parent.name for path in Path(folder).glob("*/model.onnx"))
