"""What the heads of a trained translator look at, and what is lost when they fall silent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from random import Random
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data import EncodedPairs, Pair, Ragged, Specials, padded_batch
from qkv.demo.lexicon import NAMES, NOUNS, RELATIVES
from qkv.evaluate import exact_match
from qkv.model import Attention, EncoderDecoder, Layout, Mask, scores, weights
from qkv.model.attention import Attend
from qkv.tasks import Translator

MAINLY = 0.5  # a head that spends this much of its attention on one thing has a role
NO_ROLE = "no single thing"
ORDERS = ("least important first", "in random order", "most important first")
_DICTIONARY = {
    **{noun.chinese: noun.english for noun in NOUNS.values()},
    **{one.chinese: one.english for one in RELATIVES},
    **NAMES,
}
Rows = list[tuple[int, list[int]]]  # queries, and the keys of each
Head = tuple[int, int]  # which of the model's attentions, and which of its heads


@dataclass(frozen=True)
class HeadRole:
    """What one head of the translator looks at, and what is lost without it."""

    where: str
    head: int
    role: str
    share: float  # of its attention that goes where the role says, 0 to 1
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
    """Every attention of a translator by name, in the order of its layers."""
    return {
        name.replace(".blocks.", " ").replace("_attention", "").replace(".", " "): module
        for name, module in model.named_modules()
        if isinstance(module, Attention)
    }


@contextmanager
def replaced(parts: Sequence[Attention], attends: Sequence[Attend]) -> Iterator[None]:
    """Let each part attend in another way inside the block."""
    before = [part.attend for part in parts]
    for part, attend in zip(parts, attends, strict=True):
        part.attend = attend
    try:
        yield
    finally:
        for part, attend in zip(parts, before, strict=True):
            part.attend = attend


def attend_with(mute: Sequence[int] = (), seen: list[Tensor] | None = None) -> Attend:
    """Attention with the output of some heads zeroed; it may keep its weights for the caller."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        scale: float,
        bias: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        weight = weights(scores(query, key, mask, scale, bias))
        if seen is not None:
            seen.append(weight)
        return (weight @ value).index_fill(1, torch.tensor(mute, dtype=torch.int64), 0.0)

    return attend


class Exam:
    """The translator on some sentence pairs: teacher-forced in one batch, and greedy."""

    def __init__(self, subject: Translator, pairs: Sequence[Pair]) -> None:
        self.subject, self.pairs = subject, pairs
        self.parts = list(attentions(subject.model).values())
        special, spell = subject.model.config, subject.tokenizers
        encoded = EncodedPairs(
            Ragged.of(spell.source.encode_many([source for source, _ in pairs])),
            Ragged.of(spell.target.encode_many([target for _, target in pairs])),
        )
        specials = Specials(special.pad_id, special.bos_id, special.eos_id)
        self.batch = padded_batch(encoded, range(len(pairs)), specials)

    def silenced(self, heads: Sequence[Head]) -> AbstractContextManager[None]:
        """The model without these heads."""
        mute = [[head for other, head in heads if other == at] for at in range(len(self.parts))]
        return replaced(self.parts, [attend_with(some) for some in mute])

    def forced(self, mute: Sequence[Head]) -> tuple[float, float]:
        """Loss in nats a token, and the percent of tokens that are the likeliest."""
        source, target, labels = self.batch.source, self.batch.target, self.batch.labels
        assert source is not None
        with self.silenced(mute), torch.inference_mode():
            logits = self.subject.model.eval()(
                source.tokens, target.tokens, Layout(source.lengths), Layout(target.lengths)
            )
        real = labels >= 0
        loss = F.cross_entropy(logits[real], labels[real])
        return float(loss), 100 * float((logits.argmax(-1) == labels)[real].float().mean())

    def exact(self, mute: Sequence[Head]) -> float:
        """Percent of greedy translations that are the reference."""
        with self.silenced(mute):
            said = self.subject.translate([source for source, _ in self.pairs], beams=1)
        return exact_match(said, [target for _, target in self.pairs]).value


def least_important_first(exam: Exam, heads: Sequence[Head]) -> list[Head]:
    """Silence, one after another, the head whose loss hurts least beside those already silent."""
    order: list[Head] = []
    while len(order) < len(heads):
        left = [head for head in heads if head not in order]
        order.append(min(left, key=lambda head: exam.forced([*order, head])[0]))
    return order


