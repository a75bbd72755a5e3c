"""Three ways to translate with equal parameters: encoder-decoder, decoder-only, prefix LM."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from qkv.config import DecodeConfig, ModelConfig, TokenizerConfig
from qkv.data import IGNORE, EncodedPairs, Indices, Ragged, Specials, padded_batch
from qkv.decode import complete, generate
from qkv.evaluate.scores import bleu
from qkv.model import Decoder, EncoderDecoder, Layout, build_model, equation, fast, use_path
from qkv.text import Tokenizer, train_tokenizer
from qkv_labs.families_language import FEW, MORE, language
from qkv_labs.families_rows import joined, prefix_mask, reading, seeing
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, mean_and_spread, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = ("encoder-decoder", "prefix LM", "decoder-only")
RATES = (5e-3, 1e-2)  # of learning; each family takes the one that suits it
COUNTED = 8  # sentences whose products are counted
LONGEST = 40  # tokens of a translation


@dataclass(frozen=True)
class Work:
    """Texts as ids, the models' sizes, and how long each learns."""

    train: EncodedPairs
    valid: EncodedPairs
    held_out: EncodedPairs
    tokenizer: Tokenizer
    base: ModelConfig
    steps: int = 450
    rows: int = 20
    lr: float = RATES[0]

    @property
    def special(self) -> Specials:
        """The ids that are not text."""
        return Specials(self.base.pad_id, self.base.bos_id, self.base.eos_id)


@dataclass(frozen=True)
class Arm:
    """One family, a figure a seed."""

    name: str
    parameters: int
    lr: float  # chosen on validation sentences
    exact: list[float]  # percent of held-out sentences
    bleu: list[float]
    loss: list[float]  # nats a target token
    train_seconds: list[float]  # CPU
    decode_ms: list[float]  # CPU, a sentence
    megaflops: list[float]  # of matrix products, a sentence decoded


@dataclass(frozen=True)
class Measured:
    """What the lab found, in the order of `ARMS`."""

    sentences: int  # seen in training, with repeats
    target_tokens: int  # of them, by the first seed
    arms: list[Arm]


def translation(full: bool) -> Work:
    """A few patterns of the packaged corpus, and a small encoder-decoder."""
    text = language(MORE if full else FEW, each=3000)
    lines = [line for pair in text.train for line in pair]
    tokenizer = train_tokenizer(lines, TokenizerConfig(vocab_size=900 if full else 700))
    layers = 2 if full else 1
    base = ModelConfig(
        vocab_size=len(tokenizer),
        d_model=64,
        n_heads=4,
        d_ff=128,
        n_encoder_layers=layers,
        n_decoder_layers=layers,
        dropout=0.0,
        max_length=96,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
    )
    train, valid, test = (_encoded(tokenizer, part) for part in (text.train, text.valid, text.test))
    work = Work(train, valid, test, tokenizer, base)
    return replace(work, steps=1000) if full else work


