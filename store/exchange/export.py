"""Takes inferences out of the store: as JSON lines, Parquet, or a dataset in the form of a tool.

What is written is what was stored when the export began, oldest first, a page at a time; the file appears
whole or not at all.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import msgspec

from quadriga.store.blobs.interface import Blobs
from quadriga.store.exchange.archives import Archive, image_name, stored_image
from quadriga.store.exchange.dataset_options import (
    ExportParameters,
    Format,
    Splits,
    check_link,
)
from quadriga.store.exchange.datasets import Pages
from quadriga.store.exchange.tool_datasets import ToolFormat, write_dataset
from quadriga.store.jobs.runner import JobRun
from quadriga.store.query.filters.forms import parse
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest, decode_body
from quadriga.store.records.errors import (
    PYARROW_MISSING,
    NotReadyError,
    QueryError,
    QueryTimeoutError,
)
from quadriga.store.records.records import StoredInference

PAGE_SIZE = 1000
OnProgress = Callable[[int, int | None], None]
"""Is told at every step how many inferences are done, and of how many; may raise to end the work."""


_TABLES = {"jsonl", "parquet"}
TOOL_FORMATS = frozenset(get_args(Format)) - _TABLES - {"chariot", "coco"}
"""Formats of other tools, see `ToolFormat`."""
NUMBERED_FORMATS = frozenset({"coco", "yolo", "yolo-obb", "yolo-seg"})
"""Formats that name classes by numbers."""


def decode_parameters(body: bytes) -> ExportParameters:
    """Read the parameters of an export; a QueryError where they mean nothing, or need an extra."""
    parameters = decode_body(body, ExportParameters)
    check_parameters(parameters)
    return parameters


def check_parameters(parameters: ExportParameters) -> None:
    """See that this can be found and written."""
    parse(parameters.where, 0)
    Splits(parameters.split, parameters.split_by)
    check_link(parameters.image_url)
    if parameters.format in _TABLES and (parameters.split or parameters.image_url):
        raise QueryError(
            f"expected split and image_url with a dataset format, got {parameters.format}"
        )
    if parameters.format == "imagefolder" and parameters.images is False:
        raise QueryError("imagefolder is made of images: expected images to be true, got false")
    if parameters.upright and parameters.format not in TOOL_FORMATS:
        expected = ", ".join(sorted(TOOL_FORMATS))
        raise QueryError(f"expected upright with {expected}, got {parameters.format}")
    if parameters.labels and parameters.format not in NUMBERED_FORMATS:
        expected = ", ".join(sorted(NUMBERED_FORMATS))
        raise QueryError(f"expected labels with {expected}, got {parameters.format}")
    if parameters.format == "parquet" and find_spec("pyarrow") is None:
        raise QueryError(PYARROW_MISSING)


def result_name(parameters: ExportParameters) -> str:
    """Return the name of the file that an export makes."""
    name = parameters.format
    if name == "parquet" or (name == "jsonl" and not _with_images(parameters)):
        return f"inferences.{name}"
    return f"{name}.zip"


def _with_images(parameters: ExportParameters) -> bool:
    if parameters.images is None:
        return parameters.format not in _TABLES and not parameters.image_url
    return parameters.images


def run_export(run: JobRun, formats: Mapping[str, ToolFormat] = {}) -> str:
    """Write the export that a job asks for into its folder; `formats` as of `export`."""
    parameters = msgspec.convert(run.job.parameters, ExportParameters)
    name = result_name(parameters)
    target = run.directory / name
    result = export(
        run.inferences, run.blobs, parameters, target, tell=run.report_progress, formats=formats
    )
    run.log(f"{result.written} inferences written to {name}")
    for line in result.lines():
        run.log(line)
    return name


class Exported(msgspec.Struct, frozen=True):
    """Result of an export."""

    inferences: int
    """Number of inferences that matched."""
    left_out: dict[str, int] = {}
    """Number of those that a format cannot hold, by reason."""
    annotated: dict[str, int] = {}
    """Number of images of a dataset by what annotates them: `ground_truth` or `predictions`; empty for tables."""

    @property
    def written(self) -> int:
        """Number of inferences in the file."""
        return self.inferences - sum(self.left_out.values())

    def lines(self) -> list[str]:
        """Return a line on whose annotations a dataset has, and one for each reason why something was left out."""
        truths, predictions = (
            self.annotated.get(source, 0) for source in ("ground_truth", "predictions")
        )
        whose = f"annotated by ground truth: {truths}, by predictions: {predictions}"
        left_out = [f"{count} left out: {reason}" for reason, count in self.left_out.items()]
        return [whose, *left_out] if self.annotated else left_out


def export(
    inferences: InferenceReader,
    blobs: Blobs,
    parameters: ExportParameters,
    target: Path,
    tell: OnProgress = lambda *_: None,
    *,
    ids: Sequence[str] | None = None,
    formats: Mapping[str, ToolFormat] = {},
) -> Exported:
    """Write what matches to a file, or to it anew, and return how many inferences that was.

    Args:
        inferences: The stored inferences.
        blobs: Their images.
        parameters: What to write, and how.
        target: The file.
        tell: See `OnProgress`.
        ids: Ids of the inferences to write, those of them that are still there, in this order; then no filter is read.
        formats: Formats of other tools beside YOLO, by name.

    Raises:
        QueryError: The format is of a tool, and not among `formats`.
    """
    tell(0, None)
    if ids is None:
        newest = {"id": {"le": str(inferences.latest_seq())}}  # what comes meanwhile is left out
        where = {"and": [parameters.where, newest]} if parameters.where else newest
        total, source = _total(inferences, where), _found(inferences, where)
    else:
        total, source = len(ids), _by_id(inferences, ids)
    done = 0

    def pages() -> Iterator[Sequence[StoredInference]]:
        """Yield pages; goes on once one is written."""
        nonlocal done
        for page in source:
            yield page
            done += len(page)
            tell(done, total)

    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
        temporary = Path(folder) / target.name
        images = blobs if _with_images(parameters) else None
        annotated, left_out = _write(pages(), parameters, temporary, images, formats=formats)
        temporary.replace(target)
    return Exported(done, left_out, annotated)


def _found(inferences: InferenceReader, where: Any) -> Iterator[Sequence[StoredInference]]:
    for page in inferences.pages(QueryRequest(where=where, order="ts", limit=PAGE_SIZE)):
        yield page.inferences


def _by_id(inferences: InferenceReader, ids: Sequence[str]) -> Iterator[Sequence[StoredInference]]:
    for start in range(0, len(ids), PAGE_SIZE):
        part = ids[start : start + PAGE_SIZE]
        records = inferences.by_id(part)
        yield [records[id_] for id_ in part if id_ in records]


def _total(inferences: InferenceReader, where: Any) -> int | None:
    with suppress(QueryError, QueryTimeoutError, NotReadyError):  # it is worth no long wait
        request = QueryRequest(where=where, limit=1, count="exact", consistency="journal")
        return inferences.query(request).count
    return None


def _write(
    pages: Pages,
    parameters: ExportParameters,
    target: Path,
    images: Blobs | None,
    *,
    formats: Mapping[str, ToolFormat],
) -> tuple[dict[str, int], dict[str, int]]:
    """Write a file.

    Returns:
        Number of images by what annotates them, and of inferences that were left out, by reason.
    """
    match parameters.format:
        case "jsonl":
            _write_lines(pages, target, images)
        case "parquet":
            from quadriga.store.exchange.arrow_tables import write_parquet  # noqa: PLC0415 - an extra

            write_parquet(pages, target, images)
        case _:
            return write_dataset(parameters, pages, target, images, formats=formats)
    return {}, {}


def _write_lines(pages: Pages, target: Path, images: Blobs | None) -> None:
    """Write one inference a line, as the API answers it; with images, a zip of that and `images/`."""
    encode = msgspec.json.Encoder().encode_lines
    if images is None:
        with target.open("wb") as file:
            file.writelines(map(encode, pages))
        return
    with Archive(target) as archive:
        text = archive.add_text_file("inferences.jsonl")
        for page in pages:
            text.write(encode(page))
            for record in page:
                if (data := stored_image(record, images)) is not None:
                    archive.write_image(f"images/{image_name(record)}", data)
