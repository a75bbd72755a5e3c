"""Lab 24: what W_Q and W_K learn, watched in a language where a verb decides about its object."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.model import Attention, Encoder, Mask, equation, use_path
from qkv_labs import tools
from qkv_labs.figures import COLOURS, DIVERGING, Figure, look, new_figure
from qkv_labs.lab import Interval, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("query_key")

VERBS = ("eat", "wash", "peel", "buy", "cook", "cut")
OBJECTS = ("apple", "pear", "fish", "leek", "plum", "yam")
OTHERS = (
    *("I", "you", "she", "today", "now", "here"),
    *("slowly", "again", "maybe", "then", "often", "too"),
)
CLASSES = {"object": OBJECTS, "verb": VERBS, "other": OTHERS}
VOCABULARY = VERBS + OBJECTS + OTHERS
LENGTH = 8
EXAMPLE = ("today", "I", "slowly", "eat", "maybe", "again", "apple", "here")
CHANCE = 1 / LENGTH  # the weight of one word among all, where nothing is looked for


class Sentences(NamedTuple):
    """Word ids (B, T), positions of verb and object (B,), and the object's ending (B,)."""

    words: Tensor
    verb: Tensor
    object: Tensor
    ending: Tensor


def sentences(rows: int, rule: bool, generator: torch.Generator) -> Sentences:
    """Draw sentences of a verb, an object and other words in any order.

    By the rule each verb gives its object an ending of its own; without it, the ending is drawn.
    """
    n_verbs, n_objects = len(VERBS), len(OBJECTS)
    verb = torch.randint(n_verbs, (rows, 1), generator=generator)
    noun = torch.randint(n_objects, (rows, 1), generator=generator) + n_verbs
    others = torch.randint(len(OTHERS), (rows, LENGTH - 2), generator=generator)
    words = torch.cat([verb, noun, others + n_verbs + n_objects], dim=1)
    order = torch.rand(rows, LENGTH, generator=generator).argsort(dim=1)
    drawn = torch.randint(n_verbs, (rows, 1), generator=generator)
    positions = order.argsort(dim=1)  # of the verb and the object, which were drawn first
    ending = (verb if rule else drawn)[:, 0]
    return Sentences(words.gather(1, order), positions[:, 0], positions[:, 1], ending)


def build(n_heads: int, seed: int) -> Encoder:
    """Build one pre-norm layer without positions: a word's q and k are its own."""
    return tools.encoder(
        len(VOCABULARY), 32, 1, seed, n_heads=n_heads, positions="none", n_labels=len(VERBS)
    )


def attention_of(model: Encoder) -> Attention:
    """Return the only attention of a model."""
    return next(module for module in model.modules() if isinstance(module, Attention))


@torch.no_grad()
def word_scores(model: Encoder) -> Tensor:
    """Return q·k/√d_k of each word with each word, by head, (H, V, V)."""
    block: Any = model.encoder.blocks[0]
    vectors = block.self_attention_residual.norm(model.embedding(torch.arange(len(VOCABULARY))))
    query, key = attention_of(model).project(vectors)  # (H, V, d)
    return query @ key.transpose(-2, -1) * attention_of(model).scale


def attention_map(scores: Tensor, words: Tensor) -> Tensor:
    """Return the weights in sentences, (H, B, T, T): a softmax over the scores of their words."""
    return torch.softmax(scores[:, words[:, :, None], words[:, None, :]], dim=-1)


def to_verb(scores: Tensor, held_out: Sentences) -> Tensor:
    """Return the mean weight from the object to its verb, by head, (H,)."""
    rows = torch.arange(len(held_out.words))
    maps = attention_map(scores, held_out.words)
    return maps[:, rows, held_out.object, held_out.verb].mean(dim=1)


def class_scores(scores: Tensor) -> list[list[float]]:
    """Return the mean score between classes of words, of one head's (V, V): query, key."""
    ids = {name: [VOCABULARY.index(word) for word in words] for name, words in CLASSES.items()}
    centred = scores - scores.mean(dim=1, keepdim=True)  # a softmax does not see the rest
    return [[centred[a][:, b].mean().item() for b in ids.values()] for a in ids.values()]


@torch.no_grad()
def answers(model: Encoder, held_out: Sentences) -> Tensor:
    """Return logits of the ending at each object, (B, endings)."""
    return model(held_out.words)[torch.arange(len(held_out.words)), held_out.object]


def error(model: Encoder, held_out: Sentences) -> float:
    """Return the share of wrong endings."""
    wrong = answers(model, held_out).argmax(dim=-1) != held_out.ending
    return wrong.double().mean().item()


def without_head(model: Encoder, head: int) -> Encoder:
    """Copy a model with one head's output cut off."""
    model = copy.deepcopy(model)
    attention = attention_of(model)
    attention.output.weight.data[:, head * attention.d_head : (head + 1) * attention.d_head] = 0
    return model


