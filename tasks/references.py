"""Object references, `module:attribute`: how tables name objects without importing them.

Source: Python packaging, "Entry points specification", object references.
"""

import importlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Any


class ObjectReferenceError(ValueError):
    """An object reference does not lead to an object; the message says at which step."""


def load(reference: str) -> Any:
    """Import the object that a reference names, such as `quadriga.tasks.detection:ObjectDetection`.

    Raises:
        ObjectReferenceError: The text is no reference, or the module or attribute does not exist. Errors
            inside of an existing module are raised as they are.
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
            f"module not found: {error.name!r} of reference {reference!r}"
        ) from error
    try:
        return attrgetter(path)(module)
    except AttributeError as error:
        raise ObjectReferenceError(
            f"attribute not found: {error.name!r} of reference {reference!r} in {error.obj!r}"
        ) from error


def resolve(name: str, table: Mapping[str, str], kind: str) -> Any:
    """Load the object that a table lists under `name`, or that `name` refers to as `module:attribute`.

    `kind`, such as "a task", describes the object in the ObjectReferenceError for any other name.
    """
    if name in table:
        return load(table[name])
    if ":" in name:
        return load(name)
    raise ObjectReferenceError(
        f"expected {kind} to be one of {', '.join(table)} or module:attribute, got {name!r}"
    )
