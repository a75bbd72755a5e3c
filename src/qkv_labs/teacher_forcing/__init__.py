"""Lab 11: teacher forcing: one pass for all positions, and errors after a model's own prefixes."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.decode import empty_store, generate
from qkv.demo import demo_corpus
from qkv.model import EncoderDecoder, Layout, NewTokens
from qkv_labs import tools
from qkv_labs.figures import COLOURS, MARKERS, Figure, new_figure
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, compare
from qkv_labs.shared import EncodedPairs, Translations, special_ids, tokenizer_of
from qkv_labs.texts import Texts

say = Texts("teacher_forcing")

FORCED, SCHEDULED, FREE = "teacher forcing", "scheduled sampling", "free-running"
POSITIONS = 12  # few sentences are longer
DISTANCES = 6
LAST_SHARE = 0.5  # of a scheduled decoder's input that is its own, at the last step
EXACT = 1e-9  # logits in float64 that differ less are the same


@dataclass(frozen=True)
class Work:
    """Texts as ids, and how long each model learns from them."""

    train: EncodedPairs
    held_out: EncodedPairs
    settings: dict[str, int]  # of the model
    steps: int
    rows: int = 48
    lr: float = 5e-3

    def build(self, seed: int) -> EncoderDecoder:
        """Build the model with the first weights of a seed."""
        return tools.encoder_decoder(**self.settings, seed=seed, norm_position="post")


@dataclass(frozen=True)
class Judged:
    """One model on held-out sentences; errors in percent of tokens."""

    exact: float  # greedy translations that equal the reference, percent
    true_error: float  # after the true prefix
    loss: float  # nats a token, after the true prefix
    slipped_own: float  # after its first slip, going on by itself, by edit distance
    slipped_true: float  # at the same positions, had it been put right
    true_prefix: list[float]  # error at position 1, 2 …
    own_prefix: list[float]  # the same after own prefixes, aligned by edit distance
    drift_own: list[float]  # error 1, 2 … tokens after the first slip, aligned
    drift_true: list[float]  # at the same positions, had it been put right
    spoilt: list[float]  # error 1, 2 … tokens after one wrong token
    unspoilt: list[float]  # at the same positions without it
    seconds: float  # CPU, training


@dataclass(frozen=True)
class Measured:
    """Both ways to compute, and three ways to train, one model a seed."""

    difference: float  # largest, of logits: at once against step by step
    passes: int  # of the decoder, step by step; at once it is 1
    forced: list[Judged]
    scheduled: list[Judged]
    free: list[Judged]


def translation(full: bool) -> Work:
    """Encode the packaged corpus for a small encoder-decoder."""
    corpus = demo_corpus()
    tokenizer = tokenizer_of(corpus.train, 1000)
    train, held_out = (
        EncodedPairs.of(pairs, tokenizer, tokenizer)
        for pairs in (corpus.train, corpus.valid + corpus.test)
    )
    settings = {**special_ids(tokenizer), "d_model": 64, "n_layers": 1, "max_length": 64}
    return Work(train, held_out, settings, 1000 if full else 300)


def logits_of(model: EncoderDecoder, batch: Translations, target: Tensor | None = None) -> Tensor:
    """Predict all positions in one pass, (B, T, V), after the batch's targets or others."""
    logits: Tensor = model(batch.source, batch.target if target is None else target, batch.layout)
    return logits


@torch.no_grad()
def step_by_step(
    model: EncoderDecoder, batch: Translations, target: Tensor, own: bool = False
) -> Tensor:
    """Predict one position after the other, (B, T, V), after a target or after own tokens."""
    memory = model.remember(batch.source, Layout(lengths=batch.layout.lengths))
    store = empty_store(model, *target.shape)
    logits: list[Tensor] = []
    for position, token in enumerate(target.unbind(1)):
        read = logits[-1].argmax(dim=-1) if own and logits else token
        new = NewTokens(store, position, position + 1)
        logits.append(model.output(model.decode(read[:, None], memory, cache=new)[:, -1]))
    return torch.stack(logits, dim=1)


