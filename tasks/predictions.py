"""What tasks answer: structs whose fields are Chariot's JSON, in its order.

Source: Chariot, Inference Protocols, "Responses".
"""

import msgspec


class Classification(msgspec.Struct, frozen=True):
    """A label with its probability, 0 to 1."""

    label: str
    score: float


class Detection(msgspec.Struct, frozen=True):
    """A box in pixels of the image as a person sees it; y grows downwards."""

    label: str
    score: float
    xmin: float
    ymin: float
    xmax: float
    ymax: float


Prediction = Classification | Detection
