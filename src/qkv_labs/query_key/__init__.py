"""Lab 24: what W_Q and W_K learn, watched in a language where a verb decides about its object."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import ModelConfig
from qkv.model import Attention, Encoder, Mask, equation, use_path
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, plus_minus, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERBS = ("eat", "wash", "peel", "buy", "cook", "cut")
OBJECTS = ("apple", "pear", "fish", "leek", "plum", "yam")
OTHERS = (
    "I",
    "you",
    "she",
    "today",
    "now",
    "here",
    "slowly",
    "again",
    "maybe",
    "then",
    "often",
    "too",
)
CLASSES = {"object": OBJECTS, "verb": VERBS, "other": OTHERS}
VOCABULARY = VERBS + OBJECTS + OTHERS
LENGTH = 8
EXAMPLE = ("today", "I", "slowly", "eat", "maybe", "again", "apple", "here")
CHANCE = 1 / LENGTH  # the weight of one word among all, where nothing is looked for


class Sentences(NamedTuple):
    """Word ids (B, T), where verb and object stand (B,), and the object's ending (B,)."""

    words: Tensor
    verb: Tensor
    object: Tensor
    ending: Tensor


def sentences(rows: int, rule: bool, generator: torch.Generator) -> Sentences:
    """A verb, an object and other words in any order.

    By the rule each verb gives its object an ending of its own; without it, the ending is drawn.
    """
    n_verbs, n_objects = len(VERBS), len(OBJECTS)
    verb = torch.randint(n_verbs, (rows, 1), generator=generator)
    thing = torch.randint(n_objects, (rows, 1), generator=generator) + n_verbs
    others = torch.randint(len(OTHERS), (rows, LENGTH - 2), generator=generator)
    words = torch.cat([verb, thing, others + n_verbs + n_objects], dim=1)
    order = torch.rand(rows, LENGTH, generator=generator).argsort(dim=1)
    drawn = torch.randint(n_verbs, (rows, 1), generator=generator)
    places = order.argsort(dim=1)  # where the verb and the object, drawn first, come to stand
    ending = (verb if rule else drawn)[:, 0]
    return Sentences(words.gather(1, order), places[:, 0], places[:, 1], ending)


def build(n_heads: int) -> Encoder:
    """One pre-norm layer without positions: a word's q and k are its own."""
    return Encoder(
        ModelConfig(
            family="encoder",
            vocab_size=len(VOCABULARY),
            d_model=32,
            n_heads=n_heads,
            d_ff=64,
            n_encoder_layers=1,
            positions="none",
            dropout=0.0,
            norm_position="pre",
            head="token",
            n_labels=len(VERBS),
        )
    )


def attention_of(model: Encoder) -> Attention:
    """The only attention."""
    return next(part for part in model.modules() if isinstance(part, Attention))


@torch.no_grad()
def word_scores(model: Encoder) -> Tensor:
    """q·k/√d_k of each word that looks at each word, by head, (H, V, V)."""
    block: Any = model.encoder.blocks[0]
    vectors = block.self_attention_residual.norm(model.embedding(torch.arange(len(VOCABULARY))))
    query, key = attention_of(model).project(vectors)  # (H, V, d)
    return query @ key.transpose(-2, -1) * attention_of(model).scale


def attention_map(scores: Tensor, words: Tensor) -> Tensor:
    """The weights in sentences, (H, B, T, T): a softmax over the scores of their words."""
    return torch.softmax(scores[:, words[:, :, None], words[:, None, :]], dim=-1)


def to_verb(scores: Tensor, held: Sentences) -> Tensor:
    """The mean weight of the verb in its object's eyes, by head, (H,)."""
    rows = torch.arange(len(held.words))
    return attention_map(scores, held.words)[:, rows, held.object, held.verb].mean(dim=1)


def class_scores(scores: Tensor) -> list[list[float]]:
    """The mean score between classes of words, of one head's (V, V): who looks, at whom."""
    ids = {name: [VOCABULARY.index(word) for word in words] for name, words in CLASSES.items()}
    centred = scores - scores.mean(dim=1, keepdim=True)  # a softmax does not see the rest
    return [[centred[a][:, b].mean().item() for b in ids.values()] for a in ids.values()]


@torch.no_grad()
def answers(model: Encoder, held: Sentences) -> Tensor:
    """Logits of the ending at each object, (B, endings)."""
    return model(held.words)[torch.arange(len(held.words)), held.object]


def error(model: Encoder, held: Sentences) -> float:
    """The share of wrong endings."""
    return (answers(model, held).argmax(dim=-1) != held.ending).double().mean().item()


