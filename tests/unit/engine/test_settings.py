"""Settings: who wins, and what is refused."""

import io
import re
import subprocess
from pathlib import Path
from typing import get_type_hints

import pytest
from rich.console import Console

from quadriga.engine.config import settings
from quadriga.engine.config.settings import Settings, secret_names
from quadriga.engine.config.settings_reading import EXAMPLES, SettingsError, load, open_secret_files


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
    assert name not in Settings.__struct_fields__
    Path("quadriga.toml").write_text(f"{name} = 1")
    assert load({name: "1"}, {f"QUADRIGA_{name.upper()}": "1"}) == Settings()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all(f"the setting {name} is gone: {settings.REMOVED[name]}" in line for line in lines)


def test_every_setting_describes_itself():
    texts = settings.descriptions()
    assert set(texts) == set(Settings.__struct_fields__)
    assert all(text.endswith(".") for text in texts.values())


URL = "postgresql://u:canary-7f3a@host/db"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("name", sorted(secret_names()))
def test_a_secret_is_read_from_a_file(name, end):
    values = {"database": URL, "blobs": "s3://bucket/a b", "admin_key": f"quadriga-a.{32 * '7'}"}
    values["session_key"] = 32 * "7"
    value = values.get(name, "https://u:canary-7f3a@host")
    Path("secret").write_text(value + end, newline="")
    variable = f"QUADRIGA_{name.upper()}"
    for environment in ({}, {variable: ""}):
        loaded = load({}, {f"{variable}_FILE": "secret", **environment})
        assert getattr(loaded, name) == value
    assert getattr(load({}, {f"{variable}_FILE": ""}), name) == ""


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
    loaded = load({"database": URL, "clickhouse": "https://u:canary-7f3a@host:8443/db"}, {})
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
    fields = get_type_hints(Settings, include_extras=True)
    patterned = {name for name, field in fields.items() if field.__metadata__[0].pattern}
    assert set(EXAMPLES) == patterned


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_value_of_its_setting(name):
    value = subprocess.run(["sh", "-c", f'printf %s "{EXAMPLES[name]}"'], capture_output=True, text=True, check=True).stdout  # fmt: skip
    wanted = {"oidc_client_id": "quadriga", "oidc_roles": "groups:ops=operate"}
    others = wanted if name == "oidc_issuer" else {}
    assert getattr(load({name: value, **others}, {}), name) == value


def test_a_text_of_another_form_is_answered_by_an_example_and_never_shown():
    secret = "0123456789abcdef" * 4
    with pytest.raises(SettingsError) as caught:
        load({}, {"QUADRIGA_ADMIN_KEY": secret})
    expected = 'admin_key: expected text such as "quadriga-ops.$(openssl rand -hex 32)", got '
    assert expected in str(caught.value)
    assert not re.search(r"regex|\^|[0-9a-f]{16}", str(caught.value))
