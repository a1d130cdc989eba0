"""Packages of tiny graphs whose greedy answers are known: each token is a sum of all before.

A token's value is its id. The image has two places, each of the value 5 where it is white and 0 where it
is black. With the sum of all values and the last position, the next token is `FIRST + sum mod WORDS`. The
keys of the cache hold the embeddings once, its values three times, so that both are needed.
"""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from tests.onnx_models import save, value

SPECIAL = ["<pad>", "<bos>", "<eos>", "<image>"]
FIRST = len(SPECIAL)
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
VOCABULARY = [*SPECIAL, *WORDS]
SIZE = len(VOCABULARY)
IMAGE_PLACES = [5, 5]
EOS = [VOCABULARY.index("seven"), VOCABULARY.index("<eos>")]

INT = TensorProto.INT64
PREPROCESSOR = {
    "size": {"height": 4, "width": 4},
    "resample": 2,
    "rescale_factor": 1 / 255,
    "do_normalize": False,
}


def expected(prompt: list[int], most: int, ends: list[int] = EOS) -> list[int]:
    """Continue values by the rule."""
    values = list(prompt)
    answer: list[int] = []
    while len(answer) < most and not (answer and answer[-1] in ends):
        answer.append(FIRST + (sum(values) + len(values) - 1) % len(WORDS))
        values.append(answer[-1])
    return answer


def words(tokens: list[int], ends: list[int] = EOS) -> str:
    """Say an answer's tokens as the package does."""
    return " ".join(VOCABULARY[token] for token in tokens if token not in ends)


def ids(text: str) -> list[int]:
    """Read words."""
    return [VOCABULARY.index(word) for word in text.split()]


