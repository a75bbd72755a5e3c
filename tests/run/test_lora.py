"""LoRA runs: few weights are trained, the run folder is an adapter and a model, for every task."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as F
import transformers

import qkv
from qkv.errors import UserError
from qkv.model.lora import LoRALinear, Update, lora_layers
from qkv.weights import read_tensors
from tests.run import classify_tiny, fill_tiny, tag_tiny, tiny
from tests.run.common import Runs, everything, read_log
from tests.run.language_tiny import LEARNS, RUNS, learned

LORA: dict[str, Any] = {"train_lora_rank": 4, "train_lr": 0.02}


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory).folder


def starting(language: Path) -> Runs:
    return RUNS.starting_from(language)


def test_a_run_trains_updates_alone_and_leaves_an_adapter(language: Path, tmp_path: Path) -> None:
    runs = starting(language)
    done = runs.run(tmp_path, "run", "instruct", **LORA, train_steps=150, train_valid_every=50)
    losses = [record["valid_loss"] for record in read_log(done.folder) if "valid_loss" in record]
    assert losses[-1] < 0.8 * losses[0]
    assert not (done.folder / "model.safetensors").exists()
    tensors = read_tensors(done.folder / "adapter_model.safetensors")
    assert all(".lora_" in name for name in tensors)
    checkpoint = read_tensors(sorted((done.folder / "checkpoints").glob("step-*"))[-1])
    assert all("lora_" in name for name in checkpoint)
    # A folder of the run is a model; so is its base with the folder as adapter.
    question = [{"role": "user", "content": "3"}]
    answer = done.result.answers([question])
    assert qkv.load(done.folder).answers([question]) == answer
    assert qkv.load(language, adapter=done.folder).answers([question]) == answer
    assert qkv.load(f"{language}+{done.folder}").answers([question]) == answer
    assert [score.name for score in done.scores["valid"]] == ["loss", "exact match"]
    assert done.scores["valid"][0].value == pytest.approx(min(losses), rel=1e-4)


def test_an_adapter_knows_the_weights_of_its_base(
    language: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Whatever the folder is called: a copy is the same model, other weights are not."""
    done = starting(language).run(tmp_path, "run", **LORA)
    moved = tmp_path / "moved"
    shutil.copytree(language, moved, ignore=shutil.ignore_patterns("checkpoints"))
    other = tmp_path / "other" / language.name
    changed = qkv.load(language)
    with torch.no_grad():
        next(changed.model.parameters())[:] += 1
    changed.save(other)
    recwarn.clear()
    for base in (language, moved):
        qkv.load(base, adapter=done.folder)
        assert not [w for w in recwarn.list if "was trained on" in str(w.message)]
    sentence = re.escape(f"was trained on {language}, but is put on {other};")
    with pytest.warns(UserWarning, match=sentence):
        qkv.load(other, adapter=done.folder)


def test_peft_reads_what_a_run_leaves(language: Path, tmp_path: Path) -> None:
    done = starting(language).run(tmp_path, "run", **LORA)
    base = qkv.convert.save_huggingface(language, tmp_path / "base")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base)
    tokens = torch.tensor([[5, 6, 7, 8]])
    plain = theirs(tokens).logits.detach()
    found = peft.PeftModel.from_pretrained(theirs, done.folder).eval()
    with torch.no_grad():
        ours, other = qkv.load(done.folder).model(tokens), found(tokens).logits
    torch.testing.assert_close(ours, other, atol=1e-4, rtol=1e-4)
    assert float((other - plain).abs().max()) > 0.01


def test_a_run_that_is_killed_and_resumed_ends_bit_for_bit_the_same(
    language: Path, tmp_path: Path
) -> None:
    runs, settings = starting(language), {**LORA, "train_average": 3, "train_lora_dropout": 0.1}
    whole = runs.run(tmp_path, "whole", **settings)
    resumed = runs.killed_and_resumed(7, tmp_path, "cut", **settings)
    files = ["config.json", "recipe.toml", "adapter_config.json"]
    assert everything(resumed, files) == everything(whole.folder, files)


@pytest.mark.parametrize("base", ["bf16", "int8", "int4"])
def test_frozen_weights_may_have_fewer_bits(language: Path, tmp_path: Path, base: str) -> None:
    settings = {**LORA, "train_lora_base": base, "train_steps": 60, "train_valid_every": 30}
    done = starting(language).run(tmp_path, "run", "instruct", **settings)
    losses = [record["valid_loss"] for record in read_log(done.folder) if "valid_loss" in record]
    assert losses[-1] < 0.8 * read_log(done.folder)[0]["loss"]
    if base != "bf16":
        assert lora_layers(done.result.model)


LABELLED = {"classify": classify_tiny.values, "tag": tag_tiny.values}


