"""Pre-training an encoder-decoder: from plain text to a folder that other tasks start from."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.errors import UserError
from qkv.tasks import Translator
from qkv.text import train_tokenizer
from qkv.training import with_wrong_sources
from qkv.weights import read_tensors
from tests.run import tiny
from tests.run.common import differing, validations
from tests.run.denoise_tiny import RUNS, job, learned, recipe, run
from tests.run.fill_tiny import documents

KINDS = ["spans", "infill"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_learns_its_language(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    done = learned(tmp_path_factory, kind)
    log = validations(done.folder)
    assert [record["step"] for record in log] == [100, 200, 300]
    made = RUNS.starting_from(done.folder).job(done.folder.parent, denoise_kind=kind)
    right = made.evaluate()["valid_loss"]
    assert right == pytest.approx(log[-1]["valid_loss"], rel=1e-4)
    assert made.loss(with_wrong_sources(made.valid_batches)) > 5 * right
    for split in ("valid", "test"):
        loss, perplexity = done.scores[split]
        assert (loss.name, perplexity.name) == ("loss", "perplexity")
        assert perplexity.value == pytest.approx(math.exp(loss.value))
        assert loss.value < 0.1 * made.baseline()
    assert done.scores["valid"][0].value == min(record["valid_loss"] for record in log)

    model = qkv.load(done.folder, device="cpu")
    assert isinstance(model, Translator)
    text = "the dog sees three . the dog sees four ."
    assert model.translate(text) == done.result.translate(text)
    if kind == "infill":  # the whole text, whatever the share of it that was masked
        assert model.translate(text).startswith(text)


def greedy(model: Translator, source: list[int], most: int = 12) -> list[int]:
    """What the model writes for tokens that no text can spell."""
    written = [model.model.config.bos_id]
    with torch.no_grad():
        for _ in range(most):
            logits = model.model(torch.tensor([source]), torch.tensor([written]))
            written.append(int(logits[0, -1].argmax()))
    end = written.index(model.model.config.eos_id)
    return written[1:end]


def test_a_hidden_span_is_told_by_its_sentinel(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = qkv.load(learned(tmp_path_factory).folder, device="cpu")
    tokenizer = model.tokenizers.target
    x, y = (tokenizer.special_id(f"<extra_id_{number}>") for number in range(2))
    text = tokenizer.encode("the dog sees three . the dog sees four . the dog sees five .")
    for place, hidden in [(12, "sees five"), (6, "dog sees"), (0, "the dog")]:
        assert text[place : place + 2] == tokenizer.encode(hidden)
        source = [*text[:place], x, *text[place + 2 :], model.model.config.eos_id]
        assert greedy(model, source) == [x, *tokenizer.encode(hidden), y]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_stand_after_the_token_that_the_model_has_before_each(
    tmp_path: Path, kind: str
) -> None:
    made = job(tmp_path, denoise_kind=kind, denoise_share=0.9, model_start_id=2, data_max_length=9)
    for batch in [*made.valid_batches, *next(made.stream.steps_from(0))]:
        assert batch.source is not None
        assert (batch.source.tokens[:, 0] == 2).all() and (batch.labels[:, 0] == 2).all()
        assert max(batch.source.tokens.shape[1], batch.target.tokens.shape[1]) <= 9


def test_validation_does_not_depend_on_the_seed(tmp_path: Path) -> None:
    one, other = (job(tmp_path, train_seed=seed) for seed in (0, 1))
    for batch, same in zip(one.valid_batches, other.valid_batches, strict=True):
        assert batch.source is not None and same.source is not None
        assert torch.equal(batch.source.tokens, same.source.tokens)
    [batch], [another] = next(one.stream.steps_from(0)), next(other.stream.steps_from(0))
    assert batch.labels.tolist() != another.labels.tolist()


@pytest.mark.parametrize(("kind", "more"), [("spans", 10), ("infill", 1)])
def test_a_model_without_marks_grows_by_them(tmp_path: Path, kind: str, more: int) -> None:
    before = tiny.run(tmp_path, "base", train_steps=2, model_max_length=40)
    made = RUNS.starting_from(before.folder).job(tmp_path, denoise_kind=kind)
    size = before.result.model.config.vocab_size
    assert len(made.tokenizer) == made.config.vocab_size == size + more
    assert made.noise.marks.tolist() == list(range(size, size + more))
    weights = read_tensors(before.folder / "model.safetensors")
    for name, parameter in made.model.named_parameters():
        old, now = weights[name], parameter.detach()
        assert torch.equal(now[: len(old)], old), name
        torch.testing.assert_close(now[len(old) :], old.mean(0).expand_as(now[len(old) :]))
    again = RUNS.starting_from(before.folder).job(tmp_path, denoise_kind=kind)
    assert again.evaluate() == made.evaluate()


def test_two_vocabularies_are_refused(tmp_path: Path) -> None:
    apart = tiny.run(tmp_path, "apart", tokenizer_shared=False, train_steps=2)
    with pytest.raises(UserError, match="has a vocabulary for each side, but task = 'denoise'"):
        RUNS.starting_from(apart.folder).job(tmp_path)
    with pytest.raises(UserError, match="task = 'denoise' needs shared = true"):
        run(tmp_path, tokenizer_shared=False)


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
    assert len(made.tokenizer) == len(tokenizer)
    assert made.noise.marks.tolist() == [tokenizer.special_id("[MASK]")]


def test_a_vocabulary_may_have_no_start(tmp_path: Path) -> None:
    """T5's has none: its decoder begins with the padding, and texts with their first word."""
    before = tiny.run(tmp_path, "base", train_steps=2, model_max_length=40)
    path = before.folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"<bos>"', '"<nobody>"'))
    made = RUNS.starting_from(before.folder).job(tmp_path)
    assert "start" not in made.tokenizer.names
    assert made.evaluate()["valid_loss"] > 0
    first = next(iter(made.valid_batches)).source
    assert first is not None and made.config.bos_id not in first.tokens


def test_a_translator_starts_with_all_weights_and_tokens(tmp_path: Path) -> None:
    before = run(tmp_path, train_steps=1)
    made = tiny.RUNS.starting_from(before.folder).job(tmp_path)
    assert not differing(made.model, before.folder)
    assert made.model.target_embedding is made.model.source_embedding
    old = before.result.tokenizers.target
    assert made.tokenizers.shared and made.tokenizer.special_ids == old.special_ids
    assert made.tokenizer.encode("the dog sees") == old.encode("the dog sees")
