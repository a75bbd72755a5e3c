"""Lab 7: what residual connections do for deep stacks, and whether the output stays the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model import Encoder, Residual
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_WORDS, D_MODEL, LENGTH = 12, 32, 8
KINDS = ("post", "pre", "without")
BARE = "bare"  # without a norm too; of fresh stacks only
NAMES = {
    "post": "residual, post-norm",
    "pre": "residual, pre-norm",
    "without": "no residual",
    BARE: "no residual, no norm",
}
DEPTHS = (2, 4, 8, 16, 32)  # of fresh stacks
TAUGHT = (1, 4, 12)  # of trained stacks
RATES = (2e-3, 6e-3)
FADED = 0.1  # a gradient below this share of the residual stacks' has vanished
AHEAD = 0.2  # by so much of all answers residual connections must be ahead
KEPT = 0.5  # a cosine above this: the output is still the input
ALIKE = 0.2  # by so much more cosine than with residual connections tokens have become alike


class Rewritten(Residual):
    """norm(f(x)): what a post-norm sublayer is without its residual connection."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The sublayer's output in place of its input."""
        return self.norm(self.dropout(sublayer(x)))


@dataclass(frozen=True)
class Fresh:
    """A kind of stack at initialisation, by depth."""

    kind: str
    first: list[float]  # norm of the first block's gradient, mean of seeds
    last: list[float]  # norm of the last block's
    alike: list[float]  # cosine of different tokens' vectors at the end: 1 when all are the same


@dataclass(frozen=True)
class Trained:
    """A kind of stack after training, by depth: right answers a seed, and its learning rate."""

    kind: str
    accuracies: list[list[float]]
    rates: list[float]
    before: list[float]  # of the deepest: cosine of the stream to its input, layer by layer
    after: list[float]


@dataclass(frozen=True)
class Measured:
    """Stacks with residual connections, post- and pre-norm, and without."""

    fresh: list[Fresh]
    trained: list[Trained]
    guess: float  # right answers of one who names any word of the sequence


def build(kind: str, n_layers: int) -> Encoder:
    """A stack of this kind and depth; all have the same weights to learn but a last norm."""
    model = Encoder(
        ModelConfig(
            family="encoder",
            positions="rotary",
            vocab_size=N_WORDS,
            d_model=D_MODEL,
            n_heads=4,
            d_ff=2 * D_MODEL,
            n_encoder_layers=n_layers,
            max_length=LENGTH,
            head="token",
            n_labels=N_WORDS,
            embedding_scale=False,
            dropout=0.0,
            norm_position="pre" if kind == "pre" else "post",
        )
    )
    if kind in ("without", BARE):
        for module in model.modules():
            if isinstance(module, Residual):
                module.__class__ = Rewritten
                module.norm = nn.Identity() if kind == BARE else module.norm
    return model


def task(rows: int) -> tuple[Tensor, Tensor]:
    """Random words, and at each place but the first the word before."""
    words = torch.randint(N_WORDS, (rows, LENGTH))
    return words, words[:, :-1]


def loss_of(model: Encoder) -> Tensor:
    """Cross-entropy on a fresh batch."""
    words, before = task(32)
    return F.cross_entropy(model(words)[:, 1:].flatten(0, 1), before.flatten())


@torch.no_grad()
def right(model: Encoder) -> float:
    """The share of right answers on new words."""
    words, before = task(300)
    return float((model(words)[:, 1:].argmax(dim=-1) == before).double().mean())


@torch.no_grad()
def stream(model: Encoder) -> list[Tensor]:
    """The residual stream of a batch: the first block's input, then each block's output."""
    states: list[Tensor] = []
    first = model.encoder.blocks[0].register_forward_pre_hook(lambda _, x: states.append(x[0]))
    hooks = [
        block.register_forward_hook(lambda *x: states.append(x[2]))
        for block in model.encoder.blocks
    ]
    model.hidden(task(64)[0])
    for hook in [first, *hooks]:
        hook.remove()
    return states


def kept(states: list[Tensor]) -> list[float]:
    """Cosine of each state to the input, token by token, without what all tokens share."""
    centred = [state - state.mean(dim=(0, 1)) for state in states]
    return [float(F.cosine_similarity(x, centred[0], dim=-1).mean()) for x in centred]


