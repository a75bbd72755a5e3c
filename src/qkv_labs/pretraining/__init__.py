"""Lab 20: pre-training on plain text, then few labels, against the same labels from scratch.

In a made-up language people tell what they saw and what they think of it. 40 adjectives praise or
blame, words like "not" turn them round, and nothing but the company that words keep says which
does what: who adores a thing finds it fine. Labels come for sentences without such a verb.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from qkv.config import ModelConfig
from qkv.model import Encoder, build_model
from qkv_labs.lab import Lab, Outcome, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, mean_and_spread, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Where each kind of word begins in the vocabulary; the halves of a kind mean opposite things.
N_NOUNS, N_NEUTRAL, N_OPINIONS, N_TURNS, N_ADJECTIVES = 12, 4, 8, 6, 40
MASK, CLS, NOUNS = 0, 1, 2
NEUTRAL = NOUNS + N_NOUNS
OPINIONS = NEUTRAL + N_NEUTRAL
TURNS = OPINIONS + N_OPINIONS
ADJECTIVES = TURNS + N_TURNS
VOCABULARY = ADJECTIVES + N_ADJECTIVES
VERB_PLACE, LENGTH = 1, 5

TURNED = 0.15  # the share of adjectives that stand after a word like "not"
OPINIONATED = 0.9  # the share of plain sentences whose verb tells what the speaker thinks
HIDDEN = 0.4  # of the words, in pre-training
BATCH, N_TEST, N_CHOICE = 32, 1000, 200
RATES = (1e-3, 3e-3)
SCRATCH, LONG, PRETRAINED, CUT = (
    "from scratch",
    "from scratch, equal compute",
    "pre-trained",
    "pre-trained, meaning cut",
)
ARMS = (PRETRAINED, CUT, LONG, SCRATCH)
CLEAR = 5.0  # percentage points that count as a difference: three standard errors of 1,000 answers
CHANCE = 50.0


@dataclass(frozen=True)
class Sizes:
    """How much is done; all arms have the same model, batches and fine-tuning steps."""

    labels: tuple[int, ...] = (20, 100, 500)
    seeds: int = 3
    pretraining_steps: int = 800
    steps: int = 80
    n_plain: int = 20_000  # sentences of plain text
    d_model: int = 48


@dataclass(frozen=True)
class Arm:
    """Accuracies on held-out sentences, in percent, one a seed, and the rate that was chosen."""

    name: str
    labels: int
    steps: int  # in all, pre-training too
    accuracies: list[float]
    rate: float


@dataclass(frozen=True)
class Measured:
    """All arms at all numbers of labels, and how well hidden words were guessed."""

    arms: list[Arm]
    adjectives: int
    opinion_loss: float  # of hidden opinion verbs, in nats, at the end of pre-training
    opinion_loss_cut: float  # the same where the text does not tell

    def of(self, name: str, labels: int) -> Arm:
        """One arm."""
        return next(one for one in self.arms if (one.name, one.labels) == (name, labels))

    @property
    def labels(self) -> list[int]:
        """The numbers of labels, rising."""
        return sorted({one.labels for one in self.arms})


def sentences(n: int, random: Generator, opinions: float) -> tuple[Tensor, Tensor]:
    """`[CLS] saw soup not fine`, and whether that is praise, (N,).

    A share `opinions` has a verb that says so, such as `adored`; the others have a neutral one.
    """

    def draw(most: int) -> Tensor:
        return torch.randint(most, (n,), generator=random)

    turned = torch.rand(n, generator=random) < TURNED
    turn = draw(N_TURNS // 2) + N_TURNS // 2 * turned.long()
    adjective = draw(N_ADJECTIVES)
    praise = (adjective < N_ADJECTIVES // 2) != turned
    half = N_OPINIONS // 2
    opinion = OPINIONS + draw(half) + half * (~praise).long()
    neutral = NEUTRAL + draw(N_NEUTRAL)
    verb = torch.where(torch.rand(n, generator=random) < opinions, opinion, neutral)
    noun = NOUNS + draw(N_NOUNS)
    row = (torch.full((n,), CLS), verb, noun, TURNS + turn, ADJECTIVES + adjective)
    return torch.stack(row, dim=1), praise.long()


def without_meaning(text: Tensor, random: Generator) -> Tensor:
    """The same sentences with their opinion verbs dealt out anew, so that they tell nothing."""
    verbs = text[:, VERB_PLACE]
    places = (verbs >= OPINIONS).nonzero()[:, 0]
    dealt = text.clone()
    dealt[places, VERB_PLACE] = verbs[places[torch.randperm(len(places), generator=random)]]
    return dealt


def build(d_model: int) -> Encoder:
    """The encoder of all arms, with a head for hidden words and one for a text's label."""
    model = build_model(
        ModelConfig(
            family="encoder",
            vocab_size=VOCABULARY,
            d_model=d_model,
            n_heads=4,
            d_ff=2 * d_model,
            n_encoder_layers=2,
            max_length=LENGTH,
            positions="learned",
            norm_position="pre",
            activation="gelu",
            dropout=0.0,
            head="masked",
            pair_head=True,
        )
    )
    assert isinstance(model, Encoder)
    return model


