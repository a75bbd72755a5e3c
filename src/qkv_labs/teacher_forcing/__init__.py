"""Teacher forcing: one pass for all positions, and what a model makes of its own prefixes."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from qkv.config import DecodeConfig, ModelConfig, TokenizerConfig
from qkv.data import IGNORE, Batch, EncodedPairs, Ragged, Specials, padded_batch
from qkv.decode import Batch as Prompts
from qkv.decode import generate, prefill
from qkv.demo import demo_corpus
from qkv.model import Cache, EncoderDecoder, Layout, Memory
from qkv.text import Tokenizer, train_tokenizer
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, mean_and_spread, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POSITIONS = 12  # few sentences are longer
DISTANCES = 6
LAST_SHARE = 0.5  # of a scheduled decoder's input that is its own, at the last step
EXACT = 1e-9  # logits in float64 that differ less are the same
CLEAR = 0.5  # percentage points; less is no difference, however steady over seeds
ONE_HALF = Words(
    "As to training in one pass; at this size errors do not clearly accumulate.",
    "就一次并行训练而言成立；在这样的规模上，看不出错误明显累积。",
)


@dataclass(frozen=True)
class Work:
    """Texts as ids, and how long each model learns from them."""

    train: EncodedPairs
    held_out: EncodedPairs
    special: Specials
    config: ModelConfig
    steps: int
    rows: int = 48
    lr: float = 5e-3


@dataclass(frozen=True)
class Judged:
    """One model on sentences held out; errors in percent of tokens."""

    exact: float  # greedy translations that equal the reference, percent
    true_error: float  # after the true prefix
    loss: float  # nats a token, after the true prefix
    slipped_own: float  # after its first slip, going on by itself, by edit distance
    slipped_true: float  # the same sentences and places, had it been put right
    true_prefix: list[float]  # error at position 1, 2 …
    own_prefix: list[float]
    spoilt: list[float]  # error 1, 2 … tokens after one wrong token
    unspoilt: list[float]  # at the same places without it
    seconds: float  # CPU, training


@dataclass(frozen=True)
class Measured:
    """What the lab found, one model a seed for each way to train."""

    difference: float  # largest, of logits: at once against step by step
    passes: int  # of the decoder, step by step; at once it is 1
    forced: list[Judged]
    scheduled: list[Judged]


def translation(full: bool) -> Work:
    """The packaged corpus, cut for a small encoder-decoder."""
    corpus = demo_corpus()
    lines = [line for pair in corpus.train for line in pair]
    tokenizer = train_tokenizer(lines, TokenizerConfig(vocab_size=1000))
    special = Specials(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    config = ModelConfig(
        vocab_size=len(tokenizer),
        d_model=64,
        n_heads=4,
        d_ff=128,
        n_encoder_layers=1,
        n_decoder_layers=1,
        dropout=0.0,
        max_length=64,
        pad_id=special.pad,
        bos_id=special.bos,
        eos_id=special.eos,
    )
    train, held_out = (_encoded(tokenizer, x) for x in (corpus.train, corpus.valid + corpus.test))
    return Work(train, held_out, special, config, 1000 if full else 300)


def _encoded(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> EncodedPairs:
    sides = (Ragged.of(tokenizer.encode_many(side)) for side in zip(*pairs, strict=True))
    return EncodedPairs(*sides)


def logits_of(model: EncoderDecoder, batch: Batch, target: Tensor | None = None) -> Tensor:
    """One pass for all positions, (B, T, V), after the batch's own targets or others."""
    source, target = batch.source, batch.target.tokens if target is None else target
    assert source is not None
    logits: Tensor = model(source.tokens, target, Layout(source.lengths))
    return logits


@torch.no_grad()
def step_by_step(model: EncoderDecoder, batch: Batch) -> tuple[Tensor, int]:
    """The same logits, one position after the other, and how many passes that took."""
    source, target = batch.source, batch.target.tokens
    assert source is not None
    prompts = Prompts(target[:, :1], source=source.tokens, source_lengths=source.lengths)
    memory, cache = prefill(model, prompts, 1, target.shape[1])
    assert memory is not None
    # `prefill` leaves the last token of a prompt, here BOS, to the first step.
    steps = [_read_one(model, token, memory, cache) for token in target.unbind(1)]
    return torch.stack(steps, dim=1), len(steps)


def _read_one(model: EncoderDecoder, tokens: Tensor, memory: Memory, cache: Cache) -> Tensor:
    """One step at the model's own precision, where a search would round logits to float32."""
    logits: Tensor = model.output(model.decode(tokens[:, None], memory, cache=cache)[:, -1])
    return logits


