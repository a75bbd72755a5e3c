"""Lab 6: which positions carry over to longer sequences, and what a shift does to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from torch import Tensor

from qkv.model import Encoder, Layout, Learned, sinusoids
from qkv_labs import tools
from qkv_labs.chinese import Texts
from qkv_labs.figures import COLOURS, MARKERS, Figure, look, new_figure
from qkv_labs.lab import Settings, Table, Verdict, Words

say = Texts("positions")

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
SLOW = (("disentangled", False),)  # in full runs only
SHIFTS = (1, 2, 4, 8)
PER_POINT = 4  # positions that share a point of the curve
LEARNT = 0.9  # right answers within n: then a scheme has learnt the task
KEPT = 0.9  # of the accuracy within n: then a scheme carries over
LIFTED = 0.75  # of it, where positions were met: then that is the condition
GAINED = 0.2  # more right answers than without meeting them, or meeting them changes little
EXACT = 1e-5  # an error below this is the rounding of a float32 table


@dataclass(frozen=True)
class Moved(Layout):
    """Rows whose positions count from `start`."""

    start: int = 0

    def positions(self, n_tokens: int, device: torch.device, start: int | Tensor = 0) -> Tensor:
        """Return the position of each token."""
        return super().positions(n_tokens, device, start) + self.start


@dataclass(frozen=True)
class Arm:
    """A scheme, trained on sequences that begin anywhere in 0 … 4n or at 0."""

    scheme: str
    anywhere: bool
    within: list[float]  # right answers at length n, one a seed
    twice: list[float]  # beyond n, at length 2n
    four_times: list[float]  # beyond n, at length 4n
    by_place: list[float]  # at length 4n, mean of seeds, by groups of positions


@dataclass(frozen=True)
class Shift:
    """How well one matrix shifts all positions of a table by k, and how products depend on k."""

    table: str
    residuals: dict[str, float]  # by k: ‖PE(p+k) - M·PE(p)‖/‖PE(p+k)‖ at positions not fitted
    products: list[float]  # mean of PE(p)·PE(p+k)/‖PE‖² over p, by k
    spreads: list[float]  # their standard deviation over p, by k


@dataclass(frozen=True)
class Measured:
    """Accuracy beyond the trained lengths, and the algebra of the tables."""

    arms: list[Arm]
    shifts: list[Shift]
    closed_form: float  # largest |PE(p+k) - R(k)·PE(p)|, of entries up to 1


def build(scheme: str) -> Encoder:
    """Build a small encoder that names a word at each position; only the scheme differs.

    Embeddings are multiplied by √D beside sinusoids, as in the paper, and beside no others.
    """
    return tools.encoder(
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
        embedding_scale=scheme == "sinusoidal",
    )


def train(scheme: str, anywhere: bool, steps: int) -> Encoder:
    """Train a model to name the word before, on sequences of n/2 to n words."""
    model = build(scheme)

    def loss(step: int) -> Tensor:
        length = int(torch.randint(TRAINED // 2, TRAINED + 1, ()))
        start = int(torch.randint(LONGEST - length + 1, ())) if anywhere else 0
        words, before = tools.word_before(32, length, N_WORDS)
        return tools.token_loss(model(words, Moved(start=start))[:, 1:], before)

    tools.fit(model, loss, steps, lr=1e-2)
    return model


@torch.no_grad()
def right_by_position(model: Encoder, length: int) -> Tensor:
    """Return the share of right answers at positions 1 … length-1, on new words."""
    words, before = tools.word_before(200, length, N_WORDS)
    return (model(words)[:, 1:].argmax(dim=-1) == before).double().mean(dim=0)


def learnt_table(model: Encoder) -> list[Tensor]:
    """Return the table of positions, if the model learns one."""
    scheme = model.encoder.positions
    return [scheme.table.weight.detach()] if isinstance(scheme, Learned) else []


def measure_arm(scheme: str, anywhere: bool, seeds: range, steps: int) -> tuple[Arm, list[Tensor]]:
    """Train and test a scheme for each seed; return its learnt tables too."""
    curves: list[list[Tensor]] = []
    learnt: list[Tensor] = []
    for seed in seeds:
        torch.manual_seed(seed)
        model = train(scheme, anywhere, steps)
        curves.append([right_by_position(model, length) for length in LENGTHS])
        learnt += learnt_table(model)
    short, double, longest = zip(*curves, strict=True)
    arm = Arm(
        scheme,
        anywhere,
        within=[float(curve.mean()) for curve in short],
        twice=[float(curve[TRAINED - 1 :].mean()) for curve in double],
        four_times=[float(curve[TRAINED - 1 :].mean()) for curve in longest],
        by_place=[float(x.mean()) for x in torch.stack(longest).mean(dim=0).split(PER_POINT)],
    )
    return arm, learnt


def rotation(k: int, d_model: int) -> Tensor:
    """Return R(k) of PE(p+k) = R(k)·PE(p): each pair (sin, cos) turned by k times its rate."""
    blocks = []
    for pair in range(d_model // 2):
        angle = k * 10000.0 ** (-2 * pair / d_model)
        sine, cosine = math.sin(angle), math.cos(angle)
        blocks.append(torch.tensor([[cosine, sine], [-sine, cosine]], dtype=torch.float64))
    return torch.block_diag(*blocks)


def shift_residual(table: Tensor, k: int, folds: int = 8) -> float:
    """Fit one M for PE(p+k) ≈ M·PE(p) by least squares; return its error where left out."""
    here, there = table[:-k].double(), table[k:].double()
    errors = torch.zeros_like(there)
    for fold in range(folds):
        left_out = torch.arange(len(here)) % folds == fold
        fitted = torch.linalg.lstsq(here[~left_out], there[~left_out], driver="gelsd").solution
        errors[left_out] = there[left_out] - here[left_out] @ fitted
    return float(errors.norm() / there.norm())


def products(table: Tensor) -> tuple[list[float], list[float]]:
    """Return PE(p)·PE(p+k)/mean ‖PE‖² for k < n: the mean over p, and its spread over p."""
    table = table.double()
    size = table.square().sum(dim=1).mean()
    lines = [(table[: len(table) - k] * table[k:]).sum(dim=1) / size for k in range(TRAINED)]
    return [float(x.mean()) for x in lines], [float(x.std()) for x in lines]


def describe(name: str, tables: list[Tensor]) -> Shift:
    """Measure the algebra of a kind of table, mean over the seeds' tables."""
    lines = [products(table) for table in tables]
    means, spreads = (torch.tensor(part).mean(dim=0).tolist() for part in zip(*lines, strict=True))
    residuals = {str(k): fmean(shift_residual(table, k) for table in tables) for k in SHIFTS}
    return Shift(name, residuals, means, spreads)


