"""Webhooks of a schedule: where alerts are sent, in which form, the key that signs them, and which hosts are allowed."""

import base64
import binascii
import re
import socket
from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from quadriga.store.records.errors import QueryError

WebhookFormat = Literal["quadriga", "standard", "alertmanager"]
"""Form of the messages: Quadriga's own, Standard Webhooks, or the body that Alertmanager sends to webhooks."""
SECRET_PREFIX = "whsec_"  # noqa: S105 - what Standard Webhooks writes before every secret


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An HTTP endpoint that receives alerts."""

    url: Annotated[str, msgspec.Meta(max_length=2000)]
    secret: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)] | None = None
    """Key that deliveries are signed with; None: they are not signed. No response contains it."""
    format: WebhookFormat = "quadriga"
    """Form of the messages."""

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


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
SETTING = "webhook_hosts"


class WebhookHosts(msgspec.Struct, frozen=True):
    """The hosts that alerts may be sent to."""

    names: frozenset[str] = frozenset()
    """Host names, whatever address they have."""
    domains: tuple[str, ...] = ()
    """Endings of host names, such as `.example.org`."""
    networks: tuple[Network, ...] = ()
    is_any_public: bool = True
    """Whether every public address is allowed."""
    setting: str = SETTING
    """Name of the setting, for messages."""

    def is_named(self, host: str) -> bool:
        """Return whether the setting names this very host: by its name, its domain, or as a single address."""
        address = literal_address(host)
        if address is not None:
            return any(network.num_addresses == 1 for network in self._networks_of(address))
        name = _plain_name(host)
        return name in self.names or name.endswith(self.domains)

    def is_listed(self, host: str, address: Address) -> bool:
        """Return whether the setting names a host or the network of its address."""
        return bool(self._networks_of(address)) or (
            literal_address(host) is None and self.is_named(host)
        )

    def is_allowed(self, host: str, address: Address) -> bool:
        """Return whether alerts for a host may be sent to this address of it."""
        return self.is_listed(host, address) or (self.is_any_public and is_public(address))

    def refusal(self, host: str) -> str:
        """Return why alerts cannot be sent to a host, as far as that is known without a look-up; empty if they can."""
        address = literal_address(host)
        if address is not None:
            if self.is_allowed(host, address):
                return ""
            return f"an address that the setting {self.setting} allows" + (
                ", or a public one" if self.is_any_public else ""
            )
        name = _plain_name(host)
        if _NAME.fullmatch(name) is None or _NUMBER.fullmatch(name.rpartition(".")[2]):
            return "a host name or an IP address"
        if self.is_named(host) or self.networks:
            return ""
        is_local = "." not in name or name.endswith(tuple(f".{end}" for end in _LOCAL_DOMAINS))
        if not self.is_any_public:
            return f"a host that the setting {self.setting} allows"
        return f"a public host, or one that the setting {self.setting} allows" if is_local else ""

    def _networks_of(self, address: Address) -> list[Network]:
        forms = {address, carried_address(address)}
        return [network for network in self.networks if any(form in network for form in forms)]


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


PUBLIC = "public"
"""Entry of the setting that stands for every public address."""
_NOT_PUBLIC_IPV4 = [
    IPv4Network(text)
    for text in (
        "192.0.0.0/24",  # older Pythons count a part of these three as global
        "192.88.99.0/24",
        "224.0.0.0/4",
        "168.63.129.16/32",  # Azure answers each of its machines here
    )
]
_PUBLIC_IPV6 = IPv6Network("2000::/3")
_NOT_PUBLIC_IPV6 = [
    IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo and other special purposes
        "2002::/16",  # 6to4 leads to an IPv4 address
        "2001:db8::/32",
        "3fff::/20",
    )
]
_NAT64 = IPv6Network("64:ff9b::/96")
_NAME = re.compile(
    r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.ASCII
)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_LOCAL_DOMAINS = ("localhost", "local", "internal", "home.arpa", "localdomain", "lan", "intranet")
ANY_PUBLIC = WebhookHosts()


def parse_webhook_hosts(
    text: str, setting: str = SETTING, *, default_public: bool = True
) -> WebhookHosts:
    """Read the setting: names, `*.` and a domain, addresses, networks and `public`, separated by commas.

    Args:
        text: Value of the setting.
        setting: Name of the setting, for messages.
        default_public: Whether an empty text allows every public address; else it allows nothing.

    Raises:
        ValueError: An entry is none of these.
    """
    entries = [entry.strip().lower() for entry in text.split(",") if entry.strip()]
    names, domains, networks = set[str](), list[str](), list[Network]()
    for entry in entries:
        name = entry.removeprefix("*.").rstrip(".")
        is_name = _NAME.fullmatch(name) and not _NUMBER.fullmatch(name.rpartition(".")[2])
        if entry == PUBLIC:
            continue
        if is_name:
            (domains.append if entry.startswith("*.") else names.add)(
                f".{name}" if entry.startswith("*.") else name
            )
            continue
        try:
            networks.append(ip_network(entry.strip("[]")))
        except ValueError as error:
            raise ValueError(
                f"expected {setting} to be host names, *.example.org, addresses, networks such as 10.0.0.0/8, or "
                f"{PUBLIC}, separated by commas, got {entry!r}"
            ) from error
    is_any_public = PUBLIC in entries or (default_public and not entries)
    return WebhookHosts(
        names=frozenset(names),
        domains=tuple(domains),
        networks=tuple(networks),
        is_any_public=is_any_public,
        setting=setting,
    )


def literal_address(host: str) -> Address | None:
    """Return the address that a host is written as, in any form that the system understands; None for a name."""
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        pass
    if _NUMBER.fullmatch(_plain_name(host).rpartition(".")[2]) is None:
        return None
    try:  # 127.1, 2130706433 and 0x7f000001 are 127.0.0.1
        return IPv4Address(socket.inet_aton(_plain_name(host)))
    except OSError:
        return None


def carried_address(address: Address) -> Address:
    """Return the IPv4 address within an IPv6 address that only stands for it; otherwise the address itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Return whether an address is one of the public internet.

    Source: the IANA registries of special-purpose addresses.
    """
    address = carried_address(address)
    if isinstance(address, IPv6Address):
        return (
            address in _PUBLIC_IPV6
            and address.is_global
            and not any(address in network for network in _NOT_PUBLIC_IPV6)
        )
    return address.is_global and not any(address in network for network in _NOT_PUBLIC_IPV4)


def _plain_name(host: str) -> str:
    return host.lower().removesuffix(".")
