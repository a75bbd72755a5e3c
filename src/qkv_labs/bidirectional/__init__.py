"""Lab 15: whether a word's vector tells its sense, decided by words before or after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.model import Decoder, Encoder
from qkv_labs import tools
from qkv_labs.figures import COLOURS, Figure, new_figure, within_percent
from qkv_labs.lab import Interval, Settings, Table, Verdict, Words, compare
from qkv_labs.texts import Texts, read

say = Texts("bidirectional")

CASES, MODELS = ("before", "after"), ("encoder", "decoder")
GRAMMAR = read("bidirectional/grammar.toml")  # by the ambiguous word
PAD, BOS, EOS, MASK = range(4)
# Few, since hidden words teach an encoder more slowly than next words do a decoder
N_CUES = 4
HIDDEN_SHARE = 0.3
Net = Encoder | Decoder


@dataclass(frozen=True)
class Sentence:
    """The choices that make a sentence."""

    word: str
    case: str
    sense: int
    plain: bool  # whether an unambiguous word replaces the word
    who: int
    how: int
    cues: tuple[int, int]

    @property
    def text(self) -> list[str]:
        """The sentence, word by word."""
        grammar = GRAMMAR[self.word]
        fill = {
            "S": [grammar["who"].split()[self.who]],
            "A": [grammar["how"].split()[self.how]],
            "X": [grammar["plain"][self.sense] if self.plain else self.word],
            "C": [grammar["cues"][self.sense].split()[cue] for cue in self.cues],
        }
        frame = grammar["frames"][self.case].split()
        return [fill[part].pop(0) if part in fill else part for part in frame]

    @property
    def position(self) -> int:
        """Position of the word among the tokens, of which the first is BOS."""
        return GRAMMAR[self.word]["frames"][self.case].split().index("X") + 1


Probed = dict[tuple[str, str], list[Sentence]]  # by word and case: half to fit, half to test


@dataclass(frozen=True)
class Probe:
    """How often a linear probe of the vectors tells the sense, in percent, one value a seed."""

    model: str
    trained: bool
    at: str  # whose vector: "the word" or "the last word"
    word: str
    case: str
    accuracies: list[float]


@dataclass(frozen=True)
class Moved:
    """How far the word's vector moves, relative to its length, when the deciding words change."""

    model: str
    case: str
    distances: list[float]


@dataclass(frozen=True)
class Measured:
    """Probes of both models, and how far vectors move."""

    probes: list[Probe]
    moved: list[Moved]
    parameters: dict[str, int]
    n_tested: int  # sentences of each word and case


def vocabulary() -> dict[str, int]:
    """Return the id of every word of both grammars, after the special tokens."""
    lines = [*GRAMMAR]
    for word in GRAMMAR.values():
        lines += [*word["frames"].values(), word["who"], word["how"], *word["cues"], *word["plain"]]
    words = sorted({word for line in lines for word in line.split()} - set("SAXC"))
    return {word: number for number, word in enumerate(words, start=MASK + 1)}


def all_sentences(word: str, case: str) -> list[Sentence]:
    """Return all sentences of the grammar with a word in a case."""
    return [
        Sentence(word, case, sense, plain, who, how, (first, second))
        for sense in range(2)
        for plain in (False, True)
        for who in range(6)
        for how in range(6)
        for first in range(N_CUES)
        for second in range(N_CUES)
    ]


