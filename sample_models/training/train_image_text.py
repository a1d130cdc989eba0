"""Train the image-text model on shapes, export it and measure the exported files.

Run from the repository root: `python -m sample_models.training.train_image_text`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from sample_models.training.image_text_export import (
    export_image_text,
    token_id,
    train_tokenizer,
    write_sidecars,
)
from sample_models.training.language_networks import (
    GRID,
    HIDDEN,
    Decoder,
    DenseHead,
    VisionEncoder,
    empty_cache,
)
from sample_models.training.preprocessing import shrink_smoothly
from sample_models.training.questions import QUESTIONS, answer, draw_clear_scene, every_phrase
from sample_models.training.scenes import (
    COLOURS,
    SHAPES,
    Image,
    Scene,
    Stream,
    draw_class_map,
    scene_rng,
)
from sample_models.training.text_generation import (
    BOS,
    EOS,
    PAD,
    SEPARATOR,
    SIZE_WH,
    measure_answers,
    to_pixel_values,
)
from sample_models.training.training_run import TrainingRun

TRAINING_SCENES = 6000
EVALUATION_SCENES = 500
BATCH = 24
ENCODER_ALONE = 0.25
"""Share of the steps in which the encoder learns to see before anything is asked."""

_NOT_SCORED = -100
_CLASSES = {"shape": ("none", *SHAPES), "colour": ("none", *COLOURS)}


@dataclass(frozen=True)
class TrainingSet:
    """All training scenes in network form.

    Attributes:
        images: float32 (N, 3, 64, 64), -1..1.
        maps: int64 (N, 2, 2 GRID, 2 GRID), indices of shape and of colour.
        tokens: int64 (N, K, W, T) of each question in each wording: prompt, answer, padding.
        targets: int64 as `tokens`, the token to be predicted at each place, or -100.
    """

    images: Tensor
    maps: Tensor
    tokens: Tensor
    targets: Tensor


class Learner(nn.Module):
    """All that is trained together; the head is not exported."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.encoder = VisionEncoder()
        self.embed = nn.Embedding(tokens, HIDDEN)
        self.decoder = Decoder(tokens)
        self.dense = DenseHead(tuple(len(names) for names in _CLASSES.values()))


def main() -> None:
    """Train, export, measure and write the package."""
    run = TrainingRun(__doc__, "shapes-image-text", seed=81, steps=2300)
    tokenizer = train_tokenizer(every_phrase())
    scenes = collect(draw_scenes(run.seed, Stream.TRAINING, TRAINING_SCENES), tokenizer)
    learner = Learner(tokenizer.get_vocab_size())
    steps = iter(range(run.steps))
    alone = round(run.steps * ENCODER_ALONE)
    run.optimise(
        learner,
        BATCH,
        len(scenes.images),
        lambda: batch_loss(learner, scenes, read=next(steps) >= alone),
    )
    write_sidecars(run.output, tokenizer)
    exported = (learner.encoder, learner.embed, learner.decoder)
    difference = export_image_text(*exported, run.output)
    unseen = (
        (scene.image, {kind: answer(kind, scene) for kind in QUESTIONS})
        for scene in draw_scenes(run.seed, Stream.EVALUATION, EVALUATION_SCENES)
    )
    onnx_bytes = {path.name: path.stat().st_size for path in sorted(run.output.glob("*.onnx"))}
    measured = measure_answers(run.output, unseen, QUESTIONS)
    run.write_figures(exported, onnx_bytes, difference, measured)


def draw_scenes(seed: int, stream: Stream, count: int) -> Iterator[Scene]:
    """Draw scenes of varied size, each with one shape that is clearly the largest."""
    for index in range(count):
        yield draw_clear_scene(scene_rng(seed, stream, index))


