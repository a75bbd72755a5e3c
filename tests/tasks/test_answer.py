"""Answers: the best of all spans of all windows, and where in the text they stand."""

import dataclasses
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import qkv
from qkv.config import TokenizerConfig
from qkv.data import Framed
from qkv.errors import UserError
from qkv.model import Encoder, Layout
from qkv.tasks import answer as answering
from qkv.tasks.answer import Answered, Answerer, Answers, Found
from qkv.text import Tokenizer, train_tokenizer
from tests.run.common import untaught

TEXT = "the cat sees the dog. 我爱你，猫。 a fish is a bird 🐟, café! 12 of 34."
KINDS = ("char", "byte", "bpe", "unigram", "wordpiece")
SETTINGS = Answers(overlap=5, max_question=6, max_answer=4)
LONG = "the cat sees the dog. 猫爱鱼。 the fish 🐟 sees a bird, 12 of 34 dogs see the cat."
PAIRS = [
    ("who sees?", LONG),
    ("什么？", "我爱你，猫。"),
    ("", LONG),
    ("who?", " \n "),
    ("how many?", LONG),
    ("what is the cat and what is the dog?", "a bird 🐟 a fish"),
    ("🐟?", "🐟"),
    ("who?", ""),
]
# what is composed, spelt in bytes, joined or white space
TRICKY = st.sampled_from(
    (
        *("the", " ", "  ", "\n", "cat", "我爱你", "，", "é", "e\u0301", "o\u0323\u0302", "\u0301"),
        *(
            "😀",
            "👩\u200d👧",
            "🇩🇪",
            "각",
            "\u1100\u1161\u11a8",
            "か\u3099",
            "12",
            ".",
            "\u3000",
            "ﬁ",
        ),
    )
)
TEXTS = st.lists(TRICKY, max_size=14).map("".join)


@cache
def vocabulary(kind: str) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=330)  # type: ignore[arg-type]
    return train_tokenizer([TEXT] * 3, config)


def answerer(kind: str = "char", how: Answers = SETTINGS, **sizes: Any) -> Answerer:
    """A model that never learnt anything, in float64."""
    usual = {"n_encoder_layers": 1, "head": "token", "n_labels": 2}
    return Answerer(untaught(vocabulary(kind), **{**usual, **sizes}), vocabulary(kind), how)


@torch.no_grad()
def read(model: Encoder, first: list[int], second: list[int]) -> Tensor:
    """What the model says of a question and a window, read alone, (T, 2)."""
    config = model.config
    head = [config.bos_id, *first, *[config.eos_id] * config.pair_separators]
    tokens = [*head, *second, config.eos_id]
    segments = [0] * len(head) + [int(config.pair_separators == 1)] * (len(second) + 1)
    return model(torch.tensor([tokens]), Layout(), torch.tensor([segments]))[0].float().double()


