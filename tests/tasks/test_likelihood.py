"""How likely texts are: sums that can be checked by hand, whatever the batch and the length."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from qkv.errors import UserError
from qkv.tasks import LanguageModel, Prompting, likelihood
from qkv.tasks.likelihood import ranked_log_probabilities
from tests.run.language_tiny import SPOKEN, sentences, speaker, vocabulary

TEXTS = [*SPOKEN, "", "t", "the", *sentences(5)]
CONTEXT = 40


@pytest.fixture(scope="module", params=["bpe", "char", "byte"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return speaker(vocabulary(request.param), seed=1, max_length=CONTEXT)


@torch.no_grad()
def gains(model: LanguageModel, tokens: Sequence[int]) -> list[float]:
    """log P of each token but the first, in float64, none with a window of its own."""
    logits = model.model(torch.tensor([list(tokens)]))[0]
    assert logits.dtype == torch.float64
    return logits.log_softmax(-1)[range(len(tokens) - 1), list(tokens[1:])].tolist()


def in_windows(model: LanguageModel, tokens: Sequence[int], context: int) -> list[float]:
    """The same of a long text: windows that each read half a context again before they count."""
    found = gains(model, tokens[:context])
    while len(found) + 1 < len(tokens):
        done = len(found) + 1  # tokens that are scored, or are the first
        start = done - context // 2
        found += gains(model, tokens[start : start + context])[done - start - 1 :]
    return found


def test_a_score_is_the_sum_of_each_token_s_log_probability(model: LanguageModel) -> None:
    for text in TEXTS:
        tokens = model.encode(text)[:CONTEXT]
        text = model.tokenizer.decode(tokens)
        [found] = model.likelihoods([tokens])
        expected = gains(model, tokens)
        assert found.tokens == tokens
        assert found.log_probabilities == pytest.approx(expected, abs=1e-5)
        assert found.log_probability == pytest.approx(sum(expected), abs=1e-4)
        assert (found.n_tokens, found.n_bytes) == (len(expected), len(text.encode()))


def test_texts_longer_than_the_context_are_read_in_windows(model: LanguageModel) -> None:
    text = " ".join(sentences(14, seed=5))
    tokens = model.encode(text)
    assert len(tokens) > 2.5 * CONTEXT
    for length in (CONTEXT - 1, CONTEXT, CONTEXT + 1, CONTEXT + CONTEXT // 2 + 1, len(tokens)):
        [found] = model.likelihoods([tokens[:length]])
        expected = in_windows(model, tokens[:length], CONTEXT)
        assert found.log_probabilities == pytest.approx(expected, abs=1e-5)
        assert len(expected) == length - 1
    assert model.score(text).n_bytes == len(text.encode())


@pytest.mark.parametrize("budget", [1, 100, 100_000])
@pytest.mark.parametrize("logits", [1, 2**25])
def test_many_texts_are_scored_as_each_alone(
    model: LanguageModel, budget: int, logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*TEXTS, " ".join(sentences(4, seed=5))]
    alone = [model.score(text) for text in texts]
    monkeypatch.setitem(likelihood.BATCH_TOKENS, "cpu", budget)
    monkeypatch.setattr(likelihood, "LOGITS", logits)
    found = model.score(texts)
    for one, other in zip(found, alone, strict=True):
        assert one.tokens == other.tokens
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-5)


def test_perplexity_and_bits_per_byte(model: LanguageModel) -> None:
    text = SPOKEN[1]
    found = model.score(text)
    mean = sum(gains(model, model.encode(text))) / found.n_tokens
    assert found.perplexity == pytest.approx(math.exp(-mean), rel=1e-5)
    bits = -sum(gains(model, model.encode(text))) / math.log(2) / len(text.encode())
    assert found.bits_per_byte == pytest.approx(bits, rel=1e-5)
    if len(model.tokenizer) == 260:  # of bytes: each token but BOS is one
        assert 2**found.bits_per_byte == pytest.approx(found.perplexity, rel=1e-5)


def test_an_empty_text_costs_nothing(model: LanguageModel) -> None:
    found = model.score("")
    assert (found.log_probability, found.n_tokens, found.n_bytes) == (0.0, 0, 0)
    assert (found.perplexity, found.bits_per_byte) == (1.0, 0.0)
    without = LanguageModel(model.model, model.tokenizer, model.decode, Prompting(bos=False))
    assert without.score("").n_tokens == 0
    assert model.score([]) == []


def test_without_bos_the_first_token_is_given(model: LanguageModel) -> None:
    without = LanguageModel(model.model, model.tokenizer, model.decode, Prompting(bos=False))
    tokens = model.tokenizer.encode("the cat")
    found = without.score("the cat")
    assert found.tokens == tokens
    assert found.log_probabilities == pytest.approx(gains(model, tokens), abs=1e-5)


def brute_force(
    model: LanguageModel, prompt: str, options: Sequence[str], normalize: str
) -> list[float]:
    """log P of all that is not common to the prompt and to the prompt with an option."""
    before = model.encode(prompt)
    wholes = [model.encode(prompt + option) for option in options]
    common = len(before)
    while any(whole[:common] != before[:common] for whole in wholes):
        common -= 1
    scores = []
    for option, whole in zip(options, wholes, strict=True):
        gained = gains(model, whole)[common - 1 :]
        units = {"none": 1, "tokens": len(gained), "bytes": len(option.encode())}[normalize]
        scores.append(sum(gained) / units)
    return scores


@pytest.mark.parametrize("normalize", ["none", "tokens", "bytes"])
def test_the_choice_is_the_likeliest_option(model: LanguageModel, normalize: str) -> None:
    prompts = ["the cat sees the", "我爱", "a fish", ""]
    options = [
        [" dog.", " cat", " fish is a bird"],
        ["你，猫。", "猫"],
        [" is", " a"],
        ["我", "a b"],
    ]
    found = model.choose(prompts, options, normalize)  # type: ignore[arg-type]
    for prompt, each, choice in zip(prompts, options, found, strict=True):
        expected = brute_force(model, prompt, each, normalize)
        assert choice.scores == pytest.approx(expected, abs=1e-4)
        assert choice.index == expected.index(max(expected))
    assert model.choose([], []) == []


def test_the_units_of_a_score_can_change_the_choice() -> None:
    models = [speaker(vocabulary("bpe"), seed=seed) for seed in range(6)]
    options = [[" dog.", " dog. the cat sees the bird."]]
    chosen = {
        (one.choose(["the"], options)[0].index, one.choose(["the"], options, "tokens")[0].index)
        for one in models
    }
    assert {first for first, _ in chosen} == {0}  # the shorter text is always likelier
    assert (0, 1) in chosen


def test_an_option_that_melts_into_the_prompt_is_still_compared_whole() -> None:
    """ "the c" and "at" make " cat", so that the prompt's last token is no part of it."""
    model = speaker(vocabulary("bpe"), seed=1)
    before, melted = model.encode("the c"), model.encode("the cat")
    assert melted[: len(before)] != before
    options = ["at", "at sees", " dog"]
    [choice] = model.choose(["the c"], [options])
    wholes = [model.encode("the c" + option) for option in options]
    common = len(model.encode("the"))
    expected = [sum(gains(model, whole)[common - 1 :]) for whole in wholes]
    assert choice.scores == pytest.approx(expected, abs=1e-4)


