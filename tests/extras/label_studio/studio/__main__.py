"""Connect the real Label Studio: `python -m tests.extras.label_studio.studio`, or `make label-studio`; over two minutes, most of them for its database.

Exported tasks are imported there, predictions are retrieved, corrections come back by the webhook, and the evaluation
changes by them. With Chromium, a picture of a pre-annotated task and of its correction is written.
"""

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from PIL import Image

from tests.browser import PATH as CHROMIUM
from tests.browser import Browser
from tests.extras.label_studio.studio.recorder import recording
from tests.extras.label_studio.studio.studio import PASSWORD, TOKEN, USER, LabelStudio
from tests.server_process import IMAGES, ROOT, ServerProcess, image_input

MODEL = "shapes-detector"
LABELS = ("circle", "square", "triangle", "star", "cross")
CONFIG = (
    '<View><Image name="image" value="$image"/><RectangleLabels name="box" toName="image">'
    + "".join(f'<Label value="{name}"/>' for name in LABELS)
    + "</RectangleLabels></View>"
)


class Check:
    """Both servers, and what is done with them."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder = folder
        self.studio = LabelStudio(program, folder / "studio")
        self.server = ServerProcess(folder / "quadriga")
        self.keys: dict[str, str] = {}
        self.host = ""
        """Host and port at which Label Studio asks for predictions."""

    def start(self) -> None:
        """Start both, with a key for each role."""
        self.studio.start()
        self.keys["admin"] = "quadriga-check." + "0123456789abcdef" * 3
        self.server.environment = {
            "QUADRIGA_ADMIN_KEY": self.keys["admin"],
            "QUADRIGA_EXTRAS_LABEL_STUDIO_URL": self.studio.url,
            "QUADRIGA_EXTRAS_LABEL_STUDIO_TOKEN": TOKEN,
        }
        self.server.start()
        both = self.quadriga("keys", "create", "--role", "infer", "--role", "read")
        self.keys["infer"] = both.split()[-1]
        self.keys["annotate"] = self.quadriga("keys", "create", "--role", "annotate").split()[-1]
        self.server.wait_until(lambda: self.ask("infer", "health") == 200)

    def quadriga(self, *words: str) -> str:
        """Run a command on the server's data folder."""
        command = [sys.executable, "-m", "quadriga.engine.cli", *words]
        done = subprocess.run(
            [*command, "--data", str(self.server.data)],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def ask(self, role: str, word: str) -> int:
        """Ask the backend as Label Studio does; return the status."""
        headers = {"X-API-Key": self.keys[role]}
        return self.server.request("GET", f"/label-studio/{MODEL}/{word}", None, headers)[0]

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Send JSON to Quadriga as an administrator."""
        headers = {"X-API-Key": self.keys["admin"], "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        status, _, answer = self.server.request(method, path, data, headers)
        assert status in (200, 202, 404), (path, status, answer[:1000])
        return json.loads(answer)

    def store_images(self) -> None:
        """Run the model over images, and state their truth for some."""
        for path in sorted((IMAGES / "detection").glob("scene_0*.jpg")):
            self.api("POST", f"/v2/models/{MODEL}/infer", _request(path.read_bytes()))

    def connect(self, project: int) -> int:
        """Connect the model and the webhook to a project, as its settings do; return the backend's id."""
        backend = self.studio.call("POST", "/api/ml/", {
            "project": project, "title": MODEL, "url": f"http://{self.host}/label-studio/{MODEL}",
            "auth_method": "BASIC_AUTH", "basic_auth_user": "quadriga", "basic_auth_pass": self.keys["infer"],
        })  # fmt: skip
        self.studio.call("POST", "/api/webhooks/", {
            "project": project, "url": f"http://{self.host}/label-studio/{MODEL}/webhook",
            "headers": {"X-API-Key": self.keys["annotate"]}, "send_payload": True, "send_for_all_actions": True,
        })  # fmt: skip
        return int(backend["id"])

    def new_project(self, title: str, config: str) -> int:
        """Make a project."""
        body = {"title": title, "label_config": config, "show_collab_predictions": True}
        return int(self.studio.call("POST", "/api/projects/", body)["id"])

    def retrieve(self, project: int) -> list[dict[str, Any]]:
        """Choose Retrieve predictions for all tasks; return the tasks with them."""
        everything = {"selectedItems": {"all": True, "excluded": []}}
        self.studio.call(
            "POST", f"/api/dm/actions?id=retrieve_tasks_predictions&project={project}", everything
        )
        listed = self.studio.call("GET", f"/api/tasks?project={project}&page_size=100&fields=all")
        tasks = [self.studio.call("GET", f"/api/tasks/{task['id']}") for task in listed["tasks"]]
        assert all(task["predictions"] for task in tasks), [t["predictions"] for t in tasks]
        return tasks

    def submit(self, task: dict[str, Any], results: list[dict[str, Any]]) -> int:
        """Submit an annotation, as the editor does; return its id."""
        body = {"result": results, "task": task["id"]}
        return int(self.studio.call("POST", f"/api/tasks/{task['id']}/annotations/", body)["id"])

    def truth(self, inference_id: str) -> Any:
        """Return the ground truth of an inference; None without any."""
        answer = self.api("GET", f"/api/inferences/{inference_id}/ground-truth")
        return answer if "annotations" in answer else None

    def wait_for_truth(self, inference_id: str, count: int | None) -> Any:
        """Wait until an inference has a truth of so many objects, or none."""

        def there() -> bool:
            truth = self.truth(inference_id)
            return (None if truth is None else len(truth["annotations"])) == count

        self.server.wait_until(there)
        return self.truth(inference_id)

    def average_precision(self) -> float:
        """Evaluate the model on what has ground truth; return its AP."""
        output = self.folder / f"report-{time.monotonic_ns()}.json"
        self.quadriga("evaluate", "--model", MODEL, "--output", str(output))
        metrics = json.loads(output.read_text())["metrics"]
        return next(float(m["value"]) for m in metrics if m["type"] == "AP")

    def close(self) -> None:
        """End both."""
        self.studio.close()
        if self.server.process is not None:
            self.server.kill()


def _request(image: bytes) -> dict[str, Any]:
    return {"inputs": [image_input(image)]}


def stored_tasks(check: Check, picture: Path | None) -> None:
    """Tasks of an export: stored predictions in Label Studio, corrections in the store, and an evaluation by them."""
    check.store_images()
    archive, images = check.folder / "tasks.zip", check.folder / "images.zip"
    where = json.dumps({"model": MODEL})
    link = "/data/local-files/?d=export/images/{file}"
    check.quadriga(
        "export", where, "--format", "label-studio", "--annotations", "predictions",
        "--image-url", link, "--output", str(archive),
    )  # fmt: skip
    check.quadriga("export", where, "--format", "cvat", "--output", str(images))
    with zipfile.ZipFile(images) as files:
        files.extractall(check.studio.files / "export")
    with zipfile.ZipFile(archive) as files:
        tasks = [{"data": task["data"]} for task in json.loads(files.read("tasks.json"))]
    project = check.new_project("Shapes", CONFIG)
    storage = {
        "project": project,
        "path": str(check.studio.files / "export"),
        "use_blob_urls": True,
    }
    check.studio.call("POST", "/api/storages/localfiles", storage)
    check.studio.call("POST", f"/api/projects/{project}/import", tasks)
    check.connect(project)
    loaded = check.retrieve(project)
    print(
        f"{len(loaded)} tasks of the store have predictions of {loaded[0]['predictions'][0]['model_version']}"
    )
    task = max(loaded, key=lambda item: len(item["predictions"][0]["result"]))
    pictures = [] if picture is None else [show(check.studio, project, task["id"])]

    submitted = {}
    for other in loaded:
        result = other["predictions"][0]["result"]
        submitted[other["id"]] = check.submit(other, result)
        check.wait_for_truth(other["data"]["inference_id"], len(result))
    agreed = check.average_precision()
    result = task["predictions"][0]["result"]
    truth = check.truth(task["data"]["inference_id"])
    print(f"{len(loaded)} annotations are ground truth, by {truth['source']!r}: AP {agreed:.3f}")

    corrected = [dict(region) for region in result[1:]]
    corrected[0]["value"] = {**corrected[0]["value"], "rectanglelabels": ["circle"]}
    number = submitted[task["id"]]
    check.studio.call("PATCH", f"/api/annotations/{number}/", {"result": corrected})
    check.wait_for_truth(task["data"]["inference_id"], len(corrected))
    changed = check.average_precision()
    assert changed < agreed, (changed, agreed)
    print(f"a correction of one object and the removal of another: AP {changed:.3f}")
    if picture is not None:
        pictures.append(show(check.studio, project, task["id"]))
        save(picture, pictures)

    check.studio.call("DELETE", f"/api/annotations/{number}/")
    check.wait_for_truth(task["data"]["inference_id"], None)
    print("a deleted annotation: its ground truth is withdrawn")


def uploaded_tasks(check: Check) -> None:
    """Tasks whose images were uploaded to Label Studio: they are fetched there, stored, and corrected in the store."""
    project = check.new_project("Uploads", CONFIG)
    image = next(iter(sorted((IMAGES / "detection").glob("scene_0*.jpg"))))
    check.studio.upload(f"/api/projects/{project}/import", image.name, image.read_bytes())
    check.connect(project)
    (task,) = check.retrieve(project)
    body = {"where": {"meta.label_studio": {"exists": True}}, "consistency": "journal"}
    (inference,) = check.api("POST", "/api/inferences/query", body)["inferences"]
    assert inference["metadata"]["label_studio"].endswith(f"/task {task['id']}")
    result = task["predictions"][0]["result"]
    check.submit(task, result)
    check.wait_for_truth(inference["id"], len(result))
    print(
        f"an uploaded image was fetched from {task['data']['image'].rpartition('/')[0]}, stored and corrected"
    )


def show(studio: LabelStudio, project: int, task: int) -> Image.Image:
    """Open a task in Chromium; return what is seen."""
    browser = Browser()
    try:
        browser.open(f"{studio.url}/user/login/", width=1500)
        browser.run(
            "document.querySelector('[name=email]').value = " + json.dumps(USER) + ";"
            "document.querySelector('[name=password]').value = " + json.dumps(PASSWORD) + ";"
            "document.querySelector('form').submit()"
        )
        browser.wait_for("!location.pathname.includes('login')")
        browser.open(f"{studio.url}/projects/{project}/data?task={task}", width=1500)
        browser.wait_for(
            "document.body.innerText.includes('View region details') && !!document.querySelector('canvas')",
            60,
        )
        time.sleep(3)  # the image is drawn
        return Image.open(io.BytesIO(browser.picture())).convert("RGB")
    finally:
        browser.close()


def save(path: Path, pictures: list[Image.Image]) -> None:
    """Write pictures below each other as a small JPEG."""
    width = 1000
    small = [
        p.resize((width, p.height * width // p.width), Image.Resampling.LANCZOS) for p in pictures
    ]
    whole = Image.new("RGB", (width, sum(p.height for p in small)))
    top = 0
    for one in small:
        whole.paste(one, (0, top))
        top += one.height
    whole.save(path, quality=80, optimize=True)
    print(f"{path}: {path.stat().st_size} bytes")


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.extras.label_studio.studio", description=__doc__
    )
    parser.add_argument("--program", type=Path, default=ROOT / ".label-studio/env/bin/label-studio")
    parser.add_argument("--picture", type=Path, help="JPEG of a task and its correction to write")
    parser.add_argument("--record", type=Path, help="folder for what Label Studio sends")
    options = parser.parse_args()
    if options.picture is not None and CHROMIUM is None:
        parser.error("--picture requires Chromium")
    with tempfile.TemporaryDirectory(prefix="quadriga-label-studio-") as folder:
        check = Check(Path(folder), options.program)
        begun_s = time.monotonic()
        try:
            check.start()
            print(f"both servers are up after {time.monotonic() - begun_s:.0f} s", flush=True)
            check.host = check.server.host
            with ExitStack() as stack:
                if options.record is not None:
                    check.host = stack.enter_context(recording(check.host, options.record))
                stored_tasks(check, options.picture)
                uploaded_tasks(check)
        except BaseException:
            for log in (check.studio.log_file, check.server.log):
                print(
                    log.read_text(errors="replace")[-4000:] if log.exists() else "", file=sys.stderr
                )
            raise
        finally:
            check.close()
    print(f"done after {time.monotonic() - begun_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
