"""Lab 10: two ways to write a mask, what it hides, and what a model learns that had none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import ModelConfig
from qkv.demo import demo_corpus
from qkv.model import Decoder, Layout, Mask, equation, fast, use_path
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, plus_minus, seeded, tiny

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAD, BOS, EOS = 0, 1, 2
LONGEST = 24  # words that a model may write
SAME = 1e-6
ROUNDING = 1e-5  # what fused kernels may differ by in single precision
D_MODEL = 64
EVERY = 20  # steps to a point of a curve


def by_boolean(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    scale: float,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax of scores filled with -∞ where a boolean matrix says no, times V."""
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
    """Every kind of mask on random queries, keys and values, in two precisions."""
    lengths, offsets = torch.tensor([length, 5, 1]), torch.tensor([0, 7, 8, length])
    packed = Mask(
        causal=True,
        query_offsets=offsets,
        key_offsets=offsets,
        longest_query=length,
        longest_key=length,
    )
    masks = {
        "causal": Mask(causal=True),
        "padding": Mask(key_lengths=lengths),
        "causal + padding": Mask(causal=True, key_lengths=lengths),
        "window of 4": Mask(causal=True, window=4),
        "packed": packed,
    }
    generator, found = torch.Generator().manual_seed(seed), []
    for name, mask in masks.items():
        for dtype in (torch.float32, torch.float64):
            q, k, v = torch.randn(3, 3, 2, length, 16, generator=generator, dtype=dtype)
            added = equation(q, k, v, mask, 0.25)
            boolean, fused = (path(q, k, v, mask, 0.25) for path in (by_boolean, fast))
            found.append(Form(name, str(dtype)[6:], _gap(added, boolean), _gap(added, fused)))
    return found


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def blind() -> dict[str, str]:
    """What comes out of a row that may see nothing: there the ways of writing part."""
    q, k, v = torch.randn(3, 1, 1, 4, 8, generator=torch.Generator().manual_seed(0))
    nothing = Mask(key_lengths=torch.tensor([0]))
    large = torch.softmax(q @ k.transpose(-2, -1) - 1e9, dim=-1) @ v
    made = {
        "-∞, plain softmax": by_boolean(q, k, v, nothing, 1.0),
        "-1e9, plain softmax": large,
        "this package, equation": equation(q, k, v, nothing, 1.0),
        "this package, fast": fast(q, k, v, nothing, 1.0),
    }
    names = {True: "what is hidden", False: "zeros"}
    return {n: "NaN" if x.isnan().any() else names[bool(x.any())] for n, x in made.items()}


@dataclass(frozen=True)
class Text:
    """Sentences as ids."""

    words: list[str]
    train: list[list[int]]
    test: list[list[int]]

    @classmethod
    def load(cls) -> Text:
        """The English side of the packaged corpus, cut into words."""
        corpus = demo_corpus()
        parts, word_or_mark = (corpus.train, corpus.test), re.compile(r"[\w'-]+|[^\w\s]")
        cut = [[word_or_mark.findall(english) for _, english in part] for part in parts]
        words = ["<pad>", "<bos>", "<eos>", *sorted({word for one in cut[0] for word in one})]
        number = {word: index for index, word in enumerate(words)}
        return cls(words, *([[number[word] for word in one] for one in part] for part in cut))


Pairs = frozenset[tuple[int, int]]


def pairs(sentence: Sequence[int]) -> Pairs:
    """Each two words in a row, with the marks of beginning and end."""
    return frozenset(pairwise([BOS, *sentence, EOS]))


def sound(sentences: Sequence[Sequence[int]], known: Pairs) -> float:
    """The share of sentences of three words or more whose every pair the training text has."""
    return fmean(len(one) >= 3 and pairs(one) <= known for one in sentences)


