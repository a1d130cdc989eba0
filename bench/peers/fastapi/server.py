"""FastAPI and onnxruntime as people write it: one process, plain functions in its threads, the defaults of onnxruntime.

pydantic checks the body, the standard library decodes base64, and the image is prepared by numpy.
"""

import base64
from typing import Any

import cv2
import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI
from peer_models import detections, letterbox, model_names, peer_settings
from pydantic import BaseModel

folder, port, _ = peer_settings()
sessions = {
    name: onnxruntime.InferenceSession(f"{folder}/{name}/model.onnx")
    for name in model_names(folder)
}
app = FastAPI()


class Tensor(BaseModel):
    """Numbers of a tensor."""

    model: str
    data: list[list[list[list[float]]]]


class Image(BaseModel):
    """An image in base64."""

    model: str
    image: str


def run(name: str, pixels: Any) -> Any:
    """Run a model on an image of the right size."""
    tensor = (pixels.astype(np.float32) / 255).transpose(2, 0, 1)[None]
    session = sessions[name]
    return session.run(None, {session.get_inputs()[0].name: tensor})[0]


@app.post("/predict")
def predict(body: Tensor) -> dict[str, Any]:
    """Answer the scores of a tensor."""
    scores = sessions[body.model].run(None, {"image": np.array(body.data, dtype=np.float32)})[0]
    return {"scores": scores.tolist()}


@app.post("/recognise")
def recognise(body: Image) -> dict[str, Any]:
    """Answer what is in an image."""
    encoded = np.frombuffer(base64.b64decode(body.image), np.uint8)
    pixels = cv2.cvtColor(cv2.imdecode(encoded, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    side = sessions[body.model].get_inputs()[0].shape[2]
    if "detector" in body.model:
        square, scale, left, top = letterbox(pixels, side)
        return detections(run(body.model, square), scale, left, top)
    scores = run(body.model, cv2.resize(pixels, (side, side)))[0]
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    number = int(probabilities.argmax())
    return {"labels": [f"class {number}"], "scores": [float(probabilities[number])]}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=port, access_log=False)