def error_unseen(model: Encoder, held_out: Sentences, hidden: Tensor) -> float:
    """Return the error when no object may attend to the word at `hidden`, (B,), in any head."""
    rows = torch.arange(len(held_out.words))
    forbidden = torch.zeros(len(rows), 1, LENGTH, LENGTH)
    forbidden[rows, 0, held_out.object, hidden] = float("-inf")

    def attend(
        query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, *_: Any, **options: Any
    ) -> Tensor:
        return equation(query, key, value, mask, scale, forbidden)

    with use_path(model, attend):
        return error(model, held_out)


@dataclass(frozen=True)
class Course:
    """One training: what was seen on the way, and what the heads do at its end."""

    rule: bool
    n_heads: int
    steps: list[int]
    attention: list[float]  # object to verb, of the head that ends up looking most
    aligned: list[float]  # that head's mean score object to verb, above its mean to all words
    loss: list[float]  # on new sentences
    error: float
    silenced: float  # the error without that head
    unseen_verb: float  # the error when objects may not attend to the verb
    unseen_other: float  # the error when they may not attend to some other word
    classes: list[list[list[float]]]  # that head's class scores, before and after
    maps: list[list[list[float]]]  # its map of the example, at each of the steps


@dataclass(frozen=True)
class Measured:
    """Courses of the language with the rule and of the one without."""

    courses: list[Course]


