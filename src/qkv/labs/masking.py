"""How much an encoder should have to guess, and what telling true pairs from false is worth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from qkv.config import MaskConfig, ModelConfig, TokenizerConfig
from qkv.data import Batch, Framed, Ragged, Sequences, Specials, frame
from qkv.data.batch import in_rows
from qkv.data.corruption import Masker
from qkv.data.demo import descriptions, states
from qkv.data.encoded import spread
from qkv.data.sequences import padded_sequences, side
from qkv.labs.lab import Lab, Settings, Table, Verdict, Words
from qkv.labs.tools import fit, mean_and_spread, plus_minus
from qkv.model import Encoder, pool
from qkv.text import Tokenizer, train_tokenizer
from qkv.train.objectives import at_places, encoded, hidden_tokens, layout_of, one_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PATTERNS = (  # few words, so that a small encoder gets to know them soon
    descriptions.identity, descriptions.person_quality, descriptions.comparison,
    descriptions.location, states.having_family, states.feeling_for_people,
)  # fmt: skip
RATES = (0.05, 0.15, 0.30, 0.50, 0.80)
USUAL = RATES.index(0.15)
PLAIN_MASKS = MaskConfig(share=0.15, random=0.0, kept=0.0)  # what every rate is judged by
STARTS = ("no pre-training", "masks", "masks + pairs")


@dataclass(frozen=True)
class Sizes:
    """How much is drawn and learnt."""

    each: int = 1000  # sentences drawn of each pattern; a fifth is held out
    steps: int = 200  # of pre-training
    tune_steps: int = 80  # of fine-tuning
    rows: int = 60
    labelled: int = 500  # examples to fine-tune on
    seeds: int = 3
    width: int = 48


@dataclass(frozen=True)
class Text:
    """A sentence as ids, what it is about, and the pattern that made it."""

    ids: list[int]
    subject: str
    thing: str
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
        special = np.zeros(len(self.tokenizer), np.bool_)
        special[self.tokenizer.special_ids] = True
        return Masker(
            config, self.tokenizer.mask_id, special, lambda ids: np.ones(len(ids), np.bool_)
        )


@dataclass(frozen=True)
class Measured:
    """Percent of held-out examples that are right, a list a rate or a start, a value a seed."""

    filled: list[list[float]]  # tokens found again with 15 % hidden, for each of `RATES`
    probed: list[list[float]]  # patterns told by a linear probe, for each of `RATES`
    pair_task: list[list[float]]  # for each of `STARTS`
    single_task: list[list[float]]
    chance: list[float]  # of the pair task and of the single one


def texts_of(sizes: Sizes) -> Work:
    """Draw Chinese sentences of every pattern; no held-out one is among those learnt from."""
    random, drawn = Random(0), {}
    for number, pattern in enumerate(PATTERNS):
        for _ in range(sizes.each):
            sentence = pattern(random)
            clauses = sorted(c for c in sentence.combinations if c[0] in ("clause", "activity"))
            drawn[sentence.chinese] = (clauses[0][1], clauses[0][-1], number)
    lines = list(drawn)
    random.shuffle(lines)
    tokenizer = train_tokenizer(lines, TokenizerConfig(kind="char", vocab_size=900))
    tokenizer.add_special(["<mask>"])
    ids = tokenizer.encode_many(lines)
    every = [Text(own, *drawn[line]) for line, own in zip(lines, ids, strict=True)]
    cut = len(every) // 5
    special = Specials(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    config = ModelConfig(
        family="encoder", vocab_size=len(tokenizer), d_model=sizes.width, n_heads=4,
        d_ff=2 * sizes.width, n_encoder_layers=2, n_decoder_layers=0, n_segments=2, dropout=0.0,
        max_length=64, norm_position="pre", head="masked", pooling="mean", pair_head=True,
        pad_id=special.pad, bos_id=special.bos, eos_id=special.eos,
    )  # fmt: skip
    return Work(every[cut:], every[:cut], tokenizer, special, config, sizes)


def masked_batch(
    framed: Sequence[Framed], masker: Masker, random: np.random.Generator, pad: int
) -> Batch:
    """Hide tokens, and lay the sequences in rows."""
    tokens = Ragged.of([one.tokens for one in framed])
    segments = Ragged.of([one.segments for one in framed])
    # As one text, for 5 % of a single sentence would be less than a token.
    hidden = masker(Ragged(tokens.tokens, tokens.offsets[[0, -1]]), random)
    rows = in_rows(tokens.lengths, 1)
    places = torch.from_numpy(spread(rows.starts, tokens.offsets)[hidden.places])
    target = side(Ragged(hidden.tokens, tokens.offsets), segments, rows, pad)
    return Batch(None, target, torch.from_numpy(hidden.labels), len(hidden.labels), places)


def drawn_pairs(
    texts: Sequence[Text], about: str, n: int, random: Random
) -> list[tuple[Text, Text, int]]:
    """Half the pairs agree in what they are `about`, and half do not."""
    groups: dict[str, list[Text]] = defaultdict(list)
    for text in texts:
        groups[getattr(text, about)].append(text)
    firsts = [text for text in texts if len(groups[getattr(text, about)]) > 1]
    found = []
    for index in range(n):
        first, label = random.choice(firsts), index % 2
        topic = getattr(first, about)
        second = random.choice(groups[topic] if label else texts)
        while second is first or (getattr(second, about) == topic) != bool(label):
            second = random.choice(groups[topic] if label else texts)
        found.append((first, second, label))
    return found


def fresh(config: ModelConfig, seed: int) -> Encoder:
    """First weights by the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder(config)


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


