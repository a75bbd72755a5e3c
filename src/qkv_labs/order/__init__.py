"""Lab 5: without positions, 我爱你 is 你爱我; and which models can tell them apart all the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model import Decoder, Encoder
from qkv_labs import tools
from qkv_labs.figures import COLOURS, MARKERS, Figure, new_figure
from qkv_labs.lab import Comparison, Interval, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("order")

PEOPLE, VERBS, STOP = "我你他她爸妈哥姐弟妹爷奶师友", "爱怕想等", "。"
VOCABULARY = PEOPLE + VERBS + STOP
CHANCE = 0.5  # knowing the two people but not their order, a model guesses one of them
SAME = 1e-6  # a change below this is rounding
SEES = 0.1  # so far above chance is no luck: 2.7 standard errors on one seed's 184 sentences
LEARNT = 0.75  # with positions; below, the task is too hard for its failures to show anything
FAMILIES = ("encoder", "decoder")
FRESH = (
    *(("encoder", scheme, 2) for scheme in ("none", "sinusoidal", "learned", "rotary", "relative")),
    *(("decoder", "none", 1), ("decoder", "none", 2), ("decoder", "sinusoidal", 2)),
)


@dataclass(frozen=True)
class Change:
    """How much word order changes untrained models' vectors, as a share of their length."""

    family: str
    positions: str
    n_layers: int
    moved: float  # a word's own vector, when 我爱你。 stands in another order
    pooled: float  # the mean of all vectors, in another order
    stop: float  # the vector of 。, which sees all, when 我 and 你 are exchanged


@dataclass(frozen=True)
class Trained:
    """Accuracy of models trained to name the agent, on pairs of people not in training."""

    family: str
    positions: str
    n_layers: int
    accuracies: list[float]  # one a seed


@dataclass(frozen=True)
class Measured:
    """Untrained models, where the claim is algebra, and trained ones, where it has consequences."""

    changes: list[Change]
    trained: list[Trained]
    n_held_out: int  # sentences


def build(family: str, positions: str, n_layers: int) -> Encoder | Decoder:
    """Build a small model; only the mask and the positions differ among the families."""
    make = tools.encoder if family == "encoder" else tools.decoder
    sizes = (len(VOCABULARY), 32, n_layers)
    return make(*sizes, positions=positions, max_length=16, relative_buckets=16)


def encode(sentences: Sequence[str]) -> Tensor:
    """Turn sentences of one length into ids, (B, T)."""
    return torch.tensor([[VOCABULARY.index(word) for word in sentence] for sentence in sentences])


def relative_change(a: Tensor, b: Tensor) -> float:
    """Return the largest ‖a - b‖/‖a‖ of vectors along the last dimension."""
    return float(((a - b).norm(dim=-1) / a.norm(dim=-1)).max())


@torch.no_grad()
def change(model: Encoder | Decoder) -> tuple[float, float, float]:
    """Measure what the order of 我爱你。 changes: words' vectors, their mean, the vector of 。."""
    sentence = "我爱你" + STOP
    orders = list(permutations(range(len(sentence))))
    hidden = model.double().eval().hidden(encode([sentence]))[0]  # (T, D)
    permuted = model.hidden(encode(["".join(sentence[i] for i in order) for order in orders]))
    back = torch.stack(
        [x[torch.tensor(order).argsort()] for x, order in zip(permuted, orders, strict=True)]
    )
    swapped = model.hidden(encode(["你爱我" + STOP]))[0]
    pooled = relative_change(hidden.mean(dim=0), permuted.mean(dim=1))
    return relative_change(hidden, back), pooled, relative_change(hidden[-1], swapped[-1])


def corpus(seed: int) -> tuple[list[str], list[str]]:
    """Return training and test sentences; each pair of people is in one of the two alone."""
    pairs = list(combinations(PEOPLE, 2))
    Random(seed).shuffle(pairs)

    def sentences(pairs: Sequence[tuple[str, str]]) -> list[str]:
        orders = [(pair, verb, pair[::-1]) for pair in pairs for verb in VERBS]
        return [a + verb + b + STOP for one, verb, other in orders for a, b in (one, other)]

    cut = len(pairs) * 3 // 4
    return sentences(pairs[:cut]), sentences(pairs[cut:])


def accuracy(family: str, positions: str, n_layers: int, seed: int, steps: int) -> float:
    """Train a model to name the agent at 。, and return its accuracy on new pairs."""
    tokens, test = map(encode, corpus(seed))
    torch.manual_seed(seed)
    model = build(family, positions, n_layers)
    head = nn.Linear(32, len(PEOPLE))

    def logits(tokens: Tensor) -> Tensor:
        return head(model.hidden(tokens)[:, -1])

    def loss(step: int) -> Tensor:
        batch = tokens[torch.randint(len(tokens), (64,))]
        return F.cross_entropy(logits(batch), batch[:, 0])

    tools.fit(nn.ModuleList([model, head]), loss, steps)
    with torch.no_grad():
        return float((logits(test).argmax(dim=-1) == test[:, 0]).double().mean())


