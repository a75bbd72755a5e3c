"""Lab 16: whether training brings words of a kind together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import ModelConfig
from qkv.data import IGNORE
from qkv.demo import demo_corpus, lexicon, verbs
from qkv.inspect.style import COLOURS, MARKERS, new_figure
from qkv.model import Decoder, build_model
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.shared import translator
from qkv_labs.tools import fit, mean_and_spread, plus_minus, seeded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAD, UNKNOWN, BOS, EOS = range(4)
NEAREST = 3  # how many neighbours are looked at
WORD, FRIEND = "今天", "昨天"
TIMES = ("昨天", "今天", "明天", "刚才", "上周", "下周", "上个月", "下个月", "去年", "明年")
PAIRS = ((WORD, FRIEND), ("苹果", "香蕉"), ("吃", "跑步"))  # the notes: near, near, far
BEFORE, SCRAMBLED, AFTER = "random, before training", "trained on scrambled words", "trained"
TRANSLATOR_BEFORE, TRANSLATOR = "translator, before", "translator, trained"


def classes() -> dict[str, list[str]]:
    """Words of the demo language by kind; a word that is of two kinds counts as of the first."""
    objects = {
        name: [noun.chinese for deed in verbs.DEEDS if deed.chinese == verb for noun in deed.nouns]
        for name, verb in (("food", "吃"), ("drinks", "喝"), ("living things", "画"))
    }
    groups: dict[str, list[str]] = {
        "times": [*TIMES],
        "pronouns": [one.chinese for one in lexicon.PRONOUNS],
        "names": list(lexicon.NAMES),
        "relatives": [one.chinese for one in lexicon.RELATIVES],
        "professions": [one.chinese for one in lexicon.PROFESSIONS],
        **objects,
        "clothes": ["衬衫", "裤子", "帽子", "鞋"],
        "places": list(lexicon.PLACES),
        "numbers": list(lexicon.NUMERALS),
        "colours": sorted(lexicon.COLOURS),
        "traits": [one.chinese for one in lexicon.LASTING_QUALITIES],
        "feelings": [one.chinese for one in lexicon.PASSING_QUALITIES],
        "activities": [one.chinese for one in verbs.ACTIVITIES],
    }
    taken: set[str] = set()
    for name, words in groups.items():
        groups[name] = [word for word in dict.fromkeys(words) if word not in taken]
        taken.update(words)
    return groups


@dataclass(frozen=True)
class Arm:
    """How near words of a kind lie in one embedding, a figure a seed."""

    name: str
    first: list[float] = field(default_factory=list)  # nearest word of the same kind, percent
    nearest: list[float] = field(default_factory=list)  # of the NEAREST, percent of the same kind
    rank: list[float] = field(default_factory=list)  # mean rank of words of the same kind
    shuffled: list[float] = field(default_factory=list)  # `nearest` with kinds dealt at random
    chance: list[float] = field(default_factory=list)  # share of such deals that do as well
    by_class: dict[str, list[float]] = field(default_factory=dict)  # `nearest` of each kind


@dataclass(frozen=True)
class PairRanks:
    """The second word's place among the first one's neighbours, a figure a seed."""

    first: str
    second: str
    before: list[int]
    after: list[int]


@dataclass(frozen=True)
class Measured:
    """All figures of this lab."""

    arms: list[Arm]
    pairs: list[PairRanks]
    neighbours: dict[str, list[tuple[str, float]]]  # WORD's, with cosines, in the first seed
    n_words: int


def segment(text: str, words: set[str]) -> list[str]:
    """Cut a text into the longest known words, and single characters between them."""
    found, place, longest = [], 0, max(map(len, words))
    while place < len(text):
        size = next(
            (size for size in range(longest, 1, -1) if text[place : place + size] in words), 1
        )
        found.append(text[place : place + size])
        place += size
    return found


def known_words() -> set[str]:
    """The words of the lexicon, of which 今天 is one, and 今天早上 two."""
    nouns = {*lexicon.NOUNS, "早上", "晚上", "周末", "每天", "现在"}
    deeds = {one.chinese for one in (*verbs.ACTIVITIES, *verbs.DEEDS, *verbs.HELPING)}
    qualities = {one.chinese for one in lexicon.THING_QUALITIES}
    kinds = {word for words in classes().values() for word in words}
    return nouns | deeds | qualities | kinds | {"喜欢", "需要", "认识", "什么", "没有"}


def read_corpus(n_sentences: int) -> tuple[Tensor, dict[str, int]]:
    """The Chinese side as padded ids, (B, T), and the vocabulary."""
    words = known_words()
    sentences = [segment(chinese, words) for chinese, _ in demo_corpus().train[:n_sentences]]
    ids = {word: PAD for sentence in sentences for word in sentence}
    ids = {word: number for number, word in enumerate(sorted(ids), start=EOS + 1)}
    longest = max(map(len, sentences))
    rows = [
        [BOS, *(ids[word] for word in sentence), EOS] + [PAD] * (longest - len(sentence))
        for sentence in sentences
    ]
    return torch.tensor(rows), ids


def scrambled(data: Tensor, draws: torch.Generator) -> Tensor:
    """The same words as often, dealt to random places: frequencies stay, company is lost."""
    places = data > EOS
    words = data[places]
    mixed = data.clone()
    mixed[places] = words[torch.randperm(len(words), generator=draws)]
    return mixed


def train(data: Tensor, vocab_size: int, steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """A small language model's embedding before and after it learns to predict the next word."""
    with seeded(seed):
        model = Decoder(
            ModelConfig(
                family="decoder",
                vocab_size=vocab_size,
                d_model=64,
                n_heads=4,
                d_ff=128,
                n_encoder_layers=0,
                n_decoder_layers=2,
                max_length=data.shape[1],
                dropout=0.0,
                norm_position="pre",
            )
        )
    before = model.embedding.table.weight.detach().clone()
    draws = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        rows = data[torch.randint(len(data), (64,), generator=draws)]
        labels = rows[:, 1:].masked_fill(rows[:, 1:] == PAD, IGNORE)
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), labels.flatten())

    fit(model.parameters(), loss, steps)
    return before, model.embedding.table.weight.detach().clone()


