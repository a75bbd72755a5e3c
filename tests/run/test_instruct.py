"""Instruction tuning: records in, a model that answers out; only answers are learnt."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import qkv
from qkv.config import ChatConfig
from qkv.errors import UserError
from qkv.run.train import train
from qkv.run.instruct import Instruction, answer_score, chat_template
from qkv.tasks import LanguageModel
from qkv.text import TEMPLATES
from tests.run.common import everything, read_log, silence
from tests.run.language_tiny import (
    killed_and_resumed,
    learned,
    plan,
    questions,
    recipe,
    run,
    write_lines,
    write_records,
)


def test_a_run_learns_to_answer_and_says_how_often(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    done = learned(tmp_path_factory, "instruct")
    measured = [record for record in read_log(done.folder) if "valid_loss" in record]
    assert [record["step"] for record in measured] == [50, 100, 150, 200]
    assert measured[0]["exact_match"] < 30 < 80 <= measured[-1]["exact_match"]
    assert measured[-1]["valid_loss"] < 0.3 < measured[0]["valid_loss"]
    assert done.scores.keys() == {"valid", "test"}
    assert [score.name for score in done.scores["test"]] == ["exact match"]
    assert [score.name for score in done.scores["valid"]] == ["loss", "exact match"]
    least = min(score["valid_loss"] for score in measured)
    assert done.scores["valid"][0].value == pytest.approx(least, abs=1e-4)
    assert min(scores[-1].value for scores in done.scores.values()) >= 80
    card = (done.folder / "README.md").read_text()
    assert card.startswith("# run: a language model that answers\n")
    assert f"qkv chat --model {done.folder}" in card
    assert "records.jsonl" in card


def test_its_folder_answers(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = qkv.load(learned(tmp_path_factory, "instruct").folder)
    assert isinstance(model, LanguageModel)
    assert model.prompting.chat == TEMPLATES["plain"]
    asked = questions()
    found = [model.chat(question) for question, _ in asked]
    right = sum(one == answer for one, (_, answer) in zip(found, asked, strict=True))
    assert right >= 0.9 * len(asked)
    together = model.answers([[{"role": "user", "content": question}] for question, _ in asked])
    assert together == found


def test_only_answers_count(tmp_path: Path) -> None:
    """The loss is what the model itself says of each answer and of its end, token by token."""
    job = Instruction(plan(tmp_path, "instruct"))
    model, template = job.speaker, TEMPLATES["plain"]
    total, count = 0.0, 0
    for messages in job.records.valid:
        before = template.prompt(messages[:-1], model.tokenizer, bos=True)
        whole = template.encode(messages, model.tokenizer, bos=True).tokens
        assert whole[: len(before)] == before
        [likely] = model.likelihoods([whole])
        total -= sum(likely.log_probabilities[len(before) - 1 :])
        count += len(whole) - len(before)
    assert job.evaluate()["valid_loss"] == pytest.approx(total / count, rel=1e-5)
    [batch] = next(job.stream.steps_from(0))
    assert batch.n_labels == int((batch.labels != -100).sum()) < batch.target.tokens.numel() / 2


def test_packed_and_padded_records_have_the_same_loss(tmp_path: Path) -> None:
    settings = {"train_steps": 1, "train_batch_tokens": 4000, "model_dropout": 0.0}
    losses = [
        read_log(run(tmp_path, packing, "instruct", train_packing=packing, **settings).folder)[0]
        for packing in ("on", "off")
    ]
    assert losses[0]["loss"] == pytest.approx(losses[1]["loss"], rel=1e-5)


OWN = {
    "chat_user": "Q: {content}\n",
    "chat_assistant": "A: {content}\n",
    "chat_system": "{content}",
}


@pytest.mark.parametrize(
    "differences",
    [
        {"chat_template": "alpaca"},
        {"chat_template": "chatml"},
        OWN,
        {"data_bos": False},
        {"tokenizer_kind": "bpe"},
        {"train_packing": "on"},
        {"train_valid_bleu": False},
        {"train_metric": "exact_match"},
        {"model_preset": "gpt2-mini"},
    ],
    ids=str,
)
def test_every_kind_of_run_ends_in_a_model(tmp_path: Path, differences: dict) -> None:
    settings = {"model_max_length": 128, "train_steps": 4, **differences}
    done = run(tmp_path, "run", "instruct", **settings)
    log = read_log(done.folder)
    assert all(math.isfinite(record["loss"]) for record in log)
    assert ("exact_match" in log[-1]) == ("train_valid_bleu" not in differences)
    model = qkv.load(done.folder)
    assert isinstance(model.chat("say 3", max_length=9), str)
    assert model.prompting.bos == differences.get("data_bos", True)
    if differences == OWN:
        assert model.prompting.chat.to_dict() == {
            name.removeprefix("chat_"): turn for name, turn in OWN.items()
        }


RESUMED: list[dict[str, Any]] = [
    {},
    {"chat_template": "chatml", "train_accumulate": 2, "model_max_length": 128},
    {"train_packing": "on", "tokenizer_kind": "bpe"},
    {"train_average": 3, "train_steps": 25},
]


@pytest.mark.parametrize("step", [2, 9])
@pytest.mark.parametrize("settings", RESUMED, ids=str)
def test_a_run_killed_and_resumed_ends_bit_for_bit_the_same(
    tmp_path: Path, step: int, settings: dict
) -> None:
    whole = run(tmp_path, "whole", "instruct", **settings).folder
    cut = killed_and_resumed(step, tmp_path, "cut", "instruct", **settings)
    assert everything(cut) == everything(whole)


def test_validation_records_are_cut_off_where_none_are_given(tmp_path: Path) -> None:
    write_records(tmp_path / "records.jsonl", questions())
    settings: dict[str, Any] = {"data_valid_records": [], "data_valid_size": 4}
    job = Instruction(plan(tmp_path, "instruct", **settings))
    assert (len(job.records.train), len(job.records.valid)) == (96, 4)
    train, valid = (
        {messages[0]["content"] for messages in part}
        for part in (job.records.train, job.records.valid)
    )
    assert not train & valid


def test_whole_conversations_are_learnt_from_too(tmp_path: Path) -> None:
    roles = ["system", "user", "assistant", "user", "assistant"]
    said = [
        ["be brief", *question, *other]
        for question, other in zip(questions(1), questions(2), strict=True)
    ]
    records = [
        {"messages": [{"role": r, "content": c} for r, c in zip(roles, each, strict=True)]}
        for each in said
    ]
    path = write_lines(tmp_path / "talks.jsonl", [json.dumps(record) for record in records])
    settings = {"data_records": str(path), "data_valid_records": str(path)}
    job = Instruction(plan(tmp_path, "instruct", model_max_length=128, **settings))
    counted = sum(len(each[2]) + len(each[4]) + 2 for each in said)
    assert int(job.valid.n_labels.sum()) == counted
    scored = answer_score(job.speaker, job.records.valid[:5])
    asked = [messages[:-1] for messages in job.records.valid[:5]]
    found = job.speaker.answers(asked)
    right = sum(one == each[-1] for one, each in zip(found, said, strict=False))
    assert scored.value == 100 * right / 5


def test_what_was_dropped_is_told(tmp_path: Path) -> None:
    asked = [*questions()[:80], ("say " + "9" * 90, "much"), ("say 1", "")]
    write_records(tmp_path / "long.jsonl", asked)
    file = StringIO()
    settings = {"data_records": str(tmp_path / "long.jsonl"), "train_steps": 2}
    made = recipe(tmp_path, "instruct", **settings)
    train(made, tmp_path / "run", console=Console(file=file, width=40))
    said = file.getvalue().splitlines()
    assert said[0] == (
        "· train: kept 80 of 82 records; dropped 1 without an answer, 1 too long (over 64 tokens)"
    )
    assert said[1] == "· valid: kept all 10 records"


def test_how_frequent_tokens_of_answers_are_is_what_must_be_beaten(tmp_path: Path) -> None:
    job = Instruction(plan(tmp_path, "instruct"))
    tokenizer = job.tokenizers.target
    counts: Counter[int] = Counter()
    for _, answer in questions()[:80]:
        counts.update([*tokenizer.encode(answer), tokenizer.eos_id])
    total = sum(counts.values())
    expected = -sum(count / total * math.log(count / total) for count in counts.values())
    assert job.frequencies_loss == pytest.approx(expected)


def test_a_template_is_the_named_one_with_what_the_recipe_writes_itself() -> None:
    assert chat_template(ChatConfig()) == TEMPLATES["plain"]
    before = replace(TEMPLATES["chatml"], default_system="Be kind.")
    assert chat_template(ChatConfig(), before) == before
    assert chat_template(ChatConfig(template="plain"), before) == TEMPLATES["plain"]
    assert chat_template(ChatConfig(user="Do {content}"), before).default_system == "Be kind."
    made = chat_template(ChatConfig(template="alpaca", user="Do {content}: "))
    assert made.user == "Do {content}: "
    assert made.assistant == TEMPLATES["alpaca"].assistant
    with pytest.raises(UserError, match=r"\[chat\]: The chat template's user turn is 'Do it'"):
        chat_template(ChatConfig(user="Do it"))


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ({"data_records": []}, "no records are given; set records"),
        ({"model_max_length": 16}, "all 80 records were dropped"),
        ({"chat_assistant": "{content}"}, "nothing ends an answer"),
        ({"train_metric": "bleu"}, "is not measured by task = 'instruct'"),
    ],
)
def test_contradictions_are_explained(tmp_path: Path, differences: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(tmp_path, "run", "instruct", **differences)
    assert not (tmp_path / "run" / "config.json").exists()


def test_resuming_with_another_template_is_refused(tmp_path: Path) -> None:
    folder = run(tmp_path, "run", "instruct").folder
    other = recipe(tmp_path, "instruct", chat_template="alpaca")
    with pytest.raises(UserError, match=r"chat\.template differs from the run"):
        train(other, folder, resume=True, console=silence())
