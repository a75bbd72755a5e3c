"""Lab 17: translation with equal parameters by encoder-decoder, decoder alone and prefix LM."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from qkv.config import DecodeConfig, ModelConfig
from qkv.decode import complete, generate
from qkv.evaluation import bleu
from qkv.model import Decoder, EncoderDecoder, Layout, build_model, equation, fast, use_path
from qkv.text import Tokenizer
from qkv_labs import tools
from qkv_labs.families.language import FEW, MORE, language
from qkv_labs.families.rows import joined, prefix_mask, reading, seeing
from qkv_labs.figures import COLOURS, Figure, new_figure
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict
from qkv_labs.shared import EncodedPairs, special_ids, tokenizer_of
from qkv_labs.texts import Texts

say = Texts("families")

ARMS = ("encoder-decoder", "prefix LM", "decoder-only")
RATES = (5e-3, 1e-2)  # each family takes the one that suits it
COUNTED = 8  # sentences whose products are counted
LONGEST = 40  # tokens of a translation
Model = EncoderDecoder | Decoder


@dataclass(frozen=True)
class Work:
    """Texts as ids, the models' sizes, and how long each learns."""

    train: EncodedPairs
    valid: EncodedPairs
    held_out: EncodedPairs
    tokenizer: Tokenizer
    base: ModelConfig
    steps: int = 450
    rows: int = 20


@dataclass(frozen=True)
class Arm:
    """One family, one value a seed."""

    name: str
    parameters: int
    lr: float  # chosen on validation sentences
    exact: list[float]  # percent of held-out sentences
    bleu: list[float]
    loss: list[float]  # nats a target token
    train_seconds: list[float]  # CPU
    decode_ms: list[float]  # CPU, a sentence
    megaflops: list[float]  # of matrix products, a sentence decoded


@dataclass(frozen=True)
class Measured:
    """All families, in the order of `ARMS`."""

    sentences: int  # seen in training, with repeats
    target_tokens: int  # of them, by the first seed
    arms: list[Arm]


def translation(full: bool) -> Work:
    """Encode a few patterns of the demo grammar for a small encoder-decoder."""
    text = language(MORE if full else FEW, each=3000)
    tokenizer, layers = tokenizer_of(text.train, 900 if full else 700), 2 if full else 1
    sizes: dict[str, Any] = {"d_model": 64, "n_heads": 4, "d_ff": 128, "max_length": 96}
    sizes |= {"n_encoder_layers": layers, "n_decoder_layers": layers, "dropout": 0.0}
    base = ModelConfig(**sizes, **special_ids(tokenizer))
    train, valid, test = (
        EncodedPairs.of(split, tokenizer, tokenizer)
        for split in (text.train, text.valid, text.test)
    )
    return Work(train, valid, test, tokenizer, base, 1000 if full else 450)


def decoder_config(base: ModelConfig) -> ModelConfig:
    """Stack as many blocks in one decoder, wider by the parameters that cross-attention took."""
    goal = tools.n_weights(build_model(base))
    layers = base.n_encoder_layers + base.n_decoder_layers
    alone = replace(base, family="decoder", n_encoder_layers=0, n_decoder_layers=layers)
    missing = goal - tools.n_weights(build_model(alone))
    wider = round(missing / (layers * (2 * base.d_model + 1)))
    return replace(alone, d_ff=base.d_ff + wider)


def loss_of(model: Model, arm: str, pairs: EncodedPairs, indices: Sequence[int]) -> Tensor:
    """Return the teacher-forced loss in nats a target token."""
    if isinstance(model, EncoderDecoder):
        batch = pairs.batch(indices, model.config)
        x = model.hidden(batch.source, batch.target, batch.layout, Layout())
        labels = batch.labels
    else:
        row = joined(pairs, indices, model.config)
        both_ways = seeing(prefix_mask(row.source_lengths, row.tokens.shape[1]))
        with use_path(model, both_ways if arm == "prefix LM" else fast):
            x, labels = model.hidden(row.tokens), row.labels
    real = labels != tools.IGNORE  # logits are made at the target's positions only
    return cross_entropy(model.output(x[real]), labels[real])


