"""What tasks answer: structs whose fields are Chariot's JSON, in its order.

Source: Chariot, Inference Protocols, "Responses".
"""

import msgspec


class OutputError(ValueError):
    """A model's outputs cannot be read as its specification says: the model's fault or ours.

    No request can mend it, so a server answers 500 and names the model.
    """


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


class Point(msgspec.Struct, frozen=True):
    """The centre of a pixel by its column and row; (0, 0) is the first pixel of the image."""

    x: float
    y: float


class Segment(msgspec.Struct, frozen=True):
    """A region of the image as a person sees it: what lies on its rings or inside an odd number of them.

    `tasks.contours.fill` makes the mask again.
    """

    label: str
    score: float
    contour: list[list[Point]]


Prediction = Classification | Detection | Segment
