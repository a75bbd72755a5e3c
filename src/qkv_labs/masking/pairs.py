"""The second half of lab 19: what predicting the next sentence is worth when labels are few."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data import Framed, frame
from qkv.model import Encoder
from qkv_labs import tools
from qkv_labs.masking.documents import SPECIAL, TOPICS, WORDS, Document, Line, documents
from qkv_labs.masking.rows import Rows, Special, hide, small_encoder

STARTS = ("no pre-training", "masks", "masks + pairs")
TASKS = ("pair: same person?", "pair: same mood?", "single: which topic?")
IDS = Special(*range(len(SPECIAL)))

Pair = tuple[Line, Line, int]
Examples = tuple[list[Framed], list[int]]  # texts and their labels


@dataclass(frozen=True)
class PairSizes:
    """How much is drawn and learnt."""

    documents: int = 2000  # of four sentences each; a third as many more may be held out
    steps: int = 420  # of pre-training
    rows: int = 32
    tune_steps: int = 90
    pair_labels: int = 400
    single_labels: int = 40
    judged: int = 1000  # examples of each task
    width: int = 48


@dataclass(frozen=True)
class Pages:
    """Documents to learn from, and held-out ones."""

    train: list[Document]
    held_out: list[Document]
    sizes: PairSizes

    def build(self, seed: int, **settings: Any) -> Encoder:
        """Build an encoder with the first weights of a seed."""
        return small_encoder(len(WORDS), self.sizes.width, IDS, seed, **settings)


def pages_of(sizes: PairSizes) -> Pages:
    """Draw documents; no sentence of those held out is among those learnt from."""
    random = Random(0)
    train = documents(sizes.documents, 4, random)
    seen = {line.words for document in train for line in document}
    others = documents(sizes.documents // 3, 4, random)
    held_out = [page for page in others if seen.isdisjoint(line.words for line in page)]
    return Pages(train, held_out, sizes)


def next_pairs(pages: Sequence[Document], n: int, random: Random) -> list[Pair]:
    """Draw pairs: half are neighbours, the others' second sentence is from another document."""
    pairs = []
    for index in range(n):
        own, other = random.sample(pages, 2)
        first, label = random.randrange(len(own) - 1), index % 2
        pairs.append((own[first], own[first + 1] if label else random.choice(other), label))
    return pairs


def asked_pairs(
    pages: Sequence[Document], asked: str, kept: Sequence[str], n: int, random: Random
) -> list[Pair]:
    """Draw sentences alike in what is `kept`; half of them are alike in what is asked."""
    key, groups = attrgetter(*kept), defaultdict[Any, list[Line]](list)
    lines = [line for document in pages for line in document]
    for line in lines:
        groups[key(line)].append(line)
    pairs: list[Pair] = []
    while len(pairs) < n:
        first, label = random.choice(lines), len(pairs) % 2
        second = random.choice(groups[key(first)])
        if second is not first and (getattr(first, asked) == getattr(second, asked)) == label:
            pairs.append((first, second, label))
    return pairs


def framed_pairs(pairs: Sequence[Pair]) -> Examples:
    """Frame two sentences in one sequence, with whether the answer is yes."""
    framed = [frame(first.ids, second.ids, IDS) for first, second, _ in pairs]
    return framed, [label for *_, label in pairs]


def pair_logits(model: Encoder, rows: Rows, vectors: Tensor) -> Tensor:
    """Return an encoder's logits of whether pairs are neighbours, (B, 2)."""
    assert model.pair_head is not None
    return model.pair_head(model.pooler(vectors, rows.layout))


