"""Documents say what the code does: settings, operators, links."""

import re
from pathlib import Path

import msgspec
import pytest

from engine import model_toml, settings
from engine.families import FAMILIES
from engine.text_files import TextTable
from store.query.json_form import MAX_IN
from store.query.syntax import OPERATORS
from tasks.decoders import DECODERS

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "sample_models").rglob("*.md"))


def shown(value) -> str:
    if value in ("", None):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def test_every_setting_stands_in_the_table_with_its_default():
    table = (ROOT / "docs" / "serving.md").read_text().partition("<!-- settings")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", table, re.MULTILINE)
    defaults = settings.Settings()
    assert rows == [
        (name, shown(getattr(defaults, name)), text)
        for name, text in settings.descriptions().items()
    ]


def test_every_key_of_model_toml_is_described():
    text = (ROOT / "docs" / "serving.md").read_text()
    for name, struct in model_toml.SPECIFIED.items():
        assert f"`[{name}]`" in text
        for field in msgspec.structs.fields(struct):
            assert f"`{field.encode_name}`" in text, field.encode_name
    for field in msgspec.structs.fields(model_toml.ModelToml):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            for name in field.type.__struct_fields__:
                assert f"`{name}`" in text, name
        else:
            assert f"`{field.name}`" in text or f"`[{field.name}]`" in text, field.name


def test_every_decoder_is_described():
    text = (ROOT / "docs" / "decoders.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(DECODERS)


def test_every_key_for_text_models_is_described():
    text = (ROOT / "docs" / "serving.md").read_text()
    for name in TextTable.__struct_fields__:
        assert f"`{name}`" in text, name


def test_every_family_is_described():
    text = (ROOT / "docs" / "families.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| (.*) \|$", text, re.MULTILINE)
    assert rows == [(name, family.task, family.about) for name, family in FAMILIES.items()]


def test_every_operator_is_described():
    text = (ROOT / "docs" / "store.md").read_text()
    for operator in {name for names in OPERATORS.values() for name in names}:
        assert f"`{operator}`" in text
    assert f"{MAX_IN:,}" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
