"""Reading framed texts: each gets what it would get alone, in its place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkv.data import Framed, frame
from qkv.errors import UserError
from qkv.model import Layout
from qkv.tasks import reading
from qkv.tasks.reading import Reader, by_text
from tests.tasks.understand_tiny import TOKENIZER, encoder

TEXTS = [
    "the cat",
    "",
    "a dog sees the cat",
    "猫",
    "no",
    "birds likes fish",
    "the cat",
    "  a dog\r",
]


def reader(**differences: object) -> Reader:
    return Reader(encoder(**differences), TOKENIZER)


def framed(one: Reader) -> list[Framed]:
    """Texts and pairs of every length that fits."""
    tokens = one.encode(TEXTS)
    room = one.room(pair=True)
    pairs = zip(tokens, reversed(tokens), strict=True)
    return [one.frame(ids) for ids in tokens] + [
        one.frame(first[: room // 2], second[: room // 2]) for first, second in pairs
    ]


def alone(one: Reader, text: Framed) -> Tensor:
    """The model as it is, without a batch or a layout."""
    segments = torch.tensor([text.segments])
    with torch.no_grad():
        return one.model(torch.tensor([text.tokens]), Layout(), segments)[0].float()


@pytest.mark.parametrize("budget", [1, 30, 100, 10_000])
@pytest.mark.parametrize("head", ["sequence", "token"])
def test_batched_is_one_by_one_and_the_order_is_kept(
    head: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reading.BATCH_TOKENS, "cpu", budget)
    one = reader(head=head)
    texts = framed(one)
    found = one.run(texts)
    assert len(found) == len(texts)
    for said, text in zip(found, texts, strict=True):
        expected = alone(one, text)
        assert said.shape == ((3,) if head == "sequence" else (len(text.tokens), 3))
        assert said.dtype == torch.float32
        torch.testing.assert_close(said, expected, rtol=1e-6, atol=1e-6)
    distinct = {tuple(said.flatten().tolist()) for said in found}
    assert len(distinct) >= len({(*text.tokens, *text.segments) for text in texts}) > 10


@given(st.lists(st.integers(2, 24), min_size=0, max_size=30), st.integers(1, 100))
def test_batches_hold_each_text_once_within_the_budget(lengths: list[int], budget: int) -> None:
    texts = [Framed([0] * n, [0] * n) for n in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(reading.BATCH_TOKENS, "cpu", budget)
        batches = list(ONE.batches(texts))
    assert sorted(row for rows in batches for row in rows) == list(range(len(texts)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= budget


ONE = reader()


def test_a_model_in_training_stays_so_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    one = reader()
    texts = framed(one)
    one.model.train()
    monkeypatch.setattr(one, "pad", lambda texts: (_ for _ in ()).throw(RuntimeError()))
    with pytest.raises(RuntimeError):
        one.run(texts)
    assert one.model.training


def test_another_thing_can_be_asked_of_the_model() -> None:
    def first_vectors(tokens: Tensor, layout: Layout, segments: Tensor) -> Tensor:
        return ONE.model.hidden(tokens, layout, segments)[:, 0]

    texts = framed(ONE)
    for said, text in zip(ONE.run(texts, first_vectors), texts, strict=True):
        with torch.no_grad():
            x = ONE.model.hidden(
                torch.tensor([text.tokens]), Layout(), torch.tensor([text.segments])
            )
        torch.testing.assert_close(said, x[0, 0].float(), rtol=1e-6, atol=1e-6)


def test_frames_are_filled_to_the_brim() -> None:
    for separators in (1, 2):
        one = reader(pair_separators=separators)
        single = one.frame([5] * one.room())
        pair = one.frame([5] * 3, [6] * (one.room(pair=True) - 3))
        assert len(single.tokens) == len(pair.tokens) == one.model.config.max_length
        assert pair == frame([5] * 3, [6] * (one.room(pair=True) - 3), one.special, separators)
        assert one.run([single, pair])[0].shape == (3,)


def test_a_text_is_read_as_it_is_and_a_blank_one_has_no_tokens() -> None:
    texts = ["  a dog ", "a dog", " \t "]
    assert ONE.encode(texts) == [TOKENIZER.encode("  a dog "), TOKENIZER.encode("a dog"), []]
    assert ONE.encode(iter(texts)) == ONE.encode(texts)


@given(st.integers(1, 20), st.lists(st.integers(1, 9), min_size=1))
def test_progress_in_windows_ends_at_the_number_of_texts(n_texts: int, parts: list[int]) -> None:
    told: list[int] = []
    advance = by_text(told.append, n_texts, sum(parts))
    for part in parts:
        advance(part)
    assert sum(told) == n_texts
    assert min(told) >= 0


@pytest.mark.parametrize("name", ["pad_id", "bos_id", "eos_id"])
def test_special_tokens_that_the_model_does_not_know_are_refused(name: str) -> None:
    size = encoder().config.vocab_size
    with pytest.raises(UserError, match=f"{name} is {size}, but the model's tokens go from 0"):
        reader(**{name: size})
