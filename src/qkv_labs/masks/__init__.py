"""Lab 10: two ways to write a mask, what it hides, and what a model learns without one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.demo import demo_corpus
from qkv.model import Decoder, Layout, Mask, equation, fast, use_path
from qkv_labs import tools
from qkv_labs.figures import COLOURS, MARKERS, Figure, new_figure
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("masks")

PAD, BOS, EOS = 0, 1, 2
LONGEST = 24  # words that a model may write
SAME = 1e-6
ROUNDING = 1e-5  # what fused kernels may differ by in single precision
EVERY = 20  # steps to a point of a curve


def by_boolean(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float) -> Tensor:
    """Attend with scores filled with -∞ where a boolean matrix says no."""
    visible = mask.boolean(query.shape[-2], key.shape[-2], query.device)
    raw = (query @ key.transpose(-2, -1) * scale).masked_fill(~visible, float("-inf"))
    return torch.softmax(raw, dim=-1) @ value


@dataclass(frozen=True)
class Form:
    """The largest difference between the ways of applying one mask."""

    mask: str
    precision: str
    boolean: float  # filled in by a boolean matrix, against added
    fast: float  # fused kernels, against added


def forms(seed: int, length: int = 32) -> list[Form]:
    """Apply every kind of mask to random queries, keys and values, in two precisions."""
    lengths, offsets = torch.tensor([length, 5, 1]), torch.tensor([0, 7, 8, length])
    packed: dict[str, Any] = {"query_offsets": offsets, "key_offsets": offsets}
    masks = {
        "causal": Mask(causal=True),
        "padding": Mask(key_lengths=lengths),
        "causal + padding": Mask(causal=True, key_lengths=lengths),
        "window of 4": Mask(causal=True, window=4),
        "packed": Mask(causal=True, longest_query=length, longest_key=length, **packed),
    }
    generator, result = torch.Generator().manual_seed(seed), []
    for name, mask in masks.items():
        for dtype in (torch.float32, torch.float64):
            q, k, v = torch.randn(3, 3, 2, length, 16, generator=generator, dtype=dtype)
            added = equation(q, k, v, mask, 0.25)
            boolean, fused = (path(q, k, v, mask, 0.25) for path in (by_boolean, fast))
            result.append(Form(name, str(dtype)[6:], _gap(added, boolean), _gap(added, fused)))
    return result


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def blind() -> dict[str, str]:
    """Return what each way gives for a row that may see nothing, where they differ."""
    q, k, v = torch.randn(3, 1, 1, 4, 8, generator=torch.Generator().manual_seed(0))
    nothing = Mask(key_lengths=torch.tensor([0]))
    outputs = {
        "-∞, plain softmax": by_boolean(q, k, v, nothing, 1.0),
        "-1e9, plain softmax": torch.softmax(q @ k.transpose(-2, -1) - 1e9, dim=-1) @ v,
        "this package, equation": equation(q, k, v, nothing, 1.0),
        "this package, fast": fast(q, k, v, nothing, 1.0),
    }
    names = {True: "what is hidden", False: "zeros"}
    return {n: "NaN" if x.isnan().any() else names[bool(x.any())] for n, x in outputs.items()}


Sentences = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Text:
    """Sentences as ids."""

    words: list[str]
    train: list[list[int]]
    test: list[list[int]]

    @classmethod
    def load(cls) -> Text:
        """Cut the English side of the packaged corpus into words."""
        corpus = demo_corpus()
        splits, word_or_mark = (corpus.train, corpus.test), re.compile(r"[\w'-]+|[^\w\s]")
        cut = [[word_or_mark.findall(english) for _, english in split] for split in splits]
        words = ["<pad>", "<bos>", "<eos>", *sorted({word for words in cut[0] for word in words})]
        number = {word: index for index, word in enumerate(words)}
        return cls(words, *([[number[word] for word in words] for words in split] for split in cut))


Pairs = frozenset[tuple[int, int]]


def pairs(sentence: Sequence[int]) -> Pairs:
    """Return each two neighbouring words, with the marks of beginning and end."""
    return frozenset(pairwise([BOS, *sentence, EOS]))


def sound(sentences: Sentences, known: Pairs) -> float:
    """Return the share of sentences of three words or more with no pair unknown in training."""
    return fmean(len(sentence) >= 3 and pairs(sentence) <= known for sentence in sentences)


def batch(sentences: Sentences) -> tuple[Tensor, Tensor, Layout]:
    """Return BOS and words; words and EOS; and how long each row is."""
    inputs = [[BOS, *sentence] for sentence in sentences]
    labels = [[*sentence, EOS] for sentence in sentences]
    return tools.padded(inputs, PAD), tools.padded(labels, tools.IGNORE), tools.lengths(inputs)


def loss_of(model: Decoder, sentences: Sentences) -> Tensor:
    """Teacher-forced loss in nats a word, with the model's own mask."""
    inputs, labels, layout = batch(sentences)
    return tools.token_loss(model(inputs, layout), labels)