def alike(state: Tensor) -> float:
    """Mean cosine of two tokens of a sequence, (B, T, D): 1 when attention made all the same."""
    unit = F.normalize(state, dim=-1)
    n = state.shape[1]
    cosines = unit @ unit.transpose(1, 2)
    return float((cosines.sum() / len(state) - n) / (n * (n - 1)))


def gradients(model: Encoder) -> tuple[float, float]:
    """Norms of the loss's gradient in the first block and in the last."""
    model.zero_grad()
    loss_of(model).backward()
    norms = [
        float(torch.stack([x.grad.norm() for x in block.parameters() if x.grad is not None]).norm())
        for block in model.encoder.blocks
    ]
    return norms[0], norms[-1]


def measure_fresh(kind: str, seed: int) -> Fresh:
    """Gradients and likeness at initialisation, mean of three draws."""
    first, last, same = [], [], []
    for depth in DEPTHS:
        torch.manual_seed(seed)
        models = [build(kind, depth) for _ in range(3)]
        norms = [gradients(model) for model in models]
        first.append(fmean(a for a, _ in norms))
        last.append(fmean(b for _, b in norms))
        same.append(fmean(alike(stream(model)[-1]) for model in models))
    return Fresh(kind, first, last, same)


def taught(kind: str, depth: int, seed: int, rate: float, steps: int) -> tuple[float, Encoder]:
    """A trained stack, and how often it is right."""
    torch.manual_seed(seed)
    model = build(kind, depth)
    fit(model.parameters(), lambda step: loss_of(model), steps, lr=rate)
    return right(model), model


def measure_trained(kind: str, settings: Settings) -> Trained:
    """Each depth with the better of the learning rates, chosen on the first seed."""
    steps, n_more = (400, 4) if settings.full else (150, 2)
    accuracies, rates = [], []
    for depth in TAUGHT:
        settings.tell(f"training: {kind}, {depth} layers")
        tried = [taught(kind, depth, settings.seed, rate, steps) for rate in RATES]
        best = max(range(len(RATES)), key=lambda i: tried[i][0])
        found, model = tried[best]
        more = [
            taught(kind, depth, settings.seed + i, RATES[best], steps)[0]
            for i in range(1, n_more + 1)
        ]
        accuracies.append([found, *more])
        rates.append(RATES[best])
    torch.manual_seed(settings.seed)
    before = kept(stream(build(kind, TAUGHT[-1])))
    return Trained(kind, accuracies, rates, before, kept(stream(model)))


def measure(settings: Settings) -> Measured:
    """Fresh stacks of all depths, then trained ones."""
    with torch.random.fork_rng():
        fresh = [measure_fresh(kind, settings.seed) for kind in (*KINDS, BARE)]
        trained = [measure_trained(kind, settings) for kind in KINDS]
        torch.manual_seed(settings.seed)
        words, before = task(1000)
        guess = (words[:, None, :] == before[:, :, None]).double().mean()
    return Measured(fresh, trained, float(guess))


