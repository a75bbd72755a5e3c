"""`qkv generate`, and `qkv train` for what it needs: text in, text that goes on out."""

import json
from pathlib import Path
from typing import Any

import pytest

import qkv as package
from qkv.config import DecodeConfig
from qkv.tasks import LanguageModel
from tests.journeys.conftest import Command

GREEDY = ["--greedy", "--max-length", 20]


def greedy(folder: Path, *prompts: str, **settings: Any) -> list[str]:
    model = package.load(folder, device="cpu")
    usual = {"sample": False, "beams": 1, "max_length": 20}
    found: list[str] = model.generate(list(prompts), **{**usual, **settings})
    return found


def test_prompts_are_gone_on_from_in_their_order(qkv: Command, speaker: Path) -> None:
    prompts = ["the cat sees", "the", "the 猫"]
    answer = qkv("generate", "--model", speaker, *prompts, *GREEDY)
    texts = greedy(speaker, *prompts)
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines == [f"{prompt}{text}" for prompt, text in zip(prompts, texts, strict=True)]
    assert " the " in texts[0]


def test_json_is_an_object_a_prompt(qkv: Command, speaker: Path) -> None:
    answer = qkv("generate", "--model", speaker, "--json", "the cat", "我", *GREEDY)
    found = [json.loads(line) for line in answer.lines]
    assert [each["prompt"] for each in found] == ["the cat", "我"]
    assert [each["text"] for each in found] == greedy(speaker, "the cat", "我")
    assert all(each.keys() == FIELDS for each in found)
    assert all(each["log_probability"] < 0 for each in found)
    assert "我" in answer.out
    one = qkv("generate", "--model", speaker, "--json", "the cat", *GREEDY)
    alone = json.loads(one.out)
    assert alone.pop("log_probability") == pytest.approx(found[0].pop("log_probability"), abs=1e-4)
    assert alone == found[0]


FIELDS = {"prompt", "text", "log_probability", "finished", "stopped"}


def test_several_texts_of_a_prompt(qkv: Command, speaker: Path) -> None:
    words = ["generate", "--model", speaker, "--n-best", 3, "--max-length", 9]
    searched = [*words, "--beams", 3, "the cat"]
    lines = qkv(*searched).lines
    best = package.load(speaker).n_best("the cat", sample=False, beams=3, n_best=3, max_length=9)
    assert lines == [f"the cat{one.text}" for one in best[0]]
    found = json.loads(qkv(*searched, "--json").out)
    assert [f"the cat{each['text']}" for each in found["n_best"]] == lines
    assert found["text"] == found["n_best"][0]["text"]
    drawn = qkv(*words, "--temperature", 2, "the cat").lines
    assert len(set(drawn)) > 1


def test_a_folder_that_searches_with_beams_is_no_stream(
    qkv: Command, speaker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the folder itself says counts, not only what is asked for."""
    plain = LanguageModel.__init__

    def beams(self, model, tokenizer, decode, *others):  # type: ignore[no-untyped-def]
        plain(self, model, tokenizer, DecodeConfig(beams=3, max_length=9), *others)

    [expected] = greedy(speaker, "the cat", beams=3, max_length=9)
    monkeypatch.setattr(LanguageModel, "__init__", beams)
    answer = qkv("generate", "--model", speaker, "the cat")
    assert (answer.code, answer.out) == (0, f"the cat{expected}\n")


def test_options_that_contradict_each_other(qkv: Command, speaker: Path) -> None:
    def ask(*words: object) -> str:
        return qkv("generate", "--model", speaker, "the", *words).mistake

    assert "--temperature is about random draws, which --greedy rules out" in ask(
        "--greedy", "--temperature", 0.5
    )
    assert "--top-k is about random draws, which --beams rules out" in ask(
        "--beams", 2, "--top-k", 3
    )
    assert "--greedy is a search with one beam, but --beams is 3" in ask("--greedy", "--beams", 3)
    assert "top_p is 2.0, but must be at most 1" in ask("--top-p", 2)
    assert "A stop string is empty" in ask("--stop", "")
