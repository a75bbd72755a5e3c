"""Three ways to translate with equal parameters: encoder-decoder, decoder-only, prefix LM."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from qkv.config import DecodeConfig, ModelConfig, TokenizerConfig
from qkv.data import IGNORE, EncodedPairs, Ragged, Specials, padded_batch
from qkv.data.demo import demo_corpus
from qkv.decode import complete, generate
from qkv.evaluate.scores import bleu
from qkv.labs.lab import Lab, Settings, Table, Verdict, Words
from qkv.labs.tools import fit, mean_and_spread, plus_minus
from qkv.model import Decoder, EncoderDecoder, Layout, Mask, build_model, equation, fast, use_path
from qkv.model.attention import Attend
from qkv.text import Tokenizer, train_tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = ("encoder-decoder", "prefix LM", "decoder-only")
COUNTED = 20  # sentences whose products are counted
LONGEST = 40  # tokens of a translation


@dataclass(frozen=True)
class Work:
    """Texts as ids, the models' sizes, and how long each learns."""

    train: EncodedPairs
    held_out: EncodedPairs
    tokenizer: Tokenizer
    base: ModelConfig
    steps: int = 300
    rows: int = 40
    lr: float = 5e-3

    @property
    def special(self) -> Specials:
        """The ids that are not text."""
        return Specials(self.base.pad_id, self.base.bos_id, self.base.eos_id)


@dataclass(frozen=True)
class Arm:
    """One family, a figure a seed."""

    name: str
    parameters: int
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
    arms: list[Arm]


def translation(full: bool) -> Work:
    """The packaged corpus, and a small encoder-decoder."""
    corpus = demo_corpus()
    lines = [line for pair in corpus.train for line in pair]
    tokenizer = train_tokenizer(lines, TokenizerConfig(vocab_size=1000))
    layers = 2 if full else 1
    base = ModelConfig(
        vocab_size=len(tokenizer), d_model=64, n_heads=4, d_ff=128, n_encoder_layers=layers,
        n_decoder_layers=layers, dropout=0.0, max_length=96, pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id,
    )  # fmt: skip
    train, held_out = (_encoded(tokenizer, part) for part in (corpus.train, corpus.valid))
    work = Work(train, held_out, tokenizer, base)
    return replace(work, steps=1200, rows=64) if full else work


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


@dataclass(frozen=True)
class Joined:
    """Source, separator and target in one row; labels at the target's places only."""

    tokens: Tensor  # (B, T): x₁ … x_n, BOS, y₁ … y_m
    labels: Tensor  # (B, T): IGNORE n times, y₁ … y_m, EOS
    source_lengths: Tensor  # (B,)


def joined(pairs: EncodedPairs, indices: Sequence[int], special: Specials) -> Joined:
    """Lay pairs in rows as a decoder alone reads them; BOS separates."""
    sources = [pairs.source[index].tolist() for index in indices]
    targets = [pairs.target[index].tolist() for index in indices]
    rows = [[*x, special.bos, *y] for x, y in zip(sources, targets, strict=True)]
    width = max(map(len, rows))
    tokens = torch.full((len(rows), width), special.pad)
    labels = torch.full((len(rows), width), IGNORE)
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        tokens[row, : len(rows[row])] = torch.tensor(rows[row])
        labels[row, len(source) : len(rows[row])] = torch.tensor([*target, special.eos])
    return Joined(tokens, labels, torch.tensor([len(source) for source in sources]))


def prefix_mask(source_lengths: Tensor, n_tokens: int) -> Mask:
    """Source tokens see one another both ways; all others see what is before them."""
    place = torch.arange(n_tokens)
    source = place < source_lengths[:, None]  # (B, T)
    visible = (place <= place[:, None]) | (source[:, :, None] & source[:, None, :])
    # `first` says that the rows differ, so that kernels read what is drawn.
    first = torch.zeros(len(source_lengths), 1, dtype=torch.int64)
    return Mask(causal=True, first=first, drawn=visible[:, None])


def seeing(drawn: Mask) -> Attend:
    """Attention under this mask, whatever the stack asks for."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float,
        bias: Tensor | None = None, dropout: float = 0.0,
    ) -> Tensor:  # fmt: skip
        return fast(query, key, value, drawn, scale, bias, dropout)

    return attend


def reading(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float,
    bias: Tensor | None = None, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """Attention while decoding: sources, which come many tokens at once, are seen both ways."""
    if query.shape[-2] > 1:
        mask = Mask(first=mask.first)
    return fast(query, key, value, mask, scale, bias, dropout)


def loss_of(
    model: EncoderDecoder | Decoder, arm: str, work: Work, indices: Sequence[int]
) -> Tensor:
    """Nats a target token, teacher-forced; logits are made at the target's places only."""
    pairs = work.held_out if not model.training else work.train
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
    order = np.random.default_rng(seed)
    batches = order.integers(len(work.train), size=(work.steps, work.rows)).tolist()
    began = time.process_time()
    fit(model.parameters(), lambda step: loss_of(model, arm, work, batches[step]), work.steps,
        work.lr, warmup=60)  # fmt: skip
    return model.eval(), time.process_time() - began