def tables(m: Measured) -> tuple[Table, ...]:
    """Gradients of fresh stacks, right answers of trained ones, and what is left of the input."""
    fresh = tuple(
        (
            NAMES[one.kind],
            *(f"{x:.2g}" for x in one.first),
            f"{one.alike[0]:.2f}",
            f"{one.alike[2]:.2f}",
        )
        for one in m.fresh
    )
    learnt = tuple(
        (NAMES[one.kind], *(plus_minus([100 * x for x in seeds]) for seeds in one.accuracies))
        for one in m.trained
    )
    places = [0, TAUGHT[-1] // 4, TAUGHT[-1] // 2, TAUGHT[-1]]
    left = tuple(
        (NAMES[one.kind], when, *(f"{cosines[place]:.2f}" for place in places))
        for one in m.trained
        for when, cosines in (("fresh", one.before), ("trained", one.after))
    )
    return (
        Table(
            Words(
                "Fresh stacks: norm of the first block's gradient by depth; and how alike the "
                f"vectors of different tokens come out of {DEPTHS[0]} and {DEPTHS[2]} layers "
                "(1: the same)",
                "未训练的网络：第一层梯度的范数（按深度）；以及经过 "
                f"{DEPTHS[0]} 层和 {DEPTHS[2]} 层之后，不同词的向量有多相似（1 为完全相同）",
            ),
            (
                "stack",
                *(f"depth {depth}" for depth in DEPTHS),
                f"alike, {DEPTHS[0]}",
                f"alike, {DEPTHS[2]}",
            ),
            fresh,
        ),
        Table(
            Words(
                f"Trained to name the word before: right answers in % (naming any word of the "
                f"sequence: {100 * m.guess:.0f})",
                f"训练“说出前一个词”：正确率，%（随便说句中一个词：{100 * m.guess:.0f}）",
            ),
            ("stack", *(f"depth {depth}" for depth in TAUGHT)),
            learnt,
        ),
        Table(
            Words(
                f"Cosine of the stream to its input, by layer, in stacks of {TAUGHT[-1]} layers",
                f"{TAUGHT[-1]} 层网络中，各层向量与输入的余弦",
            ),
            ("stack", "when", *(f"after {place}" for place in places)),
            left,
        ),
    )


def draw(m: Measured) -> Figure:
    """The gradient that arrives below, what depth costs, and what is left of the input."""
    from qkv.inspect.draw import COLOURS, MARKERS, new_figure

    figure, (gradient, accuracy, cosine) = new_figure(11.5, 3.6, nrows=1, ncols=3)
    look = {
        kind: {"color": COLOURS[i], "marker": MARKERS[i], "label": name}
        for i, (kind, name) in enumerate(NAMES.items())
    }
    for fresh in m.fresh:
        gradient.plot(DEPTHS, fresh.first, **look[fresh.kind])
    for one in m.trained:
        accuracy.plot(TAUGHT, [100 * fmean(x) for x in one.accuracies], **look[one.kind])
        for depth, seeds in zip(TAUGHT, one.accuracies, strict=True):
            accuracy.plot(
                [depth] * len(seeds),
                [100 * x for x in seeds],
                linestyle="",
                alpha=0.4,
                **{**look[one.kind], "label": None},
            )
        fresh_look = {**look[one.kind], "label": None, "markerfacecolor": "white"}
        cosine.plot(one.before, linestyle=":", **fresh_look)
        cosine.plot(one.after, **look[one.kind])
    gradient.set(
        xscale="log",
        yscale="log",
        xlabel="layers",
        ylabel="norm of the first block's gradient",
        title="Fresh: the gradient that arrives",
    )
    gradient.minorticks_off()
    gradient.set_xticks(DEPTHS, [str(depth) for depth in DEPTHS])
    gradient.legend(loc="lower left")
    accuracy.axhline(100 * m.guess, color=COLOURS[7], linestyle=":")
    accuracy.set(
        xlabel="layers",
        ylabel="right (%), line: mean of seeds",
        ylim=(0, 104),
        xticks=TAUGHT,
        title="Trained: right answers (dotted: a guess)",
    )
    cosine.axhline(0, color=COLOURS[7], linewidth=0.8)
    cosine.set(
        xlabel="layer",
        ylabel="cosine of the stream to its input",
        title="What is left of the input (dotted, hollow: fresh)",
    )
    return figure


def judge(m: Measured) -> Verdict:
    """Deep down: are residual stacks ahead, and is their output another than their input?"""
    trained = {one.kind: one for one in m.trained}
    right = {kind: fmean(one.accuracies[-1]) for kind, one in trained.items()}
    ends = {kind: one.after[-1] for kind, one in trained.items()}
    ahead = [kind for kind in ("post", "pre") if right[kind] >= right["without"] + AHEAD]
    sound = [kind for kind in ahead if ends[kind] < KEPT]
    first = {one.kind: one.first[-1] for one in m.fresh}
    numbers = _numbers(m, right, ends, first)
    if not sound:
        return Verdict("does not hold", numbers)
    if len(sound) == 1:
        here = Words(*{"post": ("post", "后"), "pre": ("pre", "前")}[sound[0]])
        return Verdict(
            "holds when",
            Words(
                f"Only with {here.en}-norm, at this depth. " + numbers.en,
                f"在这一深度上，仅当采用{here.zh}归一化时成立。" + numbers.zh,
            ),
        )
    if first["without"] < FADED * min(first["post"], first["pre"]):
        return Verdict("holds", numbers)
    return Verdict("holds when", _but_for_gradients(m, numbers, first))


def _but_for_gradients(m: Measured, numbers: Words, first: dict[str, float]) -> Words:
    """Depth needs residual connections here, but the gradient came through norms without them."""
    without, post = (
        next(one.alike[0] for one in m.fresh if one.kind == kind) for kind in ("without", "post")
    )
    faded = first[BARE] < FADED * min(first["post"], first["pre"])
    lost = without >= post + ALIKE
    en = "only where there is no norm either" if faded else "not at all"
    zh = "只有连归一化也没有时才成立" if faded else "并不成立"
    return Words(
        f"As to training at this depth; as to the gradient {en}. {numbers.en} After {DEPTHS[0]} "
        f"fresh layers the vectors of different tokens have a cosine of {without:.2f} without "
        f"residual connections and of {post:.2f} with them (post-norm)"
        f"{': what is lost is what tells tokens apart' if lost else ''}.",
        f"就这一深度能否训练好而言成立；就梯度而言，{zh}。{numbers.zh}未训练的网络经过 "
        f"{DEPTHS[0]} 层之后，不同词的向量之间的余弦，没有残差时为 {without:.2f}，"
        f"有残差时（后归一化）为 {post:.2f}{'：丢掉的是词与词的区别' if lost else ''}。",
    )


def _numbers(
    m: Measured, right: dict[str, float], ends: dict[str, float], first: dict[str, float]
) -> Words:
    post, pre, without = (f"{100 * right[kind]:.0f} %" for kind in KINDS)
    one, two, three, four = (f"{first[kind]:.2g}" for kind in (*KINDS, BARE))
    return Words(
        f"With {TAUGHT[-1]} layers, {post} (post-norm) and {pre} (pre-norm) of the answers are "
        f"right, without residual connections {without}, and the output's cosine to the input is "
        f"{ends['post']:.2f} and {ends['pre']:.2f}. Of {DEPTHS[-1]} fresh layers the first gets a "
        f"gradient of {one} and {two}, without residual connections {three}, without norms too "
        f"{four}.",
        f"{TAUGHT[-1]} 层时，有残差的后归一化和前归一化网络答对 {post} 和 {pre}，没有残差的答对 "
        f"{without}；前两者的输出与输入的余弦为 {ends['post']:.2f} 和 {ends['pre']:.2f}。"
        f"{DEPTHS[-1]} 层的未训练网络里，第一层得到的梯度为 {one} 和 {two}，没有残差时为 {three}，"
        f"连归一化也没有时为 {four}。",
    )


LAB = Lab(
    number=7,
    name="residual",
    title=Words("Residual connections: revising, not rewriting", "残差连接：修改，而不是重写"),
    claim=Words(
        "A residual connection is a fast lane for gradients, so that very deep stacks can be "
        "trained; and although every layer adds its input, the last output is not the first input "
        "over again.",
        "残差连接让梯度有捷径可走，所以很深的网络也训练得动；每层虽然都把输入加了回来，"
        "最后的输出却不会和最初的输入一个样。",
    ),
    experiment=Words(
        "Encoders with x + f(norm(x)), with norm(x + f(x)), and with norm(f(x)), which has no "
        "residual connection; fresh also f(x), with neither. Of fresh stacks we take the first "
        f"block's gradient at {DEPTHS[0]} to {DEPTHS[-1]} layers, the mean of three draws. Stacks "
        f"of {', '.join(map(str, TAUGHT))} layers, {D_MODEL} wide, learn to name the word before "
        "in as many steps, each with the better of two learning rates (chosen on the first of "
        "three seeds, five with --full), and we count right answers on new words. We also follow "
        "the cosine of each token's vector to its input through the layers, fresh and trained.",
        "比较三种编码器：x + f(norm(x))、norm(x + f(x))，以及没有残差的 norm(f(x))；"
        f"未训练时另加残差和归一化都没有的 f(x)，测量 {DEPTHS[0]}～{DEPTHS[-1]} "
        "层网络第一层的梯度，取三次初始化的平均。"
        f"再让宽 {D_MODEL}、深 {'、'.join(map(str, TAUGHT))} 层的网络以同样的步数学习"
        "“说出前一个词”，各取两种学习率中较好的一种（由三个随机种子中的第一个选定，"
        "加 --full 共五个种子），统计新句子上的正确率。"
        "另外逐层跟踪每个词的向量与其输入的余弦，训练前后各测一次。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
