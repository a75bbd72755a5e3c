"""Lab 5: without positions, 我爱你 is 你爱我; and who can tell them apart all the same."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, permutations
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model import Decoder, Encoder, build_model
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, plus_minus, tiny

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PEOPLE, VERBS, STOP = "我你他她爸妈哥姐弟妹爷奶师友", "爱怕想等", "。"
VOCABULARY = PEOPLE + VERBS + STOP
CHANCE = 0.5  # who knows the two people but not their order guesses one of them
SAME = 1e-6  # a change below this is rounding
SEES = 0.1  # so far above chance is no luck: 2.7 standard errors on one seed's 184 sentences
LEARNT = 0.75  # with positions; below, the task is too hard for its failures to show anything
FAMILIES: tuple[Any, ...] = ("encoder", "decoder")
FRESH = (
    ("encoder", "none", 2),
    ("encoder", "sinusoidal", 2),
    ("encoder", "learned", 2),
    ("encoder", "rotary", 2),
    ("encoder", "relative", 2),
    ("decoder", "none", 1),
    ("decoder", "none", 2),
    ("decoder", "sinusoidal", 2),
)


@dataclass(frozen=True)
class Change:
    """How much fresh models' vectors change with the order of words, as a share of their length."""

    family: str
    positions: str
    n_layers: int
    moved: float  # a word's own vector, when 我爱你。 stands in another order
    pooled: float  # the mean of all vectors, in another order
    stop: float  # the vector of 。, which sees all, when 我 and 你 change places


@dataclass(frozen=True)
class Trained:
    """How often models that were taught to say who does it say so of pairs never met."""

    family: str
    positions: str
    n_layers: int
    accuracies: list[float]  # one a seed


@dataclass(frozen=True)
class Measured:
    """Fresh models, where the claim is algebra, and trained ones, where it has consequences."""

    changes: list[Change]
    trained: list[Trained]
    n_held_out: int  # sentences


def build(family: Any, positions: Any, n_layers: int) -> Encoder | Decoder:
    """A small model of this family; only the mask and the positions differ among them."""
    model = build_model(
        ModelConfig(
            family=family,
            positions=positions,
            vocab_size=len(VOCABULARY),
            d_model=32,
            n_heads=4,
            d_ff=64,
            n_encoder_layers=n_layers,
            n_decoder_layers=n_layers,
            max_length=16,
            relative_buckets=16,
            dropout=0.0,
            norm_position="pre",
        )
    )
    assert isinstance(model, Encoder | Decoder)
    return model


def encode(sentences: list[str]) -> Tensor:
    """Sentences of one length to ids, (B, T)."""
    return torch.tensor([[VOCABULARY.index(word) for word in sentence] for sentence in sentences])


def relative_change(a: Tensor, b: Tensor) -> float:
    """The largest ‖a - b‖/‖a‖ of vectors that lie along the last dimension."""
    return float(((a - b).norm(dim=-1) / a.norm(dim=-1)).max())


@torch.no_grad()
def change(model: Encoder | Decoder) -> tuple[float, float, float]:
    """What the order of 我爱你。 changes: words' own vectors, their mean, and the vector of 。."""
    sentence = "我爱你" + STOP
    orders = list(permutations(range(len(sentence))))
    hidden = model.double().eval().hidden(encode([sentence]))[0]  # (T, D)
    others = model.hidden(encode(["".join(sentence[i] for i in order) for order in orders]))
    back = torch.stack([x[torch.tensor(o).argsort()] for x, o in zip(others, orders, strict=True)])
    swapped = model.hidden(encode(["你爱我" + STOP]))[0]
    pooled = relative_change(hidden.mean(dim=0), others.mean(dim=1))
    return (
        relative_change(hidden, back),
        pooled,
        relative_change(hidden[-1], swapped[-1]),
    )


def corpus(seed: int) -> tuple[list[str], list[str]]:
    """Sentences to learn from and to be tested on: a pair of people stands in one of them alone."""
    pairs = list(combinations(PEOPLE, 2))
    Random(seed).shuffle(pairs)
    cut = len(pairs) * 3 // 4
    learn, held_out = (
        [
            f"{who}{verb}{whom}{STOP}"
            for a, b in part
            for verb in VERBS
            for who, whom in ((a, b), (b, a))
        ]
        for part in (pairs[:cut], pairs[cut:])
    )
    return learn, held_out