def pairing(work: Work, with_pairs: bool, seed: int) -> Encoder:
    """An encoder that guessed tokens of pairs, and perhaps learnt which share their subject."""
    model, masker, rows = fresh(work.config, seed), work.masker(MaskConfig()), work.sizes.rows // 2
    order, random = Random(seed), np.random.default_rng(seed)

    def loss(step: int) -> Tensor:
        drawn = drawn_pairs(work.train, "subject", rows, order)
        framed = [frame(first.ids, second.ids, work.special) for first, second, _ in drawn]
        labels = torch.tensor([label for *_, label in drawn])
        batch = replace(masked_batch(framed, masker, random, work.special.pad), pairs=labels)
        weight = batch.n_labels / rows if with_pairs else 0.0  # both means count alike
        return hidden_tokens(weight)(model, batch, 0.0) / batch.n_labels

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


def sequences(framed: Sequence[Framed], labels: Sequence[int], special: Specials) -> Batch:
    """Labelled texts in rows."""
    return padded_sequences(Sequences.of(framed, np.array(labels)), range(len(labels)), special)


@torch.no_grad()
def probed(model: Encoder, work: Work) -> float:
    """Patterns told right, in percent, by ridge regression on frozen mean vectors."""

    def vectors(texts: Sequence[Text]) -> tuple[Tensor, Tensor]:
        framed = [frame(text.ids, None, work.special) for text in texts]
        batch = sequences(framed, [text.pattern for text in texts], work.special)
        x = pool(encoded(model, batch.target), layout_of(batch.target), "mean").double()
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1), batch.labels

    x, labels = vectors(work.train[: 4 * work.sizes.labelled])
    wanted = one_hot(labels, len(PATTERNS)).double()
    ridge = 1e-3 * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(x.T @ x + ridge, x.T @ wanted)
    x, labels = vectors(work.held_out)
    return 100 * float(((x @ weights).argmax(dim=-1) == labels).float().mean())


@dataclass(frozen=True)
class Task:
    """What an encoder is tuned for: framed texts and their labels, in two parts."""

    n_labels: int
    train: tuple[list[Framed], list[int]]
    held_out: tuple[list[Framed], list[int]]


def tasks_of(work: Work) -> tuple[Task, Task]:
    """Whether two sentences are about the same thing, and which pattern made a sentence."""
    random, special = Random(1), work.special
    parts = ((work.train, work.sizes.labelled), (work.held_out, 1000))
    pairs = [drawn_pairs(texts, "thing", n, random) for texts, n in parts]
    double = [
        ([frame(a.ids, b.ids, special) for a, b, _ in part], [label for *_, label in part])
        for part in pairs
    ]
    single = [
        ([frame(text.ids, None, special) for text in part], [text.pattern for text in part])
        for part in (work.train[: work.sizes.labelled], work.held_out)
    ]
    return Task(2, *double), Task(len(PATTERNS), *single)