def _encoded(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> EncodedPairs:
    sides = (Ragged.of(tokenizer.encode_many(side)) for side in zip(*pairs, strict=True))
    return EncodedPairs(*sides)


def count(model: torch.nn.Module) -> int:
    """Parameters, shared ones once."""
    return sum(weight.numel() for weight in model.parameters())


def decoder_config(base: ModelConfig) -> ModelConfig:
    """As many blocks in one stack, their feed-forward layers wider by what cross-attention took."""
    goal = count(build_model(base))
    layers = base.n_encoder_layers + base.n_decoder_layers
    alone = replace(base, family="decoder", n_encoder_layers=0, n_decoder_layers=layers)
    missing = goal - count(build_model(alone))
    wider = round(missing / (layers * (2 * base.d_model + 1)))
    return replace(alone, d_ff=base.d_ff + wider)


def loss_of(
    model: EncoderDecoder | Decoder,
    arm: str,
    work: Work,
    pairs: EncodedPairs,
    indices: Sequence[int],
) -> Tensor:
    """Nats a target token, teacher-forced; logits are made at the target's places only."""
    if isinstance(model, EncoderDecoder):
        batch = padded_batch(pairs, indices, work.special)
        assert batch.source is not None
        sides = batch.source.tokens, batch.target.tokens
        x, labels = model.hidden(*sides, Layout(batch.source.lengths), Layout()), batch.labels
    else:
        row = joined(pairs, indices, work.special)
        both_ways = seeing(prefix_mask(row.source_lengths, row.tokens.shape[1]))
        with use_path(model, both_ways if arm == "prefix LM" else fast):
            x, labels = model.hidden(row.tokens), row.labels
    real = labels != IGNORE
    return cross_entropy(model.output(x[real]), labels[real])


def trained(arm: str, work: Work, seed: int) -> tuple[EncoderDecoder | Decoder, float]:
    """A model after its training on the same sentences in the same order, and CPU seconds."""
    config = work.base if arm == "encoder-decoder" else decoder_config(work.base)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_model(config)
    assert isinstance(model, EncoderDecoder | Decoder)
    batches = order_of(work, seed).tolist()
    began = time.process_time()
    fit(
        model.parameters(),
        lambda step: loss_of(model, arm, work, work.train, batches[step]),
        work.steps,
        work.lr,
        warmup=60,
    )
    return model.eval(), time.process_time() - began


def order_of(work: Work, seed: int) -> Indices:
    """Which training sentences each step reads, (steps, rows); all families read the same."""
    return np.random.default_rng(seed).integers(len(work.train), size=(work.steps, work.rows))


def translated(
    model: EncoderDecoder | Decoder,
    arm: str,
    work: Work,
    indices: Sequence[int],
    path: AbstractContextManager[None] | None = None,
) -> list[list[int]]:
    """Greedy translations as ids, with the cache that each family has."""
    greedy = DecodeConfig(beams=1)
    if isinstance(model, EncoderDecoder):
        batch = padded_batch(work.held_out, indices, work.special)
        assert batch.source is not None
        with path or nullcontext():
            found = generate(
                model, batch.source.tokens, batch.source.lengths, greedy, max_lengths=LONGEST
            )
    else:
        prompts = [[*work.held_out.source[i].tolist(), work.special.bos] for i in indices]
        with path or use_path(model, reading if arm == "prefix LM" else fast):
            found = complete(model, prompts, greedy, max_lengths=LONGEST)
    return [best[0].tokens for best in found]


def flops(model: EncoderDecoder | Decoder, arm: str, work: Work) -> float:
    """Millions of operations in matrix products, a sentence, decoded one by one."""
    n = min(COUNTED, len(work.held_out))
    with FlopCounterMode(display=False) as counter:
        for index in range(n):  # the mask does not change the count, and the equation hides none
            translated(model, arm, work, [index], use_path(model, equation))
    return counter.get_total_flops() / n / 1e6


@dataclass(frozen=True)
class Judged:
    """One model on the sentences held out."""

    exact: float
    bleu: float
    loss: float
    decode_ms: float
    megaflops: float


def judged(model: EncoderDecoder | Decoder, arm: str, work: Work) -> Judged:
    """Translate, compare, and count what that takes."""
    everything = range(len(work.held_out))
    began = time.process_time()
    outputs = translated(model, arm, work, everything)
    spent = time.process_time() - began
    references = [work.held_out.target[index].tolist() for index in everything]
    equal = [output == wanted for output, wanted in zip(outputs, references, strict=True)]
    texts, wanted_texts = (work.tokenizer.decode_many(ids) for ids in (outputs, references))
    with torch.no_grad():
        loss = float(loss_of(model, arm, work, work.held_out, everything))
    n = len(equal)
    return Judged(
        100 * fmean(equal),
        bleu(texts, wanted_texts).value,
        loss,
        1000 * spent / n,
        flops(model, arm, work),
    )


def measure(settings: Settings) -> Measured:
    """Train every family with every seed."""
    settings.tell("drawing a small language")
    work = translation(settings.full)
    seeds = range(settings.seed, settings.seed + (5 if settings.full else 4))
    arms = [_arm(arm, work, seeds, settings) for arm in ARMS]
    targets = work.train.target.lengths[order_of(work, seeds[0])] + 1  # with the end
    return Measured(work.steps * work.rows, int(targets.sum()), arms)


def chosen(name: str, work: Work, seed: int) -> tuple[Work, EncoderDecoder | Decoder, float]:
    """The learning rate with the lower loss on validation sentences, and what it trained."""
    found = []
    for lr in RATES:
        tried = replace(work, lr=lr)
        model, spent = trained(name, tried, seed)
        with torch.no_grad():
            loss = float(loss_of(model, name, work, work.valid, range(len(work.valid))))
        found.append((loss, tried, model, spent))
    return min(found, key=itemgetter(0))[1:]


def _arm(name: str, work: Work, seeds: Sequence[int], settings: Settings) -> Arm:
    settings.tell(f"{name}, the learning rate and seed {seeds[0]}")
    work, model, spent = chosen(name, work, seeds[0])
    found, seconds = [judged(model, name, work)], [spent]
    for seed in seeds[1:]:
        settings.tell(f"{name}, seed {seed}")
        model, spent = trained(name, work, seed)
        found.append(judged(model, name, work))
        seconds.append(spent)
    return Arm(
        name,
        count(model),
        work.lr,
        [one.exact for one in found],
        [one.bleu for one in found],
        [one.loss for one in found],
        seconds,
        [one.decode_ms for one in found],
        [one.megaflops for one in found],
    )


def tables(m: Measured) -> tuple[Table, ...]:
    """Quality and cost of each family."""
    rows = [
        (
            arm.name,
            f"{arm.parameters:,}",
            f"{arm.lr:g}",
            plus_minus(arm.exact),
            plus_minus(arm.bleu),
            plus_minus(arm.loss, 3),
            plus_minus(arm.train_seconds),
            plus_minus(arm.decode_ms, 2),
            plus_minus(arm.megaflops, 2),
        )
        for arm in m.arms
    ]
    title = Words(
        f"Held-out sentences after {m.sentences:,} training sentences ({m.target_tokens:,} target "
        "tokens), mean ± spread over seeds",
        f"训练 {m.sentences:,} 句（译文 {m.target_tokens:,} 个词元）之后在留出句子上的结果，"
        "各随机种子的均值 ± 标准差",
    )
    head = (
        "family",
        "parameters",
        "learning rate",
        "exact match %",
        "BLEU",
        "loss",
        "training s",
        "ms a sentence",
        "MFLOP a sentence",
    )
    return (Table(title, head, tuple(rows)),)


def draw(m: Measured) -> Figure:
    """Quality beside cost, a colour a family."""
    from qkv.inspect.style import COLOURS, new_figure

    figure, axes = new_figure(10, 3.4, ncols=3)
    for panel, name, label, digits in zip(
        axes,
        ("exact", "loss", "megaflops"),
        ("exact match, %", "loss, nats a target token", "MFLOP to decode a sentence"),
        (1, 3, 2),
        strict=True,
    ):
        figures = [mean_and_spread(getattr(arm, name)) for arm in m.arms]
        means, spreads = [mean for mean, _ in figures], [spread for _, spread in figures]
        bars = panel.bar(
            [arm.name for arm in m.arms], means, yerr=spreads, capsize=3, color=COLOURS[:3]
        )
        panel.bar_label(bars, fmt=f"%.{digits}f", fontsize=8)
        panel.set(ylabel=label)
        panel.margins(y=0.15)
        panel.tick_params(axis="x", labelsize=7)
    axes[0].set_title("How many are right (more is better)")
    axes[1].set_title("How surprised it is (less is better)")
    axes[2].set_title("What a sentence costs (less is better)")
    return figure


def gain(better: Sequence[float], worse: Sequence[float]) -> tuple[float, bool]:
    """Mean difference, seed by seed, and whether it is beyond twice its standard error."""
    mean, spread = mean_and_spread([a - b for a, b in zip(better, worse, strict=True)])
    return mean, abs(mean) > max(1.0, 2 * spread / len(better) ** 0.5)


def judge(m: Measured) -> Verdict:
    """The encoder-decoder must translate better than a decoder alone, and than a prefix LM."""
    both, prefix, alone = m.arms
    over_alone, clear_alone = gain(both.exact, alone.exact)
    over_prefix, clear_prefix = gain(both.exact, prefix.exact)
    exact = [fmean(arm.exact) for arm in m.arms]
    cost = [fmean(arm.megaflops) for arm in m.arms]
    loss = [fmean(arm.loss) for arm in m.arms]
    noise = [
        Words("", "") if clear else Words(", within noise", "，在误差之内")
        for clear in (clear_alone, clear_prefix)
    ]
    because = Words(
        f"With equal parameters, steps and sentences, exact matches are {exact[0]:.1f} % for the "
        f"encoder-decoder, {exact[1]:.1f} % for the prefix LM and {exact[2]:.1f} % for the "
        f"decoder alone: {over_alone:+.1f} points against the decoder alone{noise[0].en}, and "
        f"{over_prefix:+.1f} against the prefix LM{noise[1].en}. Losses are {loss[0]:.3f}, "
        f"{loss[1]:.3f} and {loss[2]:.3f}; a sentence takes {cost[0]:.1f}, {cost[1]:.1f} and "
        f"{cost[2]:.1f} MFLOP.",
        f"参数量、步数与句子都相同时，完全匹配率为：编码器-解码器 {exact[0]:.1f}%，"
        f"前缀语言模型 {exact[1]:.1f}%，纯解码器 {exact[2]:.1f}%。编码器-解码器与纯解码器相差 "
        f"{over_alone:+.1f} 个百分点{noise[0].zh}；与前缀语言模型相差 {over_prefix:+.1f} 个百分点"
        f"{noise[1].zh}。损失分别为 {loss[0]:.3f}、{loss[1]:.3f}、{loss[2]:.3f}；"
        f"翻译一句分别需要 {cost[0]:.1f}、{cost[1]:.1f}、{cost[2]:.1f} MFLOP。",
    )
    wins_alone, wins_prefix = clear_alone and over_alone > 0, clear_prefix and over_prefix > 0
    if wins_alone and wins_prefix:
        return Verdict("holds", because)
    if wins_alone:
        return Verdict(
            "holds when",
            Words(
                "It holds when the decoder alone reads the source one way only; let it read both ways, "
                f"and the lead is gone. {because.en}",
                f"仅当纯解码器单向阅读原文时成立；让它双向阅读原文，领先就消失了。{because.zh}",
            ),
        )
    return Verdict("does not hold", because)


LAB = Lab(
    number=17,
    name="families",
    title=Words(
        "Encoder-decoder, decoder-only, prefix LM", "编码器-解码器、纯解码器与前缀语言模型"
    ),
    claim=Words(
        "Where an input is to be turned into another form, as in translation, an encoder-decoder "
        "is best, since it reads the whole source before it writes; a decoder alone suits "
        "continuing a text.",
        "把输入转换成另一种形式的任务（如翻译）最适合编码器-解码器，因为它先把原文整个读懂再动笔；"
        "纯解码器更适合续写。",
    ),
    experiment=Words(
        "An encoder-decoder, a decoder alone of as many blocks (source, separator, target; loss on "
        "the target) and the same with a source that sees both ways, equal in parameters, "
        "learn four patterns of the packaged corpus with the same sentences and steps, each with "
        "the better of two learning rates. Judged on new combinations of words: exact match, BLEU, "
        "loss, and the cost of decoding.",
        "编码器-解码器、总层数相同的纯解码器（原文、分隔符、译文相接，只在译文上计损失），"
        "以及原文部分双向可见的同一解码器，参数量相同，以相同的句子和步数学习自带语料的四种句型，"
        "学习率各自从两个中选较好的一个。在没有见过的词语组合上比较完全匹配率、BLEU、损失与解码开销。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
