from dataclasses import asdict
from json import dumps
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.config import ModelConfig
from qkv.inspect.style import styled
from qkv.labs import heads as lab
from qkv.labs.heads import LAB, Found, Lookup, Measured, Silenced
from qkv.model import EncoderDecoder, equation, fast


class Characters:
    """A tokenizer of one token a character."""

    def spell(self, text: str) -> Any:
        return SimpleNamespace(spans=[(place, place + 1) for place in range(len(text))])

    def encode(self, text: str) -> list[int]:
        return [4 + ord(character) % 20 for character in text]


@pytest.fixture
def subject() -> Any:
    """A tiny translator with random weights."""
    config = ModelConfig(
        vocab_size=24, d_model=16, n_heads=4, d_ff=16, n_encoder_layers=1, n_decoder_layers=1,
        dropout=0.0, max_length=32,
    )  # fmt: skip
    spell = Characters()
    model = EncoderDecoder(config).eval()
    return SimpleNamespace(model=model, tokenizers=SimpleNamespace(source=spell, target=spell))


def made_up(alone: float, many: float, control: float, silent: int = 2) -> Measured:
    lookups = [
        Lookup(relations, heads, 100, [value - 1, value + 1])
        for relations, first, later in ((1, 90.0, 90.0 + control), (4, alone, many))
        for heads, value in zip(lab.HEADS, (first, *[later] * 4), strict=True)
    ]
    heads = [Found("encoder 0 self", head, lab.NO_ROLE, 0.2, 0.1, 0.1, 90.0) for head in range(4)]
    curve = [
        Silenced(order, count, 99.0, 98.0 if count <= silent else 40.0)
        for order in lab.ORDERS
        for count in range(5)
    ]
    return Measured(lookups, heads, curve, 10)


def test_the_answers_are_the_symbols_so_many_places_before() -> None:
    symbols = torch.randint(16, (3, lab.LENGTH))
    wanted = lab.answers(symbols, 4)
    for place in range(lab.LENGTH):
        for number, offset in enumerate(lab.OFFSETS[4]):
            assert wanted[:, place, number].equal(symbols[:, (place - offset) % lab.LENGTH])


def test_every_number_of_heads_has_the_same_parameters_and_untrained_ones_guess() -> None:
    runs = [lab.look_up(4, heads, seed=0, steps=1) for heads in lab.HEADS]
    assert len({size for _, size in runs}) == 1
    assert all(right < 15 for right, _ in runs)  # chance is 6.25
    assert lab.look_up(4, 2, seed=0, steps=1) == runs[1]


def test_one_head_learns_one_lookup_better_than_four_at_once() -> None:
    single, several = (lab.look_up(relations, 1, 0, 120)[0] for relations in (1, 4))
    assert single > several + 20


def test_silencing_a_head_is_deleting_its_columns_of_the_output_projection(subject: Any) -> None:
    source, target = torch.randint(4, 24, (2, 5)), torch.randint(4, 24, (2, 6))
    model, parts = subject.model, list(lab.attentions(subject.model).values())
    quiet = [lab.attend_with([1] if place == 2 else []) for place in range(len(parts))]
    with torch.no_grad():
        whole = model(source, target)
        with lab.replaced(parts, quiet):
            silent = model(source, target)
        assert all(part.attend is fast for part in parts)
        parts[2].output.weight[:, 4:8] = 0.0
        torch.testing.assert_close(silent, model(source, target))
    assert not torch.allclose(silent, whole)


def test_attention_with_nobody_silent_is_the_equation() -> None:
    query, key, value = (torch.randn(2, 4, 3, 5) for _ in range(3))
    seen: list[torch.Tensor] = []
    mask = lab.Mask(causal=True)
    torch.testing.assert_close(
        lab.attend_with(seen=seen)(query, key, value, mask, 0.5),
        equation(query, key, value, mask, 0.5),
    )
    assert torch.allclose(seen[0].sum(-1), torch.ones(2, 4, 3))


