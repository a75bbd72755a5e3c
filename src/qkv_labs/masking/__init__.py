"""How much an encoder should have to guess, and what telling true pairs from false is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from qkv.config import MaskConfig, ModelConfig, TokenizerConfig
from qkv.data import Specials, frame
from qkv.data.corruption import Masker
from qkv.demo import descriptions, states
from qkv.model import Encoder, pool
from qkv.text import Tokenizer, train_tokenizer
from qkv.training.objectives import at_places, encoded, hidden_tokens, layout_of
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.masking_documents import TOPICS
from qkv_labs.masking_pairs import STARTS, TASKS, PairSizes, pages_of, worth
from qkv_labs.masking_tools import fresh, masked_batch, masker_of, sequences, small_encoder
from qkv_labs.tools import fit, mean_and_spread, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PATTERNS = (  # few words, so that a small encoder gets to know them soon
    descriptions.identity,
    descriptions.person_quality,
    descriptions.comparison,
    descriptions.location,
    states.having_family,
    states.feeling_for_people,
)
RATES = (0.05, 0.15, 0.30, 0.50, 0.80)
USUAL = RATES.index(0.15)
CHANCE = (50.0, 50.0, 100 / len(TOPICS))  # of each of `TASKS`
TASKS_ZH = ("句对任务“人物相同吗”", "句对任务“情绪相同吗”", "单句任务“哪个话题”")
PLAIN_MASKS = MaskConfig(share=0.15, random=0.0, kept=0.0)  # what every rate is judged by


@dataclass(frozen=True)
class Sizes:
    """How much is drawn and learnt."""

    each: int = 1000  # sentences drawn of each pattern; a fifth is held out
    steps: int = 200
    rows: int = 60
    labelled: int = 2000  # sentences that the probe learns from
    seeds: int = 3
    width: int = 48


@dataclass(frozen=True)
class Text:
    """A sentence as ids, and the pattern that made it."""

    ids: list[int]
    pattern: int


@dataclass(frozen=True)
class Work:
    """Sentences to learn from and to be judged by, and what reads them."""

    train: list[Text]
    held_out: list[Text]
    tokenizer: Tokenizer
    special: Specials
    config: ModelConfig
    sizes: Sizes

    def masker(self, config: MaskConfig) -> Masker:
        """What hides single tokens of this text."""
        ids = self.tokenizer.special_ids
        return masker_of(config, self.tokenizer.mask_id, ids, len(self.tokenizer))


@dataclass(frozen=True)
class Measured:
    """Percent of held-out examples that are right, a list a rate or a start, a value a seed."""

    filled: list[list[float]]  # tokens found again with 15 % hidden, for each of `RATES`
    probed: list[list[float]]  # patterns told by a linear probe, for each of `RATES`
    told: list[float]  # next sentences, by the encoders that learnt to tell them
    tasks: list[list[list[float]]]  # for each of `TASKS`, for each of `STARTS`


def texts_of(sizes: Sizes) -> Work:
    """Draw Chinese sentences of every pattern; no held-out one is among those learnt from."""
    random, drawn = Random(0), {}
    for number, pattern in enumerate(PATTERNS):
        for _ in range(sizes.each):
            drawn[pattern(random).chinese] = number
    lines = list(drawn)
    random.shuffle(lines)
    tokenizer = train_tokenizer(lines, TokenizerConfig(kind="char", vocab_size=900))
    tokenizer.add_special(["<mask>"])
    ids = tokenizer.encode_many(lines)
    every = [Text(own, drawn[line]) for line, own in zip(lines, ids, strict=True)]
    cut = len(every) // 5
    special = Specials(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    config = small_encoder(len(tokenizer), sizes.width, special)
    return Work(every[cut:], every[:cut], tokenizer, special, config, sizes)


def filling(work: Work, rate: float, seed: int) -> Encoder:
    """An encoder that learnt to guess this share of single sentences' tokens."""
    model, masker = fresh(work.config, seed), work.masker(MaskConfig(share=rate))
    order, random = Random(seed), np.random.default_rng(seed)
    sentences = [frame(text.ids, None, work.special) for text in work.train]

    def loss(step: int) -> Tensor:
        framed = order.sample(sentences, work.sizes.rows)
        batch = masked_batch(framed, masker, random, work.special.pad)
        return hidden_tokens()(model, batch, 0.0) / batch.n_labels

    fit(model.parameters(), loss, work.sizes.steps, lr=5e-3)
    return model.eval()


@torch.no_grad()
def filled(model: Encoder, work: Work) -> float:
    """Hidden tokens found again in sentences held out, in percent; the same ones for all models."""
    framed = [frame(text.ids, None, work.special) for text in work.held_out]
    masker, random = work.masker(PLAIN_MASKS), np.random.default_rng(0)
    batch = masked_batch(framed, masker, random, work.special.pad)
    guesses = model.head(at_places(encoded(model, batch.target), batch)).argmax(dim=-1)
    return 100 * float((guesses == batch.labels).float().mean())


