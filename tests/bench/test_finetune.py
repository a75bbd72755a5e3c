"""Fine-tuning beside the Trainer: the same examples, the same budget and the same yardstick."""

import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import bench.finetune as finetune
from bench.measure import RECIPES, product_job
from bench.trainer import PREPARE as PREPARE_BY_TASK
from bench.trainer import Budget, Judge, as_ours, fine_tune, label_names, span_of
from qkv.config import load_recipe
from qkv.data.formats.squad import Answer, Question
from qkv.errors import UserError
from tests.bench.conftest import SPECIALS, tiny_encoder

NAMES = ["ann", "bobs", "paris", "rome"]
TASKS = {"sst2": "train.tsv", "wnut17": "train.conll", "xquad_en": "train.json"}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty training examples of each kind; the test files hold nothing that can be read."""
    folder = tmp_path_factory.mktemp("data")
    good = [
        ("good" if n % 2 else "bad", f"film {'good' if n % 2 else 'dull'} {n}") for n in range(40)
    ]
    questions = [
        {
            "question": f"who saw {place} ?",
            "context": f"in {n} , {name} saw {place} .",
            "answers": {"text": [name], "answer_start": [len(f"in {n} , ")]},
        }
        for n in range(40)
        for name, place in [(NAMES[n % 2], NAMES[2 + n % 2])]
    ]
    sentences = [f"{NAMES[n % 2]}\tB-person\nsaw\tO\n{n}\tO\n" for n in range(40)]
    texts = {
        "sst2": "label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in good),
        "wnut17": "\n".join(sentences),
        "xquad_en": json.dumps(questions),
    }
    for task, name in TASKS.items():
        (folder / task).mkdir()
        (folder / task / name).write_text(texts[task])
        (folder / task / name.replace("train", "valid")).write_bytes(b"\xff")
    return folder


def job_of(task: str, data: Path, start: Path, *settings: str):
    recipe = load_recipe(
        RECIPES / f"minilm_{task}.toml",
        [
            f"data.examples={data / task / TASKS[task]}",
            "data.test_examples=[]",
            f"train.start_from={start}",
            "train.device=cpu",
            "train.steps=4",
            "train.valid_every=2",
            "train.warmup=1",
            "train.batch_tokens=64",
            *settings,
        ],
    )
    return product_job(recipe, Path("nowhere"))


def prepared(task: str, data: Path, start: Path):
    job = job_of(task, data, start)
    tokenizer = AutoTokenizer.from_pretrained(start)
    prepare = PREPARE_BY_TASK[job.recipe.task]
    return job, tokenizer, prepare(job, tokenizer, "train")


def test_texts_have_their_labels_in_our_order(data, start):
    job, tokenizer, features = prepared("sst2", data, start)
    assert label_names(job) == ("bad", "good") and len(features) == len(job.splits.train) == 36
    for one, example in zip(features, job.splits.train, strict=True):
        assert tokenizer.decode(one["input_ids"]).startswith("[CLS] film")
        assert label_names(job)[one["labels"]] == example.label


def test_a_word_is_labelled_at_its_first_token(data, start):
    job, tokenizer, features = prepared("wnut17", data, start)
    for one, example in zip(features, job.splits.train, strict=True):
        pieces = tokenizer.convert_ids_to_tokens(one["input_ids"])
        taught = [label_names(job)[label] for label in one["labels"] if label != -100]
        assert taught == list(example.labels)
        assert [label == -100 for label in one["labels"]] == [
            piece in SPECIALS[2:4] or piece.startswith("##") for piece in pieces
        ]
    assert any("##s" in tokenizer.convert_ids_to_tokens(one["input_ids"]) for one in features)


def test_answers_stand_where_the_labels_say(data, start):
    job, tokenizer, features = prepared("xquad_en", data, start)
    assert len(features) == len(job.splits.train)
    for one, example in zip(features, job.splits.train, strict=True):
        span = one["input_ids"][one["start_positions"] : one["end_positions"] + 1]
        assert tokenizer.decode(span) == example.answers[0].text


def test_a_window_that_holds_an_answer_in_part_has_none():
    question = Question("1", "who ?", "ann saw bob", (Answer("gone", -1), Answer("saw bob", 4)))
    offsets = [(0, 0), (0, 3), (4, 7), (8, 11), (0, 0)]
    assert span_of(question, offsets, [1, 2, 3]) == (2, 3)
    assert span_of(question, offsets, [1, 2]) == span_of(question, offsets, [3]) == (0, 0)
    silent = Question("2", "who ?", "ann saw bob", ())
    assert span_of(silent, offsets, [1, 2, 3]) == (0, 0)


def test_the_peer_sees_as_many_examples_as_ours_does(data, start):
    job = job_of("sst2", data, start, "train.steps=90", "train.valid_every=9")
    rows = [len(batch) for batch in job.stream.plan(0)]
    budget = Budget.of(job, 36)
    assert budget.batch_size == round(36 / len(rows)) > 1
    assert budget.steps == 10 * budget.valid_every
    assert budget.steps * budget.batch_size == pytest.approx(90 * 36 / len(rows), rel=0.1)
    assert Budget.of(job, 72).steps == pytest.approx(2 * budget.steps, rel=0.1)


def test_what_we_read_of_the_peer_says_what_the_peer_says(data, start, tmp_path):
    job = job_of("sst2", data, start)
    fine_tune(job, start, 1e-3, tmp_path)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    texts = [one.texts[0] for one in job.splits.train]
    tokens = AutoTokenizer.from_pretrained(tmp_path)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**tokens).logits.softmax(-1)
    found = as_ours(job, tmp_path).classify(texts)
    torch.testing.assert_close(
        torch.tensor([[one.probabilities[label] for label in ("bad", "good")] for one in found]),
        expected,
        atol=1e-5,
        rtol=0,
    )


def test_the_peer_keeps_what_our_measure_finds_best(data, start, tmp_path, monkeypatch):
    job = job_of("sst2", data, start, "train.steps=6", "train.lr=0.01")
    scores, kept = iter([50.0, 90.0, 70.0]), []
    monkeypatch.setattr(job, "named", lambda scored: {"accuracy": next(scores)})
    on_evaluate = Judge.on_evaluate

    def noting(judge, *given, model, **more):
        kept.append(model.classifier.weight.detach().clone())
        on_evaluate(judge, *given, model=model, **more)

    monkeypatch.setattr(Judge, "on_evaluate", noting)
    fine_tune(job, start, 1e-2, tmp_path)
    best = AutoModelForSequenceClassification.from_pretrained(tmp_path).classifier.weight
    assert [torch.equal(best, one) for one in kept] == [False, True, False]


def test_answers_are_looked_for_in_the_windows_that_were_trained_on(data, start, tmp_path):
    job = job_of("xquad_en", data, start, "train.steps=1", "train.valid_every=1")
    fine_tune(job, start, 1e-3, tmp_path)
    found = as_ours(job, tmp_path)
    assert (found.reader.room(pair=True), found.settings.overlap) == (381, 128)
    assert found.settings.max_answer == job.recipe.answer.max_answer
    assert job.result.reader.room(pair=True) == 509


@pytest.mark.parametrize("task", TASKS)
def test_settings_are_chosen_without_the_test_file(task, data, start, tmp_path, capfd):
    asked = ["--task", task, "--data", str(data / task), "--model", str(start), "--out"]
    steps = ["--set", "train.steps=2", "--set", "train.valid_every=2", "--set", "train.warmup=1"]
    run = partial(finetune.main, [*asked, str(tmp_path), *steps, "--seeds", "0", "--choose"])
    session = run()
    lines = capfd.readouterr().out.splitlines()
    ours, peer = map(json.loads, lines[:2])
    assert (ours["arm"], peer["arm"]) == ("ours", "peer")
    assert ours["valid"].keys() == peer["valid"].keys() and "test" not in ours
    assert ours["seed"] == 0 and ours["lr"] == peer["lr"] > 0 and "seconds" in ours
    assert len(lines) == 2 + len(session.records)
    assert all("ours" in one.ours for one in session.records)
    assert not list(tmp_path.iterdir())


def test_the_test_file_is_scored_once_a_run(data, start, tmp_path, capfd):
    folder = tmp_path / "data"
    folder.mkdir()
    text = (data / "sst2" / "train.tsv").read_text()
    (folder / "train.tsv").write_text(text)
    (folder / "valid.tsv").write_text("\n".join(text.splitlines()[:9]) + "\n")
    settings = ["--set", "train.steps=2", "--set", "train.valid_every=1", "--seeds", "3"]
    asked = ["--task", "sst2", "--data", str(folder), "--model", str(start), *settings]
    finetune.main([*asked, "--out", str(tmp_path / "out"), "--peer-lr", "0.001"])
    ours, peer = map(json.loads, capfd.readouterr().out.splitlines()[:2])
    assert peer["lr"] == 0.001 != ours["lr"]
    assert ours["test"]["accuracy"] * 8 % 100 == peer["test"]["accuracy"] * 8 % 100 == 0
    names = sorted(one.name for one in (tmp_path / "out").iterdir())
    assert names == ["sst2-ours-0.0001-3", "sst2-peer-0.001-3"]


def record(arm: str, seed: int, value: float) -> dict:
    return {"task": "sst2", "arm": arm, "seed": seed, "test": {"accuracy": value}, "seconds": 2.0}


def test_records_have_means_spreads_and_differences(tmp_path):
    results = [record("ours", 0, 90.0), record("ours", 1, 92.0), record("peer", 1, 89.0)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, results)))
    accuracy, seconds = finetune.main(["--table", str(tmp_path / "a.jsonl")]).records
    assert accuracy.key == "quality.finetune.sst2.accuracy"
    assert accuracy.ours == {"ours": [91.0, 1.41], "Trainer": 89.0, "ours − Trainer": 3.0}
    assert seconds.ours == {"ours": [2.0, 0.0], "peer": 2.0}
    with pytest.raises(SystemExit, match="2 runs of task sst2, ours, seed 0"):
        finetune.main(["--table", *[str(tmp_path / "a.jsonl")] * 2])


def test_a_missing_accelerate_is_one_sentence(data, start, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs accelerate, which is not installed"):
        fine_tune(job_of("sst2", data, start), start, 1e-3, tmp_path)
