"""An inference engine that knows what its computer-vision models are for.

`quadriga.engine`, `quadriga.proto`, `quadriga.tasks`, `quadriga.store` and `quadriga.monitor` are its parts.
Importing this package loads none of them.
"""

from importlib import metadata


def __getattr__(name: str) -> str:
    """Return the version of the installed distribution as `quadriga.__version__`."""
    if name == "__version__":
        return metadata.version("quadriga")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
