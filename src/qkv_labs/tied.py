"""Lab 4: one matrix for two or three of Q, K and V, on two tasks and at two depths."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model import Encoder
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, mean_and_spread, n_weights, plus_minus, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_CLASSES, N_VARIANTS, PER_SENTENCE = 6, 8, 12  # classes and variants of words; words a sentence
D_MODEL, N_HEADS, D_HEAD = 32, 2, 12
UNASKED = -100  # cross_entropy's own mark for a place without a label
CLEAR = 0.02  # a loss of accuracy below this, or below the spread of the seeds, is none

SCHEMES: Mapping[str, tuple[int, int, int]] = {
    "separate": (0, 1, 2),
    "Q=K": (0, 0, 1),
    "K=V": (0, 1, 1),
    "Q=K=V": (0, 0, 0),
}
TIES = tuple(SCHEMES)[1:]


class Shared(nn.Module):
    """The fused projection of an `Attention`, where some of q, k and v come from one matrix."""

    def __init__(self, scheme: tuple[int, int, int], width: int) -> None:
        super().__init__()
        self.scheme = scheme
        n_matrices = len(set(scheme))
        self.matrices = nn.ModuleList(
            nn.Linear(D_MODEL, width, bias=False) for _ in range(n_matrices)
        )
        bound = math.sqrt(3 / (D_MODEL + width))  # as the package draws its own projections
        for matrix in self.matrices:
            nn.init.uniform_(matrix.weight, -bound, bound)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to q, k and v side by side, (B, T, 3·H·d)."""
        made = [matrix(x) for matrix in self.matrices]
        return torch.cat([made[index] for index in self.scheme], dim=-1)


def wide_head(scheme: str) -> int:
    """The head's width at which a tied arm has as many weights as the separate one.

    W_O is as large as each of the others: 4 matrices of D·H·d weights, or 3, or 2.
    """
    return D_HEAD * 4 // (1 + len(set(SCHEMES[scheme])))


def build(scheme: str, d_head: int, n_layers: int) -> Encoder:
    """A pre-norm encoder without positions that says a variant at each word."""
    model = Encoder(
        ModelConfig(
            family="encoder",
            vocab_size=2 * N_CLASSES * N_VARIANTS,
            d_model=D_MODEL,
            n_heads=N_HEADS,
            d_key=d_head,
            d_ff=64,
            n_encoder_layers=n_layers,
            positions="none",
            dropout=0.0,
            norm_position="pre",
            bias=False,
            head="token",
            n_labels=N_VARIANTS,
        )
    )
    for block in model.encoder.blocks:
        attention: Any = block.self_attention
        attention.query_key_value = Shared(SCHEMES[scheme], N_HEADS * d_head)
    return model


def word(kind: Tensor, group: Tensor, variant: Tensor) -> Tensor:
    """The id of a word: a verb or a noun, of some class, in some variant."""
    return (kind * N_CLASSES + group) * N_VARIANTS + variant


