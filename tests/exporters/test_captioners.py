"""Real exports answer as transformers' `generate` does, whichever of their graphs are there.

Run with `EXPORTER_PYTHON=/path/to/python pytest -m exporter`, where that Python has torch 2.13,
transformers 4.57, optimum-onnx 0.1 and pillow; it takes a minute.
"""

import json
import shutil

import pytest

from quadriga.engine.models.image_text.generation import TextPackage
from quadriga.tasks.image import decode

LAYOUTS = {
    "merged": ["decoder_model_merged"],
    "two": ["decoder_model", "decoder_with_past_model"],
    "plain": ["decoder_model"],
}

pytestmark = [pytest.mark.exporter, pytest.mark.timeout(600)]
EXPORTER = "export_captioner.py"


@pytest.mark.parametrize("decoder", ["gpt2", "trocr"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_are_those_of_generate(exports, tmp_path, decoder, layout):
    folder = shutil.copytree(exports / decoder, tmp_path / decoder)
    for path in folder.glob("decoder*.onnx"):
        if path.stem not in LAYOUTS[layout]:
            path.unlink()
    package = TextPackage(folder)
    cases = json.loads((folder / "expected.json").read_text())
    groups = {}
    for case in cases:
        groups.setdefault((case["image"], json.dumps(case["settings"])), []).append(case)
    different = []
    for (name, settings), group in groups.items():
        image = decode((folder / name).read_bytes())
        parameters = json.loads(settings)
        rules = {
            key: parameters.pop(key)
            for key in ("repetition_penalty", "no_repeat_ngram_size")
            if key in parameters
        }
        if rules:  # a request cannot ask for these; the files can
            written = json.loads((exports / decoder / "generation_config.json").read_text())
            (folder / "generation_config.json").write_text(json.dumps({**written, **rules}))
            text_package = TextPackage(folder)
        else:
            text_package = package
        options = text_package.read_options(
            {"prompts": [case["prompt"] for case in group], **parameters}
        )
        ((answers, _),) = text_package.predict([image], [options])
        for case, answer in zip(group, answers, strict=True):
            expected_answer = " ".join(
                word for word in case["answer"].split() if not word.startswith("<")
            )
            if answer.answer != expected_answer:
                different.append((name, settings, case["prompt"], answer.answer, expected_answer))
    assert different == []
    assert len(cases) == 40
