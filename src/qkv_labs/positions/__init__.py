"""Lab 6: which positions carry over to longer sequences, and what a shift does to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from qkv.model import Decoder, Layout, Learned, sinusoids
from qkv_labs import tools
from qkv_labs.figures import COLOURS, MARKERS, Figure, look, new_figure
from qkv_labs.lab import Comparison, Figures, Interval, Settings, Table, Verdict, Words, compare
from qkv_labs.texts import Texts

say = Texts("positions")

N_WORDS, D_MODEL = 12, 32
TRAINED = 16  # n: no sequence of the training is longer
LENGTHS = (TRAINED, 2 * TRAINED, 4 * TRAINED)
LONGEST = LENGTHS[-1]
AT_LENGTHS = ("within", "twice", "four_times")  # attributes of an arm
ARMS = (  # a scheme, and whether the positions of its training begin anywhere
    *((name, False) for name in ("sinusoidal", "learned", "rotary", "relative", "alibi", "none")),
    *((name, True) for name in ("sinusoidal", "learned")),
)
SHIFTS = (1, 2, 4, 8)
PER_POINT = 4  # positions that share a point of the curve
TASKS = ("word before", "first word")
LEARNT = 90  # percent right: then a scheme has learnt a task, or carries it over
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
    """A scheme, trained on sequences whose positions begin anywhere in 0 … 4n, or at 0."""

    scheme: str
    anywhere: bool
    within: dict[str, list[float]]  # by task: right answers at length n, one a seed
    twice: dict[str, list[float]]  # beyond n, at length 2n
    four_times: dict[str, list[float]]  # beyond n, at length 4n
    by_position: dict[str, list[float]]  # at length 4n, mean of seeds, by groups of positions


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


def build(scheme: str) -> Decoder:
    """Build a small decoder that names two words at each position; only the scheme differs.

    Embeddings are multiplied by √D beside sinusoids, as in the paper, and beside no others.
    """
    settings = {
        "relative_buckets": 32,
        "relative_length": 128,
        "embedding_scale": scheme == "sinusoidal",
    }
    return tools.decoder(
        len(TASKS) * N_WORDS, D_MODEL, 2, positions=scheme, max_length=LONGEST, **settings
    )


def draw_words(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Draw random words (B, T) and the answers at all positions but the first, (B, T-1, tasks)."""
    words = torch.randint(N_WORDS, (rows, length))
    first = words[:, :1].expand(-1, length - 1)
    return words, torch.stack([words[:, :-1], first], dim=-1)


def answer(model: Decoder, words: Tensor, layout: Layout) -> Tensor:
    """Return logits of both answers at all positions but the first, (B, T-1, tasks, words)."""
    return model(words, layout)[:, 1:].unflatten(-1, (len(TASKS), N_WORDS))