def closed_form() -> float:
    """Return the largest error of R(k) on the package's own table, over all p and k."""
    table = sinusoids(LONGEST, D_MODEL).double()
    return max(
        float((table[k:] - table[:-k] @ rotation(k, D_MODEL).T).abs().max())
        for k in range(1, LONGEST)
    )


def measure(settings: Settings) -> Measured:
    """Train each scheme on short sequences, test it on long ones, then examine the tables."""
    seeds, arms = settings.seeds(3, 5), []
    learnt: list[Tensor] = []
    with torch.random.fork_rng():
        for scheme, anywhere in ARMS + settings.pick((), SLOW):
            settings.tell(f"training: {scheme}{', anywhere' if anywhere else ''}")
            arm, tables = measure_arm(scheme, anywhere, seeds, settings.pick(500, 1500))
            arms.append(arm)
            learnt = tables if anywhere else learnt
        torch.manual_seed(settings.seed)
        fresh = [table for _ in seeds for table in learnt_table(build("learned"))]
    shifts = [
        describe("sinusoidal", [sinusoids(LONGEST, D_MODEL)]),
        describe("learned, before training", fresh),
        describe("learned, after training", learnt),  # of the arm that met all positions
    ]
    return Measured(arms, shifts, closed_form())


def name_of(arm: Arm) -> str:
    """Return the name of an arm in tables and figure."""
    return f"{arm.scheme}, trained anywhere" if arm.anywhere else arm.scheme


def _residual(shift: Shift, k: str) -> str:
    return f"{shift.residuals[k]:.1e}"


def tables(m: Measured) -> list[Table]:
    """Right answers by length, and what a shift does to the tables."""
    right = (
        "The word before: right answers in % after training on up to {n} words "
        "(one word of {words} by chance; beyond {n}, the places beyond {n} alone)"
    )
    algebra = (
        "One matrix M for PE(p+k) = M·PE(p): relative error at places not fitted; and how "
        "much PE(p)·PE(p+k) depends on p"
    )
    return [
        Table.of(
            say("right", right, n=TRAINED, words=N_WORDS),
            m.arms,
            {
                "positions": name_of,
                f"{TRAINED} words": lambda arm: tools.percent(arm.within),
                f"{2 * TRAINED} words": lambda arm: tools.percent(arm.twice),
                f"{4 * TRAINED} words": lambda arm: tools.percent(arm.four_times),
            },
        ),
        Table.of(
            say("algebra", algebra),
            m.shifts,
            {
                "table": "{0.table}",
                **{f"k = {k}": partial(_residual, k=str(k)) for k in SHIFTS},
                "spread of products": lambda shift: f"{max(shift.spreads[1:]):.1e}",
            },
        ),
    ]


