"""Lab 16: whether training brings words of a kind together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.demo import demo_corpus, lexicon, verbs
from qkv.model import build_model
from qkv_labs import tools
from qkv_labs.figures import COLOURS, MARKERS, Figure, new_figure
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, compare
from qkv_labs.shared import translator
from qkv_labs.texts import Texts

say = Texts("embeddings")

PAD, UNKNOWN, BOS, EOS = range(4)
NEAREST = 3  # how many neighbours are looked at
WORD, FRIEND = "今天", "昨天"
TIMES = ("昨天", "今天", "明天", "刚才", "上周", "下周", "上个月", "下个月", "去年", "明年")
PAIRS = ((WORD, FRIEND), ("苹果", "香蕉"), ("吃", "跑步"))  # the claim: near, near, far
BEFORE, SCRAMBLED, AFTER = "random, before training", "trained on scrambled words", "trained"
TRANSLATOR_BEFORE, TRANSLATOR = "translator, before", "translator, trained"


def classes() -> dict[str, list[str]]:
    """Return words of the demo language by kind; a word of two kinds counts as of the first."""
    objects = {
        name: [noun.chinese for deed in verbs.DEEDS if deed.chinese == verb for noun in deed.nouns]
        for name, verb in (("food", "吃"), ("drinks", "喝"), ("living things", "画"))
    }
    groups: dict[str, list[str]] = {
        "times": [*TIMES],
        "pronouns": [entry.chinese for entry in lexicon.PRONOUNS],
        "names": list(lexicon.NAMES),
        "relatives": [entry.chinese for entry in lexicon.RELATIVES],
        "professions": [entry.chinese for entry in lexicon.PROFESSIONS],
        **objects,
        "clothes": ["衬衫", "裤子", "帽子", "鞋"],
        "places": list(lexicon.PLACES),
        "numbers": list(lexicon.NUMERALS),
        "colours": sorted(lexicon.COLOURS),
        "traits": [entry.chinese for entry in lexicon.LASTING_QUALITIES],
        "feelings": [entry.chinese for entry in lexicon.PASSING_QUALITIES],
        "activities": [verb.chinese for verb in verbs.ACTIVITIES],
    }
    taken: set[str] = set()
    for name, words in groups.items():
        groups[name] = [word for word in dict.fromkeys(words) if word not in taken]
        taken.update(words)
    return groups


@dataclass(frozen=True)
class Arm:
    """How near words of a kind are in one embedding, one value a seed."""

    name: str
    first: list[float] = field(default_factory=list)  # nearest word of the same kind, percent
    nearest: list[float] = field(default_factory=list)  # of the NEAREST, percent of the same kind
    rank: list[float] = field(default_factory=list)  # mean rank of words of the same kind
    shuffled: list[float] = field(default_factory=list)  # `nearest` with kinds dealt at random
    chance: list[float] = field(default_factory=list)  # share of such deals that do as well
    by_class: dict[str, list[float]] = field(default_factory=dict)  # `nearest` of each kind


@dataclass(frozen=True)
class PairRanks:
    """The second word's rank among the first one's neighbours, one value a seed."""

    first: str
    second: str
    before: list[int]
    after: list[int]


@dataclass(frozen=True)
class Measured:
    """Embeddings, the claim's pairs, and the neighbours of 今天."""

    arms: list[Arm]
    pairs: list[PairRanks]
    neighbours: dict[str, list[tuple[str, float]]]  # WORD's, with cosines, in the first seed
    n_words: int


def segment(text: str, words: set[str]) -> list[str]:
    """Cut a text into the longest known words, and single characters between them."""
    pieces, start, longest = [], 0, max(map(len, words))
    while start < len(text):
        sizes = (size for size in range(longest, 1, -1) if text[start : start + size] in words)
        size = next(sizes, 1)
        pieces.append(text[start : start + size])
        start += size
    return pieces


