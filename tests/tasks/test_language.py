"""Language models: text goes on from prompts, alone or together, whole or piece by piece."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import DecodeConfig
from qkv.errors import UserError
from qkv.tasks import LanguageModel, Prompting
from tests.run.language_tiny import GREEDY, SPOKEN, by_hand, scripted, speaker, vocabulary

KINDS = ["bpe", "unigram", "wordpiece", "char", "byte"]
PROMPTS = ["the cat sees", "the", "", "我爱你，", "a fish is a bird 🐟 "]
DRAWS = {"sample": True, "temperature": 1.5, "top_p": 0.9, "seed": 3}
LETTERS = "".join(SPOKEN).replace("🐟", "")


@pytest.fixture(scope="module", params=KINDS)
def any_kind(request: pytest.FixtureRequest) -> LanguageModel:
    """One model for each kind of tokenizer; what they write breaks characters in every way."""
    return speaker(vocabulary(request.param), seed=1, max_length=26)


@pytest.fixture(scope="module")
def words() -> LanguageModel:
    """A model of subwords that writes English and Chinese, and ends at times."""
    return speaker(vocabulary("bpe"), seed=3, letters=LETTERS)


@pytest.fixture(scope="module")
def endless() -> LanguageModel:
    return endless_of(2)


def never(model: LanguageModel) -> list[int]:
    return [model.tokenizer.pad_id, model.tokenizer.bos_id]


def test_greedy_text_is_what_a_plain_loop_finds(any_kind: LanguageModel) -> None:
    found = any_kind.n_best(PROMPTS, max_length=20)
    for prompt, (one,) in zip(PROMPTS, found, strict=True):
        tokens = any_kind.encode(prompt)
        limit = min(20, any_kind.model.config.max_length - len(tokens))
        expected = by_hand(any_kind.model, tokens, limit, never=never(any_kind))
        assert one.tokens == expected
        assert one.finished == (len(expected) < limit)


@pytest.mark.parametrize("rows", [1, 5, 128])
@pytest.mark.parametrize("settings", [{}, {"beams": 3}, {"repetition_penalty": 1.3}], ids=str)
def test_batched_is_the_same_as_one_by_one(
    words: LanguageModel, settings: dict, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [words.generate(prompt, **settings) for prompt in PROMPTS]
    monkeypatch.setattr(words.writer.engine, "max_rows", rows)
    told: list[int] = []
    found = words.n_best(PROMPTS, progress=told.append, **settings)
    assert [one.text for one, *_ in found] == alone
    assert len(set(alone)) > 3
    assert sum(told) == len(PROMPTS)


@pytest.mark.parametrize("settings", [{}, DRAWS], ids=["greedy", "draws"])
def test_streamed_pieces_make_up_the_text_up_to_the_end_of_the_context(
    any_kind: LanguageModel, settings: dict
) -> None:
    for prompt in PROMPTS:
        pieces = list(any_kind.stream(prompt, max_length=45, **settings))
        assert "".join(pieces) == any_kind.generate(prompt, max_length=45, **settings)
        assert all(pieces)


def test_a_text_ends_where_the_context_is_full_and_says_so(endless: LanguageModel) -> None:
    context = endless.model.config.max_length
    with pytest.warns(UserWarning, match=f"5 texts end where .* context of {context} tokens"):
        found = endless.n_best(PROMPTS[:5], max_length=3 * context)
    for prompt, (one,) in zip(PROMPTS, found, strict=False):
        tokens = endless.encode(prompt)
        room = context - len(tokens)
        assert one.tokens == by_hand(endless.model, tokens, room, never=never(endless))
        assert len(one.tokens) == room
        assert not one.finished
        with pytest.warns(UserWarning, match="a text ends where"):
            assert one.text == "".join(endless.stream(prompt, max_length=3 * context))


def script(text: str, kind: str = "char", after: str = "") -> LanguageModel:
    """A model that writes a text after another and ends."""
    tokenizer = vocabulary(kind)
    before, whole = tokenizer.encode(after), tokenizer.encode(after + text)
    assert whole[: len(before)] == before
    tokens = [*whole[len(before) :], tokenizer.eos_id]
    return scripted(tokenizer, tokens, after=1 + len(before))


def test_a_stop_string_ends_the_text_before_it() -> None:
    model = script("the cat sees the dog.")
    [[one]] = model.n_best("", stop="sees", max_length=40)
    assert (one.text, one.stopped, one.finished) == ("the cat ", True, False)
    assert model.tokenizer.decode(one.tokens) == "the cat sees"  # which took four tokens
    assert list(model.stream("", stop=["sees"], max_length=40)) == list("the cat ")
    assert model.generate("", stop=["dog", "cat", "zebra"], max_length=40) == "the "
    [[late]] = model.n_best("", stop="dog", max_length=40)  # just before its own end
    assert (late.text, late.stopped, late.finished) == ("the cat sees the ", True, False)
    [[whole]] = model.n_best("", stop="zebra", max_length=40)
    assert (whole.text, whole.stopped, whole.finished) == ("the cat sees the dog.", False, True)
    assert "".join(model.stream("", stop="dog.!", max_length=40)) == whole.text
    assert model.generate("", stop="the", max_length=40) == ""
    assert list(model.stream("", stop="the", max_length=40)) == []


@settings(max_examples=20)
@given(place=st.integers(0, 200), size=st.integers(1, 9), seed=st.integers(0, 3))
def test_whole_or_streamed_a_text_is_cut_before_its_first_stop(
    place: int, size: int, seed: int
) -> None:
    """Also where the stop string lies across the place where the context was full."""
    model = endless_of(seed)
    whole = model.generate("the", max_length=40)
    place %= len(whole)
    stop = whole[place : place + size]
    expected = whole[: whole.find(stop)]
    [[one]] = model.n_best("the", max_length=40, stop=stop)
    assert (one.text, one.stopped) == (expected, True)
    assert "".join(model.stream("the", max_length=40, stop=stop)) == expected


@cache
def endless_of(seed: int) -> LanguageModel:
    return speaker(vocabulary("bpe"), seed=seed, letters=LETTERS, eos=-100.0, max_length=24)


def test_nobody_works_on_for_long_after_a_stop(
    endless: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = endless.generate("the", max_length=3)
    passes = count_passes(endless, monkeypatch)
    assert endless.n_best("the", max_length=300, stop=stop)[0][0].stopped
    assert len(passes) <= 10
    passes.clear()
    assert "".join(endless.stream("the", max_length=300, stop=stop)) == ""
    assert len(passes) <= 5


def count_passes(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each pass of the model reads."""
    passes: list[int] = []
    plain = model.model.hidden

    def noting(tokens: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        passes.append(tokens.shape[1])
        return plain(tokens, *more, **named)

    monkeypatch.setattr(model.model, "hidden", noting)
    return passes


def test_the_n_best_are_different_sorted_and_as_likely_as_they_say(words: LanguageModel) -> None:
    found = words.n_best(PROMPTS, beams=4, n_best=4, max_length=9)
    for prompt, each in zip(PROMPTS, found, strict=True):
        before, eos = words.encode(prompt), words.tokenizer.eos_id
        assert len({tuple(one.tokens) for one in each}) == 4
        scores = []
        for one in each:
            tokens = [*before, *one.tokens, *[eos] * one.finished]
            [likely] = words.likelihoods([tokens])
            gained = likely.log_probabilities[len(before) - 1 :]
            assert one.log_probability == pytest.approx(sum(gained), abs=1e-4)
            scores.append(one.log_probability / len(gained))
        assert scores == sorted(scores, reverse=True)
    best = words.generate(PROMPTS, beams=4, max_length=9)
    assert best == [each[0].text for each in found]
    assert best != words.generate(PROMPTS, max_length=9)


def test_a_limit_is_the_most_that_is_generated(words: LanguageModel) -> None:
    assert all(len(each[0].tokens) <= 5 for each in words.n_best(PROMPTS, max_length=5))
    endless = endless_of(0)
    assert len(endless.n_best("the", max_length=5)[0][0].tokens) == 5
    room = endless.model.config.max_length - len(endless.encode("the"))
    assert len(endless.n_best("the", max_length=0)[0][0].tokens) == room < 256


def test_an_over_long_prompt_is_refused_by_number_or_loses_its_beginning(
    endless: LanguageModel,
) -> None:
    context = endless.model.config.max_length
    fits, long = "the" + " cat" * (context - 3), "the" + " cat" * (context - 2)
    assert len(endless.encode(fits)) == context - 1
    assert len(endless.generate(fits)) > 0
    with pytest.raises(UserError) as caught:
        endless.generate(["the", long])
    assert f"Text 2 has {context} tokens, but this model's context of {context}" in str(
        caught.value
    )
    with pytest.raises(UserError, match="Text 1 has"):
        list(endless.stream(long))
    [[one]] = endless.n_best(long, truncate=True)
    kept = endless.encode(long)[1 - context :]
    assert one.tokens == by_hand(endless.model, kept, 1, never=never(endless))
    assert "".join(endless.stream(long, truncate=True)) == one.text


@pytest.mark.parametrize("prompt", ["", "the cat"])
def test_a_model_without_bos_reads_none(prompt: str) -> None:
    tokenizer = vocabulary("bpe")
    model = speaker(tokenizer, Prompting(bos=False), seed=1, letters=LETTERS)
    tokens = tokenizer.encode(prompt) or [tokenizer.eos_id]
    assert model.encode(prompt) == tokens
    [[one]] = model.n_best(prompt)
    assert one.tokens == by_hand(model.model, tokens, 12, never=never(model))
    assert "".join(model.stream(prompt)) == one.text
    with_bos = LanguageModel(model.model, tokenizer, GREEDY)
    assert with_bos.encode(prompt) == [tokenizer.bos_id, *tokenizer.encode(prompt)]
    assert with_bos.n_best(prompt)[0][0].tokens != one.tokens


@pytest.mark.parametrize("name", ["bos_id", "pad_id"])
def test_only_special_tokens_that_are_read_must_be_in_the_vocabulary(
    name: str, tmp_path: Path
) -> None:
    model = speaker(vocabulary("bpe"), Prompting(bos=name == "bos_id"), seed=1)
    model.save(tmp_path)
    path, content = tmp_path / "config.json", json.loads((tmp_path / "config.json").read_text())
    content["model"][name] = 1 << 32
    path.write_text(json.dumps(content))
    if name == "bos_id":
        with pytest.raises(UserError, match="bos_id is 4294967296, but the model's tokens go"):
            LanguageModel.load(tmp_path, "cpu")
    else:
        assert LanguageModel.load(tmp_path, "cpu").generate("the", max_length=3)


def test_a_prompt_and_its_text_are_spelt_as_one(words: LanguageModel) -> None:
    """The first word of a text gets no space, and one that comes after a word keeps its own."""
    for prompt in ["the", "the ", "the cat", " the", "我", "我爱你，", "the.", "\n", ""]:
        for one in words.n_best(prompt, sample=True, n_best=5, max_length=6)[0]:
            whole = words.tokenizer.decode([*words.encode(prompt), *one.tokens])
            assert prompt + one.text == whole
    model = script(" cat sees", kind="bpe", after="the")
    assert model.generate("the", max_length=9) == " cat sees"
    assert "".join(model.stream("the", max_length=9)) == " cat sees"
    assert script("the cat", kind="bpe").generate("", max_length=9) == "the cat"


def test_settings_are_the_folder_s_unless_given(words: LanguageModel) -> None:
    drawing = LanguageModel(
        words.model, words.tokenizer, DecodeConfig(sample=True, temperature=2.0, max_length=12)
    )
    assert drawing.generate("the", sample=False, beams=1) == words.generate("the")
    assert drawing.generate("the", temperature=0.0) == words.generate("the")
    assert drawing.generate("the", seed=1) != drawing.generate("the", seed=2)
    assert words.settings({"stop": "x"}).stop == words.settings({"stop": ["x"]}).stop == ("x",)
    with pytest.raises(UserError, match="unknown key 'temprature'; did you mean 'temperature'"):
        words.generate("the", temprature=1.0)
    with pytest.raises(UserError, match="beam search has no text before its end"):
        next(words.stream("the", beams=2))
    with pytest.raises(UserError, match="a stream is one text; stream with n_best = 1"):
        next(words.stream("the", n_best=2, sample=True))
    with pytest.raises(UserError, match="beams is None, but must be"):
        words.generate("the", beams=None)