def mixed_input(
    target: Tensor, guesses: Tensor, share: float, generator: torch.Generator
) -> Tensor:
    """Each input token but BOS becomes, with this chance, what the model said in its place."""
    own = torch.cat([target[:, :1], guesses[:, :-1]], dim=1)
    chosen = torch.rand(target.shape, generator=generator) < share
    chosen[:, 0] = False
    return own.where(chosen, target)


def trained(work: Work, seed: int, scheduled: bool) -> tuple[EncoderDecoder, float]:
    """A model after its training, and the CPU seconds of that; both ways see the same batches."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = EncoderDecoder(work.config)
    order = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        chosen = order.integers(len(work.train), size=work.rows)
        batch = padded_batch(work.train, chosen, work.special)
        target = batch.target.tokens
        if scheduled:
            with torch.no_grad():
                guesses = logits_of(model, batch).argmax(dim=-1)
            target = mixed_input(target, guesses, LAST_SHARE * step / work.steps, generator)
        return token_loss(logits_of(model, batch, target), batch.labels)

    began = time.process_time()
    fit(model.parameters(), loss, work.steps, work.lr, warmup=60)
    return model.eval(), time.process_time() - began


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Nats a token."""
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)


def edit_distance(left: Sequence[int], right: Sequence[int]) -> int:
    """The fewest insertions, deletions and changes that make one of the other (Levenshtein)."""
    row = list(range(len(right) + 1))
    for i, token in enumerate(left, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(right, 1):
            change = before + (token != other)
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, change)
    return row[-1]


def after_slips(
    outputs: Sequence[Sequence[int]], references: Sequence[Sequence[int]], wrong: Tensor
) -> tuple[float, float]:
    """Errors in percent of what is left after an output's first slip: by itself, and put right."""
    own = true = total = 0  # own ones are edits: one word too many must not spoil all later ones
    for output, reference, errors in zip(outputs, references, wrong.tolist(), strict=True):
        same = [a == b for a, b in zip(output, reference, strict=False)]
        slip = same.index(False) if False in same else len(same)
        if slip + 1 >= len(reference):
            continue
        own += edit_distance(output[slip + 1 :], reference[slip + 1 :])
        true += sum(errors[slip + 1 : len(reference)])
        total += len(reference) - slip - 1
    return 100 * own / max(1, total), 100 * true / max(1, total)


@torch.no_grad()
def judged(model: EncoderDecoder, work: Work, seed: int, seconds: float = 0.0) -> Judged:
    """What the model does after true prefixes, its own, and true ones with one wrong token."""
    batch = padded_batch(work.held_out, np.arange(len(work.held_out)), work.special)
    source, labels = batch.source, batch.labels
    assert source is not None
    logits, real = logits_of(model, batch), labels != IGNORE
    wrong = (logits.argmax(dim=-1) != labels) & real
    found = generate(model, source.tokens, source.lengths, DecodeConfig(beams=1))
    outputs = [[*best[0].tokens, work.special.eos] for best in found]
    references = [row[keep].tolist() for row, keep in zip(labels, real, strict=True)]
    equal = [output == reference for output, reference in zip(outputs, references, strict=True)]
    own_wrong = _laid(outputs, labels.shape[1]) != labels
    places = range(min(POSITIONS, labels.shape[1]))
    return Judged(
        100 * fmean(equal),
        _percent(wrong, real),
        float(token_loss(logits, labels)),
        *after_slips(outputs, references, wrong),
        [_percent(wrong[:, t], real[:, t]) for t in places],
        [_percent(own_wrong[:, t], real[:, t]) for t in places],
        *spoilt_errors(model, batch, logits, seed),
        seconds,
    )


def _laid(outputs: Sequence[Sequence[int]], width: int) -> Tensor:
    """Outputs as rows; past an output's end stands no token, which is wrong wherever one is due."""
    return torch.tensor([[*out[:width], *[-1] * (width - len(out))] for out in outputs])


def _percent(wrong: Tensor, real: Tensor) -> float:
    return 100 * float((wrong & real).sum()) / max(1, int(real.sum()))