def known_words() -> set[str]:
    """Return the words of the lexicon, of which 今天 is one, and 今天早上 two."""
    nouns = {*lexicon.NOUNS, "早上", "晚上", "周末", "每天", "现在"}
    entries = (*verbs.ACTIVITIES, *verbs.DEEDS, *verbs.HELPING, *lexicon.THING_QUALITIES)
    kinds = {word for words in classes().values() for word in words}
    listed = {entry.chinese for entry in entries}
    return nouns | listed | kinds | {"喜欢", "需要", "认识", "什么", "没有"}


def read_corpus(n_sentences: int) -> tuple[Tensor, dict[str, int]]:
    """Return the Chinese side as padded ids, (B, T), and the vocabulary."""
    words = known_words()
    sentences = [segment(chinese, words) for chinese, _ in demo_corpus().train[:n_sentences]]
    ids = {word: PAD for sentence in sentences for word in sentence}
    ids = {word: number for number, word in enumerate(sorted(ids), start=EOS + 1)}
    rows = [[BOS, *(ids[word] for word in sentence), EOS] for sentence in sentences]
    return tools.padded(rows, PAD), ids


def scrambled(data: Tensor, draws: torch.Generator) -> Tensor:
    """Shuffle all words: frequencies stay, contexts are lost."""
    ordinary = data > EOS
    words = data[ordinary]
    mixed = data.clone()
    mixed[ordinary] = words[torch.randperm(len(words), generator=draws)]
    return mixed


