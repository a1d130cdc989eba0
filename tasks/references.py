"""Object references, `module:attribute`: how the tables name what they do not import.

Source: Python packaging, "Entry points specification", object references.
"""

import importlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Any


class ObjectReferenceError(ValueError):
    """An object reference does not lead to an object; the text says where it ends."""


def load(reference: str) -> Any:
    """Import the object that a reference names, such as `quadriga.tasks.detection:ObjectDetection`.

    Raises:
        ObjectReferenceError: It is no reference, or there is no such module or attribute. What goes
            wrong inside a module that exists is raised as it is.
    """
    module_name, colon, path = reference.partition(":")
    if not (module_name and colon and path):
        raise ObjectReferenceError(
            f"expected a reference to be module:attribute, got {reference!r}"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; what it imports does not
        raise ObjectReferenceError(
            f"expected module {error.name!r} of reference {reference!r} to exist"
        ) from error
    try:
        return attrgetter(path)(module)
    except AttributeError as error:
        raise ObjectReferenceError(
            f"expected {error.name!r} of reference {reference!r} to be an attribute of {error.obj!r}"
        ) from error


def resolve(name: str, table: Mapping[str, str], kind: str) -> Any:
    """Load what a table lists under `name`, or what `name`, `module:attribute`, refers to itself.

    An ObjectReferenceError where it is neither says of what `kind` it should be, such as "a task".
    """
    if name in table:
        return load(table[name])
    if ":" in name:
        return load(name)
    raise ObjectReferenceError(
        f"expected {kind} to be one of {', '.join(table)} or module:attribute, got {name!r}"
    )