def write_tokenizer(folder: Path, *, begins: bool = False) -> None:
    """Write tokenizer.json, with padding as many files have it; `begins` adds <bos> to every text."""
    tokenizer = Tokenizer(
        WordLevel({word: index for index, word in enumerate(VOCABULARY)}, "<pad>")
    )
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(4)
    if begins:
        tokenizer.post_processor = TemplateProcessing(
            "<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_json(folder: Path, **files: dict) -> None:
    """Write JSON files by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def _image_encoder(path: Path, output: str) -> None:
    """White pixels to two one-hot places of five, scaled by the brightness."""
    places = np.zeros((1, 2, SIZE), np.float32)
    places[:, range(2), IMAGE_PLACES] = 1
    save(
        path,
        [
            helper.make_node("ReduceMean", ["pixel_values"], ["mean"], axes=[1, 2, 3], keepdims=1),
            helper.make_node("Squeeze", ["mean", "last"], ["flat"]),
            helper.make_node("Round", ["flat"], ["bright"]),
            helper.make_node("Mul", ["bright", "places"], [output]),
        ],
        [value("pixel_values", ["batch", 3, 4, 4])],
        [value(output, ["batch", 2, SIZE])],
        {"places": places, "last": np.array([3], np.int64)},
    )


WEIGHTS = {
    "table": np.eye(SIZE, dtype=np.float32),
    "ids": np.arange(SIZE, dtype=np.float32)[:, None],
    "row": np.arange(SIZE, dtype=np.float32)[None],
    "heads": np.array([1], np.int64),
    "time": np.array([1], np.int64),
    "three": np.array(3, np.float32),
    "two": np.array(2, np.float32),
    "one": np.array(1, np.float32),
    "words": np.array(len(WORDS), np.float32),
    "first": np.array(FIRST, np.float32),
    "begin": np.array([-1], np.int64),
    "end": np.array([2**31], np.int64),
}


def _grow(prefix: str = "", *, cached: bool) -> list[onnx.NodeProto]:
    """Put new embeddings behind those of the cache."""
    nodes = [
        helper.make_node("Unsqueeze", ["embedded", "heads"], ["key"]),
        helper.make_node("Mul", ["key", "three"], ["tripled"]),
    ]
    for name, new in (("key", "key"), ("value", "tripled")):
        past = [f"past_key_values.0.{prefix}{name}"] if cached else []
        nodes.append(
            helper.make_node("Concat", [*past, new], [f"present.0.{prefix}{name}"], axis=2)
        )
    return nodes


def _answer(prefix: str, terms: list[str], position: str) -> list[onnx.NodeProto]:
    """Sum the cache, add terms and the position, and point at the next token."""
    nodes = []
    for name, out in (("key", "once"), ("value", "thrice")):
        nodes += [
            helper.make_node("Squeeze", [f"present.0.{prefix}{name}", "heads"], [f"{out}_all"]),
            helper.make_node("Mul", [f"{out}_all", "shown"], [f"{out}_shown"]),
            helper.make_node("ReduceSum", [f"{out}_shown", "time"], [f"{out}_sum"], keepdims=0),
            helper.make_node("MatMul", [f"{out}_sum", "ids"], [out]),
        ]
    nodes += [
        helper.make_node("Mul", ["once", "two"], ["twice"]),
        helper.make_node("Sub", ["thrice", "twice"], ["sum"]),
        helper.make_node("Sum", ["sum", position, *terms], ["total"]),
        helper.make_node("Mod", ["total", "words"], ["rest"], fmod=1),
        helper.make_node("Add", ["rest", "first"], ["next"]),
        helper.make_node("Sub", ["row", "next"], ["off"]),
        helper.make_node("Abs", ["off"], ["distance"]),
        helper.make_node("Neg", ["distance"], ["scores"]),
        helper.make_node("Unsqueeze", ["scores", "time"], ["logits"]),
    ]
    return nodes


def _cache(prefix: str, *names: str, length: str) -> list[onnx.ValueInfoProto]:
    return [value(f"{prefix}.0.{name}", ["batch", 1, length, SIZE]) for name in names]


LOGITS = value("logits", ["batch", 1, SIZE])


def vision_language(
    folder: Path,
    *,
    positions: bool = True,
    image_token: bool = True,
    keep: bool = False,
    toml: str | None = None,
) -> Path:
    """Write a package of three files: vision_encoder, embed_tokens, decoder_model_merged."""
    write_tokenizer(folder)
    config = {"model_type": "tiny", "text_config": {"max_position_embeddings": 40}}
    write_json(
        folder,
        config={**config, "image_token_id": 3} if image_token else config,
        generation_config={"eos_token_id": EOS, "pad_token_id": 0, "max_new_tokens": 12},
        preprocessor_config=PREPROCESSOR,
    )
    template = "<bos> {image} {prompt}" if image_token else "{image}<bos> {prompt}"
    (folder / "model.toml").write_text(
        f'task = "image-text"\n[text]\nprompt_template = "{template}"\n' if toml is None else toml
    )
    _image_encoder(folder / "vision_encoder.onnx", "image_features")
    save(
        folder / "embed_tokens.onnx",
        [helper.make_node("Gather", ["table", "input_ids"], ["inputs_embeds"])],
        [value("input_ids", ["batch", "length"], INT)],
        [value("inputs_embeds", ["batch", "length", SIZE])],
        {"table": WEIGHTS["table"]},
    )
    place = [
        helper.make_node("Slice", ["position_ids", "begin", "end", "time"], ["place_id"]),
        helper.make_node("Cast", ["place_id"], ["place"], to=TensorProto.FLOAT),
    ]
    if (
        not positions
    ):  # the place is then the length of the whole, as graphs without positions count it
        place = _length("present.0.key")
    save(
        folder / "decoder_model_merged.onnx",
        [
            helper.make_node("Identity", ["inputs_embeds"], ["embedded"]),
            *_grow(cached=True),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["shown"]),
            *place,
            *_answer("", [], "place"),
        ],
        [
            value("inputs_embeds", ["batch", "length", SIZE]),
            value("attention_mask", ["batch", "total"], INT),
            *([value("position_ids", ["batch", "length"], INT)] if positions else []),
            *([value("num_logits_to_keep", [], INT)] if keep else []),
            *_cache("past_key_values", "key", "value", length="past"),
        ],
        [LOGITS, *_cache("present", "key", "value", length="total")],
        {**WEIGHTS, "last": np.array([2], np.int64), "axis": np.array(2, np.int64)},
    )
    return folder


def _length(cache: str) -> list[onnx.NodeProto]:
    """Give the last position off the length of a cache."""
    return [
        helper.make_node("Shape", [cache], ["length"], start=2, end=3),
        helper.make_node("Cast", ["length"], ["count"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["count", "one"], ["place"]),
    ]


def _either(
    name: str, cached: onnx.NodeProto, first: onnx.NodeProto, weights: dict
) -> onnx.NodeProto:
    """Choose by `use_cache_branch`, as Optimum's merged graphs do."""
    branches = []
    for node in (cached, first):
        constants = [
            numpy_helper.from_array(weights[name_], name_)
            for name_ in node.input
            if name_ in weights
        ]
        output = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
        branches.append(helper.make_graph([node], name + node.output[0], [], [output], constants))
    return helper.make_node(
        "If", ["use_cache_branch"], [name], then_branch=branches[0], else_branch=branches[1]
    )


def encoder_decoder(folder: Path, layout: str, style: str, toml: str | None = None) -> Path:
    """Write an encoder with a decoder.

    Args:
        folder: To write to.
        layout: `merged`, `two` or `plain`.
        style: `gpt2` for caches named `.key`, whose decoder takes the encoder's states at every step;
            `bart` for `.decoder.key` and `.encoder.key`.
        toml: model.toml, if any.
    """
    write_tokenizer(folder, begins=True)
    write_json(
        folder,
        config={"model_type": "vision-encoder-decoder", "decoder": {"n_positions": 40}},
        generation_config={"eos_token_id": EOS, "decoder_start_token_id": 1, "max_length": 13},
        preprocessor_config=PREPROCESSOR,
    )
    if toml is not None:
        (folder / "model.toml").write_text(toml)
    _image_encoder(folder / "encoder_model.onnx", "last_hidden_state")
    files = {
        "merged": ["decoder_model_merged"],
        "two": ["decoder_model", "decoder_with_past_model"],
        "plain": ["decoder_model"],
    }[layout]
    for file in files:
        _decoder(folder / f"{file}.onnx", file, style)
    return folder


def _decoder(path: Path, kind: str, style: str) -> None:
    prefix = "decoder." if style == "bart" else ""
    cached = kind != "decoder_model"
    with_encoder = style == "bart" and cached
    weights = {
        **WEIGHTS,
        "shown": np.ones((1, 1, 1), np.float32),
        "sum_axes": np.array([1, 2, 3], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        *_grow(prefix, cached=cached),
    ]
    inputs = [value("input_ids", ["batch", "length"], INT)]
    outputs = [LOGITS, *_cache("present", f"{prefix}key", f"{prefix}value", length="total")]
    if kind != "decoder_with_past_model" or style == "gpt2":
        inputs.append(value("encoder_hidden_states", ["batch", "places", SIZE]))
        nodes.append(helper.make_node("Unsqueeze", ["encoder_hidden_states", "heads"], ["fresh"]))
    if cached:
        inputs += _cache("past_key_values", f"{prefix}key", f"{prefix}value", length="past")
    if with_encoder:
        inputs += _cache("past_key_values", "encoder.key", "encoder.value", length="places")
    if kind == "decoder_model_merged":
        inputs.append(value("use_cache_branch", [1], TensorProto.BOOL))
    # what the decoder sees of the image
    seen = "fresh"
    if with_encoder:
        seen = "past_key_values.0.encoder.key"
        if kind == "decoder_model_merged":
            dummy = {"dummy": np.full((1, 1, 1, SIZE), 7, np.float32)}
            nodes += [
                _either(
                    f"present.0.encoder.{name}",
                    helper.make_node("Identity", ["dummy"], [f"dummy_{name}"]),
                    helper.make_node("Identity", ["fresh"], [f"fresh_{name}"]),
                    dummy,
                )
                for name in ("key", "value")
            ]
            nodes.append(
                _either(
                    "seen",
                    helper.make_node("Identity", ["past_key_values.0.encoder.key"], ["seen_past"]),
                    helper.make_node("Identity", ["fresh"], ["seen_fresh"]),
                    {},
                )
            )
            seen = "seen"
            outputs += _cache("present", "encoder.key", "encoder.value", length="places")
    elif style == "bart":
        nodes += [
            helper.make_node("Identity", ["fresh"], [f"present.0.encoder.{name}"])
            for name in ("key", "value")
        ]
        outputs += _cache("present", "encoder.key", "encoder.value", length="places")
    terms = ["image"]
    if kind == "decoder_model_merged":  # a wrong branch makes a wrong answer
        terms.append("mistake")
        nodes += [
            helper.make_node("Cast", ["use_cache_branch"], ["said"], to=TensorProto.FLOAT),
            helper.make_node("Shape", [f"past_key_values.0.{prefix}key"], ["past"], start=2, end=3),
            helper.make_node("Cast", ["past"], ["past_count"], to=TensorProto.FLOAT),
            helper.make_node("Min", ["past_count", "one"], ["is"]),
            helper.make_node("Sub", ["said", "is"], ["wrong"]),
            helper.make_node("Abs", ["wrong"], ["mistake"]),
        ]
    nodes += [
        helper.make_node("Squeeze", [seen, "heads"], ["seen_flat"]),
        helper.make_node("ReduceSum", ["seen_flat", "time"], ["seen_sum"], keepdims=0),
        helper.make_node("MatMul", ["seen_sum", "ids"], ["image"]),
        *_length(f"present.0.{prefix}key"),
        *_answer(prefix, terms, "place"),
    ]
    save(path, nodes, inputs, outputs, weights)