def cosines(vectors: Tensor) -> Tensor:
    """How alike each two vectors are, (N, N); none is compared with itself."""
    unit = F.normalize(vectors, dim=-1)
    return (unit @ unit.T).fill_diagonal_(-torch.inf)


def same_kind(alike: Tensor, kinds: Tensor, k: int) -> Tensor:
    """For each word, the share of its k nearest that are of its kind, (N,)."""
    return (kinds[alike.topk(k).indices] == kinds[:, None]).double().mean(-1)


def mean_rank(alike: Tensor, kinds: Tensor) -> float:
    """The mean place, from 1, of words of the same kind among a word's neighbours."""
    ranks = alike.argsort(descending=True).argsort() + 1
    same = (kinds[:, None] == kinds) & ~torch.eye(len(kinds), dtype=torch.bool)
    return float(ranks[same].double().mean())


def add_seed(arm: Arm, vectors: Tensor, kinds: Tensor, names: Sequence[str], seed: int) -> None:
    """Measure one embedding, and what it would give were its kinds dealt at random."""
    alike, draws = cosines(vectors), torch.Generator().manual_seed(seed)
    each = same_kind(alike, kinds, NEAREST)
    dealt = [
        float(same_kind(alike, kinds[torch.randperm(len(kinds), generator=draws)], NEAREST).mean())
        for _ in range(500)
    ]
    arm.first.append(100 * float(same_kind(alike, kinds, 1).mean()))
    arm.nearest.append(100 * float(each.mean()))
    arm.rank.append(mean_rank(alike, kinds))
    arm.shuffled.append(100 * fmean(dealt))
    arm.chance.append((1 + sum(one >= float(each.mean()) for one in dealt)) / (1 + len(dealt)))
    for number, name in enumerate(names):
        if bool((kinds == number).any()):
            arm.by_class.setdefault(name, []).append(100 * float(each[kinds == number].mean()))


def rank_of(vectors: Tensor, words: Sequence[str], first: str, second: str) -> int:
    """The second word's place, from 1, among the first one's neighbours."""
    row = cosines(vectors)[words.index(first)]
    return 1 + int((row > row[words.index(second)]).sum())


def measure_translator(settings: Settings, names: Sequence[str]) -> list[Arm]:
    """The same of the packaged translator, for the words that are one token to it."""
    subject = translator(settings.tell)
    ids: list[int] = []
    kinds: list[int] = []
    for number, words in enumerate(classes().values()):
        spelt = subject.tokenizers.source.encode_many(words)
        ids += [tokens[0] for tokens in spelt if len(tokens) == 1]
        kinds += [number for tokens in spelt if len(tokens) == 1]
    with seeded(settings.seed):
        fresh = build_model(subject.model.config)
    found = []
    for name, model in ((TRANSLATOR_BEFORE, fresh), (TRANSLATOR, subject.model)):
        table = dict(model.named_parameters())["source_embedding.table.weight"].detach()
        arm = Arm(name)
        add_seed(arm, table[ids], torch.tensor(kinds), names, settings.seed)
        found.append(arm)
    return found


