"""Settings of Label Studio: where its images may be fetched from."""

from functools import partial
from typing import Annotated

import msgspec

from quadriga.engine.config.settings import described
from quadriga.monitor.watch.webhooks import parse_webhook_hosts

parse_hosts = partial(
    parse_webhook_hosts, setting="extras.label_studio.hosts", default_public=False
)
"""Reads the hosts that images may come from; an empty text allows none."""


class LabelStudioSettings(msgspec.Struct, frozen=True):
    """Settings of Label Studio."""

    # fmt: off
    url: Annotated[str, described("Label Studio URL, for images uploaded there.", pattern=r"^(https?://[^/?#@\s]+(/[^?#\s]*)?)?$", example="https://label.example.org")] = ""
    token: Annotated[str, described("Label Studio access token. Sent to `url` only.", secret=True, pattern=r"^[\x21-\x7e]*$", example="$(openssl rand -hex 20)")] = ""
    hosts: Annotated[str, described("Hosts from which images of Label Studio tasks may be fetched. Same syntax as `webhook_hosts`. Default: none.", parse=parse_hosts)] = ""
    # fmt: on
