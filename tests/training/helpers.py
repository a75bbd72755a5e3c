"""A tiny model and made-up pairs, for tests that need a trainer but no text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from qkv.config import TrainConfig
from qkv.data import BatchStream, EncodedPairs, Ragged, Specials
from qkv.model import EncoderDecoder
from qkv.training import Trainer, build_loss
from tests.model.tiny import VOCAB, tiny_config

CPU = torch.device("cpu")
SPECIAL = Specials(pad=0, bos=2, eos=3)


def some_pairs(n: int = 24, longest: int = 6) -> EncodedPairs:
    """Sources of random tokens, each to be copied."""
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, longest + 1, (n,), generator=draw).tolist()
    rows = [torch.randint(4, VOCAB, (length,), generator=draw).tolist() for length in lengths]
    return EncodedPairs(Ragged.of(rows), Ragged.of(rows))


def small_model(**differences: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    values = {
        "d_model": 8,
        "n_heads": 2,
        "n_encoder_layers": 1,
        "n_decoder_layers": 1,
        "max_length": 64,
    }
    return EncoderDecoder(tiny_config(**{**values, **differences}))


@dataclass
class Listener:
    """A reporter that remembers."""

    records: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    closed: bool = False

    def record(self, record: Any) -> None:
        self.records.append(dict(record))

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def close(self) -> None:
        self.closed = True


Evaluate = Callable[[EncoderDecoder], dict[str, float]]


def small_trainer(
    folder: Path, evaluate: Evaluate | None = None, mode: Any = "padded", **settings: Any
) -> tuple[Trainer, Listener, list[dict[str, torch.Tensor]]]:
    """A trainer with a fake evaluation, its listener, and the weights that it kept as the best."""
    values = {
        "steps": 12,
        "batch_tokens": 40,
        "warmup": 4,
        "lr": 0.01,
        "valid_every": 4,
        "checkpoint_every": 5,
        "device": "cpu",
        "precision": "float32",
    }
    config = TrainConfig(**{**values, **settings})
    model, listener = small_model(), Listener()
    kept: list[dict[str, torch.Tensor]] = []
    stream = BatchStream(
        some_pairs(), SPECIAL, mode, config.batch_tokens, config.accumulate, config.seed
    )
    trainer = Trainer(
        model=model,
        stream=stream,
        loss_sum=build_loss(model, config, CPU),
        config=config,
        device=CPU,
        folder=folder,
        evaluate=lambda: (evaluate or weight_size)(model),
        keep=lambda: kept.append(copy_of(model)),
        reporters=[listener],
        frequencies_loss=100.0,
    )
    return trainer, listener, kept


def copy_of(model: EncoderDecoder) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def weight_size(model: EncoderDecoder) -> dict[str, float]:
    """Made-up scores that depend on every weight, and go up and down."""
    size = sum(float(p.detach().double().square().sum()) for p in model.parameters())
    loss = 5 + math.sin(100 * size)
    return {"valid_loss": loss, "wrong_source_loss": loss + 10, "bleu": 50 + math.cos(100 * size)}


def listed(losses: list[float], bleu: list[float] | None = None) -> Evaluate:
    """Validation scores told beforehand; the last one stands for those after it."""
    left, scores = list(losses), list(bleu or [0.0] * len(losses))

    def evaluate(model: EncoderDecoder) -> dict[str, float]:
        loss = left.pop(0) if len(left) > 1 else left[0]
        score = scores.pop(0) if len(scores) > 1 else scores[0]
        return {"valid_loss": loss, "wrong_source_loss": loss + 10, "bleu": score}

    return evaluate


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