def train(data: Tensor, vocab_size: int, steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return a small language model's embedding before and after training on the next word."""
    model = tools.decoder(vocab_size, 64, 2, seed, max_length=data.shape[1])
    before = model.embedding.table.weight.detach().clone()
    draws = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        rows = data[torch.randint(len(data), (64,), generator=draws)]
        labels = rows[:, 1:].masked_fill(rows[:, 1:] == PAD, tools.IGNORE)
        return tools.token_loss(model(rows[:, :-1]), labels)

    tools.fit(model, loss, steps)
    return before, model.embedding.table.weight.detach().clone()


def cosines(vectors: Tensor) -> Tensor:
    """Return the cosine of each two vectors, (N, N); none is compared with itself."""
    unit = F.normalize(vectors, dim=-1)
    return (unit @ unit.T).fill_diagonal_(-torch.inf)


def same_kind(alike: Tensor, kinds: Tensor, k: int) -> Tensor:
    """Return for each word the share of its k nearest that are of its kind, (N,)."""
    return (kinds[alike.topk(k).indices] == kinds[:, None]).double().mean(-1)


def mean_rank(alike: Tensor, kinds: Tensor) -> float:
    """Return the mean rank, from 1, of words of the same kind among a word's neighbours."""
    ranks = alike.argsort(descending=True).argsort() + 1
    same = (kinds[:, None] == kinds) & ~torch.eye(len(kinds), dtype=torch.bool)
    return float(ranks[same].double().mean())


def add_seed(arm: Arm, vectors: Tensor, kinds: Tensor, names: Sequence[str], seed: int) -> None:
    """Measure one embedding, and the same with its kinds shuffled."""
    alike, draws = cosines(vectors), torch.Generator().manual_seed(seed)
    shares = same_kind(alike, kinds, NEAREST)
    shuffled = [
        float(same_kind(alike, kinds[torch.randperm(len(kinds), generator=draws)], NEAREST).mean())
        for _ in range(500)
    ]
    arm.first.append(100 * float(same_kind(alike, kinds, 1).mean()))
    arm.nearest.append(100 * float(shares.mean()))
    arm.rank.append(mean_rank(alike, kinds))
    arm.shuffled.append(100 * fmean(shuffled))
    as_good = sum(share >= float(shares.mean()) for share in shuffled)
    arm.chance.append((1 + as_good) / (1 + len(shuffled)))
    for number, name in enumerate(names):
        if bool((kinds == number).any()):
            arm.by_class.setdefault(name, []).append(100 * float(shares[kinds == number].mean()))


def rank_of(vectors: Tensor, words: Sequence[str], first: str, second: str) -> int:
    """Return the second word's rank, from 1, among the first one's neighbours."""
    row = cosines(vectors)[words.index(first)]
    return 1 + int((row > row[words.index(second)]).sum())


def measure_translator(settings: Settings, names: Sequence[str]) -> list[Arm]:
    """Measure the packaged translator on the words that are one token to it."""
    subject = translator(settings.tell)
    ids: list[int] = []
    kinds: list[int] = []
    for number, words in enumerate(classes().values()):
        single = [x for x in subject.tokenizers.source.encode_many(words) if len(x) == 1]
        ids += [tokens[0] for tokens in single]
        kinds += [number] * len(single)
    with tools.seeded(settings.seed):
        fresh = build_model(subject.model.config)
    arms = []
    for name, model in ((TRANSLATOR_BEFORE, fresh), (TRANSLATOR, subject.model)):
        table = dict(model.named_parameters())["source_embedding.table.weight"].detach()
        arms.append(Arm(name))
        add_seed(arms[-1], table[ids], torch.tensor(kinds), names, settings.seed)
    return arms


def measure(settings: Settings) -> Measured:
    """Train language models on the demo corpus, and on its words in random order."""
    data, ids = read_corpus(40_000)
    groups, everything = classes(), list(ids)
    rows = [everything.index(word) for words in groups.values() for word in words]
    kinds = torch.tensor([kind for kind, words in enumerate(groups.values()) for _ in words])
    arms = {name: Arm(name) for name in (BEFORE, SCRAMBLED, AFTER)}
    pairs = [PairRanks(first, second, [], []) for first, second in PAIRS]
    neighbours: dict[str, list[tuple[str, float]]] = {}
    for seed in settings.seeds(3, 5):
        settings.tell(f"seed {seed}: a language model on real and on scrambled sentences")
        mixed = scrambled(data, torch.Generator().manual_seed(seed))
        size, steps = EOS + 1 + len(ids), settings.pick(400, 2000)
        before, after = (table[EOS + 1 :] for table in train(data, size, steps, seed))
        lost = train(mixed, size, steps, seed)[1][EOS + 1 :]
        for name, table in ((BEFORE, before), (SCRAMBLED, lost), (AFTER, after)):
            add_seed(arms[name], table[rows], kinds, list(groups), seed)
            neighbours.setdefault(name, nearest(table, everything, WORD))
        for pair in pairs:
            pair.before.append(rank_of(before, everything, pair.first, pair.second))
            pair.after.append(rank_of(after, everything, pair.first, pair.second))
    translated = measure_translator(settings, list(groups))
    return Measured([*arms.values(), *translated], pairs, neighbours, len(everything))


def nearest(
    vectors: Tensor, words: Sequence[str], word: str, k: int = 6
) -> list[tuple[str, float]]:
    """Return a word's nearest neighbours among all words, with their cosines."""
    best = cosines(vectors)[words.index(word)].topk(k)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(words[row], value) for row, value in pairs]


def tables(m: Measured) -> list[Table]:
    """How near the kinds are, the neighbours of 今天, and the claim's own pairs."""
    kinds = {
        "embedding": "{0.name}",
        "nearest, %": lambda arm: tools.plus_minus(arm.first),
        f"{NEAREST} nearest, %": lambda arm: tools.plus_minus(arm.nearest),
        "kinds dealt at random, %": lambda arm: tools.plus_minus(arm.shuffled),
        "p": lambda arm: f"{max(arm.chance):.3f}",
        "mean rank": lambda arm: tools.plus_minus(arm.rank),
    }
    near = [
        (name, "  ".join(f"{word} {value:.2f}" for word, value in words))
        for name, words in m.neighbours.items()
    ]
    pairs = {
        "pair": "{0.first} – {0.second}",
        "before": lambda pair: ", ".join(map(str, pair.before)),
        "after": lambda pair: ", ".join(map(str, pair.after)),
    }
    return [
        say.table("kinds", kinds, m.arms),
        say.table("near", ("embedding", "neighbours"), near, m=m, word=WORD),
        say.table("pairs", pairs, m.pairs),
    ]


