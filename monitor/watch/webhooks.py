"""Webhooks of a schedule: where alerts are sent, in which form, and the key that signs them."""

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from quadriga.monitor.watch.webhook_hosts import WebhookHosts
from quadriga.store.records.errors import QueryError

WebhookFormat = Literal["quadriga", "standard", "alertmanager"]
"""Form of the messages: that of 0.1.0, Standard Webhooks, or the body that Alertmanager sends to webhooks."""

SECRET_PREFIX = "whsec_"  # noqa: S105 - what Standard Webhooks writes before every secret


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An HTTP endpoint that receives alerts."""

    url: Annotated[str, msgspec.Meta(max_length=2000)]
    secret: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)] | None = None
    """Key that deliveries are signed with; None: they are not signed. No response contains it."""
    format: WebhookFormat = "quadriga"
    """Form of the messages; left out of files where it is that of 0.1.0, which knows no other."""

    def __repr__(self) -> str:
        """Return a text without the secret, as logs may hold it."""
        return f"Webhook({self.url!r}, {self.format!r})"


def check_webhooks(webhooks: Sequence[Webhook]) -> None:
    """Check the webhooks of a schedule, apart from the addresses of their hosts.

    Raises:
        QueryError: A URL or a secret is invalid, or a URL is there twice.
    """
    for position, webhook in enumerate(webhooks):
        name = f"webhooks[{position}]"
        check_url(webhook.url, f"{name}.url")
        if webhook.secret is not None and webhook.format != "quadriga":
            try:
                standard_key(webhook.secret)
            except ValueError as error:
                raise QueryError(
                    f"expected {name}.secret to have base64 after {SECRET_PREFIX}"
                ) from error
    urls = {webhook.url for webhook in webhooks}
    if len(urls) < len(webhooks):
        raise QueryError("webhooks lists a URL twice")


def check_webhook_hosts(webhooks: Sequence[Webhook], hosts: WebhookHosts) -> None:
    """Check that alerts may be sent to the hosts of webhooks; what a name resolves to is seen at each delivery.

    Raises:
        QueryError: A host is not allowed; the message names the setting.
    """
    for position, webhook in enumerate(webhooks):
        check_host(webhook.url, f"webhooks[{position}].url", hosts)


def check_host(url: str, name: str, hosts: WebhookHosts) -> None:
    """Check one URL, called `name` in errors, as `check_webhook_hosts` does."""
    host = urlsplit(url).hostname or ""
    if expected := hosts.refusal(host):
        raise QueryError(f"expected the host of {name} to be {expected}, got {host!r:.80}")


def standard_key(secret: str) -> bytes:
    """Return the key that a secret stands for in Standard Webhooks; a plain text stands for its bytes.

    Raises:
        ValueError: It begins as a secret of Standard Webhooks, and is none.
    """
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    encoded = secret.removeprefix(SECRET_PREFIX).rstrip("=")
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("no base64") from error
    if not key:
        raise ValueError("no key")
    return key


def check_url(text: str, name: str) -> None:
    """Check the URL of a webhook, called `name` in errors, apart from the address of its host.

    Raises:
        QueryError: It is none.
    """
    try:
        url = urlsplit(text)
        is_plain = text.isascii() and text.isprintable() and " " not in text
        _ = url.port  # raises where it is none
    except ValueError:
        is_plain = False
    if not is_plain or url.scheme not in {"http", "https"} or not url.hostname or "@" in url.netloc:
        raise QueryError(f"expected {name} to be http or https with a host and no user")
