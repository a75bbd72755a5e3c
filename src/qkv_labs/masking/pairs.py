"""The second half of lab 19: what telling the next sentence is worth when labels are few."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import torch
from torch import Tensor

from qkv.config import MaskConfig, ModelConfig
from qkv.data import Framed, Specials, frame
from qkv.model import Encoder
from qkv.training.objectives import encoded, hidden_tokens, layout_of, one_class
from qkv_labs.masking_documents import (
    BOS,
    EOS,
    MASK,
    PAD,
    SPECIAL,
    TOPICS,
    WORDS,
    Document,
    Line,
    documents,
)
from qkv_labs.masking_tools import fresh, masked_batch, masker_of, sequences, small_encoder
from qkv_labs.tools import fit

STARTS = ("no pre-training", "masks", "masks + pairs")
TASKS = ("pair: same person?", "pair: same mood?", "single: which topic?")
SPECIALS = Specials(PAD, BOS, EOS)

Pair = tuple[Line, Line, int]


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
    seeds: int = 4
    width: int = 48


@dataclass(frozen=True)
class Pages:
    """Documents to learn from, and others to be judged by."""

    train: list[Document]
    held_out: list[Document]
    config: ModelConfig
    sizes: PairSizes


def pages_of(sizes: PairSizes) -> Pages:
    """Draw documents; no sentence of those held out is among those learnt from."""
    random = Random(0)
    train = documents(sizes.documents, 4, random)
    seen = {line.words for document in train for line in document}
    others = documents(sizes.documents // 3, 4, random)
    held_out = [one for one in others if seen.isdisjoint(line.words for line in one)]
    return Pages(train, held_out, small_encoder(len(WORDS), sizes.width, SPECIALS), sizes)


def next_pairs(pages: Sequence[Document], n: int, random: Random) -> list[Pair]:
    """Half are neighbours in a document; the others' second sentence is from another one."""
    found = []
    for index in range(n):
        own, other = random.sample(pages, 2)
        place, label = random.randrange(len(own) - 1), index % 2
        found.append((own[place], own[place + 1] if label else random.choice(other), label))
    return found


def asked_pairs(
    pages: Sequence[Document], asked: str, kept: Sequence[str], n: int, random: Random
) -> list[Pair]:
    """Sentences alike in what is `kept`; half of them are so in what is asked, half are not."""
    groups: dict[tuple[int, ...], list[Line]] = defaultdict(list)
    lines = [line for document in pages for line in document]
    for line in lines:
        groups[tuple(getattr(line, name) for name in kept)].append(line)
    found: list[Pair] = []
    while len(found) < n:
        first, label = random.choice(lines), len(found) % 2
        group = groups[tuple(getattr(first, name) for name in kept)]
        second = random.choice(group)
        if second is not first and (getattr(first, asked) == getattr(second, asked)) == label:
            found.append((first, second, label))
    return found


def paired(pages: Pages, with_pairs: bool, seed: int) -> Encoder:
    """An encoder that guessed hidden words of pairs, and perhaps learnt which are neighbours."""
    model, rows = fresh(pages.config, seed), pages.sizes.rows
    masker = masker_of(MaskConfig(), MASK, range(len(SPECIAL)), len(WORDS))
    order, random = Random(seed), np.random.default_rng(seed)

    def loss(step: int) -> Tensor:
        drawn = next_pairs(pages.train, rows, order)
        framed, labels = framed_pairs(drawn)
        batch = replace(masked_batch(framed, masker, random, PAD), pairs=torch.tensor(labels))
        weight = batch.n_labels / rows if with_pairs else 0.0  # both means count alike
        return hidden_tokens(weight)(model, batch, 0.0) / batch.n_labels

    fit(model.parameters(), loss, pages.sizes.steps, lr=5e-3)
    return model.eval()


Examples = tuple[list[Framed], list[int]]


def framed_pairs(pairs: Sequence[Pair]) -> Examples:
    """Two sentences in one sequence, and whether the answer is yes."""
    framed = [frame(first.ids, second.ids, SPECIALS) for first, second, _ in pairs]
    return framed, [label for *_, label in pairs]


@torch.no_grad()
def told(model: Encoder, pages: Pages) -> float:
    """Neighbours told from others in documents held out, in percent."""
    pairs = next_pairs(pages.held_out, pages.sizes.judged, Random(1))
    batch = sequences(*framed_pairs(pairs), SPECIALS)
    assert model.pair_head is not None
    pooled = model.pooler(encoded(model, batch.target), layout_of(batch.target))
    said = model.pair_head(pooled).argmax(dim=-1)
    return 100 * float((said == batch.labels).float().mean())


@dataclass(frozen=True)
class Task:
    """What an encoder is tuned for: framed texts and their labels, in two parts."""

    n_labels: int
    train: Examples
    held_out: Examples


def tasks_of(pages: Pages, seed: int) -> tuple[Task, ...]:
    """One for each of `TASKS`: the seed draws the labelled examples, and all are judged alike."""
    sizes = pages.sizes
    parts = ((pages.train, Random(seed), False), (pages.held_out, Random(1), True))
    found = []
    # The topic is the same in all pairs, so that what tells neighbours best does not help.
    for asked, kept in (("person", ["topic"]), ("mood", ["topic", "person"])):
        train, judged = (
            framed_pairs(
                asked_pairs(part, asked, kept, sizes.judged if last else sizes.pair_labels, random)
            )
            for part, random, last in parts
        )
        found.append(Task(2, train, judged))
    train, judged = (
        _topics(part, sizes.judged if last else sizes.single_labels, random)
        for part, random, last in parts
    )
    return (*found, Task(len(TOPICS), train, judged))


def _topics(pages: Sequence[Document], n: int, random: Random) -> Examples:
    lines = random.sample([line for document in pages for line in document], n)
    return [frame(line.ids, None, SPECIALS) for line in lines], [line.topic for line in lines]


def tuned(start: Encoder, task: Task, steps: int, seed: int) -> float:
    """Right answers on what is held out, in percent, after fine-tuning all weights."""
    config = replace(start.config, head="sequence", n_labels=task.n_labels, pair_head=False)
    model = fresh(config, seed)
    kept = {k: v for k, v in start.state_dict().items() if not k.startswith(("head", "pair_head"))}
    model.load_state_dict(kept, strict=False)
    order, (framed, labels) = Random(seed), task.train

    def loss(step: int) -> Tensor:
        chosen = order.sample(range(len(framed)), min(32, len(framed)))
        batch = sequences([framed[i] for i in chosen], [labels[i] for i in chosen], SPECIALS)
        return one_class()(model, batch, 0.0) / batch.n_labels

    fit(model.train().parameters(), loss, steps, lr=2e-3)
    batch = sequences(*task.held_out, SPECIALS)
    with torch.no_grad():
        said = model.eval()(batch.target.tokens, layout_of(batch.target), batch.target.segments)
    return 100 * float((said.argmax(dim=-1) == batch.labels).float().mean())


@dataclass(frozen=True)
class Worth:
    """What one seed found: the objective itself, and each task from each of `STARTS`."""

    told: float
    right: list[list[float]]  # for each of `TASKS`, for each of `STARTS`


def worth(pages: Pages, seed: int) -> Worth:
    """Pre-train with and without the pair objective, then tune every start for every task."""
    without, with_pairs = (paired(pages, both, seed) for both in (False, True))
    starts = (fresh(pages.config, seed), without, with_pairs)
    right = [
        [tuned(start, task, pages.sizes.tune_steps, seed) for start in starts]
        for task in tasks_of(pages, seed)
    ]
    return Worth(told(with_pairs, pages), right)
