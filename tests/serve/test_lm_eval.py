"""The evaluation harness, as people run it against an API, gets the scores of the Python API."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.tasks import LanguageModel
from tests.serve.conftest import Running

pytest.importorskip("lm_eval", reason="needs lm-eval")
PAIRS = [("the cat", " sees the dog."), ("a fish", " is a bird"), ("the", " cat")]


@pytest.fixture(scope="module")
def harness(
    server: Running, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Its model "local-completions", with the tokenizer that a person would export."""
    from lm_eval.api.registry import get_model
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    fast = PreTrainedTokenizerFast(
        tokenizer_file=str(folders["speaker"] / "tokenizer.json"),
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
    )
    fast.save_pretrained(folder)
    bos = qkv.load(folders["speaker"], device="cpu").model.config.bos_id
    return get_model("local-completions")(
        model="speaker",
        base_url=f"{server.url}/v1/completions",
        tokenizer=str(folder),
        tokenizer_backend="huggingface",
        max_length=200,
        batch_size=2,
        max_retries=1,
        custom_prefix_token_id=bos,
    )


def asked(kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [
        Instance(request_type=kind, doc={}, arguments=given, idx=number)
        for number, given in enumerate(arguments)
    ]


def test_log_likelihoods_of_continuations(harness: Any, speaker: LanguageModel) -> None:
    found = harness.loglikelihood(asked("loglikelihood", PAIRS))
    for (context, continuation), (score, is_greedy) in zip(PAIRS, found, strict=True):
        first, second = harness._encode_pair(context, continuation)
        (whole,) = speaker.likelihoods([[*first, *second]])
        expected = sum(whole.log_probabilities[len(first) - 1 :])
        assert score == pytest.approx(expected, abs=1e-4)
        (best,) = speaker.writer.complete(
            [first], [0], speaker.settings({"max_length": len(second)})
        )
        assert is_greedy == (best[0].tokens == second)


def test_log_likelihoods_of_texts_are_those_of_score(harness: Any, speaker: LanguageModel) -> None:
    texts = ["the cat sees the dog.", "a bird"]
    found = harness.loglikelihood_rolling(
        asked("loglikelihood_rolling", [(text,) for text in texts])
    )
    expected = [score.log_probability for score in speaker.score(texts)]
    assert found == pytest.approx(expected, abs=1e-4)


def test_generated_texts_are_those_of_generate(harness: Any, speaker: LanguageModel) -> None:
    prompts = ["the cat", "a fish"]
    settings = {"until": ["zz"], "max_gen_toks": 6}
    found = harness.generate_until(
        asked("generate_until", [(prompt, dict(settings)) for prompt in prompts])
    )
    config = speaker.settings({"max_length": 6})
    expected = []
    for prompt in prompts:
        tokens = harness.tok_encode(prompt)
        ((best, *_),) = speaker.writer.complete([tokens], [0], config)
        expected.append(speaker.read(best, tokens, config).text)
    assert found == expected