def _shuffled(words: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    order = torch.rand(words.shape, generator=generator).argsort(dim=1)
    return words.gather(1, order), labels.gather(1, order)


def complement(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two words of one kind and class look for the one of the other kind, past each other.

    Now two verbs look for their noun, now two nouns for their verb: who looks for whom differs from
    who is who, in both directions. The label is the variant of the word looked for.
    """
    groups = torch.rand(rows, N_CLASSES, generator=generator).argsort(dim=1)
    groups = groups[:, : PER_SENTENCE // 3, None]
    kind = torch.randint(2, (rows, PER_SENTENCE // 3), generator=generator)
    variant = torch.randint(N_VARIANTS, (rows, PER_SENTENCE // 3, 3), generator=generator)
    words = word(torch.stack([kind, kind, 1 - kind], dim=-1), groups, variant)
    sought = variant[..., 2]
    labels = torch.stack([sought, sought, torch.full_like(sought, UNASKED)], dim=-1)
    return _shuffled(words.flatten(1), labels.flatten(1), generator)


def likeness(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each word looks for the other one of its own kind and class."""
    chosen = torch.rand(rows, 2 * N_CLASSES, generator=generator).argsort(dim=1)
    chosen = chosen[:, : PER_SENTENCE // 2, None]
    variant = torch.randint(N_VARIANTS, (rows, PER_SENTENCE // 2, 2), generator=generator)
    words = word(chosen // N_CLASSES, chosen % N_CLASSES, variant)
    return _shuffled(words.flatten(1), variant.flip(-1).flatten(1), generator)


@dataclass(frozen=True)
class Setting:
    """A task at a depth."""

    name: str
    task: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    n_layers: int


SETTINGS = (
    Setting("find the complement, 1 layer", complement, 1),
    Setting("find one's like, 1 layer", likeness, 1),
    Setting("find the complement, 2 layers", complement, 2),
)


@dataclass(frozen=True)
class Arm:
    """What a way of tying reached in a setting, seed by seed."""

    setting: str
    scheme: str
    equal: bool  # whether it has as many parameters as the separate one
    parameters: int
    accuracy: list[float]
    steps: list[int]  # until the loss is half of chance's; all steps where it never is


@dataclass(frozen=True)
class Measured:
    """All arms of all settings."""

    arms: list[Arm]
    n_steps: int


def train(
    setting: Setting, scheme: str, d_head: int, seed: int, n_steps: int
) -> tuple[int, float, int]:
    """Parameters, accuracy on new sentences, and the steps that half the loss took."""
    with seeded(seed):
        model = build(scheme, d_head, setting.n_layers)
    data = torch.Generator().manual_seed(seed + 1000)

    def loss(step: int) -> Tensor:
        words, labels = setting.task(64, data)
        return F.cross_entropy(model(words).flatten(0, 1), labels.flatten(), ignore_index=UNASKED)

    losses = fit(model.parameters(), loss, n_steps, lr=1e-2)
    half = math.log(N_VARIANTS) / 2
    words, labels = setting.task(500, torch.Generator().manual_seed(seed + 2000))
    with torch.no_grad():
        right = (model(words).argmax(dim=-1) == labels)[labels != UNASKED]
    first = next((step for step, value in enumerate(losses) if value < half), n_steps)
    return n_weights(model), right.double().mean().item(), first


def arm(setting: Setting, scheme: str, equal: bool, seeds: list[int], n_steps: int) -> Arm:
    """One way of tying in one setting."""
    d_head = wide_head(scheme) if equal else D_HEAD
    runs = [train(setting, scheme, d_head, seed, n_steps) for seed in seeds]
    return Arm(
        setting.name, scheme, equal, runs[0][0], [run[1] for run in runs], [run[2] for run in runs]
    )


def measure(settings: Settings) -> Measured:
    """Every scheme in every setting; simply tied, and with wider heads for what was saved."""
    n_steps = 1000 if settings.full else 300
    seeds = list(range(settings.seed, settings.seed + (6 if settings.full else 3)))
    arms = []
    for setting in SETTINGS:
        settings.tell(setting.name)
        arms += [arm(setting, scheme, True, seeds, n_steps) for scheme in SCHEMES]
        if setting.n_layers == 1 or settings.full:
            arms += [arm(setting, scheme, False, seeds, n_steps) for scheme in TIES]
    return Measured(arms, n_steps)


def tables(m: Measured) -> tuple[Table, ...]:
    """One table a setting."""
    chinese = {
        SETTINGS[0].name: "找互补的词，1 层",
        SETTINGS[1].name: "找同类，1 层",
        SETTINGS[2].name: "找互补的词，2 层",
    }
    head = ("projections", "parameters", "accuracy (%)", "steps to half the loss")
    made = []
    for setting in SETTINGS:
        rows = [
            (
                one.scheme + ("" if one.equal else ", simply tied"),
                str(one.parameters),
                plus_minus([100 * a for a in one.accuracy]),
                plus_minus(one.steps, 0),
            )
            for one in m.arms
            if one.setting == setting.name
        ]
        title = f"{setting.name[0].upper()}{setting.name[1:]}, {m.n_steps} steps"
        words = Words(title, f"{chinese[setting.name]}，训练 {m.n_steps} 步")
        made.append(Table(words, head, tuple(rows)))
    return tuple(made)


def draw(m: Measured) -> Figure:
    """A panel a setting: each seed's accuracy, by scheme."""
    from qkv.inspect.draw import COLOURS, new_figure

    figure, axes = new_figure(9.6, 3.6, ncols=len(SETTINGS), sharey=True)
    for axis, setting in zip(axes, SETTINGS, strict=True):
        here = [one for one in m.arms if one.setting == setting.name]
        for one in here:
            alone = sum(other.scheme == one.scheme for other in here) == 1
            aside = 0 if alone else -0.18 if one.equal else 0.18
            place = list(SCHEMES).index(one.scheme) + aside
            colour, values = COLOURS[0 if one.equal else 1], [100 * a for a in one.accuracy]
            axis.bar(place, fmean(values), width=0.34, color=colour, alpha=0.35)
            axis.plot(
                [place] * len(values),
                values,
                color=colour,
                linestyle="none",
                marker="o" if one.equal else "s",
            )
        axis.axhline(100 / N_VARIANTS, color=COLOURS[6], linestyle=":", linewidth=1)
        axis.set_xticks(range(len(SCHEMES)), list(SCHEMES))
        axis.set_title(setting.name[0].upper() + setting.name[1:])
    axes[0].set(ylabel=f"right on new sentences (%), {m.n_steps} steps", ylim=(0, 104))
    for label, index, marker in (("equal parameters", 0, "o"), ("simply tied", 1, "s")):
        axes[0].plot([], [], color=COLOURS[index], marker=marker, linestyle="none", label=label)
    axes[0].plot([], [], color=COLOURS[6], linestyle=":", label="chance")
    figure.suptitle("What tying costs: finding the complement against finding one's like")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def losses(m: Measured, setting: str) -> dict[str, float]:
    """What each tie clearly loses against separate projections, in points, at equal parameters."""
    found = {one.scheme: one for one in m.arms if one.setting == setting and one.equal}
    best, best_spread = mean_and_spread(found["separate"].accuracy)
    lost = {}
    for tie in TIES:
        mean, spread = mean_and_spread(found[tie].accuracy)
        if best - mean > max(CLEAR, math.hypot(spread, best_spread)):
            lost[tie] = 100 * (best - mean)
    return lost


def figures(m: Measured, setting: str) -> Words:
    """Mean accuracies at equal parameters, in a row."""
    found = {one.scheme: one for one in m.arms if one.setting == setting and one.equal}
    told = [f"{scheme} {100 * fmean(found[scheme].accuracy):.0f}%" for scheme in SCHEMES]
    return Words(", ".join(told), "，".join(told).replace("separate", "三者分开"))


def conditions(m: Measured) -> list[Words]:
    """Where the claim is true, if some tie loses something in one layer."""
    lost, like, deep = (losses(m, setting.name) for setting in SETTINGS)
    found = []
    if not like:
        found.append(Words("words must find what is unlike them", "要找的不是同类"))
    fine = [tie for tie in TIES if tie not in lost]
    if fine:
        ties, free = " or ".join(lost), " and ".join(fine)
        lose = "loses" if len(fine) == 1 else "lose"
        found.append(
            Words(
                f"the tie is {ties} ({free} {lose} nothing)",
                f"绑定的是 {'、'.join(lost)}（{'、'.join(fine)} 没有损失）",
            )
        )
    if not set(lost) <= set(deep):
        found.append(Words("one layer must do it", "只有一层"))
    return found


def judge(m: Measured) -> Verdict:
    """Needed everywhere, nowhere, or under conditions?"""
    told = [figures(m, setting.name) for setting in SETTINGS]
    en, zh = [one.en for one in told], [one.zh for one in told]
    why = Words(
        f"At equal parameters, {m.n_steps} steps, finding the complement in one layer: {en[0]}; "
        f"finding one's like: {en[1]}; the complement in two layers: {en[2]}.",
        f"参数量相同、训练 {m.n_steps} 步时，单层找互补的词：{zh[0]}；单层找同类：{zh[1]}；"
        f"两层找互补的词：{zh[2]}。",
    )
    lost, _, deep = (losses(m, setting.name) for setting in SETTINGS)
    if not lost:
        none = Words(f"No tie costs anything. {why.en}", f"怎么绑都没有损失。{why.zh}")
        return Verdict("does not hold", none)
    if set(lost) == set(deep) == set(TIES):
        return Verdict("holds", why)
    needed = conditions(m)
    why = Words(
        f"It holds when {' and '.join(one.en for one in needed)}. {why.en}",
        f"成立的条件：{'，且'.join(one.zh for one in needed)}。{why.zh}",
    )
    return Verdict("holds when", why)


LAB = Lab(
    number=4,
    name="tied",
    title=Words("Are Q, K and V all needed?", "Q、K、V 三者缺一不可吗？"),
    claim=Words(
        "A word that looks with its own label (Q = K) can only find its like, a label that is also "
        "the content (K = V) matches badly or carries little: all three projections are needed.",
        "若用自己的标签去找别人（Q = K），就只能找到同类；若标签就是内容（K = V），要么难以匹配，"
        "要么传不了多少信息。所以 Q、K、V 三个投影缺一不可。",
    ),
    experiment=Words(
        "The same small encoder with three, two or one projection matrix; simply tied, and with "
        "heads widened until the weights are as many. In one task words must find the word of the "
        "other kind past words of their own (verbs their noun, nouns their verb), in the other "
        "their like; same sentences, steps, rate and seeds, answers on new sentences.",
        "同一个小编码器，投影矩阵取三个、两个或一个；绑定之后，一组不作补偿，另一组加宽注意力头，使参数量相等。"
        "一个任务要越过同类找到另一类的词（动词找名词、名词找动词），另一个任务只要找同类；"
        "句子、步数、学习率、随机种子都相同，用新句子测试。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