def batch(sentences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Layout]:
    """BOS and words; words and EOS; how long each row is."""
    lengths = torch.tensor([len(one) + 1 for one in sentences])
    inputs = torch.full((len(sentences), int(lengths.max())), PAD)
    labels = inputs.clone()
    for row, one in enumerate(sentences):
        inputs[row, : len(one) + 1] = torch.tensor([BOS, *one])
        labels[row, : len(one) + 1] = torch.tensor([*one, EOS])
    return inputs, labels, Layout(lengths=lengths)


def loss_of(model: Decoder, sentences: Sequence[Sequence[int]]) -> Tensor:
    """Teacher forcing: nats a word, with the mask that the model has."""
    inputs, labels, layout = batch(sentences)
    logits = model(inputs, layout)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD)


@torch.no_grad()
def loss_alone(model: Decoder, sentences: Sequence[Sequence[int]]) -> float:
    """Nats a word when the words to come are truly not there: every beginning is a row."""
    beginnings = [one[:end] for one in sentences for end in range(len(one) + 1)]
    answers = torch.tensor([word for one in sentences for word in [*one, EOS]])
    inputs, _, layout = batch(beginnings)
    assert layout.lengths is not None
    last = model(inputs, layout)[torch.arange(len(inputs)), layout.lengths - 1]
    return F.cross_entropy(last, answers).item()


@torch.no_grad()
def write(model: Decoder, rows: int, generator: torch.Generator) -> list[list[int]]:
    """Sentences drawn word by word; what is written so far is read anew for each word."""
    tokens = torch.full((rows, 1), BOS)
    for _ in range(LONGEST):
        chances = torch.softmax(model(tokens)[:, -1], dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)], dim=1)
    return [line[: line.index(EOS)] if EOS in line else line for line in tokens[:, 1:].tolist()]


def build(n_words: int, masked: bool) -> Decoder:
    """The same decoder and first weights, with or without its causal mask."""
    model = Decoder(
        ModelConfig(
            family="decoder",
            vocab_size=n_words,
            d_model=D_MODEL,
            n_heads=4,
            d_ff=2 * D_MODEL,
            n_decoder_layers=2,
            positions="learned",
            max_length=LONGEST + 8,
            dropout=0.0,
            norm_position="pre",
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
        )
    )
    model.decoder.causal = masked
    return model


@dataclass(frozen=True)
class Trained:
    """One training: its losses, and what the model writes."""

    masked: bool
    curve: list[float]  # training loss, mean of each EVERY steps
    held: float  # on new sentences, teacher forcing, as trained
    alone: float  # the same with no word to come in sight
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
    """The same sentences in the same order, with and without the mask."""
    with seeded(seed):
        model = build(len(text.words), masked)
    data = torch.Generator().manual_seed(seed + 1000)

    def loss(step: int) -> Tensor:
        rows = torch.randint(len(text.train), (64,), generator=data).tolist()
        return loss_of(model, [text.train[row] for row in rows])

    return model, fit(model.parameters(), loss, n_steps, lr=5e-3)


def examine(model: Decoder, losses: list[float], text: Text, known: Pairs, seed: int) -> Trained:
    """Held-out losses, and the quality of what the model writes."""
    written = write(model, 200, torch.Generator().manual_seed(seed + 2000))
    with torch.no_grad():
        held = loss_of(model, text.test[:400]).item()
    curve = [fmean(losses[at : at + EVERY]) for at in range(0, len(losses), EVERY)]
    alone = loss_alone(model, text.test[:100])
    return Trained(model.decoder.causal, curve, held, alone, sound(written, known))


