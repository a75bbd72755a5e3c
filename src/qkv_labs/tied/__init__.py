"""Lab 4: one matrix for two or three of Q, K and V, on two tasks and at two depths."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from qkv.model import Encoder
from qkv_labs import tools
from qkv_labs.figures import COLOURS, Figure, new_figure
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, Words
from qkv_labs.texts import Texts

say = Texts("tied")

N_CLASSES, N_VARIANTS, PER_SENTENCE = 6, 8, 12  # classes and variants of words; words a sentence
D_MODEL, N_HEADS, D_HEAD = 32, 2, 12
SCHEMES: Mapping[str, tuple[int, int, int]] = {
    "separate": (0, 1, 2),
    "Q=K": (0, 0, 1),
    "K=V": (0, 1, 1),
    "Q=K=V": (0, 0, 0),
}
TIES = tuple(SCHEMES)[1:]


class Shared(nn.Module):
    """The fused projection of an `Attention`, where some of q, k and v share a matrix."""

    def __init__(self, scheme: tuple[int, int, int], width: int) -> None:
        super().__init__()
        self.scheme = scheme
        self.matrices = nn.ModuleList(nn.Linear(D_MODEL, width, bias=False) for _ in set(scheme))
        bound = math.sqrt(3 / (D_MODEL + width))  # as the package draws its own projections
        for matrix in self.matrices:
            nn.init.uniform_(matrix.weight, -bound, bound)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Project (B, T, D) to q, k and v side by side, (B, T, 3·H·d)."""
        projected = [matrix(x) for matrix in self.matrices]
        return torch.cat([projected[index] for index in self.scheme], dim=-1)


def wide_head(scheme: str) -> int:
    """Return the head width at which a tied arm has as many weights as the separate one.

    W_O is as large as each of the others: 4 matrices of D·H·d weights, or 3, or 2.
    """
    return D_HEAD * 4 // (1 + len(set(SCHEMES[scheme])))


def build(scheme: str, d_head: int, n_layers: int) -> Encoder:
    """Build a pre-norm encoder without positions that names a variant at each word."""
    n_words = 2 * N_CLASSES * N_VARIANTS
    settings: dict[str, Any] = {"positions": "none", "bias": False}
    model = tools.encoder(
        n_words, D_MODEL, n_layers, n_heads=N_HEADS, d_key=d_head, n_labels=N_VARIANTS, **settings
    )
    for block in model.encoder.blocks:
        attention: Any = block.self_attention
        attention.query_key_value = Shared(SCHEMES[scheme], N_HEADS * d_head)
    return model


def word(kind: Tensor, group: Tensor, variant: Tensor) -> Tensor:
    """Return the id of a word: a verb or a noun, of some class, in some variant."""
    return (kind * N_CLASSES + group) * N_VARIANTS + variant


