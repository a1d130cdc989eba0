"""The one reader of flags, environment and `quadriga.toml`.

The first of these that names a setting decides it: command-line flag, `QUADRIGA_*`, one of Chariot's
engine variables, `quadriga.toml`, default. A setting that may hold a secret may also be in a file that
`QUADRIGA_<NAME>_FILE` names, instead of `QUADRIGA_<NAME>`.
"""

import logging
import re
import stat
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from quadriga.engine.config.claim_roles import parse_role_entries
from quadriga.engine.config.schema import explain_validation_error
from quadriga.engine.config.server_settings import parse_proxies
from quadriga.engine.config.settings import PREFIX, REMOVED, Settings, secret_names, shown_secret
from quadriga.monitor.watch.webhook_hosts import parse_webhook_hosts
from quadriga.store.disk import write_atomically
from quadriga.store.key_limits import is_retired, parse_limits, split_limits
from quadriga.store.redaction import HIDDEN, without_secrets


def check_models(text: str) -> None:
    """Check that the setting `models` is a folder, or a URL of an object store without secrets.

    Raises:
        ValueError: It is not; the text has nothing of the URL.
    """
    scheme, separator, _ = text.partition("://")
    if not separator:
        return
    if scheme not in ("s3", "gs", "az"):
        raise ValueError("expected models in a folder, or at s3://, gs:// or az://")
    try:
        parts = urlsplit(text)
        has_secrets = "@" in parts.netloc or parts.query or parts.fragment
    except ValueError:
        has_secrets = True
    if has_secrets or not parts.netloc:
        raise ValueError(
            "expected a bucket and a folder in the URL of models, without user, password and parameters: "
            "credentials come from the environment, such as AWS_ACCESS_KEY_ID"
        )
    if re.search(r"[\s\x00-\x1f]|/\.\.?(/|$)", text):
        raise ValueError("expected a URL of models without spaces and `..`")


_log = logging.getLogger("quadriga.settings")

FILE_SUFFIX = "_FILE"
"""Ending of the variables that name a file with the value of a secret setting, as secrets of containers are given."""

API_KEY_VARIABLE = PREFIX + "API_KEY"
"""Environment variable with the key that commands send to a server."""

CA_VARIABLE = PREFIX + "CA" + FILE_SUFFIX
"""Environment variable with the file of the authorities that commands trust, instead of the system's."""

CLIENT_CERTIFICATE_VARIABLE = PREFIX + "CLIENT_CERTIFICATE" + FILE_SUFFIX
"""Environment variable with the file of the certificate and key that commands present to a server."""

NO_SETTINGS = (
    PREFIX + "CONFIG",
    API_KEY_VARIABLE,
    API_KEY_VARIABLE + FILE_SUFFIX,
    CA_VARIABLE,
    CLIENT_CERTIFICATE_VARIABLE,
)
"""Environment variables that are not those of a setting."""

CHARIOT_VARIABLES = {
    "MODEL_DIR": "models",
    "MODEL_PATH": "models",
    "UVICORN_HOST": "host",
    "UVICORN_PORT": "port",
    "WEB_CONCURRENCY": "workers",
    "DEFAULT_SCORE_THRESHOLD": "score_threshold",
    "CHARIOT_INFERENCE_PROTOCOL": "protocol",
    "INFERENCE_SERVICE_NAME": "name",
}
"""Environment variables of Chariot and of KServe, and the settings that they set."""


STORE_FILE = "store.json"
"""File of a data folder with the places of the database and the images that its server runs with; see `StorePlaces`."""


class SettingsError(ValueError):
    """Unknown setting or invalid value; the message names the setting and where it was set."""


