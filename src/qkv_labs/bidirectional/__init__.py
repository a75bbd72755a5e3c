"""Lab 15: whether a word's vector tells its sense, where what decides stands before or after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import ModelConfig
from qkv.inspect.style import COLOURS, new_figure
from qkv.model import Decoder, Encoder
from qkv_labs.glossary import in_chinese
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, mean_and_spread, n_weights, plus_minus, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CASES = ("before", "after")
# S: who, A: how, X: the word, C: the words that decide; all sentences have twelve words
FRAMES = {
    "bank": {
        "before": "S saw the C and the C then the X looked A",
        "after": "S said the X looked A by the C and the C",
        "both": "S saw the C then the X looked A by the C",
    },
    "苹果": {
        "before": "S 说 到 C 和 C 以后 觉得 这个 X 很 A",
        "after": "S 觉得 这个 X 很 A 因为 有 C 和 C 。",
        "both": "S 说 到 C 以后 觉得 这个 X 很 A 有 C",
    },
}
WHO = {"bank": "she he we they Anna David", "苹果": "他 她 我们 他们 小明 小红"}
HOW = {"bank": "nice old new big quiet good", "苹果": "好 贵 新 大 漂亮 便宜"}
CUES = {
    "bank": ("river water boat fish", "money loan cash card"),
    "苹果": ("香蕉 果汁 橙子 果园", "屏幕 电池 键盘 软件"),
}
PLAIN = {"bank": ("shore", "lender"), "苹果": ("桃子", "平板")}  # words with one of the senses
PAD, BOS, EOS, MASK = range(4)
# Hidden words teach an encoder more slowly than next words do a decoder: with six deciding words a
# sense, some encoders had not found every sense in as many steps (86 % on average, decided after).
N_CUES = 4
HIDDEN_SHARE = 0.3
Net = Encoder | Decoder


@dataclass(frozen=True)
class Sentence:
    """The draws that make a sentence."""

    word: str
    case: str
    sense: int
    plain: bool  # whether an unambiguous word stands in the place of the word
    who: int
    how: int
    cues: tuple[int, int]

    @property
    def text(self) -> list[str]:
        """The sentence, word by word."""
        cues = iter(self.cues)
        fill = {
            "S": lambda: WHO[self.word].split()[self.who],
            "A": lambda: HOW[self.word].split()[self.how],
            "X": lambda: PLAIN[self.word][self.sense] if self.plain else self.word,
            "C": lambda: CUES[self.word][self.sense].split()[next(cues)],
        }
        frame = FRAMES[self.word][self.case].split()
        return [fill[part]() if part in fill else part for part in frame]

    @property
    def place(self) -> int:
        """Where the word stands among the tokens, of which the first is BOS."""
        return FRAMES[self.word][self.case].split().index("X") + 1


Probed = dict[tuple[str, str], list[Sentence]]  # by word and case: half to fit, half to test


@dataclass(frozen=True)
class Probe:
    """How often a line through the vectors tells the sense, in percent, a figure a seed."""

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
    """All figures of this lab."""

    probes: list[Probe]
    moved: list[Moved]
    parameters: dict[str, int]
    n_tested: int  # sentences of each word and case


def vocabulary() -> dict[str, int]:
    """Every word of both grammars, after the special tokens."""
    lines = [line for frames in FRAMES.values() for line in frames.values()]
    lines += [*WHO.values(), *HOW.values(), *FRAMES]
    lines += [line for both in (*CUES.values(), *PLAIN.values()) for line in both]
    words = sorted({word for line in lines for word in line.split()} - set("SAXC"))
    return {word: number for number, word in enumerate(words, start=MASK + 1)}


def all_sentences(word: str, case: str) -> list[Sentence]:
    """Everything that the grammar can say of a word in a case."""
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
    """Sentences to train on, and others, all with the ambiguous word, to probe with.

    The probe is fitted with some deciding words and tested with others: it must find a sense, and
    not a word, which even random weights would carry along.
    """
    train: list[Sentence] = []
    probed: Probed = {}
    for word, frames in FRAMES.items():
        for case in frames:
            drawn = random.sample(every := all_sentences(word, case), len(every))
            held: set[Sentence] = set()
            if case in CASES:
                ambiguous = [one for one in drawn if not one.plain]
                fitted = [one for one in ambiguous if max(one.cues) < N_CUES // 2][:n_probed]
                tested = [one for one in ambiguous if min(one.cues) >= N_CUES // 2][:n_probed]
                probed[word, case] = fitted + tested
                held = {*fitted, *tested}
            train += [one for one in drawn if one not in held]
    random.shuffle(train)
    return train, probed


def tokens(sentences: Sequence[Sentence]) -> Tensor:
    """Token ids with BOS before, (B, 13)."""
    ids = vocabulary()
    return torch.tensor([[BOS, *(ids[word] for word in one.text)] for one in sentences])


def build(model: str) -> Net:
    """An encoder or a decoder, alike in all but what may be seen and what stands on top."""
    size = {
        "vocab_size": MASK + 1 + len(vocabulary()),
        "d_model": 64,
        "n_heads": 4,
        "d_ff": 128,
        "positions": "learned",
        "max_length": 13,
        "norm_position": "pre",
        "dropout": 0.0,
        "embedding_scale": False,
        "tie": "output",
        "activation": "gelu",
    }
    if model == "encoder":
        layers = {"family": "encoder", "n_encoder_layers": 2, "n_decoder_layers": 0}
        return Encoder(ModelConfig.from_dict({**size, **layers, "head": "masked"}))
    layers = {"family": "decoder", "n_encoder_layers": 0, "n_decoder_layers": 2}
    return Decoder(ModelConfig.from_dict({**size, **layers}))


def train(net: Net, data: Tensor, steps: int, seed: int) -> None:
    """Hidden words for an encoder, next words for a decoder: same sentences, same steps."""
    draws = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        rows = data[torch.randint(len(data), (32,), generator=draws)]
        if isinstance(net, Decoder):
            return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        hidden = torch.rand(rows.shape, generator=draws) < HIDDEN_SHARE
        hidden[:, 0] = False
        return F.cross_entropy(net(rows.masked_fill(hidden, MASK))[hidden], rows[hidden])

    fit(net.parameters(), loss, steps)


def probe(vectors: Tensor, senses: Tensor, n_fit: int) -> float:
    """Fit a line by ridge regression to the first vectors; percent right on the others."""
    vectors = vectors.double()
    vectors = (vectors - vectors[:n_fit].mean(0)) / (vectors[:n_fit].std(0) + 1e-6)
    known, wanted = vectors[:n_fit], 2.0 * senses[:n_fit].double() - 1
    ridge = 0.1 * n_fit * torch.eye(vectors.shape[1], dtype=torch.float64)
    line = torch.linalg.solve(known.T @ known + ridge, known.T @ (wanted - wanted.mean()))
    said = vectors[n_fit:] @ line + wanted.mean() > 0
    return 100 * float((said == senses[n_fit:].bool()).double().mean())


@torch.inference_mode()
def vectors_at(net: Net, sentences: Sequence[Sentence], at: str) -> Tensor:
    """The last layer's vectors of the word itself, or of the sentence's last word, (B, D)."""
    place = sentences[0].place if at == "the word" else -1
    return net.eval().hidden(tokens(sentences))[:, place]


def look_at(net: Net, name: str, trained: bool, probed: Probed) -> tuple[list[Probe], list[Moved]]:
    """Probe a model in each case; and exchange what decides for the other sense's words."""
    probes, moved = [], []
    for case in CASES:
        distances = []
        for word in FRAMES:
            sentences = probed[word, case]
            senses = torch.tensor([one.sense for one in sentences])
            for at in ("the word", "the last word"):
                right = probe(vectors_at(net, sentences, at), senses, len(sentences) // 2)
                probes.append(Probe(name, trained, at, word, case, [right]))
            own = vectors_at(net, sentences, "the word")
            twins = [replace(one, sense=1 - one.sense) for one in sentences]
            apart = (own - vectors_at(net, twins, "the word")).norm(dim=-1) / own.norm(dim=-1)
            distances.append(float(apart.mean()))
        moved.append(Moved(name, case, [sum(distances) / len(distances)]))
    return probes, moved if trained else []


def measure(settings: Settings) -> Measured:
    """Train both on the same sentences, and probe both on others."""
    seeds, steps, n_probed = (5, 2500, 200) if settings.full else (3, 800, 200)
    probes: dict[tuple[str, bool, str, str, str], Probe] = {}
    moved: dict[tuple[str, str], Moved] = {}
    parameters = {}
    for seed in range(settings.seed, settings.seed + seeds):
        sentences, probed = split(Random(seed), n_probed)
        data = tokens(sentences)
        for name in ("encoder", "decoder"):
            settings.tell(f"seed {seed}: {name}")
            with seeded(seed):
                net = build(name)
                parameters[name] = n_weights(net)
                found, _ = look_at(net, name, False, probed)
                train(net, data, steps, seed)
                after, shifts = look_at(net, name, True, probed)
            for one in found + after:
                key = (one.model, one.trained, one.at, one.word, one.case)
                probes.setdefault(key, replace(one, accuracies=[])).accuracies.extend(
                    one.accuracies
                )
            for shift in shifts:
                row = moved.setdefault((name, shift.case), replace(shift, distances=[]))
                row.distances.extend(shift.distances)
    return Measured(list(probes.values()), list(moved.values()), parameters, n_probed)


def accuracies(
    m: Measured, model: str, case: str, at: str = "the word", trained: bool = True
) -> list[float]:
    """The figures of a model in a case, of both words and all seeds."""
    return [
        value
        for one in m.probes
        for value in one.accuracies
        if (one.model, one.case, one.at, one.trained) == (model, case, at, trained)
    ]


def tables(m: Measured) -> tuple[Table, ...]:
    """Senses told at the word and at the sentence's end; and how far the word's vector moves."""
    arms = [("encoder", True), ("decoder", True), ("encoder", False), ("decoder", False)]
    seen = [
        (at, word, case)
        for at in ("the word", "the last word")
        for word in FRAMES
        for case in CASES
    ]
    cells = {
        (one.model, one.trained, one.at, one.word, one.case): plus_minus(one.accuracies)
        for one in m.probes
    }
    heads = [f"{model}, {'trained' if trained else 'random weights'}" for model, trained in arms]
    sizes = ", ".join(f"{name} {size:,}" for name, size in m.parameters.items())
    sizes_zh = "，".join(f"{in_chinese(name)} {size:,}" for name, size in m.parameters.items())
    return (
        Table(
            Words(
                f"Senses told by a linear probe, % of {m.n_tested} unseen sentences (chance 50); "
                f"weights: {sizes}",
                f"线性探针判对词义的比例，{m.n_tested} 个没见过的句子，%（随机猜测为 50）；"
                f"参数量：{sizes_zh}",
            ),
            ("vector of", "word", "decided", *heads),
            tuple(
                (
                    at,
                    word,
                    case,
                    *(cells[model, trained, at, word, case] for model, trained in arms),
                )
                for at, word, case in seen
            ),
        ),
        Table(
            Words(
                "How far the word's vector moves when the deciding words are exchanged",
                "换掉决定词义的词之后，该词的向量移动多少",
            ),
            ("decided", "model", "distance / length"),
            tuple((one.case, one.model, plus_minus(one.distances, 3)) for one in m.moved),
        ),
    )


def draw(m: Measured) -> Figure:
    """Bars of both models, by the side on which the deciding words stand."""
    figure, (left, right) = new_figure(9.6, 3.8, ncols=2, sharey=True)
    panels = (
        (left, "the word", "The sense, read at the word itself"),
        (right, "the last word", "The sense, read at the sentence's end"),
    )
    for axes, at, title in panels:
        for style, model in enumerate(("encoder", "decoder")):
            for trained in (True, False):
                figures = [
                    mean_and_spread(accuracies(m, model, case, at, trained)) for case in CASES
                ]
                places = [
                    case + (style - 0.5) * 0.4 + (0 if trained else 0.1) - 0.05
                    for case in range(len(CASES))
                ]
                means, spreads = zip(*figures, strict=True)
                if trained:
                    axes.bar(
                        places,
                        means,
                        0.32,
                        yerr=spreads,
                        capsize=3,
                        color=COLOURS[style],
                        hatch="//" if style else None,
                        edgecolor="white",
                        label=model,
                    )
                else:
                    axes.scatter(
                        places,
                        means,
                        color=COLOURS[6],
                        marker="x",
                        zorder=3,
                        label="random weights" if style else None,
                    )
        axes.axhline(50, color=COLOURS[7], linestyle="--", linewidth=1)
        axes.text(0.45, 51, "chance", fontsize=8, color="#666666", ha="center")
        axes.set_xticks(range(len(CASES)), [f"decided {case} the word" for case in CASES])
        axes.grid(axis="x", visible=False)
        axes.set(title=title, ylim=(0, 109))
    left.set_ylabel("senses told rightly (%)")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def judge(m: Measured) -> Verdict:
    """The encoder must tell both cases; the decoder decides whether a condition is needed."""
    means = {
        (model, case): mean_and_spread(accuracies(m, model, case))[0]
        for model in ("encoder", "decoder")
        for case in CASES
    }
    before, after = (means["encoder", case] - means["decoder", case] for case in CASES)
    late = mean_and_spread(accuracies(m, "decoder", "after", "the last word"))[0]
    figures = (
        f"Decided by words after it, the sense is told at the word by the encoder in "
        f"{means['encoder', 'after']:.0f} % and by the decoder in "
        f"{means['decoder', 'after']:.0f} % (chance 50); decided before it, in "
        f"{means['encoder', 'before']:.0f} % and {means['decoder', 'before']:.0f} %. At the "
        f"sentence's end the decoder tells {late:.0f} % of the former."
    )
    figures_zh = (
        f"决定词义的词在后面时，编码器在该词处判对 {means['encoder', 'after']:.0f}%，"
        f"解码器 {means['decoder', 'after']:.0f}%（随机猜测为 50%）；在前面时分别为 "
        f"{means['encoder', 'before']:.0f}% 和 {means['decoder', 'before']:.0f}%。"
        f"读到句末，解码器在前一种情形下判对 {late:.0f}%。"
    )
    # ten points apart, and half-way from guessing to knowing, are the least that counts
    if after < 10 or means["encoder", "after"] < 75:
        return Verdict("does not hold", Words(figures, figures_zh))
    if before >= 10:
        return Verdict("holds", Words(figures, figures_zh))
    return Verdict(
        "holds when",
        Words(
            "Holds when what decides the sense comes after the word; where it comes before, left "
            "context alone does as well. " + figures,
            "决定词义的词出现在后面时才成立；若出现在前面，只看左边并不逊色。" + figures_zh,
        ),
    )


LAB = Lab(
    number=15,
    name="bidirectional",
    title=Words("bank and 苹果: reading both ways", "bank 与“苹果”：双向阅读"),
    claim=Words(
        "To understand a word, a model must see what stands on both sides of it. An encoder does, "
        "so its vector of an ambiguous word takes on the sense; a decoder sees the left alone.",
        "理解一个词必须同时看它左右两边。编码器能双向看，所以歧义词的向量会随语境取不同的意思；"
        "解码器只能看左边。",
    ),
    experiment=Words(
        "A small grammar in English and Chinese uses bank and 苹果 in two senses, decided by words "
        "before or after. An encoder (hidden words) and a decoder (next words) of like layers "
        "learn the same sentences for the same steps. A linear probe then reads the sense from the "
        "word's own vector; it is fitted with some deciding words and tested with others, so that "
        "it must find the sense and not a word. Random weights are the control; several seeds.",
        "用一套中英文小语法造句，bank 和“苹果”各有两个意思，由前面或后面的词决定。"
        "层数和宽度相同的编码器（完形填空）与解码器（预测下一个词）在相同的句子上训练相同的步数，"
        "再用线性探针从该词自己的向量里读出词义；拟合与测试所用的线索词不同，"
        "所以探针要找到的是词义，而不是某个具体的词。随机权重作对照，跑几个种子。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