def measure(settings: Settings) -> Measured:
    """Train language models on the demo corpus, and on its words without their company."""
    seeds, steps = (5, 2000) if settings.full else (3, 400)
    data, ids = read_corpus(40_000)
    groups = classes()
    words = [word for some in groups.values() for word in some]
    kinds = torch.tensor([number for number, some in enumerate(groups.values()) for _ in some])
    arms = {name: Arm(name) for name in (BEFORE, SCRAMBLED, AFTER)}
    pairs = [PairRanks(first, second, [], []) for first, second in PAIRS]
    neighbours: dict[str, list[tuple[str, float]]] = {}
    everything = list(ids)
    for seed in range(settings.seed, settings.seed + seeds):
        settings.tell(f"seed {seed}: a language model on real and on scrambled sentences")
        mixed = scrambled(data, torch.Generator().manual_seed(seed))
        before, after = (table[EOS + 1 :] for table in train(data, EOS + 1 + len(ids), steps, seed))
        lost = train(mixed, EOS + 1 + len(ids), steps, seed)[1][EOS + 1 :]
        rows = [everything.index(word) for word in words]
        for name, table in ((BEFORE, before), (SCRAMBLED, lost), (AFTER, after)):
            add_seed(arms[name], table[rows], kinds, list(groups), seed)
            if name not in neighbours:
                neighbours[name] = nearest(table, everything, WORD)
        for pair in pairs:
            pair.before.append(rank_of(before, everything, pair.first, pair.second))
            pair.after.append(rank_of(after, everything, pair.first, pair.second))
    translated = measure_translator(settings, list(groups))
    return Measured([*arms.values(), *translated], pairs, neighbours, len(everything))


def nearest(
    vectors: Tensor, words: Sequence[str], word: str, k: int = 6
) -> list[tuple[str, float]]:
    """A word's nearest neighbours among all words, with their cosines."""
    found = cosines(vectors)[words.index(word)].topk(k)
    return [
        (words[row], value)
        for row, value in zip(found.indices.tolist(), found.values.tolist(), strict=True)
    ]


def tables(m: Measured) -> tuple[Table, ...]:
    """How near the kinds lie, the neighbours of 今天, and the notes' own pairs."""
    return (
        Table(
            Words("Words of the same kind among the nearest", "最近邻中同类词的比例"),
            (
                "embedding",
                "nearest, %",
                f"{NEAREST} nearest, %",
                "kinds dealt at random, %",
                "p",
                "mean rank",
            ),
            tuple(
                (
                    arm.name,
                    plus_minus(arm.first),
                    plus_minus(arm.nearest),
                    plus_minus(arm.shuffled),
                    f"{max(arm.chance):.3f}",
                    plus_minus(arm.rank),
                )
                for arm in m.arms
            ),
        ),
        Table(
            Words(
                f"The nearest of {m.n_words} words to {WORD}, with cosines",
                f"全部 {m.n_words} 个词中与“{WORD}”最近的词及余弦",
            ),
            ("embedding", "neighbours"),
            tuple(
                (name, "  ".join(f"{word} {value:.2f}" for word, value in found))
                for name, found in m.neighbours.items()
            ),
        ),
        Table(
            Words(
                "The second word's rank among the first one's neighbours, a figure a seed",
                "后一个词在前一个词的近邻中排第几，每个种子一个数",
            ),
            ("pair", "before", "after"),
            tuple(
                (
                    f"{pair.first} – {pair.second}",
                    ", ".join(map(str, pair.before)),
                    ", ".join(map(str, pair.after)),
                )
                for pair in m.pairs
            ),
        ),
    )


def draw(m: Measured) -> Figure:
    """Left: all kinds together, by embedding. Middle: each kind. Right: 今天's neighbours."""
    figure, (left, middle, right) = new_figure(12, 4.2, ncols=3)
    for row, arm in enumerate(m.arms):
        mean, spread = mean_and_spread(arm.nearest)
        trained = arm.name in (AFTER, TRANSLATOR)
        left.barh(row, mean, xerr=spread, capsize=3, color=COLOURS[0 if trained else 7])
        left.text(mean + spread + 2, row, f"{mean:.0f}", va="center")
    left.axvline(fmean(m.arms[0].shuffled), color=COLOURS[1], linestyle="--", label="by chance")
    left.set_yticks(range(len(m.arms)), [arm.name.replace(", ", ",\n") for arm in m.arms])
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    left.set(
        xlim=(0, 109),
        xlabel=f"of the {NEAREST} nearest, of the same kind (%)",
        title="All kinds together",
    )
    left.legend(loc="lower right")
    by_name = {arm.name: arm for arm in m.arms}
    kinds = sorted(by_name[AFTER].by_class, key=lambda kind: fmean(by_name[AFTER].by_class[kind]))
    for style, name in enumerate((AFTER, BEFORE)):
        values = [fmean(by_name[name].by_class[kind]) for kind in kinds]
        middle.plot(
            values,
            range(len(kinds)),
            linestyle="",
            color=COLOURS[0 if style == 0 else 7],
            marker=MARKERS[style],
            label=name,
        )
    middle.set_yticks(range(len(kinds)), kinds)
    middle.set(xlabel=f"of the {NEAREST} nearest, of the same kind (%)", title="Kind by kind")
    middle.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    _draw_neighbours(right, m.neighbours)
    return figure


