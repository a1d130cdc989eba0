"""Export of the image-text model: three ONNX files as transformers.js names them, and its files."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

from sample_models.training.export import largest_difference, write_onnx
from sample_models.training.language_networks import (
    GRID,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    ROPE_THETA,
    Decoder,
    VisionEncoder,
)
from sample_models.training.text_generation import (
    BOS,
    EOS,
    IMAGE,
    MEAN,
    PAD,
    PROMPT_TEMPLATE,
    SEPARATOR,
    SIZE_WH,
    STD,
)

VOCABULARY = 384
MAX_NEW_TOKENS = 48

CONFIG = f"""\
task = "image-text"

[text]
prompt_template = "{PROMPT_TEMPLATE}"
max_new_tokens = {MAX_NEW_TOKENS}
"""

_SPECIAL = (PAD, BOS, EOS, SEPARATOR, IMAGE)
_MOST_POSITIONS = 256


def train_tokenizer(phrases: list[str]) -> Tokenizer:
    """Train a byte-level BPE tokenizer: any text can be encoded, and decoded to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in _SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(phrases, trainer)
    return tokenizer


def token_id(tokenizer: Tokenizer, text: str) -> int:
    """Return the id of a token of the vocabulary."""
    index = tokenizer.token_to_id(text)
    if index is None:
        raise ValueError(f"expected {text!r} to be a token")
    return int(index)


def write_sidecars(folder: Path, tokenizer: Tokenizer) -> None:
    """Write tokenizer.json and the configuration files, in the names of Hugging Face."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {
        "bos_token_id": token_id(tokenizer, BOS),
        "eos_token_id": token_id(tokenizer, EOS),
        "pad_token_id": token_id(tokenizer, PAD),
    }
    config = {
        "model_type": "shapes_image_text",
        "image_token_id": token_id(tokenizer, IMAGE),
        "image_seq_length": GRID * GRID,
        **ids,
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "rope_theta": ROPE_THETA,
        "max_position_embeddings": _MOST_POSITIONS,
    }
    preprocessor = {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": SIZE_WH[1], "width": SIZE_WH[0]},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [MEAN] * 3,
        "image_std": [STD] * 3,
    }
    generation = {**ids, "do_sample": False, "max_new_tokens": MAX_NEW_TOKENS}
    for name, content in (
        ("config", config),
        ("preprocessor_config", preprocessor),
        ("generation_config", generation),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    (folder / "model.toml").write_text(CONFIG)


def export_image_text(
    encoder: VisionEncoder, embed: nn.Embedding, decoder: Decoder, folder: Path
) -> float:
    """Write the three files, each checked against torch at several sizes.

    Returns:
        Largest difference between torch and onnxruntime, absolute.
    """
    cache = [f"{{}}.{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    past = {name.format("past_key_values"): {0: "batch", 2: "past"} for name in cache}
    present = {name.format("present"): {0: "batch", 2: "total"} for name in cache}
    sequence = {0: "batch", 1: "sequence"}
    read = {"inputs_embeds": sequence, "attention_mask": {0: "batch", 1: "total"}}
    return max(
        _export(
            encoder,
            folder / "vision_encoder.onnx",
            {"pixel_values": {0: "batch"}},
            outputs={"image_features": {0: "batch"}},
            examples=[(torch.rand(batch, 3, *SIZE_WH[::-1]) * 2 - 1,) for batch in (2, 1, 5)],
        ),
        _export(
            embed,
            folder / "embed_tokens.onnx",
            {"input_ids": sequence},
            outputs={"inputs_embeds": sequence},
            examples=[(torch.randint(VOCABULARY // 2, (batch, 3 * batch)),) for batch in (2, 1, 5)],
        ),
        _export(
            decoder,
            folder / "decoder_model_merged.onnx",
            {**read, "position_ids": sequence, **past},
            outputs={"logits": sequence, **present},
            examples=[
                _decoder_example(*sizes) for sizes in ((2, 4, 3), (1, 9, 0), (1, 1, 9), (3, 5, 0))
            ],
        ),
    )


def _decoder_example(batch: int, count: int, past: int) -> tuple[Tensor, ...]:
    """Make inputs of the decoder; where there is a batch, its first row is padded on the left."""
    mask = torch.ones(batch, past + count, dtype=torch.int64)
    mask[0, : batch - 1] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, past:]
    cache = [torch.randn(batch, HEADS, past, HEAD_DIM) for _ in range(2 * LAYERS)]
    return (torch.randn(batch, count, HIDDEN), mask, positions, *cache)


def _export(
    network: nn.Module,
    path: Path,
    inputs: dict[str, dict[int, str]],
    outputs: dict[str, dict[int, str]],
    examples: list[tuple[Tensor, ...]],
) -> float:
    """Write one file and compare it with torch on all examples."""
    write_onnx(network, path, inputs, outputs=outputs, example=examples[0])
    return largest_difference(network, path, examples)