def draw(m: Measured) -> Figure:
    """Left: accuracy by position, beyond training. Right: products by distance, and p's part."""
    figure, (left, right) = new_figure(10.5, 4.0, nrows=1, ncols=2, width_ratios=[1.5, 1])
    names = sorted({arm.scheme for arm in m.arms})
    for arm in m.arms:
        x = [1 + PER_POINT * i + (PER_POINT - 1) / 2 for i in range(len(arm.by_place))]
        style = look(names.index(arm.scheme), ls="--" if arm.anywhere else "-", label=name_of(arm))
        left.plot(x, [100 * share for share in arm.by_place], **style)
    left.axvspan(0, TRAINED, color=COLOURS[7], alpha=0.15, linewidth=0)
    left.text(TRAINED / 2, 103, "lengths trained", ha="center", fontsize=8)
    left.set(xlabel=f"place in a sequence of {LONGEST} words", ylabel="right (%)")
    left.set(ylim=(0, 110), xlim=(0, LONGEST))
    left.set_title("Naming the word before, beyond the trained lengths")
    left.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for index, shift in enumerate(m.shifts):
        middle, spread = torch.tensor(shift.products), torch.tensor(shift.spreads)
        colour = COLOURS[index]
        right.plot(middle, marker=MARKERS[index], color=colour, label=shift.table)
        band = (middle - spread, middle + spread)
        right.fill_between(range(len(middle)), *band, color=colour, alpha=0.2, linewidth=0)
    right.set(xlabel="distance k", ylabel="PE(p)·PE(p+k) / ‖PE‖², mean ± spread over p")
    title = "Products by distance (band: how much p matters)"
    right.set(title=title, xticks=range(0, TRAINED, 3))
    right.legend(loc="upper right")
    return figure


def carried(m: Measured, whether: bool) -> Words:
    """List the schemes that learnt the task from 0 on and stay right at 4n, or do not."""
    schemes = []
    for arm in m.arms:
        within, four = fmean(arm.within), fmean(arm.four_times)
        if not arm.anywhere and within >= LEARNT and (four >= KEPT * within) == whether:
            share = f" {100 * four:.0f} %"
            schemes.append(say.column(arm.scheme) + Words(share, share))
    return Words.join(schemes or ["–"])


def _numbers(m: Measured, plain: Arm) -> Words:
    return say(
        "because",
        "Trained on up to {n} words from place 0 on, sinusoids are right on {a:.0f} % there, and "
        "on {b:.0f} % and {c:.0f} % of the places beyond at {n2} and {n4} words. Of the schemes "
        "that learnt the task, these carry over to {n4} words: {stays}; these do not: {fails}. "
        "Either way, a shift of sinusoids is one rotation for all places (error "
        "{m.closed_form:.0e}).",
        **{"n": TRAINED, "n2": 2 * TRAINED, "n4": 4 * TRAINED, "m": m},
        a=100 * fmean(plain.within),
        b=100 * fmean(plain.twice),
        c=100 * fmean(plain.four_times),
        stays=carried(m, True),
        fails=carried(m, False),
    )


def judge(m: Measured) -> Verdict:
    """Sinusoids must stay right beyond n; where they do not, under what condition they do."""
    arms = {name_of(arm): arm for arm in m.arms}
    plain, moved = arms["sinusoidal"], arms["sinusoidal, trained anywhere"]
    within, four, met = map(fmean, (plain.within, plain.four_times, moved.four_times))
    numbers = _numbers(m, plain)
    if within >= LEARNT and four >= KEPT * within and m.closed_form < EXACT:
        return Verdict("holds", numbers)
    if met < max(LIFTED * fmean(moved.within), four + GAINED):
        return Verdict("does not hold", numbers)
    when = say(
        "when",
        "When the places, if not the lengths, were met in training: after short sequences that "
        "stood anywhere among {n4} places, sinusoids are right on {met:.0f} % beyond {n} at "
        "{n4} words, and a learnt table on {learnt:.0f} %. Places never met are another matter. ",
        n=TRAINED,
        n4=4 * TRAINED,
        met=100 * met,
        learnt=100 * fmean(arms["learned, trained anywhere"].four_times),
    )
    return Verdict("holds when", when + numbers)


LAB = say.make_lab(
    "Positions beyond the trained length",
    claim=(
        "Sinusoidal positions are computed and not learnt, so they carry over to sequences longer "
        "than those of the training; and since they change smoothly (a shift is a linear map), "
        "relative positions are easy to learn from them."
    ),
    experiment=(
        "Small encoders of two layers, alike but for their positions (and embeddings times √D "
        "beside sinusoids, as in the paper), learn with the same steps and learning rate to name "
        "the word before, on random sequences of {half} to {n} words, three seeds "
        "each (five with --full). They are tested on new sequences of "
        "{n}, {n2} and {n4} words. Two more arms let the training's "
        "sequences begin anywhere. For the tables we fit one matrix to a shift by k and test it on "
        "places that were left out."
    ),
    functions=(measure, tables, draw, judge),
    values={"half": TRAINED // 2, "n": TRAINED, "n2": 2 * TRAINED, "n4": 4 * TRAINED},
)
