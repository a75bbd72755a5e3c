"""Instruction tuning: records in, a model that answers out; only answers are learned."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import qkv
from qkv.config import ChatConfig
from qkv.errors import UserError
from qkv.evaluation import evaluate
from qkv.run.instruct import chat_template
from qkv.tasks import LanguageModel
from qkv.text import TEMPLATES
from tests.run.common import read_log, validations, write_records
from tests.run.language_tiny import job, learned, questions, run, write_questions


def test_a_run_learns_to_answer_and_is_scored(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = learned(tmp_path_factory, "instruct")
    measured = validations(done.folder)
    assert measured[0]["exact_match"] < 30 < 80 <= measured[-1]["exact_match"]
    assert measured[-1]["valid_loss"] < 0.3 < measured[0]["valid_loss"]
    assert done.scores.keys() == {"valid", "test"}
    assert [score.name for score in done.scores["test"]] == ["exact match"]
    assert [score.name for score in done.scores["valid"]] == ["loss", "exact match"]
    least = min(score["valid_loss"] for score in measured)
    assert done.scores["valid"][0].value == pytest.approx(least, abs=1e-4)
    assert min(scores[-1].value for scores in done.scores.values()) >= 80

    model = qkv.load(done.folder)
    assert isinstance(model, LanguageModel)
    assert model.prompting.chat == TEMPLATES["plain"]
    asked = questions()
    found = model.answers([[{"role": "user", "content": question}] for question, _ in asked])
    right = sum(text == answer for text, (_, answer) in zip(found, asked, strict=True))
    assert right >= 0.9 * len(asked)
    assert [model.chat(question) for question, _ in asked[:5]] == found[:5]


def test_only_answers_count(tmp_path: Path) -> None:
    """The loss is what the model itself says of each answer and of its end, token by token."""
    made = job(tmp_path, "instruct")
    model, template = made.result, TEMPLATES["plain"]
    total, count = 0.0, 0
    for messages in made.splits.valid:
        before = template.prompt(messages[:-1], model.tokenizer, bos=True)
        whole = template.encode(messages, model.tokenizer, bos=True).tokens
        assert whole[: len(before)] == before
        [likely] = model.likelihoods([whole])
        total -= sum(likely.log_probabilities[len(before) - 1 :])
        count += len(whole) - len(before)
    assert made.evaluate()["valid_loss"] == pytest.approx(total / count, rel=1e-5)

    counts: Counter[int] = Counter()
    for _, answer in questions()[:80]:
        counts.update([*model.tokenizer.encode(answer), model.tokenizer.eos_id])
    shares = [count / counts.total() for count in counts.values()]
    assert made.baseline() == pytest.approx(-sum(p * math.log(p) for p in shares))


OWN = {
    "chat_user": "Q: {content}\n",
    "chat_assistant": "A: {content}\n",
    "chat_system": "{content}",
}


def test_a_recipe_may_write_the_turns_itself(tmp_path: Path) -> None:
    settings = {"model_max_length": 128, "train_steps": 4, "data_bos": False, **OWN}
    done = run(tmp_path, "run", "instruct", **settings, train_valid_bleu=False)
    assert "exact_match" not in read_log(done.folder)[-1]
    prompting = qkv.load(done.folder).prompting
    assert not prompting.bos
    turns = {name.removeprefix("chat_"): turn for name, turn in OWN.items()}
    assert prompting.chat.to_dict() == turns


def test_whole_conversations_are_learned_from_too(tmp_path: Path) -> None:
    roles = ["system", "user", "assistant", "user", "assistant"]
    texts = [
        ["be brief", *question, *other]
        for question, other in zip(questions(1), questions(2), strict=True)
    ]
    records = [
        {"messages": [{"role": r, "content": c} for r, c in zip(roles, each, strict=True)]}
        for each in texts
    ]
    path = write_records(tmp_path / "talks.jsonl", *records)
    settings = {"data_records": str(path), "data_valid_records": str(path)}
    made = job(tmp_path, "instruct", model_max_length=128, **settings)
    counted = sum(len(each[2]) + len(each[4]) + 2 for each in texts)
    assert sum(batch.n_labels for batch in made.valid_batches) == counted
    some = made.splits.valid[:5]
    found = made.result.answers([messages[:-1] for messages in some])
    right = sum(text == messages[-1]["content"] for text, messages in zip(found, some, strict=True))
    assert evaluate(made.result, some).scores[0].value == 100 * right / 5


def test_dropped_records_are_counted(tmp_path: Path) -> None:
    asked = [*questions()[:80], ("say " + "9" * 90, "much"), ("say 1", "")]
    write_questions(tmp_path / "long.jsonl", asked)
    said: list[str] = []
    job(tmp_path, "instruct", said=said, data_records=str(tmp_path / "long.jsonl"))
    dropped = "dropped 1 without an answer, 1 too long (over 64 tokens)"
    assert f"train: 80 of 82 records; {dropped}" in said
    assert "valid: 10 records" in said


def test_a_template_is_the_named_one_with_the_turns_of_the_recipe() -> None:
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
