"""A tiny model and made-up pairs, for tests that need a trainer but no text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from qkv.config import TrainConfig
from qkv.data.batch import IGNORE, Batch, Side
from qkv.model import EncoderDecoder
from qkv.training import Layout, Trainer, build_loss, update
from qkv.training.optimizer import set_learning_rate
from tests.model.tiny import VOCAB, tiny_config

CPU = torch.device("cpu")
PAD, BOS, EOS = 0, 2, 3


def some_texts(n: int = 24, longest: int = 6) -> list[list[int]]:
    """Texts of random tokens."""
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, longest + 1, (n,), generator=draw).tolist()
    return [torch.randint(4, VOCAB, (length,), generator=draw).tolist() for length in lengths]


def padded_side(texts: Sequence[Sequence[int]], **more: Any) -> Side:
    rows = [torch.tensor(text) for text in texts]
    tokens = pad_sequence(rows, batch_first=True, padding_value=PAD)
    return Side(tokens, torch.tensor([len(row) for row in rows]), None, tokens.shape[1], **more)


def padded(texts: Sequence[list[int]]) -> Batch:
    """Each text as a source, to be copied."""
    ended = [torch.tensor([*text, EOS]) for text in texts]
    labels = pad_sequence(ended, batch_first=True, padding_value=IGNORE)
    source = padded_side([[*text, EOS] for text in texts])
    target = padded_side([[BOS, *text] for text in texts])
    return Batch(source, target, labels, sum(map(len, ended)))


def packed(texts: Sequence[list[int]], room: int = 128) -> Batch:
    """The same end to end; what is left of the room is a sequence without labels."""
    batch = padded(texts)
    sizes = [len(text) + 1 for text in texts]
    filler = room - sum(sizes)
    offsets = torch.tensor([0, *sizes, filler]).cumsum(0).int()

    def laid(rows: Tensor, fill: int) -> Tensor:
        real = [row[:size] for row, size in zip(rows, sizes, strict=True)]
        return torch.cat([*real, torch.full((filler,), fill)])[None]

    assert batch.source
    source, target = (
        Side(laid(side.tokens, PAD), None, offsets, room) for side in (batch.source, batch.target)
    )
    return Batch(source, target, laid(batch.labels, IGNORE), batch.n_labels)


@dataclass
class Copying:
    """A stream of batches of texts to copy, drawn by the seed and the step."""

    seed: int
    accumulate: int
    lay: Callable[[Sequence[list[int]]], Batch]

    def steps_from(self, step: int = 0) -> Iterator[list[Batch]]:
        texts = some_texts()
        while True:
            draw = torch.Generator().manual_seed(1000 * self.seed + step)
            order = torch.randperm(len(texts), generator=draw)[: 8 * self.accumulate]
            yield [self.lay([texts[i] for i in part]) for part in order.chunk(self.accumulate)]
            step += 1


def small_model(**differences: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    values = {"d_model": 8, "n_heads": 2, "max_length": 128, **layers, **differences}
    return EncoderDecoder(tiny_config(**values))


@dataclass
class Listener:
    """A reporter that remembers."""

    records: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    said_after: list[int] = field(default_factory=list)  # steps that were recorded before
    closed: bool = False

    def record(self, records: Any) -> None:
        self.records += map(dict, records)

    def say(self, sentence: str) -> None:
        self.said.append(sentence)
        self.said_after.append(self.records[-1]["step"] if self.records else 0)

    def close(self) -> None:
        self.closed = True


Evaluate = Callable[[EncoderDecoder], dict[str, float]]


def small_trainer(
    folder: Path, evaluate: Evaluate | None = None, lay: Any = padded, **settings: Any
) -> tuple[Trainer, Listener, list[dict[str, Tensor]]]:
    """A trainer with a fake evaluation, its listener, and the weights that it kept as the best."""
    values = {
        "steps": 12,
        "warmup": 4,
        "lr": 0.01,
        "valid_every": 4,
        "checkpoint_every": 5,
        "device": "cpu",
        "precision": "float32",
    }
    config = TrainConfig(**{**values, **settings})
    model, listener = small_model(), Listener()
    kept: list[dict[str, Tensor]] = []
    trainer = Trainer(
        layout=Layout(model, build_loss(model, config, CPU)),
        stream=Copying(config.seed, config.accumulate, lay),
        config=config,
        device=CPU,
        folder=folder,
        evaluate=lambda: (evaluate or weight_size)(model),
        keep=lambda: kept.append(copy_of(model)),
        reporters=[listener],
        baseline=100.0,
    )
    return trainer, listener, kept


def step_with_drawn_gradients(
    model: nn.Module, optimizer: torch.optim.Optimizer, rate: float
) -> dict[str, Tensor]:
    """Take a step without clipping; return the gradients."""
    drawn = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.grad = drawn[name].clone()
    set_learning_rate(optimizer, rate)
    update(model, optimizer, clip=0.0)
    return drawn


def copy_of(model: EncoderDecoder) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def weight_size(model: EncoderDecoder) -> dict[str, float]:
    """Made-up scores that depend on every weight, and go up and down."""
    size = sum(float(p.detach().double().square().sum()) for p in model.parameters())
    loss = 5 + math.sin(100 * size)
    return {"valid_loss": loss, "wrong_source_loss": loss + 10, "bleu": 50 + math.cos(100 * size)}


def listed(losses: list[float], bleu: Sequence[float] = (0.0,)) -> Evaluate:
    """Validation scores given beforehand; the last one is repeated."""
    calls = iter(range(1000))

    def evaluate(model: EncoderDecoder) -> dict[str, float]:
        call = next(calls)
        loss, score = (values[min(call, len(values) - 1)] for values in (losses, bleu))
        return {"valid_loss": loss, "wrong_source_loss": loss + 10, "bleu": score}

    return evaluate


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