def tuned(start: Encoder, task: Task, work: Work, seed: int) -> float:
    """Right answers on what is held out, in percent, after fine-tuning all weights."""
    config = replace(start.config, head="sequence", n_labels=task.n_labels, pair_head=False)
    model = fresh(config, seed)
    kept = {k: v for k, v in start.state_dict().items() if not k.startswith(("head", "pair_head"))}
    model.load_state_dict(kept, strict=False)
    order, (framed, labels) = Random(seed), task.train

    def loss(step: int) -> Tensor:
        chosen = order.sample(range(len(framed)), min(32, len(framed)))
        batch = sequences([framed[i] for i in chosen], [labels[i] for i in chosen], work.special)
        return one_class()(model, batch, 0.0) / batch.n_labels

    fit(model.train().parameters(), loss, work.sizes.tune_steps, lr=2e-3)
    batch = sequences(*task.held_out, work.special)
    with torch.no_grad():
        said = model.eval()(batch.target.tokens, layout_of(batch.target), batch.target.segments)
    return 100 * float((said.argmax(dim=-1) == batch.labels).float().mean())


def measure(settings: Settings) -> Measured:
    """All rates, then all starts, with the same seeds."""
    full = Sizes(each=3000, steps=1500, tune_steps=300, seeds=5)
    work = texts_of(full if settings.full else Sizes())
    seeds = range(settings.seed, settings.seed + work.sizes.seeds)
    fills, probes = [], []
    for rate in RATES:
        settings.tell(f"hiding {rate:.0%}")
        models = [filling(work, rate, seed) for seed in seeds]
        fills.append([filled(model, work) for model in models])
        probes.append([probed(model, work) for model in models])
    tasks = tasks_of(work)
    pairs, singles = ([list[float]() for _ in STARTS] for _ in tasks)
    for seed in seeds:
        settings.tell(f"pairs and fine-tuning, seed {seed}")
        pretrained = [pairing(work, with_pairs, seed) for with_pairs in (False, True)]
        for index, start in enumerate([fresh(work.config, seed), *pretrained]):
            for task, rows in zip(tasks, (pairs, singles), strict=True):
                rows[index].append(tuned(start, task, work, seed))
    return Measured(fills, probes, pairs, singles, [100 / task.n_labels for task in tasks])


def tables(m: Measured) -> tuple[Table, ...]:
    """The rates, and the starts."""
    rates = _rows([f"{rate:.0%}" for rate in RATES], m.filled, m.probed)
    starts = _rows(STARTS, m.pair_task, m.single_task)
    starts.append(("chance", f"{m.chance[0]:.1f}", f"{m.chance[1]:.1f}"))
    by_rate = Words("What each masking rate teaches, % right", "不同遮盖比例的效果（正确率 %）")
    by_start = Words("After fine-tuning, % right", "微调之后的正确率（%）")
    return (
        Table(by_rate, ("hidden", "fill, 15 % hidden", "linear probe: pattern"), tuple(rates)),
        Table(by_start, ("start", "pair: same thing?", "single: which pattern?"), tuple(starts)),
    )


def _rows(names: Sequence[str], *columns: list[list[float]]) -> list[tuple[str, ...]]:
    return [(name, *map(plus_minus, row)) for name, *row in zip(names, *columns, strict=True)]


