"""Lab 26: heads of a language model that find subjects, verbs and antecedents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

import qkv
from qkv.model import use_path
from qkv.tasks import LanguageModel
from qkv_labs.figures import COLOURS, Figure, new_figure
from qkv_labs.heads.roles import attend_with
from qkv_labs.lab import Interval, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts, read
from qkv_labs.tools import lengths, padded

say = Texts("relations")

MODEL = "smollm2"
SUBJECT, VERB, ANTECEDENT = "verb to subject", "object to verb", "pronoun to antecedent"
RELATIONS = (SUBJECT, VERB, ANTECEDENT)
START = "Once upon a time"  # the first token gets much attention whatever it is, and is left out
WORDS = read("relations/words.toml")


@dataclass(frozen=True)
class Sentence:
    """A text, and the words that stand in a relation: from the first, look for the second."""

    text: str
    source: str
    target: str


@dataclass(frozen=True)
class Found:
    """How often heads find one relation, in percent."""

    relation: str
    layer: int  # of the head that does so best on the first half of the sentences
    head: int
    right: float  # of the other half, its strongest look falls on the target
    offset: int  # the distance that is right most often on the first half
    by_offset: float  # right on the other half, always looking so far back
    n_tested: int
    shares: list[list[float]]  # right on all sentences, by layer and head


@dataclass(frozen=True)
class Measured:
    """All relations in one model."""

    model: str
    relations: list[Found]


def sentences(relation: str, n: int, random: Random) -> list[Sentence]:
    """Draw sentences in which the target's distance varies and another noun lies nearer."""
    return [_sentence(relation, random, index) for index in range(n)]


def _sentence(relation: str, random: Random, index: int) -> Sentence:
    def draw(kind: str) -> str:
        return random.choice(WORDS[kind])

    if relation == SUBJECT:
        who, thing, verb, near = map(draw, ("people", "things", "subject_verbs", "near"))
        return Sentence(f"{START} the {who} {near} {thing} {draw('adverbs')} {verb}.", verb, who)
    if relation == VERB:
        who, food, verb, adjective = map(draw, ("people", "foods", "food_verbs", "adjectives"))
        return Sentence(f"{START} the {who} {verb} the {adjective} {food}.", food, verb)
    woman, man = draw("women"), draw("men")
    pronoun, target = (("she", woman), ("he", man))[index % 2]
    first, second = (woman, man) if index // 2 % 2 else (man, woman)
    where, met = draw("places"), draw("meetings")
    text = f"{START} {first} {met} {second} {where} because {pronoun} was kind."
    return Sentence(text, pronoun, target)


def last_token(spans: Sequence[tuple[int, int]], text: str, word: str) -> int:
    """Return the position of the token in which the last occurrence of a word ends."""
    end = text.rindex(f" {word}") + 1 + len(word)
    return next(index for index, (begin, stop) in enumerate(spans) if begin < end <= stop)


@torch.inference_mode()
def looks(model: LanguageModel, batch: Sequence[Sentence]) -> tuple[Tensor, Tensor, Tensor]:
    """Return each head's strongest look from the source, (L, H, B), sources and targets, (B,)."""
    encoded = [model.tokenizer.encode_spans(sentence.text) for sentence in batch]
    rows = [tokens.ids for tokens in encoded]
    places = [
        [
            last_token(tokens.spans, sentence.text, word)
            for word in (sentence.source, sentence.target)
        ]
        for sentence, tokens in zip(batch, encoded, strict=True)
    ]
    sources, targets = torch.tensor(places).unbind(1)
    seen: list[Tensor] = []
    with use_path(model.model, attend_with(seen=seen)):
        model.model.hidden(padded(rows, 0), lengths(rows))
    weights = torch.stack(seen)  # (L, B, H, T, T)
    from_source = weights[:, torch.arange(len(rows)), :, sources]  # (B, L, H, T)
    from_source[..., 0] = 0  # the first token, and the source itself
    from_source[torch.arange(len(rows)), :, :, sources] = 0
    return from_source.argmax(dim=-1).permute(1, 2, 0), sources, targets


def find(model: LanguageModel, relation: str, n: int, seed: int) -> Found:
    """Choose the best head and the best distance on half of the sentences, test on the rest."""
    drawn = sentences(relation, n, Random(seed))
    picks, sources, targets = looks(model, drawn)
    hits = (picks == targets).double()  # (L, H, B)
    half = n // 3
    chosen = int(hits[..., :half].mean(dim=-1).argmax())
    layer, head = divmod(chosen, hits.shape[1])
    distances = (sources - targets).tolist()
    fit, test = distances[:half], distances[half:]
    offset = max(set(fit), key=fit.count)
    return Found(
        relation,
        layer,
        head,
        100 * float(hits[layer, head, half:].mean()),
        offset,
        100 * test.count(offset) / len(test),
        len(test),
        (100 * hits.mean(dim=-1)).tolist(),
    )


def measure(settings: Settings) -> Measured:
    """Look for each relation in the pulled model."""
    model = qkv.load(MODEL, dtype="fp32")
    assert isinstance(model, LanguageModel)
    found = []
    for relation in RELATIONS:
        settings.tell(relation)
        found.append(find(model, relation, settings.pick(90, 300), settings.seed))
    return Measured(MODEL, found)


def tables(m: Measured) -> list[Table]:
    """The best head of each relation, and the best fixed distance."""
    columns = {
        "relation": "{0.relation}",
        "layer": "{0.layer}",
        "head": "{0.head}",
        "best head": "{0.right:.1f}",
        "distance": "{0.offset}",
        "that distance": "{0.by_offset:.1f}",
    }
    return [say.table("found", columns, m.relations, m=m, n=m.relations[0].n_tested)]


def draw(m: Measured) -> Figure:
    """How often each head finds each relation, a map a relation."""
    figure, axes = new_figure(11, 4.2, ncols=len(m.relations))
    for panel, found in zip(axes, m.relations, strict=True):
        image = panel.imshow(found.shares, aspect="auto", vmin=0, vmax=100)
        panel.plot(found.head, found.layer, "o", mfc="none", mec=COLOURS[1], ms=9)
        panel.set(xlabel="head", title=f"{found.relation}: {found.right:.0f} %")
        panel.grid(visible=False)
    axes[0].set_ylabel("layer")
    figure.colorbar(image, ax=list(axes), label="looks that find the word (%)")
    return figure


def judge(m: Measured) -> Verdict:
    """Does the best head of each relation beat a fixed distance, and are they different ones?"""
    beats, sure = [], []
    for found in m.relations:
        right, fixed = (Interval.share(x, found.n_tested) for x in (found.right, found.by_offset))
        beats.append(compare(right, ">", fixed, ("best head", "that distance")))
        sure.append(compare(right, ">", 90, found.relation))
    heads = {(found.layer, found.head) for found in m.relations}
    return say.verdict(
        {"n": len(m.relations)},
        subject=beats[0],
        verb=beats[1],
        antecedent=beats[2],
        sure=sure,
        own=compare(len(heads), "≈", len(m.relations), form=".0f"),
    )


LAB = say.make_lab(measure, tables, draw, judge, needs=MODEL)