def mixed_input(
    target: Tensor, guesses: Tensor, share: float, generator: torch.Generator
) -> Tensor:
    """Replace each input token but BOS, with this chance, by the model's guess for it."""
    own = torch.cat([target[:, :1], guesses[:, :-1]], dim=1)
    chosen = torch.rand(target.shape, generator=generator) < share
    chosen[:, 0] = False
    return own.where(chosen, target)


def own_input(model: EncoderDecoder, batch: Translations) -> Tensor:
    """Return what the decoder reads when it writes alone: BOS, then its own greedy tokens."""
    tokens = step_by_step(model, batch, batch.target[:, :-1], own=True).argmax(dim=-1)
    return torch.cat([batch.target[:, :1], tokens], dim=1)


def train(work: Work, seed: int, way: str) -> tuple[EncoderDecoder, float]:
    """Train a model, on the same batches all ways; return it and the CPU seconds."""
    model, order = work.build(seed), np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        chosen = order.integers(len(work.train), size=work.rows)
        batch = work.train.batch(chosen, model.config)
        target = batch.target
        if way == SCHEDULED:
            with torch.no_grad():
                guesses = logits_of(model, batch).argmax(dim=-1)
            target = mixed_input(target, guesses, LAST_SHARE * step / work.steps, generator)
        elif way == FREE:
            target = own_input(model, batch)
        return tools.token_loss(logits_of(model, batch, target), batch.labels)

    began = time.process_time()
    tools.fit(model, loss, work.steps, work.lr, warmup=60)
    return model.eval(), time.process_time() - began


def edit_table(left: Sequence[int], right: Sequence[int]) -> list[list[int]]:
    """Fill the table of edit distances (Levenshtein) between all beginnings of two texts."""
    table = [list(range(len(right) + 1))]
    for i, a in enumerate(left, 1):
        row = [i]
        for j, b in enumerate(right, 1):
            row.append(min(table[-1][j] + 1, row[-1] + 1, table[-1][j - 1] + (a != b)))
        table.append(row)
    return table


def aligned_errors(output: Sequence[int], reference: Sequence[int]) -> list[bool]:
    """Return which tokens of the reference an output lacks, in an alignment of fewest edits."""
    table, errors = edit_table(output, reference), [True] * len(reference)
    i, j = len(output), len(reference)
    while i and j:
        changed = output[i - 1] != reference[j - 1]
        if table[i][j] == table[i - 1][j - 1] + changed:
            i, j = i - 1, j - 1
            errors[j] = changed
        elif table[i][j] == table[i - 1][j] + 1:
            i -= 1
        else:
            j -= 1
    return errors


def first_slip(output: Sequence[int], reference: Sequence[int]) -> int:
    """Return the position of the first wrong token."""
    same = [a == b for a, b in zip(output, reference, strict=False)]
    return same.index(False) if False in same else len(same)


def after_slips(
    outputs: Sequence[Sequence[int]], references: Sequence[Sequence[int]], wrong: Tensor
) -> tuple[float, float, list[float], list[float]]:
    """Return errors in percent after an output's first slip: by itself, and put right.

    First those of all tokens, an output's own by edit distance, since one word too many must not
    spoil all later ones; then those 1, 2 … tokens after the slip.
    """
    edits = n_true = total = 0
    own: list[list[bool]] = [[] for _ in range(DISTANCES)]
    true: list[list[bool]] = [[] for _ in range(DISTANCES)]
    for output, reference, errors in zip(outputs, references, wrong.tolist(), strict=True):
        slip = first_slip(output, reference)
        rest, wanted = output[slip + 1 :], reference[slip + 1 :]
        put_right = errors[slip + 1 : len(reference)]
        if wanted:
            edits += edit_table(rest, wanted)[-1][-1]
            n_true += sum(put_right)
            total += len(wanted)
        pairs = zip(aligned_errors(rest, wanted), put_right, strict=True)
        for distance, (own_error, true_error) in enumerate(islice(pairs, DISTANCES)):
            own[distance].append(own_error)
            true[distance].append(true_error)
    drift_own, drift_true = ([100 * fmean(at or [0]) for at in errors] for errors in (own, true))
    return 100 * edits / max(1, total), 100 * n_true / max(1, total), drift_own, drift_true


