"""Lab 6: which positions carry over to longer sequences, and what a shift does to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import ModelConfig
from qkv.model import Encoder, Layout, Learned, sinusoids
from qkv_labs.glossary import in_chinese
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_WORDS, D_MODEL = 12, 32
TRAINED = 16  # n: no sequence of the training is longer
LENGTHS = (TRAINED, 2 * TRAINED, 4 * TRAINED)
LONGEST = LENGTHS[-1]
ARMS = (
    ("sinusoidal", False),
    ("learned", False),
    ("rotary", False),
    ("relative", False),
    ("none", False),
    ("sinusoidal", True),
    ("learned", True),
)
SLOW = (("disentangled", False),)  # where there is time
SHIFTS = (1, 2, 4, 8)
PER_PLACE = 4  # places that share a point of the curve
LEARNT = 0.9  # right answers within n: then a scheme has learnt the task
KEPT = 0.9  # of the accuracy within n: then a scheme carries over
LIFTED = 0.75  # of it, where places were met: then that is the condition
GAINED = 0.2  # more right answers than without meeting them, or meeting them changes little
EXACT = 1e-5  # an error below this is the rounding of a float32 table


@dataclass(frozen=True)
class Moved(Layout):
    """Rows that are read as if they stood `start` places later."""

    start: int = 0

    def positions(self, n_tokens: int, device: torch.device, start: int | Tensor = 0) -> Tensor:
        """The place of each token."""
        return super().positions(n_tokens, device, start) + self.start


@dataclass(frozen=True)
class Arm:
    """A scheme, and whether its training sequences stood anywhere in 0 … 4n or began at 0."""

    scheme: str
    anywhere: bool
    within: list[float]  # right answers at length n, one a seed
    twice: list[float]  # beyond n, at length 2n
    four_times: list[float]  # beyond n, at length 4n
    by_place: list[float]  # at length 4n, mean of seeds, by groups of places


@dataclass(frozen=True)
class Shift:
    """How well one matrix shifts all positions of a table by k, and how products depend on k."""

    table: str
    residuals: dict[str, float]  # by k: ‖PE(p+k) - M·PE(p)‖/‖PE(p+k)‖ of places not fitted
    products: list[float]  # mean of PE(p)·PE(p+k)/‖PE‖² over p, by k
    spreads: list[float]  # their standard deviation over p, by k


@dataclass(frozen=True)
class Measured:
    """What trained models do beyond their training's lengths, and the algebra of the tables."""

    arms: list[Arm]
    shifts: list[Shift]
    closed_form: float  # largest |PE(p+k) - R(k)·PE(p)|, of entries up to 1


def build(scheme: Any) -> Encoder:
    """A small encoder that says a word at each place; only the positions differ.

    Embeddings are multiplied by √D beside sinusoids, as in the paper, and beside no others.
    """
    return Encoder(
        ModelConfig(
            family="encoder",
            positions=scheme,
            vocab_size=N_WORDS,
            d_model=D_MODEL,
            n_heads=4,
            d_ff=2 * D_MODEL,
            n_encoder_layers=2,
            max_length=LONGEST,
            relative_buckets=32,
            relative_length=128,
            norm_position="pre",
            head="token",
            n_labels=N_WORDS,
            dropout=0.0,
            embedding_scale=scheme == "sinusoidal",
        )
    )