def spoilt_errors(
    model: EncoderDecoder, batch: Batch, logits: Tensor, seed: int
) -> tuple[list[float], list[float]]:
    """Errors 1, 2 … tokens after one wrong token, and at the same places without it, in percent."""
    target, labels = batch.target.tokens, batch.labels
    generator = torch.Generator().manual_seed(seed)
    lengths = (labels != IGNORE).sum(dim=1)
    place = 1 + (torch.rand(len(target), generator=generator) * (lengths - 1)).long()  # of an input
    rows = torch.arange(len(target))
    choices = logits[rows, place - 1].clone()  # the likeliest wrong one: a slip of its own kind
    choices[rows, target[rows, place]] = float("-inf")
    spoilt = target.clone()
    spoilt[rows, place] = choices.argmax(dim=-1)
    after, before = (x.argmax(dim=-1) for x in (logits_of(model, batch, spoilt), logits))
    rates: tuple[list[float], list[float]] = ([], [])
    for distance in range(DISTANCES):
        at = (place + distance).clamp(max=labels.shape[1] - 1)
        real = place + distance < lengths
        for guesses, rate in zip((after, before), rates, strict=True):
            rate.append(_percent(guesses[rows, at] != labels[rows, at], real))
    return rates


@torch.no_grad()
def compared(model: EncoderDecoder, work: Work) -> tuple[float, int]:
    """At once against step by step, in float64: the largest difference, and the passes."""
    batch = padded_batch(work.held_out, np.arange(min(64, len(work.held_out))), work.special)
    exact = copy.deepcopy(model).double()
    stepwise, passes = step_by_step(exact, batch)
    return float((logits_of(exact, batch) - stepwise).abs().max()), passes


def measure(settings: Settings) -> Measured:
    """Train each way with several seeds, and look at what both make of their prefixes."""
    settings.tell("reading the packaged corpus")
    work = translation(settings.full)
    seeds = range(settings.seed, settings.seed + (5 if settings.full else 3))
    found: dict[bool, list[Judged]] = {False: [], True: []}
    same = None
    for seed in seeds:
        for scheduled in (False, True):
            settings.tell(f"seed {seed}, {'scheduled sampling' if scheduled else 'plain'}")
            model, seconds = trained(work, seed, scheduled)
            same = same or compared(model, work)
            found[scheduled].append(judged(model, work, seed, seconds))
    assert same is not None
    return Measured(*same, found[False], found[True])


def _column(models: Sequence[Judged], name: str) -> list[float]:
    return [getattr(model, name) for model in models]


def _gain(left: Sequence[float], right: Sequence[float]) -> tuple[float, bool]:
    """The mean of left - right, seed by seed, and whether it is over two standard errors."""
    mean, spread = mean_and_spread([a - b for a, b in zip(left, right, strict=True)])
    return mean, abs(mean) > max(CLEAR, 2 * spread / len(left) ** 0.5)


def tables(m: Measured) -> tuple[Table, ...]:
    """Both ways to compute, and both ways to train."""
    computing = Table(
        Words("True prefix: all positions at once, or one by one", "真实前缀：一次算完与逐步计算"),
        ("", "passes", "largest difference of logits"),
        (("at once", "1", "–"), ("one by one", str(m.passes), f"{m.difference:.1e}")),
    )
    names = {
        "exact": "exact match %",
        "true_error": "true prefix",
        "slipped_own": "after a slip, own prefix",
        "slipped_true": "same places, true prefix",
        "loss": "loss",
        "seconds": "CPU s",
    }
    rows = [
        (way, *(plus_minus(_column(arm, name), 3 if name == "loss" else 1) for name in names))
        for way, arm in (("teacher forcing", m.forced), ("scheduled sampling", m.scheduled))
    ]
    title = Words(
        "Held-out sentences: errors in % of tokens, mean ± spread over seeds",
        "留出句子上的错误率（占词元的百分比），各随机种子的均值 ± 标准差",
    )
    return computing, Table(title, ("training", *names.values()), tuple(rows))


def draw(m: Measured) -> Figure:
    """Errors by position, and after one wrong token."""
    from qkv.inspect.style import COLOURS, MARKERS, new_figure

    figure, (left, right) = new_figure(9, 3.6, ncols=2)
    for axes, label, arm, name, style in (
        (left, "own prefix", m.forced, "own_prefix", 1),
        (left, "own prefix, scheduled sampling", m.scheduled, "own_prefix", 2),
        (left, "true prefix", m.forced, "true_prefix", 0),
        (right, "one wrong token", m.forced, "spoilt", 1),
        (right, "none", m.forced, "unspoilt", 0),
    ):
        curves = list(zip(*(getattr(model, name) for model in arm), strict=True))
        places, colour = range(1, len(curves) + 1), COLOURS[style]
        axes.plot(places, list(map(fmean, curves)), MARKERS[style] + "-", color=colour, label=label)
        low, high = list(map(min, curves)), list(map(max, curves))
        axes.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set(ylim=(0, 100), ylabel="wrong tokens, %")
        axes.legend()
    left.set(xlabel="position in the sentence", title="Errors place by place (band: all seeds)")
    right.set(xlabel="tokens after the wrong one", title="After one wrong token in a true prefix")
    return figure


