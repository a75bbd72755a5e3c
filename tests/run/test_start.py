"""Starting from a model that exists: its tokenizer, its sizes, its weights, and nothing lost."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers

import qkv
from qkv.config import recipe_from
from qkv.errors import UserError
from qkv.run.train import Run, train
from qkv.weights import read_tensors
from tests.convert import harness
from tests.run import classify_tiny, tag_tiny, tiny
from tests.run.common import TRAINING, Runs, everything, read_log, silence
from tests.run.language_tiny import LEARNS, job, killed_and_resumed, learned, run, write_data


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return learned(tmp_path_factory)


def starting(base: Run, **differences: Any) -> dict[str, Any]:
    """Settings of a run from there; the sizes that the recipe names are those of the folder."""
    sizes = {name: value for name, value in LEARNS.items() if name.startswith("model_")}
    return {"train_start_from": str(base.folder), **sizes, **differences}


def test_it_goes_on_learning_from_there(base: Run, tmp_path: Path) -> None:
    text = {"data_text": str(base.folder.parent / "text.txt"), "train_lr": 0.001}
    done = run(tmp_path, **text, **starting(base))
    first, fresh = read_log(done.folder)[0]["loss"], read_log(base.folder)[0]["loss"]
    assert first < 1.3 * base.scores["valid"][0].value < fresh
    card = (done.folder / "README.md").read_text()
    assert f"Started from {base.folder}, " in card


def test_sizes_are_the_folder_s_but_for_what_the_recipe_says(base: Run, tmp_path: Path) -> None:
    differences = {"model_dropout": 0.3, "model_max_length": 128, "data_max_length": 100}
    made = job(tmp_path, **starting(base, **differences))
    before = base.result.model.config
    assert made.config.to_dict() == {**before.to_dict(), "dropout": 0.3, "max_length": 128}
    assert made.train_items.length == 100


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ({"model_d_model": 16}, r"\[model\]: d_model follows from .*; leave it out"),
        ({"model_positions": "none"}, "positions follows from"),
        ({"train_start_from": "nowhere"}, "nowhere is neither a path that exists nor a packaged"),
    ],
)
def test_what_cannot_be_started_from_is_explained(
    base: Run, tmp_path: Path, differences: dict, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        run(tmp_path, **starting(base, **differences))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("tie", ["output", "none"])
def test_new_tokens_start_as_the_mean_and_old_ones_stay(tmp_path: Path, tie: str) -> None:
    settings = {"model_tie": tie, "model_output_bias": True}
    before = run(tmp_path, "base", **settings)
    more = {"train_start_from": str(before.folder), "chat_template": "chatml"}
    made = job(tmp_path, "instruct", model_max_length=128, **settings, **more)
    size = before.result.model.config.vocab_size
    assert len(made.tokenizer) == made.config.vocab_size == size + 2
    assert made.tokenizer.special_id("<|im_start|>") == size
    weights = read_tensors(before.folder / "model.safetensors")
    grown = 0
    for name, parameter in made.model.named_parameters():
        old, now = weights[name], parameter.detach()
        assert torch.equal(now[: len(old)], old)
        for row in now[len(old) :]:
            grown += 1
            torch.testing.assert_close(row, old.mean(dim=0))
    assert grown == {"output": 2 * 2, "none": 3 * 2}[tie]  # embedding, output and its bias


def test_an_instructed_model_begins_texts_as_its_base_does(tmp_path: Path) -> None:
    before = run(tmp_path, "base", data_bos=False, train_steps=2)
    settings = {"train_start_from": str(before.folder), "train_steps": 2}
    done = run(tmp_path, "run", "instruct", **settings)
    assert not done.result.prompting.bos
    assert done.result.prompting.chat


def test_an_instructed_model_with_new_tokens_resumes_exactly(base: Run, tmp_path: Path) -> None:
    settings = starting(base, chat_template="chatml", model_max_length=128, model_dropout=0.1)
    whole = run(tmp_path, "whole", "instruct", **settings).folder
    cut = killed_and_resumed(7, tmp_path, "cut", "instruct", **settings)
    assert everything(cut) == everything(whole)


def test_text_may_follow_instructions(tmp_path: Path) -> None:
    """The template of a model that was taught to answer is not lost when it reads on."""
    taught = run(tmp_path, "taught", "instruct", chat_template="chatml", model_max_length=128)
    settings = {"train_start_from": str(taught.folder), "model_max_length": 128}
    done = run(tmp_path, "run", **settings, train_steps=2)
    assert done.result.prompting == taught.result.prompting
    assert isinstance(done.result.chat("say 3", max_length=9), str)


def labelling(base: Run, task: str = "classify", **model: Any) -> Runs:
    """Runs for labels that start from a language model, whose sizes they leave as they are."""
    module = {"classify": classify_tiny, "tag": tag_tiny}[task]
    return module.RUNS.starting_from(base.folder, **model)


@pytest.mark.parametrize("tie", ["output", "none"])
def test_a_classifier_may_start_from_a_language_model_s_body(tmp_path: Path, tie: str) -> None:
    before = run(tmp_path, "base", model_tie=tie, model_output_bias=True, train_steps=2)
    made = labelling(before).job(tmp_path)
    weights = read_tensors(before.folder / "model.safetensors")
    now = dict(made.model.named_parameters())
    names = {name.replace("decoder.", "encoder.") for name in weights if name[:7] != "output."}
    assert now.keys() == names | {"head.projection.weight"}
    config = made.config
    assert (config.family, config.causal, config.pooling) == ("encoder", True, "last")
    assert (config.head, config.n_labels) == ("sequence", 3)
    row = torch.randint(4, config.vocab_size, (2, 9))
    body, speaker = made.model.eval(), before.result.model.eval()
    expected = speaker.hidden(row)
    torch.testing.assert_close(body.hidden(row), expected, atol=1e-6, rtol=0)
    last = expected[:, -1] @ body.head.projection.weight.T
    torch.testing.assert_close(body(row), last, atol=1e-6, rtol=0)


def test_a_classifier_from_a_language_model_learns_and_resumes_exactly(
    base: Run, tmp_path: Path
) -> None:
    left = {path: path.read_bytes() for path in base.folder.rglob("*") if path.is_file()}
    runs = labelling(base, dropout=0.1)
    learns = {"steps": 100, "lr": 0.005, "batch_tokens": 512, "warmup": 10, "valid_every": 50}
    settings = {f"train_{name}": value for name, value in learns.items()}
    done = runs.run(tmp_path, "whole", **settings)
    assert done.scores["valid"][0].value > 85
    assert everything(runs.killed_and_resumed(37, tmp_path, **settings)) == everything(done.folder)

    texts = [text for text, _ in classify_tiny.one_of_three(20, seed=7)]
    again = qkv.load(done.folder)
    assert again.model.config.causal
    assert again.classify(texts) == done.result.classify(texts)
    alone = [again.classify(text).probability for text in texts]
    together = [output.probability for output in again.classify(texts)]
    assert alone == pytest.approx(together, abs=1e-5)
    assert len(set(together)) > 10
    assert {path: path.read_bytes() for path in base.folder.rglob("*") if path.is_file()} == left


def test_a_classifier_goes_on_with_the_frame_that_its_head_knows(base: Run, tmp_path: Path) -> None:
    """Somebody else's may have learned to look at a text's last word, where ours look at EOS."""
    done = labelling(base).run(tmp_path, train_steps=1)
    path = done.folder / "config.json"
    content = json.loads(path.read_text())
    content["classify"]["frame"] = [[], [], []]
    path.write_text(json.dumps(content))
    made = labelling(done).job(tmp_path)
    texts = [text for text, _ in classify_tiny.one_of_three(10, seed=7)]
    assert made.result.classify(texts) == qkv.load(done.folder).classify(texts)
    [framed], _ = made.result.frame([(texts[0],)])
    assert framed.tokens == made.tokenizer.encode(texts[0])


def test_how_a_body_sees_follows_from_the_start(base: Run, tmp_path: Path) -> None:
    for model, words in (
        ({"causal": False}, r"\[model\]: causal follows from .*; leave it out"),
        ({"n_encoder_layers": 7}, r"\[model\]: n_encoder_layers follows from"),
        ({"pooling": "first"}, "the first token of a causal encoder has seen nothing but itself"),
    ):
        with pytest.raises(UserError, match=words):
            labelling(base, **model).job(tmp_path)
    assert labelling(base, pooling="mean").job(tmp_path).config.pooling == "mean"


def test_another_family_is_refused(base: Run, tmp_path: Path) -> None:
    translator = tiny.run(tmp_path, "translator", train_steps=1, train_valid_bleu=False).folder
    words = "holds a model of family '{}', but task = '{}' needs '{}'"
    for task in ("generate", "instruct"):
        with pytest.raises(UserError, match=words.format("encoder-decoder", task, "decoder")):
            job(tmp_path, task, train_start_from=str(translator))
    with pytest.raises(UserError, match=words.format("decoder", "translate", "encoder-decoder")):
        tiny.RUNS.job(tmp_path, train_start_from=str(base.folder))
    with pytest.raises(UserError, match=words.format("decoder", "tag", "encoder")):
        labelling(base, "tag").job(tmp_path)


@pytest.mark.parametrize("own", [True, False])
def test_a_model_without_eos_gets_the_tokenizer_s_or_a_new_one(own: bool, tmp_path: Path) -> None:
    write_data(tmp_path)
    letters = sorted({*(tmp_path / "text.txt").read_text(encoding="utf-8")} - {"\n"})
    vocabulary = {name: id for id, name in enumerate(["?", *letters, *(["</s>"] if own else [])])}
    size = len(vocabulary)
    config = {"vocab_size": size, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    with harness.saved(harness.made("OpenAIGPTLMHeadModel", config)) as folder:
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, "?"))
        backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        backend.save(str(folder / "tokenizer.json"))
        assert qkv.load(folder, "cpu").model.config.eos_id == size  # which is no token
        recipe = recipe_from(
            {
                "task": "generate",
                "data": {"text": str(tmp_path / "text.txt"), "documents": "line"},
                "train": {**TRAINING, "steps": 3, "start_from": str(folder)},
            }
        )
        done = train(recipe, tmp_path / "run", console=silence())
    model, tokenizer = done.result.model, done.result.tokenizer
    end = size - 1 if own else size
    assert (model.config.eos_id, model.config.pad_id, tokenizer.eos_id) == (end, end, end)
    assert model.config.vocab_size == end + 1
    assert isinstance(done.result.generate("", max_length=3), str)
