"""What `quadriga evaluate` was asked for, and what that means to the store."""

import json
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click


class Options(msgspec.Struct, frozen=True):
    """What was asked for on the command line."""

    task: str | None
    records: Path | None
    truth: Path | None
    predictions: Path | None
    images: Path | None
    model: str | None
    where: str
    compare: tuple[str, ...]
    slices: tuple[str, ...]
    by: tuple[str, ...]
    dataset: Path | None
    server: str | None
    split: str | None
    snapshot: str | None
    parameters: str
    threads: int
    on: str | None
    resamples: int
    seed: int
    as_json: bool
    output: Path | None
    data: str | None
    database: str | None


def evaluation_parameters(options: Options) -> dict[str, Any]:
    """Return what is asked of an evaluation of stored inferences, as its API takes it.

    Raises:
        click.BadParameter: A filter is no JSON, or a slice has no name.
    """
    slices = {}
    for text in options.slices:
        name, _, where = text.partition("=")
        if not name or not where:
            raise click.BadParameter(f"expected NAME=FILTER, got {text}", param_hint="--slice")
        slices[name] = filter_of(where, "--slice")
    model, version = name_and_version(options.model or "")
    others = [name_and_version(one) for one in options.compare]
    return {
        "model": model,
        "version": version,
        "where": filter_of(options.where, "--where") if options.where else None,
        "by": list(options.by),
        "slices": slices,
        "compare": [{"model": name, "version": version} for name, version in others],
        "resamples": options.resamples,
        "seed": options.seed,
    }


def filter_of(text: str, flag: str) -> Any:
    """Return a filter as a query takes it: JSON decoded, or the text of the compact form."""
    try:
        return json.loads(text) if text.lstrip().startswith("{") else text
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"expected JSON, got {text}: {error}", param_hint=flag) from error


def name_and_version(text: str) -> tuple[str, str | None]:
    """Take NAME@VERSION apart; without a version it is None."""
    name, _, version = text.partition("@")
    return name, version or None