def draw(m: Measured) -> Figure:
    """Accuracy by rate, and by start."""
    from qkv.inspect.style import COLOURS, MARKERS, new_figure

    figure, (left, right) = new_figure(9.5, 3.6, ncols=2)
    shares = [100 * rate for rate in RATES]
    lines = {"fill, always 15 % hidden": m.filled, "linear probe: pattern": m.probed}
    for (label, rows), colour, marker in zip(lines.items(), COLOURS, MARKERS, strict=False):
        means, spreads = zip(*map(mean_and_spread, rows), strict=True)
        style = {"color": colour, "marker": marker, "label": label, "capsize": 3}
        left.errorbar(shares, means, spreads, **style)
    for index, start in enumerate(STARTS):
        rows = [m.pair_task[index], m.single_task[index]]
        means, spreads = zip(*map(mean_and_spread, rows), strict=True)
        places, style = [0.27 * (index - 1), 1 + 0.27 * (index - 1)], {"label": start, "capsize": 3}
        bars = right.bar(places, means, 0.25, yerr=spreads, color=COLOURS[index], **style)
        right.bar_label(bars, fmt="%.0f", fontsize=8)
    left.axvline(15, color="0.6", linestyle=":")
    left.set(xlabel="tokens hidden, %", ylabel="right, %", title="What each masking rate teaches")
    right.set(ylabel="right, %", ylim=(0, 115), title="What pre-training is worth")
    right.set_xticks(range(2), ["pair: same thing?", "single: which pattern?"])
    left.legend()
    right.legend(ncols=3, loc="upper center")
    return figure


def gain(left: Sequence[float], right: Sequence[float]) -> tuple[float, bool]:
    """Mean difference, seed by seed, and whether it is beyond a point and two standard errors."""
    mean, spread = mean_and_spread([a - b for a, b in zip(left, right, strict=True)])
    return mean, abs(mean) > max(1.0, 2 * spread / len(left) ** 0.5)


def judge(m: Measured) -> Verdict:
    """15 % must not be clearly beaten, and the pair objective must help a task with pairs."""
    best = max(range(len(RATES)), key=lambda index: fmean(m.filled[index]))
    lead, beaten = gain(m.filled[best], m.filled[USUAL])
    pair, pair_clear = gain(m.pair_task[2], m.pair_task[1])
    single, _ = gain(m.single_task[2], m.single_task[1])
    fits, helps = not beaten, pair_clear and pair > 0
    means, pairs = [fmean(m.filled[i]) for i in (best, USUAL)], list(map(fmean, m.pair_task))
    because = Words(
        f"At equal steps, hiding {RATES[best]:.0%} fills best ({means[0]:.1f} %), {lead:+.1f} "
        f"points against 15 % ({means[1]:.1f} %). The pair objective changes a pair task by "
        f"{pair:+.1f} points ({pairs[2]:.1f} against {pairs[1]:.1f} %, {pairs[0]:.1f} % without "
        f"pre-training) and a single-sentence task by {single:+.1f}.",
        f"步数相同时，遮盖 {RATES[best]:.0%} 填空最准（{means[0]:.1f}%），与 15%"
        f"（{means[1]:.1f}%）相差 {lead:+.1f} 个百分点。加入句对目标后，句对任务变化 {pair:+.1f} "
        f"个百分点（{pairs[2]:.1f}% 对 {pairs[1]:.1f}%，不做预训练为 {pairs[0]:.1f}%），"
        f"单句任务变化 {single:+.1f}。",
    )
    if max(pairs) < m.chance[0] + 5:
        because = Words(
            f"{because.en} No start learnt the pair task, so the pair objective is not judged.",
            f"{because.zh}各组都没有学会句对任务，因此句对目标的作用无从判断。",
        )
    if fits and helps:
        return Verdict("holds", because)
    if not (fits or helps):
        return Verdict("does not hold", because)
    half = ("of the rate, not of the pair objective", "只有遮盖比例这一半成立，句对目标没有帮助")
    if helps:
        half = ("of the pair objective, not of the rate", "只有句对目标这一半成立，15% 并非最好")
    return Verdict(
        "holds when", Words(f"It holds {half[0]}. {because.en}", f"{half[1]}。{because.zh}")
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
        "steps; judged on held-out text by filling 15 % and by a linear probe. Others read pairs, "
        "half of them about one subject, with and without learning which; then all are tuned on "
        "few labels for another pair task (same thing?) and for a single one.",
        "小编码器读人造中文句子，遮盖 5% 到 80% 的词元，步数相同；在留出文本上以固定遮盖 15% 的"
        "填空和线性探针来评判。另一组读句子对（一半主语相同），分别带与不带句对目标；"
        "随后用少量标注微调另一项句对任务（说的是同一事物吗）和一项单句任务。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