@torch.no_grad()
def judged(model: EncoderDecoder, work: Work, seed: int, seconds: float = 0.0) -> Judged:
    """Measure errors after true prefixes, own ones, and true ones with one wrong token."""
    batch = work.held_out.batch(range(len(work.held_out)), model.config)
    labels, logits = batch.labels, logits_of(model, batch)
    real = labels != tools.IGNORE
    wrong = (logits.argmax(dim=-1) != labels) & real
    best = generate(model, batch.source, batch.layout.lengths, DecodeConfig(beams=1))
    outputs = [[*hypotheses[0].tokens, model.config.eos_id] for hypotheses in best]
    references = [row[keep].tolist() for row, keep in zip(labels, real, strict=True)]
    equal = [output == reference for output, reference in zip(outputs, references, strict=True)]
    width = labels.shape[1]
    # aligned: one word too many must not make all later ones wrong
    aligned = map(aligned_errors, outputs, references)
    lacking = torch.tensor([[*row, *[False] * (width - len(row))] for row in aligned])
    positions = range(min(POSITIONS, width))
    own, true, drift_own, drift_true = after_slips(outputs, references, wrong)
    return Judged(
        100 * fmean(equal),
        _percent(wrong, real),
        float(tools.token_loss(logits, labels)),
        own,
        true,
        [_percent(wrong[:, t], real[:, t]) for t in positions],
        [_percent(lacking[:, t], real[:, t]) for t in positions],
        drift_own,
        drift_true,
        *spoilt_errors(model, batch, logits, seed),
        seconds,
    )


def _percent(wrong: Tensor, real: Tensor) -> float:
    return 100 * float((wrong & real).sum()) / max(1, int(real.sum()))


def spoilt_errors(
    model: EncoderDecoder, batch: Translations, logits: Tensor, seed: int
) -> tuple[list[float], list[float]]:
    """Return errors 1, 2 … tokens after one wrong token, and without it, in percent."""
    target, labels = batch.target, batch.labels
    generator = torch.Generator().manual_seed(seed)
    lengths = (labels != tools.IGNORE).sum(dim=1)
    # the position of the wrong input
    position = 1 + (torch.rand(len(target), generator=generator) * (lengths - 1)).long()
    rows = torch.arange(len(target))
    choices = logits[rows, position - 1].clone()  # the likeliest wrong one: a slip of its own kind
    choices[rows, target[rows, position]] = float("-inf")
    spoilt = target.clone()
    spoilt[rows, position] = choices.argmax(dim=-1)
    after, before = (x.argmax(dim=-1) for x in (logits_of(model, batch, spoilt), logits))
    rates: tuple[list[float], list[float]] = ([], [])
    for distance in range(DISTANCES):
        at = (position + distance).clamp(max=labels.shape[1] - 1)
        real = position + distance < lengths
        for guesses, rate in zip((after, before), rates, strict=True):
            rate.append(_percent(guesses[rows, at] != labels[rows, at], real))
    return rates


@torch.no_grad()
def compared(model: EncoderDecoder, work: Work) -> tuple[float, int]:
    """Return the largest difference at once against step by step, in float64, and the passes."""
    batch = work.held_out.batch(range(min(64, len(work.held_out))), model.config)
    exact = copy.deepcopy(model).double()
    stepwise = step_by_step(exact, batch, batch.target)
    return float((logits_of(exact, batch) - stepwise).abs().max()), stepwise.shape[1]


def measure(settings: Settings) -> Measured:
    """Train each way with several seeds, and compare prefixes."""
    settings.tell("reading the packaged corpus")
    work = translation(settings.full)
    models: dict[str, list[Judged]] = {way: [] for way in (FORCED, SCHEDULED, FREE)}
    same = None
    for seed in settings.seeds(3, 5):
        for way, judgements in models.items():
            settings.tell(f"seed {seed}, {way}")
            model, seconds = train(work, seed, way)
            same = same or compared(model, work)
            judgements.append(judged(model, work, seed, seconds))
    assert same is not None
    return Measured(*same, *models.values())