def test_attentions_are_named_in_the_order_of_their_use(subject: Any) -> None:
    assert list(lab.attentions(subject.model)) == [
        "encoder 0 self", "decoder 0 self", "decoder 0 cross",
    ]  # fmt: skip


def test_a_noun_is_aligned_where_it_is_about_to_be_written(subject: Any) -> None:
    assert lab.aligned(subject, ("我吃苹果", "I eat apples")) == [(6, [2, 3])]
    assert lab.aligned(subject, ("那很贵", "that is expensive")) == []  # no hat, no pen


def test_a_query_looks_at_things_that_all_differ() -> None:
    found = lab.looks("encoder 0 self", 6, 6, [])
    for row in (2, 3):
        keys = [dict(rows)[row][0] for rows in found.values()]
        assert len(set(keys)) == 5
    assert dict(found["the token before"]) == {2: [1], 3: [2]}
    assert set(lab.looks("decoder 0 self", 4, 4, [])) == {
        "the token before", "itself", "the first token",
    }  # fmt: skip
    assert lab.looks("decoder 0 cross", 4, 6, [(3, [1])])["the word's source"] == [(3, [1])]


def test_heads_that_look_everywhere_alike_get_the_even_share(subject: Any) -> None:
    with torch.no_grad():
        for part in lab.attentions(subject.model).values():
            (part.query if hasattr(part, "query") else part.query_key_value).weight[:16] = 0.0
    for columns in lab.attention_shares(subject, [("我吃一个苹果", "I eat an apple")]).values():
        for share, even in columns.values():
            assert share == pytest.approx(even)


def test_the_least_important_head_goes_first() -> None:
    costs = {(0, 0): 3.0, (0, 1): 1.0, (1, 0): 2.0}

    class Judged:
        def forced(self, mute: Any) -> tuple[float, float]:
            return sum(costs[head] for head in mute), 100.0 - len(mute)

        def exact(self, mute: Any) -> float:
            return 100.0 - sum(costs[head] for head in mute)

    judged: Any = Judged()
    order = lab.least_important_first(judged, list(costs))
    assert order == [(0, 1), (1, 0), (0, 0)]
    curve = {(one.order, one.count): one.exact_match for one in lab.curves(judged, order, 0)}
    assert [curve[lab.ORDERS[0], count] for count in range(4)] == [100, 99, 97, 94]
    assert [curve[lab.ORDERS[2], count] for count in range(4)] == [100, 97, 95, 94]
    assert 97 <= curve[lab.ORDERS[1], 1] <= 99


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        (made_up(50, 99, control=0), "holds when"),
        (made_up(50, 99, control=9), "holds"),
        (made_up(97, 99, control=0), "does not hold"),
        (made_up(99, 60, control=0), "does not hold"),
    ],
)
def test_the_verdict_follows_the_figures(measured: Measured, outcome: str) -> None:
    verdict = LAB.judge(measured)
    assert verdict.outcome == outcome
    assert "2 can be silenced together for 1 %" in verdict.because.en


def test_spared_heads_cost_no_more_than_was_said() -> None:
    measured = made_up(50, 99, 0, silent=3)
    assert lab.spared(measured, 0.99) == lab.spared(measured, 0.95) == 3
    assert lab.spared(measured, 0.4) == 4
    assert lab.spared(made_up(50, 99, 0, silent=0), 0.99) == 0


def test_tables_and_figure_hold_the_figures() -> None:
    measured = made_up(50, 99, control=0)
    dumps(asdict(measured))
    first, second, third = LAB.tables(measured)
    assert first.rows[0] == ("1 × 64", "90.0 ± 1.4", "50.0 ± 1.4")
    assert len(second.rows) == 4 and third.rows[3] == ("3", "40.0", "40.0", "40.0")
    with styled():
        left, middle, right = LAB.draw(measured).axes
    assert list(left.lines[0].get_xdata())[:5] == list(lab.HEADS)
    assert len(middle.patches) == 4
    assert list(right.lines[0].get_ydata()) == [98, 98, 98, 40, 40]
