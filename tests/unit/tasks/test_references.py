import pytest

from quadriga.tasks import TASKS
from quadriga.tasks.decoders import DECODERS, resolve_decoder
from quadriga.tasks.image import Image
from quadriga.tasks.specification import ObjectReferenceError, load, resolve


def test_every_entry_of_the_tables_can_be_loaded():
    assert all(callable(load(reference)) for reference in TASKS.values())
    assert all(callable(resolve_decoder(name)) for name in DECODERS)


def test_an_attribute_of_an_attribute_is_found():
    assert load("quadriga.tasks.image:Image.width") is Image.width


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("", "expected a reference to be module:attribute, got ''"),
        (
            "quadriga.tasks.image",
            "expected a reference to be module:attribute, got 'quadriga.tasks.image'",
        ),
        (":x", "expected a reference to be module:attribute"),
        ("tasks:", "expected a reference to be module:attribute"),
        ("nowhere:x", "module not found: 'nowhere' of reference 'nowhere:x'"),
        ("quadriga.tasks.nowhere.at:x", "module not found: 'quadriga.tasks.nowhere' of reference"),
        (
            "quadriga.tasks.image:nothing",
            "attribute not found: 'nothing' of reference 'quadriga.tasks.image:nothing'",
        ),
    ],
)
def test_a_reference_that_leads_nowhere_says_where_it_ends(reference, message):
    with pytest.raises(ObjectReferenceError, match=message):
        load(reference)


def test_a_fault_inside_a_module_is_raised_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "faulty_decoder.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        load("faulty_decoder:decode")


def test_a_name_is_looked_up_and_a_reference_is_followed():
    table = {"real": "fractions:Fraction", "whole": "builtins:int"}
    assert resolve("whole", table, "a number") is int
    assert resolve("builtins:float", table, "a number") is float
    with pytest.raises(ObjectReferenceError, match="a number to be one of real, whole or module:"):
        resolve("odd", table, "a number")