def tried_out(one: Answerer, question: str, context: str) -> tuple[dict[Any, float], float]:
    """All stretches of text that some span of some window has, with scores; and that of none."""
    how, spelt = one.settings, one.tokenizer.encode_spans(context)
    room = one.model.config.max_length - 2 - one.model.config.pair_separators
    asked = one.tokenizer.encode(question) if question.strip() else []
    asked = asked[: min(how.max_question, room // 2)]
    size = room - len(asked)
    found: dict[Any, float] = {}
    nulls, start, n = [], 0, len(spelt.ids)
    while True:
        said = read(one.model, asked, spelt.ids[start : start + size])
        nulls.append(float(said[0].sum()))
        begin = 1 + len(asked) + one.model.config.pair_separators
        for i in range(start, min(start + size, n)):
            for j in range(i, min(i + how.max_answer, start + size, n)):
                place = spelt.spans[i][0], spelt.spans[j][1]
                ends = [context[slice(*spelt.spans[k])].strip() for k in (i, j)]
                score = float(said[begin + i - start, 0] + said[begin + j - start, 1])
                if all(ends):
                    found[place] = max(score, found.get(place, -math.inf))
        if start + size >= n:
            return found, min(nulls)
        start += size - min(how.overlap, size // 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("separators", [1, 2])
def test_the_best_answers_are_those_of_trying_out_all_spans(kind: str, separators: int) -> None:
    one = answerer(kind, pair_separators=separators)
    for question, context in [PAIRS[0], PAIRS[1], PAIRS[5], PAIRS[6]]:
        expected, _ = tried_out(one, question, context)
        [found] = one.answers([(question, context)], n_best=10_000)
        assert {(each.start, each.end): each.score for each in found} == pytest.approx(expected)
        assert len(found) == len(expected)
        scores = [each.score for each in found]
        assert scores == sorted(scores, reverse=True)
        shares = torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
        assert [each.probability for each in found] == pytest.approx(shares)
        assert all(context[each.start : each.end] == each.text for each in found)
        [few] = one.answers([(question, context)], n_best=3)
        assert [each.text for each in few] == [each.text for each in found[:3]]
    assert len(one.frame([LONG], [one.spell([LONG])[LONG]])) > 2  # there were windows to merge


@pytest.mark.parametrize("pool", [1, 2, 7])
@pytest.mark.parametrize("kind", ["byte", "char"])
def test_merged_windows_and_bytes_leave_as_many_answers_as_were_asked_for(
    kind: str, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans of the same characters must not crowd out others."""
    monkeypatch.setattr(answering, "POOL", 1)
    one = answerer(kind, how=dataclasses.replace(SETTINGS, overlap=9))
    for context in (LONG, "🐟🐟 🐟"):
        expected, _ = tried_out(one, "who?", context)
        found = one.answer("who?", context, n_best=pool).n_best
        best = sorted(expected.values(), reverse=True)[:pool]
        assert [each.score for each in found] == pytest.approx(best)


@given(context=TEXTS, question=TEXTS)
@settings(max_examples=40)
@pytest.mark.parametrize("kind", ["bpe", "byte", "wordpiece"])
def test_an_answer_is_what_stands_where_it_says(kind: str, context: str, question: str) -> None:
    found = answerer(kind).answer(question, context, n_best=50).n_best
    places = [(each.start, each.end) for each in found]
    assert len(set(places)) == len(places)
    if not (question.strip() and context.strip()):
        assert places == [(-1, -1)]
        return
    for each in found:
        assert 0 <= each.start < each.end <= len(context)
        assert each.text == context[each.start : each.end] == each.text.strip() != ""


def pointing(one: Answerer, first: str, last: str) -> Answerer:
    """One who finds the answer from the last token of `first` on to that of `last`."""
    start, end = (one.tokenizer.encode(text)[-1] for text in (first, last))

    def run(framed: Sequence[Framed], **_: Any) -> list[Tensor]:
        tokens = [torch.tensor(each.tokens) for each in framed]
        return [9.0 * torch.stack([each == start, each == end], -1) for each in tokens]

    one.reader.run = run  # type: ignore[method-assign, assignment]
    return one


@pytest.mark.parametrize(
    ("context", "first", "last", "text"),
    [
        ("我爱你，猫。", "爱", "猫", "爱你，猫"),
        ("👩\u200d👧 a 🐟, 12", "🐟", "2", "🐟, 12"),
        ("cafe\u0301 ole\u0301!", "a", "\u00e9", "afe\u0301"),
        ("\n\n  a cat \r\n", "c", "t", "cat"),
        ("the cat\nsees it", "t", "s", "t\nsees"),
    ],
)
def test_places_are_counted_in_characters_of_the_text_as_given(
    context: str, first: str, last: str, text: str
) -> None:
    one = pointing(answerer(how=Answers(max_answer=9), max_length=64), first, last)
    found = one.answer("who?", context, n_best=99)
    best = [each for each in found.n_best if each.score == found.score]
    assert found.score == 18.0
    assert text in [each.text for each in best]
    assert all(context[each.start : each.end] == each.text for each in found.n_best)


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_many_questions_are_answered_as_each_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = answerer(kind, how=dataclasses.replace(SETTINGS, unanswerable=True))
    alone = [one.answer(*pair, n_best=5) for pair in PAIRS]
    monkeypatch.setattr(answering, "CHUNK", 3)
    counts: list[int] = []
    together = one.answers(PAIRS, n_best=5, progress=counts.append)
    assert counts == [3, 3, 2]
    for found, single in zip(together, alone, strict=True):
        assert isinstance(single, Answered)
        assert single.n_best[0] == Found(**{k: v for k, v in vars(single).items() if k != "n_best"})
        for each, other in zip(found, single.n_best, strict=True):
            assert (each.text, each.start, each.end) == (other.text, other.start, other.end)
            assert each.score == pytest.approx(other.score, abs=1e-5)
            assert each.probability == pytest.approx(other.probability, abs=1e-5)


def test_a_text_is_cut_into_tokens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, spelt = answerer(), []
    plain = Tokenizer.encode_spans_many

    def encode_spans_many(self: Tokenizer, texts: Sequence[str]) -> Any:
        spelt.extend(texts)
        return plain(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_spans_many", encode_spans_many)
    monkeypatch.setattr(answering, "CHUNK", 2)
    one.answers([(f"{number}?", LONG) for number in range(7)])
    assert spelt == [LONG]


def test_no_answer_is_one_of_the_candidates_where_there_may_be_none() -> None:
    expected, null = tried_out(answerer(), *PAIRS[0])
    best = max(expected.values())

    def ask(no_answer: float) -> list[Found]:
        how = dataclasses.replace(SETTINGS, unanswerable=True, no_answer=no_answer)
        return list(answerer(how=how).answer(*PAIRS[0], n_best=10_000).n_best)

    for margin in (best - null - 0.01, -100.0):
        assert ask(margin)[0].score == pytest.approx(best)  # it exceeds none by more than that
    for margin in (best - null + 0.01, 100.0):
        first, second = ask(margin)[:2]
        assert (first.text, first.start, first.end) == ("", -1, -1)
        assert first.score == pytest.approx(null)
        assert second.score == pytest.approx(best)
    shares = torch.tensor([null, *expected.values()], dtype=torch.float64).softmax(0)
    assert ask(100.0)[0].probability == pytest.approx(float(shares[0]))
    assert sum(each.probability for each in ask(0.0)) == pytest.approx(1)
    never = answerer(how=dataclasses.replace(SETTINGS, no_answer=100.0))
    assert all(each.start >= 0 for each in never.answer(*PAIRS[0], n_best=10_000).n_best)


def test_where_nothing_is_asked_or_said_there_is_no_answer() -> None:
    one = answerer()
    for question, context in (("who?", ""), ("who?", " \n "), ("", LONG), (" ", LONG)):
        found = one.answer(question, context, n_best=3)
        assert (found.text, found.start, found.end, found.probability) == ("", -1, -1, 1.0)
        assert math.isfinite(found.score)
        assert len(found.n_best) == 1
    assert one.answers([]) == []


def test_a_question_is_cut_and_leaves_room_for_the_text() -> None:
    one = answerer()
    [whole, cut, longer] = one.frame(["abcdef", "abcdefgh", "a" * 99], [one.spell(["1"])["1"]] * 3)
    assert whole.framed == cut.framed
    assert len(longer.framed.tokens) == 3 + 6 + 1
    patient = answerer(how=dataclasses.replace(SETTINGS, max_question=90))
    parts = patient.frame(["a" * 99], [patient.spell([LONG])[LONG]])
    assert {len(part.framed.tokens) for part in parts[:-1]} == {24}
    assert {part.begin for part in parts} == {1 + 10 + 1}
    assert parts[1].window[0] == 11 - 5


def test_answers_keep_to_their_length() -> None:
    for longest in (1, 3):
        one = answerer(how=dataclasses.replace(SETTINGS, max_answer=longest))
        found = one.answer("who?", "the cat sees the dog", n_best=10_000).n_best
        assert max(len(each.text) for each in found) == longest


@given(context=TEXTS.filter(str.strip), data=st.data())
@settings(max_examples=60)
@pytest.mark.parametrize("kind", ["bpe", "char", "unigram"])
def test_characters_have_the_fewest_tokens_that_hold_them(
    kind: str, context: str, data: st.DataObject
) -> None:
    one = answerer(kind).spell([context])[context]
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    part = context[start:end]
    if not part.strip():
        return
    found = one.tokens(start, end)
    assert found is not None
    (begin, beyond_first), (last_start, beyond) = (one.spelt.spans[index] for index in found)
    assert part.strip() in context[begin:beyond]
    assert beyond_first > end - len(part.lstrip())
    assert last_start < start + len(part.rstrip())


def test_mistakes_are_explained(tmp_path: Path) -> None:
    one = answerer()
    with pytest.raises(UserError, match="n_best is 0, but must be at least 1"):
        one.answer("who?", LONG, n_best=0)
    with pytest.raises(UserError, match="bytes that are not UTF-8"):
        one.answer("who?", "\udce9")
    with pytest.raises(UserError, match="bytes that are not UTF-8"):
        one.answer("\udce9", LONG)
    with pytest.raises(UserError, match="max_length 4 has no room for a question and a text"):
        answerer(max_length=4)
    answerer(n_labels=3).save(tmp_path)
    with pytest.raises(UserError, match="has no head with the two labels start and end"):
        qkv.load(tmp_path)
