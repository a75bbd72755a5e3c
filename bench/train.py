"""Training speed: the steps of `qkv train`, beside transformers and torch.nn.Transformer.

Each row writes a text, describes the run in a recipe, and times the steps of the trainer that
`qkv train` would run. The peers get the same sequences in rows padded to the longest, as
transformers' Trainer makes them. What counts is tokens that are not padding.

A row also has the peak memory of each side and, on a GPU, its MFU: the operations of the model for
these tokens in a second, as `qkv plan` counts them (none for padding, none that are done again),
over what the data sheet says of dense bfloat16 products (H200: 989 TFLOP/s).

python -m bench.train
python -m bench.train --only gpt2 --profile
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.measure import Session, Work, built, product_trainer, run, speed_parser
from bench.peers import TorchTransformer, causal_peer, marian, masked_peer
from qkv.config import ModelConfig, Recipe, recipe_from
from qkv.data import IGNORE, Batch
from qkv.device import has_bfloat16
from qkv.plan.passes import BatchSize, Numerics, pass_cost
from qkv.training import Trainer

STEPS = {"cuda": 8, "cpu": 3}  # between two looks at the clock
FIXED_TOKENS = 261  # of a vocabulary of characters: special tokens, and a token for each byte
Lengths = Sequence[int]
Loss = Callable[..., Tensor]

# Without dropout: its random numbers differ between the sides.
PLAIN = {"dropout": 0.0, "attention_dropout": 0.0}
GPT2 = {"preset": "gpt2", **PLAIN}
LLAMA = {
    "preset": "llama-7b",
    "d_model": 768,
    "n_decoder_layers": 12,
    "n_heads": 12,
    "n_kv_heads": 4,
    "d_ff": 2048,
    "max_length": 1024,
    **PLAIN,
}
BERT = {"pooler": "none", **PLAIN}
SMALL = {"d_model": 256, "n_heads": 4, "n_decoder_layers": 4, "max_length": 256}
SMALL_GPT2 = {**GPT2, **SMALL, "d_ff": 1024}
SMALL_LLAMA = {**LLAMA, **SMALL, "n_kv_heads": 2, "d_ff": 704}
TINY = {"d_model": 32, "n_heads": 2, "n_kv_heads": 0, "d_ff": 64, "max_length": 64}
PEERS = {
    "translate": ("MarianMTModel", "nn.Transformer"),
    "generate": ("transformers",),
    "fill": ("transformers",),
}
LAYERS = {
    "translate": ("n_encoder_layers", "n_decoder_layers"),
    "generate": ("n_decoder_layers",),
    "fill": ("n_encoder_layers",),
}


@dataclass(frozen=True)
class Case:
    """One comparison: a task, a model and the shape of its batches."""

    key: str
    name: str
    task: str
    model: dict[str, Any]
    vocab_size: int
    rows: int
    length: int
    real: bool = False
    """Lengths as in real text, instead of one length."""

    @property
    def title(self) -> str:
        lengths = f"lengths as in real text, at most {self.length}" if self.real else "no padding"
        return f"{self.name}, {self.rows} × {self.length:,} tokens, {lengths}"


def cases(session: Session) -> list[Case]:
    """Return all rows in sizes that suit the device."""
    if session.on_gpu:
        translator, encoder = {"preset": "transformer-base"}, {"preset": "bert-base", **BERT}
        found = [
            Case(
                "train.translate.equal",
                "Transformer-base",
                "translate",
                translator,
                32_768,
                512,
                64,
            ),
            Case("train.gpt2.16", "GPT-2 124M", "generate", GPT2, 50_257, 16, 1024),
            Case("train.llama.16", "Llama 124M", "generate", LLAMA, 32_000, 16, 1024),
            Case("train.bert.equal", "BERT 12 × 768", "fill", encoder, 30_522, 256, 128),
        ]
    else:
        translator, encoder = {"preset": "transformer-small"}, {"preset": "bert-mini", **BERT}
        found = [
            Case(
                "train.translate.equal",
                "Transformer 3+3 × 256",
                "translate",
                translator,
                8000,
                128,
                24,
            ),
            Case("train.gpt2.8", "GPT-2 4 × 256", "generate", SMALL_GPT2, 8000, 8, 256),
            Case("train.llama.8", "Llama 4 × 256", "generate", SMALL_LLAMA, 8000, 8, 256),
            Case("train.bert.equal", "BERT 4 × 256", "fill", encoder, 8000, 32, 128),
        ]
    equal = [case for case in found if case.key.endswith("equal")]
    found += [replace(c, key=c.key.replace("equal", "real"), real=True) for c in equal]
    if session.quick:
        found = [tiny(case) for case in found]
    return [case for case in found if session.wants(case.key)]


def tiny(case: Case) -> Case:
    """Shrink a row, to see that it works."""
    model = {**case.model, **TINY, **dict.fromkeys(LAYERS[case.task], 2)}
    return replace(case, model=model, vocab_size=320, rows=4, length=16)


def alphabet(size: int) -> list[str]:
    """Return Chinese characters, which no normal form changes; each becomes one token."""
    return [chr(code) for code in chain(range(0x20000, 0x2A000), range(0x4E00, 0x9F00))][:size]


def sentence_lengths(count: int, longest: int) -> Lengths:
    """Draw lengths as translation corpora have them: log-normal, 24 tokens at the median."""
    drawn = np.random.default_rng(1).lognormal(np.log(24), 0.5, count)
    return [int(length) for length in np.clip(drawn, 4, longest)]


def write_text(path: Path, lengths: Lengths, letters: Sequence[str], seed: int) -> str:
    """Write lines of random characters that use the whole alphabet, and return the path."""
    order = np.random.default_rng(seed).permutation(len(letters))
    text = (letters[number] for number in cycle(order))
    path.write_text("".join("".join(islice(text, length)) + "\n" for length in lengths), "utf-8")
    return str(path)


def recipe_of(case: Case, folder: Path, device: str) -> Recipe:
    """Describe the run, on a text that is long enough for all steps."""
    letters = alphabet(case.vocab_size - FIXED_TOKENS)
    n_tokens = max(2 * len(letters), (STEPS[device] + 2) * case.rows * case.length)
    frame = {"translate": 1, "generate": 0, "fill": 2}[case.task]  # special tokens around a line
    mean = 24 if case.real else case.length
    lengths = [case.length] * (n_tokens // mean)
    if case.real:
        lengths = [*sentence_lengths(n_tokens // mean, case.length)]
    lengths = [length - frame for length in lengths]
    if case.task == "generate":
        lengths = [sum(lengths)]  # one document, read in windows

    def text(name: str, seed: int, lengths: Lengths = lengths) -> str:
        return write_text(folder / name, lengths, letters, seed)

    some = [length // 2 for length in lengths[:8]] if frame else [4 * case.length]
    data: dict[str, Any] = {"text": text("text", 0), "valid_text": text("valid", 1, some)}
    if case.task == "generate":
        data |= {"documents": "file", "bos": False, "across": True}
    if case.task == "translate":
        data = {"source": text("source", 0), "valid_source": text("valid.source", 1, some)}
        data |= {"target": text("target", 2), "valid_target": text("valid.target", 3, some)}
    smoothing = 0.1 if case.task == "translate" else 0.0
    return recipe_from(
        {
            "task": case.task,
            "data": {**data, "max_length": case.length},
            "tokenizer": {"kind": "char", "vocab_size": case.vocab_size},
            "model": case.model,
            "train": {
                "device": device,
                "batch_tokens": case.rows * case.length,
                "lr": 1e-4,
                "warmup": 1,
                "schedule": "constant",
                "label_smoothing": smoothing,
            },
        }
    )


@dataclass(frozen=True)
class Item:
    """One sequence of a batch, without padding."""

    tokens: Tensor
    labels: Tensor
    source: Tensor


def items_of(batch: Batch, pad_id: int) -> list[Item]:
    """Take a batch of ours apart, whether it is padded or packed."""
    labels = batch.labels
    if batch.positions is not None:  # labels stand at some tokens only
        labels = torch.full_like(batch.target.tokens, IGNORE)
        labels.view(-1)[batch.positions] = batch.labels
    tokens = _split(batch.target.tokens, batch.target)
    sources = tokens if batch.source is None else _split(batch.source.tokens, batch.source)
    rows = zip(tokens, _split(labels, batch.target), sources, strict=True)
    return [Item(*row) for row in rows if len(row[0]) and not (row[0] == pad_id).all()]


def _split(values: Tensor, side: Any) -> list[Tensor]:
    if side.offsets is not None:
        return list(values.flatten().split(side.offsets.diff().tolist()))
    if side.lengths is not None:
        return [row[:length] for row, length in zip(values, side.lengths.tolist(), strict=True)]
    return list(values)


@dataclass(frozen=True)
class Rows:
    """A padded batch as transformers' collators make it, (B, T) and (B, S).

    There is no mask where nothing is padding: it would keep the peer from its fastest kernel.
    """

    tokens: Tensor
    mask: Tensor | None
    labels: Tensor
    source: Tensor
    source_mask: Tensor
    n_tokens: int

    @classmethod
    def of(cls, items: Sequence[Item], pad_id: int, multiple: int) -> Rows:
        """Pad sequences to the longest, rounded up to a multiple."""

        def padded(values: list[Tensor], fill: int) -> Tensor:
            rows = nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=fill)
            return F.pad(rows, (0, -rows.shape[1] % multiple), value=fill)

        tokens = [item.tokens for item in items]
        sources = [item.source for item in items]
        mask = padded([torch.ones_like(row) for row in tokens], 0)
        return cls(
            padded(tokens, pad_id),
            None if mask.all() else mask,
            padded([item.labels for item in items], IGNORE),
            padded(sources, pad_id),
            padded([torch.ones_like(row) for row in sources], 0),
            sum(map(len, tokens)),
        )

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What a peer's loss is computed from."""
        return self.tokens, self.mask, self.labels, self.source, self.source_mask


