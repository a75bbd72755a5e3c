"""Framed texts through an encoder: what embed, fill, classify, tag and answer share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.batching import BATCH_TOKENS, batches
from qkv.convert.model_folder import (
    StoredModel,
    Tokenizers,
    check_special,
    load_config,
    load_family,
    load_tokenizers,
    model_content,
    save_model_folder,
)
from qkv.data import Framed, Ragged, Specials, arrange, frame, windows
from qkv.errors import UserError
from qkv.model import Encoder, Layout, evaluating
from qkv.tasks.texts import Progress, listed_texts
from qkv.text import Tokenizer

MOST_PADDING = 1 / 32  # of a batch; with more, another one takes less time


class Reader:
    """An encoder with its vocabulary: frames token ids, and runs many of them in few passes."""

    def __init__(
        self, model: Encoder, tokenizer: Tokenizer, around: Sequence[Sequence[int]] = ()
    ) -> None:
        # Ids before, between and after texts, where these are not BOS, EOS and EOS
        self.model, self.tokenizer, self.around = model, tokenizer, around
        if not around:
            check_special("config.json", model.config, "pad_id", "bos_id", "eos_id")
        if self.room() < 1:
            raise UserError(
                f"A model of max_length {model.config.max_length} has no room for text beside the "
                f"special tokens; give it a larger one."
            )

    @property
    def special(self) -> Specials:
        """The ids of the tokens that are not text."""
        config = self.model.config
        return Specials(config.pad_id, config.bos_id, config.eos_id)

    @property
    def device(self) -> torch.device:
        """The device of the model's weights."""
        return next(self.model.parameters()).device

    def room(self, pair: bool = False) -> int:
        """How many tokens of text fit beside the special ones."""
        config = self.model.config
        before, between, after = map(len, self.around or [[0], [0] * config.pair_separators, [0]])
        return config.max_length - before - after - (between if pair else 0)

    def frame(self, first: Sequence[int], second: Sequence[int] | None = None) -> Framed:
        """Put special tokens around one text or two that fit."""
        if not self.around:
            return frame(first, second, self.special, self.model.config.pair_separators)
        before, between, after = self.around
        rest = after if second is None else (*between, *second, *after)
        tokens = [*before, *first, *rest] or [self.special.pad]  # the last one is looked at
        return Framed(tokens, [0] * len(tokens))

    def windows(self, tokens: Sequence[int], size: int, overlap: int = 0) -> list[Framed]:
        """Frame a text in windows of at most `size` tokens."""
        return [self.frame(tokens[a:b]) for a, b in windows(len(tokens), size, overlap)]

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Token ids of texts as they are, without special tokens; blank texts have none."""
        texts = listed_texts(texts)
        return self.tokenizer.encode_many([text if text.strip() else "" for text in texts])

    def batches(self, framed: Sequence[Framed]) -> Iterator[list[int]]:
        """Rows to run together: of similar length, within the budget, with little padding."""
        sizes = [len(text.tokens) for text in framed]
        return batches(sizes, BATCH_TOKENS[self.device.type], MOST_PADDING)

    def pad(self, framed: Sequence[Framed]) -> tuple[Tensor, Layout, Tensor]:
        """Tokens (B, T), their layout, and their segments (B, T)."""
        tokens = Ragged.of([text.tokens for text in framed])
        segments = Ragged.of([text.segments for text in framed])
        placement = arrange(tokens.lengths)
        side = placement.side(placement.write(tokens, self.special.pad), segments).to(self.device)
        assert side.segments is not None
        full = len(tokens.tokens) == side.tokens.numel()
        return side.tokens, Layout(None if full else side.lengths), side.segments

    @torch.inference_mode()
    def run(
        self,
        framed: Sequence[Framed],
        forward: Callable[[Tensor, Layout, Tensor], Tensor] | None = None,
        progress: Progress | None = None,
    ) -> list[Tensor]:
        """The model's output for each text, in float32 on the CPU: (C,), or (T, C) by token.

        `forward` may be another function of tokens, layout and segments, to (B, …).
        """
        found: list[Tensor] = [torch.empty(0)] * len(framed)
        by_sequence = self.model.config.head == "sequence" or forward is not None
        with evaluating(self.model):
            for rows in self.batches(framed):
                outputs = (forward or self.model)(*self.pad([framed[row] for row in rows]))
                for row, output in zip(rows, outputs.float().cpu(), strict=True):
                    found[row] = output if by_sequence else output[: len(framed[row].tokens)]
                if progress:
                    progress(len(rows))
        return found


def flattened(framed: Iterable[Sequence[Framed]]) -> tuple[list[Framed], list[int]]:
    """Join the windows of all texts, and tell each one's text by its index."""
    of_text = list(framed)
    owners = [owner for owner, parts in enumerate(of_text) for _ in parts]
    return list(chain.from_iterable(of_text)), owners


def averaged(
    values: Tensor, owners: Sequence[int], n_texts: int, weights: Tensor | None = None
) -> Tensor:
    """Return the mean (N, D) over each text's windows, weighed by `weights` (W,) or all alike."""
    weights = values.new_ones(len(values)) if weights is None else weights
    rows = torch.tensor(owners)
    totals = values.new_zeros(n_texts, values.shape[1])
    totals.index_add_(0, rows, weights[:, None] * values)
    return totals / values.new_zeros(n_texts).index_add_(0, rows, weights)[:, None]


def by_text(progress: Progress, n_texts: int, n_framed: int) -> Progress:
    """Count texts instead of windows, of which a long text has several."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        before, done = done * n_texts // n_framed, done + count
        progress(done * n_texts // n_framed - before)

    return advance


def load_encoder(folder: StoredModel, device: torch.device) -> tuple[Encoder, Tokenizer]:
    """Read an encoder with its head, and its vocabulary, from a model folder."""
    _, config, _ = load_config(folder)
    model = load_family(folder, config, Encoder, device)
    return model, load_tokenizers(folder, config).target


def save_encoder(
    folder: str | Path, task: str, model: Encoder, tokenizer: Tokenizer, **sections: Any
) -> None:
    """Write a model folder; `sections` are what the task knows beside the model."""
    content = model_content(task, model.config, **sections)
    save_model_folder(folder, content, model, Tokenizers(tokenizer, tokenizer))
