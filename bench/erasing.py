"""Cost of erasing 1, 1,000 and 100,000 inferences of a store on SQLite, in the writer's process.

The store is made by the real writer: detections of 200 cameras, with five metadata keys, without images. Each erasure is
timed from the search for the ids to its receipt; beside the time of the wall stands the CPU time of this process, and the
longest step, for which the journal waits. The last column is an erasure that finds nothing: its fixed cost.

Flags: `--records 200000`; `--counts 1 1000 100000`.
"""

import argparse
import tempfile
import time
from pathlib import Path

from store_records import fill, records

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.changes.erasures import Erasures
from quadriga.store.inferences import InferenceReader
from quadriga.store.jobs import Jobs
from quadriga.store.maintenance.eraser import Eraser
from quadriga.store.writer import Writer


def main() -> None:
    """Print a line for each number of inferences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--counts", type=int, nargs="*", default=[1, 1000, 100_000, 0])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        url, directory, blobs = f"sqlite:///{root}/store.db", root / "journal", FileBlobs(root)
        erasures = Erasures(root / "erasures")
        eraser = Eraser(erasures, directory, blobs, Jobs(root / "jobs"))
        fill(directory, records(arguments.records))
        writer = Writer(directory, url, eraser=eraser)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        writer.drain()
        print(
            f"stored {arguments.records} in {time.perf_counter() - began_s:.1f} s,"
            f" CPU {time.process_time() - cpu_s:.1f} s,"
            f" {(root / 'store.db').stat().st_size / 1e6:.0f} MB"
        )
        reader = InferenceReader(url, directory, blobs)
        for count in arguments.counts:
            began_s, cpu_s, longest_s = time.perf_counter(), time.process_time(), 0.0
            ids: list[int] = []
            for batch in reader.matching_ids({"meta.altitude": {"ge": 0}}):
                ids += batch
                if len(ids) >= count:
                    break
            erasures.submit(ids[:count], [], [])
            is_pending = True
            while is_pending:
                step_s = time.perf_counter()
                is_pending = writer.erase()
                longest_s = max(longest_s, time.perf_counter() - step_s)
            print(
                f"erased {count}: {time.perf_counter() - began_s:.2f} s,"
                f" CPU {time.process_time() - cpu_s:.2f} s, longest step {longest_s:.2f} s"
            )
        writer.close()
        reader.close()


if __name__ == "__main__":
    main()
