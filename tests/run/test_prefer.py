"""Preference tuning: chosen answers become likelier than rejected ones, for new prompts too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.data import read_preferences
from qkv.errors import UserError
from qkv.run.train import Run
from tests.run.common import read_log, write_records
from tests.run.prefer_tiny import RUNS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prefer")


@pytest.fixture(scope="module")
def done(folder: Path) -> Run:
    test = {"data_test_records": str(folder / "prefer-test.jsonl")}
    steps = {"train_steps": 60, "train_valid_every": 20, "train_lr": 0.003}
    return RUNS.run(folder, "run", **test, **steps)


def likelihood(model: Any, messages: list[Any]) -> float:
    """log P of the last answer, its end included, token by token in float64."""
    template, tokenizer = model.prompting.chat, model.tokenizer
    before = template.prompt(messages[:-1], tokenizer, bos=model.prompting.talk_bos)
    whole = template.encode(messages, tokenizer, bos=model.prompting.talk_bos).tokens
    with torch.no_grad():
        logits = model.model.double()(torch.tensor([whole]))[0].log_softmax(-1)
    places = range(len(before) - 1, len(whole) - 1)
    return float(sum(logits[place, whole[place + 1]] for place in places))


def test_chosen_answers_become_likelier_for_prompts_that_were_held_out(
    done: Run, folder: Path
) -> None:
    names = [score.name for score in done.scores["test"]]
    assert names == ["preferred", "log-ratio of chosen", "log-ratio of rejected"]
    before, after = qkv.load(folder / "start"), qkv.load(done.folder)
    pairs = read_preferences([str(folder / "prefer-test.jsonl")])
    table = np.array(
        [[[likelihood(m, side) for side in pair] for pair in pairs] for m in (before, after)]
    )
    preferred = 100 * (table[..., 0] > table[..., 1]).mean(axis=1)
    assert preferred[0] < 20 < 90 < preferred[1]
    found = [score.value for score in done.scores["test"]]
    assert found[0] == pytest.approx(preferred[1])
    assert found[1:] == pytest.approx((table[1] - table[0]).mean(axis=0), abs=1e-3)
    assert found[1] > found[2]


def test_evaluate_gives_the_figures_of_the_run(done: Run, folder: Path) -> None:
    model, path = qkv.load(done.folder), folder / "prefer-test.jsonl"
    found = qkv.evaluate(model, path)
    preferred, margin = found.scores
    assert preferred.value == pytest.approx(done.scores["test"][0].value)
    pairs = read_preferences(path)
    assert preferred.signature == f"{len(pairs)} records"
    assert qkv.evaluate(model, pairs) == found
    by_hand = [[likelihood(model, side) for side in pair] for pair in pairs]
    assert margin.value == pytest.approx(np.mean([c - r for c, r in by_hand]), abs=1e-3)


def test_the_first_loss_is_that_of_no_preference_and_it_falls(done: Run) -> None:
    log = read_log(done.folder)
    assert log[0]["loss"] == pytest.approx(np.log(2), abs=1e-4)
    assert log[-1]["valid_loss"] < 0.5 * np.log(2)
    assert log[-1]["preferred"] > 90


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_paper_s_equation(folder: Path, done: Run, smoothing: float) -> None:
    """Equation 7, and Mitchell's conservative form of it, from probabilities in float64."""
    made = RUNS.job(folder, prefer_beta=0.3, train_label_smoothing=smoothing)
    reference, policy = qkv.load(folder / "start"), qkv.load(done.folder)
    made.model.load_state_dict(policy.model.state_dict())
    made.model.eval()
    batch = made.valid_items.batch(np.arange(5))
    with torch.no_grad():
        found = float(made.objective(made.model, batch, smoothing))
    expected = 0.0
    for pair in made.splits.valid[:5]:
        chosen, rejected = (likelihood(policy, m) - likelihood(reference, m) for m in pair)
        margin = 0.3 * (chosen - rejected)
        right, wrong = (np.log1p(np.exp(-x)) for x in (margin, -margin))
        expected += (1 - smoothing) * right + smoothing * wrong
    assert found == pytest.approx(expected, rel=1e-4)


def test_with_lora_the_frozen_model_stays_as_it_was(folder: Path, done: Run) -> None:
    lora = {"train_lora_rank": 4, "train_lr": 0.02, "train_steps": 40, "train_valid_every": 20}
    tuned = RUNS.run(folder, "lora", **lora)
    assert (tuned.folder / "adapter_model.safetensors").exists()
    assert tuned.scores["valid"][0].value > 90


def test_records_may_be_texts_or_messages(tmp_path: Path) -> None:
    user, yes, no = (
        {"role": role, "content": text}
        for role, text in (("user", "a"), ("assistant", "yes"), ("assistant", "no"))
    )
    system = {"role": "system", "content": "short"}
    path = write_records(
        tmp_path / "a.jsonl",
        {"prompt": "a", "chosen": "yes", "rejected": "no"},
        {"prompt": [user], "chosen": [yes], "rejected": [no]},
        {"chosen": [user, yes], "rejected": [user, no]},
        {"system": "short", "prompt": "a", "chosen": "yes", "rejected": "no"},
    )
    plain = ([user, yes], [user, no])
    found = [tuple(pair) for pair in read_preferences(path)]
    assert found == [plain, plain, plain, tuple([system, *side] for side in plain)]


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"prompt": "a", "chosen": "b"}, "there is no 'rejected'"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are the same"),
        ({"chosen": "b", "rejected": "c"}, "cannot speak first"),
        (
            {
                "chosen": [{"role": "user", "content": "a"}],
                "rejected": [{"role": "user", "content": "a"}],
            },
            "must end with what the assistant says",
        ),
        (
            {
                name: [{"role": "user", "content": name}, {"role": "assistant", "content": "x"}]
                for name in ("chosen", "rejected")
            },
            "differ before the last message",
        ),
    ],
)
def test_bad_records_are_named(tmp_path: Path, record: dict[str, Any], sentence: str) -> None:
    path = write_records(tmp_path / "a.jsonl", record)
    with pytest.raises(UserError, match=rf"a\.jsonl.*line 1.*{sentence}"):
        read_preferences(path)


def test_there_must_be_a_model_to_start_from(folder: Path) -> None:
    with pytest.raises(UserError, match=r"name it with\s+train.start_from"):
        RUNS.job(folder, train_start_from="")
