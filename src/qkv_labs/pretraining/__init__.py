"""Lab 20: pre-training on plain text, then few labels, against the same labels from scratch.

In a made-up language people say what they saw and what they think of it. 40 adjectives praise or
blame, words like "not" turn them round, and only the context of words shows which does what.
Labels are for sentences without a verb that gives the opinion away.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from qkv.model import Encoder
from qkv_labs import tools
from qkv_labs.figures import COLOURS, Figure, error_bars, new_figure, ticks
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict
from qkv_labs.texts import Texts

say = Texts("pretraining")

# Where each kind of word begins in the vocabulary; the halves of a kind mean opposite things.
N_NOUNS, N_NEUTRAL, N_OPINIONS, N_TURNS, N_ADJECTIVES = 12, 4, 8, 6, 40
MASK, CLS, NOUNS = 0, 1, 2
NEUTRAL = NOUNS + N_NOUNS
OPINIONS = NEUTRAL + N_NEUTRAL
TURNS = OPINIONS + N_OPINIONS
ADJECTIVES = TURNS + N_TURNS
VOCABULARY = ADJECTIVES + N_ADJECTIVES
VERB, LENGTH = 1, 5  # position of the verb

TURNED = 0.15  # the share of adjectives that follow a word like "not"
OPINIONATED = 0.9  # the share of plain sentences whose verb gives the opinion away
HIDDEN = 0.4  # of the words, in pre-training
BATCH, N_TEST, N_CHOICE = 32, 1000, 200
RATES = (1e-3, 3e-3)
SCRATCH, LONG = "from scratch", "from scratch, equal compute"
PRETRAINED, CUT = "pre-trained", "pre-trained, meaning cut"
ARMS = (PRETRAINED, CUT, LONG, SCRATCH)
CHANCE = 50.0


@dataclass(frozen=True)
class Sizes:
    """How much is done; all arms have the same model, batches and fine-tuning steps."""

    labels: tuple[int, ...] = (20, 100, 500)
    pretraining_steps: int = 800
    steps: int = 80
    n_plain: int = 20_000  # sentences of plain text
    d_model: int = 48


@dataclass(frozen=True)
class Arm:
    """Held-out accuracies in percent, one a seed, and the rate that was chosen."""

    name: str
    labels: int
    steps: int  # in all, pre-training too
    accuracies: list[float]
    rate: float


@dataclass(frozen=True)
class Measured:
    """All arms at all numbers of labels, and the loss of hidden words."""

    arms: list[Arm]
    adjectives: int
    opinion_loss: float  # of hidden opinion verbs, in nats, at the end of pre-training
    opinion_loss_cut: float  # where the text does not give it away

    def of(self, name: str, labels: int) -> Arm:
        """Return one arm."""
        return tools.where(self.arms, name=name, labels=labels)[0]

    @property
    def labels(self) -> list[int]:
        """The numbers of labels, rising."""
        return sorted({arm.labels for arm in self.arms})


def sentences(n: int, random: Generator, opinions: float) -> tuple[Tensor, Tensor]:
    """Draw sentences such as `[CLS] saw soup not fine`, and whether each is praise, (N,).

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
    """Shuffle the opinion verbs among the sentences, so that they say nothing."""
    verbs = text[:, VERB]
    rows = (verbs >= OPINIONS).nonzero()[:, 0]
    shuffled = text.clone()
    shuffled[rows, VERB] = verbs[rows[torch.randperm(len(rows), generator=random)]]
    return shuffled


def build(d_model: int) -> Encoder:
    """Build the encoder of all arms, with a head for hidden words and one for a text's label."""
    settings: dict[str, Any] = {"positions": "learned", "activation": "gelu"}
    return tools.encoder(
        VOCABULARY, d_model, 2, max_length=LENGTH, **settings, head="masked", pair_head=True
    )


def hide(text: Tensor, random: Generator) -> tuple[Tensor, Tensor]:
    """Hide some of the words; return the text as it is seen, and which were hidden."""
    hidden = torch.rand(text.shape, generator=random) < HIDDEN
    hidden[:, 0] = False
    return text.masked_fill(hidden, MASK), hidden


