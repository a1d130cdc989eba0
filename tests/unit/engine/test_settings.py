"""Settings: who wins, and what is refused."""

import io
import os
import re
import subprocess
from pathlib import Path
from typing import get_type_hints

import pytest
from rich.console import Console

from quadriga.engine.config import extras, settings
from quadriga.engine.config.settings import (
    RENAMED,
    Settings,
    SettingsError,
    fields,
    load,
    open_secret_files,
)

SECRETS = sorted(field.key for field in fields().values() if field.is_secret)
EXAMPLES = {field.key: field.example for field in fields().values() if field.example}


def value_of(loaded, key):
    """Return a setting by its key in `quadriga.toml`."""
    _, _, rest = key.partition("extras.")
    return loaded.of_extra(*rest.split(".")) if rest else getattr(loaded, key)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_defaults():
    assert load({}, {}) == Settings()
    assert load({}, {}).database_url.startswith("sqlite:////")
    assert load({}, {}).thread_count >= 1


def test_flag_before_environment_before_chariot_before_file():
    Path("quadriga.toml").write_text('port = 1\nhost = "a"\nworkers = 2\nmodels = "file"\n')
    environment = {
        "UVICORN_PORT": "2",
        "UVICORN_HOST": "b",
        "WEB_CONCURRENCY": "3",
        "QUADRIGA_PORT": "4",
        "QUADRIGA_HOST": "c",
        "HOME": "/",
    }
    loaded = load({"port": "5"}, environment)
    assert (loaded.port, loaded.host, loaded.workers, loaded.models) == (5, "c", 3, "file")


def test_a_file_is_named_by_the_environment_or_by_flag(tmp_path):
    file = tmp_path / "other.toml"
    file.write_text("port = 9\n")
    assert load({}, {"QUADRIGA_CONFIG": str(file)}).port == 9
    assert load({}, {}, file).port == 9


@pytest.mark.parametrize(
    ("variable", "value", "name", "expected"),
    [
        ("MODEL_DIR", "/mnt/models", "models", "/mnt/models"),
        ("MODEL_PATH", "/mnt/a.onnx", "models", "/mnt/a.onnx"),
        ("DEFAULT_SCORE_THRESHOLD", "0.25", "score_threshold", 0.25),
        ("CHARIOT_INFERENCE_PROTOCOL", "chariot-v2-kserve", "protocol", "chariot-v2-kserve"),
        ("QUADRIGA_KEY_LIMITS", "jobs=2,bytes=1GB/hour", "key_limits", "jobs=2,bytes=1GB/hour"),
        ("INFERENCE_SERVICE_NAME", "flowers", "name", "flowers"),
        ("QUADRIGA_STORE", "false", "store", False),
        ("QUADRIGA_STRICT_READINESS", "0", "strict_readiness", False),
    ],
)
def test_environment_values_are_read_as_their_type(variable, value, name, expected):
    assert getattr(load({}, {variable: value}), name) == expected


@pytest.mark.parametrize(
    ("flags", "environment", "toml", "message"),
    [
        ({"prot": 1}, {}, "", "--prot"),
        ({}, {"QUADRIGA_PROT": "1"}, "", "QUADRIGA_PROT"),
        ({}, {}, "prot = 1", "quadriga.toml"),
        ({"port": "http"}, {}, "", "--port"),
        ({"durability": "most"}, {}, "", "--durability"),
        ({"database": "mysql://host/name"}, {}, "", "--database"),
        ({"database": "sqlite://"}, {}, "", "--database"),
        ({}, {"QUADRIGA_PORT": "70000"}, "", "QUADRIGA_PORT"),
        ({}, {"WEB_CONCURRENCY": "0"}, "", "WEB_CONCURRENCY"),
        ({}, {"CHARIOT_INFERENCE_PROTOCOL": "other"}, "", "chariot-v2-kserve"),
        (
            {"webhook_hosts": "10.0.0.0/99"},
            {},
            "",
            "flag --webhook-hosts: expected webhook_hosts to be",
        ),
        ({"key_limits": "speed=1/hour"}, {}, "", "a name of requests, concurrency, jobs"),
        ({}, {}, "port = ", "TOML"),
        ({}, {}, "drain_s = -1", "drain_s"),
        ({}, {"QUADRIGA_CONFIG": "missing.toml"}, "", "missing.toml"),
    ],
)
def test_wrong_value_names_its_origin(flags, environment, toml, message):
    if toml:
        Path("quadriga.toml").write_text(toml)
    with pytest.raises(SettingsError) as caught:
        load(flags, environment)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", sorted(settings.REMOVED))
