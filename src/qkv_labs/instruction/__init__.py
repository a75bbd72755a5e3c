"""Lab 22: a decoder that knows a world from plain text, before and after instruction tuning.

Where made-up people live, which animal they keep and what they work as stands in plain text,
said in several ways. Questions are tuned on for three in four of them; the answers about the others
can only come from the plain text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import torch

from qkv.config import DecodeConfig, ModelConfig, TokenizerConfig
from qkv.data import Examples, Ragged, Specials, encode_examples, example_batches, padded_examples
from qkv.evaluate import exact_match
from qkv.model import Decoder, build_model
from qkv.tasks import LanguageModel, Prompting
from qkv.text import TEMPLATES, Message, Tokenizer, train_tokenizer
from qkv.training import next_token
from qkv_labs.lab import Lab, Outcome, Settings, Table, Verdict, Words
from qkv_labs.people import BOTH, KINDS, NEW_PEOPLE, NEW_WORDS, RELATIONS, Question, World
from qkv_labs.tools import fit, mean_and_spread, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = TEMPLATES["plain"]
BATCH = 32
PLAIN_RATE, TUNING_RATE = 4e-3, 1e-3
CHANCE = 100 / len(RELATIONS[0].values)
BEFORE, AFTER, ALONE = "plain text only", "then instructions", "instructions only"
ARMS = (BEFORE, AFTER, ALONE)
CLEAR = 20.0  # percentage points that count as a difference, and twice what guessing gives
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
    seeds: int = 3


@dataclass(frozen=True)
class Measured:
    """A list over seeds for each figure."""

    exact: dict[str, dict[str, list[float]]]  # by arm and kind of question, in percent
    mentions: dict[str, dict[str, list[float]]]  # right answer anywhere in what is said
    gaps: dict[str, list[float]]  # by arm: plain sentences that end with the right word, percent
    perplexity: dict[str, list[float]]  # of new plain text
    steps: dict[str, int]


def tokenizer_of(world: World) -> Tokenizer:
    """Subwords that spell plain text, questions and the template alike."""
    asked = [question for question, _ in world.tuning]
    asked += [question for some in world.tests.values() for question, _ in some]
    lines = [*world.paragraphs(500, "tokenizer"), *asked, *TEMPLATE.to_dict().values()]
    return train_tokenizer(lines, TokenizerConfig(vocab_size=700))


def build(sizes: Sizes, tokenizer: Tokenizer) -> Decoder:
    """A small decoder of the Llama kind."""
    model = build_model(
        ModelConfig(
            family="decoder",
            vocab_size=len(tokenizer),
            d_model=sizes.d_model,
            n_heads=4,
            d_ff=3 * sizes.d_model,
            n_decoder_layers=2,
            norm="rms",
            norm_position="pre",
            positions="rotary",
            activation="silu",
            gated=True,
            bias=False,
            dropout=0.0,
            max_length=64,
            pad_id=tokenizer.pad_id,
            bos_id=tokenizer.bos_id,
            eos_id=tokenizer.eos_id,
        )
    )
    assert isinstance(model, Decoder)
    return model


def plain_examples(paragraphs: list[str], tokenizer: Tokenizer) -> Examples:
    """Paragraphs of which every token is learnt."""
    rows = [[tokenizer.bos_id, *ids, tokenizer.eos_id] for ids in tokenizer.encode_many(paragraphs)]
    tokens = Ragged.of(rows)
    return Examples(tokens, np.ones(len(tokens.tokens), np.bool_))


def tuning_examples(questions: list[Question], tokenizer: Tokenizer) -> Examples:
    """Conversations of which the answer is learnt."""
    conversations: list[list[Message]] = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in questions
    ]
    return encode_examples(conversations, TEMPLATE, tokenizer, bos=True)


def specials(tokenizer: Tokenizer) -> Specials:
    """The ids that are no text."""
    return Specials(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)


def learn(
    model: Decoder, examples: Examples, tokenizer: Tokenizer, steps: int, lr: float, seed: int
) -> None:
    """Next-token training on what counts in the examples."""
    draw = np.random.default_rng(seed)
    special = specials(tokenizer)

    def loss(step: int) -> torch.Tensor:
        rows = draw.integers(len(examples), size=BATCH)
        batch = padded_examples(examples, rows, special)
        return next_token(model, batch, 0.0) / batch.n_labels

    fit(model.parameters(), loss, steps, lr=lr)


@torch.no_grad()
def perplexity(model: Decoder, examples: Examples, tokenizer: Tokenizer) -> float:
    """exp of the mean loss of a token."""
    batches = example_batches(examples, 4096, specials(tokenizer))
    total = sum(float(next_token(model, batch, 0.0)) for batch in batches)
    return math.exp(total / sum(batch.n_labels for batch in batches))


@dataclass(frozen=True)
class Examined:
    """What one model knows and says, in percent, and how well it foresees plain text."""

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
        found, right = speaker.answers(asked), [answer for _, answer in questions]
        exact[kind] = exact_match(found, right).value
        mentions[kind] = share_mentioned(found, right)
    said = speaker.generate([text for text, _ in world.gaps], max_length=3)
    firsts = [" ".join(one.replace(".", " ").split()[:1]) for one in said]
    gaps = exact_match(firsts, [answer for _, answer in world.gaps]).value
    fresh = plain_examples(world.paragraphs(200, "held out"), tokenizer)
    return Examined(exact, mentions, gaps, perplexity(model, fresh, tokenizer))


def share_mentioned(found: list[str], right: list[str]) -> float:
    """How often, in percent, the right word is among the words of an answer."""
    words = [one.replace(".", " ").split() for one in found]
    return 100 * fmean(answer in some for answer, some in zip(right, words, strict=True))


def examined(world: World, sizes: Sizes) -> dict[str, Examined]:
    """The three models of one seed: plain text, then instructions; and instructions alone."""
    tokenizer = tokenizer_of(world)
    plain = plain_examples(world.paragraphs(sizes.paragraphs, "train"), tokenizer)
    tuning = tuning_examples(world.tuning, tokenizer)
    torch.manual_seed(world.seed)
    model, alone = build(sizes, tokenizer), build(sizes, tokenizer)
    alone.load_state_dict(model.state_dict())
    learn(model, plain, tokenizer, sizes.pretraining_steps, PLAIN_RATE, world.seed)
    found = {BEFORE: examine(model, world, tokenizer)}
    learn(model, tuning, tokenizer, sizes.steps, TUNING_RATE, world.seed)
    found[AFTER] = examine(model, world, tokenizer)
    # The whole compute goes into instructions here, first at the rate of plain text
    learn(alone, tuning, tokenizer, sizes.pretraining_steps, PLAIN_RATE, world.seed)
    learn(alone, tuning, tokenizer, sizes.steps, TUNING_RATE, world.seed + 1)
    found[ALONE] = examine(alone, world, tokenizer)
    return found


def measured_with(sizes: Sizes, settings: Settings) -> Measured:
    """All seeds, with sizes that a test can make small."""
    seeds = range(settings.seed, settings.seed + sizes.seeds)
    runs = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds:
            settings.tell(f"plain text, then instructions: seed {seed}")
            world = World(seed, sizes.people, sizes.asked_about)
            runs.append(examined(world, sizes))
    return Measured(
        {arm: {kind: [run[arm].exact[kind] for run in runs] for kind in KINDS} for arm in ARMS},
        {arm: {kind: [run[arm].mentions[kind] for run in runs] for kind in KINDS} for arm in ARMS},
        {arm: [run[arm].gaps for run in runs] for arm in ARMS},
        {arm: [run[arm].perplexity for run in runs] for arm in ARMS},
        {
            BEFORE: sizes.pretraining_steps,
            AFTER: sizes.pretraining_steps + sizes.steps,
            ALONE: sizes.pretraining_steps + sizes.steps,
        },
    )


def measure(settings: Settings) -> Measured:
    """Pre-train, tune, and ask."""
    full = Sizes(120, 90, 8000, 1200, 600, 96, 5)
    return measured_with(full if settings.full else Sizes(), settings)


def tables(m: Measured) -> tuple[Table, ...]:
    """Right answers by arm and kind of question, and what happened to plain text."""
    answers = [
        (
            arm,
            f"{m.steps[arm]:,}",
            *(plus_minus(m.exact[arm][kind]) for kind in KINDS),
            plus_minus(m.mentions[arm][BOTH]),
        )
        for arm in ARMS
    ]
    plain = [
        (
            arm,
            plus_minus(m.gaps[arm]),
            plus_minus(m.perplexity[arm], 2) if max(m.perplexity[arm]) < 1000 else "over 1,000",
        )
        for arm in ARMS
    ]
    return (
        Table(
            Words(
                f"Instructions answered to the letter, % (chance {CHANCE:.0f}); at the right: "
                f"answers to the last kind that hold the right word anywhere",
                f"指令回答完全正确的比例，%（瞎猜 {CHANCE:.0f}）；最右列：最后一类问题的回答中"
                f"出现了正确的词的比例",
            ),
            ("learnt from", "steps", *KINDS, "mentions it"),
            tuple(answers),
        ),
        Table(
            Words(
                "Plain text: right last words of sentences about the new people, %, and "
                "perplexity of new text",
                "普通文本：补全关于新人物的句子的正确率（%），以及新文本上的困惑度",
            ),
            ("learnt from", "right last words", "perplexity"),
            tuple(plain),
        ),
    )


def draw(m: Measured) -> Figure:
    """Left: right answers by kind of question. Right: what tuning costs on plain text."""
    from qkv.inspect.style import COLOURS, MARKERS, new_figure

    figure, (left, right) = new_figure(
        9.6, 3.8, nrows=1, ncols=2, gridspec_kw={"width_ratios": (2, 1)}
    )
    width = 0.26
    for place, arm in enumerate(ARMS):
        points = [mean_and_spread(m.exact[arm][kind]) for kind in KINDS]
        places = [number + (place - 1) * width for number in range(len(KINDS))]
        bars = left.bar(
            places,
            [mean for mean, _ in points],
            width,
            color=COLOURS[place],
            yerr=[spread for _, spread in points],
            capsize=3,
            label=arm,
            edgecolor="white",
            hatch=("", "//", "..")[place],  # to be told apart without colour
        )
        left.bar_label(bars, fmt="%.0f", fontsize=7, padding=2)
    left.axhline(CHANCE, color=COLOURS[7], linestyle=":", label="chance")
    left.set_xticks(range(len(KINDS)), KINDS)
    left.set(
        ylabel="answered to the letter (%)",
        ylim=(0, 112),
        title="Questions that were not tuned on",
    )
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=4)
    for place, arm in enumerate((BEFORE, AFTER)):
        found = m.perplexity[arm]
        right.plot([place] * len(found), found, MARKERS[place], color=COLOURS[place], alpha=0.7)
    right.set_xticks((0, 1), (BEFORE, AFTER))
    right.set(
        xlim=(-0.5, 1.5),
        ylim=(1, None),
        ylabel="perplexity of new plain text",
        title="Plain text, before and after (a mark a seed)",
    )
    return figure


def judge(m: Measured) -> Verdict:
    """Did answers come, also to what was not tuned on, and from the knowledge of plain text?"""
    before, after, alone = ({kind: fmean(m.exact[arm][kind]) for kind in KINDS} for arm in ARMS)
    gained = [
        kind for kind in KINDS if after[kind] - before[kind] >= CLEAR and after[kind] >= 2 * CHANCE
    ]
    weak = [kind for kind in KINDS if kind not in gained or after[kind] < ENOUGH]
    outcome: Outcome = "does not hold"
    if gained:
        outcome = "holds when" if weak else "holds"
    rates = " / ".join(f"{before[kind]:.0f} → {after[kind]:.0f} %" for kind in KINDS)
    first, last = fmean(m.perplexity[BEFORE]), fmean(m.perplexity[AFTER])
    when_en, when_zh = "", ""
    if outcome == "holds when":
        when_en = f"Not for “{'” and “'.join(weak)}”: below {ENOUGH:.0f} %, or little gained. "
        when_zh = (
            f"{'、'.join(ZH[kind] for kind in weak)}除外：正确率不到 {ENOUGH:.0f}%，或提高不多。"
        )
    from_text = after[NEW_PEOPLE] - alone[NEW_PEOPLE] >= CLEAR
    known = fmean(m.gaps[AFTER])
    en = (
        f"{when_en}Tuning takes answers to new people / new wordings / both from {rates}. "
        f"Instructions alone give {alone[NEW_PEOPLE]:.0f} % of the first (chance {CHANCE:.0f} %)"
        f"{': the facts come from plain text' if from_text else ''}; asked to end plain sentences "
        f"about them, the tuned model is right on {known:.0f} %. Perplexity of plain text goes "
        f"from {first:.2f} to {last:.2f}."
    )
    zh = (
        f"{when_zh}指令微调后，对新人物 / 新问法 / 两者皆新的回答正确率为 {rates}。"
        f"只学指令、不读普通文本的模型，对新人物答对 {alone[NEW_PEOPLE]:.0f}%"
        f"（瞎猜 {CHANCE:.0f}%）{'，可见知识来自预训练' if from_text else ''}；"
        f"若改为补全普通句子，微调后的模型对新人物答对 {known:.0f}%。"
        f"普通文本的困惑度由 {first:.2f} 变为 {last:.2f}。"
    )
    return Verdict(outcome, Words(en, zh))


ZH = {NEW_PEOPLE: "新人物", NEW_WORDS: "新问法", BOTH: "新人物加新问法"}

LAB = Lab(
    number=22,
    name="instruction",
    title=Words("Instruction tuning, before and after", "指令微调之前与之后"),
    claim=Words(
        "A model that was trained to go on with text follows instructions only after it has been "
        "tuned on pairs of instruction and answer; then it follows new ones too.",
        "只学过续写的模型不会听指令；再用“指令—回答”数据微调之后，它就能理解并遵循指令，"
        "包括没见过的指令。",
    ),
    experiment=Words(
        "A small decoder reads plain text about 60 made-up people: where they live, which animal "
        "they keep, what they work as. It is then tuned on questions about 45 of them, in a chat "
        "template. Answers must be right to the letter; we ask the tuning's questions about the "
        "other 15, new wordings about the 45, and new wordings about the 15. We compare before and "
        "after, and a model that spent all its steps on the same questions alone, with three seeds "
        "(five, and twice the people, with --full). New plain text shows what tuning does to it. "
        "The instructions are questions of three kinds, no more.",
        "一个小解码器先读关于 60 个虚构人物的普通文本：住在哪里、养什么动物、做什么工作；"
        "再用聊天模板，以其中 45 人的问答微调。答案必须一字不差。测试分三种：用见过的问法问"
        "另外 15 人，用新问法问这 45 人，用新问法问那 15 人。"
        "比较微调前后，并与把全部步数都用在这些问答上的模型"
        "对照，三个随机种子（加 --full 为五个，人数加倍）。另用新的普通文本看微调对它有何影响。"
        "这里的“指令”只限于三类问题。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