@torch.no_grad()
def probed(model: Encoder, work: Work) -> float:
    """Patterns told right, in percent, by ridge regression on frozen mean vectors."""

    def vectors(texts: Sequence[Text]) -> tuple[Tensor, Tensor]:
        framed = [frame(text.ids, None, work.special) for text in texts]
        batch = sequences(framed, [text.pattern for text in texts], work.special)
        x = pool(encoded(model, batch.target), layout_of(batch.target), "mean").double()
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1), batch.labels

    x, labels = vectors(work.train[: work.sizes.labelled])
    wanted = one_hot(labels, len(PATTERNS)).double()
    ridge = 1e-3 * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(x.T @ x + ridge, x.T @ wanted)
    x, labels = vectors(work.held_out)
    return 100 * float(((x @ weights).argmax(dim=-1) == labels).float().mean())


def measure(settings: Settings) -> Measured:
    """All rates, then all starts."""
    sizes, pair_sizes = Sizes(), PairSizes()
    if settings.full:
        sizes = Sizes(each=3000, steps=1500, seeds=5)
        pair_sizes = PairSizes(steps=1500, tune_steps=200, seeds=6)
    work, first = texts_of(sizes), settings.seed
    fills, probes = [], []
    for rate in RATES:
        settings.tell(f"hiding {rate:.0%}")
        models = [filling(work, rate, seed) for seed in range(first, first + sizes.seeds)]
        fills.append([filled(model, work) for model in models])
        probes.append([probed(model, work) for model in models])
    pages, found = pages_of(pair_sizes), []
    for seed in range(first, first + pair_sizes.seeds):
        settings.tell(f"pairs and fine-tuning, seed {seed}")
        found.append(worth(pages, seed))
    tasks = [
        [[one.right[task][start] for one in found] for start in range(len(STARTS))]
        for task in range(len(TASKS))
    ]
    return Measured(fills, probes, [one.told for one in found], tasks)


def tables(m: Measured) -> tuple[Table, ...]:
    """The rates, and the starts."""
    rates = _rows([f"{rate:.0%}" for rate in RATES], m.filled, m.probed)
    starts = _rows(STARTS, *m.tasks)
    starts.append(("chance", *(f"{share:.1f}" for share in CHANCE)))
    by_rate = Words("What each masking rate teaches, % right", "不同遮盖比例的效果（正确率 %）")
    by_start = Words(
        f"After fine-tuning on few labels, % right (next sentences told: {plus_minus(m.told)} %)",
        f"用少量标注微调之后的正确率（%；下一句判断本身为 {plus_minus(m.told)}%）",
    )
    return (
        Table(by_rate, ("hidden", "fill, 15 % hidden", "linear probe: pattern"), tuple(rates)),
        Table(by_start, ("start", *TASKS), tuple(starts)),
    )


def _rows(names: Sequence[str], *columns: list[list[float]]) -> list[tuple[str, ...]]:
    return [(name, *map(plus_minus, row)) for name, *row in zip(names, *columns, strict=True)]


def draw(m: Measured) -> Figure:
    """Accuracy by rate, and by start."""
    from qkv.inspect.style import COLOURS, MARKERS, new_figure

    figure, (left, right) = new_figure(11, 3.8, ncols=2)
    shares = [100 * rate for rate in RATES]
    lines = {"fill, always 15 % hidden": m.filled, "linear probe: pattern": m.probed}
    for (label, rows), colour, marker in zip(lines.items(), COLOURS, MARKERS, strict=False):
        means, spreads = zip(*map(mean_and_spread, rows), strict=True)
        style = {"color": colour, "marker": marker, "label": label, "capsize": 3}
        left.errorbar(shares, means, spreads, **style)
    for index, start in enumerate(STARTS):
        places = [place + 0.27 * (index - 1) for place in range(len(TASKS))]
        heights = [fmean(task[index]) for task in m.tasks]
        bars = right.bar(places, heights, 0.25, label=start, color=COLOURS[index])
        right.bar_label(bars, fmt="%.0f", label_type="center", color="white")
        for place, task in zip(places, m.tasks, strict=True):  # seeds fail or succeed at once
            right.plot([place] * len(task[index]), task[index], "o", color="0.15", markersize=3)
    for place, share in enumerate(CHANCE):
        right.plot([place - 0.42, place + 0.42], [share, share], color="0.2", linestyle=":")
    left.axvline(15, color="0.6", linestyle=":")
    left.set(xlabel="tokens hidden, %", ylabel="right, %", title="What each masking rate teaches")
    right.set(ylabel="right, %", ylim=(0, 120), yticks=range(0, 101, 20))
    right.set_title("What pre-training is worth (a dot a seed, dotted: chance)")
    right.set_xticks(range(len(TASKS)), TASKS)
    left.legend()
    right.legend(ncols=3, loc="upper center")
    return figure