def train(arm: str, work: Work, lr: float, seed: int) -> tuple[Model, float]:
    """Train a model on the same sentences in the same order; return it and CPU seconds."""
    config = work.base if arm == "encoder-decoder" else decoder_config(work.base)
    with tools.seeded(seed):
        model = build_model(config)
    assert isinstance(model, EncoderDecoder | Decoder)
    batches = order_of(work, seed)

    def loss(step: int) -> Tensor:
        return loss_of(model, arm, work.train, batches[step])

    began = time.process_time()
    tools.fit(model, loss, work.steps, lr, warmup=60)
    return model.eval(), time.process_time() - began


def order_of(work: Work, seed: int) -> list[list[int]]:
    """Return which training sentences each step reads, the same for all families."""
    size = (work.steps, work.rows)
    return np.random.default_rng(seed).integers(len(work.train), size=size).tolist()


def translated(
    model: Model,
    arm: str,
    work: Work,
    indices: Sequence[int],
    path: AbstractContextManager[None] | None = None,
) -> list[list[int]]:
    """Translate greedily to ids, with the cache that each family has."""
    greedy = DecodeConfig(beams=1)
    if isinstance(model, EncoderDecoder):
        batch = work.held_out.batch(indices, model.config)
        lengths = batch.layout.lengths
        with path or nullcontext():
            best = generate(model, batch.source, lengths, greedy, max_lengths=LONGEST)
    else:
        prompts = [[*work.held_out.sources[i], model.config.bos_id] for i in indices]
        with path or use_path(model, reading if arm == "prefix LM" else fast):
            best = complete(model, prompts, greedy, max_lengths=LONGEST)
    return [hypotheses[0].tokens for hypotheses in best]


def flops(model: Model, arm: str, work: Work) -> float:
    """Count millions of operations in matrix products, a sentence, decoded one by one."""
    n = min(COUNTED, len(work.held_out))
    with FlopCounterMode(display=False) as counter:
        for index in range(n):  # the mask does not change the count, and the equation hides none
            translated(model, arm, work, [index], use_path(model, equation))
    return counter.get_total_flops() / n / 1e6


@dataclass(frozen=True)
class Judged:
    """One model on the held-out sentences."""

    exact: float
    bleu: float
    loss: float
    train_seconds: float
    decode_ms: float
    megaflops: float


def judged(model: Model, arm: str, work: Work, seconds: float) -> Judged:
    """Translate the held-out sentences, compare, and count what that takes."""
    everything, references = range(len(work.held_out)), work.held_out.targets
    began = time.process_time()
    outputs = translated(model, arm, work, everything)
    spent = time.process_time() - began
    equal = [output == reference for output, reference in zip(outputs, references, strict=True)]
    texts, wanted = (work.tokenizer.decode_many(ids) for ids in (outputs, references))
    with torch.no_grad():
        loss = float(loss_of(model, arm, work.held_out, everything))
    return Judged(
        100 * fmean(equal),
        bleu(texts, wanted).value,
        loss,
        seconds,
        1000 * spent / len(equal),
        flops(model, arm, work),
    )


def measure(settings: Settings) -> Measured:
    """Train every family with every seed."""
    settings.tell("drawing a small language")
    work, seeds = translation(settings.full), settings.seeds(4, 5)
    arms = [measured_arm(arm, work, seeds, settings) for arm in ARMS]
    lengths = [len(work.train.targets[i]) + 1 for row in order_of(work, seeds[0]) for i in row]
    return Measured(work.steps * work.rows, sum(lengths), arms)


