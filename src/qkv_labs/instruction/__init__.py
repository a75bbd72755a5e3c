"""Lab 22: a decoder that knows a world from plain text, before and after instruction tuning.

Plain text says in several ways where made-up people live, which animal they keep and what they work
as. Three in four of them are asked about in tuning; answers about the others can only come from the
plain text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.config import DecodeConfig, TokenizerConfig
from qkv.evaluation import exact_match
from qkv.model import Decoder
from qkv.tasks import LanguageModel, Prompting
from qkv.text import TEMPLATES, Message, Tokenizer, train_tokenizer
from qkv_labs import tools
from qkv_labs.figures import COLOURS, MARKERS, Figure, new_figure, within_percent
from qkv_labs.instruction.people import BOTH, KINDS, RELATIONS, Question, World
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, compare
from qkv_labs.shared import special_ids
from qkv_labs.texts import Texts

say = Texts("instruction")

TEMPLATE = TEMPLATES["plain"]
BATCH = 32
PLAIN_RATE, TUNING_RATE = 4e-3, 1e-3
CHANCE = 100 / len(RELATIONS[0].values)
BEFORE, AFTER, ALONE = "plain text only", "then instructions", "instructions only"
ARMS = (BEFORE, AFTER, ALONE)
ENOUGH = 50.0  # percent: more right answers than not


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    people: int = 60
    asked_about: int = 45
    paragraphs: int = 4000
    pretraining_steps: int = 400
    steps: int = 200
    d_model: int = 64


@dataclass(frozen=True)
class Measured:
    """Every figure, one value a seed."""

    exact: dict[str, dict[str, list[float]]]  # by arm and kind of question, in percent
    mentions: dict[str, dict[str, list[float]]]  # right answer anywhere in the output
    gaps: dict[str, list[float]]  # by arm: plain sentences that end with the right word, percent
    perplexity: dict[str, list[float]]  # of new plain text
    steps: dict[str, int]


Example = tuple[list[int], list[bool]]  # tokens, and whether each is learnt


def tokenizer_of(world: World) -> Tokenizer:
    """Train subwords that spell plain text, questions and the template alike."""
    asked = [question for question, _ in world.tuning]
    asked += [question for some in world.tests.values() for question, _ in some]
    lines = [*world.paragraphs(500, "tokenizer"), *asked, *TEMPLATE.to_dict().values()]
    return train_tokenizer(lines, TokenizerConfig(vocab_size=700))


def build(sizes: Sizes, tokenizer: Tokenizer) -> Decoder:
    """Build a small decoder of the Llama kind."""
    llama: dict[str, Any] = {"norm": "rms", "activation": "silu", "gated": True, "bias": False}
    return tools.decoder(
        **special_ids(tokenizer),
        d_model=sizes.d_model,
        d_ff=3 * sizes.d_model,
        n_layers=2,
        positions="rotary",
        max_length=64,
        **llama,
    )


def plain_examples(paragraphs: Sequence[str], tokenizer: Tokenizer) -> list[Example]:
    """Encode paragraphs of which every token is learnt."""
    rows = [[tokenizer.bos_id, *ids, tokenizer.eos_id] for ids in tokenizer.encode_many(paragraphs)]
    return [(row, [True] * len(row)) for row in rows]


def tuning_examples(questions: Sequence[Question], tokenizer: Tokenizer) -> list[Example]:
    """Encode conversations of which the answer is learnt."""
    conversations: list[list[Message]] = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in questions
    ]
    encoded = TEMPLATE.encode_many(conversations, tokenizer, True)
    return [(conversation.tokens, conversation.answer) for conversation in encoded]


def loss_of(model: Decoder, examples: Sequence[Example]) -> Tensor:
    """Return the mean loss of the next tokens that are learnt."""
    inputs = [tokens[:-1] for tokens, _ in examples]
    labels = [
        [token if learnt else tools.IGNORE for token, learnt in zip(*example, strict=True)][1:]
        for example in examples
    ]
    logits = model(tools.padded(inputs, model.config.pad_id), tools.lengths(inputs))
    return tools.token_loss(logits, tools.padded(labels, tools.IGNORE))


def learn(model: Decoder, examples: Sequence[Example], steps: int, lr: float, seed: int) -> None:
    """Train on the next tokens of examples."""
    draw = np.random.default_rng(seed)

    def loss(step: int) -> Tensor:
        return loss_of(model, [examples[i] for i in draw.integers(len(examples), size=BATCH)])

    tools.fit(model, loss, steps, lr=lr)


@torch.no_grad()
def perplexity(model: Decoder, examples: Sequence[Example]) -> float:
    """Return exp of the mean loss of a token, where every token is learnt."""
    return math.exp(float(loss_of(model, examples)))


@dataclass(frozen=True)
class Examined:
    """Accuracy of one model in percent, and its perplexity of plain text."""

    exact: dict[str, float]
    mentions: dict[str, float]
    gaps: float
    perplexity: float


def examine(model: Decoder, world: World, tokenizer: Tokenizer) -> Examined:
    """Ask all test questions in the template, fill gaps in plain text, and read new plain text."""
    decode = DecodeConfig(beams=1, sample=False, max_length=10)
    speaker = LanguageModel(model, tokenizer, decode, Prompting(True, TEMPLATE))
    exact, mentions = {}, {}
    for kind, questions in world.tests.items():
        asked = [[{"role": "user", "content": question}] for question, _ in questions]
        outputs, right = speaker.answers(asked), [answer for _, answer in questions]
        exact[kind] = exact_match(outputs, right).value
        mentions[kind] = share_mentioned(outputs, right)
    outputs = speaker.generate([text for text, _ in world.gaps], max_length=3)
    firsts = [" ".join(output.replace(".", " ").split()[:1]) for output in outputs]
    gaps = exact_match(firsts, [answer for _, answer in world.gaps]).value
    fresh = plain_examples(world.paragraphs(200, "held out"), tokenizer)
    return Examined(exact, mentions, gaps, perplexity(model, fresh))


def share_mentioned(outputs: Sequence[str], right: Sequence[str]) -> float:
    """Return how often, in percent, the right word is among the words of an answer."""
    words = [output.replace(".", " ").split() for output in outputs]
    return 100 * fmean(answer in some for answer, some in zip(right, words, strict=True))


def examined(world: World, sizes: Sizes) -> dict[str, Examined]:
    """Train the three models of one seed: plain text, then instructions; instructions alone."""
    tokenizer = tokenizer_of(world)
    plain = plain_examples(world.paragraphs(sizes.paragraphs, "train"), tokenizer)
    tuning = tuning_examples(world.tuning, tokenizer)
    torch.manual_seed(world.seed)
    model, alone = build(sizes, tokenizer), build(sizes, tokenizer)
    alone.load_state_dict(model.state_dict())
    learn(model, plain, sizes.pretraining_steps, PLAIN_RATE, world.seed)
    results = {BEFORE: examine(model, world, tokenizer)}
    learn(model, tuning, sizes.steps, TUNING_RATE, world.seed)
    results[AFTER] = examine(model, world, tokenizer)
    # The whole compute goes into instructions here, first at the rate of plain text
    learn(alone, tuning, sizes.pretraining_steps, PLAIN_RATE, world.seed)
    learn(alone, tuning, sizes.steps, TUNING_RATE, world.seed + 1)
    results[ALONE] = examine(alone, world, tokenizer)
    return results


def measure(settings: Settings) -> Measured:
    """Pre-train, tune, and ask, for each seed."""
    sizes = settings.pick(Sizes(), Sizes(120, 90, 8000, 1200, 600, 96))
    runs = []
    for seed in settings.seeds(3, 5):
        settings.tell(f"plain text, then instructions: seed {seed}")
        runs.append(examined(World(seed, sizes.people, sizes.asked_about), sizes))

    def by_kind(figure: str, arm: str) -> dict[str, list[float]]:
        return {kind: [getattr(run[arm], figure)[kind] for run in runs] for kind in KINDS}

    both = sizes.pretraining_steps + sizes.steps
    return Measured(
        {arm: by_kind("exact", arm) for arm in ARMS},
        {arm: by_kind("mentions", arm) for arm in ARMS},
        {arm: [run[arm].gaps for run in runs] for arm in ARMS},
        {arm: [run[arm].perplexity for run in runs] for arm in ARMS},
        {BEFORE: sizes.pretraining_steps, AFTER: both, ALONE: both},
    )


def tables(m: Measured) -> list[Table]:
    """Right answers by arm and kind of question, and what happened to plain text."""

    def perplexity(values: list[float]) -> str:
        return tools.plus_minus(values, 2) if max(values) < 1000 else "over 1,000"

    answers = {
        "learnt from": "{0}",
        "steps": lambda arm: f"{m.steps[arm]:,}",
        **{kind: lambda arm, kind=kind: tools.plus_minus(m.exact[arm][kind]) for kind in KINDS},
        "mentions it": lambda arm: tools.plus_minus(m.mentions[arm][BOTH]),
    }
    plain = {
        "learnt from": "{0}",
        "right last words": lambda arm: tools.plus_minus(m.gaps[arm]),
        "perplexity": lambda arm: perplexity(m.perplexity[arm]),
    }
    return [say.table("answers", answers, ARMS, chance=CHANCE), say.table("plain", plain, ARMS)]


def draw(m: Measured) -> Figure:
    """Left: right answers by kind of question. Right: what tuning costs on plain text."""
    figure, (left, right) = new_figure(9.6, 3.8, nrows=1, ncols=2, width_ratios=(2, 1))
    width = 0.26
    for index, arm in enumerate(ARMS):
        points = [tools.mean_and_spread(m.exact[arm][kind]) for kind in KINDS]
        means, spreads = zip(*points, strict=True)
        x = [number + (index - 1) * width for number in range(len(KINDS))]
        style = {"color": COLOURS[index], "edgecolor": "white", "capsize": 3}
        style["hatch"] = ("", "//", "..")[index]  # to be told apart without colour
        bars = left.bar(x, means, width, yerr=within_percent(means, spreads), label=arm, **style)
        left.bar_label(bars, fmt="%.0f", fontsize=7, padding=2)
    left.axhline(CHANCE, color=COLOURS[7], linestyle=":", label="chance")
    left.set_xticks(range(len(KINDS)), KINDS)
    left.set(ylabel="answered to the letter (%)", ylim=(0, 112))
    left.set_title("Questions that were not tuned on")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=4)
    for index, arm in enumerate((BEFORE, AFTER)):
        values = m.perplexity[arm]
        right.plot([index] * len(values), values, MARKERS[index], color=COLOURS[index], alpha=0.7)
    right.set_xticks((0, 1), (BEFORE, AFTER))
    right.set(xlim=(-0.5, 1.5), ylim=(1, None), ylabel="perplexity of new plain text")
    right.set_title("Plain text, before and after (a mark a seed)")
    return figure


def judge(m: Measured) -> Verdict:
    """Did answers come, also to what was not tuned on, and from the knowledge of plain text?"""
    people, words, both = (
        Figures({arm: Interval.percent(m.exact[arm][kind]) for arm in ARMS}) for kind in KINDS
    )
    plain = Figures({arm: Interval.of(m.perplexity[arm]) for arm in (BEFORE, AFTER)})
    return say.verdict(
        before=[
            compare(right[BEFORE], "<", CHANCE, (kind, "chance"))
            for kind, right in zip(KINDS, (people, words, both), strict=True)
        ],
        after=people.compare(AFTER, ">", BEFORE),
        wordings=words.compare(AFTER, ">", ALONE),
        both=compare(both[AFTER], ">", ENOUGH, BOTH),
        knowledge=people.compare(AFTER, ">", ALONE),
        kept=plain.compare(AFTER, "<", BEFORE, margin=-0.05, form=".2f"),
    )


LAB = say.make_lab(measure, tables, draw, judge)