def measure(settings: Settings) -> Measured:
    """Compare untrained models in every order, then train some with and without positions."""
    changes, trained = [], []
    for arm in FRESH:
        torch.manual_seed(settings.seed)
        changes.append(Change(*arm, *map(max, *(change(build(*arm)) for _ in range(5)))))
    for family, positions, n_layers in product(FAMILIES, ("none", "sinusoidal"), (1, 2)):
        settings.tell(f"training: {family}, {n_layers} layers, positions: {positions}")
        steps = settings.pick(300, 600)
        seeds = settings.seeds(3, 5)
        right = [accuracy(family, positions, n_layers, seed, steps) for seed in seeds]
        trained.append(Trained(family, positions, n_layers, right))
    return Measured(changes, trained, len(corpus(settings.seed)[1]))


def tables(m: Measured) -> list[Table]:
    """What order changes in untrained models, and how often trained ones are right."""
    arm = {"family": "{0.family}", "positions": "{0.positions}", "layers": "{0.n_layers}"}
    changes = {
        **arm,
        "a word's vector": lambda row: tools.tiny(row.moved),
        "mean of all": lambda row: tools.tiny(row.pooled),
        "。 in 你爱我。": lambda row: tools.tiny(row.stop),
    }
    right = {**arm, "right, %": lambda row: tools.percent(row.accuracies)}
    return [
        say.table("changes", changes, m.changes),
        say.table("right", right, m.trained, m=m, chance=100 * CHANCE),
    ]


def name_of(arm: Change | Trained) -> str:
    """Return the name of an arm in the figure."""
    layers = "1 layer" if arm.n_layers == 1 else f"{arm.n_layers} layers"
    return f"{arm.family}, {layers}, {'no positions' if arm.positions == 'none' else arm.positions}"


def draw(m: Measured) -> Figure:
    """Left: does the full stop feel the swap? Right: can a trained model say who does it?"""
    figure, (left, right) = new_figure(10.5, 3.9, nrows=1, ncols=2)
    for index, family in enumerate(FAMILIES):
        for row, change in enumerate(m.changes):
            if change.family == family:
                left.plot(max(change.stop, 1e-17), row, MARKERS[index], color=COLOURS[index])
        for row, arm in enumerate(m.trained):
            if arm.family == family:
                values = [100 * accuracy for accuracy in arm.accuracies]
                rows, colour = [row] * len(values), COLOURS[index]
                right.plot(values, rows, MARKERS[index], color=colour, alpha=0.7)
    left.axvline(SAME, color=COLOURS[7], linestyle=":")
    left.set(
        xscale="log",
        xlabel="change of the vector of the full stop (share of its length)",
        title="Fresh models, two people swapped (left of the line: rounding)",
    )
    right.axvline(100 * CHANCE, color=COLOURS[7], linestyle=":", label="chance")
    label = "right on pairs never met (%), a mark a seed"
    right.set(xlim=(0, 103), xlabel=label, title="Trained to say who does it")
    right.legend(loc="lower left")
    for axes, arms in ((left, m.changes), (right, m.trained)):
        axes.set_yticks(range(len(arms)), [name_of(arm) for arm in arms])
        axes.invert_yaxis()
    return figure


def judge(m: Measured) -> Verdict:
    """Is a fresh encoder blind to order, a trained one too, and a decoder as well?"""

    def right(family: str, n_layers: int, positions: str = "none") -> Interval:
        [arm] = tools.where(m.trained, family=family, n_layers=n_layers, positions=positions)
        return Interval.percent(arm.accuracies, 100)

    def guesses(family: str, n_layers: int) -> Comparison:
        names = family, "chance"
        return compare(right(family, n_layers), "≈", 100 * CHANCE, names, margin=100 * SEES)

    blind = tools.where(m.changes, family="encoder", positions="none")[0]
    return say.verdict(
        same=compare(max(blind.moved, blind.pooled, blind.stop), "<", SAME, form=".1g"),
        untaught=guesses("encoder", 2),
        placed=compare(right("encoder", 2, "sinusoidal"), ">", 100 * LEARNT, "sinusoidal"),
        shallow=guesses("decoder", 1),
        decoder=guesses("decoder", 2),
    )


LAB = say.make_lab(measure, tables, draw, judge)
