"""Training a language model: from text to a folder that goes on with it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import qkv
from qkv.config import load_recipe
from qkv.data import shards
from qkv.errors import UserError
from qkv.run import language, train
from qkv.run.language import Language
from qkv.tasks import LanguageModel
from qkv.weights import read_tensors
from tests.run.common import everything, read_log, silence
from tests.run.language_tiny import (
    LEARNS,
    killed_and_resumed,
    learned,
    plan,
    recipe,
    run,
    sentences,
    write_lines,
)

SENTENCE = re.compile(r"the (\w+) sees the (\w+)\.")


def test_a_run_leaves_its_recipe_log_scores_and_model(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    done = learned(tmp_path_factory)
    assert load_recipe(done.folder / "recipe.toml") == recipe(done.folder.parent, **LEARNS)
    log = read_log(done.folder)
    assert [record["step"] for record in log] == list(range(1, 201))
    measured = [record for record in log if "valid_loss" in record]
    assert [record["step"] for record in measured] == [50, 100, 150, 200]
    for record in measured:
        assert record["perplexity"] == pytest.approx(math.exp(record["valid_loss"]))
        assert 0 < record["bits_per_byte"] < 8
    losses = [record["valid_loss"] for record in measured]
    assert log[0]["loss"] > 2 * losses[0] > 2 * losses[-1]
    loss, perplexity, bits = done.scores["valid"]
    assert loss.value == pytest.approx(min(losses))
    assert perplexity.value == pytest.approx(math.exp(loss.value))
    best = min(measured, key=lambda record: record["valid_loss"])
    assert bits.value == pytest.approx(best["bits_per_byte"])


def test_it_has_learnt_its_language(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = qkv.load(learned(tmp_path_factory).folder)
    assert isinstance(model, LanguageModel)
    draws = {"sample": True, "temperature": 0.5, "max_length": 30}
    found = [model.generate("the cat sees", **draws, seed=seed) for seed in range(10)]
    right = sum(bool(SENTENCE.match("the cat sees" + text)) for text in found)
    assert right >= 8
    likely, odd = model.score(["the cat sees the dog.", "the the dog sees. cat"])
    assert likely.bits_per_byte < odd.bits_per_byte / 3


def test_the_readme_says_what_it_is_and_how_it_scored(tmp_path: Path) -> None:
    write_lines(tmp_path / "test.txt", sentences(9, seed=4))
    done = run(tmp_path, data_licence="CC0", data_test_text=str(tmp_path / "test.txt"))
    card = (done.folder / "README.md").read_text()
    assert card.startswith("# run: a language model\n")
    assert f"{tmp_path / 'text.txt'} (licence: CC0)" in card
    assert f'qkv generate --model {done.folder} "…"' in card
    assert done.scores.keys() == {"valid", "test"}
    for split in done.scores.values():
        assert [score.name for score in split] == ["loss", "perplexity", "bits per byte"]
        assert all(str(score) in card for score in split)


@pytest.mark.parametrize("bos", [True, False])
def test_a_loss_is_that_of_the_text_and_its_end(tmp_path: Path, bos: bool) -> None:
    """One document that fits a window: what the model itself says of it, token by token."""
    text = "the cat sees the dog. 我"
    (tmp_path / "valid.txt").write_text(text)
    job = Language(plan(tmp_path, data_valid_text=str(tmp_path / "valid.txt"), data_bos=bos))
    scores, model = job.evaluate(), job.speaker
    [likely] = model.likelihoods([[*model.encode(text), model.tokenizer.eos_id]])
    assert scores["valid_loss"] == pytest.approx(-likely.log_probability / likely.n_tokens)
    assert likely.n_tokens == len(model.tokenizer.encode(text)) + bos
    bits = -likely.log_probability / math.log(2) / len(text.encode())
    assert scores["bits_per_byte"] == pytest.approx(bits)


RESUMED: list[dict[str, Any]] = [
    {"data_across": False},
    {"data_across": True, "data_bos": False, "data_documents": "file"},
    {"data_across": True, "train_batch_tokens": 2048},
    {"train_accumulate": 2, "train_packing": "on", "tokenizer_kind": "bpe"},
    {"train_average": 3, "train_precision": "bfloat16", "model_attention_dropout": 0.2},
]


@pytest.mark.parametrize("step", [2, 9])
@pytest.mark.parametrize("settings", RESUMED, ids=str)
def test_a_run_killed_and_resumed_ends_bit_for_bit_the_same(
    tmp_path: Path, step: int, settings: dict
) -> None:
    whole = run(tmp_path, "whole", **settings).folder
    assert everything(killed_and_resumed(step, tmp_path, **settings)) == everything(whole)


def test_some_of_the_runs_above_cross_the_border_of_an_epoch(tmp_path: Path) -> None:
    assert len(Language(plan(tmp_path)).stream.windows.tokens) < 2048 * 9


def test_a_resumed_run_learns_no_vocabulary_and_reads_no_text_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(tmp_path).folder
    for name in ("train_tokenizer", "sample_text"):
        monkeypatch.setattr(language, name, never)
    monkeypatch.setattr(shards, "_make", never)
    again = train(recipe(tmp_path, train_steps=14), folder, resume=True, console=silence())
    assert again.state.step == 14
    with pytest.raises(UserError, match=r"data\.across differs from the run"):
        train(recipe(tmp_path, data_across=True), folder, resume=True, console=silence())


@pytest.mark.parametrize("use", ["train", "valid"])
def test_a_change_of_the_text_is_seen_wherever_it_is(tmp_path: Path, use: str) -> None:
    lines = {name: sentences(200, seed) for seed, name in enumerate(("train", "valid"))}
    paths = {name: write_lines(tmp_path / f"{name}.txt", lines[name]) for name in lines}
    settings = {"data_text": str(paths["train"]), "data_valid_text": str(paths["valid"])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language, "COUNTED", 50)  # or the text would have to be long
        folder = run(tmp_path, **settings).folder
        lines[use][150] = lines[use][150][::-1]  # as long as before
        write_lines(paths[use], lines[use])
        with pytest.raises(UserError, match="The text has changed"):
            train(recipe(tmp_path, **settings), folder, resume=True, console=silence())


def never(*arguments: Any, **named: Any) -> None:
    raise AssertionError("this is done again")


def test_tokens_are_shared_between_runs_until_the_text_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"data_shards": str(tmp_path / "shards"), "train_steps": 2}
    first = run(tmp_path, "first", **settings)
    assert not (first.folder / "shards").exists()
    with monkeypatch.context() as patch:
        patch.setattr(shards, "_make", never)
        again = run(tmp_path, "again", **settings)
        assert read_log(again.folder)[0]["loss"] == read_log(first.folder)[0]["loss"]
        write_lines(tmp_path / "text.txt", sentences(200, seed=2))
        with pytest.raises(AssertionError, match="done again"):
            run(tmp_path, "other", **settings)
    run(tmp_path, "other", **settings)
    made = [path for path in (tmp_path / "shards").iterdir() if path.is_dir()]
    assert len(made) == 2


def test_packed_windows_and_rows_have_the_same_loss(tmp_path: Path) -> None:
    settings = {"train_steps": 1, "model_dropout": 0.0, "train_valid_every": 1}
    logs = [
        read_log(run(tmp_path, packing, train_packing=packing, **settings).folder)[0]
        for packing in ("on", "off")
    ]
    assert logs[0]["loss"] == pytest.approx(logs[1]["loss"], rel=1e-5)
    assert logs[0]["valid_loss"] == pytest.approx(logs[1]["valid_loss"], rel=1e-5)
    job = Language(plan(tmp_path, train_packing="on"))
    [batch] = next(job.stream.steps_from(0))
    assert batch.target.tokens.shape == (1, 256)
    assert batch.target.offsets is not None


def test_documents_do_not_see_each_other_unless_asked_to(tmp_path: Path) -> None:
    settings = {"train_steps": 1, "model_dropout": 0.0}
    apart, across = (
        read_log(run(tmp_path, str(across), data_across=across, **settings).folder)[0]["loss"]
        for across in (False, True)
    )
    assert apart != pytest.approx(across, rel=1e-6)


@pytest.mark.parametrize(
    "differences",
    [
        {"tokenizer_kind": "bpe"},
        {"tokenizer_kind": "unigram"},
        {"tokenizer_kind": "byte"},
        {"tokenizer_kind": "wordpiece"},
        {"model_preset": "gpt2-mini", "train_packing": "on"},
        {"model_preset": "gpt3-small", "model_window": 8},
        {"data_documents": "file"},
        {"data_documents": "paragraph", "data_valid_share": 0.3},
        {"train_precision": "bfloat16"},
        {"data_max_length": 16, "train_accumulate": 2},
        {"train_batch_tokens": 10},
        {"model_tie": "none", "model_n_kv_heads": 1},
    ],
    ids=str,
)
def test_every_kind_of_run_ends_in_a_model(tmp_path: Path, differences: dict) -> None:
    done = run(tmp_path, train_steps=4, **differences)
    log = read_log(done.folder)
    assert all(math.isfinite(record["loss"]) for record in log)
    assert isinstance(qkv.load(done.folder).generate("the", max_length=5), str)


def test_a_run_depends_on_its_seed_alone(tmp_path: Path) -> None:
    folders = [run(tmp_path, "one").folder, run(tmp_path, "same").folder]
    folders.append(run(tmp_path, "other", train_seed=1).folder)
    one, same, other = (read_tensors(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(tensor, same[name]) for name, tensor in one.items())
    assert any(not torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_records_become_text_by_a_template(tmp_path: Path) -> None:
    records = [{"title": f"no {n}", "body": text} for n, text in enumerate(sentences(60))]
    path = write_lines(tmp_path / "records.json", [json.dumps(record) for record in records])
    job = Language(plan(tmp_path, data_text=str(path), data_template="{title}: {body}"))
    tokens = job.stream.windows.tokens
    read = tokens.read(0, 200).tolist()
    documents = job.tokenizers.target.decode(read[: read.index(job.config.eos_id)])
    assert documents == f"no 0: {records[0]['body']}"
    done = run(tmp_path, data_text=str(path), data_text_field="body", train_steps=2)
    assert (done.folder / "model.safetensors").exists()


def test_how_frequent_tokens_are_is_what_must_be_beaten(tmp_path: Path) -> None:
    job = Language(plan(tmp_path))
    tokens = job.stream.windows.tokens
    counts = Counter(tokens.read(0, len(tokens)).tolist())
    share = [count / len(tokens) for count in counts.values()]
    assert job.frequencies_loss == pytest.approx(-sum(p * math.log(p) for p in share))


def test_what_is_read_is_told(tmp_path: Path) -> None:
    file = StringIO()
    train(recipe(tmp_path), tmp_path / "run", console=Console(file=file, width=40))
    said = file.getvalue().splitlines()
    assert re.fullmatch(r"· train: [\d,]+ tokens in 190 documents; valid: [\d,]+ tokens", said[0])
    assert any(line.startswith("· llama-tiny: ") for line in said)
    assert any(line.startswith("step 12/12  loss ") for line in said)


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ({"data_text": []}, "no text is given; set text"),
        ({"data_valid_share": 0.0}, "nothing to validate with"),
        ({"data_max_length": 65}, r"data.max_length \(65\) is over model.max_length \(64\)"),
        ({"model_vocab_size": 9}, r"\[model\]: vocab_size follows from the tokenizer"),
        ({"train_metric": "bleu"}, "is not measured by task = 'generate'"),
        ({"model_preset": "transformer-tiny"}, "needs a model of family 'decoder'"),
    ],
)
def test_contradictions_are_explained(tmp_path: Path, differences: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(tmp_path, **differences)
    assert not (tmp_path / "run").exists()  # nor has a long text been read for nothing
