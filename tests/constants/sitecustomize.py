"""Constants of modules as a test needs them, in each process of a server: `CONSTANTS='{"engine.http": {"NAME": 1}}'`.

Python imports this module by itself where its folder is in PYTHONPATH.
"""

import json
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Changing(Loader):
    def __init__(self, loader: Any, values: dict[str, Any]) -> None:
        self._loader = loader
        self._values = values

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for name, value in self._values.items():
            assert hasattr(module, name), f"{module.__name__} has no {name}"
            setattr(module, name, value)


class _Finder(MetaPathFinder):
    def __init__(self, constants: dict[str, dict[str, Any]]) -> None:
        self._constants = constants

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        values = self._constants.get(fullname.removeprefix("quadriga."))
        if values is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Changing(spec.loader, values)
        return spec


sys.meta_path.insert(0, _Finder(json.loads(os.environ["CONSTANTS"])))