COLUMNS = {
    "exact match %": "exact",
    "true prefix": "true_error",
    "after a slip, own": "slipped_own",
    "put right": "slipped_true",
    "loss": "loss",
    "CPU s": "seconds",
}


def tables(m: Measured) -> list[Table]:
    """Both ways to compute, and three ways to train."""
    passes = (("at once", "1", "–"), ("one by one", str(m.passes), f"{m.difference:.1e}"))
    errors = [
        (
            way,
            *(
                tools.plus_minus(tools.column(models, name), 3 if name == "loss" else 1)
                for name in COLUMNS.values()
            ),
        )
        for way, models in ((FORCED, m.forced), (SCHEDULED, m.scheduled), (FREE, m.free))
    ]
    return [
        say.table("passes", ("", "passes", "largest difference of logits"), passes),
        say.table("errors", ("training", *COLUMNS), errors),
    ]


def draw(m: Measured) -> Figure:
    """Errors by position, after the first slip, and after one wrong token in a true prefix."""
    figure, (left, middle, right) = new_figure(12, 3.6, ncols=3)
    for axes, label, models, name, index in (
        (left, "own prefix", m.forced, "own_prefix", 1),
        (left, "own prefix, scheduled sampling", m.scheduled, "own_prefix", 2),
        (left, "own prefix, free-running", m.free, "own_prefix", 3),
        (left, "true prefix", m.forced, "true_prefix", 0),
        (middle, "going on by itself", m.forced, "drift_own", 1),
        (middle, "put right", m.forced, "drift_true", 0),
        (right, "one wrong token", m.forced, "spoilt", 1),
        (right, "none", m.forced, "unspoilt", 0),
    ):
        curves = list(zip(*tools.column(models, name), strict=True))
        x, colour = range(1, len(curves) + 1), COLOURS[index]
        axes.plot(x, list(map(fmean, curves)), MARKERS[index] + "-", color=colour, label=label)
        band = list(map(min, curves)), list(map(max, curves))
        axes.fill_between(x, *band, color=colour, alpha=0.2, linewidth=0)
        axes.set(ylim=(0, 100), ylabel="wrong tokens, %")
        axes.legend()
    left.set(xlabel="position in the sentence", title="Errors by position, aligned")
    middle.set(xlabel="tokens after the first slip", title="After the first slip, aligned")
    right.set(xlabel="tokens after the wrong one", title="After one wrong token in a true prefix")
    return figure


def judge(m: Measured) -> Verdict:
    """One pass must equal many; what does an own prefix cost, does it grow, and what helps?"""

    def of(models: Sequence[Judged], name: str) -> Interval:
        return Interval.percent(tools.column(models, name))

    def at(name: str, distance: int) -> Interval:
        return Interval.percent([model[distance] for model in tools.column(m.forced, name)])

    ways = {FORCED: m.forced, SCHEDULED: m.scheduled, FREE: m.free}
    exact = Figures({way: of(models, "exact") for way, models in ways.items()})
    own, put_right = (of(m.forced, name) for name in ("slipped_own", "slipped_true"))
    first, last = "1 token after", f"{DISTANCES} tokens after"
    return say.verdict(
        {"passes": m.passes, "n": DISTANCES},
        once=compare(m.difference, "<", EXACT, form=".1g"),
        stable=exact.compare(FREE, "<", FORCED),
        costs=compare(own, ">", put_right, ("after a slip, own", "put right")),
        accumulates=compare(at("drift_own", -1), ">", at("drift_own", 0), (last, first)),
        lasts=compare(
            at("spoilt", -1), ">", at("unspoilt", -1), ("one wrong token", "none"), margin=1
        ),
        scheduled=exact.compare(SCHEDULED, ">", FORCED),
    )


LAB = say.make_lab(measure, tables, draw, judge)