def split(random: Random, n_probed: int) -> tuple[list[Sentence], Probed]:
    """Return training sentences, and others, all with the ambiguous word, to probe with.

    The probe is fitted with some deciding words and tested with others: it must find a sense, and
    not a word, which even random weights would carry along.
    """
    train: list[Sentence] = []
    probed: Probed = {}
    for word, grammar in GRAMMAR.items():
        for case in grammar["frames"]:
            drawn = random.sample(every := all_sentences(word, case), len(every))
            held_out: set[Sentence] = set()
            if case in CASES:
                ambiguous = [sentence for sentence in drawn if not sentence.plain]
                fitted = [x for x in ambiguous if max(x.cues) < N_CUES // 2][:n_probed]
                tested = [x for x in ambiguous if min(x.cues) >= N_CUES // 2][:n_probed]
                probed[word, case] = fitted + tested
                held_out = {*fitted, *tested}
            train += [sentence for sentence in drawn if sentence not in held_out]
    random.shuffle(train)
    return train, probed


def tokens(sentences: Sequence[Sentence]) -> Tensor:
    """Return token ids with BOS before, (B, 13)."""
    ids = vocabulary()
    return torch.tensor([[BOS, *(ids[word] for word in x.text)] for x in sentences])


def build(model: str) -> Net:
    """Build an encoder or a decoder, alike in all but what may be seen and the head."""
    n_words = MASK + 1 + len(vocabulary())
    settings: dict[str, Any] = {
        "positions": "learned",
        "max_length": 13,
        "embedding_scale": False,
        "tie": "output",
    }
    if model == "encoder":
        return tools.encoder(n_words, 64, 2, head="masked", activation="gelu", **settings)
    return tools.decoder(n_words, 64, 2, activation="gelu", **settings)


def train(net: Net, data: Tensor, steps: int, seed: int) -> list[float]:
    """Train an encoder on hidden words, a decoder on next words; return the losses."""
    draws = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        rows = data[torch.randint(len(data), (32,), generator=draws)]
        if isinstance(net, Decoder):
            return tools.token_loss(net(rows[:, :-1]), rows[:, 1:])
        hidden = torch.rand(rows.shape, generator=draws) < HIDDEN_SHARE
        hidden[:, 0] = False
        return F.cross_entropy(net(rows.masked_fill(hidden, MASK))[hidden], rows[hidden])

    return tools.fit(net, loss, steps)


def probe(vectors: Tensor, senses: Tensor, n_fit: int) -> float:
    """Fit ridge regression to the first vectors; return percent right on the others."""
    vectors = vectors.double()
    vectors = (vectors - vectors[:n_fit].mean(0)) / (vectors[:n_fit].std(0) + 1e-6)
    known, wanted = vectors[:n_fit], 2.0 * senses[:n_fit].double() - 1
    ridge = 0.1 * n_fit * torch.eye(vectors.shape[1], dtype=torch.float64)
    line = torch.linalg.solve(known.T @ known + ridge, known.T @ (wanted - wanted.mean()))
    guesses = vectors[n_fit:] @ line + wanted.mean() > 0
    return 100 * float((guesses == senses[n_fit:].bool()).double().mean())


@torch.inference_mode()
def vectors_at(net: Net, sentences: Sequence[Sentence], at: str) -> Tensor:
    """Return the last layer's vectors of the word itself, or of the last word, (B, D)."""
    position = sentences[0].position if at == "the word" else -1
    return net.eval().hidden(tokens(sentences))[:, position]


def examine(net: Net, probed: Probed) -> tuple[dict[tuple[str, str, str], float], dict[str, float]]:
    """Probe a model by vector, word and case; and exchange the deciding words, by case."""
    right, moved = {}, {}
    for case in CASES:
        distances = []
        for word in GRAMMAR:
            sentences = probed[word, case]
            senses = torch.tensor(tools.column(sentences, "sense"))
            for at in ("the word", "the last word"):
                vectors = vectors_at(net, sentences, at)
                right[at, word, case] = probe(vectors, senses, len(sentences) // 2)
            own = vectors_at(net, sentences, "the word")
            twins = [replace(sentence, sense=1 - sentence.sense) for sentence in sentences]
            apart = (own - vectors_at(net, twins, "the word")).norm(dim=-1) / own.norm(dim=-1)
            distances.append(float(apart.mean()))
        moved[case] = fmean(distances)
    return right, moved


def measure(settings: Settings) -> Measured:
    """Train both on the same sentences, and probe both on others."""
    steps, n_probed = settings.pick(800, 2500), 200
    accuracies: dict[tuple[str, bool, str, str, str], list[float]] = defaultdict(list)
    distances: dict[tuple[str, str], list[float]] = defaultdict(list)
    parameters = {}
    for seed in settings.seeds(3, 5):
        sentences, probed = split(Random(seed), n_probed)
        data = tokens(sentences)
        for name in MODELS:
            settings.tell(f"seed {seed}: {name}")
            with tools.seeded(seed):
                net = build(name)
                parameters[name] = tools.n_weights(net)
                for trained in (False, True):
                    if trained:
                        train(net, data, steps, seed)
                    right, moved = examine(net, probed)
                    for key, value in right.items():
                        accuracies[name, trained, *key].append(value)
            for case, distance in moved.items():
                distances[name, case].append(distance)
    probes = [Probe(*key, values) for key, values in accuracies.items()]
    shifts = [Moved(*key, values) for key, values in distances.items()]
    return Measured(probes, shifts, parameters, n_probed)


def accuracies(
    m: Measured, model: str, case: str, at: str = "the word", trained: bool = True
) -> list[float]:
    """Return the figures of a model in a case, of both words and all seeds."""
    probes = tools.where(m.probes, model=model, case=case, at=at, trained=trained)
    return [value for probe in probes for value in probe.accuracies]


def tables(m: Measured) -> list[Table]:
    """Senses told at the word and at the sentence's end; and how far the word's vector moves."""
    arms = [(model, trained) for trained in (True, False) for model in MODELS]
    rows = []
    for at, word, case in product(("the word", "the last word"), GRAMMAR, CASES):
        probes = tools.where(m.probes, at=at, word=word, case=case)
        cells = {(x.model, x.trained): tools.plus_minus(x.accuracies) for x in probes}
        rows.append((at, word, case, *(cells[arm] for arm in arms)))
    heads = [f"{model}, {'trained' if trained else 'random weights'}" for model, trained in arms]
    sizes = (say.column(name) + Words(f" {n:,}", f" {n:,}") for name, n in m.parameters.items())
    moved = {
        "decided": "{0.case}",
        "model": "{0.model}",
        "distance / length": lambda row: tools.plus_minus(row.distances, 3),
    }
    columns = ("vector of", "word", "decided", *heads)
    return [
        say.table("senses", columns, rows, m=m, sizes=Words.join(sizes, zh="，")),
        say.table("moved", moved, m.moved),
    ]


def draw(m: Measured) -> Figure:
    """Bars of both models, by the side on which the deciding words stand."""
    figure, (left, right) = new_figure(9.6, 3.8, ncols=2, sharey=True)
    panels = (
        (left, "the word", "The sense, read at the word itself"),
        (right, "the last word", "The sense, read at the sentence's end"),
    )
    for axes, at, title in panels:
        for index, model in enumerate(MODELS):
            x = [case + (index - 0.5) * 0.4 for case in range(len(CASES))]
            figures = [tools.mean_and_spread(accuracies(m, model, case, at)) for case in CASES]
            means, spreads = zip(*figures, strict=True)
            style: dict[str, Any] = {
                "color": COLOURS[index],
                "hatch": "//" if index else None,
                "capsize": 3,
            }
            bars = [position - 0.05 for position in x]
            style |= {"yerr": within_percent(means, spreads), "edgecolor": "white"}
            axes.bar(bars, means, 0.32, label=model, **style)
            untrained = [fmean(accuracies(m, model, case, at, trained=False)) for case in CASES]
            label = "random weights" if index else None
            crosses = [position + 0.05 for position in x]
            axes.scatter(crosses, untrained, color=COLOURS[6], marker="x", zorder=3, label=label)
        axes.axhline(50, color=COLOURS[7], linestyle="--", linewidth=1)
        axes.text(0.45, 51, "chance", fontsize=8, color="#666666", ha="center")
        axes.set_xticks(range(len(CASES)), [f"decided {case} the word" for case in CASES])
        axes.grid(axis="x", visible=False)
        axes.set(title=title, ylim=(0, 109))
    left.set_ylabel("senses told rightly (%)")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def judge(m: Measured) -> Verdict:
    """Judge who tells the sense at the word, when what decides it comes before or after."""

    def told(model: str, case: str, at: str = "the word") -> Interval:
        return Interval.percent(accuracies(m, model, case, at))

    moved = {(line.model, line.case): Interval.of(line.distances) for line in m.moved}
    return say.verdict(
        both=[compare(told("encoder", case), ">", 90, case) for case in CASES],
        left=compare(told("decoder", "after"), "≈", 50, ("after", "chance"), margin=10),
        needed=compare(told("decoder", "before"), "<", told("encoder", "before"), MODELS[::-1]),
        late=compare(told("decoder", "after", "the last word"), ">", 75, "the last word"),
        moves=[
            compare(moved["encoder", "after"], ">", 0.1, "encoder", form=".2f"),
            compare(moved["decoder", "after"], "<", 1e-6, "decoder", form=".2g"),
        ],
    )


LAB = say.make_lab(measure, tables, draw, judge)