def test_a_setting_that_is_gone_is_answered_by_what_holds_now(name, caplog):
    assert name not in fields()
    Path("quadriga.toml").write_text(f"{name} = 1")
    assert load({name: "1"}, {f"QUADRIGA_{name.upper()}": "1"}) == Settings()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all(f"the setting {name} is gone: {settings.REMOVED[name]}" in line for line in lines)


def test_every_setting_describes_itself():
    own = [field for field in fields().values() if not field.extra]
    assert {field.name for field in own} == set(Settings.__struct_fields__) - {"extras"}
    assert all(field.group for field in own)
    assert all(field.text.endswith(".") for field in fields().values())


ISSUER = {"issuer": "https://login.example.org", "client_id": "q", "roles": "sub:*=read"}


def as_file(values):
    return "[extras.sign_on]\n" + "".join(f"{name} = '{value}'\n" for name, value in values.items())


@pytest.mark.parametrize("source", ["file", "environment", "flags"])
def test_settings_of_an_extra_have_their_name_before_them(source):
    flags, environment = {}, {}
    for name, value in ISSUER.items():
        flags[f"extras_sign_on_{name}"] = value
        environment[f"QUADRIGA_EXTRAS_SIGN_ON_{name.upper()}"] = value
    if source == "file":
        Path("quadriga.toml").write_text(as_file(ISSUER))
    loaded = load(
        flags if source == "flags" else {}, environment if source == "environment" else {}
    )
    scopes = {"scopes": "openid profile email", "audience": "", "client_secret": ""}
    assert loaded.extras == {"sign_on": ISSUER | scopes}
    assert load({}, {}, Path(os.devnull)).extras == {}


def test_sources_of_an_extra_win_as_those_of_the_server():
    Path("quadriga.toml").write_text(as_file({**ISSUER, "client_id": "file", "audience": "file"}))
    environment = {"QUADRIGA_EXTRAS_SIGN_ON_CLIENT_ID": "environment"}
    loaded = load({"extras_sign_on_roles": "sub:*=admin"}, environment)
    values = [loaded.of_extra("sign_on", name) for name in ("audience", "client_id", "roles")]
    assert values == ["file", "environment", "sub:*=admin"]


OLD_VALUES = {
    "max_model_source_bytes": 1000,
    "label_studio_hosts": "a.example.org",
    "oidc_roles": "sub:*=read",
}


@pytest.mark.parametrize("old", RENAMED)
@pytest.mark.parametrize("source", ["file", "environment", "flag", "secret file"])
def test_a_setting_that_an_extra_has_now_keeps_its_name_of_old(old, source, caplog):
    field = fields()[RENAMED[old]]
    value = OLD_VALUES.get(old, "https://a")
    others = {f"extras_sign_on_{name}": text for name, text in ISSUER.items()}
    flags = {name: text for name, text in others.items() if name != field.name}
    environment = {}
    if source == "file":
        Path("quadriga.toml").write_text(f"{old} = {value!r}")
    elif source == "environment":
        environment = {f"QUADRIGA_{old.upper()}": str(value)}
    elif source == "flag":
        flags = {old: str(value), **flags}
    elif field.is_secret:
        Path("secret").write_text(value)
        environment = {f"QUADRIGA_{old.upper()}_FILE": "secret"}
    else:
        return
    assert value_of(load(flags, environment), field.key) == value
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.endswith(f"the setting {old} is {field.key} now")