@torch.no_grad()
def leaks(model: Decoder, sentences: Sequence[Sequence[int]], seed: int) -> list[Leak]:
    """Change the future, then padding, and see whether logits that must not change do."""
    inputs, _, layout = batch(sentences)
    assert layout.lengths is not None
    generator, place = torch.Generator().manual_seed(seed), torch.arange(inputs.shape[1])
    other = torch.randint(3, model.config.vocab_size, inputs.shape, generator=generator)
    future = (place >= len(place) // 2).expand_as(inputs)
    padding = place >= layout.lengths[:, None]

    def moved(where: Tensor, causal: bool, rows: Layout) -> float:
        model.decoder.causal = causal
        a, b = (model(x, rows) for x in (inputs, other.where(where, inputs)))
        return _gap(a[~where], b[~where])

    found, before = [], model.decoder.causal
    for name, path in (("equation", equation), ("fast", fast)):
        with use_path(model, path):
            hidden, shown = (moved(future, causal, Layout()) for causal in (True, False))
            found.append(Leak("the future", name, hidden, shown))
            hidden, shown = (moved(padding, False, rows) for rows in (layout, Layout()))
            found.append(Leak("padding", name, hidden, shown))
    model.decoder.causal = before
    return found


def measure(settings: Settings) -> Measured:
    """The ways of writing, what leaks, and training with and without the causal mask."""
    n_steps = 1500 if settings.full else 300
    text = Text.load()
    known = frozenset().union(*map(pairs, text.train))
    words, rng = [word for one in text.train for word in one], Random(settings.seed)
    babble = [rng.choices(words, k=len(one)) for one in text.test]
    trained: list[Trained] = []
    leaky: list[Leak] = []
    for seed in range(settings.seed, settings.seed + (5 if settings.full else 3)):
        for masked in (True, False):
            settings.tell(f"training {'with' if masked else 'without'} the mask, seed {seed}")
            model, losses = train(text, masked, seed, n_steps)
            trained.append(examine(model, losses, text, known, seed))
            leaky = leaky or leaks(model, text.test[:50], seed)
    return Measured(
        forms(settings.seed),
        blind(),
        leaky,
        trained,
        sound(text.test, known),
        sound(babble, known),
    )


def tables(m: Measured) -> tuple[Table, ...]:
    """Forms, rows that see nothing, leaks, trainings."""
    ways = [(one.mask, one.precision, tiny(one.boolean), tiny(one.fast)) for one in m.forms]
    leaky = [(one.change, one.path, tiny(one.hidden), tiny(one.shown)) for one in m.leaks]
    learnt = [
        (
            name,
            *(
                plus_minus([getattr(one, field) * scale for one in arm(m, masked)], digits)
                for field, scale, digits in (("held", 1, 2), ("alone", 1, 2), ("sound", 100, 0))
            ),
        )
        for name, masked in (("causal mask", True), ("no mask", False))
    ]
    titles = (
        Words("Largest difference from the additive form", "与加法形式的最大差"),
        Words("A row that may see nothing", "一行什么也看不到时"),
        Words("Largest change of logits that must not change", "不该变的 logits 的最大变化"),
        Words("New sentences (nats a word), and its own", "新句子（每词奈特数）与自己写的句子"),
    )
    return (
        Table(titles[0], ("mask", "precision", "boolean", "fused kernel"), tuple(ways)),
        Table(titles[1], ("way", "gives"), tuple(m.blind.items())),
        Table(titles[2], ("what changes", "path", "with mask", "without"), tuple(leaky)),
        Table(titles[3], ("training", "loss", "no future there", "sound (%)"), tuple(learnt)),
    )


def arm(m: Measured, masked: bool) -> list[Trained]:
    """The trainings with the mask, or those without."""
    return [one for one in m.trained if one.masked == masked]


def draw(m: Measured) -> Figure:
    """Training loss, the same loss with no future in sight, and what the models write."""
    from qkv.inspect.style import COLOURS, MARKERS, new_figure

    figure, (left, right) = new_figure(9.0, 3.8, ncols=2, width_ratios=(1.3, 1))
    for index, (label, masked) in enumerate((("causal mask", True), ("no mask", False))):
        for number, one in enumerate(arm(m, masked)):
            steps = [EVERY * (at + 0.5) for at in range(len(one.curve))]
            name = f"{label}: training" if number == 0 else None
            left.plot(steps, one.curve, color=COLOURS[index], alpha=0.7, label=name)
        last = EVERY * len(arm(m, masked)[0].curve)
        values = [one.alone for one in arm(m, masked)]
        left.plot(
            [last * 1.03] * len(values),
            values,
            color=COLOURS[index],
            marker=MARKERS[index],
            linestyle="none",
            label=f"{label}: new text, no future there",
        )
    left.set(xlabel="step", ylabel="loss (nats a word)", ylim=(0, None))
    left.set_title("Loss in training, and where the future is truly absent")
    left.legend()
    bars = {
        "new sentences\nof the corpus": m.sound_real,
        "causal mask": fmean(one.sound for one in arm(m, True)),
        "no mask": fmean(one.sound for one in arm(m, False)),
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
    """The same number either way, nothing seen, and nothing learnt without it?"""
    gap = max(max(one.boolean, one.fast) for one in m.forms)
    hidden, shown = max(one.hidden for one in m.leaks), max(one.shown for one in m.leaks)
    held, alone, good = (
        [fmean(getattr(one, field) for one in some) for some in (arm(m, True), arm(m, False))]
        for field in ("held", "alone", "sound")
    )
    sane = [f"{100 * value:.0f}" for value in good]
    en = (
        f"Where a row sees anything, the ways differ by {gap:.1g} at most, and a hidden token "
        f"moves logits by {hidden:.1g} ({shown:.0f} when it is not hidden). Without the causal "
        f"mask the loss on new text is {held[1]:.2f} instead of {held[0]:.2f} nats a word, and "
        f"{alone[1]:.1f} instead of {alone[0]:.1f} once the words to come are not there; of the "
        f"sentences that it writes {sane[1]} % instead of {sane[0]} % are sound."
    )
    zh = (
        f"只要一行能看到词元，几种写法最多相差 {gap:.1g}；改动被遮住的词元，logits 变化 "
        f"{hidden:.1g}（不遮时可达 {shown:.0f}）。不加因果掩码，新句子上的损失是每词 "
        f"{held[1]:.2f} 奈特，有掩码时是 {held[0]:.2f}；后面的词真的不存在时，损失是 "
        f"{alone[1]:.1f}，有掩码时是 {alone[0]:.1f}；它自己写的句子有 {sane[1]}% 通顺，"
        f"有掩码时是 {sane[0]}%。"
    )
    useless = alone[1] > alone[0] and good[1] < good[0] / 2
    if gap > ROUNDING or hidden > SAME or not useless:
        return Verdict("does not hold", Words(en, zh))
    if held[1] < held[0] / 2:
        return Verdict("holds", Words(en, zh))
    en = f"It holds when training lasts until copying is learnt; here it did not. {en}"
    return Verdict("holds when", Words(en, f"要训练到学会照抄才成立，这次还没有。{zh}"))


LAB = Lab(
    number=10,
    name="masks",
    title=Words("What a mask hides", "掩码遮住了什么"),
    claim=Words(
        "A boolean mask and an additive one are the same; with it no token sees what comes after "
        "it, and without it a model would peek at the answer in training and learn nothing.",
        "布尔掩码和加法掩码是一回事；有了它，任何词元都看不到后面的词；没有它，模型训练时会偷看答案，"
        "什么也学不到。",
    ),
    experiment=Words(
        "Both ways and the fused kernels on the same numbers, for five masks; future and padded "
        "tokens changed under a trained model; and one decoder trained on the packaged English "
        "sentences with and without its causal mask (same first weights, sentences and steps), "
        "then tested on new sentences and on what it writes. A sentence of three words or more is "
        "sound if the training text has each pair of its neighbours.",
        "五种掩码，用同样的数比较两种写法和融合算子；在训练好的模型上改动未来词元和填充词元；"
        "再用内置语料的英文句子训练同一个解码器，一次有因果掩码，一次没有（初始权重、句子、步数都相同），"
        "最后看新句子上的损失和它自己写的句子。三个词以上、且每对相邻的词都在训练文本里出现过，才算通顺。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