@torch.no_grad()
def loss_alone(model: Decoder, sentences: Sentences) -> float:
    """Loss in nats a word when the words to come are not there: every beginning is a row."""
    beginnings = [words[:end] for words in sentences for end in range(len(words) + 1)]
    answers = torch.tensor([word for words in sentences for word in [*words, EOS]])
    inputs, _, layout = batch(beginnings)
    assert layout.lengths is not None
    last = model(inputs, layout)[torch.arange(len(inputs)), layout.lengths - 1]
    return F.cross_entropy(last, answers).item()


@torch.no_grad()
def write(model: Decoder, rows: int, generator: torch.Generator) -> list[list[int]]:
    """Sample sentences word by word, without a cache."""
    tokens = torch.full((rows, 1), BOS)
    for _ in range(LONGEST):
        chances = torch.softmax(model(tokens)[:, -1], dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)], dim=1)
    return [line[: line.index(EOS)] if EOS in line else line for line in tokens[:, 1:].tolist()]


def build(n_words: int, masked: bool, seed: int) -> Decoder:
    """Build a decoder with or without its causal mask."""
    special = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
    model = tools.decoder(
        n_words, 64, 2, seed, positions="learned", max_length=LONGEST + 8, **special
    )
    model.decoder.causal = masked
    return model


@dataclass(frozen=True)
class Trained:
    """One training: its losses, and what the model writes."""

    masked: bool
    curve: list[float]  # training loss, mean of each EVERY steps
    held: float  # on new sentences, teacher forcing, as trained
    alone: float  # with no word to come in sight
    sound: float  # the share of sound sentences among those that it writes


@dataclass(frozen=True)
class Leak:
    """How much logits change when a token changes that should not matter to them."""

    change: str
    path: str
    hidden: float  # with the mask
    shown: float  # without it


@dataclass(frozen=True)
class Measured:
    """Forms, leaks and trainings."""

    forms: list[Form]
    blind: dict[str, str]
    leaks: list[Leak]
    trained: list[Trained]
    sound_real: float  # the share of sound ones among new sentences of the corpus
    sound_random: float  # and among words drawn by their frequency


def train(text: Text, masked: bool, seed: int, n_steps: int) -> tuple[Decoder, list[float]]:
    """Train on the same sentences in the same order, with or without the mask."""
    model = build(len(text.words), masked, seed)
    data = torch.Generator().manual_seed(seed + 1000)

    def loss(step: int) -> Tensor:
        rows = torch.randint(len(text.train), (64,), generator=data).tolist()
        return loss_of(model, [text.train[row] for row in rows])

    return model, tools.fit(model, loss, n_steps, lr=5e-3)


def examine(model: Decoder, losses: list[float], text: Text, known: Pairs, seed: int) -> Trained:
    """Measure held-out losses, and the quality of what the model writes."""
    written = write(model, 200, torch.Generator().manual_seed(seed + 2000))
    with torch.no_grad():
        held = loss_of(model, text.test[:400]).item()
    curve = [fmean(losses[at : at + EVERY]) for at in range(0, len(losses), EVERY)]
    alone = loss_alone(model, text.test[:100])
    return Trained(model.decoder.causal, curve, held, alone, sound(written, known))