def collect(scenes: Iterator[Scene], tokenizer: Tokenizer) -> TrainingSet:
    """Shrink all scenes, and encode all questions with their answers."""
    images: list[Image] = []
    maps, dialogues = [], []
    for scene in scenes:
        images.append(shrink_smoothly(scene.image, SIZE_WH))
        maps.append(
            [
                draw_class_map(scene, _CLASSES["shape"], (2 * GRID, 2 * GRID), "shape"),
                draw_class_map(scene, _CLASSES["colour"], (2 * GRID, 2 * GRID), "colour"),
            ]
        )
        dialogues.append(
            [
                [encode(tokenizer, wording, answer(kind, scene)) for wording in wordings]
                for kind, wordings in QUESTIONS.items()
            ]
        )
    every = [phrase for kinds in dialogues for wordings in kinds for phrase in wordings]
    longest = max(len(tokens) for tokens, _ in every)
    pad = token_id(tokenizer, PAD)
    tokens = [phrase + [pad] * (longest - len(phrase)) for phrase, _ in every]
    targets = [phrase + [_NOT_SCORED] * (longest - len(phrase)) for _, phrase in every]
    shape = (len(images), len(QUESTIONS), -1, longest)
    return TrainingSet(
        torch.from_numpy(to_pixel_values(np.stack(images))),
        torch.from_numpy(np.array(maps)).long(),
        torch.tensor(tokens).reshape(shape),
        torch.tensor(targets).reshape(shape),
    )


def encode(tokenizer: Tokenizer, question: str, truth: str) -> tuple[list[int], list[int]]:
    """Return the tokens after the image, and the token to be predicted at each of them."""
    prompt: list[int] = tokenizer.encode(f"{BOS}{question}{SEPARATOR}").ids
    answer_tokens: list[int] = tokenizer.encode(truth).ids
    end = token_id(tokenizer, EOS)
    return prompt + answer_tokens, [_NOT_SCORED] * (len(prompt) - 1) + answer_tokens + [end]


def batch_loss(learner: Learner, scenes: TrainingSet, *, read: bool) -> Tensor:
    """Compute the loss of a random batch, each scene mirrored or not along x, y and a diagonal.

    Args:
        learner: the networks.
        scenes: to choose from.
        read: ask each question in one wording too; else the encoder learns alone.
    """
    chosen = torch.randint(len(scenes.images), (BATCH,))
    images, maps = scenes.images[chosen], scenes.maps[chosen]
    for axis in (2, 3):
        flipped = torch.rand(BATCH) < 0.5
        images[flipped] = images[flipped].flip(axis)
        maps[flipped] = maps[flipped].flip(axis)
    swapped = torch.rand(BATCH) < 0.5
    images[swapped] = images[swapped].transpose(2, 3)
    maps[swapped] = maps[swapped].transpose(2, 3)
    features = learner.encoder(images)
    seen = [
        nn.functional.cross_entropy(logits, maps[:, index])
        for index, logits in enumerate(learner.dense(features))
    ]
    dense: Tensor = sum(seen[1:], seen[0])
    if not read:
        return dense
    kinds, wordings = scenes.tokens.shape[1:3]
    wording = torch.randint(wordings, (BATCH, kinds))
    rows = (chosen[:, None], torch.arange(kinds)[None], wording)
    tokens, targets = scenes.tokens[rows].flatten(0, 1), scenes.targets[rows].flatten(0, 1)
    logits = predict(learner, features, tokens)
    answer_loss = nn.functional.cross_entropy(
        logits.transpose(1, 2), targets, ignore_index=_NOT_SCORED
    )
    return answer_loss + 0.5 * dense


def predict(learner: Learner, features: Tensor, tokens: Tensor) -> Tensor:
    """Predict the texts (B * K, T) on images (B, 64, HIDDEN), each image read once for its K."""
    batch, places = features.shape[:2]
    texts, length = len(tokens) // batch, tokens.shape[1]
    mask = torch.ones(batch, places + length, dtype=torch.int64)
    positions = torch.arange(places + length).expand(batch, -1)
    _, *cache = learner.decoder(
        features, mask[:, :places], positions[:, :places], *empty_cache(batch)
    )
    logits, *_ = learner.decoder(
        learner.embed(tokens),
        mask.repeat_interleave(texts, dim=0),
        positions[:, places:].repeat_interleave(texts, dim=0),
        *(tensor.repeat_interleave(texts, dim=0) for tensor in cache),
    )
    result: Tensor = logits
    return result


if __name__ == "__main__":
    main()