def task(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Random words, and at each place the word before; the first place has no answer."""
    words = torch.randint(N_WORDS, (rows, length))
    return words, words[:, :-1]


def train(scheme: str, anywhere: bool, steps: int) -> Encoder:
    """Teach a model the word before, on sequences of n/2 to n words."""
    model = build(scheme)

    def loss(step: int) -> Tensor:
        length = int(torch.randint(TRAINED // 2, TRAINED + 1, ()))
        start = int(torch.randint(LONGEST - length + 1, ())) if anywhere else 0
        words, before = task(32, length)
        return F.cross_entropy(
            model(words, Moved(start=start))[:, 1:].flatten(0, 1), before.flatten()
        )

    fit(model.parameters(), loss, steps, lr=1e-2)
    return model


@torch.no_grad()
def right_by_place(model: Encoder, length: int) -> Tensor:
    """The share of right answers at places 1 … length-1, on new words."""
    words, before = task(200, length)
    return (model(words)[:, 1:].argmax(dim=-1) == before).double().mean(dim=0)


def learnt_table(model: Encoder) -> list[Tensor]:
    """The table of positions, where the model learns one."""
    scheme = model.encoder.positions
    return [scheme.table.weight.detach()] if isinstance(scheme, Learned) else []


def measure_arm(scheme: str, anywhere: bool, seeds: range, steps: int) -> tuple[Arm, list[Tensor]]:
    """Train and test a scheme for each seed; its learnt tables too, where it has one."""
    found, tables = [], []
    for seed in seeds:
        torch.manual_seed(seed)
        model = train(scheme, anywhere, steps)
        found.append([right_by_place(model, length) for length in LENGTHS])
        tables += learnt_table(model)
    curve = torch.stack([longest for *_, longest in found]).mean(dim=0)
    arm = Arm(
        scheme,
        anywhere,
        within=[float(one[0].mean()) for one in found],
        twice=[float(one[1][TRAINED - 1 :].mean()) for one in found],
        four_times=[float(one[2][TRAINED - 1 :].mean()) for one in found],
        by_place=[float(part.mean()) for part in curve.split(PER_PLACE)],
    )
    return arm, tables


def rotation(k: int, d_model: int) -> Tensor:
    """The R(k) of PE(p+k) = R(k)·PE(p): each pair (sin, cos) turned by k times its rate, (D, D)."""
    blocks = []
    for pair in range(d_model // 2):
        angle = k * 10000.0 ** (-2 * pair / d_model)
        sine, cosine = math.sin(angle), math.cos(angle)
        blocks.append(torch.tensor([[cosine, sine], [-sine, cosine]], dtype=torch.float64))
    return torch.block_diag(*blocks)


def shift_residual(table: Tensor, k: int, folds: int = 8) -> float:
    """Fit one M for PE(p+k) ≈ M·PE(p) by least squares; its error at places that were left out."""
    here, there = table[:-k].double(), table[k:].double()
    errors = torch.zeros_like(there)
    for fold in range(folds):
        left_out = torch.arange(len(here)) % folds == fold
        fitted = torch.linalg.lstsq(here[~left_out], there[~left_out], driver="gelsd").solution
        errors[left_out] = there[left_out] - here[left_out] @ fitted
    return float(errors.norm() / there.norm())


def products(table: Tensor) -> tuple[list[float], list[float]]:
    """PE(p)·PE(p+k)/mean ‖PE‖² for k < n: the mean over p, and how much p itself matters."""
    table = table.double()
    size = table.square().sum(dim=1).mean()
    lines = [(table[: len(table) - k] * table[k:]).sum(dim=1) / size for k in range(TRAINED)]
    return [float(x.mean()) for x in lines], [float(x.std()) for x in lines]


def describe(name: str, tables: list[Tensor]) -> Shift:
    """The algebra of a kind of table, mean over the seeds' tables."""
    lines = [products(table) for table in tables]
    means, spreads = (torch.tensor(part).mean(dim=0).tolist() for part in zip(*lines, strict=True))
    residuals = {str(k): fmean(shift_residual(table, k) for table in tables) for k in SHIFTS}
    return Shift(name, residuals, means, spreads)


def closed_form() -> float:
    """The largest error of R(k) on the product's own table, over all p and k."""
    table = sinusoids(LONGEST, D_MODEL).double()
    return max(
        float((table[k:] - table[:-k] @ rotation(k, D_MODEL).T).abs().max())
        for k in range(1, LONGEST)
    )


def measure(settings: Settings) -> Measured:
    """Train each scheme on short sequences, test it on long ones, then look at the tables."""
    seeds = range(settings.seed, settings.seed + (5 if settings.full else 3))
    arms: list[Arm] = []
    learnt: list[Tensor] = []
    with torch.random.fork_rng():
        for scheme, anywhere in ARMS + (SLOW if settings.full else ()):
            settings.tell(f"training: {scheme}{', anywhere' if anywhere else ''}")
            arm, tables = measure_arm(scheme, anywhere, seeds, 1500 if settings.full else 500)
            arms.append(arm)
            learnt = tables if anywhere else learnt
        torch.manual_seed(settings.seed)
        fresh = [table for _ in seeds for table in learnt_table(build("learned"))]
    shifts = [
        describe("sinusoidal", [sinusoids(LONGEST, D_MODEL)]),
        describe("learned, before training", fresh),
        describe("learned, after training", learnt),  # of the arm that met all places
    ]
    return Measured(arms, shifts, closed_form())


def name_of(arm: Arm) -> str:
    """How an arm is called in tables and figure."""
    return f"{arm.scheme}, trained anywhere" if arm.anywhere else arm.scheme


def tables(m: Measured) -> tuple[Table, ...]:
    """Right answers by length, and what a shift does to the tables."""
    right = tuple(
        (
            name_of(arm),
            *(
                plus_minus([100 * x for x in part])
                for part in (arm.within, arm.twice, arm.four_times)
            ),
        )
        for arm in m.arms
    )
    algebra = tuple(
        (
            one.table,
            *(f"{one.residuals[str(k)]:.1e}" for k in SHIFTS),
            f"{max(one.spreads[1:]):.1e}",
        )
        for one in m.shifts
    )
    n = TRAINED
    return (
        Table(
            Words(
                f"The word before: right answers in % after training on up to {n} words "
                f"(one word of {N_WORDS} by chance; beyond {n}, the places beyond {n} alone)",
                f"“说出前一个词”的正确率，%（训练时句长不超过 {n}；词表 {N_WORDS} 个词；"
                f"更长的句子只计第 {n} 位以后）",
            ),
            ("positions", f"{n} words", f"{2 * n} words", f"{4 * n} words"),
            right,
        ),
        Table(
            Words(
                "One matrix M for PE(p+k) = M·PE(p): relative error at places not fitted; and how "
                "much PE(p)·PE(p+k) depends on p",
                "用同一个矩阵 M 拟合 PE(p+k) = M·PE(p)：未参与拟合的位置上的相对误差；"
                "以及 PE(p)·PE(p+k) 随 p 的波动",
            ),
            ("table", *(f"k = {k}" for k in SHIFTS), "spread of products"),
            algebra,
        ),
    )


def draw(m: Measured) -> Figure:
    """Left: right answers by place, beyond training. Right: products by distance, and p's part."""
    from qkv.inspect.draw import COLOURS, MARKERS, new_figure

    figure, (left, right) = new_figure(10.5, 4.0, nrows=1, ncols=2, width_ratios=[1.5, 1])
    names = sorted({arm.scheme for arm in m.arms})
    for arm in m.arms:
        which = names.index(arm.scheme)
        left.plot(
            [1 + PER_PLACE * i + (PER_PLACE - 1) / 2 for i in range(len(arm.by_place))],
            [100 * x for x in arm.by_place],
            marker=MARKERS[which],
            color=COLOURS[which],
            linestyle="--" if arm.anywhere else "-",
            label=name_of(arm),
        )
    left.axvspan(0, TRAINED, color=COLOURS[7], alpha=0.15, linewidth=0)
    left.text(TRAINED / 2, 103, "lengths trained", ha="center", fontsize=8)
    left.set(
        xlabel=f"place in a sequence of {LONGEST} words",
        ylabel="right (%)",
        ylim=(0, 110),
        xlim=(0, LONGEST),
        title="Naming the word before, beyond the trained lengths",
    )
    left.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for which, one in enumerate(m.shifts):
        middle, spread = torch.tensor(one.products), torch.tensor(one.spreads)
        right.plot(middle, marker=MARKERS[which], color=COLOURS[which], label=one.table)
        right.fill_between(
            range(len(middle)),
            middle - spread,
            middle + spread,
            color=COLOURS[which],
            alpha=0.2,
            linewidth=0,
        )
    right.set(
        xlabel="distance k",
        ylabel="PE(p)·PE(p+k) / ‖PE‖², mean ± spread over p",
        title="Products by distance (band: how much p matters)",
        xticks=range(0, TRAINED, 3),
    )
    right.legend(loc="upper right")
    return figure


def carried(m: Measured) -> tuple[str, str]:
    """Who stays right at 4n of those that began at 0 and learnt the task, and who does not."""
    stays: dict[bool, list[str]] = {True: [], False: []}
    for arm in m.arms:
        within, four = fmean(arm.within), fmean(arm.four_times)
        if not arm.anywhere and within >= LEARNT:
            stays[four >= KEPT * within].append(f"{arm.scheme} {100 * four:.0f} %")
    return ", ".join(stays[True]) or "–", ", ".join(stays[False]) or "–"


def _numbers(m: Measured, plain: Arm) -> Words:
    a, b, c = (f"{100 * fmean(x):.0f} %" for x in (plain.within, plain.twice, plain.four_times))
    n, error, (stays, fails) = TRAINED, f"{m.closed_form:.0e}", carried(m)

    def _named(schemes: str) -> str:
        pairs = [one.partition(" ") for one in schemes.split(", ")]
        return "、".join(f"{in_chinese(name)}{space}{rest}" for name, space, rest in pairs)

    return Words(
        f"Trained on up to {n} words from place 0 on, sinusoids are right on {a} there, and on {b} "
        f"and {c} of the places beyond at {2 * n} and {4 * n} words. Of the schemes that learnt "
        f"the task, these carry over to {4 * n} words: {stays}; these do not: {fails}. Either "
        f"way, a shift of sinusoids is one rotation for all places (error {error}).",
        f"在从 0 号位开始、不超过 {n} 个词的句子上训练后，正弦编码在训练长度内答对 {a}；句长为 "
        f"{2 * n} 和 {4 * n} 时，超出训练长度的位置答对 {b} 和 {c}。在学会了任务的方案中，"
        f"能外推到 {4 * n} 个词的有 {_named(stays)}，不能的有 {_named(fails)}。不管能否外推，"
        f"正弦编码平移 k 位，对所有位置都是同一个旋转（误差 {error}）。",
    )


def judge(m: Measured) -> Verdict:
    """Sinusoids must stay right beyond n; where they do not, under what condition they do."""
    arms = {name_of(arm): arm for arm in m.arms}
    plain, moved = arms["sinusoidal"], arms["sinusoidal, trained anywhere"]
    within, four, met = map(fmean, (plain.within, plain.four_times, moved.four_times))
    numbers, n = _numbers(m, plain), TRAINED
    if within >= LEARNT and four >= KEPT * within and m.closed_form < EXACT:
        return Verdict("holds", numbers)
    if met < max(LIFTED * fmean(moved.within), four + GAINED):
        return Verdict("does not hold", numbers)
    d, e = (f"{100 * x:.0f} %" for x in (met, fmean(arms["learned, trained anywhere"].four_times)))
    return Verdict(
        "holds when",
        Words(
            "When the places, if not the lengths, were met in training: after short sequences that "
            f"stood anywhere among {4 * n} places, sinusoids are right on {d} beyond {n} at "
            f"{4 * n} words, and a learnt table on {e}. Places never met are another matter. "
            + numbers.en,
            f"前提是这些位置在训练中出现过（哪怕句子都很短）：训练时让短句落在 {4 * n} "
            f"个位置中的任意一处，句长 {4 * n} 时，超出 {n} 的部分正弦编码答对 {d}，可学习的编码表"
            f"答对 {e}。从未见过的位置则是另一回事。" + numbers.zh,
        ),
    )


LAB = Lab(
    number=6,
    name="positions",
    title=Words("Positions beyond the trained length", "超出训练长度的位置编码"),
    claim=Words(
        "Sinusoidal positions are computed and not learnt, so they carry over to sequences longer "
        "than those of the training; and since they change smoothly (a shift is a linear map), "
        "relative positions are easy to learn from them.",
        "正弦位置编码按公式计算，不靠训练得到，所以句子比训练时长也照样能用；"
        "它随位置平滑变化（平移一段距离就是一次线性变换），模型因此容易学会相对位置。",
    ),
    experiment=Words(
        "Small encoders of two layers, alike but for their positions (and embeddings times √D "
        "beside sinusoids, as in the paper), learn with the same steps and learning rate to name "
        f"the word before, on random sequences of {TRAINED // 2} to {TRAINED} words, three seeds "
        "each (five with --full). They are tested on new sequences of "
        f"{TRAINED}, {2 * TRAINED} and {4 * TRAINED} words. Two more arms let the training's "
        "sequences begin anywhere. For the tables we fit one matrix to a shift by k and test it on "
        "places that were left out.",
        "两层的小编码器，除位置方案外完全相同（只有正弦一组按论文把词向量乘以 √D），"
        "用同样的步数和学习率学习“说出前一个词”。训练句是 "
        f"{TRAINED // 2}～{TRAINED} 个随机词，每组三个随机种子（加 --full 为五个），再在长为 "
        f"{TRAINED}、{2 * TRAINED}、{4 * TRAINED} 的新句子上测试；另有两组让训练句从任意位置开始。"
        "对编码表，则为“平移 k 位”拟合同一个矩阵，并在未参与拟合的位置上检验。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
