"""Lab 19: how much an encoder should have to guess, and what predicting pairs is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import TokenizerConfig
from qkv.data import frame
from qkv.demo import PATTERNS as GRAMMAR
from qkv.model import Encoder, pool
from qkv.text import train_tokenizer
from qkv_labs import tools
from qkv_labs.figures import COLOURS, Figure, error_bars, new_figure
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, compare
from qkv_labs.masking.documents import TOPICS
from qkv_labs.masking.pairs import STARTS, TASKS, PairSizes, pages_of, worth
from qkv_labs.masking.rows import Rows, Special, hide, small_encoder
from qkv_labs.texts import Texts

say = Texts("masking")

PATTERNS = (  # few words, so that a small encoder gets to know them soon
    *("identity", "person_quality", "comparison", "location"),
    *("having_family", "feeling_for_people"),
)
RATES = (0.05, 0.15, 0.30, 0.50, 0.80)
USUAL = 0.15
CHANCE = (50.0, 50.0, 100 / len(TOPICS))  # of each of `TASKS`


@dataclass(frozen=True)
class Sizes:
    """How much is drawn and learnt."""

    each: int = 1000  # sentences drawn of each pattern; a fifth is held out
    steps: int = 200
    rows: int = 60
    labelled: int = 2000  # sentences that the probe learns from
    width: int = 48


@dataclass(frozen=True)
class Text:
    """A sentence as ids, and the pattern that made it."""

    ids: list[int]
    pattern: int


@dataclass(frozen=True)
class Work:
    """Sentences to learn from and held-out ones, and how they are read."""

    train: list[Text]
    held_out: list[Text]
    special: Special
    vocab_size: int
    sizes: Sizes

    def rows(self, texts: Sequence[Text]) -> Rows:
        """Lay texts in rows."""
        return Rows.of([frame(text.ids, None, self.special) for text in texts], self.special)

    def hide(
        self, rows: Rows, share: float, random: np.random.Generator, **how: float
    ) -> tuple[Rows, Tensor]:
        """Hide a share of the tokens; return also which."""
        return hide(rows, self.special, self.vocab_size, share, random, **how)


@dataclass(frozen=True)
class Measured:
    """Held-out accuracy in percent, a list a rate or a start, one value a seed."""

    filled: list[list[float]]  # tokens found again with 15 % hidden, for each of `RATES`
    probed: list[list[float]]  # patterns told by a linear probe, for each of `RATES`
    told: list[float]  # next sentences, by the encoders that learnt to tell them
    tasks: list[list[list[float]]]  # for each of `TASKS`, for each of `STARTS`


def texts_of(sizes: Sizes) -> Work:
    """Draw Chinese sentences of every pattern; no held-out one is among those learnt from."""
    random, drawn = Random(0), {}
    for number, name in enumerate(PATTERNS):
        for _ in range(sizes.each):
            drawn[GRAMMAR[name](random).chinese] = number
    lines = list(drawn)
    random.shuffle(lines)
    tokenizer = train_tokenizer(lines, TokenizerConfig(kind="char", vocab_size=900))
    tokenizer.add_special(["<mask>"])
    ids = tokenizer.encode_many(lines)
    every = [Text(own, drawn[line]) for line, own in zip(lines, ids, strict=True)]
    cut = len(every) // 5
    named = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id)
    special = Special(*named, others=tuple(tokenizer.special_ids))
    return Work(every[cut:], every[:cut], special, len(tokenizer), sizes)


def filling(work: Work, rate: float, seed: int) -> Encoder:
    """Train an encoder to predict this share of single sentences' tokens."""
    model = small_encoder(work.vocab_size, work.sizes.width, work.special, seed)
    order, random = Random(seed), np.random.default_rng(seed)

    def loss(step: int) -> Tensor:
        rows = work.rows(order.sample(work.train, work.sizes.rows))
        seen, hidden = work.hide(rows, rate, random)
        return F.cross_entropy(model.head(seen.hidden(model)[hidden]), rows.tokens[hidden])

    tools.fit(model, loss, work.sizes.steps, lr=5e-3)
    return model.eval()


@torch.no_grad()
def filled(model: Encoder, work: Work) -> float:
    """Return the share of hidden tokens found again in held-out sentences, in percent."""
    rows = work.rows(work.held_out)
    # the same tokens for all models, all of them behind the mask
    seen, hidden = work.hide(rows, 0.15, np.random.default_rng(0), drawn=0.0, kept=0.0)
    guesses = model.head(seen.hidden(model)[hidden]).argmax(dim=-1)
    return 100 * float((guesses == rows.tokens[hidden]).float().mean())