def judge(m: Measured) -> Verdict:
    """One pass must equal many, and own prefixes must cost what true ones do not."""
    same = m.difference < EXACT
    gap, clear = _gain(_column(m.forced, "slipped_own"), _column(m.forced, "slipped_true"))
    is_en, is_zh = ("gives the same", "相同") if same else ("does not give the same", "不同")
    once = Words(
        f"One pass {is_en} logits as {m.passes} single steps (difference {m.difference:.0e}).",
        f"一次前向与 {m.passes} 步逐步计算的 logits {is_zh}（最大差 {m.difference:.0e}）。",
    )
    half = same and not (clear and gap > 0)
    parts = [*([ONE_HALF] if half else []), once, _slipped(m), _sampling(m)]
    because = Words(" ".join(part.en for part in parts), "".join(part.zh for part in parts))
    return Verdict("holds when" if half else "holds" if same else "does not hold", because)


def _slipped(m: Measured) -> Words:
    own, true = (fmean(_column(m.forced, f"slipped_{which}")) for which in ("own", "true"))
    first, last = (fmean(one.spoilt[d] - one.unspoilt[d] for one in m.forced) for d in (0, -1))
    far = len(m.forced[0].spoilt)
    return Words(
        f"After its first slip a model gets {own:.1f} % of the rest wrong, and {true:.1f} % at the "
        f"same places once put right; a single wrong token changes the error by {first:+.1f} "
        f"points at the next token and by {last:+.1f} at the {far}th.",
        f"第一次写错之后，模型顺着自己的前缀往下写，余下的词元错 {own:.1f}%；"
        f"若换回真实前缀，同样的位置错 {true:.1f}%。前缀里只错一个词时，下一个词元的错误率变化 "
        f"{first:+.1f} 个百分点，到第 {far} 个词元为 {last:+.1f}。",
    )


def _sampling(m: Measured) -> Words:
    scheduled, forced = _column(m.scheduled, "exact"), _column(m.forced, "exact")
    gain, clear = _gain(scheduled, forced)
    en, zh = ("helped", "有帮助") if gain > 0 else ("hurt", "反而有害")
    en, zh = (en, zh) if clear else ("made no clear difference", "没有明显差别")
    return Words(
        f"Scheduled sampling {en} at equal steps: {fmean(scheduled):.1f} against "
        f"{fmean(forced):.1f} % exact.",
        f"步数相同时，计划采样{zh}：完全匹配率为 {fmean(scheduled):.1f}%，"
        f"只用教师强制时为 {fmean(forced):.1f}%。",
    )


LAB = Lab(
    number=11,
    name="teacher_forcing",
    title=Words("Teacher forcing and exposure bias", "教师强制与暴露偏差"),
    claim=Words(
        "Fed with the true target, a decoder learns from all positions in one parallel pass; when "
        "it writes alone, a wrong word becomes the input of the next, and errors accumulate.",
        "训练时直接给解码器看标准译文，一次并行计算就能学到所有位置；"
        "推理时它只能接着自己写的往下写，前面写错一个词，后面就跟着错，越错越多。",
    ),
    experiment=Words(
        "Small translators (one layer a side) learn the packaged corpus, by teacher forcing and by "
        "scheduled sampling (their own guesses rise to half of the input), from the same first "
        "weights, batches and steps, with three seeds (five with --full). On held-out sentences, "
        "against their one reference: logits at once and step by step; errors after true and own "
        "prefixes, after one wrong token, and after a slip (by edits) against the same places put "
        "right.",
        "小翻译模型（编码器、解码器各一层）在自带语料上训练，一组用教师强制，一组用计划采样"
        "（输入中自己预测的比例逐渐升到一半），初始权重、批次与步数都相同，三个随机种子"
        "（加 --full 为五个）。在留出句子上，以唯一的参考译文为准，比较："
        "一次算完与逐步计算的 logits；真实前缀、自己的前缀、含一个错词的前缀之后各位置的错误率；"
        "首次写错之后的错误率（按编辑距离），与换回真实前缀时同样位置的错误率。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
