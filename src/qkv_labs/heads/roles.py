"""What the heads of a trained translator look at, and what is lost when they are silenced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from statistics import fmean

import torch
from torch import Tensor

from qkv.demo import lexicon
from qkv.evaluation import exact_match
from qkv.model import Attend, Attention, EncoderDecoder, Layout, Mask, scores, use_path, weights
from qkv.tasks import Translator
from qkv_labs.shared import EncodedPairs, Pair
from qkv_labs.tools import IGNORE, token_loss

MAINLY = 0.5  # a head that spends this much of its attention on one thing has a role
NO_ROLE = "no single thing"
ORDERS = ("least important first", "in random order", "most important first")
_DICTIONARY = {
    **{noun.chinese: noun.english for noun in lexicon.NOUNS.values()},
    **{relative.chinese: relative.english for relative in lexicon.RELATIVES},
    **lexicon.NAMES,
}
Rows = list[tuple[int, list[int]]]  # queries, and the keys of each
Head = tuple[int, int]  # index of an attention in the model, and of a head in it


@dataclass(frozen=True)
class HeadRole:
    """A head of the translator: what it looks at, and what is lost without it."""

    where: str
    head: int
    role: str
    share: float  # of its attention on what the role says, 0 to 1
    chance: float  # what even attention would give
    loss_rise: float  # nats a token, with this head alone silenced
    exact_match: float  # percent, likewise


@dataclass(frozen=True)
class Silenced:
    """How good the translator is with so many heads silenced."""

    order: str
    count: int
    token_accuracy: float  # percent of teacher-forced tokens
    exact_match: float  # percent of greedy translations


def attentions(model: EncoderDecoder) -> dict[str, Attention]:
    """Return every attention of a translator by name, in the order of its layers."""
    return {
        name.replace(".blocks.", " ").replace("_attention", "").replace(".", " "): module
        for name, module in model.named_modules()
        if isinstance(module, Attention)
    }


def attend_with(silent: Sequence[int] = (), seen: list[Tensor] | None = None) -> Attend:
    """Return a path that zeroes the output of some heads, and may record the weights."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        scale: float,
        bias: Tensor | None = None,
        dropout: float = 0.0,
        cap: float = 0.0,
    ) -> Tensor:
        groups = query.shape[1] // key.shape[1]  # queries that share a key and a value
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        weight = weights(scores(query, key, mask, scale, bias, cap))
        if seen is not None:
            seen.append(weight)
        return (weight @ value).index_fill(1, torch.tensor(silent, dtype=torch.int64), 0.0)

    return attend


class Exam:
    """The translator on some sentence pairs: teacher-forced in one batch, and greedy."""

    def __init__(self, subject: Translator, pairs: Sequence[Pair]) -> None:
        self.subject, self.pairs = subject, pairs
        self.modules = list(attentions(subject.model).values())
        tokenizers = subject.tokenizers
        encoded = EncodedPairs.of(pairs, tokenizers.source, tokenizers.target)
        self.batch = encoded.batch(range(len(pairs)), subject.model.config)

    @property
    def heads(self) -> list[Head]:
        """All heads of the model."""
        return [(at, head) for at, part in enumerate(self.modules) for head in range(part.n_heads)]

    @contextmanager
    def silenced(self, heads: Sequence[Head]) -> Iterator[None]:
        """Silence these heads inside the block."""
        with ExitStack() as stack, torch.inference_mode():
            for at, module in enumerate(self.modules):
                silent = [head for where, head in heads if where == at]
                stack.enter_context(use_path(module, attend_with(silent)))
            yield

    def forced(self, silent: Sequence[Head]) -> tuple[float, float]:
        """Return the loss in nats a token, and the percent of tokens that are the likeliest."""
        batch, real = self.batch, self.batch.labels != IGNORE
        model = self.subject.model.eval()
        with self.silenced(silent):
            logits = model(batch.source, batch.target, batch.layout, Layout(real.sum(dim=1)))
        right = (logits.argmax(-1) == batch.labels)[real]
        return float(token_loss(logits, batch.labels)), 100 * float(right.float().mean())

    def exact(self, silent: Sequence[Head]) -> float:
        """Return the percent of greedy translations that are the reference."""
        with self.silenced(silent):
            outputs = self.subject.translate([source for source, _ in self.pairs], beams=1)
        return exact_match(outputs, [target for _, target in self.pairs]).value


def least_important_first(exam: Exam) -> list[Head]:
    """Silence, one after another, the head whose loss hurts least beside those already silent."""
    order: list[Head] = []
    while left := [head for head in exam.heads if head not in order]:
        order.append(min(left, key=lambda head: exam.forced([*order, head])[0]))
    return order


