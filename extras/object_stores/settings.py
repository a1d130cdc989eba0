"""Settings of models from an object store."""

from typing import Annotated

import msgspec

from quadriga.engine.config.settings import described


class ObjectStoreSettings(msgspec.Struct, frozen=True):
    """Settings of models from an object store."""

    # fmt: off
    cache: Annotated[str, described("Cache folder for models from an object store. Default: `model-cache` in the data directory.")] = ""
    max_bytes: Annotated[int, described("Maximum size of a remote model repository, 64 GiB.", ge=1)] = 64 << 30
    # fmt: on