def pretrain(model: Encoder, text: Tensor, steps: int, random: Generator) -> float:
    """Train on hidden words of plain text; return the loss of hidden opinion verbs, in nats."""

    def loss(step: int) -> Tensor:
        rows = text[torch.randint(len(text), (BATCH,), generator=random)]
        seen, hidden = hide(rows, random)
        return F.cross_entropy(model.head(model.hidden(seen)[hidden]), rows[hidden])

    tools.fit(model, loss, steps, lr=2e-3)
    rows = text[text[:, VERB] >= OPINIONS][:1000].clone()
    verbs = rows[:, VERB].clone()
    rows[:, VERB] = MASK
    with torch.no_grad():
        return float(F.cross_entropy(model.head(model.hidden(rows)[:, VERB]), verbs))


def label_logits(model: Encoder, text: Tensor) -> Tensor:
    """Return the logits of whole sentences' labels, (B, 2)."""
    assert model.pair_head is not None
    return model.pair_head(model.hidden(text)[:, 0])


@torch.no_grad()
def accuracy(model: Encoder, text: Tensor, labels: Tensor) -> float:
    """Return right labels in percent."""
    return 100 * float((label_logits(model, text).argmax(-1) == labels).double().mean())


@dataclass(frozen=True)
class Lesson:
    """Labelled sentences: for training, for choosing the learning rate, and for testing."""

    learn: tuple[Tensor, Tensor]
    choose: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @classmethod
    def drawn(cls, n_labels: int, random: Generator) -> Lesson:
        """Draw sentences without opinion verbs; none of the others is in the training part."""
        choose, test = sentences(N_CHOICE, random, 0.0), sentences(N_TEST, random, 0.0)
        known = {tuple(row) for row in torch.cat([choose[0], test[0]]).tolist()}
        text, labels = sentences(2 * n_labels, random, 0.0)
        new = [index for index, row in enumerate(text.tolist()) if tuple(row) not in known]
        kept = torch.tensor(new[:n_labels])
        return cls((text[kept], labels[kept]), choose, test)


Weights = dict[str, Tensor]


def starts(sizes: Sizes, seed: int) -> tuple[dict[str, Weights], dict[str, float]]:
    """Return the weights that each arm begins with, and losses of pre-training."""
    random = Generator().manual_seed(seed)
    text, _ = sentences(sizes.n_plain, random, OPINIONATED)
    torch.manual_seed(seed)
    fresh = {name: value.clone() for name, value in build(sizes.d_model).state_dict().items()}
    weights, losses = {SCRATCH: fresh, LONG: fresh}, {}
    for name, plain in ((PRETRAINED, text), (CUT, without_meaning(text, random))):
        model = build(sizes.d_model)
        model.load_state_dict(fresh)
        losses[name] = pretrain(model, plain, sizes.pretraining_steps, random)
        weights[name] = model.state_dict()
    return weights, losses


def outcome_of(
    weights: Weights, n_labels: int, steps: int, rate: float, seed: int
) -> tuple[float, float]:
    """Fine-tune from these weights on labels that the seed draws, the same for all arms.

    Return the accuracy on the choosing sentences, and on the test's.
    """
    random = Generator().manual_seed(1000 * n_labels + seed)
    lesson = Lesson.drawn(n_labels, random)
    model = build(weights["embedding.table.weight"].shape[1])
    model.load_state_dict(weights)
    text, labels = lesson.learn

    def loss(step: int) -> Tensor:
        rows = torch.randint(len(text), (BATCH,), generator=random)
        return F.cross_entropy(label_logits(model, text[rows]), labels[rows])

    tools.fit(model, loss, steps, lr=rate)
    return accuracy(model, *lesson.choose), accuracy(model, *lesson.test)