def in_rows(items: Sequence[Item], rows: int, pad_id: int, multiple: int) -> Iterator[Rows]:
    """Yield batches of so many sequences, in random order, without end."""
    while True:
        order = np.random.default_rng(2).permutation(len(items))
        for start in range(0, max(1, len(order) - rows + 1), rows):
            some = [items[number] for number in order[start : start + rows]]
            yield Rows.of(some, pad_id, multiple)


def translation_loss(logits: Callable[..., Tensor]) -> Loss:
    """Return the smoothed loss of a translation model."""

    def loss(
        tokens: Tensor, mask: Tensor | None, labels: Tensor, source: Tensor, seen: Tensor
    ) -> Tensor:
        scores = logits(source, seen, tokens)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), label_smoothing=0.1)

    return loss


def causal_loss(model: nn.Module) -> Loss:
    """Return the mean loss of a language model as transformers takes it, logits in float32."""

    def loss(tokens: Tensor, mask: Tensor | None, labels: Tensor, *unused: Tensor) -> Tensor:
        logits = model(input_ids=tokens, use_cache=False).logits.float()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return loss


def masked_loss(model: nn.Module) -> Loss:
    """Return the mean loss over hidden tokens, by transformers' own function."""

    def loss(tokens: Tensor, mask: Tensor | None, labels: Tensor, *unused: Tensor) -> Tensor:
        return model(input_ids=tokens, attention_mask=mask, labels=labels).loss

    return loss


