"""What `quadriga drift` was asked for, and what that means to the store."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.commands.options import filter_of, name_and_version


class Options(msgspec.Struct, frozen=True):
    """What was asked for on the command line."""

    baseline: str | None
    current: Path | None
    model: str | None
    start: str | None
    end: str | None
    where: str
    baseline_start: str | None
    baseline_end: str | None
    by: tuple[str, ...]
    server: str | None
    on: str | None
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    embedding: tuple[str, ...]
    ignore: tuple[str, ...]
    source_key: str | None
    time: str | None
    alpha: float
    windows: int
    kernel: Literal["energy", "mmd"]
    seed: int
    as_json: bool
    output: Path | None
    data: str | None
    database: str | None
    fail_on_drift: bool


def drift_parameters(options: Options) -> dict[str, Any]:
    """Return what is asked of a drift report of stored inferences, as its API takes it.

    Raises:
        click.BadParameter: The filter is no JSON.
    """
    model, version = name_and_version(options.model or "")
    where = filter_of(options.where, "--where") if options.where else None
    asked: dict[str, Any] = {
        "model": model,
        "version": version,
        "where": where,
        "from": options.start,
        "to": options.end,
        "ignore": list(options.ignore),
        "by": list(options.by),
        "alpha": options.alpha,
        "windows": options.windows,
        "kernel": options.kernel,
        "seed": options.seed,
    }
    if options.source_key is not None:
        asked["source_keys"] = [options.source_key]
    if options.baseline_start is not None or options.baseline_end is not None:
        window = {"from": options.baseline_start, "to": options.baseline_end}
        asked["baseline"] = {**window, "version": version, "where": where}
    elif options.baseline is not None:
        asked["baseline"] = options.baseline
    return asked
