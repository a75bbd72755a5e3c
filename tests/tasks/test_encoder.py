"""The encoder: texts as vectors, what is like what, and its folder."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity, normalize

from qkv.config import EmbedConfig, TokenizerConfig
from qkv.errors import UserError
from qkv.tasks import Classifier, Encoder, encoder, reading
from qkv.tasks.classify import Classes
from qkv.text import Tokenizer, train_tokenizer
from tests.run.common import untaught

SENTENCES = [
    "the cat sat on the mat .",
    "a dog saw the (small) cat",
    "the dog sat, the cat ran!",
    "我爱你，中国。",
    "你爱我吗",
    "cats and dogs run",
]
KINDS = ("bpe", "unigram", "wordpiece", "char", "byte")
TEXTS = [*SENTENCES, "", "x", "the cat " * 7, "dog", "a cat saw a dog on a mat"]


@cache
def tokenizer(kind: str = "bpe") -> Tokenizer:
    made = train_tokenizer(SENTENCES * 4, TokenizerConfig(kind=kind, vocab_size=330))  # type: ignore[arg-type]
    made.add_special(["<mask>"])
    return made


def build(
    words: Tokenizer | None = None,
    head: str = "masked",
    settings: EmbedConfig | None = None,
    **sizes: Any,
) -> Encoder:
    """An encoder that never learnt anything, in float64."""
    words = words or tokenizer()
    usual = {"tie": "output", "embedding_scale": False, "head": head}
    return Encoder(untaught(words, times=3, **{**usual, **sizes}), words, settings)


@pytest.fixture(scope="module")
def plain() -> Encoder:
    return build()


def framed(one: Encoder, tokens: Sequence[int]) -> torch.Tensor:
    return torch.tensor([[one.tokenizer.bos_id, *tokens, one.tokenizer.eos_id]])


@torch.no_grad()
def states(one: Encoder, tokens: Sequence[int]) -> torch.Tensor:
    """What the model makes of one sequence alone, (T, D) in float64."""
    return one.model.hidden(framed(one, tokens))[0]


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether vectors in float32 are these, but for rounding."""
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    return torch.allclose(found.double(), expected.double(), rtol=0, atol=1e-6)


def test_a_vector_is_the_mean_over_all_tokens_or_the_first(plain: Encoder) -> None:
    for text in SENTENCES:
        vectors = states(plain, plain.tokenizer.encode(text))
        assert close(plain.embed(text), normalize(vectors.mean(0), dim=0))
        assert close(plain.embed(text, pooling="first"), normalize(vectors[0], dim=0))
        assert close(plain.embed(text, normalize=False), vectors.mean(0))
        assert plain.embed(text).norm() == pytest.approx(1, abs=1e-6)
    own = build(settings=EmbedConfig(pooling="first", normalize=False))
    assert close(own.embed("a dog"), states(own, own.tokenizer.encode("a dog"))[0])