def silencing_curves(
    exam: Exam, order: Sequence[Head], seed: int, draws: int = 2, step: int = 1
) -> list[Silenced]:
    """Silence more and more heads, in an order, in its reverse, and in random ones."""
    random = [Random(seed + draw).sample(order, len(order)) for draw in range(draws)]
    found = []
    for name, ways in zip(ORDERS, ([list(order)], random, [list(order)[::-1]]), strict=True):
        for count in range(0, len(order) + 1, step):
            accuracies = [exam.forced(way[:count])[1] for way in ways]
            exact = [exam.exact(way[:count]) for way in ways]
            found.append(Silenced(name, count, fmean(accuracies), fmean(exact)))
    return found


def aligned(subject: Translator, pair: Pair) -> Rows:
    """Target places where a known noun is about to be written, and its tokens in the source."""
    source, target = pair
    spelt = subject.tokenizers.source.spell(source).spans
    written = subject.tokenizers.target.spell(target).spans
    found = []
    for chinese, english in _DICTIONARY.items():
        places = [place.start() for place in re.finditer(rf"\b{english}(?:e?s)?\b", target)]
        if source.count(chinese) == 1 == len(places):
            first = source.index(chinese)
            last = first + len(chinese)
            keys = [key for key, (start, end) in enumerate(spelt) if start < last and end > first]
            row = next(row for row, (_, end) in enumerate(written) if end > places[0])
            found.append((row, keys))
    return found


def looks(where: str, n_queries: int, n_keys: int, nouns: Rows) -> dict[str, Rows]:
    """What a query could look at, and its keys: only queries for which these all differ."""
    cross, causal = where.endswith("cross"), where.startswith("decoder")
    rows = range(2, n_queries if causal else n_queries - 2)
    steps = {} if cross else {"the token before": -1, "itself": 0, "the token after": 1}
    found = {look: [(row, [row + step]) for row in rows] for look, step in steps.items()}
    for look, key in (("the first token", 0), ("the end mark", n_keys - 1)):
        found[look] = [(row, [key]) for row in rows]
    if cross:
        found["the word's source"] = nouns
    elif causal:
        del found["the token after"], found["the end mark"]
    return found


def attention_shares(
    subject: Translator, pairs: Sequence[Pair]
) -> dict[Head, dict[str, tuple[float, float]]]:
    """The mean share of its attention that each head gives to each thing, and the even share."""
    parts, special = attentions(subject.model), subject.model.config
    given: dict[Head, dict[str, list[tuple[float, float]]]] = {}
    for source, target in pairs:
        read = torch.tensor([[*subject.tokenizers.source.encode(source), special.eos_id]])
        written = torch.tensor([[special.bos_id, *subject.tokenizers.target.encode(target)]])
        nouns = aligned(subject, (source, target))
        seen: list[Tensor] = []
        with (
            replaced([*parts.values()], [attend_with(seen=seen)] * len(parts)),
            torch.inference_mode(),
        ):
            subject.model.eval()(read, written)
        for place, (where, weight) in enumerate(zip(parts, seen, strict=True)):
            n_queries, n_keys = weight.shape[2:]
            for look, rows in looks(where, n_queries, n_keys, nouns).items():
                for row, keys in rows:
                    visible = row + 1 if where.startswith("decoder") and "self" in where else n_keys
                    for head, share in enumerate(weight[0, :, row, keys].sum(-1).tolist()):
                        columns = given.setdefault((place, head), {})
                        columns.setdefault(look, []).append((share, len(keys) / visible))
    return {
        head: {
            look: (fmean(a for a, _ in rows), fmean(b for _, b in rows))
            for look, rows in columns.items()
        }
        for head, columns in given.items()
    }


def find_roles(subject: Translator, pairs: Sequence[Pair], exam: Exam) -> list[HeadRole]:
    """Each head's role by what it looks at most, and what silencing it alone costs."""
    names, whole = list(attentions(subject.model)), exam.forced([])[0]
    found = []
    for (place, head), columns in attention_shares(subject, pairs).items():
        look = max(columns, key=lambda one: columns[one][0])
        share, chance = columns[look]
        role = look if share >= MAINLY else NO_ROLE
        rise = exam.forced([(place, head)])[0] - whole
        exact = exam.exact([(place, head)])
        found.append(HeadRole(names[place], head, role, share, chance, rise, exact))
    return found