def accuracy(family: str, positions: str, n_layers: int, seed: int, steps: int) -> float:
    """Teach a model to name, at 。, the one who does it; how often it is right on new pairs."""
    learn, held_out = corpus(seed)
    tokens, test = encode(learn), encode(held_out)
    torch.manual_seed(seed)
    model = build(family, positions, n_layers)
    head = nn.Linear(32, len(PEOPLE))

    def answers(tokens: Tensor) -> Tensor:
        return head(model.hidden(tokens)[:, -1])

    def loss(step: int) -> Tensor:
        batch = tokens[torch.randint(len(tokens), (64,))]
        return F.cross_entropy(answers(batch), batch[:, 0])

    fit([*model.parameters(), *head.parameters()], loss, steps)
    with torch.no_grad():
        return float((answers(test).argmax(dim=-1) == test[:, 0]).double().mean())


def measure(settings: Settings) -> Measured:
    """Fresh models in every order, then trained ones with and without positions."""
    seeds = range(settings.seed, settings.seed + (5 if settings.full else 3))
    with torch.random.fork_rng():
        changes = []
        for family, positions, n_layers in FRESH:
            torch.manual_seed(settings.seed)
            found = [change(build(family, positions, n_layers)) for _ in range(5)]
            changes.append(Change(family, positions, n_layers, *map(max, *found)))
        trained = []
        for family in FAMILIES:
            for positions in ("none", "sinusoidal"):
                for n_layers in (1, 2):
                    settings.tell(f"training: {family}, {n_layers} layers, positions: {positions}")
                    right = [
                        accuracy(family, positions, n_layers, seed, 600 if settings.full else 300)
                        for seed in seeds
                    ]
                    trained.append(Trained(family, positions, n_layers, right))
    return Measured(changes, trained, len(corpus(settings.seed)[1]))


def tables(m: Measured) -> tuple[Table, ...]:
    """What order changes in fresh models, and how often trained ones are right."""
    fresh = tuple(
        (
            one.family,
            one.positions,
            str(one.n_layers),
            *map(tiny, (one.moved, one.pooled, one.stop)),
        )
        for one in m.changes
    )
    right = tuple(
        (
            one.family,
            one.positions,
            str(one.n_layers),
            plus_minus([100 * x for x in one.accuracies]),
        )
        for one in m.trained
    )
    return (
        Table(
            Words(
                "What the order of 我爱你。 changes in fresh models (share of a vector's length, "
                "largest of all orders)",
                "未训练的模型里，打乱“我爱你。”的词序会改变什么（占向量长度之比，取所有排列中的最大值）",
            ),
            ("family", "positions", "layers", "a word's vector", "mean of all", "。 in 你爱我。"),
            fresh,
        ),
        Table(
            Words(
                f"Who does it? Right answers on {m.n_held_out} sentences about pairs never met, "
                f"in % (chance: {100 * CHANCE:.0f})",
                f"是谁做的？{m.n_held_out} 个句子（人物组合在训练中从未出现）的正确率，"
                f"%（瞎猜：{100 * CHANCE:.0f}）",
            ),
            ("family", "positions", "layers", "right, %"),
            right,
        ),
    )


def name_of(one: Change | Trained) -> str:
    """How an arm is called in the figure."""
    layers = "1 layer" if one.n_layers == 1 else f"{one.n_layers} layers"
    return f"{one.family}, {layers}, {'no positions' if one.positions == 'none' else one.positions}"


def draw(m: Measured) -> Figure:
    """Left: does the full stop feel the swap? Right: can a trained model say who does it?"""
    from qkv.inspect.draw import COLOURS, MARKERS, new_figure

    figure, (left, right) = new_figure(10.5, 3.9, nrows=1, ncols=2)
    colour = {"encoder": COLOURS[0], "decoder": COLOURS[1]}
    marker = {"encoder": MARKERS[0], "decoder": MARKERS[1]}
    for row, one in enumerate(m.changes):
        left.plot(max(one.stop, 1e-17), row, marker[one.family], color=colour[one.family])
    left.axvline(SAME, color=COLOURS[7], linestyle=":")
    left.set(
        xscale="log",
        xlabel="change of the vector of the full stop (share of its length)",
        title="Fresh models, two people swapped (left of the line: rounding)",
    )
    for row, trained in enumerate(m.trained):
        values = [100 * x for x in trained.accuracies]
        right.plot(
            values,
            [row] * len(values),
            marker[trained.family],
            color=colour[trained.family],
            alpha=0.7,
        )
    right.axvline(100 * CHANCE, color=COLOURS[7], linestyle=":", label="chance")
    right.set(
        xlim=(0, 103),
        xlabel="right on pairs never met (%), a mark a seed",
        title="Trained to say who does it",
    )
    right.legend(loc="lower left")
    for axes, arms in ((left, m.changes), (right, m.trained)):
        axes.set_yticks(range(len(arms)), [name_of(arm) for arm in arms])
        axes.invert_yaxis()
    return figure