def peer_of(trainer: Trainer, task: str, name: str) -> tuple[nn.Module, Loss]:
    """Build a fresh peer with its loss; with our weights, where its parts are the same."""
    model: Any = trainer.model
    if task == "generate":
        peer = causal_peer(model)
        return peer, causal_loss(peer)
    if task == "fill":
        masked = masked_peer(model)
        return masked, masked_loss(masked)
    if name == "nn.Transformer":
        plain = TorchTransformer(model.config).to(trainer.device)
        return plain, translation_loss(plain)
    hugging = marian(model.config).to(trainer.device)

    def logits(source: Tensor, seen: Tensor, target: Tensor) -> Tensor:
        inputs = {"input_ids": source, "attention_mask": seen, "decoder_input_ids": target}
        return hugging(**inputs, use_cache=False).logits

    return hugging, translation_loss(logits)


def ways(device: torch.device) -> tuple[str, ...]:
    """Return how a peer is run: each way in which it may be the fastest."""
    if device.type == "cuda":
        return ("compiled", "eager")
    return ("float32", "bfloat16") if has_bfloat16(device) else ("float32",)


def peer_steps(
    model: nn.Module, loss: Loss, batches: Sequence[Rows], way: str, clip: float
) -> Work:
    """Return the peer's training steps: AdamW, clipping and precision as ours."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4, fused=True)
    compute = torch.compile(loss) if way == "compiled" else loss
    kind, half = batches[0].tokens.device.type, way != "float32"

    def steps() -> None:
        for batch in batches:
            with torch.autocast(kind, torch.bfloat16, enabled=half):
                value = compute(*batch.tensors)
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return steps


def first_losses(trainer: Trainer, case: Case, batch: Batch) -> str:
    """Compare both sides' mean loss of the same batch, before any step."""
    if case.task == "translate":
        return ""  # its peers have weights of their own
    rows = Rows.of(items_of(batch, trainer.model.config.pad_id), trainer.model.config.pad_id, 1)
    ours = float(trainer.layout.loss_sum(batch, 0.0).detach()) / batch.n_labels
    with torch.no_grad():
        _, loss = peer_of(trainer, case.task, PEERS[case.task][0])
        theirs = float(loss(*rows.tensors))
    assert math.isclose(ours, theirs, rel_tol=0.01), f"losses differ: {ours}, {theirs}"
    return f"loss of the same batch: {ours:.3f}, {theirs:.3f}"