@torch.no_grad()
def leaks(model: Decoder, sentences: Sentences, seed: int) -> list[Leak]:
    """Change future tokens, then padding, and measure logits that must not change."""
    inputs, _, layout = batch(sentences)
    assert layout.lengths is not None
    generator, position = torch.Generator().manual_seed(seed), torch.arange(inputs.shape[1])
    changed = torch.randint(3, model.config.vocab_size, inputs.shape, generator=generator)
    future = (position >= len(position) // 2).expand_as(inputs)
    padding = position >= layout.lengths[:, None]

    def moved(where: Tensor, causal: bool, rows: Layout) -> float:
        model.decoder.causal = causal
        a, b = (model(x, rows) for x in (inputs, changed.where(where, inputs)))
        return _gap(a[~where], b[~where])

    result, before = [], model.decoder.causal
    for name, path in (("equation", equation), ("fast", fast)):
        with use_path(model, path):
            hidden, shown = (moved(future, causal, Layout()) for causal in (True, False))
            result.append(Leak("the future", name, hidden, shown))
            hidden, shown = (moved(padding, False, rows) for rows in (layout, Layout()))
            result.append(Leak("padding", name, hidden, shown))
    model.decoder.causal = before
    return result


def measure(settings: Settings) -> Measured:
    """Compare the ways of writing, look for leaks, and train with and without the mask."""
    text = Text.load()
    known = frozenset().union(*map(pairs, text.train))
    words, random = [word for words in text.train for word in words], Random(settings.seed)
    babble = [random.choices(words, k=len(sentence)) for sentence in text.test]
    trained: list[Trained] = []
    leaky: list[Leak] = []
    for seed in settings.seeds(3, 5):
        for masked in (True, False):
            settings.tell(f"training {'with' if masked else 'without'} the mask, seed {seed}")
            model, losses = train(text, masked, seed, settings.pick(300, 1500))
            trained.append(examine(model, losses, text, known, seed))
            leaky = leaky or leaks(model, text.test[:50], seed)
    soundness = sound(text.test, known), sound(babble, known)
    return Measured(forms(settings.seed), blind(), leaky, trained, *soundness)


ARMS = {"causal mask": True, "no mask": False}


def seeds_of(m: Measured, arm: str, field: str) -> list[Any]:
    """Return a figure of an arm, one value a seed."""
    return tools.column(tools.where(m.trained, masked=ARMS[arm]), field)


def tables(m: Measured) -> list[Table]:
    """Forms, rows that see nothing, leaks, trainings."""
    forms = {
        "mask": "{0.mask}",
        "precision": "{0.precision}",
        "boolean": lambda form: tools.tiny(form.boolean),
        "fused kernel": lambda form: tools.tiny(form.fast),
    }
    leaks = {
        "what changes": "{0.change}",
        "path": "{0.path}",
        "with mask": lambda leak: tools.tiny(leak.hidden),
        "without": lambda leak: tools.tiny(leak.shown),
    }
    learnt = {
        "training": "{0}",
        "loss": lambda arm: tools.plus_minus(seeds_of(m, arm, "held"), 2),
        "no future there": lambda arm: tools.plus_minus(seeds_of(m, arm, "alone"), 2),
        "sound (%)": lambda arm: tools.plus_minus(seeds_of(m, arm, "sound"), 0, 100),
    }
    return [
        say.table("forms", forms, m.forms),
        say.table("blind", ("way", "gives"), m.blind.items()),
        say.table("leaks", leaks, m.leaks),
        say.table("learnt", learnt, ARMS),
    ]


def draw(m: Measured) -> Figure:
    """Training loss, loss with no future in sight, and what the models write."""
    figure, (left, right) = new_figure(9.0, 3.8, ncols=2, width_ratios=(1.3, 1))
    for index, label in enumerate(ARMS):
        curves, colour = seeds_of(m, label, "curve"), COLOURS[index]
        for number, curve in enumerate(curves):
            steps = [EVERY * (at + 0.5) for at in range(len(curve))]
            name = f"{label}: training" if number == 0 else None
            left.plot(steps, curve, color=colour, alpha=0.7, label=name)
        x = [EVERY * len(curves[0]) * 1.03] * len(curves)
        name = f"{label}: new text, no future there"
        left.plot(x, seeds_of(m, label, "alone"), MARKERS[index], color=colour, label=name)
    left.set(xlabel="step", ylabel="loss (nats a word)", ylim=(0, None))
    left.set_title("Loss in training, and where the future is truly absent")
    left.legend()
    bars = {
        "new sentences\nof the corpus": m.sound_real,
        **{arm: fmean(seeds_of(m, arm, "sound")) for arm in ARMS},
        "random words": m.sound_random,
    }
    colours = (COLOURS[7], COLOURS[0], COLOURS[1], COLOURS[7])
    drawn = right.barh(list(bars), [100 * value for value in bars.values()], color=colours)
    right.bar_label(drawn, fmt=" %.0f %%", fontsize=8)
    right.invert_yaxis()
    right.set(xlabel="sound sentences (%)", xlim=(0, 112))
    right.set_title("Sound sentences among those written")
    return figure


def judge(m: Measured) -> Verdict:
    """Do the ways agree, does nothing leak, and is nothing learnt without the mask?"""
    gap = max(max(form.boolean, form.fast) for form in m.forms)
    hidden, shown = (max(tools.column(m.leaks, name)) for name in ("hidden", "shown"))
    held, alone, sound = (
        Figures({arm: Interval.of(seeds_of(m, arm, field), scale) for arm in ARMS})
        for field, scale in (("held", 1), ("alone", 1), ("sound", 100))
    )
    masked, unmasked = ARMS
    return say.verdict(
        ways=compare(gap, "<", ROUNDING, form=".1g"),
        hides=[
            compare(hidden, "<", SAME, "with mask", form=".1g"),
            compare(shown, ">", SAME, "without", form=".1g"),
        ],
        peeks=held.compare(unmasked, "<", masked, form=".2f"),
        useless=alone.compare(unmasked, ">", masked, form=".2f"),
        writes=sound.compare(unmasked, "<", masked),
    )


LAB = say.make_lab(measure, tables, draw, judge)
