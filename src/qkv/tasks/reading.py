"""Framed texts through an encoder: what the verbs of understanding have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.convert.model_folder import (
    Tokenizers,
    Where,
    load_config,
    load_family,
    load_tokenizers,
    save_config,
    save_weights,
)
from qkv.data import Framed, Ragged, Specials, frame
from qkv.data.batch import in_rows
from qkv.data.sequences import side
from qkv.decode.generate import evaluating
from qkv.device import place
from qkv.errors import UserError
from qkv.model import Encoder, Layout
from qkv.text import Tokenizer
from qkv.text.record_template import HALF_CHARACTER

BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536}  # padding included
MOST_PADDING = 1 / 32  # of these; where there were more, another batch takes less time

Progress = Callable[[int], None]


class Reader:
    """An encoder with its vocabulary: frames token ids, and runs many of them in few passes."""

    def __init__(
        self, model: Encoder, tokenizer: Tokenizer, around: Sequence[Sequence[int]] = ()
    ) -> None:
        # What stands before, between and after texts, where it is not BOS, EOS and EOS
        self.model, self.tokenizer, self.around = model, tokenizer, around
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
        """Where the model is."""
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

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, without special tokens."""
        check_text(texts)
        return self.tokenizer.encode_many([text.strip() for text in texts])

    def batches(self, framed: Sequence[Framed]) -> Iterator[list[int]]:
        """What to run together: of similar length, within the budget, with little padding."""
        sizes = [len(one.tokens) for one in framed]
        rows = sorted(range(len(framed)), key=sizes.__getitem__, reverse=True)
        budget = BATCH_TOKENS[self.device.type]
        start = padding = 0
        for end, row in enumerate(rows):
            widest = sizes[rows[start]]
            padding += widest - sizes[row]
            full = (end + 1 - start) * widest > budget or padding > MOST_PADDING * budget
            if full and end > start:
                yield rows[start:end]
                start, padding = end, 0
        if rows:
            yield rows[start:]

    def pad(self, framed: Sequence[Framed]) -> tuple[Tensor, Layout, Tensor]:
        """Tokens (B, T), how they lie, and their segments."""
        tokens = Ragged.of([one.tokens for one in framed])
        segments = Ragged.of([one.segments for one in framed])
        places = in_rows(tokens.lengths, 1)
        laid = side(tokens, segments, places, self.special.pad).to(self.device)
        assert laid.segments is not None
        full = len(tokens.tokens) == laid.tokens.numel()
        return laid.tokens, Layout(None if full else laid.lengths), laid.segments

    @torch.inference_mode()
    def run(
        self,
        framed: Sequence[Framed],
        say: Callable[[Tensor, Layout, Tensor], Tensor] | None = None,
        progress: Progress | None = None,
    ) -> list[Tensor]:
        """What the model says of each, in float32 on the CPU: (C,), or (T, C) of its tokens.

        `say` may ask the model for another thing: tokens, layout and segments to (B, …).
        """
        found: list[Tensor] = [torch.empty(0)] * len(framed)
        by_sequence = self.model.config.head == "sequence" or say is not None
        with evaluating(self.model):
            for rows in self.batches(framed):
                said = (say or self.model)(*self.pad([framed[row] for row in rows])).float().cpu()
                for row, one in zip(rows, said, strict=True):
                    found[row] = one if by_sequence else one[: len(framed[row].tokens)]
                if progress:
                    progress(len(rows))
        return found


def by_text(progress: Progress, n_texts: int, n_framed: int) -> Progress:
    """Tell how many texts are read, where long ones are read in several windows."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        before, done = done * n_texts // n_framed, done + count
        progress(done * n_texts // n_framed - before)

    return advance


def load_encoder(folder: Where, device: torch.device | None) -> tuple[Encoder, Tokenizer]:
    """An encoder with its head, and its vocabulary, from a model folder."""
    _, config, _ = load_config(folder)
    model = place(load_family(folder, config, Encoder), device)
    return model, load_tokenizers(folder, config).target


def save_encoder(
    folder: Path, task: str, model: Encoder, tokenizer: Tokenizer, **sections: Any
) -> None:
    """Make a folder a model folder; `sections` are what the task knows beside the model."""
    Tokenizers(tokenizer, tokenizer).save(folder)
    save_config(folder, task, model.config, **sections)
    save_weights(folder, model)


def check_text(texts: Sequence[str]) -> None:
    """Refuse what is no text, naming its line."""
    for number, text in enumerate(texts, start=1):
        if HALF_CHARACTER.search(text):
            raise UserError(f"Line {number} holds bytes that are not UTF-8; convert it first.")