def draw(m: Measured) -> Figure:
    """Left: all kinds together, by embedding. Middle: each kind. Right: 今天's neighbours."""
    figure, (left, middle, right) = new_figure(12, 4.2, ncols=3)
    label = f"of the {NEAREST} nearest, of the same kind (%)"
    for row, arm in enumerate(m.arms):
        mean, spread = tools.mean_and_spread(arm.nearest)
        colour = COLOURS[0 if arm.name in (AFTER, TRANSLATOR) else 7]
        left.barh(row, mean, xerr=spread, capsize=3, color=colour)
        left.text(mean + spread + 2, row, f"{mean:.0f}", va="center")
    left.axvline(fmean(m.arms[0].shuffled), color=COLOURS[1], linestyle="--", label="by chance")
    left.set_yticks(range(len(m.arms)), [arm.name.replace(", ", ",\n") for arm in m.arms])
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    left.set(xlim=(0, 109), xlabel=label, title="All kinds together")
    left.legend(loc="lower right")
    by_kind = {arm.name: arm.by_class for arm in m.arms}
    kinds = sorted(by_kind[AFTER], key=lambda kind: fmean(by_kind[AFTER][kind]))
    for index, (name, shade) in enumerate(((AFTER, 0), (BEFORE, 7))):
        values = [fmean(by_kind[name][kind]) for kind in kinds]
        style = {"color": COLOURS[shade], "marker": MARKERS[index], "linestyle": ""}
        middle.plot(values, range(len(kinds)), label=name, **style)
    middle.set_yticks(range(len(kinds)), kinds)
    middle.set(xlabel=label, title="Kind by kind")
    middle.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    _draw_neighbours(right, m.neighbours)
    return figure


def _draw_neighbours(axes: Any, neighbours: dict[str, list[tuple[str, float]]]) -> None:
    """Draw bars of cosines with their words, those before training below those after it."""
    rows = [(name, word, value) for name in (AFTER, BEFORE) for word, value in neighbours[name]]
    for row, (name, word, value) in enumerate(rows):
        axes.barh(row, value, color=COLOURS[0 if name == AFTER else 7])
        axes.text(value, row, f" {word}", va="center")
    after, before = len(neighbours[AFTER]), len(neighbours[BEFORE])
    axes.set_yticks([(after - 1) / 2, after + (before - 1) / 2], ["trained", "random"])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.15)
    axes.set(xlabel="cosine", title=f"The nearest to {WORD}")


def judge(m: Measured) -> Verdict:
    """Do words of a kind meet by training alone, and do the notes' own pairs?"""
    arms = Figures({arm.name: Interval.percent(arm.nearest) for arm in m.arms})
    arms["chance"] = Interval.of(next(arm.shuffled for arm in m.arms if arm.name == BEFORE))
    days, fruits, verbs_apart = (Interval.of(pair.after) for pair in m.pairs)
    near, half = 10, (m.n_words - 1) / 2
    return say.verdict(
        {"k": NEAREST, "near": near},
        random=compare(arms[BEFORE], "≈", arms["chance"], ("", "chance"), margin=3),
        together=arms.compare(AFTER, ">", BEFORE),
        company=arms.compare(SCRAMBLED, "<", "chance", margin=-5),
        days=compare(days, "<", near + 1, form=".0f"),
        fruits=compare(fruits, "<", near + 1, form=".0f"),
        far=compare(verbs_apart, ">", half, form=".0f"),
    )


LAB = say.make_lab(measure, tables, draw, judge)
