"""The examples of docs/query.md find what the page says, in both forms, on both databases."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import msgspec

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.query.filters.forms import parse
from quadriga.store.query.filters.syntax import leaves
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest, decode_query, query_from_url
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.records import InputReference, ModelReference
from tests.unit.store_harness import store_entries

PAGE = (Path(__file__).parents[3] / "docs" / "query.md").read_text()
RECORDS, _FACETS, CHARIOT = (
    msgspec.json.decode(block)
    for block in re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
)
EXAMPLES = [
    tuple(cell.strip(" `").replace("\0", "|") for cell in row[1:-1].split(" | "))
    for row in PAGE.partition("<!-- examples")[2]
    .partition("\n## ")[0]
    .replace("\\|", "\0")
    .split("\n")
    if row.startswith("| `")
]


def stored(record: Any, fields: dict[str, Any]) -> Any:
    fields = dict(fields)
    at = datetime.fromisoformat(fields.pop("created_at"))
    del fields["id"]
    model = fields.pop("model")
    task = "IMAGE_TEXT_TO_TEXT" if model == "shapes-image-text" else "OBJECT_DETECTION"
    return record(
        smallest_id_at(round(at.timestamp() * 1000)),
        **fields,
        model=ModelReference(model, "1", ""),
        task=task,
        request_id="first",
        input=InputReference("image", None, 640, 480),
    )


def test_the_examples_find_what_the_page_says(database_url: str, tmp_path: Path, record) -> None:
    records = [stored(record, fields) for fields in RECORDS]
    names = {str(one.seq): fields["id"] for one, fields in zip(records, RECORDS, strict=True)}
    store_entries(database_url, tmp_path / "journal", records)
    inferences = InferenceReader(database_url, tmp_path / "journal", FileBlobs(tmp_path / "blobs"))

    def found(request: QueryRequest) -> str:
        return " ".join(names[inference.id] for inference in inferences.query(request).inferences)

    assert len(EXAMPLES) > 30
    for text, as_json, expected in EXAMPLES:
        where = msgspec.json.decode(as_json)
        assert set(leaves(parse(text, 10**15))) == set(leaves(parse(where, 10**15))), text
        for request in (
            QueryRequest(text),
            QueryRequest(where),
            query_from_url(f"q={quote_plus(text)}"),
        ):
            assert found(request) == expected, text
    assert found(decode_query(msgspec.json.encode(CHARIOT))) == "a"
    inferences.close()
