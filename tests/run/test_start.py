"""Beginning from a model that is there: its tokenizer, its sizes, its weights, and nothing lost."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.config import Recipe, recipe_from, recipe_to_dict
from qkv.errors import UserError
from qkv.run.train import Run
from qkv.run.train import train as train_recipe
from qkv.run.classify import Classifying
from qkv.run.instruct import Instruction
from qkv.run.job import Plan
from qkv.run.language import Language
from qkv.run.start import find_start
from qkv.weights import read_tensors
from tests.run import classify_tiny, tag_tiny, tiny
from tests.run.common import everything, read_log, silence
from tests.run.language_tiny import LEARNS, killed_and_resumed, learned, plan, recipe, run


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return learned(tmp_path_factory)


def begun(base: Run, **differences: Any) -> dict[str, Any]:
    """Settings of a run from there; the sizes that the recipe names are those of the folder."""
    sizes = {name: value for name, value in LEARNS.items() if name.startswith("model_")}
    return {"train_start_from": str(base.folder), **sizes, **differences}


def test_at_step_0_it_is_the_model_that_it_began_from(base: Run, tmp_path: Path) -> None:
    text = str(base.folder.parent / "text.txt")
    job = Language(plan(tmp_path, data_text=text, tokenizer_kind="bpe", **begun(base)))
    assert job.tokenizers.target.encode("the cat") == base.result.tokenizer.encode("the cat")
    loss, _, bits = base.scores["valid"]
    scores = job.evaluate()
    assert scores["valid_loss"] == pytest.approx(loss.value, rel=1e-6)
    assert scores["bits_per_byte"] == pytest.approx(bits.value, rel=1e-6)
    weights = read_tensors(base.folder / "model.safetensors")
    for name, parameter in job.model.named_parameters():
        assert torch.equal(parameter.detach(), weights[name])


def test_it_goes_on_learning_from_there(base: Run, tmp_path: Path) -> None:
    text = {"data_text": str(base.folder.parent / "text.txt"), "train_lr": 0.001}
    done = run(tmp_path, **text, **begun(base))
    first, fresh = read_log(done.folder)[0]["loss"], read_log(base.folder)[0]["loss"]
    assert first < 1.3 * base.scores["valid"][0].value < fresh
    card = (done.folder / "README.md").read_text()
    assert f"Begun from {base.folder}, " in card
    again = killed_and_resumed(7, tmp_path, **text, **begun(base))
    assert everything(again) == everything(done.folder)


def test_sizes_are_the_folder_s_but_for_what_the_recipe_says(base: Run, tmp_path: Path) -> None:
    differences = {"model_dropout": 0.3, "model_max_length": 128, "data_max_length": 100}
    job = Language(plan(tmp_path, **begun(base, **differences)))
    before = base.result.model.config
    assert job.config.to_dict() == {**before.to_dict(), "dropout": 0.3, "max_length": 128}
    assert job.length == 100


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ({"model_d_model": 16}, r"\[model\]: d_model follows from .*; leave it out"),
        ({"model_positions": "none"}, "positions follows from"),
        ({"model_vocab_size": 9}, r"\[model\]: vocab_size follows from .*; leave it out"),
        (
            {"train_start_from": "nowhere"},
            "nowhere is neither a path that exists nor a pulled model",
        ),
    ],
)
def test_what_cannot_be_begun_from_is_explained(
    base: Run, tmp_path: Path, differences: dict, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        run(tmp_path, **begun(base, **differences))
    assert not (tmp_path / "run" / "config.json").exists()


def test_another_family_is_refused(
    base: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    translator = tiny.learned(tmp_path_factory).folder
    words = "holds a model of family 'encoder-decoder', but task = '{}' needs 'decoder'"
    for task in ("generate", "instruct"):
        with pytest.raises(UserError, match=words.format(task)):
            run(tmp_path, task=task, train_start_from=str(translator))
    with pytest.raises(UserError, match="family 'decoder', but task = 'translate' needs 'encoder-"):
        tiny.run(tmp_path, "other", train_start_from=str(base.folder))


def test_a_translator_begins_from_a_translator(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = tiny.learned(tmp_path_factory)
    sizes = {key: value for key, value in tiny.LEARNS.items() if key.startswith("model_")}
    settings = {"train_start_from": str(before.folder), "train_lr": 1e-6, "train_average": 1}
    done = tiny.run(tmp_path, **sizes, **settings)
    assert done.result.translate("3 1 4") == before.result.translate("3 1 4")
    first = read_log(done.folder)[0]["loss"]
    assert first < 0.5 * read_log(before.folder)[0]["loss"]


@pytest.mark.parametrize("tie", ["output", "none"])
def test_new_tokens_begin_as_the_mean_and_old_ones_stay(tmp_path: Path, tie: str) -> None:
    settings = {"model_tie": tie, "model_output_bias": True}
    before = run(tmp_path, "base", **settings)
    more = {"train_start_from": str(before.folder), "chat_template": "chatml"}
    job = Instruction(plan(tmp_path, "instruct", model_max_length=128, **settings, **more))
    size = before.result.model.config.vocab_size
    assert len(job.tokenizers.target) == job.config.vocab_size == size + 2
    assert job.tokenizers.target.special_id("<|im_start|>") == size
    weights = read_tensors(before.folder / "model.safetensors")
    grown = 0
    for name, parameter in job.model.named_parameters():
        old, now = weights[name], parameter.detach()
        assert torch.equal(now[: len(old)], old)
        for row in now[len(old) :]:
            grown += 1
            torch.testing.assert_close(row, old.mean(dim=0))
    assert grown == {"output": 2 * 2, "none": 3 * 2}[tie]  # embedding, output and its bias


def test_an_instructed_model_keeps_what_its_base_began_texts_with(tmp_path: Path) -> None:
    before = run(tmp_path, "base", data_bos=False, train_steps=2)
    settings = {"train_start_from": str(before.folder), "train_steps": 2}
    done = run(tmp_path, "run", "instruct", **settings)
    assert not done.result.prompting.bos
    assert done.result.prompting.chat


@pytest.mark.parametrize("template", ["plain", "chatml"])
def test_an_instructed_model_begins_from_a_base_and_resumes_exactly(
    base: Run, tmp_path: Path, template: str
) -> None:
    settings = begun(base, chat_template=template, model_max_length=128, model_dropout=0.1)
    whole = run(tmp_path, "whole", "instruct", **settings).folder
    cut = killed_and_resumed(7, tmp_path, "cut", "instruct", **settings)
    assert everything(cut) == everything(whole)


def test_a_base_is_left_as_it_was(base: Run, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in base.folder.rglob("*") if path.is_file()}
    made = recipe(tmp_path, "instruct", **begun(base, chat_template="chatml"))
    train_recipe(made, tmp_path / "run", console=silence())
    after = {path: path.read_bytes() for path in base.folder.rglob("*") if path.is_file()}
    assert after == before


def test_text_may_follow_instructions(tmp_path: Path) -> None:
    """The template of a model that was taught to answer is not lost when it reads on."""
    taught = run(tmp_path, "taught", "instruct", chat_template="chatml", model_max_length=128)
    settings = {"train_start_from": str(taught.folder), "model_max_length": 128}
    done = run(tmp_path, "run", **settings, train_steps=2)
    assert done.result.prompting == taught.result.prompting
    assert isinstance(done.result.chat("say 3", max_length=9), str)


def labelling(base: Run, folder: Path, task: str = "classify", **model: Any) -> Recipe:
    """A recipe for labels that begins from a language model, whose sizes it leaves as they are."""
    told = {"classify": classify_tiny, "tag": tag_tiny}[task].values(folder)
    train = {**told["train"], "start_from": str(base.folder)}
    return recipe_from({**told, "model": model, "train": train})


def told(recipe: Recipe, folder: Path) -> Plan:
    return Plan(recipe, folder, torch.device("cpu"), lambda said: None)


@pytest.mark.parametrize("tie", ["output", "none"])
def test_a_classifier_may_begin_from_a_language_model_s_body(tmp_path: Path, tie: str) -> None:
    before = run(tmp_path, "base", model_tie=tie, model_output_bias=True, train_steps=2)
    job = Classifying(told(labelling(before, tmp_path), tmp_path))
    weights = read_tensors(before.folder / "model.safetensors")
    now = dict(job.model.named_parameters())
    names = {name.replace("decoder.", "encoder.") for name in weights if name[:7] != "output."}
    assert now.keys() == names | {"head.projection.weight"}
    config = job.config
    assert (config.family, config.causal, config.pooling) == ("encoder", True, "last")
    assert (config.head, config.n_labels) == ("sequence", 3)
    row = torch.randint(4, config.vocab_size, (2, 9))
    body, speaker = job.model.eval(), before.result.model.eval()
    expected = speaker.hidden(row)
    torch.testing.assert_close(body.hidden(row), expected, atol=1e-6, rtol=0)
    last = expected[:, -1] @ body.head.projection.weight.T
    torch.testing.assert_close(body(row), last, atol=1e-6, rtol=0)


def test_its_folder_is_read_back_as_it_was(base: Run, tmp_path: Path) -> None:
    left = {path: path.read_bytes() for path in base.folder.rglob("*") if path.is_file()}
    made = labelling(base, tmp_path, dropout=0.0)
    done = train_recipe(made, tmp_path / "run", console=silence())
    texts = [text for text, _ in classify_tiny.one_of_three(20, seed=7)]
    expected = done.result.classify(texts)
    again = qkv.load(tmp_path / "run")
    assert again.model.config.causal
    assert again.classify(texts) == expected
    assert len({one.probability for one in expected}) > 10
    alone = [again.classify(text).probability for text in texts]
    assert alone == pytest.approx([one.probability for one in expected], abs=1e-5)
    assert {path: path.read_bytes() for path in base.folder.rglob("*") if path.is_file()} == left


def test_a_classifier_goes_on_with_the_frame_that_its_head_knows(base: Run, tmp_path: Path) -> None:
    """Somebody else's may have learnt to look at a text's last word, where ours look at EOS."""
    done = train_recipe(labelling(base, tmp_path), tmp_path / "run", console=silence())
    path = done.folder / "config.json"
    content = json.loads(path.read_text())
    content["classify"]["frame"] = [[], [], []]
    path.write_text(json.dumps(content))
    job = Classifying(told(labelling(done, tmp_path), tmp_path))
    texts = [text for text, _ in classify_tiny.one_of_three(10, seed=7)]
    assert job.verb.classify(texts) == qkv.load(done.folder).classify(texts)
    [framed], _ = job.verb.frame([(texts[0],)])
    assert framed.tokens == job.verb.tokenizer.encode(texts[0])


def test_a_classifier_from_a_language_model_learns_and_resumes_exactly(
    base: Run, tmp_path: Path
) -> None:
    made = labelling(base, tmp_path, dropout=0.1)
    learns = {"steps": 100, "lr": 0.005, "batch_tokens": 512, "warmup": 10, "valid_every": 50}
    made = dataclasses.replace(made, train=dataclasses.replace(made.train, **learns))
    done = train_recipe(made, tmp_path / "whole", console=silence())
    assert done.scores["valid"][0].value > 85
    runs = dataclasses.replace(classify_tiny.RUNS, values=lambda folder: recipe_to_dict(made))
    cut = runs.killed_and_resumed(37, tmp_path)
    assert everything(cut) == everything(done.folder)


def test_how_its_body_sees_is_not_the_recipe_s_to_say(base: Run, tmp_path: Path) -> None:
    for model, words in (
        ({"causal": False}, r"\[model\]: causal follows from .*; leave it out"),
        ({"n_encoder_layers": 7}, r"\[model\]: n_encoder_layers follows from"),
        ({"pooling": "first"}, "the first token of a causal encoder has seen nothing but itself"),
    ):
        with pytest.raises(UserError, match=words):
            Classifying(told(labelling(base, tmp_path, **model), tmp_path))
    mean = Classifying(told(labelling(base, tmp_path, pooling="mean"), tmp_path))
    assert mean.config.pooling == "mean"


def test_words_are_not_labelled_by_who_sees_backwards_only(base: Run, tmp_path: Path) -> None:
    words = "family 'decoder', but task = '{}' needs 'encoder'"
    with pytest.raises(UserError, match=words.format("tag")):
        train_recipe(labelling(base, tmp_path, "tag"), tmp_path / "run", console=silence())
    answers = recipe_from({"task": "answer", "train": {"start_from": str(base.folder)}})
    with pytest.raises(UserError, match=words.format("answer")):
        find_start(answers, "encoder")