def _shuffled(words: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    order = torch.rand(words.shape, generator=generator).argsort(dim=1)
    return words.gather(1, order), labels.gather(1, order)


def complement(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sentences in which two words of one kind and class look for one of the other kind.

    Two verbs look for their noun, or two nouns for their verb: which words look for which differs
    from which are alike, in both directions. The label is the variant of the word looked for.
    """
    groups = torch.rand(rows, N_CLASSES, generator=generator).argsort(dim=1)
    groups = groups[:, : PER_SENTENCE // 3, None]
    kind = torch.randint(2, (rows, PER_SENTENCE // 3), generator=generator)
    variant = torch.randint(N_VARIANTS, (rows, PER_SENTENCE // 3, 3), generator=generator)
    words = word(torch.stack([kind, kind, 1 - kind], dim=-1), groups, variant)
    sought = variant[..., 2]
    labels = torch.stack([sought, sought, torch.full_like(sought, tools.IGNORE)], dim=-1)
    return _shuffled(words.flatten(1), labels.flatten(1), generator)


def likeness(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sentences in which each word looks for the other one of its own kind and class."""
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

    @property
    def title(self) -> str:
        """The name with a capital letter."""
        return self.name[0].upper() + self.name[1:]


SETTINGS = (
    Setting("find the complement, 1 layer", complement, 1),
    Setting("find one's like, 1 layer", likeness, 1),
    Setting("find the complement, 2 layers", complement, 2),
)


@dataclass(frozen=True)
class Arm:
    """What a way of tying reached in a setting, one value a seed."""

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
    """Return parameters, accuracy on new sentences, and the steps that half the loss took."""
    with tools.seeded(seed):
        model = build(scheme, d_head, setting.n_layers)
    data = torch.Generator().manual_seed(seed + 1000)

    def loss(step: int) -> Tensor:
        words, labels = setting.task(64, data)
        return tools.token_loss(model(words), labels)

    losses, half = tools.fit(model, loss, n_steps, lr=1e-2), math.log(N_VARIANTS) / 2
    words, labels = setting.task(500, torch.Generator().manual_seed(seed + 2000))
    with torch.no_grad():
        right = (model(words).argmax(dim=-1) == labels)[labels != tools.IGNORE]
    first = next((step for step, value in enumerate(losses) if value < half), n_steps)
    return tools.n_weights(model), right.double().mean().item(), first


def arm(setting: Setting, scheme: str, equal: bool, seeds: Sequence[int], n_steps: int) -> Arm:
    """Train one way of tying in one setting."""
    d_head = wide_head(scheme) if equal else D_HEAD
    runs = [train(setting, scheme, d_head, seed, n_steps) for seed in seeds]
    sizes, accuracy, steps = zip(*runs, strict=True)
    return Arm(setting.name, scheme, equal, sizes[0], list(accuracy), list(steps))


def measure(settings: Settings) -> Measured:
    """Train every scheme in every setting; simply tied, and with wider heads for what was saved."""
    n_steps, seeds, arms = settings.pick(300, 1000), settings.seeds(3, 6), []
    for setting in SETTINGS:
        settings.tell(setting.name)
        arms += [arm(setting, scheme, True, seeds, n_steps) for scheme in SCHEMES]
        if setting.n_layers == 1 or settings.full:
            arms += [arm(setting, scheme, False, seeds, n_steps) for scheme in TIES]
    return Measured(arms, n_steps)


def tables(m: Measured) -> list[Table]:
    """One table a setting."""
    columns = {
        "projections": lambda arm: arm.scheme + ("" if arm.equal else ", simply tied"),
        "parameters": "{0.parameters}",
        "accuracy (%)": lambda arm: tools.percent(arm.accuracy),
        "steps to half the loss": lambda arm: tools.plus_minus(arm.steps, 0),
    }
    result = []
    for setting in SETTINGS:
        name = Words(setting.title, say.cell(setting.name))
        arms = tools.where(m.arms, setting=setting.name)
        result.append(say.table("arms", columns, arms, name=name, m=m))
    return result


def draw(m: Measured) -> Figure:
    """One panel a setting: each seed's accuracy, by scheme."""
    figure, axes = new_figure(9.6, 3.6, ncols=len(SETTINGS), sharey=True)
    for axis, setting in zip(axes, SETTINGS, strict=True):
        arms = tools.where(m.arms, setting=setting.name)
        for arm in arms:
            alone = len(tools.where(arms, scheme=arm.scheme)) == 1
            shift = 0 if alone else -0.18 if arm.equal else 0.18
            x = list(SCHEMES).index(arm.scheme) + shift
            colour, values = COLOURS[0 if arm.equal else 1], [100 * a for a in arm.accuracy]
            axis.bar(x, fmean(values), width=0.34, color=colour, alpha=0.35)
            marker = "o" if arm.equal else "s"
            axis.plot([x] * len(values), values, marker, color=colour)
        axis.axhline(100 / N_VARIANTS, color=COLOURS[6], linestyle=":", linewidth=1)
        axis.set_xticks(range(len(SCHEMES)), list(SCHEMES))
        axis.set_title(setting.title)
    axes[0].set(ylabel=f"right on new sentences (%), {m.n_steps} steps", ylim=(0, 104))
    for label, index, marker in (("equal parameters", 0, "o"), ("simply tied", 1, "s")):
        axes[0].plot([], [], marker, color=COLOURS[index], label=label)
    axes[0].plot([], [], color=COLOURS[6], linestyle=":", label="chance")
    figure.suptitle("What tying costs: finding the complement against finding one's like")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def judge(m: Measured) -> Verdict:
    """What does each way of tying cost at equal parameters, on each task?"""
    equal = tools.where(m.arms, equal=True)
    one_layer, like, two_layers = (
        Figures(
            {
                arm.scheme: Interval.percent(arm.accuracy, 100)
                for arm in equal
                if arm.setting == name
            }
        )
        for name in tools.column(SETTINGS, "name")
    )
    return say.verdict(
        unlike=one_layer.compare("Q=K", "<", "separate"),
        like=like.compare("Q=K", "≈", "separate", margin=2),
        content=[right.compare("K=V", "<", "separate") for right in (one_layer, like)],
        all=one_layer.compare("Q=K=V", "<", "separate"),
        deeper=two_layers.compare("Q=K", "<", "separate"),
    )


LAB = say.make_lab(measure, tables, draw, judge)