def measured_arm(name: str, work: Work, seeds: Sequence[int], settings: Settings) -> Arm:
    """Train with every seed, at the learning rate with the lower validation loss."""

    def run(lr: float, seed: int) -> tuple[Model, float]:
        settings.tell(f"{name}, learning rate {lr:g}, seed {seed}")
        return train(name, work, lr, seed)

    @torch.no_grad()
    def score(trained: tuple[Model, float]) -> float:
        return -float(loss_of(trained[0], name, work.valid, range(len(work.valid))))

    lr, trained = tools.at_best_rate(run, RATES, seeds, score)
    results = [judged(model, name, work, seconds) for model, seconds in trained]
    figures = (tools.column(results, field.name) for field in fields(Judged))
    return Arm(name, tools.n_weights(trained[0][0]), lr, *figures)


def tables(m: Measured) -> list[Table]:
    """Quality and cost of each family."""
    quality = {
        "family": "{0.name}",
        "parameters": "{0.parameters:,}",
        "rate": "{0.lr:g}",
        "exact match %": lambda arm: tools.plus_minus(arm.exact),
        "BLEU": lambda arm: tools.plus_minus(arm.bleu),
        "loss": lambda arm: tools.plus_minus(arm.loss, 3),
    }
    costs = {
        "family": "{0.name}",
        "training s": lambda arm: tools.plus_minus(arm.train_seconds),
        "ms a sentence": lambda arm: tools.plus_minus(arm.decode_ms, 2),
        "MFLOP a sentence": lambda arm: tools.plus_minus(arm.megaflops, 2),
        "exact % a MFLOP": lambda arm: tools.plus_minus(per_megaflop(arm)),
    }
    return [say.table("arms", quality, m.arms, m=m), say.table("costs", costs, m.arms)]


def per_megaflop(arm: Arm) -> list[float]:
    """Return percent of exact matches over the MFLOP of a sentence, one value a seed."""
    return [exact / cost for exact, cost in zip(arm.exact, arm.megaflops, strict=True)]


PANELS = (  # figure, digits, label and title
    ("exact", 1, "exact match, %", "How many are right (more is better)"),
    ("loss", 3, "loss, nats a target token", "How surprised it is (less is better)"),
    ("megaflops", 2, "MFLOP to decode a sentence", "What a sentence costs (less is better)"),
)


def draw(m: Measured) -> Figure:
    """Quality beside cost, a colour a family."""
    figure, axes = new_figure(10, 3.4, ncols=3)
    for panel, (name, digits, label, title) in zip(axes, PANELS, strict=True):
        figures = [tools.mean_and_spread(sample) for sample in tools.column(m.arms, name)]
        means, spreads = zip(*figures, strict=True)
        style = {"capsize": 3, "color": COLOURS[:3]}
        bars = panel.bar(tools.column(m.arms, "name"), means, yerr=spreads, **style)
        panel.bar_label(bars, fmt=f"%.{digits}f", fontsize=8)
        panel.set(ylabel=label, title=title)
        panel.margins(y=0.15)
        panel.tick_params(axis="x", labelsize=7)
    return figure


def judge(m: Measured) -> Verdict:
    """Is the encoder-decoder the better translator at equal parameters, and at equal cost?"""
    both, prefix, alone = ARMS
    exact = Figures({arm.name: Interval.percent(arm.exact) for arm in m.arms})
    cost = Figures({arm.name: Interval.of(arm.megaflops) for arm in m.arms})
    per_cost = Figures({arm.name: Interval.of(per_megaflop(arm)) for arm in m.arms})
    return say.verdict(
        alone=exact.compare(both, ">", alone),
        prefix=exact.compare(prefix, ">", alone),
        separate=exact.compare(both, ">", prefix),
        cost=[cost.compare(both, "<", rival, form=".2f") for rival in (prefix, alone)],
        per_flop=[per_cost.compare(both, ">", rival) for rival in (prefix, alone)],
    )


LAB = say.make_lab(measure, tables, draw, judge)