def test_a_choice_without_bos_and_with_nothing_in_common() -> None:
    """The very first token is given then, and all that comes after it counts."""
    model = speaker(vocabulary("char"), Prompting(bos=False), seed=1)
    options = ["the cat", "a dog"]
    [choice] = model.choose([""], [options])
    expected = [sum(gains(model, model.encode(option))) for option in options]
    assert choice.scores == pytest.approx(expected, abs=1e-4)
    [choice] = model.choose(["the "], [["cat", "dog"]])
    expected = [sum(gains(model, model.encode(f"the {one}"))[3:]) for one in ("cat", "dog")]
    assert choice.scores == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("prompts", "options", "normalize", "words"),
    [
        ("ab", [["a"], ["b"]], "none", "Give a list of prompts"),
        (["a"], [["a"], ["b"]], "none", "for each of them, a list of options"),
        (["a", "b"], [["a"], []], "none", "Text 2 has the options \\[\\]"),
        (["a"], ["ab"], "none", "Text 1 has the options 'ab'"),
        (["a"], [["a", "b"]], "words", "normalize is 'words', but must be one of none, tokens"),
    ],
)
def test_what_cannot_be_chosen_among(
    model: LanguageModel, prompts: list[str], options: list[list[str]], normalize: Any, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        model.choose(prompts, options, normalize)


@pytest.mark.parametrize("ways", [{}, {"beams": 3, "sample": False}])
def test_a_stopped_text_is_as_likely_as_its_tokens(ways: dict) -> None:
    """However late the search notices the stop, only tokens up to it count."""
    model = speaker(vocabulary("char"))
    settings = {"sample": False, "beams": 1, "max_length": 30, **ways}
    plain = model.n_best("one two", **settings)[0][0]
    stop = plain.text[4:6]
    found = model.n_best("one two", **settings, stop=(stop,))[0][0]
    assert found.stopped and not found.finished
    assert plain.text.startswith(found.text) and stop not in found.text
    prompt = model.encode("one two")
    (whole,) = model.likelihoods([[*prompt, *found.tokens]])
    expected = sum(whole.log_probabilities[len(prompt) - 1 :])
    assert found.log_probability == pytest.approx(expected, abs=1e-6)


def test_ranked_tokens_are_the_scores_and_the_likeliest_ones() -> None:
    model = speaker(vocabulary())
    sequences = [model.encode(text) for text in ("the cat", "a", "the dog sees")]
    ranked = ranked_log_probabilities(model.model, sequences, 2)
    for tokens, found in zip(sequences, ranked, strict=True):
        (scored,) = model.likelihoods([tokens])
        gained = [token.log_probability for token in found]
        assert gained == pytest.approx(scored.log_probabilities, abs=1e-6)
        logits = model.model(torch.tensor([tokens]))[0, :-1].log_softmax(-1)
        values, ids = logits.topk(2)
        assert [[id for id, _ in token.top] for token in found] == ids.tolist()
        assert [[x for _, x in token.top] for token in found] == [
            pytest.approx(row, abs=1e-5) for row in values.tolist()
        ]
