"""Python client of Quadriga, an inference engine for computer vision.

    with Client("http://127.0.0.1:8080") as client:
        result = client.infer("shapes-detector", "scene.jpg")

It needs the standard library alone; numpy, Pillow, pandas and others are loaded where their types are asked for.
"""

from typing import TYPE_CHECKING, Any

from quadriga_client.batches import FailedInference
from quadriga_client.client import Client
from quadriga_client.errors import (
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
from quadriga_client.masks import mask_annotations
from quadriga_client.queries import Query, StoredInference
from quadriga_client.reports import Metric, Report
from quadriga_client.results import Boxes, OrientedBoxes, Region, Result

if TYPE_CHECKING:
    from quadriga_client.async_client import AsyncClient

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
        from quadriga_client.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
