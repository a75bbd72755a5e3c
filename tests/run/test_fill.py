"""Pre-training an encoder: from plain text, or from another model, to a folder that fills gaps."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv.config import EmbedConfig, MaskConfig
from qkv.data import Batch, validation_batches
from qkv.errors import UserError
from qkv.model import Encoder as Model
from qkv.tasks import Encoder
from qkv.text import train_tokenizer
from tests.run import classify_tiny
from tests.run.common import differing, parts, read_log, validations, write_lines
from tests.run.fill_tiny import LEARNS, RUNS, documents, job, learned, recipe, run


def test_a_run_learns_its_language(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = learned(tmp_path_factory)
    log = validations(done.folder)
    assert [record["step"] for record in log] == [100, 200, 300]
    assert all(record.keys() >= {"accuracy", "valid_loss"} for record in log)
    assert "pair_accuracy" not in log[0]
    words = Counter(" ".join(documents(400)).split())
    commonest = 100 * max(words.values()) / words.total()
    assert commonest < 25 < 90 < log[-1]["accuracy"]
    assert log[-1]["valid_loss"] < 0.1 * job(done.folder.parent).baseline()
    for split in ("valid", "test"):
        loss, perplexity, accuracy = done.scores[split]
        assert (loss.name, perplexity.name, accuracy.name) == ("loss", "perplexity", "accuracy")
        assert perplexity.value == pytest.approx(math.exp(loss.value))
        assert accuracy.value > 90
    assert done.scores["valid"][0].value == min(record["valid_loss"] for record in log)

    model = qkv.load(done.folder, device="cpu")
    assert isinstance(model, Encoder)
    filled = model.fill("the dog sees three . the <mask> sees four . the dog sees <mask> .")
    assert filled.text == "the dog sees three . the dog sees four . the dog sees five ."
    assert filled.masks[0][0].probability > 0.8


@pytest.mark.parametrize(("preset", "separators"), [("bert-tiny", 1), ("roberta-mini", 2)])
def test_pairs_are_framed_as_the_model_has_them(
    tmp_path: Path, preset: str, separators: int
) -> None:
    made = job(tmp_path, model_preset=preset, mask_pairs="order")
    [batch] = next(made.stream.steps_from(0))
    ends = (batch.target.tokens == made.config.eos_id).sum(dim=1)
    assert set(ends.tolist()) == {separators + 1}
    assert batch.target.tokens.shape[1] <= 32


@pytest.mark.parametrize(
    "settings", [{"model_attention_dropout": 0.1}, {"model_positions": "disentangled"}], ids=str
)
def test_batches_that_packed_kernels_cannot_do_are_padded(tmp_path: Path, settings: dict) -> None:
    made = job(tmp_path, train_packing="on", **settings)
    [batch] = next(made.stream.steps_from(0))
    assert batch.target.offsets is None and not made.stream.one_shape


def test_text_to_validate_with_is_given_or_held_out(tmp_path: Path) -> None:
    made = job(tmp_path, data_test_text=str(tmp_path / "test.txt"), data_documents="line")
    items = made.train_items, made.valid_items, made.test_items
    assert [len(each) for each in items] == [400, 80, 40]
    held_out = job(tmp_path, data_valid_text=[], data_valid_share=0.1)
    assert len(held_out.train_items) + len(held_out.valid_items) == 400
    assert 0 < len(held_out.valid_items) < 100


@torch.no_grad()
def by_hand(model: Model, batches: list[Batch]) -> dict[str, float]:
    """The scores, a sequence at a time, of logits of all of its tokens."""
    nats = pair_nats = 0.0
    right, right_pairs = [], []
    for batch in batches:
        side, (n_rows, width) = batch.target, batch.target.tokens.shape
        for row in range(n_rows):
            length = int(side.lengths[row])  # type: ignore[index]
            tokens = side.tokens[row : row + 1, :length]
            segments = None if side.segments is None else side.segments[row : row + 1, :length]
            said = model(tokens, segments=segments)[0].log_softmax(-1)
            for place, label in zip(batch.positions.tolist(), batch.labels.tolist(), strict=True):
                if place // width == row:
                    nats -= float(said[place % width, label])
                    right.append(int(said[place % width].argmax()) == label)
            if batch.pairs is not None:
                x = model.hidden(tokens, segments=segments)
                vector = torch.tanh(model.pooler.dense(x[0, 0]))
                logits = model.pair_head.projection(vector).log_softmax(-1)  # type: ignore[union-attr]
                pair_nats -= float(logits[batch.pairs[row]])
                right_pairs.append(int(logits.argmax()) == int(batch.pairs[row]))
    assert sum(batch.n_labels for batch in batches) == len(right)
    return {
        "nats": nats,
        "pair nats": pair_nats,
        "loss": nats / len(right),
        "perplexity": math.exp(nats / len(right)),
        "accuracy": 100 * np.mean(right),
        **({"pair accuracy": 100 * np.mean(right_pairs)} if right_pairs else {}),
    }


@pytest.mark.parametrize("pairs", ["none", "order"])
def test_scores_are_those_of_each_masked_token(
    tmp_path_factory: pytest.TempPathFactory, pairs: str
) -> None:
    done = learned(tmp_path_factory, pairs)
    test = str(done.folder.parent / "test.txt")
    made = job(done.folder.parent, mask_pairs=pairs, data_test_text=test, **LEARNS)
    model = qkv.load(done.folder, device="cpu").model.double()
    for split, items in (("test", made.test_items), ("valid", made.valid_items)):
        expected = by_hand(model, list(validation_batches(items, 4096)))
        for score in done.scores[split]:
            assert score.value == pytest.approx(expected[score.name], rel=1e-5), score.name
    assert pairs == "none" or expected["pair accuracy"] > 70  # half of them are true
    # What is minimised is the same, and a pair counts for all that is masked in a full text.
    with torch.no_grad():
        total = sum(float(made.objective(model, batch, 0.0)) for batch in made.valid_batches)
    weight = 0.15 * 32 if pairs == "order" else 0
    assert total == pytest.approx(expected["nats"] + weight * expected["pair nats"], rel=1e-9)


@pytest.mark.parametrize("pairs", ["none", "order"])
def test_evaluate_gives_the_figures_of_the_run(
    tmp_path_factory: pytest.TempPathFactory, pairs: str
) -> None:
    done = learned(tmp_path_factory, pairs)
    model, counts = qkv.load(done.folder, device="cpu"), list[tuple[int, int]]()
    path, mask = done.folder.parent / "test.txt", model.recipe.mask
    found = qkv.evaluate(model, path, mask=mask, progress=lambda *count: counts.append(count))
    assert found.scores == done.scores["test"]
    assert counts[-1][0] == counts[-1][1] >= 40
    texts = [*path.read_text().splitlines(), " "]
    assert qkv.evaluate(model, texts, mask=mask).scores == found.scores
    alone = qkv.evaluate(model, texts, mask=MaskConfig(share=0.3))
    assert [score.name for score in alone.scores] == ["loss", "perplexity", "accuracy"]


def test_evaluate_says_why_it_cannot_score_gaps(tmp_path: Path) -> None:
    model = job(tmp_path).result
    with pytest.raises(UserError, match="no head for pairs of texts, but mask"):
        qkv.evaluate(model, ["the cat"], mask=MaskConfig(pairs="order"))
    for nothing in ([], [1]):
        with pytest.raises(UserError, match="nothing to score: give the documents as"):
            qkv.evaluate(model, nothing, mask=MaskConfig())  # type: ignore[call-overload]
    headless = classify_tiny.run(tmp_path, train_steps=1).folder
    with pytest.raises(UserError, match="no masked-LM head, so it cannot predict masked tokens"):
        qkv.evaluate(Encoder.load(headless), ["the cat"], mask=MaskConfig())


def test_the_saved_folder_is_an_encoder_with_its_settings(tmp_path: Path) -> None:
    made = job(tmp_path, embed_pooling="first", embed_normalize=False)
    made.save()
    kept = qkv.load(made.folder, device="cpu")
    assert isinstance(kept, Encoder)
    assert kept.embedding == EmbedConfig(pooling="first", normalize=False)
    assert json.loads((made.folder / "config.json").read_text())["task"] == "fill"
    assert kept.fill("the <mask> sees") == made.result.fill("the <mask> sees")
    assert torch.equal(kept.embed("the cat"), made.result.embed("the cat"))


def test_the_baseline_is_the_frequency_of_tokens(tmp_path: Path) -> None:
    made = job(tmp_path)
    counts = Counter(" ".join(documents(400)).split())  # a word is a token
    shares = [count / counts.total() for count in counts.values()]
    assert made.baseline() == pytest.approx(-sum(p * math.log(p) for p in shares))


def known_vocabulary(folder: Path) -> dict[str, str]:
    """Settings of a tokenizer that knows just the words of the language."""
    tokenizer = train_tokenizer(documents(50), recipe(folder).tokenizer)
    tokenizer.save(folder / "known.json")
    return {"tokenizer_path": str(folder / "known.json")}


def test_text_without_known_characters_is_passed_over(tmp_path: Path) -> None:
    """A batch may have nothing to predict."""
    settings = known_vocabulary(tmp_path)
    write_lines(tmp_path / "text.txt", [f"{line}\n☃ ☃ ☃" for line in documents(60)])
    log = read_log(run(tmp_path, **settings, train_batch_tokens=20).folder)
    assert 0 < sum(record["loss"] == 0 for record in log) < 12
    assert log[-1]["valid_loss"] < log[3]["valid_loss"]


def test_a_head_for_pairs_is_left_behind_where_there_are_none(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = learned(tmp_path_factory, "order")
    made = RUNS.starting_from(before.folder).job(tmp_path)
    assert made.model.pair_head is None and not made.config.pair_head
    assert "head.dense.weight" in parts(made.model)
    assert not differing(made.model, before.folder) - {
        name for name in parts(before.result.model) if name.startswith("pair_head")
    }


def test_an_encoder_of_another_task_gets_a_fresh_head(tmp_path: Path) -> None:
    before = classify_tiny.run(tmp_path, train_steps=1)
    text = str(write_lines(tmp_path / "beasts.txt", ["the cat was on that rose", "and so"] * 30))
    texts = {"data_text": text, "data_valid_text": text}
    made = RUNS.starting_from(before.folder).job(tmp_path, **texts)
    other = RUNS.starting_from(before.folder).job(tmp_path, **texts, train_seed=1)
    now, drawn = parts(made.model), parts(other.model)
    heads = {name for name in now if name.startswith("head.")}
    assert {"head.dense.weight", "head.norm.weight", "head.projection.bias"} <= heads
    assert all(name.startswith("head.") for name in differing(made.model, before.folder))
    assert not torch.equal(now["head.dense.weight"], drawn["head.dense.weight"])
    assert now["head.projection.bias"].shape == (len(before.result.tokenizer),)
    assert (made.config.head, made.config.n_labels) == ("masked", 0)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("the cat sees one . the cat sees two .", "pairs = 'next' .* but the {} text has 1; see"),
        ("☃ ☃", "data: the {} text has no tokens that could be masked and predicted"),
    ],
)
def test_text_that_cannot_be_learned_from_is_refused_before_training(
    tmp_path: Path, split: str, line: str, words: str
) -> None:
    path = write_lines(tmp_path / "one.txt", [line])
    name = "data_text" if split == "train" else f"data_{split}_text"
    with pytest.raises(UserError, match=words.format(split)):
        job(tmp_path, mask_pairs="next", **{name: str(path)}, **known_vocabulary(tmp_path))
