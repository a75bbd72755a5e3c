"""Silencing is deleting, shares add up, roles are what heads look at, and orders are orders."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.model import Mask, equation, fast, use_path
from qkv_labs.heads import roles as lab
from qkv_labs.tools import encoder_decoder


class Characters:
    """A tokenizer of one token a character."""

    def encode_spans(self, text: str) -> Any:
        return SimpleNamespace(spans=[(start, start + 1) for start in range(len(text))])

    def encode(self, text: str) -> list[int]:
        return [4 + ord(character) % 20 for character in text]

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]


@pytest.fixture
def subject() -> Any:
    """A tiny translator with random weights."""
    model = encoder_decoder(24, 16, 1, max_length=32).eval()
    spell = Characters()
    return SimpleNamespace(model=model, tokenizers=SimpleNamespace(source=spell, target=spell))


def test_silencing_a_head_is_deleting_its_columns_of_the_output_projection(subject: Any) -> None:
    source, target = torch.randint(4, 24, (2, 5)), torch.randint(4, 24, (2, 6))
    model, parts = subject.model, list(lab.attentions(subject.model).values())
    with torch.no_grad():
        whole = model(source, target)
        with use_path(parts[2], lab.attend_with([1])):
            silent = model(source, target)
        parts[2].output.weight[:, 4:8] = 0.0
        torch.testing.assert_close(silent, model(source, target))
    assert not torch.allclose(silent, whole)


def test_an_exam_is_the_same_as_each_pair_alone(subject: Any) -> None:
    pairs = [("abcd", "xy"), ("a", "xyzuv")]
    exam, spell, config = lab.Exam(subject, pairs), Characters(), subject.model.config
    with torch.no_grad():
        subject.model.decoder.blocks[0].cross_attention.output.weight[:, 4:8] = 0.0
        silent = exam.forced([])
        assert exam.forced([(2, 1)]) == pytest.approx(silent)  # it said nothing anyway
        assert exam.forced([(2, 0)])[0] != pytest.approx(silent[0])
        losses, right = [], []
        for source, target in pairs:
            written = spell.encode(target)
            read = torch.tensor([[*spell.encode(source), config.eos_id]])
            logits = subject.model(read, torch.tensor([[config.bos_id, *written]]))[0]
            labels = torch.tensor([*written, config.eos_id])
            losses += torch.nn.functional.cross_entropy(logits, labels, reduction="none").tolist()
            right += (logits.argmax(-1) == labels).tolist()
    assert silent[0] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert silent[1] == pytest.approx(100 * sum(right) / len(right))


def test_exact_matches_are_counted_while_heads_are_silent(subject: Any) -> None:
    muted = []

    def translate(sources: list[str], beams: int) -> list[str]:
        muted.append([part.attend is not fast for part in exam.modules])
        return ["one", "wrong"]

    subject.translate = translate
    exam = lab.Exam(subject, [("a", "one"), ("b", "two")])
    assert exam.exact([(1, 0)]) == 50
    assert muted == [[True] * 3] and all(part.attend is fast for part in exam.modules)


def test_attention_with_nobody_silent_is_the_equation() -> None:
    query, key, value = (torch.randn(2, 4, 3, 5) for _ in range(3))
    seen: list[torch.Tensor] = []
    mask = Mask(causal=True)
    torch.testing.assert_close(
        lab.attend_with(seen=seen)(query, key, value, mask, 0.5),
        equation(query, key, value, mask, 0.5),
    )
    assert torch.allclose(seen[0].sum(-1), torch.ones(2, 4, 3))


def test_attentions_are_named_in_the_order_of_their_use(subject: Any) -> None:
    assert list(lab.attentions(subject.model)) == [
        "encoder 0 self",
        "decoder 0 self",
        "decoder 0 cross",
    ]


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
        "the token before",
        "itself",
        "the first token",
    }
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

    class Exam:
        heads = (*costs,)

        def forced(self, mute: Any) -> tuple[float, float]:
            return sum(costs[head] for head in mute), 100.0 - len(mute)

        def exact(self, mute: Any) -> float:
            return 100.0 - sum(costs[head] for head in mute)

    exam: Any = Exam()
    order = lab.least_important_first(exam)
    assert order == [(0, 1), (1, 0), (0, 0)]
    curve = {
        (one.order, one.count): one.exact_match for one in lab.silencing_curves(exam, order, 0)
    }
    assert [curve[lab.ORDERS[0], count] for count in range(4)] == [100, 99, 97, 94]
    assert [curve[lab.ORDERS[2], count] for count in range(4)] == [100, 97, 95, 94]
    assert 97 <= curve[lab.ORDERS[1], 1] <= 99
