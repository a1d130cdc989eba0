"""A store with images, truth, a key and the files beside its database."""

from quadriga.store.database.database import writer_engine
from quadriga.store.keys.access_keys import create_key
from quadriga.store.records.records import InferenceRecord, InputReference, TruthStatement
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

FIRST = 700_000_000_000
IMAGES = [f"image {number}".encode() * 50 for number in range(4)]


def with_image(store: StoreHarness, number: int, image: int) -> InferenceRecord:
    key = store.blobs.put(IMAGES[image])
    source = InputReference("image", key, 8, 8, "image/jpeg", kept=True)
    return make_record(FIRST + number, input=source, metadata={"number": number})


def filled(store: StoreHarness) -> None:
    """Store four inferences with three images, of which one has truth, and leave a fifth in the journal."""
    store.commit(*(with_image(store, number, number % 3) for number in range(4)))
    store.commit_changes(TruthStatement("id", str(FIRST + 1), [{"label": "ship"}], "mara"))
    with writer_engine(store.url) as engine:
        create_key(engine, name="a person", roles=["read"])
    for name, text in (("views/ships.json", "{}"), ("baselines/m/one.json", "[1]"), ("url.key", "secret")):  # fmt: skip
        path = store.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    store.journal.append([with_image(store, 9, 3)])