def train(scheme: str, anywhere: bool, steps: int) -> Decoder:
    """Train a model on both tasks at once, on sequences of n/2 to n words."""
    model = build(scheme)

    def loss(step: int) -> Tensor:
        length = int(torch.randint(TRAINED // 2, TRAINED + 1, ()))
        start = int(torch.randint(LONGEST - length + 1, ())) if anywhere else 0
        words, answers = draw_words(32, length)
        return tools.token_loss(answer(model, words, Moved(start=start)), answers)

    tools.fit(model, loss, steps, lr=1e-2)
    return model


@torch.no_grad()
def right_by_position(model: Decoder, length: int) -> Tensor:
    """Return the share of right answers at positions 1 … length-1 to each task, (T-1, tasks)."""
    words, answers = draw_words(200, length)
    return (answer(model, words, Layout()).argmax(dim=-1) == answers).double().mean(dim=0)


def learnt_table(model: Decoder) -> list[Tensor]:
    """Return the table of positions, if the model learns one."""
    scheme = model.decoder.positions
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
    short, double, longest = map(torch.stack, zip(*curves, strict=True))  # (seeds, T-1, tasks)
    points = longest.mean(dim=0).split(PER_POINT)
    arm = Arm(
        scheme,
        anywhere,
        within=_by_task(short.mean(dim=1)),
        twice=_by_task(double[:, TRAINED - 1 :].mean(dim=1)),
        four_times=_by_task(longest[:, TRAINED - 1 :].mean(dim=1)),
        by_position=_by_task(torch.stack([point.mean(dim=0) for point in points])),
    )
    return arm, learnt


def _by_task(shares: Tensor) -> dict[str, list[float]]:
    return dict(zip(TASKS, shares.T.tolist(), strict=True))


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
    for scheme, anywhere in ARMS:
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


def tables(m: Measured) -> list[Table]:
    """Right answers by length, and what a shift does to the tables."""
    result, head = [], ("positions", *(f"{n} words" for n in LENGTHS))
    for task in TASKS:
        rows = [
            (name_of(arm), *(tools.percent(getattr(arm, at)[task]) for at in AT_LENGTHS))
            for arm in m.arms
        ]
        title = Words(f"The {task}", say.cell(task))
        result.append(say.table("right", head, rows, task=title, n=TRAINED, words=N_WORDS))
    algebra = {
        "table": "{0.table}",
        **{f"k = {k}": lambda shift, k=k: f"{shift.residuals[str(k)]:.1e}" for k in SHIFTS},
        "spread of products": lambda shift: f"{max(shift.spreads[1:]):.1e}",
    }
    return [*result, say.table("algebra", algebra, m.shifts)]


def draw(m: Measured) -> Figure:
    """Accuracy by position beyond training, a panel a task; products by distance, and p's part."""
    figure, axes = new_figure(13, 4.0, nrows=1, ncols=3)
    for panel, task in zip(axes, TASKS, strict=False):
        _draw_task(panel, m, task)
    lines, names = axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=4)
    right = axes[2]
    for index, shift in enumerate(m.shifts):
        middle, spread = torch.tensor(shift.products), torch.tensor(shift.spreads)
        colour = COLOURS[index]
        right.plot(middle, marker=MARKERS[index], color=colour, label=shift.table)
        band = (middle - spread, middle + spread)
        right.fill_between(range(len(middle)), *band, color=colour, alpha=0.2, linewidth=0)
    right.set(xlabel="distance k", ylabel="PE(p)·PE(p+k) / ‖PE‖², mean ± spread over p")
    right.set(title="Products by distance", xticks=range(0, TRAINED, 3))
    right.legend(loc="upper right")
    return figure


def _draw_task(panel: Any, m: Measured, task: str) -> None:
    names = sorted({arm.scheme for arm in m.arms})
    for arm in m.arms:
        shares = arm.by_position[task]
        x = [1 + PER_POINT * i + (PER_POINT - 1) / 2 for i in range(len(shares))]
        style = look(names.index(arm.scheme), ls="--" if arm.anywhere else "-", label=name_of(arm))
        panel.plot(x, [100 * share for share in shares], **style)
    panel.axvspan(0, TRAINED, color=COLOURS[7], alpha=0.15, linewidth=0)
    panel.text(TRAINED / 2, 103, "lengths trained", ha="center", fontsize=8)
    panel.set(xlabel=f"position in a sequence of {LONGEST} words", ylabel="right (%)")
    panel.set(ylim=(0, 110), xlim=(0, LONGEST), title=f"Naming the {task}")


def judge(m: Measured) -> Verdict:
    """Which schemes stay right at 4n, on which task; and is a shift one linear map?"""

    def right(at: str, task: str) -> Figures:
        shares = {name_of(arm): getattr(arm, at)[task] for arm in m.arms}
        return Figures({name: Interval.percent(seeds, 100) for name, seeds in shares.items()})

    beyond = {task: right("four_times", task) for task in TASKS}
    before = beyond[TASKS[0]]

    def carries(name: str) -> list[Comparison]:
        return [compare(beyond[task][name], ">", LEARNT, f"{name}, {task}") for task in TASKS]

    sinusoidal = "sinusoidal"
    return say.verdict(
        {"n": TRAINED, "n4": 4 * TRAINED},
        shift=compare(m.closed_form, "<", EXACT, form=".1g"),
        learnt=right("within", TASKS[0]).compare(sinusoidal, ">", LEARNT),
        carry=carries(sinusoidal),
        met=before.compare("sinusoidal, trained anywhere", ">", sinusoidal),
        table=before.compare("learned", "<", sinusoidal),
        rotary=carries("rotary"),
        alibi=carries("alibi"),
        none=before.compare("none", ">", sinusoidal),
    )


SIZES = {"half": TRAINED // 2, "n": TRAINED, "n2": 2 * TRAINED, "n4": 4 * TRAINED}
LAB = say.make_lab(measure, tables, draw, judge, SIZES)