@pytest.mark.parametrize("budget", [1, 40, 100_000])
@pytest.mark.parametrize("pooling", ["mean", "first", "last", "max", "weighted"])
def test_a_vector_does_not_depend_on_what_else_is_read(
    plain: Encoder, budget: int, pooling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = torch.stack([plain.embed(text, pooling=pooling) for text in TEXTS])
    monkeypatch.setitem(reading.BATCH_TOKENS, "cpu", budget)
    assert close(plain.embed(TEXTS, pooling=pooling), alone)


def test_long_texts_are_read_in_windows_that_count_by_their_tokens(plain: Encoder) -> None:
    text = "the cat " * 13 + "dog"
    tokens = plain.tokenizer.encode(text)
    room = 24 - 2
    assert len(tokens) == 27  # a window of 22 and one of 5
    parts = [states(plain, tokens[:room]), states(plain, tokens[room:])]
    assert close(plain.embed(text, normalize=False), torch.cat(parts).mean(0))
    first = (24 * parts[0][0] + 7 * parts[1][0]) / 31
    assert close(plain.embed(text, pooling="first"), normalize(first, dim=0))
    assert close(plain.embed([*TEXTS, text])[-1], plain.embed(text))


def test_blank_texts_are_the_empty_sequence(plain: Encoder) -> None:
    empty = normalize(states(plain, []).mean(0), dim=0)
    for blank in ("", "  ", "\t\u3000"):
        assert close(plain.embed(blank), empty)
    assert close(plain.embed(["dog", "", "cat"])[1], empty)


def test_an_unknown_pooling_is_a_mistake(plain: Encoder) -> None:
    with pytest.raises(UserError, match="pooling is 'median', but must be mean or first or"):
        plain.embed("dog", pooling="median")  # type: ignore[arg-type]


def test_similarity_is_the_cosine_of_texts_or_of_vectors(plain: Encoder) -> None:
    one, other = SENTENCES[:2], SENTENCES[1:5]
    vectors = [plain.embed(texts, normalize=False) for texts in (one, other)]
    expected = cosine_similarity(vectors[0][:, None], vectors[1][None], dim=-1)
    assert expected.shape == (2, 4)
    assert close(plain.similarity(one, other), expected)
    assert close(plain.similarity(7 * vectors[0], vectors[1]), expected)
    assert close(plain.similarity(one[0], vectors[1]), expected[:1])
    assert close(plain.similarity(vectors[0][1], other), expected[1:])
    assert plain.similarity(one, other)[1, 0] == pytest.approx(1, abs=1e-6)


@settings(max_examples=20)
@given(
    lines=st.lists(st.sampled_from([*TEXTS, "dog ", " ", "ran on", "mat"]), max_size=14),
    queries=st.lists(st.sampled_from(TEXTS), max_size=5),
    k=st.integers(1, 16),
    at_once=st.integers(1, 4),
)
def test_nearest_looks_at_every_line(
    plain: Encoder, lines: list[str], queries: list[str], k: int, at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "LINES_AT_ONCE", at_once)
        patch.setattr(encoder, "QUERIES_AT_ONCE", at_once)
        found = plain.nearest(queries, lines, k)
    assert len(found) == len(queries)
    for query, neighbours in zip(queries, found, strict=True):
        one = plain.embed(query)
        scores = {i: float(one @ plain.embed(t)) for i, t in enumerate(lines) if t.strip()}
        order = sorted(scores, key=lambda i: (-round(scores[i], 5), i))[:k]
        assert [lines[one.index] for one in neighbours] == [one.text for one in neighbours]
        assert [one.index for one in neighbours] == order
        for one in neighbours:
            assert one.score == pytest.approx(scores[one.index], abs=1e-6)


def test_one_query_has_its_neighbours_too(plain: Encoder) -> None:
    [found] = plain.nearest("dog", ["cat", "dog", "", "dog"], k=2)
    assert [(one.index, one.text) for one in found] == [(1, "dog"), (3, "dog")]
    assert plain.nearest(plain.embed("dog"), ["cat", "dog"], k=1)[0][0].index == 1
    with pytest.raises(UserError, match="k is 0, but must be at least 1"):
        plain.nearest("dog", ["cat"], k=0)


def test_equally_near_lines_stay_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class ByLength(Encoder):
        def embed(self, texts, *more, **settings):  # type: ignore[no-untyped-def,override]
            return normalize(torch.tensor([[1.0, len(text)] for text in texts]), dim=-1)

    lines = [letter * (2 + turn % 2) for turn in range(20) for letter in "abc"]
    expected = [index for index, line in enumerate(lines) if len(line) == 2]
    model = ByLength(build().model, tokenizer())
    for at_once in (1, 4, 100):
        monkeypatch.setattr(encoder, "LINES_AT_ONCE", at_once)
        for k in (1, 2, 7, 30):
            [found] = model.nearest(["xx"], lines, k)
            assert [one.index for one in found] == expected[:k]
        different = [f"{index:02}" for index in range(60)]
        [found] = model.nearest(["xx"], different, 20)
        assert [one.index for one in found] == list(range(20))


def test_another_tasks_folder_holds_an_encoder_too(tmp_path: Path) -> None:
    model = build(head="sequence", n_labels=2)
    model.model.float()
    Classifier(model.model, model.tokenizer, Classes(("bad", "good"))).save(tmp_path)
    found = Encoder.load(tmp_path)
    assert found.embedding == EmbedConfig()
    assert close(found.embed("a dog"), model.embed("a dog"))
    with pytest.raises(UserError, match="can embed texts, but not fill gaps"):
        found.fill("the <mask>")