def silencing_curves(
    exam: Exam, order: Sequence[Head], seed: int, draws: int = 2, step: int = 1
) -> list[Silenced]:
    """Silence more and more heads, in an order, in its reverse, and in random ones."""
    random = [Random(seed + draw).sample(order, len(order)) for draw in range(draws)]
    curve = []
    for name, ways in zip(ORDERS, ([list(order)], random, [list(order)[::-1]]), strict=True):
        for count in range(0, len(order) + 1, step):
            accuracies = [exam.forced(way[:count])[1] for way in ways]
            exact = [exam.exact(way[:count]) for way in ways]
            curve.append(Silenced(name, count, fmean(accuracies), fmean(exact)))
    return curve


def aligned(subject: Translator, pair: Pair) -> Rows:
    """Return target positions that predict a known noun, and its tokens in the source."""
    source, target = pair
    source_spans = subject.tokenizers.source.encode_spans(source).spans
    target_spans = subject.tokenizers.target.encode_spans(target).spans
    rows = []
    for chinese, english in _DICTIONARY.items():
        starts = [match.start() for match in re.finditer(rf"\b{english}(?:e?s)?\b", target)]
        if source.count(chinese) == 1 == len(starts):
            first = source.index(chinese)
            last = first + len(chinese)
            keys = [key for key, (a, b) in enumerate(source_spans) if a < last and b > first]
            row = next(row for row, (_, end) in enumerate(target_spans) if end > starts[0])
            rows.append((row, keys))
    return rows


def looks(where: str, n_queries: int, n_keys: int, nouns: Rows) -> dict[str, Rows]:
    """List what a query could look at, and its keys, for queries where these all differ."""
    cross, causal = where.endswith("cross"), where.startswith("decoder")
    rows = range(2, n_queries if causal else n_queries - 2)
    steps = {} if cross else {"the token before": -1, "itself": 0, "the token after": 1}
    targets = {look: [(row, [row + step]) for row in rows] for look, step in steps.items()}
    for look, key in (("the first token", 0), ("the end mark", n_keys - 1)):
        targets[look] = [(row, [key]) for row in rows]
    if cross:
        targets["the word's source"] = nouns
    elif causal:
        del targets["the token after"], targets["the end mark"]
    return targets


def attention_shares(
    subject: Translator, pairs: Sequence[Pair]
) -> dict[Head, dict[str, tuple[float, float]]]:
    """Return the mean share of attention of each head on each target, and the even share."""
    modules, config = attentions(subject.model), subject.model.config
    shares: dict[Head, dict[str, list[tuple[float, float]]]] = {}
    for source, target in pairs:
        sources = torch.tensor([[*subject.tokenizers.source.encode(source), config.eos_id]])
        targets = torch.tensor([[config.bos_id, *subject.tokenizers.target.encode(target)]])
        nouns = aligned(subject, (source, target))
        seen: list[Tensor] = []
        with use_path(subject.model, attend_with(seen=seen)), torch.inference_mode():
            subject.model.eval()(sources, targets)
        for at, (where, weight) in enumerate(zip(modules, seen, strict=True)):
            n_queries, n_keys = weight.shape[2:]
            for look, rows in looks(where, n_queries, n_keys, nouns).items():
                for row, keys in rows:
                    visible = row + 1 if where.startswith("decoder") and "self" in where else n_keys
                    for head, share in enumerate(weight[0, :, row, keys].sum(-1).tolist()):
                        columns = shares.setdefault((at, head), {})
                        columns.setdefault(look, []).append((share, len(keys) / visible))
    return {
        head: {
            look: (fmean(a for a, _ in rows), fmean(b for _, b in rows))
            for look, rows in columns.items()
        }
        for head, columns in shares.items()
    }


def find_roles(subject: Translator, pairs: Sequence[Pair], exam: Exam) -> list[HeadRole]:
    """Name each head's role by what it looks at most, and what silencing it alone costs."""
    names, whole = list(attentions(subject.model)), exam.forced([])[0]
    roles = []
    for (at, head), columns in attention_shares(subject, pairs).items():
        look = max(columns, key=lambda look: columns[look][0])
        share, chance = columns[look]
        role = look if share >= MAINLY else NO_ROLE
        rise = exam.forced([(at, head)])[0] - whole
        exact = exam.exact([(at, head)])
        roles.append(HeadRole(names[at], head, role, share, chance, rise, exact))
    return roles