def add_extensions(settings: Settings) -> None:
    """Let model.toml name the modules of the folder `extensions`; it is searched last.

    Raises:
        SettingsError: There is no such folder.
    """
    if not settings.extensions:
        return
    folder = Path(settings.extensions).absolute()
    if not folder.is_dir():
        raise SettingsError(f"folder of the setting extensions not found: {settings.extensions}")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def load(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> Settings:
    """Read the settings.

    Args:
        flags: Values of command-line flags, by field name.
        environment: Environment variables, such as `os.environ`.
        file: A `quadriga.toml`; default: the one in `QUADRIGA_CONFIG`, else in the current folder.

    Raises:
        SettingsError: A setting is unknown or its value invalid.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def take(name: str, value: Any, origin: str) -> None:
        if _check_name(name, origin):
            values[name], origins[name] = value, origin

    explicit_file = file or environment.get(PREFIX + "CONFIG")
    path = Path(explicit_file or "quadriga.toml")
    if explicit_file or path.exists():
        for name, value in _toml(path).items():
            take(name, value, str(path))
    for variable, name in CHARIOT_VARIABLES.items():
        if environment.get(variable):
            take(name, environment[variable], f"environment variable {variable}")
    in_files = _secret_files(environment)
    for name, variable in in_files.items():
        take(name, read_secret(variable, environment), f"environment variable {variable}")
    for variable, text in environment.items():
        name = variable.removeprefix(PREFIX).lower()
        is_file = name.removesuffix(FILE_SUFFIX.lower()) in secret_names() - {name}
        if not variable.startswith(PREFIX) or variable in NO_SETTINGS:
            continue
        if not is_file and name not in in_files:
            take(name, text, f"environment variable {variable}")
    for name, value in flags.items():
        take(name, value, f"flag --{name.replace('_', '-')}")
    return _convert(values, origins)


def _check_name(name: str, origin: str) -> bool:
    """Check that there is a setting of a name; return whether it still is one.

    Raises:
        SettingsError: It is none, and never was.
    """
    if name in REMOVED:
        _log.warning("%s: the setting %s is gone: %s", origin, name, REMOVED[name])
        return False
    if name not in Settings.__struct_fields__:
        names = ", ".join(Settings.__struct_fields__)
        raise SettingsError(f"{origin}: expected a setting among {names}, got {name!r}")
    return True


def _secret_files(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name a file with the value of a secret setting, by setting.

    Raises:
        SettingsError: The value itself is in the environment, too.
    """
    files = {}
    for name in sorted(secret_names()):
        variable = PREFIX + name.upper()
        if not environment.get(variable + FILE_SUFFIX):
            continue
        if environment.get(variable):
            raise SettingsError(f"expected {variable} or {variable}{FILE_SUFFIX}, got both")
        files[name] = variable + FILE_SUFFIX
    return files


def open_secret_files(environment: Mapping[str, str]) -> list[str]:
    """Return the files of secret settings that every user of the machine may read.

    Files below `/run/secrets` are left out: there a platform puts what this container alone sees, whatever its mode.
    """
    paths = (Path(environment[variable]) for variable in _secret_files(environment).values())
    return [
        str(path)
        for path in paths
        if not path.is_relative_to("/run/secrets") and path.stat().st_mode & stat.S_IROTH
    ]


def read_secret(variable: str, environment: Mapping[str, str]) -> str:
    """Read the file that a variable names; one newline at its end does not count.

    Raises:
        SettingsError: It cannot be read, or is empty.
    """
    path = Path(environment[variable])
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{variable}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:  # its message has what it could not decode
        raise SettingsError(f"{variable}: expected text in UTF-8 in {path}, got none") from None
    value = text.removesuffix("\n").removesuffix("\r")
    if not value:
        raise SettingsError(f"{variable}: expected a value in {path}, got an empty file")
    return value


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: expected TOML, got: {error}") from error


_PARSED: Mapping[str, Callable[[str], object]] = {
    "models": check_models,
    "webhook_hosts": parse_webhook_hosts,
    "label_studio_hosts": partial(parse_webhook_hosts, setting="label_studio_hosts"),
    "key_limits": lambda text: parse_limits(
        part for part in split_limits(text) if not is_retired(part)
    ),
    "oidc_roles": parse_role_entries,
    "trusted_proxies": parse_proxies,
}
"""Settings with a form of their own, and what reads it; raises ValueError."""


def _convert(values: dict[str, Any], origins: dict[str, str]) -> Settings:
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        text = explain_validation_error(error, Settings)
        name = text.partition(":")[0]
        if name in secret_names():
            shown = shown_secret(values[name])
            raise SettingsError(f"{origins[name]}: {_in_words(text, shown, name)}") from None
        if origins[name].startswith("flag "):
            text = text.removeprefix(f"{name}: ")
        raise SettingsError(f"{origins[name]}: {_in_words(text, values[name], name)}") from error
    for name, parse in _PARSED.items():
        try:
            parse(getattr(settings, name))
        except ValueError as error:
            raise SettingsError(f"{origins[name]}: {error}") from error
    _check_sign_on(settings)
    return settings


EXAMPLES = {
    "name": "flowers",
    "admin_key": "quadriga-ops.$(openssl rand -hex 32)",
    "blobs": "s3://bucket/images",
    "clickhouse": "https://user@clickhouse:8443/quadriga",
    "database": "postgresql://quadriga@postgres/quadriga",
    "label_studio_token": "$(openssl rand -hex 20)",
    "label_studio_url": "https://label.example.org",
    "oidc_issuer": "https://login.example.org/realms/vision",
    "public_url": "https://models.example.org",
    "session_key": "$(openssl rand -hex 32)",
}
"""A value, as a shell reads it in double quotes, of each setting whose texts have a form: an error shows it instead of a pattern."""

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a table",
}


def _in_words(text: str, value: object, name: str) -> str:
    """Return what is wrong with a setting without words of Python, and with the value."""
    text = re.sub(
        r"Expected 'str' matching regex '.*'",
        lambda _: f'expected text such as "{EXAMPLES[name]}"',
        text,
    )
    text = re.sub(
        r"Expected '(\w+)'",
        lambda match: f"expected {_KINDS.get(match[1], match[1])}",
        text,
        count=1,
    )
    text = re.sub(r", got '\w+'$", "", text)
    return text if ", got " in text else f"{text}, got {value!r}"


