"""Settings of what a server serves, how it is reached, who may use it, and what it writes about that; see `quadriga.engine.config.settings`."""

import ipaddress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

SECRET = {"secret": True}
"""Mark of a setting that may hold a secret: `Meta(extra=SECRET)`. It may be in a file, and is never shown."""

LogFormat = Literal["plain", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of models, addresses, keys, log-in, TLS, logs, audit log, logged events and Label Studio, as the first part of all."""

    models: Annotated[
        str,
        Meta(
            description="Folder of model folders, or one model; or s3://, gs:// or az:// with a bucket and such a folder."
        ),
    ] = "models"
    name: Annotated[
        str,
        Meta(
            pattern=r"^((?!\.+$)[A-Za-z0-9._-]{1,128})?$",
            description="Name of the model if there is only one, as in KServe; default: that of its folder.",
        ),
    ] = ""
    models_poll_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="Seconds between two looks for new files of models, which are then loaded; 0: only by request.",
        ),
    ] = 0.0
    model_cache: Annotated[
        str,
        Meta(
            description="Folder that keeps the models of an object store; default: model-cache in the data folder."
        ),
    ] = ""
    max_model_source_bytes: Annotated[
        int,
        Meta(ge=1, description="Bytes of the files of an object store's models; more are refused."),
    ] = 64 << 30
    insecure: Annotated[
        bool,
        Meta(
            description="Need no keys, also on an address that others reach, as behind a gateway that knows its users."
        ),
    ] = False
    admin_key: Annotated[
        str,
        Meta(
            pattern=r"^(quadriga-[A-Za-z0-9_]{1,64}\.[A-Za-z0-9_-]{32,256})?$",
            description="Key of an administrator, beside those of `quadriga keys`: quadriga-NAME.SECRET with a random secret of 32 characters or more.",
            extra=SECRET,
        ),
    ] = ""
    oidc_issuer: Annotated[
        str,
        Meta(
            pattern=r"^(https://[^\s?#]+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/[^\s?#]*)?)?$",
            description="Issuer of an OpenID Connect provider, such as https://login.example.org/realms/vision: people log in there, and its tokens count like keys.",
        ),
    ] = ""
    oidc_client_id: Annotated[
        str, Meta(description="Id of this server as a client of the provider.")
    ] = ""
    oidc_client_secret: Annotated[
        str,
        Meta(
            extra=SECRET,
            description="Secret of this server as a client of the provider; default: none, for a public client.",
        ),
    ] = ""
    oidc_scopes: Annotated[
        str,
        Meta(description="Scopes that are asked for at the log-in, separated by spaces."),
    ] = "openid profile email"
    oidc_audience: Annotated[
        str,
        Meta(
            description="Audience (`aud`) that the tokens of machines must have; default: oidc_client_id."
        ),
    ] = ""
    oidc_roles: Annotated[
        str,
        Meta(
            description="Roles and teams by claims, as CLAIM:VALUE=ROLE+ROLE@TEAM, separated by commas, such as groups:line-4=annotate@quality, groups:ops=operate. Who has none of these is refused."
        ),
    ] = ""
    session_key: Annotated[
        str,
        Meta(
            pattern=r"^(.{32,512})?$",
            extra=SECRET,
            description="Random text of 32 characters or more that sessions are sealed and URLs of images signed with, the same for servers behind one address; default: made in the data folder.",
        ),
    ] = ""
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="HTTP port; 0 takes a free one and prints it.")
    ] = 8080
    grpc_port: Annotated[
        int,
        Meta(
            ge=-1,
            le=65535,
            description="gRPC port; 0 takes a free one and prints it, -1 switches gRPC off.",
        ),
    ] = 8081
    tls_certificate: Annotated[
        str,
        Meta(
            description="File of the server's certificate and those that it depends on, PEM: HTTP and gRPC then take TLS only. Read again when it changes."
        ),
    ] = ""
    tls_key: Annotated[
        str,
        Meta(
            description="File of the certificate's private key, PEM without a password; default: the file of the certificate."
        ),
    ] = ""
    tls_client_ca: Annotated[
        str,
        Meta(
            description="File of certificates, PEM: clients must present a certificate that one of these signed (mutual TLS)."
        ),
    ] = ""
    allowed_hosts: Annotated[
        str,
        Meta(
            description="Names that requests may have in Host, separated by commas, such as models.example.org or *.example.org. Default: on a loopback address localhost, elsewhere any."
        ),
    ] = ""
    cors_origins: Annotated[
        str,
        Meta(
            description="Origins of other people's pages that may use this server, separated by commas, such as https://label.example.org. Default: none."
        ),
    ] = ""
    public_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/?#\s]+(/[^?#\s]*)?)?$",
            description="URL at which people reach this server, for signed URLs of images and as the origin of its own pages; default: the one in the request.",
        ),
    ] = ""
    trusted_proxies: Annotated[
        str,
        Meta(
            description="Addresses or networks of the proxies whose X-Forwarded-For and X-Forwarded-Proto count, separated by commas. Default: none."
        ),
    ] = ""
    key_limits: Annotated[
        str,
        Meta(
            description="Limits of keys that have none of their own, separated by commas, such as requests=100/second,concurrency=8. Default: none."
        ),
    ] = ""
    open_metrics: Annotated[bool, Meta(description="Answer /metrics without a key.")] = False
    log_format: Annotated[
        LogFormat,
        Meta(description="Lines of the log: plain text, or an object of JSON each."),
    ] = "plain"
    log_level: Annotated[
        LogLevel,
        Meta(description="Lowest level of the lines of the log: debug, info, warning or error."),
    ] = "info"
    log_requests: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of the requests that have a line in the log: 1 for all, 0.01 for one in a hundred at random, 0 for none. Those that are refused or fail have one if it is not 0.",
        ),
    ] = 0.0
    audit_days: Annotated[
        int,
        Meta(
            ge=0,
            le=36500,
            description="Days after which a file of the audit log is removed; 0: there is no audit log.",
        ),
    ] = 365
    label_studio_hosts: Annotated[
        str,
        Meta(
            description="Hosts that images of Label Studio's tasks may be fetched from: names, *.example.org, addresses, networks such as 10.0.0.0/8, and public for every public address, separated by commas. Default: none."
        ),
    ] = ""
    label_studio_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/?#@\s]+(/[^?#\s]*)?)?$",
            description="URL of Label Studio, from which images that were uploaded there are fetched. Default: none.",
        ),
    ] = ""
    label_studio_token: Annotated[
        str,
        Meta(
            pattern=r"^[\x21-\x7e]*$",
            extra=SECRET,
            description="Access token of Label Studio, which is sent to label_studio_url alone. Default: none.",
        ),
    ] = ""


_MAPPED = ipaddress.ip_network("::ffff:0:0/96")


def parse_proxies(text: str) -> list[str]:
    """Parse the setting `trusted_proxies`.

    Returns:
        Networks; those of IPv4 also in the form that a socket of both families gives their addresses (RFC 4291, section
        2.5.5.2).

    Raises:
        ValueError: A part is no address and no network, or the network of all addresses.
    """
    networks = []
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            network = ipaddress.ip_network(part)
        except ValueError as error:
            raise ValueError(f"expected addresses or networks of proxies, got {error}") from error
        if network.prefixlen == 0 or network.overlaps(_MAPPED):
            raise ValueError(
                f"expected networks of proxies, those of IPv4 in their own form, and not all addresses, got {part}"
            )
        networks.append(str(network))
        if network.version == 4:
            networks.append(
                f"::ffff:{network.network_address}/{_MAPPED.prefixlen + network.prefixlen}"
            )
    return networks