def compare(session: Session, case: Case, folder: Path) -> None:
    """Time our steps beside the peers'."""
    kind = session.device.type
    recipe, trainers, steps = recipe_of(case, folder, kind), list[Trainer](), list[list[Batch]]()

    def build_ours() -> Work:
        trainers.append(product_trainer(recipe, folder))
        for batches in islice(trainers[0].stream.steps_from(0), STEPS[kind]):
            steps.append([batch.to(session.device) for batch in batches])
        return lambda: [trainers[0].take_step(step) for step in steps]

    works, memory = dict[str, Work](), dict[str, float]()
    works["qkv"], memory["qkv"] = built(build_ours, session.device)
    trainer = trainers[0]
    pad_id = trainer.model.config.pad_id
    batches = [batch for step in steps for batch in step]
    items = [item for batch in batches for item in items_of(batch, pad_id)]
    rows = list(islice(in_rows(items, case.rows, pad_id, 8 if session.on_gpu else 1), len(steps)))
    check = first_losses(trainer, case, batches[0])
    amounts = {"qkv": float(sum(len(item.tokens) for item in items))}
    for way in ways(session.device):
        for name in PEERS[case.task]:

            def build_peer(name: str = name, way: str = way) -> Work:
                model, loss = peer_of(trainer, case.task, name)
                return peer_steps(model, loss, rows, way, trainer.config.clip)

            side = f"{name} {way}"
            works[side], memory[side] = built(build_peer, session.device)
            amounts[side] = sum(batch.n_tokens for batch in rows)
    flops = model_flops(trainer.model.config, items) / amounts["qkv"]
    session.compare(case.key, case.title, works, amounts, check, flops, memory)


def model_flops(config: ModelConfig, items: Sequence[Item]) -> int:
    """Count the operations of a forward and a backward pass over sequences, as `qkv plan` does.

    Nothing is counted for padding, nor what a side computes again.
    """
    reads = config.family == "encoder-decoder"
    sizes = Counter(
        (len(item.tokens), len(item.source) * reads, int((item.labels != IGNORE).sum()))
        for item in items
    )
    return sum(
        count * pass_cost(config, BatchSize(1, *size), Numerics()).flops()
        for size, count in sizes.items()
    )


def body(session: Session) -> None:
    """Compare all rows that were asked for."""
    for case in cases(session):
        with tempfile.TemporaryDirectory() as folder:
            compare(session, case, Path(folder))


def main(arguments: Sequence[str] | None = None) -> Session:
    return run(body, speed_parser("bench.train", __doc__), arguments)


if __name__ == "__main__":
    main()