def without_head(model: Encoder, head: int) -> Encoder:
    """The same model with one head's output cut off."""
    model = copy.deepcopy(model)
    attention = attention_of(model)
    attention.output.weight.data[:, head * attention.d_head : (head + 1) * attention.d_head] = 0
    return model


def error_unseen(model: Encoder, held: Sentences, hidden: Tensor) -> float:
    """The error when no object may look at its sentence's word at `hidden`, (B,), in any head."""
    rows = torch.arange(len(held.words))
    forbidden = torch.zeros(len(rows), 1, LENGTH, LENGTH)
    forbidden[rows, 0, held.object, hidden] = float("-inf")

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        scale: float,
        bias: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        return equation(query, key, value, mask, scale, forbidden, dropout)

    with use_path(model, attend):
        return error(model, held)


@dataclass(frozen=True)
class Course:
    """One training: what was seen on the way, and what the heads do at its end."""

    rule: bool
    n_heads: int
    steps: list[int]
    attention: list[float]  # object to verb, the head that ends up looking most
    aligned: list[float]  # that head's mean score object to verb, above its mean to all words
    loss: list[float]  # on new sentences
    error: float
    silenced: float  # the error without that head
    unseen_verb: float  # the error when objects may not look at the verb
    unseen_other: float  # the error when they may not look at some word that is neither
    classes: list[list[list[float]]]  # that head's class scores, before and after
    maps: list[list[list[float]]]  # its map of the example, at each of the steps


@dataclass(frozen=True)
class Measured:
    """Courses of the language with the rule and of the one without."""

    courses: list[Course]


