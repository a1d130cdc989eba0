"""Where models are found: folders, versions below them, archives and single files."""

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

from quadriga.engine.models.image_text.generation import describe_text_package
from quadriga.engine.models.model import ONNX_NAMES, ONNX_SUBFOLDER, model_folder
from quadriga.engine.models.model_archives import archive_name
from quadriga.engine.models.recognition.mlflow_folder import MLMODEL, mlflow_graph, mlflow_problem
from quadriga.engine.models.runners.session import LoadError

NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

FindModels = Callable[[], Mapping[str, Mapping[str, Path]]]
"""Returns the versions of all models by name, each with its path, the highest first."""

_log = logging.getLogger("quadriga.models")


def find_model(folder: Path) -> Path | None:
    """Find the model of a folder.

    It is model.onnx, a package of several, `onnx/model.onnx`, another precision such as model_quantized.onnx at one
    of these places, the graph that MLflow names, or the only ONNX file.
    """
    if (folder / "model.onnx").is_file():
        return folder / "model.onnx"
    if describe_text_package(folder) is not None:
        return folder
    for name, place in product(ONNX_NAMES, (folder, folder / ONNX_SUBFOLDER)):
        if (place / name).is_file():
            return place / name
    if (graph := mlflow_graph(folder)) is not None:
        return graph
    files = sorted(folder.glob("*.onnx"))
    return files[0] if len(files) == 1 else None


def find_models(
    root: Path, report: Callable[..., object] = _log.error, *, name: str = ""
) -> dict[str, dict[str, Path]]:
    """Find the models of a folder by name, and the versions of each, highest first.

    Args:
        root: The folder or file.
        report: Called with what is ignored.
        name: Name of the model if there is only one; empty for that of its folder.

    Raises:
        LoadError: There is no such folder.
    """
    models = _find_models(root, report)
    if not name or list(models) == [name]:
        return models
    if len(models) > 1:
        report("the name %r is ignored: it is for one model, got %s", name, ", ".join(models))
        return models
    return dict(zip([name], models.values(), strict=False))  # none, where there is no model


def _find_models(root: Path, report: Callable[..., object]) -> dict[str, dict[str, Path]]:
    if root.is_file():
        path = root.resolve()
        if root.stem == "model" and (named := _numbered(model_folder(path))) is not None:
            return {named[0]: {named[1]: root}}
        name = model_folder(path).name if root.stem == "model" else root.stem
        return {archive_name(root) or name: {"1": root}}
    if not root.is_dir():
        raise LoadError(f"model folder not found: {root}")
    root = _resolved(root)
    root_versions = find_versions(root)
    if _is_model_itself(root, root_versions):
        return _named(root, root_versions)  # other folders beside it do not matter
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    by_folder = {folder: _readable_versions(folder, report) for folder in folders}
    archives = [path for path in sorted(root.iterdir()) if archive_name(path) and path.is_file()]
    has_models = any(paths and not folder.name.isdecimal() for folder, paths in by_folder.items())
    if root_versions and not has_models and not archives:
        return _named(root, root_versions)  # a stray file beside model folders does not hide them
    if not root_versions:
        _report_mlflow(root, report)
    for file in sorted(root.glob("*.onnx")):
        location = f"{file.stem}/{file.name}"
        report("%r is ignored: it needs a folder of its own, as %s", file.name, location)
    for folder in (folder for folder, paths in by_folder.items() if not paths):
        with suppress(PermissionError):
            if any(folder.glob("*.onnx")):
                report("%r is ignored: expected model.onnx or one ONNX file", folder.name)
            else:
                _report_mlflow(folder, report)
    candidates = [(folder.name, folder.name, paths) for folder, paths in by_folder.items() if paths]
    candidates += [(archive_name(path) or "", path.name, {"1": path}) for path in archives]
    return _without_duplicates(candidates, report)


def _resolved(root: Path) -> Path:
    """Return a folder without links, unless these lead into the files of another container, as those of `/proc` do."""
    resolved = root.resolve()
    return resolved if resolved.is_dir() and resolved.samefile(root) else root.absolute()


def _readable_versions(folder: Path, report: Callable[..., object]) -> dict[str, Path]:
    """Find the versions of a folder; none if only others may read it, such as `lost+found` of a volume."""
    try:
        return find_versions(folder)
    except PermissionError:
        report("%r is ignored: this user may not read it", folder.name)
        return {}


def _named(root: Path, versions: dict[str, Path]) -> dict[str, dict[str, Path]]:
    """Return the versions of a folder by the name of the model, which is that of the folder above if it is a version."""
    named = _numbered(root) if list(versions) == ["1"] else None
    return {root.name: versions} if named is None else {named[0]: {named[1]: versions["1"]}}


def _numbered(folder: Path) -> tuple[str, str] | None:
    """Return the model and the version that a folder such as `gauge/2` is; None for one of any other kind.

    It is a version only where the folder above has nothing but versions, as in one of models `2` may be a model's name.
    """
    number, above = folder.name, folder.parent
    if not (number.isascii() and number.isdecimal() and NAME.fullmatch(above.name)):
        return None
    try:
        path = find_versions(above).get(number)
        if path is None or not path.is_relative_to(folder):
            return None
        others = (sub for sub in above.iterdir() if sub.is_dir() and not sub.name.isdecimal())
        is_of_models = any(find_versions(sub) for sub in others if sub.name != ONNX_SUBFOLDER)
    except OSError:  # only the folder itself can be read
        return None
    return None if is_of_models else (above.name, number)


def _is_model_itself(root: Path, versions: Mapping[str, Path]) -> bool:
    """Check whether a folder is that of a model, by the names of its files, and not one of models."""
    if versions and (root / MLMODEL).is_file():
        return True
    places = (root, root / ONNX_SUBFOLDER)
    own = {root, *(place / name for place, name in product(places, ONNX_NAMES))}
    return not own.isdisjoint(versions.values())


def _report_mlflow(folder: Path, report: Callable[..., object]) -> None:
    """Report why a folder of MLflow has no model, if it is one."""
    if problem := mlflow_problem(folder):
        report("%r is ignored: %s", folder.name, problem)


def _without_duplicates(
    candidates: Sequence[tuple[str, str, dict[str, Path]]], report: Callable[..., object]
) -> dict[str, dict[str, Path]]:
    """Return the versions of models by name, given with their folder or file; those of equal names are left out."""
    models = {}
    files_by_name: dict[str, list[str]] = defaultdict(list)
    for name, file, _ in candidates:
        files_by_name[name.lower()].append(file)
    for name, file, paths in candidates:
        others = [other for other in files_by_name[name.lower()] if other != file]
        if not NAME.fullmatch(name):
            report("%r is ignored: expected a name of %s", file, NAME.pattern)
        elif not others:
            models[name] = paths
        elif archive_name(Path(file)) is None and archive_name(Path(others[0])) is None:
            report("%r is ignored: another folder differs from it in letter case alone", file)
        else:
            report("%r is ignored: %r has the same name", file, others[0])
    return models


def find_versions(folder: Path) -> dict[str, Path]:
    """Find the versions of a model's folder, highest first.

    A model in the folder itself is version 1; numbered folders beside it hold later versions.
    """
    own = find_model(folder)
    below = (sub for sub in folder.iterdir() if sub.name.isascii() and sub.name.isdecimal())
    numbered = sorted(filter(Path.is_dir, below), key=lambda sub: int(sub.name), reverse=True)
    models = {sub.name: find_model(sub) for sub in numbered if own is None or int(sub.name) > 1}
    versions = {version: path for version, path in models.items() if path is not None}
    return versions if own is None else {**versions, "1": own}
