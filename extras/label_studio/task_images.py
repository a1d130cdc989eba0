"""Where the image of a task of Label Studio is: an inference of this store, a signed URL of it, or another server."""

import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import msgspec

from quadriga.proto.errors import InvalidRequest
from quadriga.quoting import quoted

MAX_URL_CHARACTERS = 4000

_INPUT = re.compile(r"/api/inferences/([0-9]{1,19})/input/?", re.ASCII)
_BLOB = re.compile(r"/api/blobs/([0-9a-f]{64})", re.ASCII)
_ID = re.compile(r"[0-9]{1,19}", re.ASCII)


class StoredImage(msgspec.Struct, frozen=True):
    """The input of a stored inference."""

    inference_id: str


class SignedImage(msgspec.Struct, frozen=True):
    """An input that a signed URL of this server names; the signature shows that its bearer may see it."""

    digest: str
    query: Mapping[str, str]


class RemoteImage(msgspec.Struct, frozen=True):
    """An image at a URL of another server."""

    url: str


TaskImage = StoredImage | SignedImage | RemoteImage


def find_image(
    data: Mapping[str, Any], key: str, own_hosts: Collection[str], label_studio_url: str
) -> TaskImage:
    """Return where the image of a task is.

    Args:
        data: Data of the task.
        key: Key of the image in it.
        own_hosts: Hosts, with ports, at which this server is reached.
        label_studio_url: URL that paths without a host belong to; empty if that is not known.

    Raises:
        InvalidRequest: The task names no image, or a path of an unknown Label Studio.
    """
    inference_id = data.get("inference_id")
    if isinstance(inference_id, str) and _ID.fullmatch(inference_id):
        return StoredImage(inference_id)
    link = data.get(key)
    if not isinstance(link, str) or not link or len(link) > MAX_URL_CHARACTERS:
        raise InvalidRequest(
            f"expected data.{key[:60]} to be the URL of an image, got {quoted(link, 80)}"
        )
    try:
        parts = urlsplit(link)
    except ValueError as error:
        raise InvalidRequest(f"expected data.{key[:60]} to be a URL, got: {error}") from error
    if parts.netloc in ("", *own_hosts):
        if (match := _INPUT.fullmatch(parts.path)) is not None:
            return StoredImage(match[1])
        if (match := _BLOB.fullmatch(parts.path)) is not None:
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            return SignedImage(match[1], query)
    if parts.netloc:
        return RemoteImage(link)
    if not label_studio_url:
        raise InvalidRequest(
            f"data.{key[:60]} is a path, {quoted(link, 80)}: the setting label_studio_url has to say where Label Studio is"
        )
    return RemoteImage(urljoin(label_studio_url.rstrip("/") + "/", link))
