"""Python client of Quadriga, an inference engine for computer vision.

    with Client("http://127.0.0.1:8080") as client:
        result = client.infer("shapes-detector", "scene.jpg")

It needs the standard library alone; numpy, Pillow, pandas and others are loaded where their types are asked for.
"""

from typing import TYPE_CHECKING, Any

from .batches import FailedInference
from .client import Client
from .errors import (
    BadAnswer,
    ClientError,
    Conflict,
    Forbidden,
    InvalidRequest,
    JobFailed,
    MissingPackage,
    NotFound,
    ServerBusy,
    ServerFault,
    ServerRefused,
    TruthWarning,
    Unauthenticated,
    Unreachable,
)
from .masks import mask_annotations
from .queries import Query, StoredInference
from .reports import Metric, Report
from .results import Boxes, OrientedBoxes, Region, Result

if TYPE_CHECKING:
    from .async_client import AsyncClient

__all__ = [
    "AsyncClient",
    "BadAnswer",
    "Boxes",
    "Client",
    "ClientError",
    "Conflict",
    "FailedInference",
    "Forbidden",
    "InvalidRequest",
    "JobFailed",
    "Metric",
    "MissingPackage",
    "NotFound",
    "OrientedBoxes",
    "Query",
    "Region",
    "Report",
    "Result",
    "ServerBusy",
    "ServerFault",
    "ServerRefused",
    "StoredInference",
    "TruthWarning",
    "Unauthenticated",
    "Unreachable",
    "mask_annotations",
]


def __getattr__(name: str) -> Any:
    """Load `AsyncClient`, and asyncio with it, where it is used."""
    if name == "AsyncClient":
        from .async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