@pytest.mark.parametrize("task", LABELLED)
def test_a_head_of_labels_is_trained_beside_the_updates(tmp_path: Path, task: str) -> None:
    start = Runs(fill_tiny.values).run(tmp_path, "start").folder
    runs = Runs(LABELLED[task]).starting_from(start)
    done = runs.run(tmp_path, "run", **LORA)
    names = [*read_tensors(done.folder / "adapter_model.safetensors")]
    heads = [name for name in names if ".lora_" not in name]
    assert heads and all("encoder" not in name for name in heads)
    config = json.loads((done.folder / "adapter_config.json").read_text())
    assert "classifier" in config["modules_to_save"]
    loaded = qkv.load(done.folder)
    weights, trained = dict(loaded.model.named_parameters()), done.result.model
    assert torch.equal(weights["head.projection.weight"], trained.head.projection.weight)


def test_a_decoder_becomes_a_classifier(language: Path, tmp_path: Path) -> None:
    runs = Runs(classify_tiny.values).starting_from(language)
    done = runs.run(tmp_path, "run", **LORA)
    again = qkv.load(done.folder)
    assert again.classify(["a good cat"]) == done.result.classify(["a good cat"])


def test_translators_too(tmp_path: Path) -> None:
    start = tiny.RUNS.run(tmp_path, "start").folder
    done = tiny.RUNS.starting_from(start).run(tmp_path, "run", **LORA)
    text = "1 2 3"
    assert qkv.load(done.folder).translate(text) == done.result.translate(text)
    # The paper's order of sines and cosines is no other library's: matrices go by our names.
    names = read_tensors(done.folder / "adapter_model.safetensors")
    assert any("blocks.0.self_attention" in name for name in names)


def test_an_adapter_can_be_trained_on_and_converted(language: Path, tmp_path: Path) -> None:
    first = starting(language).run(tmp_path, "first", **LORA)
    merged = qkv.convert.save_qkv(first.folder, tmp_path / "merged")
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected = qkv.load(first.folder).model(tokens)
        torch.testing.assert_close(qkv.load(merged).model(tokens), expected)
    for base in ("fp32", "int8"):
        settings = {**LORA, "train_lora_base": base}
        second = RUNS.starting_from(first.folder).run(tmp_path, f"second-{base}", **settings)
        dtype = None if base == "fp32" else base
        with torch.no_grad():
            found = qkv.load(second.folder, dtype=dtype).model(tokens)
            torch.testing.assert_close(found, second.result.model(tokens))
            assert float((found - expected).abs().max()) > 0.05


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"train_lora_on": ["lookup"]}, "lora_on"),
        ({"train_lora_on": []}, "lora_on is empty"),
        ({"train_freeze": ["embedding"]}, "leave freeze out"),
        ({"chat_template": "chatml"}, "would stay untrained"),
    ],
)
def test_what_cannot_be_is_refused(
    language: Path, tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        starting(language).job(tmp_path, "instruct", **LORA, **settings)


def test_a_model_to_start_from_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name it with start_from"):
        RUNS.job(tmp_path, **LORA)


@pytest.mark.parametrize("on", [["query", "value"], ["output"], ["feed_forward"]])
def test_matrices_are_chosen_by_what_they_are_for(
    language: Path, tmp_path: Path, on: list[str]
) -> None:
    made = starting(language).job(tmp_path, **LORA, train_lora_on=on)
    ranks = {
        name.rpartition(".")[2]: layer.ranks for name, layer in lora_layers(made.model).items()
    }
    expected = {
        "query": {"query_key_value": [4, 0, 4]},
        "output": {"output": [4]},
        "feed_forward": {"inner": [4, 4], "outer": [4]},
    }
    assert ranks == expected[on[0]]


def test_recomputing_changes_no_gradient(tmp_path: Path) -> None:
    for task in ("generate", "instruct"):
        plain = RUNS.run(tmp_path, f"plain-{task}", task, **LEARNS | {"train_steps": 3})
        again = RUNS.run(
            tmp_path, f"again-{task}", task, **LEARNS | {"train_steps": 3, "train_recompute": True}
        )
        weights = [read_tensors(run.folder / "model.safetensors") for run in (plain, again)]
        for name, weight in weights[0].items():
            torch.testing.assert_close(weights[1][name], weight, atol=1e-6, rtol=1e-5)


def test_in_half_precision_the_backward_pass_keeps_no_copy_of_a_frozen_matrix() -> None:
    torch.manual_seed(0)
    base, kept = torch.nn.Linear(64, 96).requires_grad_(False), []
    layer = LoRALinear(base, [Update(torch.randn(4, 64), torch.randn(96, 4), 2.0)])
    x = torch.randn(3, 5, 64, requires_grad=True)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autocast("cpu", torch.bfloat16):
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = layer(x)
        expected = base(x) + F.linear(F.linear(x, layer.lora_A), 2.0 * layer.lora_B[0])
    assert not {(96, 64), (64, 96)} & set(kept)
    slope = torch.randn_like(output)
    found, wanted = (torch.autograd.grad(y, [x, layer.lora_A], slope) for y in (output, expected))
    for ours, theirs in zip([output, *found], [expected, *wanted], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02 * float(theirs.abs().max()))
