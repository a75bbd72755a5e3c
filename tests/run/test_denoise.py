"""Pre-training an encoder-decoder: from plain text to a folder that other tasks begin from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.config import load_recipe, recipe_from
from qkv.errors import UserError
from qkv.run.train import Run, train
from qkv.run.denoise import Denoising
from qkv.run.job import Plan
from qkv.run.translate import Translation
from qkv.tasks import Translator
from qkv.text import train_tokenizer
from qkv.training import mean_loss, with_wrong_sources
from qkv.weights import read_tensors
from tests.run import tiny
from tests.run.common import TRAINING, everything, read_log, silence
from tests.run.denoise_tiny import LEARNS, RUNS, documents, job, learned, recipe, run, values
from tests.run.fill_tiny import BEASTS
from tests.run.language_tiny import write_lines
from tests.run.tiny import WORDS

KINDS = ["spans", "infill"]


def measured(folder: Path) -> list[Any]:
    return [record for record in read_log(folder) if "valid_loss" in record]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_learns_its_language(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    done = learned(tmp_path_factory, kind)
    text = str(done.folder.parent / "test.txt")
    told = recipe(done.folder.parent, data_test_text=text, denoise_kind=kind, **LEARNS)
    assert load_recipe(done.folder / "recipe.toml") == told
    log = measured(done.folder)
    assert [record["step"] for record in log] == [100, 200, 300]
    made = beginning_from(done.folder.parent, done.folder, denoise_kind=kind)
    assert log[-1]["valid_loss"] < 0.1 * made.frequencies_loss
    wrong = with_wrong_sources(made.batches)
    right = made.evaluate()["valid_loss"]
    assert right == pytest.approx(log[-1]["valid_loss"], rel=1e-4)
    assert mean_loss(made.model, made.loss_sum, wrong) > 5 * right
    for split in ("valid", "test"):
        loss, perplexity = done.scores[split]
        assert (loss.name, perplexity.name) == ("loss", "perplexity")
        assert perplexity.value == pytest.approx(math.exp(loss.value))
        assert loss.value < 0.1 * made.frequencies_loss
    assert done.scores["valid"][0].value == min(record["valid_loss"] for record in log)


@pytest.mark.parametrize("kind", KINDS)
def test_its_folder_reads_and_writes_text(
    tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    done = learned(tmp_path_factory, kind)
    model = qkv.load(done.folder, device="cpu")
    assert isinstance(model, Translator)
    text = "the dog sees three . the dog sees four ."
    assert model.translate(text) == done.result.translate(text)
    if kind == "infill":  # the whole text, whatever the share of it that was hidden
        assert model.translate(text).startswith(text)
    card = (done.folder / "README.md").read_text()
    assert card.startswith("# run: a pre-trained encoder-decoder\n")
    assert f"qkv train RECIPE.toml --set train.start_from={done.folder}\n" in card
    assert all(str(score) in card for scores in done.scores.values() for score in scores)


def greedy(model: Translator, source: list[int], most: int = 12) -> list[int]:
    """What the model writes for tokens that no text can spell."""
    written = [model.model.config.bos_id]
    with torch.no_grad():
        for _ in range(most):
            logits = model.model(torch.tensor([source]), torch.tensor([written]))
            written.append(int(logits[0, -1].argmax()))
    end = written.index(model.model.config.eos_id)
    return written[1:end]


def test_a_hidden_span_is_told_by_its_sentinel(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = qkv.load(learned(tmp_path_factory).folder, device="cpu")
    tokenizer = model.tokenizers.target
    x, y = (tokenizer.special_id(f"<extra_id_{number}>") for number in range(2))
    text = tokenizer.encode("the dog sees three . the dog sees four . the dog sees five .")
    for place, hidden in [(12, "sees five"), (6, "dog sees"), (0, "the dog")]:
        assert text[place : place + 2] == tokenizer.encode(hidden)
        source = [*text[:place], x, *text[place + 2 :], model.model.config.eos_id]
        assert greedy(model, source) == [x, *tokenizer.encode(hidden), y]


@pytest.mark.parametrize("kind", KINDS)
def test_packed_and_padded_runs_are_measured_alike_and_both_learn(
    tmp_path: Path, kind: str
) -> None:
    settings = {"denoise_kind": kind, "model_dropout": 0.0}
    packed, padded = (job(tmp_path, train_packing=how, **settings) for how in ("on", "off"))
    first = packed.evaluate()
    assert first == padded.evaluate()
    assert packed.one_shape and not padded.one_shape
    [batch], [other] = next(packed.stream.steps_from(0)), next(padded.stream.steps_from(0))
    assert batch.target.offsets is not None and len(batch.target.tokens) == 1
    assert other.target.offsets is None and len(other.target.tokens) > 1
    for how in ("on", "off"):
        log = read_log(run(tmp_path, how, train_packing=how, **settings, train_steps=20).folder)
        assert log[-1]["valid_loss"] < 0.8 * first["valid_loss"]


def test_what_packed_kernels_cannot_do_is_padded(tmp_path: Path) -> None:
    made = job(tmp_path, train_packing="on", model_attention_dropout=0.1)
    [batch] = next(made.stream.steps_from(0))
    assert batch.target.offsets is None and not made.one_shape


@pytest.mark.parametrize(
    "differences",
    [
        {"tokenizer_kind": "bpe", "tokenizer_vocab_size": 320, "model_positions": "rotary"},
        {"tokenizer_kind": "unigram", "data_bos": False, "denoise_share": 0.9},
        {"tokenizer_kind": "byte", "data_documents": "file", "data_valid_text": []},
        {"data_max_length": 4},
        {"data_max_length": 12, "denoise_span_length": 1},
        {"data_max_length": 4, "denoise_kind": "infill"},
        {"denoise_sentinels": 3},
        {"train_batch_tokens": 10, "train_packing": "on", "denoise_share": 0.5},
        {"model_tie": "none", "train_average": 2, "denoise_kind": "infill", "denoise_share": 0.9},
        {"denoise_kind": "infill", "denoise_permute_sentences": True, "train_packing": "on"},
    ],
    ids=str,
)
def test_every_kind_of_run_ends_in_a_model(tmp_path: Path, differences: dict) -> None:
    done = run(tmp_path, train_steps=4, train_valid_every=2, **differences)
    assert all(math.isfinite(record["loss"]) for record in read_log(done.folder))
    model = qkv.load(done.folder, device="cpu")
    assert isinstance(model.translate("the dog sees", max_length=5), str)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_stand_after_the_token_that_the_model_has_before_each(
    tmp_path: Path, kind: str
) -> None:
    made = job(tmp_path, denoise_kind=kind, denoise_share=0.9, model_start_id=2, data_max_length=9)
    for batch in [*made.batches, *next(made.stream.steps_from(0))]:
        assert batch.source is not None
        assert (batch.source.tokens[:, 0] == 2).all() and (batch.labels[:, 0] == 2).all()
        assert max(batch.source.tokens.shape[1], batch.target.tokens.shape[1]) <= 9


@pytest.mark.parametrize(
    ("step", "settings"),
    [
        (2, {"denoise_kind": "infill", "denoise_permute_sentences": True}),
        (9, {"train_accumulate": 2, "train_batch_tokens": 1000, "train_average": 3}),
        (7, {"train_packing": "on", "data_valid_text": []}),
    ],
)
def test_a_run_killed_and_resumed_ends_bit_for_bit_the_same(
    tmp_path: Path, step: int, settings: dict
) -> None:
    whole = run(tmp_path, "whole", **settings).folder
    assert everything(RUNS.killed_and_resumed(step, tmp_path, **settings)) == everything(whole)


def test_one_of_the_runs_above_crosses_the_border_of_an_epoch(tmp_path: Path) -> None:
    made = job(tmp_path, train_accumulate=2, train_batch_tokens=1000)
    assert made.stream.position(8)[0] >= 1


def test_another_way_to_spoil_is_not_gone_on_with(tmp_path: Path) -> None:
    RUNS.killed_at(7, tmp_path)
    with pytest.raises(UserError, match=r"denoise\.share differs"):
        RUNS.resumed(tmp_path, denoise_share=0.2)


def test_validation_does_not_depend_on_the_seed(tmp_path: Path) -> None:
    one, other = (job(tmp_path, train_seed=seed) for seed in (0, 1))
    for batch, same in zip(one.batches, other.batches, strict=True):
        assert batch.source is not None and same.source is not None
        assert torch.equal(batch.source.tokens, same.source.tokens)
    [batch], [another] = next(one.stream.steps_from(0)), next(other.stream.steps_from(0))
    assert batch.labels.tolist() != another.labels.tolist()


def test_text_to_validate_with_is_given_or_cut_off(tmp_path: Path) -> None:
    said: list[str] = []
    made = job(tmp_path, said, data_test_text=str(tmp_path / "test.txt"))
    assert {name: len(split) for name, split in made.splits.items()} == {"valid": 80, "test": 40}
    n_tokens = sum(len(line.split()) + 2 for line in documents(400))
    assert said[0].startswith(
        f"train: {n_tokens:,} tokens of 400 documents in 400 passages; valid: "
    )
    cut = job(tmp_path, data_valid_text=[], data_valid_share=0.1)
    assert (len(cut.stream.items), len(cut.splits["valid"])) == (360, 40)


# Fine-tuning: what the beast sees next


def write_next(path: Path, seed: int, n: int) -> Path:
    """Pairs of a sentence and the one that follows it."""
    draw = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        beast, number = BEASTS[draw.integers(4)], draw.integers(9)
        one, other = (f"the {beast} sees {WORDS[number + step]} ." for step in (0, 1))
        lines.append(f"{one}\t{other}")
    return write_lines(path, lines)


def translating(folder: Path, **differences: Any) -> dict[str, Any]:
    pairs, valid = write_next(folder / "next.tsv", 1, 40), write_next(folder / "after.tsv", 2, 40)
    return {
        "task": "translate",
        "data": {"pairs": str(pairs), "valid_pairs": str(valid), "max_length": 0},
        "train": {
            **TRAINING,
            "steps": 30,
            "valid_every": 15,
            "lr": 0.002,
            "average": 1,
            **differences,
        },
    }


def begun_from(folder: Path, start: Path, **values: Any) -> Plan:
    made = recipe_from(translating(folder, start_from=str(start)) | values)
    return Plan(made, folder, torch.device("cpu"), lambda _: None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_translator_begins_with_all_weights_and_tokens_of_it(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    before = learned(tmp_path_factory, kind)
    made = Translation(begun_from(tmp_path, before.folder))
    weights = read_tensors(before.folder / "model.safetensors")
    now = {name: parameter.detach() for name, parameter in made.model.named_parameters()}
    assert now.keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in now.items())
    assert made.model.target_embedding is made.model.source_embedding
    tokenizer, old = made.tokenizers.target, before.result.tokenizers.target
    assert made.tokenizers.shared and tokenizer.special_ids == old.special_ids
    assert tokenizer.encode("the dog sees") == old.encode("the dog sees")


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_learnt_from_text_helps_to_translate(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    """From so few pairs, one that knows the language learns what one from scratch does not."""
    before = learned(tmp_path_factory, kind)
    sizes = {name.partition("_")[2]: value for name, value in LEARNS.items() if "model_" in name}
    same = {"tokenizer": {"path": str(before.folder / "tokenizer.json")}}
    plain = {"n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "max_length": 40, **sizes}
    scratch = recipe_from(translating(tmp_path) | same | {"model": plain})
    begun = recipe_from(translating(tmp_path, start_from=str(before.folder)))
    logs = {}
    for name, made in (("scratch", scratch), ("begun", begun)):
        done = train(made, tmp_path / name, console=silence())
        logs[name] = measured(done.folder)
        assert logs[name][-1]["valid_loss"] < logs[name][0]["valid_loss"]
    assert logs["begun"][-1]["valid_loss"] < 0.6 * logs["scratch"][-1]["valid_loss"]


def beginning_from(folder: Path, start: Path, **differences: Any) -> Denoising:
    """A job on a model that is there already, whose sizes a recipe leaves out."""
    told = values(folder, train_start_from=str(start), **differences)
    del told["model"]
    return Denoising(Plan(recipe_from(told), folder, torch.device("cpu"), lambda _: None))


@pytest.mark.parametrize(("kind", "more"), [("spans", 10), ("infill", 1)])
def test_a_model_without_marks_grows_by_them(tmp_path: Path, kind: str, more: int) -> None:
    before = tiny.run(tmp_path, "base", train_steps=2, model_max_length=40)
    made = beginning_from(tmp_path, before.folder, denoise_kind=kind)
    size = before.result.model.config.vocab_size
    assert len(made.tokenizers.target) == made.config.vocab_size == size + more
    assert made.noise.marks.tolist() == list(range(size, size + more))
    weights = read_tensors(before.folder / "model.safetensors")
    for name, parameter in made.model.named_parameters():
        old, now = weights[name], parameter.detach()
        assert torch.equal(now[: len(old)], old), name
        torch.testing.assert_close(now[len(old) :], old.mean(0).expand_as(now[len(old) :]))
    again = beginning_from(tmp_path, before.folder, denoise_kind=kind)
    assert again.evaluate() == made.evaluate()


def test_marks_that_are_there_stay_what_they_were(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = learned(tmp_path_factory)
    made = beginning_from(tmp_path, before.folder)
    assert made.config == before.result.model.config
    assert made.evaluate()["valid_loss"] == pytest.approx(before.scores["valid"][0].value)
    other = beginning_from(tmp_path, before.folder, denoise_kind="infill")
    assert len(other.tokenizers.target) == len(made.tokenizers.target) + 1


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny.run(tmp_path_factory.mktemp("apart"), tokenizer_shared=False, train_steps=2)


def test_two_vocabularies_are_refused(tmp_path: Path, apart: Run) -> None:
    with pytest.raises(UserError, match="has a vocabulary for each side, but task = 'denoise'"):
        beginning_from(tmp_path, apart.folder)
    with pytest.raises(UserError, match="shared = false is not for task = 'denoise'"):
        run(tmp_path, tokenizer_shared=False)


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ({"data_max_length": 3}, r"data.max_length \(3\) leaves no room .* raise it to 4 at least"),
        (
            {"denoise_share": 0.5, "denoise_span_length": 1},
            "a text of 40 tokens has up to 19 spans .* but there are 10; raise sentinels to 20",
        ),
        ({"data_text": []}, "text"),
        ({"model_vocab_size": 9}, r"\[model\]: vocab_size follows from the tokenizer"),
    ],
    ids=str,
)
def test_what_cannot_be_trained_is_explained(tmp_path: Path, differences: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        run(tmp_path, **differences)
    assert str(caught.value).count("\n") == 0
    assert not (tmp_path / "run" / "config.json").exists()


def test_as_many_sentinels_as_the_sentence_says_are_enough(tmp_path: Path) -> None:
    made = job(tmp_path, denoise_share=0.5, denoise_span_length=1, denoise_sentinels=20)
    assert len(made.noise.marks) == 20
    lengths = np.arange(1, made.length - 1)
    assert made.noise.counts(lengths)[1].max() == 19


def test_a_tokenizer_of_others_keeps_its_own_mask(tmp_path: Path) -> None:
    given = recipe(tmp_path)
    tokenizer = train_tokenizer(documents(50), given.tokenizer)
    tokenizer.add_special(["[MASK]"])
    tokenizer.save(tmp_path / "other.json")
    made = job(tmp_path, tokenizer_path=str(tmp_path / "other.json"), denoise_kind="infill")
    assert len(made.tokenizers.target) == len(tokenizer)
    assert made.noise.marks.tolist() == [tokenizer.special_id("[MASK]")]


def test_a_vocabulary_may_have_no_start(tmp_path: Path) -> None:
    """T5's has none: its decoder begins with the padding, and texts with their first word."""
    before = tiny.run(tmp_path, "base", train_steps=2, model_max_length=40)
    path = before.folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"<bos>"', '"<nobody>"'))
    made = beginning_from(tmp_path, before.folder)
    assert "start" not in made.tokenizers.target.names
    assert made.evaluate()["valid_loss"] > 0
    first = next(iter(made.batches)).source
    assert first is not None and made.config.bos_id not in first.tokens