def run_arm(name: str, begin: list[Weights], sizes: Sizes, settings: Settings) -> list[Arm]:
    """Fine-tune on each number of labels, at a rate chosen by the middle number."""
    steps = sizes.steps + (sizes.pretraining_steps if name == LONG else 0)
    total = sizes.steps + (0 if name == SCRATCH else sizes.pretraining_steps)
    middle, seed = sizes.labels[len(sizes.labels) // 2], settings.seed
    rate = max(RATES, key=lambda rate: outcome_of(begin[0], middle, steps, rate, seed)[0])
    arms = []
    for n_labels in sizes.labels:
        settings.tell(f"{name}, {n_labels} labels")
        accuracies = [
            outcome_of(weights, n_labels, steps, rate, seed + index)[1]
            for index, weights in enumerate(begin)
        ]
        arms.append(Arm(name, n_labels, total, accuracies, rate))
    return arms


def measured_with(sizes: Sizes, settings: Settings) -> Measured:
    """Measure all arms at these sizes."""
    begun = []
    for seed in settings.seeds(3, 5):
        settings.tell(f"pre-training, seed {seed}")
        begun.append(starts(sizes, seed))
    arms: list[Arm] = []
    for name in ARMS:
        arms += run_arm(name, [weights[name] for weights, _ in begun], sizes, settings)
    losses = (fmean(losses[name] for _, losses in begun) for name in (PRETRAINED, CUT))
    return Measured(arms, N_ADJECTIVES, *losses)


def measure(settings: Settings) -> Measured:
    """Pre-train, then fine-tune on more and more labels."""
    full = Sizes(labels=(10, 20, 50, 100, 500, 2000), pretraining_steps=2000, steps=200)
    return measured_with(settings.pick(Sizes(), full), settings)


def tables(m: Measured) -> list[Table]:
    """Accuracy by labels and arm."""
    rows = [
        (
            name,
            f"{m.of(name, m.labels[0]).steps:,}",
            *(tools.plus_minus(m.of(name, labels).accuracies) for labels in m.labels),
        )
        for name in ARMS
    ]
    head = ("start", "steps in all", *(f"{labels} labels" for labels in m.labels))
    return [say.table("right", head, rows, n=N_TEST, chance=CHANCE)]


def draw(m: Measured) -> Figure:
    """Accuracy against labels, a line an arm."""
    figure, axes = new_figure(7.2, 4.0)
    for index, name in enumerate(ARMS):
        samples = [m.of(name, labels).accuracies for labels in m.labels]
        error_bars(axes, m.labels, samples, index, name)
    axes.axhline(CHANCE, color=COLOURS[7], linestyle=":", label="chance")
    axes.set_xscale("log")
    ticks(axes, m.labels)
    axes.set(xlabel="labelled sentences", ylabel="right on new sentences (%)", ylim=(30, 102))
    axes.set_title("How far does plain text stand in for labels? Mean and spread over seeds")
    axes.legend(loc="lower right", ncols=2)
    return figure


def judge(m: Measured) -> Verdict:
    """With few labels and with many: is the pre-trained model ahead, and by what it read?"""
    few, middle, many = (
        Figures({name: Interval.percent(m.of(name, labels).accuracies) for name in ARMS})
        for labels in (m.labels[0], m.labels[len(m.labels) // 2], m.labels[-1])
    )
    values = {
        "n": m.labels[0],
        "some_n": m.labels[len(m.labels) // 2],
        "many_n": m.labels[-1],
        "steps": m.of(SCRATCH, m.labels[-1]).steps,
    }
    return say.verdict(
        values,
        few=[few.compare(PRETRAINED, ">", rival) for rival in (SCRATCH, LONG)],
        some=[middle.compare(PRETRAINED, ">", rival) for rival in (SCRATCH, LONG)],
        read=middle.compare(CUT, "<", PRETRAINED),
        short=many.compare(PRETRAINED, ">", SCRATCH),
        well=few.compare(PRETRAINED, ">", 80),
        many=many.compare(PRETRAINED, ">", LONG),
    )


LAB = say.make_lab(measure, tables, draw, judge, values={"share": 100 * OPINIONATED})
