"""Writes generation_cases.json: what transformers' `generate` answers over a table of logits.

Run it where torch and transformers are installed; the tests only read the file. The logits of the next
token depend on the last two tokens: `table[last but one][last]`.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

VOCABULARY = 10
TABLE = np.random.default_rng(7).normal(0, 2, (VOCABULARY,) * 3).round(2)
PROMPTS = [[1], [2, 3], [4, 5, 6], [9, 8, 7, 6], [3, 3, 3]]
SETTINGS = [
    {},
    {"repetition_penalty": 1.7},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 4},
    {"min_length": 6},
    {"forced_bos_token_id": 5},
    {"forced_eos_token_id": 0},
    {"suppress_tokens": [1, 2, 3]},
    {"begin_suppress_tokens": [4, 5]},
]
BEAMS = [
    {"num_beams": 2},
    {"num_beams": 3},
    {"num_beams": 5},
    {"num_beams": 3, "length_penalty": 2.0},
    {"num_beams": 3, "length_penalty": 0.5},
    {"num_beams": 3, "length_penalty": -1.0},
    {"num_beams": 3, "early_stopping": True},
    {"num_beams": 3, "early_stopping": "never"},
    {"num_beams": 3, "repetition_penalty": 1.7},
    {"num_beams": 3, "no_repeat_ngram_size": 2},
    {"num_beams": 3, "min_new_tokens": 4},
    {"num_beams": 3, "forced_bos_token_id": 5, "forced_eos_token_id": 0},
]
ENDS = [[0], [0, 9], [0, 4, 9]]


class Configuration(PretrainedConfig):
    model_type = "table"


class Table(PreTrainedModel, GenerationMixin):
    config_class = Configuration

    def __init__(self, config):
        super().__init__(config)
        self.table = torch.nn.Parameter(torch.tensor(TABLE, dtype=torch.float32))

    def forward(self, input_ids, **_):
        previous = torch.cat([torch.zeros_like(input_ids[:, :1]), input_ids[:, :-1]], dim=1)
        return CausalLMOutput(logits=self.table[previous, input_ids])


def main():
    model = Table(Configuration(vocab_size=VOCABULARY)).eval()
    cases = []
    for settings, ends, prompt in itertools.product(SETTINGS + BEAMS, ENDS, PROMPTS):
        config = GenerationConfig(
            max_new_tokens=12,
            eos_token_id=ends,
            pad_token_id=0,
            do_sample=False,
            use_cache=False,
            **settings,
        )
        answer = model.generate(torch.tensor([prompt]), generation_config=config)[0]
        tokens = answer[len(prompt) :].tolist()
        end = next((index for index, token in enumerate(tokens) if token in ends), len(tokens))
        cases.append(
            {"prompt": prompt, "eos": ends, "settings": settings, "tokens": tokens[: end + 1]}
        )
    path = Path(__file__).with_name("generation_cases.json")
    path.write_text(
        json.dumps({"table": TABLE.tolist(), "cases": cases}, separators=(",", ":")) + "\n"
    )


if __name__ == "__main__":
    main()
