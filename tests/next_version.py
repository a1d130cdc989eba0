"""A made-up next version: a copy of this one with a revision more, whose records and rows have a field more."""

import shutil
from pathlib import Path

from quadriga.store.database.database import REVISION
from tests.server_process import ROOT

NEXT = "2099.01"
WEATHER_OF_OTHERS = "unknown"
"""Weather of records that this version journaled and the next one stored."""

WEATHER = "fair"
"""Weather of records that the next version journaled and stored."""

_MIGRATION = '''"""The weather of each inference, and the cameras."""

from alembic import op

revision = "{next}"
down_revision = "{previous}"
oldest = "{oldest}"


def upgrade() -> None:
    """Add a column, an index and a table."""
    op.execute("ALTER TABLE inference ADD COLUMN weather TEXT")
    op.execute("CREATE INDEX ix_inference_weather ON inference (weather)")
    op.execute("CREATE TABLE camera (name TEXT NOT NULL PRIMARY KEY)")
    op.execute(f"INSERT INTO schema_compatibility (revision, oldest) VALUES ('{{revision}}', '{{oldest}}')")
'''
_SCHEMA = {
    "sqlite": ("inference.weather TEXT", "camera.name TEXT not null key 1"),
    "postgresql": ("inference.weather text", "camera.name text not null key 1"),
}
_CHANGES = {
    "store/database/database.py": [(f'REVISION = "{REVISION}"', f'REVISION = "{NEXT}"')],
    "store/database/schema.py": [
        (
            "    standard: str\n\n\nCOLUMNS",
            "    standard: str\n    weather: str\n\n\nCOLUMNS",
        )
    ],
    "store/records/records.py": [
        (
            "    status: int = 200\n    standard: msgspec.Raw",
            f'    status: int = 200\n    weather: str = "{WEATHER_OF_OTHERS}"\n    standard: msgspec.Raw',
        ),
        (
            "    standard: dict[str, Any] = {}\n",
            f'    weather: str = "{WEATHER}"\n    standard: dict[str, Any] = {{}}\n',
        ),
    ],
    "store/database/rows.py": [
        (
            "            standard=bytes(record.standard).decode(),\n",
            "            standard=bytes(record.standard).decode(),\n            weather=record.weather,\n",
        ),
    ],
}


def write_next_version(folder: Path, *, oldest: str = REVISION) -> dict[str, str]:
    """Write the next version to a folder; return the variable of the environment by which it runs.

    Args:
        folder: Folder that does not exist yet.
        oldest: Oldest revision of the code that may run on its database.
    """
    package = folder / "quadriga"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "quadriga", package, symlinks=False, ignore=ignored)
    for path, changes in _CHANGES.items():
        text = (package / path).read_text()
        for before, after in changes:
            assert text.count(before) == 1, f"{path}: {before}"
            text = text.replace(before, after)
        (package / path).write_text(text)
    migrations = package / "store" / "database" / "migrations"
    for database, lines in _SCHEMA.items():
        path = migrations / f"{database}.schema.txt"
        added = "\n".join((*lines, "inference. index (weather)"))
        path.write_text(f"{path.read_text()}{added}\n")
    migration = _MIGRATION.format(next=NEXT, previous=REVISION, oldest=oldest)
    (migrations / "versions" / "2099_01_weather.py").write_text(migration)
    return {"PYTHONPATH": str(folder)}