def _draw_neighbours(axes: Axes, neighbours: dict[str, list[tuple[str, float]]]) -> None:
    """Bars of cosines with their words, those before training below those after it."""
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
    """Words of a kind must be near after training alone; then the claim's own pairs."""
    by_name = {arm.name: arm for arm in m.arms}
    before, lost, after = (fmean(by_name[name].nearest) for name in (BEFORE, SCRAMBLED, AFTER))
    dealt, p = fmean(by_name[AFTER].shuffled), max(by_name[AFTER].chance)
    days, fruits, verbs_apart = (fmean(pair.after) for pair in m.pairs)
    figures = (
        f"Of a word's {NEAREST} nearest, {before:.0f} % are of its kind before training and "
        f"{after:.0f} % after ({dealt:.0f} % by chance, p = {p:.3f}); trained on the same words "
        f"without their company, {lost:.0f} %. Among {m.n_words - 1} neighbours 昨天 is on average "
        f"number {days:.0f} of 今天, 香蕉 number {fruits:.0f} of 苹果, and 跑步, which should lie "
        f"far, number {verbs_apart:.0f} of 吃."
    )
    figures_zh = (
        f"一个词最近的 {NEAREST} 个词里，同类词训练前占 {before:.0f}%，训练后占 {after:.0f}%"
        f"（随机分类为 {dealt:.0f}%，p = {p:.3f}）；把词打乱、只留词频再训练，则占 {lost:.0f}%。"
        f"在 {m.n_words - 1} 个近邻中，“昨天”平均排在“今天”的第 {days:.0f} 位，"
        f"“香蕉”排在“苹果”的第 {fruits:.0f} 位，"
        f"而本该离得远的“跑步”排在“吃”的第 {verbs_apart:.0f} 位。"
    )
    # twenty points are the least that counts as coming together
    if p > 0.01 or after < before + 20 or lost > before + 20:
        return Verdict("does not hold", Words(figures, figures_zh))
    # near: among the ten nearest on average; far: in the farther half
    if max(days, fruits) <= 10 and verbs_apart > m.n_words / 2:
        return Verdict("holds", Words(figures, figures_zh))
    return Verdict(
        "holds when",
        Words(
            "Holds when near means used alike: kinds of word meet, but not each pair by its meaning. "
            + figures,
            "这里的“近”指用法相近：同类词会聚到一起，但并非每一对词都按词义远近排列。" + figures_zh,
        ),
    )


LAB = Lab(
    number=16,
    name="embeddings",
    title=Words("今天 comes to lie near 昨天", "“今天”怎样靠近“昨天”"),
    claim=Words(
        "Nobody sets the vectors of words. They begin at random, and learning to predict the next "
        "word moves words of a kind together: 今天 and 昨天, 苹果 and 香蕉, "
        "but not 吃 (eat) and 跑步 (run).",
        "词向量不是人工设定的：起初是随机数，模型在学着预测下一个词的过程中，"
        "把同类的词聚到一起，如“今天”与“昨天”、“苹果”与“香蕉”；而“吃”与“跑步”则离得远。",
    ),
    experiment=Words(
        "A small language model learns the Chinese side of the packaged corpus. Fifteen kinds of "
        "word (times, names, food …) are looked up among each word's nearest neighbours by cosine: "
        "before training, after it, and after the same training on words dealt to random places. "
        "Kinds dealt at random 500 times give chance. The packaged translator is a second witness.",
        "让一个小语言模型学习内置语料的中文部分，再看十五类词（时间、人名、食物……）"
        "按余弦相似度的最近邻里有多少是同类：训练前、训练后，以及在打乱位置的同样词语上"
        "训练后各看一次。把类别随机重分 500 次作为机会水平；内置翻译模型的词向量作为旁证。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
