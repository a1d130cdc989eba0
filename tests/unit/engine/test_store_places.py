"""Commands beside a server: they use its database and its images, say what is not there, and make nothing to read it."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quadriga.engine.cli import main
from quadriga.engine.config.settings import Settings, SettingsError, load
from quadriga.engine.config.store_places import STORE_FILE, check_places, note_places
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.database.database import make_tables
from quadriga.store.database.sqlite import database_path, sqlite_url
from quadriga.store.records.records import InputReference
from tests.postgres_server import PostgresServer
from tests.server_process import SAMPLE_MODELS, quadriga
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import select_rows, store_entries

SECRET = "canary-7f3a"
POSTGRES = f"postgresql+psycopg://writer:{SECRET}@db.example.org/quadriga?password={SECRET}"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def call(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=environment)


@pytest.mark.parametrize(
    ("noted", "own"),
    [
        ({}, {}),
        ({}, {"database": "sqlite:///{data}/store.db", "blobs": "{data}/blobs"}),
        ({"database": "sqlite:///other.db"}, {"database": "sqlite+pysqlite:///{folder}/other.db"}),
        ({"database": POSTGRES}, {"database": "postgresql://reader@db.example.org:5432/quadriga"}),
        ({"database": "postgresql://a@/x?host=/run/p"}, {"database": "postgresql://b@/x?host=/run/p"}),
        ({"blobs": f"s3://key:{SECRET}@bucket/images/"}, {"blobs": "s3://bucket/images"}),
        ({"blobs": "images"}, {"blobs": "{folder}/images"}),
    ],
)  # fmt: skip
def test_the_same_places_are_known_in_every_form(data: Path, noted, own):
    data.mkdir()
    note_places(Settings(data=str(data), **noted))
    assert SECRET not in (data / STORE_FILE).read_text()
    assert (data / STORE_FILE).stat().st_mode & 0o077 == 0
    texts = {name: text.format(data=data, folder=data.parent) for name, text in own.items()}
    check_places(Settings(data=str(data), **texts), reads_images=True)


@pytest.mark.parametrize(
    ("noted", "own", "message"),
    [
        ({"database": POSTGRES}, {}, "postgresql://db.example.org/quadriga, got store.db of the folder: set QUADRIGA_DATABASE, QUADRIGA_DATABASE_FILE or --config"),
        ({"database": POSTGRES}, {"database": "postgresql://db.example.org/other"}, "got postgresql://db.example.org/other"),
        ({"database": POSTGRES}, {"database": "postgresql://db.example.org:5433/quadriga"}, "got postgresql://db.example.org:5433/"),
        ({"database": "postgresql:///x?host=/a"}, {"database": "postgresql:///x?host=/b"}, "host=/b"),
        ({}, {"database": POSTGRES}, "store.db of the folder, got postgresql://db.example.org/quadriga"),
        ({"blobs": "s3://bucket/images"}, {}, "s3://bucket/images, got blobs of the folder: set QUADRIGA_BLOBS"),
        ({"blobs": "gs://bucket"}, {"blobs": "s3://bucket"}, "gs://bucket, got s3://bucket"),
    ],
)  # fmt: skip
def test_another_place_is_refused_with_what_to_set(data: Path, noted, own, message):
    data.mkdir()
    note_places(Settings(data=str(data), **noted))
    settings = Settings(data=str(data), **own)
    with pytest.raises(SettingsError) as caught:
        check_places(settings, reads_images=True)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)
    if "blobs" in noted:
        check_places(settings, reads_images=False)
    note_places(settings)  # as the next server does
    check_places(settings, reads_images=True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_file_that_is_none_is_no_reason_to_refuse(data: Path, content: bytes):
    data.mkdir()
    (data / STORE_FILE).write_bytes(content)
    check_places(Settings(data=str(data)), reads_images=True)


READING = [
    ("keys", "list"),
    ("keys", "revoke", "nobody"),
    ("keys", "limit", "nobody"),
    ("keys", "rotate", "nobody"),
    ("query",),
    ("check",),
    ("export", "--output", "out.jsonl"),
]


@pytest.mark.parametrize("command", [*READING, ("audit",)], ids=" ".join)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_without_a_store_is_said_and_stays_empty(data: Path, command, is_there):
    if is_there:
        data.mkdir()
    result = call(*command, "--data", data)
    if command == ("audit",) and is_there:
        assert (result.exit_code, result.output) == (0, "no lines\n")
    else:
        assert result.exit_code == 2
        assert "--config as for the server" in result.output
    assert not data.exists() or list(data.iterdir()) == []


def test_a_reading_command_makes_no_tables(data: Path, postgres: PostgresServer):
    url = postgres.create(migrated=False)
    try:
        for command in READING[:4]:
            result = call(*command, "--data", data, "--database", url)
            assert (result.exit_code, "quadriga migrate" in result.output) == (2, True)
        assert select_rows(url, "SELECT 1 FROM pg_tables WHERE schemaname = 'public'") == []
        assert "from nothing" in call("migrate", "--database", url).output
        assert call("keys", "list", "--database", url).output == "no keys\n"
    finally:
        postgres.drop(url)


def test_every_command_of_a_folder_refuses_another_database(data: Path):
    data.mkdir()
    note_places(Settings(data=str(data), database=POSTGRES, blobs="s3://bucket/images"))
    writing = [
        ("keys", "create", "--role", "read"),
        ("migrate",),
        ("store", "rebuild"),
        ("backup", "out"),
    ]
    for command in (*READING, *writing):
        result = call(*command, "--data", data)
        assert result.exit_code == 2, command
        assert "expected the setting database to be that of the server of" in result.output
        assert SECRET not in result.output
    assert [path.name for path in data.iterdir()] == [STORE_FILE]


def test_a_database_that_is_named_alone_is_that_of_no_folder(data: Path):
    data.mkdir()
    note_places(Settings(data=str(data), database=POSTGRES))
    url = f"sqlite:///{data.parent}/other.db"
    assert call("migrate", "--database", url).exit_code == 0
    assert call("migrate", "--database", url, "--data", data).exit_code == 2


@pytest.mark.parametrize("given", ["option", "variable"])
def test_commands_read_the_settings_file_of_the_server(data: Path, given: str):
    file = data.parent / "server.toml"
    file.write_text(f'data = "{data}"\ndatabase = "sqlite:///{data.parent}/other.db"\n')
    options, environment = (
        (("--config", file), {}) if given == "option" else ((), {"QUADRIGA_CONFIG": str(file)})
    )
    made = call("keys", "create", "--role", "read", "--json", *options, **environment)
    assert made.exit_code == 0
    assert select_rows(f"sqlite:///{data.parent}/other.db", "SELECT id FROM access_key") == [
        (json.loads(made.stdout)["id"],)
    ]
    listed = json.loads(call("keys", "list", "--json", *options, **environment).stdout)
    assert [key["id"] for key in listed] == [json.loads(made.stdout)["id"]]
    lines = call("audit", "--json", *options, **environment).stdout.splitlines()
    assert [json.loads(line)["action"] for line in lines] == ["keys create"]


def test_a_backup_that_lacks_images_says_so_by_its_exit_status(data: Path):
    blobs = FileBlobs(data / "blobs")
    source = InputReference("image", blobs.put(b"image"), 8, 8, "image/jpeg", kept=True)
    store_entries(f"sqlite:///{data}/store.db", data / "journal", [make_record(5, input=source)])
    assert call("backup", "backups", "--data", data).exit_code == 0
    result = call("backup", "others", "--data", data, QUADRIGA_BLOBS=str(data / "elsewhere"))
    assert result.exit_code == 1
    assert "1 images of inferences were not found: set QUADRIGA_BLOBS" in result.output
    assert call("backup", "rest", "--data", data, "--no-images", QUADRIGA_BLOBS="no").exit_code == 0


@pytest.mark.parametrize("name", ["site #1", "100%41", "what?", "größe"])
def test_a_data_folder_may_have_what_a_url_has_for_itself(tmp_path: Path, name: str):
    settings = Settings(data=str(tmp_path / name))
    assert database_path(settings.database_url) == tmp_path / name / "store.db"


def test_a_path_that_is_no_text_is_refused(data: Path):
    not_utf8 = os.fsdecode(os.fsencode(data) + b"\xff")
    refused = quadriga("serve", SAMPLE_MODELS, "--data", not_utf8, "--port", 0, code=2)
    assert "expected data to be a path in UTF-8, got" in refused.stderr
    for path in (not_utf8, "a\0b"):
        with pytest.raises(SettingsError, match="a path in UTF-8"):
            load({"data": path}, {})


def test_a_database_may_be_named_with_parameters(tmp_path: Path):
    make_tables(url := sqlite_url(tmp_path / "own.db"))
    found = call("query", "", "--database", f"{url}?timeout=5", "--data", tmp_path / "none")
    assert (found.exit_code, found.output) == (0, call("query", "", "--database", url).output)
