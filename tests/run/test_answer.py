"""Question answering: questions on texts in, a model that finds answers out."""

import json
import math
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv.config import AnswerConfig, load_recipe
from qkv.data import Answer, Question, read_squad
from qkv.errors import UserError
from qkv.run.answer import NOTHING, trained_windows, window_labels
from qkv.run.train import Run
from qkv.tasks import Answerer
from qkv.tasks.answer import Answers
from tests.run.common import ENCODER, TRAINING, Runs, data_files, validations
from tests.tasks.test_answer import TEXTS, answerer

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def texts(n: int, seed: int) -> list[tuple[str, dict[str, str]]]:
    """Words, of which one is a number and one has capitals, and what is asked for there."""
    draw = random.Random(seed)

    def word(letters: str) -> str:
        return "".join(draw.choices(letters, k=draw.randint(1, 3)))

    found = []
    for _ in range(n):
        asked = {"which number?": word("123456789"), "which name?": word("ABCDEFGH")}
        words = [*asked.values(), *(word("abcdefgh") for _ in range(draw.randint(1, 3)))]
        draw.shuffle(words)
        found.append((" ".join(words), asked))
    return found


def write_questions(path: Path, n: int, seed: int, unanswerable: bool = False) -> Path:
    """A file in SQuAD's form; `unanswerable`: a third of the texts lacks what one question asks."""
    paragraphs = []
    for number, (text, asked) in enumerate(texts(n, seed)):
        if unanswerable and number % 3 == 0:
            text = " ".join(text.replace(asked["which name?"], " ").split())
        qas = [
            {
                "id": f"{number}-{place}",
                "question": question,
                "is_impossible": word not in text,
                "answers": [{"text": word, "answer_start": text.find(word)}] * (word in text),
            }
            for place, (question, word) in enumerate(asked.items())
        ]
        paragraphs.append({"context": text, "qas": qas})
    content = {"version": "v2.0", "data": [{"title": "words", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def values(folder: Path, unanswerable: bool = False) -> dict[str, Any]:
    write = partial(write_questions, unanswerable=unanswerable)
    sizes = {"train": 300, "valid": 30, "test": 30}
    return {
        "task": "answer",
        "data": data_files("examples", folder, "{}.json", write, **sizes),
        "tokenizer": {"kind": "char", "vocab_size": 300},
        "model": {
            **ENCODER,
            "d_model": 32,
            "d_ff": 64,
            "n_encoder_layers": 2,
            "max_length": 40,
            "dropout": 0.0,
            "positions": "rotary",
        },
        "train": {**TRAINING, "batch_tokens": 600, "lr": 0.003, "optimizer": "muon"},
    }


LEARNS: dict[str, Any] = {
    "train_steps": 250,
    "train_warmup": 30,
    "train_valid_every": 50,
    "train_checkpoint_every": 1000,
    "train_metric": "loss",
}

RUNS = Runs(values, learns=LEARNS)
recipe, write_recipe, run, job = RUNS.recipe, RUNS.write_recipe, RUNS.run, RUNS.job


def learned(factory: pytest.TempPathFactory, unanswerable: bool = False) -> Run:
    return RUNS.learned(factory, unanswerable, data_test_examples="test.json")


def test_a_run_learns_to_find_answers_and_is_scored(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    done = learned(tmp_path_factory)
    measured = validations(done.folder)
    assert measured[0]["exact_match"] < 60 < 90 < measured[-1]["exact_match"]
    assert measured[-1]["f1"] >= measured[-1]["exact_match"]
    assert done.scores.keys() == {"valid", "test"}
    assert [score.name for score in done.scores["test"]] == ["exact match", "F1"]
    assert min(score.value for scores in done.scores.values() for score in scores) > 90
    assert not done.result.settings.unanswerable


def test_its_folder_answers(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = qkv.load(learned(tmp_path_factory).folder, device="cpu")
    assert isinstance(model, Answerer)
    found = model.answer("which name?", "abc 742 BAD fed", n_best=2)
    assert (found.text, found.start, found.end) == ("BAD", 8, 11)
    assert found.probability > 0.5 > found.n_best[1].probability
    assert model.answer("which number?", "abc 742 BAD fed").text == "742"


def test_it_learns_that_there_may_be_no_answer(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = learned(tmp_path_factory, unanswerable=True)
    assert done.result.settings.unanswerable
    by_name = {score.name: score.value for score in done.scores["valid"]}
    assert by_name["exact match"] > 90
    assert by_name["unanswerable exact match"] > 90
    found = done.result.answer("which name?", "abc 742 fed", n_best=2)
    assert (found.text, found.start, found.end) == ("", -1, -1)
    assert found.probability > 0.5
    assert done.result.answer("which number?", "abc 742 fed").text == "742"
    figures = validations(done.folder)[-1]
    assert figures["exact_match"] == pytest.approx(by_name["exact match"])


@given(context=TEXTS.filter(str.strip), data=st.data())
@settings(max_examples=60)
@pytest.mark.parametrize("kind", ["bpe", "byte", "unigram"])
def test_the_labels_spell_the_answer(kind: str, context: str, data: st.DataObject) -> None:
    """In each window that has all tokens of the answer, and BOS in each that has not."""
    one = answerer(kind)
    spelt = one.spell([context])[context]
    visible = spelt.visible.nonzero()[:, 0].tolist()
    first = data.draw(st.sampled_from(visible))
    last = data.draw(st.sampled_from([index for index in visible if index >= first][:9]))
    start, end = spelt.spelt.spans[first][0], spelt.spelt.spans[last][1]
    wrong = Answer("nowhere", -1), Answer(" ", -1)
    answers = (*wrong, Answer(context[start:end], start))
    parts = one.frame(["who?"], [spelt])
    labels = window_labels(Question("1", "who?", context, answers), spelt, parts)
    whole = spelt.tokens(start, end)
    assert whole is not None
    begin, beyond = whole[0], whole[1] + 1
    held = [part.window[0] <= begin and beyond <= part.window[1] for part in parts]
    if not any(held):
        assert labels is None
        return
    assert labels is not None
    for part, label, there in zip(parts, labels, held, strict=True):
        assert (label != NOTHING) == there
        if there:
            tokens = part.framed.tokens[label[0] : label[1] + 1]
            assert tokens == spelt.spelt.ids[begin:beyond]
            shift = part.window[0] - part.begin
            places = [spelt.spelt.spans[place + shift] for place in label]
            assert (places[0][0], places[1][1]) == (start, end)


def test_questions_without_answers_are_labelled_so_and_lost_ones_not_at_all() -> None:
    one = answerer()
    spelt = one.spell(["the cat"])["the cat"]
    parts = one.frame(["who?"], [spelt])

    def labels(*answers: Answer) -> Any:
        return window_labels(Question("1", "who?", "the cat", answers), spelt, parts)

    assert labels() == labels(Answer("", 0)) == labels(Answer(" ", -1)) == [NOTHING]
    assert labels(Answer("dog", -1)) is labels(Answer("the dog, a cat", -1)) is None
    assert labels(Answer("cat", 4), Answer("the", 0)) == [(1 + 4 + 1 + 4, 1 + 4 + 1 + 6)]
    assert labels(Answer(" cat", 3)) == labels(Answer("cat", 4))


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        ([(3, 4)], [0]),
        ([NOTHING], [0]),
        ([NOTHING] * 9, [0]),
        ([NOTHING, (3, 4), NOTHING], [0, 1, 2]),
        ([NOTHING, NOTHING, (3, 4), *[NOTHING] * 4], [0, 2, 4]),
        ([*[NOTHING] * 4, (3, 4), (1, 2), *[NOTHING] * 5], [0, 3, 4, 5, 8]),
    ],
)
def test_windows_without_the_answer_do_not_outnumber_it(
    labels: Sequence[tuple[int, int]], kept: list[int]
) -> None:
    assert trained_windows(labels) == kept


def test_the_loss_is_that_of_both_ends(tmp_path: Path) -> None:
    made = job(tmp_path)
    model, total = made.model.double().eval(), 0.0
    examples = made.splits.valid
    for one in examples:
        [part] = made.result.frame([one.question], [made.result.spell([one.context])[one.context]])
        tokens, segments = (torch.tensor([each]) for each in vars(part.framed).values())
        start = part.begin + one.answers[0].start  # a token a character
        ends = start, start + len(one.answers[0].text) - 1
        with torch.no_grad():
            logits = model(tokens, segments=segments)[0].log_softmax(0)
        total -= sum(float(logits[place, side]) for side, place in enumerate(ends)) / 2
    assert made.evaluate()["valid_loss"] == pytest.approx(total / len(examples), rel=1e-5)


def test_the_baseline_is_guessing(tmp_path: Path) -> None:
    made = job(tmp_path)
    sizes = [
        math.log(1 + len(one.question) + 1 + len(one.context)) for one in made.splits.train
    ]  # all tokens but BOS
    assert made.baseline() == pytest.approx(np.mean(sizes))
    half = len(made.train_items) // 2
    made.train_items.labels = np.array(made.train_items.labels)
    made.train_items.labels[:half] = 0  # without an answer
    assert made.baseline() == pytest.approx(math.log(2) + np.mean(sizes) / 2, rel=1e-3)


def test_questions_that_cannot_be_learned_from_are_counted(tmp_path: Path) -> None:
    asked = read_squad([write_questions(tmp_path / "train.json", 40, 1)])
    lost = {
        "id": "lost",
        "question": "who?",
        "context": "a cat",
        "answers": {"text": ["dog"], "answer_start": [2]},
    }
    (tmp_path / "more.jsonl").write_text(json.dumps(lost) + "\n")
    write_questions(tmp_path / "valid.json", 10, 2)
    both = [str(tmp_path / "train.json"), str(tmp_path / "more.jsonl")]
    said: list[str] = []
    job(tmp_path, said=said, data_examples=both)
    assert f"train: {len(asked) + 1} examples; valid: 20 examples" in said
    whose = "whose answer is not in the text, or in no window whole"
    assert f"train: left out 1 of {len(asked) + 1} {whose}" in said
    words = "whole answer to any of the 1 questions; an answer must be in its text letter by letter"
    with pytest.raises(UserError, match=words):
        job(tmp_path, data_examples=str(tmp_path / "more.jsonl"))


def test_its_settings_are_those_of_the_recipe(tmp_path: Path) -> None:
    made = job(tmp_path, answer_max_question=2, answer_max_answer=1)
    wanted = {**vars(AnswerConfig()), "max_question": 2, "max_answer": 1}
    assert made.result.settings == Answers(**wanted)


@pytest.mark.parametrize("name", ["xquad_en", "cmrc2018"])
def test_our_recipes_read_their_questions(name: str, shared_data: Path) -> None:
    data = load_recipe(RECIPES / f"{name}.toml").data
    train, test = (
        read_squad([shared_data / Path(file).relative_to("path/to") for file in files])
        for files in (data.examples, data.test_examples)
    )
    assert not {one.context for one in train} & {one.context for one in test}
    there = [any(answer.start >= 0 for answer in one.answers) for one in train]
    assert sum(there) > 0.99 * len(train)