def right_without(m: Measured, family: str, n_layers: int, positions: str = "none") -> float:
    """The mean accuracy of an arm."""
    return next(
        fmean(one.accuracies)
        for one in m.trained
        if (one.family, one.n_layers, one.positions) == (family, n_layers, positions)
    )


def judge(m: Measured) -> Verdict:
    """Blind encoders decide whether the claim is true, a seeing decoder whether it is the whole."""
    blind = next(one for one in m.changes if (one.family, one.positions) == ("encoder", "none"))
    encoder, placed = (right_without(m, "encoder", 2, how) for how in ("none", "sinusoidal"))
    one_layer, decoder = (right_without(m, "decoder", n) for n in (1, 2))
    a, b, c, d = (f"{100 * x:.0f} %" for x in (encoder, placed, one_layer, decoder))
    most = max(blind.moved, blind.pooled, blind.stop)
    if most > SAME or encoder > CHANCE + SEES or placed < LEARNT:
        return Verdict(
            "does not hold",
            Words(
                f"Another order changes an encoder's vectors by up to {most:.0e} without "
                f"positions; trained, it is right on {a} without them and on {b} with them.",
                f"没有位置编码时，换词序使编码器的向量最多改变 {most:.0e}；"
                f"训练之后，不加位置编码的正确率为 {a}，加了为 {b}。",
            ),
        )
    if decoder > CHANCE + SEES:
        return Verdict(
            "holds when",
            Words(
                "When every token sees all others, as in an encoder: another order changes its "
                f"vectors by no more than {most:.0e}, and after training it is right on {a} "
                f"(chance 50 %) without positions, on {b} with them. A causal decoder without "
                f"positions is right on {c} with one layer and on {d} with two: its mask lets each "
                "token see another part of the sentence, and that tells the order.",
                f"当每个词都能看到所有词时（如编码器）成立：换了词序，向量的变化不超过 {most:.0e}；"
                f"训练之后，不加位置编码的正确率为 {a}（瞎猜 50 %），加了为 {b}。"
                f"没有位置编码的因果解码器，一层时答对 {c}，两层时答对 {d}："
                "因果掩码让每个词只看得到自己之前的部分，词序就这样透露了出来。",
            ),
        )
    return Verdict(
        "holds",
        Words(
            f"Another order changes an encoder's vectors by no more than {most:.0e}; "
            f"without positions encoder and decoder are right on {a} and {d} (chance 50 %), with "
            f"them on {b}.",
            f"换了词序，编码器的向量变化不超过 {most:.0e}；不加位置编码，编码器和解码器的"
            f"正确率为 {a} 和 {d}（瞎猜 50 %），加了位置编码为 {b}。",
        ),
    )


LAB = Lab(
    number=5,
    name="order",
    title=Words("Without positions, 我爱你 is 你爱我", "没有位置编码，“我爱你”就是“你爱我”"),
    claim=Words(
        "A Transformer takes in all words at a glance and does not care about their order: without "
        "position codes 我爱你 and 你爱我 are the same to it.",
        "Transformer 同时看到整句话，词序如何它并不知道：没有位置编码，它就分不清“我爱你”"
        "和“你爱我”。",
    ),
    experiment=Words(
        "Fresh models in float64 read 我爱你。 in all 24 orders, and we compare each word's "
        "vector, the mean, and the full stop's. Then small encoders and causal decoders of one and "
        "two layers, with and without sinusoidal positions, are taught to say at the full stop who "
        "does it, with the same width, data, steps and learning rate and three seeds each (five "
        "with --full). They are tested on pairs of people that they never met.",
        "先让未训练的模型（float64）读“我爱你。”的全部 24 种排列，比较每个词的向量、平均向量和"
        "句号的向量。再训练一层和两层的小编码器与小因果解码器，各分有无正弦位置编码两种，"
        "在句号处回答“是谁做的”；宽度、数据、步数、学习率都相同，各用三个随机种子"
        "（加 --full 为五个），并用训练中从未出现过的人物组合来测试。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
