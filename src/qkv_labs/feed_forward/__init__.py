"""Lab 25: what the feed-forward layer adds to attention: facts, by its width and activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.model import Encoder
from qkv_labs import tools
from qkv_labs.figures import COLOURS, MARKERS, Figure, new_figure
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict
from qkv_labs.texts import Texts

say = Texts("feed_forward")

D_MODEL, N_HEADS = 32, 4
N_NAMES = 64  # of subjects, of relations, and of objects
COPIED, N_WORDS = 8, 32  # words in a sequence to copy from, and words that there are
NONE, WIDER, LINEAR = "none", "none, wider", "×4, linear"
ARMS = {  # width of the inner layer over d_model, activation, whether it is gated
    NONE: (0.0, "relu", False),
    WIDER: (0.0, "relu", False),
    "×1, ReLU": (1.0, "relu", False),
    LINEAR: (4.0, "relu", False),
    "×4, ReLU": (4.0, "relu", False),
    "×4, GELU": (4.0, "gelu", False),
    "gated, SiLU": (8 / 3, "silu", True),  # two thirds of the width: as many parameters
}
FULL = "×4, ReLU"


class Nothing(nn.Module):
    """A feed-forward layer that adds nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """Return zeros, to which the residual connection adds x."""
        return torch.zeros_like(x)


@dataclass(frozen=True)
class Arm:
    """One kind of layer: right answers in percent, one value a seed."""

    name: str
    parameters: int
    facts: list[float]  # facts that are recalled
    copied: list[float]  # words copied from the position before


@dataclass(frozen=True)
class Measured:
    """All kinds."""

    n_facts: int
    arms: list[Arm]


def build(name: str, d_model: int = D_MODEL) -> Encoder:
    """Build a one-layer encoder that has this kind of feed-forward layer."""
    times, activation, gated = ARMS[name]
    n_names, d_ff = 2 * N_NAMES, max(1, round(times * d_model))
    layer: dict[str, Any] = {"d_ff": d_ff, "activation": activation, "gated": gated}
    model = tools.encoder(
        n_names, d_model, 1, n_labels=n_names, max_length=COPIED, n_heads=N_HEADS, **layer
    )
    block: Any = model.encoder.blocks[0]
    if not times:
        block.feed_forward = Nothing()
    elif name == LINEAR:
        block.feed_forward.activation = nn.Identity()
    return model


def equal_width() -> int:
    """Return the width at which attention alone has as many parameters as the full layer."""
    goal = tools.n_weights(build(FULL))
    widths = range(D_MODEL, 3 * D_MODEL, 2 * N_HEADS)
    return min(widths, key=lambda width: abs(tools.n_weights(build(WIDER, width)) - goal))


def facts(seed: int) -> tuple[Tensor, Tensor]:
    """Draw an object for every subject and relation: tokens (F, 2) and objects (F,)."""
    generator = torch.Generator().manual_seed(seed)
    subject, relation = torch.meshgrid(torch.arange(N_NAMES), torch.arange(N_NAMES), indexing="ij")
    tokens = torch.stack([subject.flatten(), N_NAMES + relation.flatten()], dim=1)
    return tokens, torch.randint(N_NAMES, (len(tokens),), generator=generator)


def recall(build_arm: Callable[[], Encoder], seed: int, steps: int) -> float:
    """Train on all facts; return the percentage that the model then recalls."""
    tokens, objects = facts(seed)
    generator = torch.Generator().manual_seed(seed)
    with tools.seeded(seed):
        model = build_arm()

    def loss(step: int) -> Tensor:
        chosen = torch.randint(len(tokens), (512,), generator=generator)
        return nn.functional.cross_entropy(model(tokens[chosen])[:, -1], objects[chosen])

    tools.fit(model, loss, steps, lr=1e-2)
    with torch.no_grad():
        return 100 * float((model(tokens)[:, -1].argmax(dim=-1) == objects).double().mean())


def copy(build_arm: Callable[[], Encoder], seed: int, steps: int) -> float:
    """Train to name the word before; return the percentage of right answers on new words."""
    with tools.seeded(seed):
        model = build_arm()

        def loss(step: int) -> Tensor:
            words, before = tools.word_before(32, COPIED, N_WORDS)
            return tools.token_loss(model(words)[:, 1:], before)

        tools.fit(model, loss, steps, lr=1e-2)
        words, before = tools.word_before(200, COPIED, N_WORDS)
        with torch.no_grad():
            return 100 * float((model(words)[:, 1:].argmax(dim=-1) == before).double().mean())


def measure(settings: Settings) -> Measured:
    """Teach facts and copying to each kind."""
    seeds, steps = settings.seeds(3, 6), settings.pick(400, 1500)
    arms = []
    for name in ARMS:
        settings.tell(name)
        width = equal_width() if name == WIDER else D_MODEL
        build_arm = partial(build, name, width)
        recalled = [recall(build_arm, seed, steps) for seed in seeds]
        copied = [copy(build_arm, seed, settings.pick(200, 400)) for seed in seeds]
        arms.append(Arm(name, tools.n_weights(build_arm()), recalled, copied))
    return Measured(N_NAMES**2, arms)


def tables(m: Measured) -> list[Table]:
    """Facts and copies by kind."""
    columns = {
        "feed-forward layer": "{0.name}",
        "parameters": "{0.parameters:,}",
        "facts": lambda arm: tools.plus_minus(arm.facts),
        "copies": lambda arm: tools.plus_minus(arm.copied),
    }
    return [say.table("right", columns, m.arms, m=m)]


def draw(m: Measured) -> Figure:
    """Facts and copies by kind, a mark a seed."""
    figure, axes = new_figure(9, 3.6, ncols=2, sharey=True)
    panels = (("facts", "Facts recalled"), ("copied", "Words copied"))
    for panel, (name, title) in zip(axes, panels, strict=True):
        for row, arm in enumerate(m.arms):
            values = getattr(arm, name)
            style = {"color": COLOURS[row], "alpha": 0.8, "clip_on": False}
            panel.plot(values, [row] * len(values), MARKERS[row], **style)
        panel.set(xlim=(0, 103), xlabel="right (%), a mark a seed", title=title)
    axes[0].set_yticks(range(len(m.arms)), tools.column(m.arms, "name"))
    axes[0].invert_yaxis()
    return figure


def judge(m: Measured) -> Verdict:
    """Compare facts stored with and without the layer, by width and activation, and copies."""
    facts = Figures({arm.name: Interval.percent(arm.facts) for arm in m.arms})
    copies = Figures({arm.name: Interval.percent(arm.copied) for arm in m.arms})
    gelu, gated = "×4, GELU", "gated, SiLU"
    return say.verdict(
        facts=facts.compare(NONE, "<", FULL),
        wider=facts.compare(FULL, ">", "×1, ReLU"),
        parameters=facts.compare(WIDER, "<", FULL),
        nonlinear=facts.compare(LINEAR, "<", FULL),
        gelu=facts.compare(gelu, ">", FULL),
        gated=[facts.compare(gated, ">", other) for other in (FULL, gelu)],
        copies=copies.compare(NONE, "<", FULL, margin=1),
    )


LAB = say.make_lab(measure, tables, draw, judge, values={"n": N_NAMES**2})