def test_of_two_names_of_a_setting_in_one_place_the_new_one_counts():
    flags = {"extras_clickhouse_url": "http://new", "clickhouse": "http://old"}
    for given in (flags, dict(reversed(flags.items()))):
        assert load(given, {}).of_extra("clickhouse", "url") == "http://new"
    environment = {"QUADRIGA_CLICKHOUSE": "http://old"}
    assert load({}, environment).of_extra("clickhouse", "url") == "http://old"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_que = 1", "expected a setting, got 'max_que': the nearest is max_queue"),
        ("[extras.sign_on]\nisuer = 'x'", "got 'extras.sign_on.isuer': the nearest is extras.sign_on.issuer"),
        ("oidc_isuer = 'x'", "got 'oidc_isuer': the nearest is extras.sign_on.issuer"),
        ("qqqq = 1", "expected a setting, got 'qqqq': see quadriga serve --help"),
        ("[extras]\nsign_on = 1", "expected extras to be tables such as [extras.sign_on]"),
        ("extras = 1", "expected extras to be tables such as [extras.sign_on]"),
        ("[extras.other]\nurl = 1", "expected a setting, got 'extras.other.url'"),
        ("[extras.sign_on]\nissuer = 1", "extras.sign_on.issuer: expected text, got 1"),
        ("[extras.object_stores]\nmax_bytes = 0", "extras.object_stores.max_bytes: expected a whole number >= 1, got 0"),
        ("[extras.sign_on]\nissuer = 'https://a'", "extras.sign_on: client_id is required with issuer"),
        ("[extras.label_studio]\nhosts = '10.0.0.0/99'", "expected extras.label_studio.hosts to be host names"),
    ],
)  # fmt: skip
def test_wrong_keys_of_a_file_are_said_with_what_may_be_meant(text, message):
    Path("quadriga.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load({}, {})
    assert str(caught.value).startswith("quadriga.toml: " * ("client_id" not in message))
    assert message in str(caught.value)


URL = "postgresql://u:canary-7f3a@host/db"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("key", SECRETS)
def test_a_secret_is_read_from_a_file(key, end):
    values = {"database": URL, "blobs": "s3://bucket/a b", "admin_key": f"quadriga-a.{32 * '7'}"}
    values["session_key"] = 32 * "7"
    value = values.get(key, "https://u:canary-7f3a@host")
    Path("secret").write_text(value + end, newline="")
    variable = f"QUADRIGA_{key.upper().replace('.', '_')}"
    for environment in ({}, {variable: ""}):
        loaded = load({}, {f"{variable}_FILE": "secret", **environment})
        assert value_of(loaded, key) == value
    assert not value_of(load({}, {f"{variable}_FILE": ""}), key)


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_secret_file_that_everybody_may_read_is_named(mode, is_open):
    file = Path("database").absolute()
    file.write_text(URL)
    file.chmod(mode)
    environment = {"QUADRIGA_DATABASE_FILE": str(file)}
    assert open_secret_files(environment) == [str(file)] * is_open
    assert open_secret_files({}) == []


def test_a_flag_goes_before_the_file_of_a_secret():
    Path("secret").write_text(URL)
    flags = {"database": "sqlite:////a.db"}
    assert load(flags, {"QUADRIGA_DATABASE_FILE": "secret"}).database == flags["database"]


@pytest.mark.parametrize(
    ("content", "environment", "message"),
    [
        (b"", {}, "QUADRIGA_DATABASE_FILE: expected a value in secret, got an empty file"),
        (b"\n", {}, "QUADRIGA_DATABASE_FILE: expected a value in secret, got an empty file"),
        (b"\xffcanary-7f3a", {}, "QUADRIGA_DATABASE_FILE: expected text in UTF-8"),
        (None, {}, "QUADRIGA_DATABASE_FILE: cannot read secret: No such file"),
        (b"x", {"QUADRIGA_DATABASE": URL}, "or QUADRIGA_DATABASE_FILE, got both"),
        (b"canary-7f3a", {}, "environment variable QUADRIGA_DATABASE_FILE: database"),
        (b"x", {"QUADRIGA_PORT_FILE": "secret"}, "QUADRIGA_PORT_FILE: expected a setting"),
    ],
)
def test_a_wrong_secret_file_names_its_variable(content, environment, message):
    if content is not None:
        Path("secret").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load({}, {"QUADRIGA_DATABASE_FILE": "secret"} | environment)
    assert message in str(caught.value)
    assert "canary-7f3a" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL.replace("postgresql", "mysql"), "'mysql://host/db'"),
        ("u:canary-7f3a", "'…'"),
        ("postgresql+asyncpg://u:canary-7f3a@host", "'postgresql+asyncpg://host'"),
    ],
)
def test_a_wrong_url_is_shown_without_its_password(url, shown):
    with pytest.raises(SettingsError) as caught:
        load({"database": url}, {})
    assert str(caught.value).endswith(f"got {shown}")
    assert caught.value.__cause__ is None


