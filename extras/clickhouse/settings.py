"""The setting of ClickHouse."""

from typing import Annotated

import msgspec

from quadriga.engine.config.settings import described


class ClickHouseSettings(msgspec.Struct, frozen=True):
    """The setting of ClickHouse."""

    # fmt: off
    url: Annotated[str, described("ClickHouse URL that receives a copy of every record.", secret=True, pattern=r"^(https?://.+)?$", example="https://user@clickhouse:8443/quadriga")] = ""
    # fmt: on