def paired(pages: Pages, with_pairs: bool, seed: int) -> Encoder:
    """Train an encoder on hidden words of pairs, and perhaps on which are neighbours."""
    model, order, random = pages.build(seed), Random(seed), np.random.default_rng(seed)

    def loss(step: int) -> Tensor:
        framed, labels = framed_pairs(next_pairs(pages.train, pages.sizes.rows, order))
        rows = Rows.of(framed, IDS)
        seen, hidden = hide(rows, IDS, len(WORDS), 0.15, random)
        vectors = seen.hidden(model)
        guessed = F.cross_entropy(model.head(vectors[hidden]), rows.tokens[hidden])
        if not with_pairs:
            return guessed
        return guessed + F.cross_entropy(pair_logits(model, seen, vectors), torch.tensor(labels))

    tools.fit(model, loss, pages.sizes.steps, lr=5e-3)
    return model.eval()


@torch.no_grad()
def told(model: Encoder, pages: Pages) -> float:
    """Return the accuracy of telling neighbours in held-out documents, in percent."""
    framed, labels = framed_pairs(next_pairs(pages.held_out, pages.sizes.judged, Random(1)))
    rows = Rows.of(framed, IDS)
    guesses = pair_logits(model, rows, rows.hidden(model)).argmax(dim=-1)
    return 100 * float((guesses == torch.tensor(labels)).float().mean())


@dataclass(frozen=True)
class Task:
    """A task to tune for: framed texts and their labels."""

    n_labels: int
    train: Examples
    held_out: Examples


def tasks_of(pages: Pages, seed: int) -> tuple[Task, ...]:
    """Draw each of `TASKS`: the seed draws the labelled examples, and all are judged alike."""
    sizes, tasks, random, fixed = pages.sizes, [], Random(seed), Random(1)
    # The topic is the same in all pairs, so that what tells neighbours best does not help.
    for asked, kept in (("person", ["topic"]), ("mood", ["topic", "person"])):
        train = asked_pairs(pages.train, asked, kept, sizes.pair_labels, random)
        held_out = asked_pairs(pages.held_out, asked, kept, sizes.judged, fixed)
        tasks.append(Task(2, framed_pairs(train), framed_pairs(held_out)))
    singles = _topics(pages.train, sizes.single_labels, random)
    return (*tasks, Task(len(TOPICS), singles, _topics(pages.held_out, sizes.judged, fixed)))


def _topics(pages: Sequence[Document], n: int, random: Random) -> Examples:
    lines = random.sample([line for document in pages for line in document], n)
    return [frame(line.ids, None, IDS) for line in lines], [line.topic for line in lines]


def tuned(start: Encoder, task: Task, pages: Pages, seed: int) -> float:
    """Fine-tune all weights, and return the held-out accuracy in percent."""
    model = pages.build(seed, head="sequence", n_labels=task.n_labels, pair_head=False)
    body = {k: v for k, v in start.state_dict().items() if not k.startswith(("head", "pair_head"))}
    model.load_state_dict(body, strict=False)
    order, (framed, labels) = Random(seed), task.train

    def logits(framed: Sequence[Framed]) -> Tensor:
        rows = Rows.of(framed, IDS)
        return model(rows.tokens, rows.layout, rows.segments)

    def loss(step: int) -> Tensor:
        chosen = order.sample(range(len(framed)), min(32, len(framed)))
        wanted = torch.tensor([labels[i] for i in chosen])
        return F.cross_entropy(logits([framed[i] for i in chosen]), wanted)

    tools.fit(model.train(), loss, pages.sizes.tune_steps, lr=2e-3)
    model.eval()
    with torch.no_grad():
        right = logits(task.held_out[0]).argmax(dim=-1) == torch.tensor(task.held_out[1])
    return 100 * float(right.float().mean())


def worth(pages: Pages, seed: int) -> tuple[float, list[list[float]]]:
    """Pre-train with and without the pair objective, then tune every start for every task.

    Return the accuracy of the objective itself, and that of each of `TASKS` from each of `STARTS`.
    """
    without, with_pairs = (paired(pages, both, seed) for both in (False, True))
    starts = (pages.build(seed), without, with_pairs)
    right = [
        [tuned(start, task, pages, seed) for start in starts] for task in tasks_of(pages, seed)
    ]
    return told(with_pairs, pages), right