def test_no_representation_of_the_settings_has_a_secret():
    flags = {"database": URL, "extras_clickhouse_url": "https://u:canary-7f3a@host:8443/db"}
    flags["extras_label_studio_token"] = "canary-7f3a"
    loaded = load(flags, {})
    assert loaded.secrets == set(flags.values())
    console = Console(file=io.StringIO())
    console.print(loaded)
    for text in (repr(loaded), str(loaded), f"{[loaded]}", console.file.getvalue()):
        assert "canary-7f3a" not in text
        assert "postgresql://host/db" in text
        assert "8080" in text


@pytest.mark.parametrize(
    "models", ["models", "s3://bucket", "s3://bucket/a/b", "gs://b/m", "az://b"]
)
def test_models_are_in_a_folder_or_an_object_store(models):
    assert load({"models": models}, {}).models == models


@pytest.mark.parametrize(
    "models",
    [
        "s3://key:SECRET@bucket/models",
        "s3://SECRET@bucket",
        "s3://bucket/models?sig=SECRET",
        "s3://bucket/models#SECRET",
        "s3:///SECRET",
        "s3://[SECRET/models",
        "https://bucket/SECRET",
        "file:///SECRET",
        "s3://bucket/../SECRET",
        "s3://bucket/a SECRET",
    ],
)
def test_a_url_of_models_has_no_secrets_and_is_not_repeated(models):
    with pytest.raises(SettingsError, match="flag --models: expected") as error:
        load({"models": models}, {})
    assert "SECRET" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("port", "abc", "flag --port: expected a whole number, got 'abc'"),
        ("port", "99999", "flag --port: expected a whole number <= 65535, got '99999'"),
        ("signals_per_s", "x", "flag --signals-per-s: expected a number, got 'x'"),
        ("durability", "all", "expected one of memory, process, power, database, got 'all'"),
        ("insecure", "perhaps", "expected true or false, got 'perhaps'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_said_in_words(name, value, text):
    with pytest.raises(SettingsError) as caught:
        load({name: value}, {})
    assert str(caught.value).endswith(text)


def test_each_setting_whose_text_has_a_form_has_an_example():
    kinds = {"": Settings} | {extra: extras.settings_of(extra, extra) for extra in extras.SETTINGS}
    for field in fields().values():
        hint = get_type_hints(kinds[field.extra], include_extras=True)[field.attribute]
        assert bool(hint.__metadata__[0].pattern) == bool(field.example), field.key


@pytest.mark.parametrize("key", EXAMPLES)
def test_an_example_is_a_value_of_its_setting(key):
    value = subprocess.run(["sh", "-c", f'printf %s "{EXAMPLES[key]}"'], capture_output=True, text=True, check=True).stdout  # fmt: skip
    others = {f"extras_sign_on_{name}": text for name, text in ISSUER.items()}
    assert value_of(load({**others, key.replace(".", "_"): value}, {}), key) == value


def test_a_text_of_another_form_is_answered_by_an_example_and_never_shown():
    secret = "0123456789abcdef" * 4
    with pytest.raises(SettingsError) as caught:
        load({}, {"QUADRIGA_ADMIN_KEY": secret})
    expected = 'admin_key: expected text such as "quadriga-ops.$(openssl rand -hex 32)", got '
    assert expected in str(caught.value)
    assert not re.search(r"regex|\^|[0-9a-f]{16}", str(caught.value))