def course(rule: bool, n_heads: int, seed: int, n_steps: int, n_looks: int = 30) -> Course:
    """Train once, and look in at even intervals."""
    model = build(n_heads, seed)
    data = torch.Generator().manual_seed(seed + 1000)
    held_out = sentences(500, rule, torch.Generator().manual_seed(seed + 2000))
    every, seen, losses = max(1, n_steps // n_looks), [], []

    def look_in() -> None:
        seen.append(word_scores(model))
        losses.append(F.cross_entropy(answers(model, held_out), held_out.ending).item())

    def loss(step: int) -> Tensor:
        if step % every == 0:
            look_in()
        batch = sentences(64, rule, data)
        logits = model(batch.words)[torch.arange(64), batch.object]
        return F.cross_entropy(logits, batch.ending)

    tools.fit(model, loss, n_steps)
    look_in()
    head = int(to_verb(seen[-1], held_out).argmax())
    classes = [class_scores(scores[head]) for scores in seen]
    example = torch.tensor([[VOCABULARY.index(word) for word in EXAMPLE]])
    taken = torch.stack([held_out.verb, held_out.object], dim=1)
    neither = torch.ones_like(held_out.words).scatter(1, taken, 0).argmax(dim=1)
    return Course(
        rule,
        n_heads,
        [*range(0, n_steps, every), n_steps],
        [to_verb(scores, held_out)[head].item() for scores in seen],
        [table[0][1] for table in classes],
        losses,
        error(model, held_out),
        error(without_head(model, head), held_out),
        error_unseen(model, held_out, held_out.verb),
        error_unseen(model, held_out, neither),
        [classes[0], classes[-1]],
        [attention_map(scores, example)[head, 0].tolist() for scores in seen],
    )


def measure(settings: Settings) -> Measured:
    """Train on both languages, several seeds each."""
    courses = []
    for rule, n_heads in ARMS.values():
        settings.tell(f"a language {'with' if rule else 'without'} the rule, heads: {n_heads}")
        seeds, n_steps = settings.seeds(4, 8), settings.pick(120, 480)
        courses += [course(rule, n_heads, seed, n_steps) for seed in seeds]
    return Measured(courses)


ARMS = {"rule, 1 head": (True, 1), "no rule, 1 head": (False, 1), "rule, 2 heads": (True, 2)}
CUTS = ("error", "silenced", "unseen_verb", "unseen_other")


def chosen(m: Measured, rule: bool, n_heads: int = 1) -> list[Course]:
    """Return the courses of one arm."""
    return tools.where(m.courses, rule=rule, n_heads=n_heads)


def tables(m: Measured) -> list[Table]:
    """Before and after, and what cutting brings back."""
    fields = (("attention", 0, 100), ("aligned", 1, 1), ("loss", 2, 1))
    learnt, cut = [], []
    for name, arm in ARMS.items():
        courses = chosen(m, *arm)
        changes = [
            tools.plus_minus([values[at] for values in tools.column(courses, field)], *how)
            for field, *how in fields
            for at in (0, -1)
        ]
        learnt.append((name, *changes))
        cut.append((name, *(tools.percent(tools.column(courses, field)) for field in CUTS)))
    quantities = ("object→verb (%)", "score above mean", "loss")
    changes = [f"{name}, {time}" for name in quantities for time in ("before", "after")]
    errors = ("whole", "head silenced", "verb unseen", "another word unseen")
    return [
        say.table("before_after", ("language", *changes), learnt),
        say.table("cut", ("language", *errors), cut),
    ]


def draw(m: Measured) -> Figure:
    """Attention and loss over training, the classes' scores, and the causal check."""
    figure, axes = new_figure(9.0, 6.0, nrows=2, ncols=2)
    attention, loss = axes[0]
    for index, (label, rule) in enumerate((("with the rule", True), ("without it", False))):
        for number, course in enumerate(chosen(m, rule)):
            style = look(index, markevery=4, alpha=0.7, label=None if number else label)
            attention.plot(course.steps, [100 * value for value in course.attention], **style)
            loss.plot(course.steps, course.loss, **style)
    attention.axhline(100 * CHANCE, color=COLOURS[6], linestyle=":", label="even weights")
    attention.set(title="How much the object looks at its verb", xlabel="step")
    attention.set(ylabel="attention object → verb (%)", ylim=(0, 103))
    loss.axhline(math.log(len(VERBS)), color=COLOURS[6], linestyle=":", label="guessing")
    loss.set_title("How well its ending is foretold")
    loss.set(xlabel="step", ylabel="loss on new sentences (nats)")
    attention.legend(), loss.legend()
    _draw_classes(axes[1, 0], chosen(m, True))
    _draw_errors(axes[1, 1], m)
    return figure


def _draw_classes(axis: Any, courses: list[Course]) -> None:
    table = torch.tensor([course.classes[-1] for course in courses]).mean(dim=0)
    most = float(table.abs().max())
    axis.imshow(table.numpy(), cmap=DIVERGING, vmin=-most, vmax=most, aspect="auto")
    for row, values in enumerate(table.tolist()):
        for column, value in enumerate(values):
            colour = "white" if abs(value) > 0.6 * most else "black"
            axis.text(column, row, f"{value:+.1f}", ha="center", va="center", color=colour)
    for ticks in (axis.set_xticks, axis.set_yticks):
        ticks(range(len(CLASSES)), list(CLASSES))
    axis.grid(False)
    axis.set_title("Mean score of a query and a key, with the rule")
    axis.set(xlabel="key of", ylabel="query of")


def _draw_errors(axis: Any, m: Measured) -> None:
    for index, label in enumerate(("one head", "two heads")):
        means = [100 * fmean(tools.column(chosen(m, True, index + 1), field)) for field in CUTS]
        x = [position + (index - 0.5) * 0.38 for position in range(len(CUTS))]
        style = {"color": COLOURS[index], "hatch": "//" if index else None, "edgecolor": "white"}
        bars = axis.bar(x, means, width=0.36, label=label, **style)
        axis.bar_label(bars, fmt="%.0f", fontsize=8)
    names = ["whole", "its head\nsilenced", "verb\nunseen", "another\nunseen"]
    axis.set_xticks(range(len(CUTS)), names)
    axis.set(title="Errors when something is cut, with the rule", ylim=(0, 109))
    axis.set_ylabel("wrong endings (%)")
    axis.legend()


def animate(m: Measured, path: Path) -> None:
    """Write the map of one sentence over training, with the rule beside without, as a GIF."""
    from matplotlib.animation import PillowWriter

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
        for index in [*range(len(pair[0].steps)), *[-1] * 6]:  # hold the last frame
            for axis, image, course in zip(axes, images, pair, strict=True):
                share, rule = course.maps[index][row][column], "rule" if course.rule else "no rule"
                image.set_data(course.maps[index])
                title = f"{rule}, step {course.steps[index]}: apple → eat {100 * share:.0f} %"
                axis.set_title(title)
            writer.grab_frame()


def judge(m: Measured) -> Verdict:
    """Does the look form with the rule alone, and does the answer depend on it?"""
    ruled, free, double = (chosen(m, *arm) for arm in ARMS.values())
    rule, no_rule, two = ARMS
    even = 100 * CHANCE

    def attention(courses: list[Course], at: int) -> Interval:
        return Interval.percent([course.attention[at] for course in courses], 100)

    def wrong(courses: list[Course], cut: str) -> Interval:
        return Interval.percent(tools.column(courses, cut), 100)

    return say.verdict(
        random=compare(attention(ruled, 0), "≈", even, "object→verb (%)", margin=5),
        learnt=compare(attention(ruled, -1), ">", 90, rule),
        control=compare(attention(free, -1), "≈", even, no_rule, margin=5),
        needed=[
            compare(wrong(ruled, "unseen_verb"), ">", 50, "verb unseen"),
            compare(wrong(ruled, "unseen_other"), "<", 10, "another word unseen"),
        ],
        redundant=compare(wrong(double, "silenced"), ">", 50, two),
    )


LAB = say.make_lab(measure, tables, draw, judge, animate=animate)
