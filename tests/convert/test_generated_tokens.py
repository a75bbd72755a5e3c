"""A folder that transformers saved writes here, without any argument, what it writes there."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

import qkv
from qkv.convert.architectures import ARCHITECTURES
from qkv.convert.architectures.architecture import USUAL_IDS
from qkv.convert.opening import open_model
from qkv.tasks import LanguageModel
from tests.convert import small
from tests.convert.harness import exported, loaded, made, saved, until, word_level

SIZE = 12  # so few tokens that those that are no text come up often
USUAL = 20  # tokens that theirs writes where nobody says how many
NONE = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
LONG = {"vocab_size": SIZE, "max_position_embeddings": 64}
LLAMA, BART = ({**config, **LONG} for config in (small.LLAMA, small.BART))
GPT = {"vocab_size": SIZE, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
T5 = {**small.T5, "vocab_size": SIZE}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODELS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**LLAMA, **SPECIAL}),
    "mistral": ("MistralForCausalLM", {**LLAMA, **SPECIAL, "sliding_window": 4}),
    "gpt2": ("GPT2LMHeadModel", {**GPT, **SPECIAL}),
    "gpt": ("OpenAIGPTLMHeadModel", {**GPT, **SPECIAL}),
    "llama without an end": ("LlamaForCausalLM", {**LLAMA, **SPECIAL, "eos_token_id": None}),
    "llama that ends with 0": ("LlamaForCausalLM", {**LLAMA, **NONE, "eos_token_id": 0}),
    "mistral without any": ("MistralForCausalLM", {**LLAMA, **NONE}),
    "gpt2 with the ids of a larger one": ("GPT2LMHeadModel", GPT),
    "gpt without any": ("OpenAIGPTLMHeadModel", GPT),
    "llama with two ends": ("LlamaForCausalLM", {**LLAMA, **SPECIAL, "eos_token_id": [2, 7]}),
    "marian": (
        "MarianMTModel",
        {**BART, "pad_token_id": 11, "eos_token_id": 0, "decoder_start_token_id": 11},
    ),
    "bart": ("BartForConditionalGeneration", BART),
    "t5": ("T5ForConditionalGeneration", T5),
}
# What generation_config.json says besides; None: there is no such file.
SAID: dict[str, Mapping[str, Any] | None] = {
    "as saved": {},
    "no file": None,
    "beams": {"num_beams": 3},
    "short": {"max_new_tokens": 9},
    "some never": {"suppress_tokens": [5, 7], "bad_words_ids": [[3]], "min_new_tokens": 4},
    "specials never": {"suppress_tokens": [1, 11], "num_beams": 2, "length_penalty": 0.5},
    "no end": {"eos_token_id": None},
    "forced": {"forced_bos_token_id": 0, "max_length": 9},
    "another start": {"decoder_start_token_id": 6},
    "last is 0": {"forced_eos_token_id": 0, "max_length": 12},
    "last is 2": {"forced_eos_token_id": 2, "forced_bos_token_id": 0, "max_length": 7},
    "summary": {
        "num_beams": 4,
        "min_length": 12,
        "max_length": 30,
        "no_repeat_ngram_size": 2,
        "length_penalty": 2.0,
        "early_stopping": True,
    },
}
SOME = ("no end", "forced", "another start", "last is 0", "last is 2", "summary")
SUMMARIES = [("marian", "summary"), ("bart", "summary")]
BOTH_SIDES = ("marian", "bart", "t5")
DECODERS = [name for name in MODELS if name not in BOTH_SIDES]


def in_turn(names: Sequence[str], n: int, number: int) -> list[str]:
    """Some of the names, others for each number, so that all of them come up."""
    return [names[(n * number + step) % len(names)] for step in range(n)]


CASES = [
    *((name, "as saved") for name in MODELS),
    *(
        (name, said)
        for number, said in enumerate(said for said in SAID if said not in ("as saved", *SOME))
        for name in (*in_turn(DECODERS, 3, number), *in_turn(BOTH_SIDES, 1, number))
    ),
    *((name, "no end") for name in DECODERS[::3]),
    *((name, "another start") for name in BOTH_SIDES),
    ("bart", "forced"),
    *(("marian", "last is 0"), ("bart", "last is 2")),
    *SUMMARIES,
]
ROWS = [[5, 6, 7, 8], [9], [10, 3, 4, 6, 7]]


@contextmanager
def folder_of(name: str, said: str, seed: int, **settings: Any) -> Iterator[Path]:
    """What transformers saves, and a vocabulary of words: the configs alone know specials."""
    class_name, config = MODELS[name]
    with saved(made(class_name, config, seed)) as folder:
        words = word_level([f"w{id}" for id in range(SIZE)], "w3")
        words.save(str(folder / "tokenizer.json"))
        path, more = folder / "generation_config.json", SAID[said]
        if more is None:
            path.unlink()
        else:
            path.write_text(json.dumps({**json.loads(path.read_text()), **more, **settings}))
        yield folder


def ours(model: Any, rows: list[list[int]]) -> list[list[int]]:
    """The tokens after each prompt, or of each translation, without the end."""
    texts = [" ".join(f"w{id}" for id in row) for row in rows]
    more = {} if model.decode.max_length else {"max_length": USUAL}
    if isinstance(model, LanguageModel):
        return [each[0].tokens for each in model.n_best(texts, **more)]
    return [until(model.model.config.eos_id, row) for row in model.output_tokens(texts, **more)]


@torch.no_grad()
def theirs(model: PreTrainedModel, rows: list[list[int]]) -> list[list[int]]:
    """The same by `generate` without any argument."""
    both_sides = model.config.is_encoder_decoder
    if both_sides:
        first = [0] if model.config.model_type == "bart" else []
        rows = [[*first, *row, model.config.eos_token_id] for row in rows]
    width = max(map(len, rows))
    gaps = [[0] * (width - len(row)) for row in rows]
    real = [[1] * len(row) for row in rows]
    pairs = list(zip(rows, gaps, strict=True)), list(zip(real, gaps, strict=True))
    tokens, mask = (
        torch.tensor([[*one, *gap] if both_sides else [*gap, *one] for one, gap in each])
        for each in pairs
    )
    output = model.generate(tokens, attention_mask=mask)
    ends = model.generation_config.eos_token_id
    return [until(ends, row) for row in output[:, 1 if both_sides else width :].tolist()]


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
@pytest.mark.parametrize(("name", "said"), CASES)
def test_tokens_are_those_of_transformers(name, said):
    with folder_of(name, said, seed=1) as folder:
        mine, other = qkv.load(folder, "cpu"), loaded(folder, MODELS[name][0])
    for rows in (ROWS, ROWS[1:2]):  # padded and not
        assert ours(mine, rows) == theirs(other, rows)


@pytest.mark.parametrize(
    "name, start, end, pad",
    [
        ("llama", 1, 2, 2),
        ("gpt2", 50_256, 50_256, 50_256),
        ("bart", 2, 2, 1),
        ("marian", 58_100, 0, 58_100),
        ("t5", 0, 1, 0),
    ],
)
def test_ids_that_nobody_says_are_those_of_the_class(name, start, end, pad):
    class_name, config = MODELS[name]
    size = {**config, "vocab_size": max(SIZE, start + 1)}
    with saved(made(class_name, {**size, "pad_token_id": None, "eos_token_id": None})) as folder:
        (folder / "generation_config.json").unlink()
        said = json.loads((folder / "config.json").read_text())
        left = {key: value for key, value in said.items() if not key.endswith("_token_id")}
        (folder / "config.json").write_text(json.dumps(left))
        model = open_model(folder).content["model"]
    assert (model["bos_id"], model["eos_id"], model["pad_id"]) == (start, end, pad)


@pytest.mark.parametrize("model_type", sorted({*ARCHITECTURES} - {"vit"}))
def test_usual_ids_are_those_of_transformers(model_type):
    names = [f"{role}_token_id" for role in ("pad", "bos", "eos", "decoder_start")]
    config = transformers.AutoConfig.for_model(model_type)
    said = {name: getattr(config, name, None) for name in names}
    usual = {name: id for name, id in said.items() if id is not None}
    assert USUAL_IDS.get(model_type, {}) == usual


@pytest.mark.parametrize(
    ("name", "said"),
    [*zip(MODELS, cycle(["short", "some never", "specials never"])), *SUMMARIES],
)
def test_and_so_does_what_we_write_again(name, said):
    """From their folder to ours, and from ours to theirs."""
    limit = {} if said == "summary" else {"max_new_tokens": 9}
    with folder_of(name, said, 0, **limit) as folder:
        source, mine = open_model(folder), qkv.load(folder, "cpu")
        with exported(source) as again:
            assert ours(qkv.load(again, "cpu"), ROWS) == ours(mine, ROWS)
            assert theirs(loaded(again, MODELS[name][0]), ROWS) == ours(mine, ROWS)