def course(rule: bool, n_heads: int, seed: int, n_steps: int, n_looks: int = 30) -> Course:
    """Train once, and look in at even intervals."""
    with seeded(seed):
        model = build(n_heads)
    data = torch.Generator().manual_seed(seed + 1000)
    held = sentences(500, rule, torch.Generator().manual_seed(seed + 2000))
    every, seen, losses = max(1, n_steps // n_looks), [], []

    def look() -> None:
        seen.append(word_scores(model))
        losses.append(F.cross_entropy(answers(model, held), held.ending).item())

    def loss(step: int) -> Tensor:
        if step % every == 0:
            look()
        batch = sentences(64, rule, data)
        said = model(batch.words)[torch.arange(64), batch.object]
        return F.cross_entropy(said, batch.ending)

    fit(model.parameters(), loss, n_steps, lr=3e-3)
    look()
    head = int(to_verb(seen[-1], held).argmax())
    classes = [class_scores(scores[head]) for scores in seen]
    example = torch.tensor([[VOCABULARY.index(word) for word in EXAMPLE]])
    return Course(
        rule,
        n_heads,
        [*range(0, n_steps, every), n_steps],
        [to_verb(scores, held)[head].item() for scores in seen],
        [table[0][1] for table in classes],
        losses,
        error(model, held),
        error(without_head(model, head), held),
        error_unseen(model, held, held.verb),
        error_unseen(model, held, _neither(held)),
        [classes[0], classes[-1]],
        [attention_map(scores, example)[head, 0].tolist() for scores in seen],
    )


def _neither(held: Sentences) -> Tensor:
    """Where a word stands that is neither verb nor object: the first such."""
    taken = torch.stack([held.verb, held.object], dim=1)
    return torch.ones_like(held.words).scatter(1, taken, 0).argmax(dim=1)


def measure(settings: Settings) -> Measured:
    """Both languages, several seeds each."""
    n_steps = 480 if settings.full else 120
    seeds = range(settings.seed, settings.seed + (8 if settings.full else 4))
    courses = []
    for rule, n_heads in ((True, 1), (False, 1), (True, 2)):
        kind = "with" if rule else "without"
        settings.tell(f"a language {kind} the rule, heads: {n_heads}")
        courses += [course(rule, n_heads, seed, n_steps) for seed in seeds]
    return Measured(courses)


def chosen(m: Measured, rule: bool, n_heads: int = 1) -> list[Course]:
    """The courses of one kind."""
    return [one for one in m.courses if (one.rule, one.n_heads) == (rule, n_heads)]


def tables(m: Measured) -> tuple[Table, ...]:
    """Before and after, and what cutting brings back."""
    kinds = (
        ("rule, 1 head", chosen(m, True)),
        ("no rule, 1 head", chosen(m, False)),
        ("rule, 2 heads", chosen(m, True, 2)),
    )
    learnt = [
        (
            name,
            *(
                plus_minus([scale * getattr(one, field)[at] for one in courses], digits)
                for field, scale, digits in (
                    ("attention", 100, 0),
                    ("aligned", 1, 1),
                    ("loss", 1, 2),
                )
                for at in (0, -1)
            ),
        )
        for name, courses in kinds
    ]
    cut = [
        (
            name,
            *(
                plus_minus([100 * getattr(one, field) for one in courses])
                for field in ("error", "silenced", "unseen_verb", "unseen_other")
            ),
        )
        for name, courses in kinds
    ]
    titles = (
        Words("What is learnt, before → after", "学到了什么：训练前 → 训练后"),
        Words("Wrong endings (%) when something is cut", "切断之后的错误率（%）"),
    )
    head = ("language", "object→verb (%)", "→", "score above mean", "→", "loss", "→")
    cut_head = ("language", "whole", "head silenced", "verb unseen", "another word unseen")
    return Table(titles[0], head, tuple(learnt)), Table(titles[1], cut_head, tuple(cut))


def draw(m: Measured) -> Figure:
    """Attention and loss over training, the classes' scores, and the causal check."""
    from qkv.inspect.style import COLOURS, MARKERS, new_figure

    figure, axes = new_figure(9.0, 6.0, nrows=2, ncols=2)
    for index, (label, rule) in enumerate((("with the rule", True), ("without it", False))):
        for number, one in enumerate(chosen(m, rule)):
            seen = [100 * value for value in one.attention]
            for axis, values in zip(axes[0], (seen, one.loss), strict=True):
                axis.plot(
                    one.steps,
                    values,
                    label=label if number == 0 else None,
                    color=COLOURS[index],
                    marker=MARKERS[index],
                    markevery=4,
                    alpha=0.7,
                )
    axes[0, 0].axhline(100 * CHANCE, color=COLOURS[6], linestyle=":", label="even weights")
    axes[0, 0].set(
        title="How much the object looks at its verb",
        xlabel="step",
        ylabel="attention object → verb (%)",
        ylim=(0, 103),
    )
    axes[0, 1].axhline(math.log(len(VERBS)), color=COLOURS[6], linestyle=":", label="guessing")
    axes[0, 1].set_title("How well its ending is foretold")
    axes[0, 1].set(xlabel="step", ylabel="loss on new sentences (nats)")
    axes[0, 0].legend(), axes[0, 1].legend()
    _draw_classes(axes[1, 0], chosen(m, True))
    _draw_errors(axes[1, 1], m)
    return figure


def _draw_classes(axis: Any, courses: list[Course]) -> None:
    from qkv.inspect.style import DIVERGING

    table = torch.tensor([one.classes[-1] for one in courses]).mean(dim=0)
    most = float(table.abs().max())
    axis.imshow(table.numpy(), cmap=DIVERGING, vmin=-most, vmax=most, aspect="auto")
    for row in range(len(CLASSES)):
        for column in range(len(CLASSES)):
            value = float(table[row, column])
            colour = "white" if abs(value) > 0.6 * most else "black"
            axis.text(column, row, f"{value:+.1f}", ha="center", va="center", color=colour)
    for ticks in (axis.set_xticks, axis.set_yticks):
        ticks(range(len(CLASSES)), list(CLASSES))
    axis.grid(False)
    axis.set_title("Mean score of a query and a key, with the rule")
    axis.set(xlabel="key of", ylabel="query of")


def _draw_errors(axis: Any, m: Measured) -> None:
    from qkv.inspect.style import COLOURS

    fields = ("error", "silenced", "unseen_verb", "unseen_other")
    for index, n_heads in enumerate((1, 2)):
        courses = chosen(m, True, n_heads)
        means = [100 * fmean(getattr(one, field) for one in courses) for field in fields]
        places = [place + (index - 0.5) * 0.38 for place in range(len(fields))]
        label = "one head" if n_heads == 1 else "two heads"
        look = {"color": COLOURS[index], "hatch": "//" if index else None, "edgecolor": "white"}
        bars = axis.bar(places, means, width=0.36, label=label, **look)
        axis.bar_label(bars, fmt="%.0f", fontsize=8)
    names = ["whole", "its head\nsilenced", "verb\nunseen", "another\nunseen"]
    axis.set_xticks(range(len(fields)), names)
    axis.set(title="Errors when something is cut, with the rule", ylim=(0, 109))
    axis.set_ylabel("wrong endings (%)")
    axis.legend()


def animate(m: Measured, path: Path) -> None:
    """The map of one sentence over training, with the rule beside without, as a GIF."""
    from matplotlib.animation import PillowWriter

    from qkv.inspect.style import new_figure

    figure, axes = new_figure(9.0, 4.4, ncols=2)
    pair = chosen(m, True)[0], chosen(m, False)[0]
    images = [axis.imshow(pair[0].maps[0], vmin=0, vmax=1) for axis in axes]
    for axis in axes:
        axis.set_xticks(range(LENGTH), EXAMPLE, rotation=60)
        axis.set_yticks(range(LENGTH), EXAMPLE)
        axis.grid(False)
        axis.set(xlabel="is looked at", ylabel="looks")
    figure.colorbar(images[-1], ax=axes, label="attention weight")
    row, column = EXAMPLE.index("apple"), EXAMPLE.index("eat")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once: quicker, and nothing jumps
    writer = PillowWriter(fps=4)
    with writer.saving(figure, str(path), dpi=80):
        for index in [*range(len(pair[0].steps)), *[-1] * 6]:  # the end stays a while
            for axis, image, one in zip(axes, images, pair, strict=True):
                weight, rule = one.maps[index][row][column], "rule" if one.rule else "no rule"
                image.set_data(one.maps[index])
                axis.set_title(f"{rule}, step {one.steps[index]}: apple → eat {100 * weight:.0f} %")
            writer.grab_frame()


def judge(m: Measured) -> Verdict:
    """Does the look form with the rule alone, and does the answer hang on it?"""
    ruled, free, double = chosen(m, True), chosen(m, False), chosen(m, True, 2)
    before, after, control = (
        100 * fmean(one.attention[at] for one in courses)
        for courses, at in ((ruled, 0), (ruled, -1), (free, -1))
    )
    wrong, silenced, unseen, other, redundant = (
        100 * fmean(getattr(one, field) for one in courses)
        for courses, field in (
            (ruled, "error"),
            (ruled, "silenced"),
            (ruled, "unseen_verb"),
            (ruled, "unseen_other"),
            (double, "silenced"),
        )
    )
    en = (
        f"With the rule the object's attention to its verb rises from {before:.0f} % to "
        f"{after:.0f} %, without it it ends at {control:.0f} % (even weights: "
        f"{100 * CHANCE:.0f} %). Wrong endings: {wrong:.0f} %; {silenced:.0f} % with the head "
        f"silenced, {unseen:.0f} % with only the verb unseen, {other:.0f} % with another word "
        f"unseen. With two heads, silencing the one that looks most gives {redundant:.0f} %."
    )
    zh = (
        f"有规则时，宾语对动词的注意力从 {before:.0f}% 升到 {after:.0f}%；没有规则时停在 "
        f"{control:.0f}%（平均分配是 {100 * CHANCE:.0f}%）。错误率 {wrong:.0f}%；关掉这个头变为 "
        f"{silenced:.0f}%，只遮住动词变为 {unseen:.0f}%，改遮别的词则是 {other:.0f}%。"
        f"换成两个头，只关掉看动词最多的那个，错误率是 {redundant:.0f}%。"
    )
    if not (after > 50 and after > 3 * before and wrong < 10):
        return Verdict("does not hold", Words(en, zh))
    if control < 200 * CHANCE and silenced > 50 and unseen > 50 > other:  # twice its even share
        return Verdict("holds", Words(en, zh))
    en = f"Holds of the look alone: that the rule makes it and that it decides is not shown. {en}"
    return Verdict("holds when", Words(en, f"注意力确实形成了，但因果关系未能证实。{zh}"))


LAB = Lab(
    number=24,
    name="query_key",
    title=Words("What W_Q and W_K learn", "W_Q 和 W_K 学到了什么"),
    claim=Words(
        "Fresh matrices match at random; prediction errors alone teach an object's query to point "
        "at the key of its verb (apple at eat), as far as the language has such a rule.",
        "刚初始化时 Q 和 K 的匹配是随机的；只靠预测误差的反向传播，宾语的 Q 就会学着指向动词的 K"
        "（“苹果”找“吃”），前提是语言里确有这样的搭配规律。",
    ),
    experiment=Words(
        "A made-up language: a verb and its object among other words in any order; each verb gives "
        "its object an ending of its own, to be filled in. One attention layer is watched while "
        "it learns; in the control language endings are drawn at random. Then the head is "
        "silenced, or the object forbidden to look at the verb, or at another word.",
        "一种人造语言：动词和宾语夹在其他词之间，词序任意，每个动词要求宾语带上它专属的词尾，模型来填这个词尾。"
        "观察单层注意力的学习过程；对照组的语言完全相同，只是词尾随机。最后分别关掉这个头、"
        "不许宾语看动词、不许宾语看另一个词，比较错误率。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
    animate=animate,
)
