"""Language models for tests: some learn in a second or two, others need not learn at all."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.config import DecodeConfig, ModelConfig, TokenizerConfig
from qkv.model import Decoder
from qkv.run.train import Run
from qkv.tasks import LanguageModel, Prompting
from qkv.text import Tokenizer, train_tokenizer
from tests.run.common import DECODER, TRAINING, Runs, ids_of, write_lines, write_records
from tests.run.tiny import WORDS

ANIMALS = ["cat", "dog", "bird", "fish", "猫"]
WAYS = [f"{lead}{{}}{mark}" for lead in ("", "say ", "spell ", "read ", "a ") for mark in ("", "?")]
SPOKEN = ["the cat sees the dog.", "我爱你，猫。", "a fish is a bird 🐟"]


def sentences(n: int, seed: int = 1) -> list[str]:
    """Documents of a language with five nouns and one verb."""
    draw = random.Random(seed)

    def one() -> str:
        return "the {} sees the {}.".format(*draw.sample(ANIMALS, 2))

    return [" ".join(one() for _ in range(draw.randint(1, 3))) for _ in range(n)]


def questions(seed: int = 1) -> list[tuple[str, str]]:
    """Instructions that can be checked: a digit, asked for in ten ways, and its word."""
    found = [(way.format(digit), word) for way in WAYS for digit, word in enumerate(WORDS)]
    random.Random(seed).shuffle(found)
    return found


def write_questions(path: Path, asked: Sequence[tuple[str, str]]) -> Path:
    return write_records(path, *({"instruction": q, "output": answer} for q, answer in asked))


def write_data(folder: Path) -> None:
    if not (folder / "text.txt").exists():
        write_lines(folder / "text.txt", sentences(200))
    if not (folder / "records.jsonl").exists():
        asked = questions()
        write_questions(folder / "records.jsonl", asked[:80])
        write_questions(folder / "valid.jsonl", asked[80:90])
        write_questions(folder / "test.jsonl", asked[90:])


def values(folder: Path, task: str = "generate") -> dict[str, Any]:
    write_data(folder)
    data = {
        "generate": {"text": str(folder / "text.txt"), "documents": "line"},
        "instruct": {
            "records": str(folder / "records.jsonl"),
            "valid_records": str(folder / "valid.jsonl"),
        },
    }
    return {
        "task": task,
        "data": data[task],
        "tokenizer": {"kind": "char", "vocab_size": 300},
        "model": {"preset": "llama-tiny", **DECODER, "max_length": 64},
        "train": dict(TRAINING),
    }


LEARNS: dict[str, Any] = {
    "model_d_model": 32,
    "model_d_ff": 64,
    "model_n_decoder_layers": 2,
    "model_dropout": 0.0,
    "train_steps": 200,
    "train_batch_tokens": 600,
    "train_warmup": 30,
    "train_valid_every": 50,
    "train_checkpoint_every": 1000,
}

RUNS = Runs(values, learns=LEARNS)
recipe, write_recipe, run, job = RUNS.recipe, RUNS.write_recipe, RUNS.run, RUNS.job
killed_and_resumed = RUNS.killed_and_resumed


def learned(factory: pytest.TempPathFactory, task: str = "generate") -> Run:
    test = {"data_test_records": "test.jsonl"} if task == "instruct" else {}
    return RUNS.learned(factory, task, **test)


def vocabulary(kind: str = "char", vocab_size: int = 310) -> Tokenizer:
    """A tokenizer of a little English and Chinese."""
    config = TokenizerConfig(kind=kind, vocab_size=vocab_size)  # type: ignore[arg-type]
    return train_tokenizer([*SPOKEN, *sentences(50)], config)


GREEDY = DecodeConfig(beams=1, max_length=12)


def speaker(
    tokenizer: Tokenizer,
    prompting: Prompting | None = None,
    seed: int = 0,
    letters: str = "",
    eos: float = 0.0,
    **sizes: Any,
) -> LanguageModel:
    """A model that never learnt anything, in float64; `letters`: it knows how to write only these.

    `eos` is how readily it ends.
    """
    config = tiny_config(tokenizer, **{"positions": "rotary", "d_model": 16, **sizes})
    torch.manual_seed(seed)
    model = Decoder(config).double().eval()
    with torch.no_grad():
        for weight in model.decoder.parameters():
            weight.mul_(3 if weight.ndim > 1 else 1)  # or it would hardly look at what it reads
        model.output.projection.weight.mul_(4)  # or all tokens would be about as likely
        bias = model.output.projection.bias
        bias.fill_(-100.0 if letters else 0.0)
        bias[tokenizer.encode(letters)] = 0.0
        bias[tokenizer.eos_id] = eos
    return LanguageModel(model, tokenizer, GREEDY, prompting)


def scripted(tokenizer: Tokenizer, tokens: Sequence[int], after: int = 1) -> LanguageModel:
    """A model that goes on with these tokens after a prompt of `after` tokens, whatever they are.

    All it knows is its place: each position has a dimension, which the output reads.
    """
    size = after + len(tokens)
    width = size + size % 2
    config = tiny_config(
        tokenizer, positions="learned", d_model=width, n_heads=1, max_length=size, d_ff=2
    )
    model = Decoder(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.decoder.norm.weight.fill_(1.0)
        model.decoder.positions.table.weight.copy_(torch.eye(width)[:size])
        for place, token in enumerate(tokens, start=after - 1):
            model.output.projection.weight[token, place] = 10.0
    return LanguageModel(model, tokenizer, GREEDY)


def tiny_config(tokenizer: Tokenizer, **sizes: Any) -> ModelConfig:
    usual = {
        "family": "decoder",
        "n_encoder_layers": 0,
        "n_decoder_layers": 2,
        "n_heads": 2,
        "d_ff": 24,
        "norm_position": "pre",
        "tie": "none",
        "output_bias": True,
        "max_length": 40,
        "dropout": 0.0,
        "embedding_scale": False,
    }
    return ModelConfig.from_dict({**usual, **ids_of(tokenizer), **sizes})


@torch.no_grad()
def by_hand(
    model: Decoder,
    prompt: Sequence[int],
    count: int,
    ends: Sequence[int] | None = None,
    never: Sequence[int] = (),
) -> list[int]:
    """Greedy tokens after a prompt, the whole text read anew for each; a full context is halved."""
    context, tokens, found = model.config.max_length, list(prompt), []
    for _ in range(count):
        if len(tokens) == context:
            tokens = tokens[-(context // 2) :]
        logits = model(torch.tensor([tokens]))[0, -1]
        logits[list(never)] = -torch.inf
        tokens.append(int(logits.argmax()))
        if tokens[-1] in (ends or [model.config.eos_id]):
            break
        found.append(tokens[-1])
    return found