def hide(text: Tensor, random: Generator) -> tuple[Tensor, Tensor]:
    """Hide some of the words; the text as it is seen, and which were hidden."""
    hidden = torch.rand(text.shape, generator=random) < HIDDEN
    hidden[:, 0] = False
    return text.masked_fill(hidden, MASK), hidden


def pretrain(model: Encoder, text: Tensor, steps: int, random: Generator) -> float:
    """Guess hidden words of plain text; the loss of hidden opinion verbs afterwards, in nats."""

    def loss(step: int) -> Tensor:
        rows = text[torch.randint(len(text), (BATCH,), generator=random)]
        seen, hidden = hide(rows, random)
        return F.cross_entropy(model.head(model.hidden(seen)[hidden]), rows[hidden])

    fit(model.parameters(), loss, steps, lr=2e-3)
    rows = text[text[:, VERB_PLACE] >= OPINIONS][:1000].clone()
    verbs = rows[:, VERB_PLACE].clone()
    rows[:, VERB_PLACE] = MASK
    with torch.no_grad():
        return float(F.cross_entropy(model.head(model.hidden(rows)[:, VERB_PLACE]), verbs))


def label_logits(model: Encoder, text: Tensor) -> Tensor:
    """What the model says of whole sentences, (B, 2)."""
    assert model.pair_head is not None
    return model.pair_head(model.hidden(text)[:, 0])


@torch.no_grad()
def accuracy(model: Encoder, text: Tensor, labels: Tensor) -> float:
    """Right labels in percent."""
    return 100 * float((label_logits(model, text).argmax(-1) == labels).double().mean())


@dataclass(frozen=True)
class Lesson:
    """Labelled sentences: to learn from, to choose the learning rate by, and to be tested on."""

    learn: tuple[Tensor, Tensor]
    choose: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @classmethod
    def drawn(cls, n_labels: int, random: Generator) -> Lesson:
        """Sentences without opinion verbs; none of the others is among those to learn from."""
        choose, test = sentences(N_CHOICE, random, 0.0), sentences(N_TEST, random, 0.0)
        known = {tuple(row) for row in torch.cat([choose[0], test[0]]).tolist()}
        text, labels = sentences(2 * n_labels, random, 0.0)
        new = [place for place, row in enumerate(text.tolist()) if tuple(row) not in known]
        kept = torch.tensor(new[:n_labels])
        return cls((text[kept], labels[kept]), choose, test)


def fine_tune(
    model: Encoder, lesson: Lesson, steps: int, rate: float, random: Generator
) -> tuple[float, float]:
    """Learn labels; accuracy on the sentences that choose the rate, and on the test's."""
    text, labels = lesson.learn

    def loss(step: int) -> Tensor:
        rows = torch.randint(len(text), (BATCH,), generator=random)
        return F.cross_entropy(label_logits(model, text[rows]), labels[rows])

    fit(model.parameters(), loss, steps, lr=rate)
    return accuracy(model, *lesson.choose), accuracy(model, *lesson.test)


Weights = dict[str, Tensor]


def starts(sizes: Sizes, seed: int) -> tuple[dict[str, Weights], dict[str, float]]:
    """The weights that each arm begins with, of one random draw, and losses of pre-training."""
    random = Generator().manual_seed(seed)
    text, _ = sentences(sizes.n_plain, random, OPINIONATED)
    torch.manual_seed(seed)
    fresh = {name: value.clone() for name, value in build(sizes.d_model).state_dict().items()}
    found, losses = {SCRATCH: fresh, LONG: fresh}, {}
    for name, plain in ((PRETRAINED, text), (CUT, without_meaning(text, random))):
        model = build(sizes.d_model)
        model.load_state_dict(fresh)
        losses[name] = pretrain(model, plain, sizes.pretraining_steps, random)
        found[name] = model.state_dict()
    return found, losses


