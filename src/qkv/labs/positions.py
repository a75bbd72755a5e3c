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
from qkv.labs.lab import Lab, Settings, Table, Verdict, Words
from qkv.labs.tools import fit, plus_minus
from qkv.model import Encoder, Layout, Learned, sinusoids

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_WORDS, D_MODEL = 12, 32
TRAINED = 16  # n: no sequence of the training is longer
LENGTHS = (TRAINED, 2 * TRAINED, 4 * TRAINED)
LONGEST = LENGTHS[-1]
ARMS = (
    ("sinusoidal", False), ("learned", False), ("rotary", False), ("relative", False),
    ("none", False), ("sinusoidal", True), ("learned", True),
)  # fmt: skip
SLOW = (("disentangled", False),)  # where there is time
SHIFTS = (1, 2, 4, 8)
PER_PLACE = 4  # places that share a point of the curve
KEPT = 0.9  # of the accuracy within n: then a scheme carries over
LIFTED = 0.75  # of it, where places were met: then that is the condition


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
            family="encoder", positions=scheme, vocab_size=N_WORDS, d_model=D_MODEL, n_heads=4,
            d_ff=2 * D_MODEL, n_encoder_layers=2, max_length=LONGEST, relative_buckets=32,
            relative_length=128, norm_position="pre", head="token", n_labels=N_WORDS, dropout=0.0,
            embedding_scale=scheme == "sinusoidal",
        )
    )  # fmt: skip


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
        scheme, anywhere,
        within=[float(one[0].mean()) for one in found],
        twice=[float(one[1][TRAINED - 1 :].mean()) for one in found],
        four_times=[float(one[2][TRAINED - 1 :].mean()) for one in found],
        by_place=[float(part.mean()) for part in curve.split(PER_PLACE)],
    )  # fmt: skip
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
        (name_of(arm), *(plus_minus([100 * x for x in part])
         for part in (arm.within, arm.twice, arm.four_times)))
        for arm in m.arms
    )  # fmt: skip
    algebra = tuple(
        (one.table, *(f"{one.residuals[str(k)]:.1e}" for k in SHIFTS),
         f"{max(one.spreads[1:]):.1e}")
        for one in m.shifts
    )  # fmt: skip
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
    from qkv.inspect.style import COLOURS, MARKERS, new_figure

    figure, (left, right) = new_figure(10.5, 4.0, nrows=1, ncols=2, width_ratios=[1.5, 1])
    names = sorted({arm.scheme for arm in m.arms})
    for arm in m.arms:
        which = names.index(arm.scheme)
        left.plot(
            [1 + PER_PLACE * i + (PER_PLACE - 1) / 2 for i in range(len(arm.by_place))],
            [100 * x for x in arm.by_place], marker=MARKERS[which], color=COLOURS[which],
            linestyle="--" if arm.anywhere else "-", label=name_of(arm),
        )  # fmt: skip
    left.axvspan(0, TRAINED, color=COLOURS[7], alpha=0.15, linewidth=0)
    left.text(TRAINED / 2, 103, "trained", ha="center", fontsize=8)
    left.set(
        xlabel=f"place in a sequence of {LONGEST} words", ylabel="right (%)", ylim=(0, 110),
        xlim=(0, LONGEST), title="Naming the word before, beyond the trained lengths",
    )  # fmt: skip
    left.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for which, one in enumerate(m.shifts):
        middle, spread = torch.tensor(one.products), torch.tensor(one.spreads)
        right.plot(middle, marker=MARKERS[which], color=COLOURS[which], label=one.table)
        right.fill_between(
            range(len(middle)), middle - spread, middle + spread, color=COLOURS[which], alpha=0.2,
            linewidth=0,
        )  # fmt: skip
    right.set(
        xlabel="distance k", ylabel="PE(p)·PE(p+k) / ‖PE‖², mean ± spread over p",
        title="Sinusoids: the product knows k alone", xticks=range(0, TRAINED, 3),
    )  # fmt: skip
    right.legend(loc="upper right")
    return figure


def judge(m: Measured) -> Verdict:
    """Sinusoids must stay right beyond n; where they do not, under what condition they do."""
    arms = {name_of(arm): arm for arm in m.arms}
    plain, moved = arms["sinusoidal"], arms["sinusoidal, trained anywhere"]
    within, twice, four = (fmean(x) for x in (plain.within, plain.twice, plain.four_times))
    met = fmean(moved.four_times)
    best = max((arm for arm in m.arms if not arm.anywhere), key=lambda arm: fmean(arm.four_times))
    a, b, c, d, e, f = (
        f"{100 * x:.0f} %" for x in (
            within, twice, four, met, fmean(best.four_times),
            fmean(arms["learned, trained anywhere"].four_times),
        )
    )  # fmt: skip
    n, error = TRAINED, f"{m.closed_form:.0e}"
    numbers = Words(
        f"Trained on up to {n} words from place 0 on, sinusoids are right on {a} there, but on {b} "
        f"and {c} of the places beyond at {2 * n} and {4 * n} words ({best.scheme}: {e}), though a "
        f"shift is exactly one rotation for all places (error {error}).",
        f"在从 0 号位开始、不超过 {n} 个词的句子上训练后，正弦编码在训练长度内答对 {a}，句长为 "
        f"{2 * n} 和 {4 * n} 时，超出部分只答对 {b} 和 {c}（{best.scheme} 为 {e}），"
        f"尽管平移对所有位置确实是同一个旋转（误差 {error}）。",
    )
    if within > 0.9 and four >= KEPT * within and m.closed_form < 1e-5:
        return Verdict("holds", numbers)
    if met >= max(LIFTED * fmean(moved.within), four + 0.2):
        return Verdict(
            "holds when",
            Words(
                "When the places themselves were met in training: short sequences that stood "
                f"anywhere among {4 * n} places give {d} at {4 * n} words, but {f} with a learnt "
                "table too. " + numbers.en,
                f"前提是训练中见过这些位置：让短句随机出现在 {4 * n} 个位置中的任意处，"
                f"句长 {4 * n} 时可答对 {d}，不过可学习的编码表也能达到 {f}。" + numbers.zh,
            ),
        )
    return Verdict("does not hold", numbers)


LAB = Lab(
    number=6,
    name="positions",
    title=Words("Positions beyond the trained length", "超出训练长度的位置编码"),
    claim=Words(
        "Sinusoidal positions are computed and not learnt, so they carry over to sequences longer "
        "than those of the training; and since they change smoothly (a shift is a linear map), "
        "relative positions are easy to learn from them.",
        "正弦位置编码由公式算出，无需训练，因此能推广到比训练时更长的序列；"
        "又因为它平滑变化（平移是线性变换），模型容易从中学到相对位置。",
    ),
    experiment=Words(
        "Encoders of one size learn in as many steps to name the word before, on random sequences "
        f"of {TRAINED // 2} to {TRAINED} words, with each scheme of positions and with none, and "
        f"are tested on new sequences of {TRAINED}, {2 * TRAINED} and {4 * TRAINED} words. Two "
        "more arms let the training's sequences begin anywhere. For the tables we fit one matrix "
        "to a shift by k and test it on places that were left out.",
        "同样大小的编码器用同样的步数学习“说出前一个词”，训练句是 "
        f"{TRAINED // 2}～{TRAINED} 个随机词，各用一种位置方案（或不用），再在长为 {TRAINED}、"
        f"{2 * TRAINED}、{4 * TRAINED} 的新句子上测试；另有两组让训练句从任意位置开始。"
        "对编码表，用最小二乘为“平移 k 位”拟合同一个矩阵，并在未参与拟合的位置上检验。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