def translated(
    model: EncoderDecoder | Decoder, arm: str, work: Work, indices: Sequence[int],
    path: AbstractContextManager[None] | None = None,
) -> list[list[int]]:  # fmt: skip
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
        loss = float(loss_of(model, arm, work, everything))
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
    settings.tell("reading the packaged corpus")
    work = translation(settings.full)
    seeds = range(settings.seed, settings.seed + (5 if settings.full else 3))
    return Measured(work.steps * work.rows, [_arm(arm, work, seeds, settings) for arm in ARMS])


def _arm(name: str, work: Work, seeds: Sequence[int], settings: Settings) -> Arm:
    found, seconds, parameters = [], [], 0
    for seed in seeds:
        settings.tell(f"{name}, seed {seed}")
        model, spent = trained(name, work, seed)
        found.append(judged(model, name, work))
        seconds.append(spent)
        parameters = count(model)
    return Arm(
        name, parameters, [one.exact for one in found], [one.bleu for one in found],
        [one.loss for one in found], seconds, [one.decode_ms for one in found],
        [one.megaflops for one in found],
    )  # fmt: skip


def tables(m: Measured) -> tuple[Table, ...]:
    """Quality and cost of each family."""
    rows = [
        (arm.name, f"{arm.parameters:,}", plus_minus(arm.exact), plus_minus(arm.bleu),
         plus_minus(arm.loss, 3), plus_minus(arm.train_seconds), plus_minus(arm.decode_ms, 2),
         plus_minus(arm.megaflops, 2))
        for arm in m.arms
    ]  # fmt: skip
    title = Words(
        f"Held-out sentences after {m.sentences:,} training sentences, mean ± spread over seeds",
        f"训练 {m.sentences:,} 句之后在留出句子上的结果，各随机种子的均值 ± 标准差",
    )
    head = ("family", "parameters", "exact match %", "BLEU", "loss", "training s",
            "ms a sentence", "MFLOP a sentence")  # fmt: skip
    return (Table(title, head, tuple(rows)),)


def draw(m: Measured) -> Figure:
    """Quality beside cost, a colour a family."""
    from qkv.inspect.style import COLOURS, new_figure

    figure, axes = new_figure(10, 3.4, ncols=3)
    for panel, name, label in zip(
        axes, ("exact", "loss", "megaflops"),
        ("exact match, %", "loss, nats a target token", "MFLOP to decode a sentence"), strict=True,
    ):  # fmt: skip
        figures = [mean_and_spread(getattr(arm, name)) for arm in m.arms]
        means, spreads = [mean for mean, _ in figures], [spread for _, spread in figures]
        bars = panel.bar(
            [arm.name for arm in m.arms], means, yerr=spreads, capsize=3, color=COLOURS[:3]
        )
        panel.bar_label(bars, fmt="%.2f" if max(means) < 10 else "%.1f", fontsize=8)
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
    because = Words(
        f"With equal parameters, steps and sentences, exact matches are {exact[0]:.1f} % for the "
        f"encoder-decoder, {exact[1]:.1f} % for the prefix LM and {exact[2]:.1f} % for the "
        f"decoder alone ({over_alone:+.1f} and {over_prefix:+.1f} points over the last and the "
        f"prefix LM). A sentence takes {cost[0]:.1f} MFLOP, {cost[1]:.1f} and {cost[2]:.1f}.",
        f"参数量、步数与句子都相同时，完全匹配率为：编码器-解码器 {exact[0]:.1f}%，"
        f"前缀语言模型 {exact[1]:.1f}%，纯解码器 {exact[2]:.1f}%（编码器-解码器比纯解码器 "
        f"{over_alone:+.1f}，比前缀语言模型 {over_prefix:+.1f} 个百分点）。"
        f"翻译一句分别需要 {cost[0]:.1f}、{cost[1]:.1f}、{cost[2]:.1f} MFLOP。",
    )
    wins_alone, wins_prefix = clear_alone and over_alone > 0, clear_prefix and over_prefix > 0
    if wins_alone and wins_prefix:
        return Verdict("holds", because)
    if wins_alone:
        return Verdict("holds when", Words(
            "It holds when the decoder alone reads the source one way only; let it read both ways, "
            f"and the lead is gone. {because.en}",
            f"仅当纯解码器单向阅读原文时成立；让它双向阅读原文，领先就消失了。{because.zh}",
        ))  # fmt: skip
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
        "learn the packaged corpus with the same sentences, steps and learning rate. Judged on "
        "held-out sentences: exact match, BLEU, loss, and the cost of decoding.",
        "编码器-解码器、总层数相同的纯解码器（原文、分隔符、译文相接，只在译文上计损失），"
        "以及原文部分双向可见的同一解码器，参数量相同，以相同的句子、步数和学习率学习自带语料。"
        "在留出句子上比较完全匹配率、BLEU、损失与解码开销。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