def _check_sign_on(settings: Settings) -> None:
    """Check the settings of single sign-on as far as they depend on each other.

    Raises:
        SettingsError: They cannot be used.
    """
    if not settings.oidc_issuer:
        return
    if not settings.oidc_client_id or not parse_role_entries(settings.oidc_roles):
        missing = "oidc_roles" if settings.oidc_client_id else "oidc_client_id"
        raise SettingsError(f"{missing} is required with oidc_issuer")
    if settings.insecure:
        raise SettingsError("expected oidc_issuer or insecure, got both")


class StorePlaces(msgspec.Struct, frozen=True):
    """The places in which a server keeps what is not in its data folder, without users, passwords and parameters."""

    database: str = ""
    """URL of the database; empty for `store.db` of the folder."""
    blobs: str = ""
    """URL or folder of the images; empty for `blobs` of the folder."""


def note_places(settings: Settings) -> None:
    """Note in the data folder where its server keeps its store, for commands that work on the folder.

    Raises:
        OSError: The file cannot be written.
    """
    path = Path(settings.data) / STORE_FILE
    places = _places(settings)
    if _noted_places(path) != places:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(places), indent=1), 0o600)


def check_data_path(settings: Settings) -> None:
    """Check that the path of the data folder can be used, and that no earlier version kept its database elsewhere.

    Version 0.1.0 put the path into a URL as it is: SQLAlchemy cut it at a `?`, and read `%41` as `A`.

    Raises:
        SettingsError: The path is not in UTF-8, or its database is at the place of 0.1.0 and not at that of this version;
            or one of both places cannot be looked at.
    """
    if "\0" in settings.data or settings.data.encode(errors="replace").decode() != settings.data:
        raise SettingsError(f"expected data to be a path in UTF-8, got {settings.data!r}")
    path = Path(settings.data).absolute() / "store.db"
    try:
        if settings.database or _is_there(path) or not _is_there(settings.journal_directory):
            return
    except OSError as error:
        raise SettingsError(
            f"cannot use the data folder {settings.data}: {error.strerror}"
        ) from error
    cut = str(path).partition("?")[0]
    for earlier in (Path(cut), Path(unquote(cut))):
        # A folder with a journal is the data folder of another server, whose database stays.
        try:
            is_earlier = _is_there(earlier) and not _is_there(earlier.parent / "journal")
        except OSError as error:
            raise SettingsError(
                f"cannot see whether version 0.1.0 kept the database of {settings.data} as {earlier}: {error.strerror}"
            ) from error
        if earlier != path and is_earlier and earlier.is_file():
            raise SettingsError(
                f"the database of {settings.data} is {earlier}, where version 0.1.0 kept it: move it to {path}, and "
                f"{earlier.name}-wal beside it, if it is there, to {path}-wal"
            )


def _is_there(path: Path) -> bool:
    """Check whether there is anything at a path; unlike `Path.exists` of some Pythons it raises what keeps one from looking."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no path has a null byte
        return False
    return True


def check_places(settings: Settings, *, reads_images: bool) -> None:
    """Check that a command uses the store that the server of its data folder uses.

    Raises:
        SettingsError: It would use another database, or, where it reads images, other images.
    """
    check_data_path(settings)
    path = Path(settings.data) / STORE_FILE
    noted, own = _noted_places(path), _places(settings)
    if noted is None:
        return
    for name, shown in (("database", "store.db"), ("blobs", "blobs")):
        expected, present = getattr(noted, name), getattr(own, name)
        if expected == present or (name == "blobs" and not reads_images):
            continue
        folder = f"{shown} of the folder"
        raise SettingsError(
            f"expected the setting {name} to be that of the server of {settings.data}, {expected or folder}, got "
            f"{present or folder}: set {PREFIX}{name.upper()}, {PREFIX}{name.upper()}{FILE_SUFFIX} or --config as for the "
            f"server; or remove {path} if it is out of date"
        )


def _noted_places(path: Path) -> StorePlaces | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=StorePlaces)
    except (OSError, msgspec.MsgspecError):  # a folder of an earlier version has none
        return None


def _places(settings: Settings) -> StorePlaces:
    return StorePlaces(
        database=_place(settings.database, Path(settings.data) / "store.db"),
        blobs=_place(settings.blobs, Path(settings.data) / "blobs"),
    )


def _place(location: str, default: Path) -> str:
    """Return a URL or path so that equal places are equal texts; empty for the default one."""
    scheme, separator, rest = location.partition("://")
    driver = scheme.partition("+")[0]
    if not separator or driver == "sqlite":
        path = Path(rest.removeprefix("/").partition("?")[0] if separator else location).absolute()
        return "" if not location or path == default.absolute() else str(path)
    shown = without_secrets(f"{driver}://{rest}").rstrip("/")
    socket = re.search(r"[?&]host=([^&]*)", rest.rpartition("@")[2])
    if driver == "postgresql" and socket and HIDDEN not in shown:
        return f"{shown}?host={socket[1]}"
    return shown.replace(":5432/", "/") if driver == "postgresql" else shown