@torch.no_grad()
def probed(model: Encoder, work: Work) -> float:
    """Return the accuracy of ridge regression from frozen mean vectors to patterns, in percent."""

    def vectors(texts: Sequence[Text]) -> tuple[Tensor, Tensor]:
        rows = work.rows(texts)
        x = pool(rows.hidden(model), rows.layout, "mean").double()
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1), torch.tensor(
            [text.pattern for text in texts]
        )

    x, labels = vectors(work.train[: work.sizes.labelled])
    wanted = F.one_hot(labels, len(PATTERNS)).double()
    ridge = 1e-3 * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(x.T @ x + ridge, x.T @ wanted)
    x, labels = vectors(work.held_out)
    return 100 * float(((x @ weights).argmax(dim=-1) == labels).float().mean())


def measure(settings: Settings) -> Measured:
    """Train with all rates, then tune all starts."""
    sizes = settings.pick(Sizes(), Sizes(each=3000, steps=1500))
    pair_sizes = settings.pick(PairSizes(), PairSizes(steps=1500, tune_steps=200))
    work, fills, probes = texts_of(sizes), [], []
    for rate in RATES:
        settings.tell(f"hiding {rate:.0%}")
        models = [filling(work, rate, seed) for seed in settings.seeds(3, 5)]
        fills.append([filled(model, work) for model in models])
        probes.append([probed(model, work) for model in models])
    pages, results = pages_of(pair_sizes), []
    for seed in settings.seeds(4, 6):
        settings.tell(f"pairs and fine-tuning, seed {seed}")
        results.append(worth(pages, seed))
    told, right = zip(*results, strict=True)
    tasks = [
        [list(start) for start in zip(*task, strict=True)] for task in zip(*right, strict=True)
    ]
    return Measured(fills, probes, list(told), tasks)


def tables(m: Measured) -> list[Table]:
    """The rates, and the starts."""

    def rows(names: Sequence[str], *columns: list[list[float]]) -> list[tuple[str, ...]]:
        lines = zip(names, *columns, strict=True)
        return [(name, *map(tools.plus_minus, row)) for name, *row in lines]

    rates = rows([f"{rate:.0%}" for rate in RATES], m.filled, m.probed)
    starts = [*rows(STARTS, *m.tasks), ("chance", *(f"{share:.1f}" for share in CHANCE))]
    return [
        say.table("rates", ("hidden", "fill, 15 % hidden", "linear probe: pattern"), rates),
        say.table("starts", ("start", *TASKS), starts, told=tools.plus_minus(m.told)),
    ]


def draw(m: Measured) -> Figure:
    """Accuracy by rate, and by start."""
    figure, (left, right) = new_figure(11, 3.8, ncols=2)
    lines = {"fill, always 15 % hidden": m.filled, "linear probe: pattern": m.probed}
    for index, (label, samples) in enumerate(lines.items()):
        error_bars(left, [100 * rate for rate in RATES], samples, index, label)
    for index, start in enumerate(STARTS):
        x = [task + 0.27 * (index - 1) for task in range(len(TASKS))]
        heights = [fmean(task[index]) for task in m.tasks]
        bars = right.bar(x, heights, 0.25, label=start, color=COLOURS[index])
        right.bar_label(bars, fmt="%.0f", label_type="center", color="white")
        for at, task in zip(x, m.tasks, strict=True):  # seeds fail or succeed at once
            right.plot([at] * len(task[index]), task[index], "o", color="0.15", markersize=3)
    for index, share in enumerate(CHANCE):
        right.plot([index - 0.42, index + 0.42], [share, share], color="0.2", linestyle=":")
    left.axvline(15, color="0.6", linestyle=":")
    left.set(xlabel="tokens hidden, %", ylabel="right, %", title="What each masking rate teaches")
    right.set(ylabel="right, %", ylim=(0, 120), yticks=range(0, 101, 20))
    right.set_title("What pre-training is worth (a dot a seed, dotted: chance)")
    right.set_xticks(range(len(TASKS)), TASKS)
    left.legend()
    right.legend(ncols=3, loc="upper center")
    return figure


def judge(m: Measured) -> Verdict:
    """Does hiding 15 % teach, does another rate teach more, and what do pairs add?"""
    filled = {rate: Interval.percent(seeds) for rate, seeds in zip(RATES, m.filled, strict=True)}
    others = [rate for rate in RATES if rate != USUAL]
    best = max(others, key=lambda rate: filled[rate].middle)
    none, masks, pairs = STARTS
    person, mood, topic = (
        Figures(zip(STARTS, map(Interval.percent, starts), strict=True)) for starts in m.tasks
    )
    return say.verdict(
        teaches=compare(Interval.percent(m.probed[RATES.index(USUAL)]), ">", 90, f"{USUAL:.0%}"),
        tuned=[
            compare(right[masks], ">", right[none], (f"{task} {masks}", none))
            for task, right in zip(TASKS[:2], (person, mood), strict=True)
        ],
        rate=compare(filled[best], "<", filled[USUAL], (f"{best:.0%}", f"{USUAL:.0%}"), margin=-1),
        person=person.compare(pairs, ">", masks),
        mood=mood.compare(pairs, ">", masks),
        single=topic.compare(pairs, ">", masks, margin=-5),
    )


LAB = say.make_lab(measure, tables, draw, judge)
