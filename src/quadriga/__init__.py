"""An inference engine that knows what its computer-vision models are for.

`quadriga.engine`, `quadriga.extras`, `quadriga.proto`, `quadriga.tasks`, `quadriga.store` and `quadriga.monitor` are its parts.
Importing this package loads none of them. `quadriga.Client` and `quadriga.AsyncClient` are those of `quadriga.client`.
"""

from importlib import import_module
from typing import Any

_OF_CLIENT = ("AsyncClient", "Client")


def __getattr__(name: str) -> Any:
    """Return the version of the installed distribution as `quadriga.__version__`, or a class of the client."""
    if name == "__version__":
        # loaded here, as it takes longer than the client does
        return import_module("importlib.metadata").version("quadriga")
    if name in _OF_CLIENT:
        return getattr(import_module("quadriga.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
