"""Prefill: reading sources and prompts into the KV cache before the first token is generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.batching import on_device, pad_rows
from qkv.decode.request import Handle
from qkv.model import Decoder, EncoderDecoder, Layout, Memory, NewTokens

Generative = EncoderDecoder | Decoder

LEAST_SHARED = 16  # tokens; copying the keys of fewer costs more than reading them again


def empty_store(model: Generative, rows: int, slots: int) -> Tensor:
    """Allocate keys and values of all layers, (layers, 2, R, G, L, D/H), in attention's dtype."""
    config = model.config
    shape = (config.n_decoder_layers, 2, rows, config.kv_heads, slots, config.d_head)
    return next(model.parameters()).new_zeros(shape, dtype=attention_dtype(model))


def bytes_per_slot(model: Generative) -> int:
    """Memory of one token's keys and values in all layers."""
    config = model.config
    numbers = 2 * config.n_decoder_layers * config.kv_heads * config.d_head
    return numbers * attention_dtype(model).itemsize


def attention_dtype(model: Generative) -> torch.dtype:
    """Return the dtype of keys and values: that of the weights, or autocast's."""
    weight = next(model.parameters())
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def read(model: Generative, tokens: Tensor, memory: Memory | None, cache: NewTokens) -> Tensor:
    """Read tokens, (rows, T), into the cache, and return the hidden states, (rows, T, D)."""
    if isinstance(model, Decoder):
        return model.hidden(tokens, cache=cache)
    assert memory is not None
    return model.decode(tokens, memory, cache=cache)


@dataclass
class Prefill:
    """Requests that are read together, some tokens at a time.

    All tokens of a prompt but the last are read; the first step of the search reads that. What
    every prompt begins with is read once.
    """

    handles: Sequence[Handle]
    store: Tensor  # (layers, 2, B or 1, G, L, D/H); one row while all read what they share
    n_shared: int  # tokens that all prompts begin with
    n_read: int = 0
    memory: Memory | None = None  # sources of an encoder-decoder
    prompts: list[tuple[int, ...]] = field(init=False)  # without the last token

    def __post_init__(self) -> None:
        self.prompts = [handle.request.prompt[:-1] for handle in self.handles]

    @classmethod
    def begin(cls, model: Generative, handles: Sequence[Handle], known: Tensor | None) -> Prefill:
        """Encode the sources, and make room; `known` keys begin the only prompt, if there are."""
        prompts = [handle.request.prompt[:-1] for handle in handles]
        memory, n_shared = None, 0
        if isinstance(model, EncoderDecoder):
            memory = encode(model, [handle.request.source for handle in handles])
        elif len(handles) > 1:
            n_shared = common(prompts)
            n_shared = n_shared if n_shared >= LEAST_SHARED else 0
        rows = 1 if n_shared else len(handles)
        store = empty_store(model, rows, max(map(len, prompts)))
        prefill = cls(handles, store, n_shared, memory=memory)
        if known is not None:
            prefill.n_read = known.shape[4]
            store[:, :, :, :, : prefill.n_read] = known
        return prefill

    @property
    def n_left(self) -> int:
        """Tokens of the longest prompt that are still to be read."""
        return max(map(len, self.prompts)) - self.n_read

    def advance(self, model: Generative, most: int) -> None:
        """Read at most so many tokens of each prompt."""
        start = self.n_read
        shared = start < self.n_shared
        end = min(start + most, self.n_shared if shared else start + self.n_left)
        rows = self.prompts[:1] if shared else self.prompts
        if not shared and self.store.shape[2] < len(rows):
            self.store = self.store.expand(-1, -1, len(rows), -1, -1, -1).clone()
        # One that is read already stays a row; the longest prompt fills all columns.
        tokens = pad_rows([prompt[start:end] for prompt in rows])
        tokens = on_device(tokens, self.store.device)
        read(model, tokens, self.memory, NewTokens(self.store, start, end))
        for handle, prompt in zip(self.handles, self.prompts, strict=True):
            handle.n_read += max(0, min(end, len(prompt)) - start)
        self.n_read = end


def common(sequences: Sequence[Sequence[int]]) -> int:
    """Length of the longest prefix that all sequences share."""
    first, last = min(map(list, sequences)), max(map(list, sequences))
    pairs = zip(first, last, strict=False)
    different = (index for index, (left, right) in enumerate(pairs) if left != right)
    return next(different, min(len(first), len(last)))


def encode(model: EncoderDecoder, sources: Sequence[Sequence[int]]) -> Memory:
    """Read sources of any lengths in one batch."""
    device, pad = next(model.parameters()).device, model.config.pad_id
    lengths = [len(source) for source in sources]
    layout = Layout()
    if min(lengths) < max(lengths):
        layout = Layout(lengths=on_device(lengths, device))
    return model.remember(on_device(pad_rows(sources, pad), device), layout)
