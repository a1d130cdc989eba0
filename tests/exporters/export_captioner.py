"""Exports tiny random captioners with optimum, and writes what `generate` answers beside them.

Run by `test_captioners.py`, with a Python that has torch, transformers and optimum-onnx: it writes
`<decoder>/` for each decoder to the folder given, with images and `expected.json`.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from optimum.exporters.onnx import main_export
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    TrOCRConfig,
    TrOCRForCausalLM,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTImageProcessor,
    ViTModel,
)

WORDS = ["<pad>", "<s>", "</s>", *(f"w{index}" for index in range(61))]
DECODERS = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=48,
            add_cross_attention=True,
            bos_token_id=1,
            eos_token_id=2,
            initializer_range=0.5,
        )
    ),
    "trocr": lambda: TrOCRForCausalLM(
        TrOCRConfig(
            vocab_size=64,
            d_model=32,
            decoder_layers=2,
            decoder_attention_heads=4,
            decoder_ffn_dim=64,
            max_position_embeddings=48,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            init_std=0.5,
        )
    ),
}
PROMPTS = ["", "w1", "w5 w6", "w7 w8 w9", "w20"]
SETTINGS = [
    {},
    {"num_beams": 3},
    {"num_beams": 4, "max_new_tokens": 20},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
]


def main(root: Path) -> None:
    for name, decoder in DECODERS.items():
        torch.manual_seed(3)
        encoder = ViTModel(
            ViTConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                image_size=32,
                patch_size=8,
                initializer_range=0.5,
            )
        )
        model = VisionEncoderDecoderModel(encoder=encoder, decoder=decoder()).eval()
        for config in (model.config, model.generation_config):
            config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
        model.generation_config.max_new_tokens = 12
        source = root / f"{name}-source"
        model.save_pretrained(source)
        tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, "<pad>"))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
        ).save_pretrained(source)
        processor = ViTImageProcessor(size={"height": 32, "width": 32})
        processor.save_pretrained(source)
        main_export(str(source), output=root / name, task="image-to-text-with-past")
        cases = []
        for number in range(2):
            pixels = np.random.default_rng(number).integers(0, 256, (3, 4, 3), np.uint8)
            image = Image.fromarray(pixels).resize((61, 40))
            image.save(root / name / f"{number}.png")
            tensor = processor(image, return_tensors="pt").pixel_values
            for settings in SETTINGS:
                for prompt in PROMPTS:
                    start = torch.tensor([[1, *tokenizer.encode(prompt).ids]])
                    tokens = model.generate(
                        tensor, decoder_input_ids=start, do_sample=False, **settings
                    )
                    answer = tokenizer.decode(
                        tokens[0, start.shape[1] :].tolist(), skip_special_tokens=False
                    )
                    cases.append(
                        {
                            "image": f"{number}.png",
                            "prompt": prompt,
                            "settings": settings,
                            "answer": answer,
                        }
                    )
        (root / name / "expected.json").write_text(json.dumps(cases))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
