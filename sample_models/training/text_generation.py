"""Answers of an exported image-text model through onnxruntime alone: greedy, with the cache."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from sample_models.training.measurement import Figures, open_session
from sample_models.training.preprocessing import shrink_smoothly, to_tensor
from sample_models.training.scenes import Image

PAD, BOS, EOS, SEPARATOR, IMAGE = "<pad>", "<bos>", "<eos>", "<sep>", "<image>"
PROMPT_TEMPLATE = f"{IMAGE}{BOS}{{prompt}}{SEPARATOR}"
"""The image token stands for all vectors of the image; the answer follows, and ends with EOS."""
SIZE_WH = (64, 64)
MEAN = STD = 0.5


def to_pixel_values(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Turn uint8 (B, H, W, 3), 0..255, into float32 (B, 3, H, W), -1..1."""
    return (to_tensor(images) - np.float32(MEAN)) / np.float32(STD)


class Answerer:
    """The files of a model folder, ready to answer.

    Args:
        folder: with the three ONNX files, tokenizer.json and the configurations.
    """

    def __init__(self, folder: Path) -> None:
        self._vision = open_session(folder / "vision_encoder.onnx")
        self._embed = open_session(folder / "embed_tokens.onnx")
        self._decoder = open_session(folder / "decoder_model_merged.onnx")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._config = json.loads((folder / "config.json").read_text())
        self._generation = json.loads((folder / "generation_config.json").read_text())

    def look(self, image: Image) -> npt.NDArray[np.float32]:
        """Return the vectors of uint8 (H, W, 3) RGB: float32 (1, 64, hidden)."""
        pixels = to_pixel_values(shrink_smoothly(image, SIZE_WH)[None])
        return np.asarray(self._vision.run(None, {"pixel_values": pixels})[0], dtype=np.float32)

    def answer(self, seen: npt.NDArray[np.float32], prompt: str) -> str:
        """Answer a question about an image seen with `look`."""
        text = PROMPT_TEMPLATE.format(prompt=prompt)
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        place = ids.index(self._config["image_token_id"])
        words = self._embedding(ids)
        vectors = np.concatenate([words[:, :place], seen, words[:, place + 1 :]], axis=1)
        cache = self._empty_cache()
        tokens: list[int] = []
        past = 0
        while len(tokens) < self._generation["max_new_tokens"]:
            total = past + vectors.shape[1]
            feeds = {
                "inputs_embeds": vectors,
                "attention_mask": np.ones((1, total), dtype=np.int64),
                "position_ids": np.arange(past, total, dtype=np.int64)[None],
                **cache,
            }
            logits, *present = self._decoder.run(None, feeds)
            token = int(np.asarray(logits)[0, -1].argmax())
            if token == self._generation["eos_token_id"]:
                break
            tokens.append(token)
            cache = dict(zip(cache, present, strict=True))
            past, vectors = total, self._embedding([token])
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def _embedding(self, ids: list[int]) -> npt.NDArray[np.float32]:
        feeds = {"input_ids": np.array([ids], dtype=np.int64)}
        return np.asarray(self._embed.run(None, feeds)[0], dtype=np.float32)

    def _empty_cache(self) -> dict[str, npt.NDArray[np.float32]]:
        shape = (1, self._config["num_key_value_heads"], 0, self._config["head_dim"])
        return {
            f"past_key_values.{layer}.{kind}": np.zeros(shape, dtype=np.float32)
            for layer in range(self._config["num_hidden_layers"])
            for kind in ("key", "value")
        }


def measure_answers(
    folder: Path,
    samples: Iterable[tuple[Image, dict[str, str]]],
    wordings: Mapping[str, tuple[str, ...]],
) -> Figures:
    """Measure how many answers equal the truth, letter for letter.

    Args:
        folder: the model's.
        samples: RGB image, and the true answer to each kind of question.
        wordings: of each kind of question; they take turns from image to image.

    Returns:
        `samples`, `exact_match` of each kind, and of each wording.
    """
    answerer = Answerer(folder)
    question_counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    count = 0
    for image, truth in samples:
        seen = answerer.look(image)
        for kind, expected in truth.items():
            wording = wordings[kind][count % len(wordings[kind])]
            hit = answerer.answer(seen, wording) == expected
            for name in {kind, wording}:
                question_counts[name] += 1
                right[name] += hit
        count += 1
    share = {name: round(right[name] / question_counts[name], 4) for name in question_counts}
    return {
        "samples": count,
        "exact_match": {kind: share[kind] for kind in wordings},
        "exact_match_by_wording": {
            phrase: share[phrase]
            for every in wordings.values()
            for phrase in every
            if phrase in share
        },
    }