def gain(left: Sequence[float], right: Sequence[float]) -> tuple[float, bool]:
    """Mean difference, seed by seed, and whether it is beyond a point and two standard errors."""
    mean, spread = mean_and_spread([a - b for a, b in zip(left, right, strict=True)])
    return mean, abs(mean) > max(1.0, 2 * spread / len(left) ** 0.5)


def judge(m: Measured) -> Verdict:
    """15 % must not be clearly beaten, and the pair objective must help both tasks with pairs."""
    best = max(range(len(RATES)), key=lambda index: fmean(m.filled[index]))
    lead, beaten = gain(m.filled[best], m.filled[USUAL])
    means = [fmean(m.filled[index]) for index in (best, USUAL)]
    rate = Words(
        f"At equal steps, hiding {RATES[best]:.0%} fills best ({means[0]:.1f} %), {lead:+.1f} "
        f"points against 15 % ({means[1]:.1f} %).",
        f"步数相同时，遮盖 {RATES[best]:.0%} 填空最准（{means[0]:.1f}%），与 15%"
        f"（{means[1]:.1f}%）相差 {lead:+.1f} 个百分点。",
    )
    pairs, helped = _of_pairs(m)
    because = Words(f"{rate.en} {pairs.en}", f"{rate.zh}{pairs.zh}")
    if not beaten and helped == 2:
        return Verdict("holds", because)
    if beaten and not helped:
        return Verdict("does not hold", because)
    condition = Words(
        f"Of the rate it {'does not hold' if beaten else 'holds'}; of the pair objective it "
        f"{('does not', 'holds for one of two pair tasks', 'holds')[helped]}.",
        f"遮盖比例这一半{'不成立' if beaten else '成立'}；"
        f"句对目标这一半{('不成立', '只在两项句对任务之一上成立', '成立')[helped]}。",
    )
    return Verdict(
        "holds when",
        Words(f"{condition.en} {because.en}", f"{condition.zh}{because.zh}"),
    )


def _of_pairs(m: Measured) -> tuple[Words, int]:
    """What the pair objective changes, and how many of the two pair tasks it clearly helps."""
    gains = [gain(task[2], task[1]) for task in m.tasks]
    told = [_change(task, *found) for task, found in zip(m.tasks, gains, strict=True)]
    en = ", ".join(f"“{name}” {one.en}" for name, one in zip(TASKS, told, strict=True))
    zh = "；".join(f"{name} {one.zh}" for name, one in zip(TASKS_ZH, told, strict=True))
    en, zh = (
        f"With few labels, the pair objective changes {en}; these are small encoders and made-up "
        "documents whose neighbours can be told, and RoBERTa did without it on real text.",
        f"标注很少时，加入句对目标的变化为：{zh}。"
        "这是小模型在人造文档（相邻句可以判断）上的结果；RoBERTa 在真实语料上并不需要这一目标。",
    )
    if max(fmean(start) for task in m.tasks[:2] for start in task) < CHANCE[0] + 5:
        en += " No start learnt a pair task, so the pair objective is not judged."
        zh += "各组都没有学会句对任务，因此句对目标的作用无从判断。"
    return Words(en, zh), sum(clear and mean > 0 for mean, clear in gains[:2])


def _change(task: list[list[float]], mean: float, clear: bool) -> Words:
    without, with_pairs = fmean(task[1]), fmean(task[2])
    noise = Words("", "") if clear else Words(", within noise", "，在误差之内")
    return Words(
        f"by {mean:+.1f} points ({with_pairs:.1f} against {without:.1f} %{noise.en})",
        f"{mean:+.1f} 个百分点（{with_pairs:.1f}% 对 {without:.1f}%{noise.zh}）",
    )


LAB = Lab(
    number=19,
    name="masking",
    title=Words("Masking rate and next-sentence prediction", "遮盖比例与下一句预测"),
    claim=Words(
        "An encoder learns to understand text by guessing the 15 % of tokens that are hidden from "
        "it; telling whether one sentence follows another fits it for tasks on pairs of sentences.",
        "编码器通过猜测被遮盖的 15% 词元来学会理解文本；判断两句是否相接，则让它适应句子对任务。",
    ),
    experiment=Words(
        "Small encoders read made-up Chinese sentences with 5 to 80 % of the tokens hidden, equal "
        "steps; judged on held-out text by filling 15 % and by a linear probe. Others read pairs "
        "from documents that keep one person, topic and mood, half of them neighbours, with and "
        "without learning which (both losses weigh alike); then all are tuned alike on 400 "
        "labelled pairs of one topic (same person? same mood?) and on 40 single sentences (which "
        "topic?).",
        "小编码器读人造中文句子，遮盖 5% 到 80% 的词元，步数相同；在留出文本上以固定遮盖 15% 的"
        "填空和线性探针来评判。另一组读人造文档中的句子对：每篇文档的人物、话题和情绪不变，"
        "一半句子对在文中相邻，分别带与不带句对目标（两项损失权重相同）；"
        "随后以相同方式微调：话题相同的 400 个标注句对（人物相同吗、情绪相同吗）"
        "和 40 个标注单句（属于哪个话题）。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