def outcome_of(
    weights: Weights, n_labels: int, steps: int, rate: float, seed: int
) -> tuple[float, float]:
    """Fine-tune from these weights on labels that the seed draws; the same for all arms."""
    random = Generator().manual_seed(1000 * n_labels + seed)
    lesson = Lesson.drawn(n_labels, random)
    model = build(weights["embedding.table.weight"].shape[1])
    model.load_state_dict(weights)
    return fine_tune(model, lesson, steps, rate, random)


def run_arm(name: str, begin: list[Weights], sizes: Sizes, settings: Settings) -> list[Arm]:
    """Fine-tune on each number of labels; the rate is chosen by the middle one and other data."""
    steps = sizes.steps + (sizes.pretraining_steps if name == LONG else 0)
    total = sizes.steps + (0 if name == SCRATCH else sizes.pretraining_steps)
    middle, seed = sizes.labels[len(sizes.labels) // 2], settings.seed
    choices = {rate: outcome_of(begin[0], middle, steps, rate, seed)[0] for rate in RATES}
    rate = max(RATES, key=choices.__getitem__)
    arms = []
    for n_labels in sizes.labels:
        settings.tell(f"{name}, {n_labels} labels")
        found = [
            outcome_of(weights, n_labels, steps, rate, seed + place)[1]
            for place, weights in enumerate(begin)
        ]
        arms.append(Arm(name, n_labels, total, found, rate))
    return arms


def measured_with(sizes: Sizes, settings: Settings) -> Measured:
    """All arms, with sizes that a test can make small."""
    begin: dict[str, list[Weights]] = {name: [] for name in ARMS}
    losses: dict[str, list[float]] = {PRETRAINED: [], CUT: []}
    with torch.random.fork_rng(devices=[]):
        for seed in range(settings.seed, settings.seed + sizes.seeds):
            settings.tell(f"pre-training, seed {seed}")
            found, lost = starts(sizes, seed)
            for name in ARMS:
                begin[name].append(found[name])
            for name, value in lost.items():
                losses[name].append(value)
        arms = [arm for name in ARMS for arm in run_arm(name, begin[name], sizes, settings)]
    return Measured(arms, N_ADJECTIVES, fmean(losses[PRETRAINED]), fmean(losses[CUT]))


def measure(settings: Settings) -> Measured:
    """Pre-train, then fine-tune on more and more labels."""
    full = Sizes(labels=(10, 20, 50, 100, 500, 2000), seeds=5, pretraining_steps=2000, steps=200)
    return measured_with(full if settings.full else Sizes(), settings)


def tables(m: Measured) -> tuple[Table, ...]:
    """Accuracy by labels and arm."""
    rows = [
        (
            name,
            f"{m.of(name, m.labels[0]).steps:,}",
            *(plus_minus(m.of(name, labels).accuracies) for labels in m.labels),
        )
        for name in ARMS
    ]
    return (
        Table(
            Words(
                f"Right labels of {N_TEST} new sentences, % (chance {CHANCE:.0f}), by the number "
                f"of labelled sentences; mean ± spread over seeds",
                f"{N_TEST} 个新句子的分类正确率，%（瞎猜 {CHANCE:.0f}），按标注句数列出；"
                f"各随机种子的均值 ± 标准差",
            ),
            ("start", "steps in all", *(f"{labels} labels" for labels in m.labels)),
            tuple(rows),
        ),
    )


def draw(m: Measured) -> Figure:
    """Accuracy against labels, a line an arm."""
    from qkv.inspect.style import COLOURS, MARKERS, new_figure

    figure, axes = new_figure(7.2, 4.0)
    for name, colour, marker in zip(ARMS, COLOURS, MARKERS, strict=False):
        points = [mean_and_spread(m.of(name, labels).accuracies) for labels in m.labels]
        means, spreads = zip(*points, strict=True)
        axes.errorbar(
            m.labels, means, yerr=spreads, marker=marker, color=colour, capsize=3, label=name
        )
    axes.axhline(CHANCE, color=COLOURS[7], linestyle=":", label="chance")
    axes.set_xscale("log")
    axes.set_xticks(m.labels, [str(labels) for labels in m.labels])
    axes.minorticks_off()
    axes.set(
        xlabel="labelled sentences",
        ylabel="right on new sentences (%)",
        ylim=(30, 102),
        title="How far does plain text stand in for labels? Mean and spread over seeds",
    )
    axes.legend(loc="lower right", ncols=2)
    return figure


def gains(m: Measured) -> dict[int, float]:
    """By labels, how far the pre-trained arm is ahead of the better arm from scratch, in points."""
    return {
        labels: fmean(m.of(PRETRAINED, labels).accuracies)
        - max(fmean(m.of(name, labels).accuracies) for name in (SCRATCH, LONG))
        for labels in m.labels
    }


def judge(m: Measured) -> Verdict:
    """Few labels decide whether it is true, many labels and the cut text how far it goes."""
    few, many, gain = m.labels[0], m.labels[-1], gains(m)
    ahead = [labels for labels in m.labels if gain[labels] >= CLEAR]
    a, cut, long, scratch = (fmean(m.of(name, few).accuracies) for name in ARMS)
    outcome: Outcome = "holds when"
    if few not in ahead:
        outcome, en, zh = (
            "does not hold",
            f"The gain is below {CLEAR:.0f} points. ",
            "没有明显好处。",
        )
    elif a - cut < CLEAR:
        en = "It helps, but not by what the text says: one that tells nothing does as well. "
        zh = "预训练有用，但与文本内容无关：抹去褒贬线索的文本效果差不多。"
    elif len(ahead) < len(m.labels):
        en = f"When labels are few (ahead with {', '.join(map(str, ahead))}). "
        zh = f"标注较少时成立（{'、'.join(map(str, ahead))} 条时领先）。"
    else:
        outcome, en, zh = "holds", "", ""
    return Verdict(
        outcome,
        Words(
            f"{en}With {few} labels the pre-trained model is right on {a:.0f} %, from scratch it "
            f"is {scratch:.0f} % ({long:.0f} % with equal compute), and after plain text whose "
            f"verbs tell nothing {cut:.0f} %. With {many} labels the difference to the better "
            f"one from scratch is {gain[many]:+.0f} points.",
            f"{zh}只有 {few} 条标注时，预训练过的模型正确率为 {a:.0f}%，从零训练的为 "
            f"{scratch:.0f}%（算力相同时 {long:.0f}%），在动词不透露褒贬的文本上预训练的为 "
            f"{cut:.0f}%。标注增加到 {many} 条时，预训练与从零训练中较好的一组相差 "
            f"{gain[many]:+.0f} 个百分点。",
        ),
    )


LAB = Lab(
    number=20,
    name="pretraining",
    title=Words("Pre-training, then few labels", "先预训练，再用少量标注"),
    claim=Words(
        "An encoder that has learnt to fill gaps in plain text needs little labelled data and "
        "little further training to do a task well.",
        "编码器先拿无标注文本练过填空，之后只要少量标注、再稍加训练，就能把具体任务做好。",
    ),
    experiment=Words(
        "In a made-up language, 40 adjectives praise or blame, and words like “not” turn them "
        "round. A small encoder (two layers) fills gaps in unlabelled sentences, of which "
        f"{100 * OPINIONATED:.0f} % have a verb that gives the opinion away; then it learns to "
        "label sentences without such verbs. Beside it, with the same first weights, labels, "
        "batches and choice of learning rates: from scratch with as many fine-tuning steps; from "
        "scratch with as many steps in all; and pre-trained on the same text with its opinion "
        "verbs dealt out at random. Three seeds (five with --full).",
        "在一种虚构的语言里，40 个形容词或褒或贬，“不”一类的词会把意思反过来。两层的小编码器先在"
        f"无标注句子上做填空，其中 {100 * OPINIONATED:.0f}% 的句子，动词透露了说话人的态度；"
        "再学习给不含这类动词的句子判断褒贬。对照组的初始权重、标注、批次和可选学习率都相同："
        "从零训练、微调步数相同；从零训练、总步数相同；以及在同样的文本上预训练，但把态度动词随机打乱。"
        "三个随机种子（加 --full 为五个）。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
