"""Something is broken, and just the rows fail that must."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.decode import greedy
from qkv.model import attention, cache, mask, stack
from qkv.proofs import batching, verify
from qkv.proofs.batching import level
from qkv.proofs.model_under_test import prepare
from qkv.text import Tokenizer
from qkv.training import checkpoint

pytestmark = pytest.mark.usefixtures("no_transformers")
Folder = Callable[[str], Path]
Patch = pytest.MonkeyPatch


def failing(folder: Path) -> set[str]:
    return {one.name for one in verify(folder, "cpu") if one.passed is False}


@pytest.mark.parametrize("kind", ["translator", "language model", "class", "image"])
def test_a_wrong_scale_on_the_fast_path(folder: Folder, kind: str, monkeypatch: Patch) -> None:
    right = attention.fast

    def wrong(query: Tensor, key: Tensor, value: Tensor, *more: Any, **settings: Any) -> Tensor:
        return right(query * 1.001, key, value, *more, **settings)

    monkeypatch.setattr(attention, "fast", wrong)
    assert failing(folder(kind)) == {"fast path = equation path"}


@pytest.mark.parametrize("kind", ["translator", "language model"])
def test_a_cache_that_drops_a_token(folder: Folder, kind: str, monkeypatch: Patch) -> None:
    right = cache.LayerCache.extend

    def forgetful(self: cache.LayerCache, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        key, value = right(self, key, value)
        lengths = torch.as_tensor(self.length).expand(len(value)).tolist()
        for row, length in enumerate(lengths):
            if length:
                value[row, :, length - 1] = 0.0
        return key, value

    monkeypatch.setattr(cache.LayerCache, "extend", forgetful)
    assert failing(folder(kind)) == {"cache = no cache"}


@pytest.mark.parametrize("kind", ["translator", "language model"])
def test_a_causal_mask_that_is_off_by_one(folder: Folder, kind: str, monkeypatch: Patch) -> None:
    """Whoever sees the next token also sees padding, and misses it where it is not there yet."""

    def wrong(layout: mask.Layout, causal: bool, window: int = 0) -> mask.Mask:
        found = mask.self_mask(layout, causal, window)
        return replace(found, start=1) if causal else found

    monkeypatch.setattr(stack, "self_mask", wrong)
    assert failing(folder(kind)) == {
        "the future is unseen",
        "cache = no cache",
        "padded = unpadded = packed",
        "accumulated = one batch",
    }


def test_padding_that_is_seen(folder: Folder, monkeypatch: Patch) -> None:
    def wrong(layout: mask.Layout, causal: bool, window: int = 0) -> mask.Mask:
        return mask.self_mask(replace(layout, lengths=None), causal, window)

    monkeypatch.setattr(stack, "self_mask", wrong)
    assert failing(folder("class")) == {"padded = unpadded = packed", "accumulated = one batch"}


@pytest.mark.parametrize("kind", ["translator", "fill"])
def test_texts_end_to_end_that_give_no_numbers(
    folder: Folder, kind: str, monkeypatch: Patch
) -> None:
    right = batching.packed

    def wrong(model: Any, examples: Sequence[Any]) -> list[Tensor]:
        return [said * float("nan") for said in right(model, examples)]

    monkeypatch.setattr(batching, "packed", wrong)
    assert failing(folder(kind)) == {"padded = unpadded = packed"}


def test_rows_that_see_each_other(folder: Folder, monkeypatch: Patch) -> None:
    right = stack.Stack.forward

    def wrong(self: stack.Stack, x: Tensor, *more: Any, **settings: Any) -> Tensor:
        said = right(self, x, *more, **settings)
        return said + 1e-6 * said.mean(dim=0)

    monkeypatch.setattr(stack.Stack, "forward", wrong)
    assert failing(folder("image")) == {"batch = single", "accumulated = one batch"}


@pytest.mark.parametrize("kind", ["translator", "language model"])
def test_a_greedy_search_that_takes_the_second_best(
    folder: Folder, kind: str, monkeypatch: Patch
) -> None:
    def wrong(scores: Tensor) -> Tensor:
        return scores.topk(2).indices[..., 1]

    monkeypatch.setattr(greedy, "likeliest", wrong)
    assert failing(folder(kind)) == {"beam 1 = greedy"}


def test_a_loader_that_swaps_two_tensors(folder: Folder, monkeypatch: Patch) -> None:
    from qkv.convert import model_folder as loading

    right = loading.fill_empty

    def wrong(model: Any, tensors: Any, *more: Any) -> None:
        one, other = (f"encoder.blocks.{at}.feed_forward.inner.bias" for at in (0, 1))
        swapped = {**tensors, one: tensors[other] + 0.1, other: tensors[one]}
        right(model, swapped, *more)

    monkeypatch.setattr(loading, "fill_empty", wrong)
    assert failing(folder("class")) == {"saved = loaded"}


@pytest.mark.parametrize("part", ["config", "vocabulary"])
def test_a_folder_that_is_changed(folder: Folder, part: str, monkeypatch: Patch) -> None:
    from qkv.proofs import saved_folder

    right, where = saved_folder.load, folder("class")

    def wrong(path: Any, device: str) -> Any:
        found = right(path, device)
        if part == "config":
            found.classes = replace(found.classes, overlap=1)
        else:
            found.tokenizer.add_special(["<other>"])
        return found

    monkeypatch.setattr(saved_folder, "load", wrong)
    [proof] = [one for one in verify(where, "cpu") if one.passed is False]
    assert (proof.name, proof.difference) == ("saved = loaded", None)
    assert ("settings of 'classes'" if part == "config" else "the vocabulary") in proof.note


@pytest.mark.parametrize("kind", ["translator", "language model", "fill"])
def test_a_tokenizer_that_loses_a_character(folder: Folder, kind: str, monkeypatch: Patch) -> None:
    right = Tokenizer.encode

    def wrong(self: Tokenizer, text: str) -> list[int]:
        return right(self, text)[:-1]

    monkeypatch.setattr(Tokenizer, "encode", wrong)
    assert failing(folder(kind)) == {"text = tokens = text"}


@pytest.mark.parametrize("kind", ["translator", "language model", "fill", "tag", "answer"])
def test_gradients_that_are_divided_by_each_batch(
    folder: Folder, kind: str, monkeypatch: Patch
) -> None:
    def wrong(loss_sum: Any, batches: Sequence[Any], smoothing: float) -> None:
        for batch in batches:
            (loss_sum(batch, smoothing) / batch.n_labels / len(batches)).backward()

    monkeypatch.setattr("qkv.proofs.learning.accumulate", wrong)
    assert failing(folder(kind)) == {"accumulated = one batch"}


@pytest.mark.parametrize("lost", ["exp_avg", "state"])
@pytest.mark.parametrize("kind", ["language model", "embed", "number"])
def test_a_checkpoint_that_forgets(
    folder: Folder, kind: str, lost: str, monkeypatch: Patch
) -> None:
    right = checkpoint.load_checkpoint

    def wrong(path: Path, model: Any, optimizer: torch.optim.Optimizer) -> checkpoint.TrainState:
        found = right(path, model, optimizer)
        if lost == "state":
            return replace(found, step=found.step - 1)
        for weight in model.parameters():
            if lost in optimizer.state[weight]:
                optimizer.state[weight][lost].zero_()
        return found

    monkeypatch.setattr("qkv.training.layout.load_checkpoint", wrong)
    assert failing(folder(kind)) == {"resumed = uninterrupted"}


def test_a_row_that_breaks_does_not_hide_the_others(folder: Folder, monkeypatch: Patch) -> None:
    def broken(*arguments: Any, **settings: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr("qkv.proofs.learning.build_loss", broken)
    proofs = {one.name: one for one in verify(folder("image"), "cpu") if one.passed is False}
    assert proofs.keys() == {"accumulated = one batch", "resumed = uninterrupted"}
    assert {one.note for one in proofs.values()} == {"RuntimeError: out of order"}


def test_texts_are_always_the_same_and_hold_no_special_tokens(folder: Folder) -> None:
    first, again = (prepare(folder("language model"), "cpu") for _ in range(2))
    texts = [example.tokens for example in first.examples]
    assert texts == [example.tokens for example in again.examples]
    special = set(first.loaded.tokenizer.special_ids)
    for tokens in texts:
        assert tokens[0] == first.special.bos
        assert not special & set(tokens[1:])
    assert len({len(tokens) for tokens in texts}) == len(texts)
    assert len({len(example.tokens) for example in level(first.examples)}) == 1
