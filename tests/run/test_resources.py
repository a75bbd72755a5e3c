"""Plans of every task; training chooses batches that fit, and refuses what cannot fit."""

import dataclasses
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qkv.cli.app import command_line
from qkv.cli.plan import summary
from qkv.config import TASKS, DecodeConfig, Recipe, TokenizerConfig, preset, recipe_from, to_toml
from qkv.errors import UserError
from qkv.model import build_model
from qkv.plan.layout import best_layout
from qkv.plan.memory import LIBRARIES
from qkv.run.measured_steps import rows_together
from qkv.run.resources import plan_of_job, plan_run
from qkv.run.train import prepare
from qkv.tasks import LanguageModel
from qkv.text import train_tokenizer
from tests.run import tiny
from tests.run.common import Runs
from tests.run.test_every_task import VALUES

SIZES = {"model_d_model": 128, "model_d_ff": 512}
GIVEN = {"train_batch_tokens": 40_000}


def with_memory(monkeypatch: pytest.MonkeyPatch, n_bytes: float) -> None:
    monkeypatch.setattr("qkv.run.resources.device_memory", lambda device: int(n_bytes))


def translator(folder: Path, **differences: Any) -> Recipe:
    return tiny.recipe(folder, 5000, **{**SIZES, **differences})


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("device", ["cpu", "h100"])
def test_every_task_has_a_plan(task: str, device: str) -> None:
    plan = plan_run(recipe_from({"task": task}), device)
    assert plan.flops > 0
    assert plan.memory.peak > plan.memory.weights > 0
    assert plan.size.tokens <= plan.train.batch_tokens


@pytest.mark.parametrize("length", [16, 5, 11])
@pytest.mark.parametrize("task", TASKS)
def test_a_step_of_every_task_can_be_measured(
    task: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.run.measured_steps.PART", 64)  # as if batches were large
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 16, "max_length": 32, "dropout": 0.0}
    layers = {f"n_{stack}_layers": 1 for stack in TASKS[task].family.split("-")}
    data = {"max_length": 16} if TASKS[task].reads("data", "max_length") else {}
    values = {"model": {**sizes, **layers}, "data": data, "tokenizer": {"vocab_size": 60}}
    recipe = recipe_from({"task": task, **values, "train": {"batch_tokens": 128}})
    seconds = plan_run(recipe, "CPU", length=length).seconds
    assert seconds is not None and seconds > 0


@pytest.mark.parametrize("name", VALUES)
def test_the_plan_of_a_job_has_the_sizes_of_its_batches(tmp_path: Path, name: str) -> None:
    job = Runs(VALUES[name]).job(tmp_path, train_batch_tokens=304)
    size = plan_of_job(job).size
    batches = [job.train_items.batch(chosen) for chosen in job.stream.plan(0)]
    sides = [side for batch in batches for side in (batch.target, batch.source) if side]
    assert max(side.longest for side in sides) == size.width
    assert max(len(side.tokens) for side in sides if side.longest == size.width) <= size.rows
    most_rows = size.rows + rows_together(job.recipe.task)  # narrower ones may fill more
    for batch in batches:
        rows = len(batch.target.tokens)
        assert rows * batch.target.longest < most_rows * size.target
        if size.source:
            assert batch.source
            assert rows * batch.source.longest < most_rows * size.source


def test_batches_that_fit_stay_as_they_are(tmp_path: Path) -> None:
    job = prepare(translator(tmp_path, **GIVEN), tmp_path / "run")
    assert job.stream.batch_tokens == 40_000
    assert job.stream.accumulate == 1


def test_default_batches_are_divided_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, (LIBRARIES["cpu"] + 30e6) / 0.75)
    usual = recipe_from({}).train.batch_tokens
    console = Console(file=StringIO(), width=300)
    recipe = translator(tmp_path, train_batch_tokens=usual)
    job = prepare(recipe, tmp_path / "run", console)
    assert job.stream.batch_tokens < usual
    assert job.stream.accumulate > 1
    assert job.stream.batch_tokens * job.stream.accumulate >= usual
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"each step takes {job.stream.accumulate} of {job.stream.batch_tokens:,}" in said


def test_a_batch_that_cannot_fit_is_refused_with_one_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, 0.65e9)
    with pytest.raises(UserError, match=r"batches of 40,000 tokens.*cpu has 0\.6 GiB") as refused:
        prepare(translator(tmp_path, **GIVEN), tmp_path / "run")
    words = str(refused.value).split("train.batch_tokens to ")[1].split(" ")[0]
    assert "train.recompute" in str(refused.value)
    fitting = translator(tmp_path, train_batch_tokens=int(words.replace(",", "")))
    assert prepare(fitting, tmp_path / "run").stream.batch_tokens == fitting.train.batch_tokens


def test_a_batch_is_no_larger_than_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, 0.65e9)
    recipe = tiny.recipe(tmp_path, 200, **SIZES, **GIVEN)
    assert prepare(recipe, tmp_path / "run").stream.batch_tokens == 40_000


def test_one_of_several_workers_is_not_judged_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, 0.2e9)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert prepare(translator(tmp_path), tmp_path / "run").stream.batch_tokens == 200


def test_a_model_that_cannot_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, 0.2e9)
    with pytest.raises(UserError, match=r"weights, gradients and the optimizer's state.*smaller"):
        prepare(translator(tmp_path), tmp_path / "run")


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    words = [str(argument) for argument in ("plan", *arguments)]
    with pytest.raises(SystemExit) as end:
        command_line(words)(words)
    assert not end.value.code
    return capsys.readouterr().out


def written(folder: Path) -> Path:
    path = folder / "recipe.toml"
    model = {"preset": "gpt2-mini", "n_decoder_layers": 2}
    path.write_text(to_toml({"task": "generate", "model": model}))
    return path


def test_the_command_prints_a_plan_and_draws_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "plan.svg"
    printed = run_command(
        capsys, written(tmp_path), "--device", "h100", "--gpus", 16, "--price", 2, "--out", picture
    )
    for word in ("parameters", "memory", "largest batch", "tokens/s", "efficiency"):
        assert word in printed
    assert "<svg" in picture.read_text()


def test_gpus_are_refused_where_the_plan_is_for_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"--gpus has no effect, .* for cpu; name a GPU with"):
        run_command(capsys, written(tmp_path), "--device", "cpu", "--gpus", 2)


def test_the_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--device", "a100", "--json", "--budget", "1e20", "--set", "train.steps=7")
    plan = json.loads(run_command(capsys, written(tmp_path), *more))
    assert plan["steps"] == 7
    assert plan["flops"] == 7 * plan["flops_per_step"]
    counts = plan["parameters"]
    assert counts.pop("total") == sum(counts.values())
    assert plan["memory"]["peak"] < plan["memory"]["available"]
    assert plan["layouts"][0]["gpus"] == 1
    assert plan["compute_optimal"]["parameters"] > 1e8


def test_measuring_is_for_this_machine(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--measure takes steps on this machine"):
        plan_run(recipe_from({}), "h200", measure=True)


def tiny_decoder(folder: Path) -> Path:
    tokenizer = train_tokenizer(["a text of words"], TokenizerConfig(vocab_size=300))
    sizes = {"d_model": 32, "n_heads": 2, "d_ff": 64, "n_decoder_layers": 1}
    config = preset("gpt2-mini", **sizes, vocab_size=len(tokenizer), max_length=32)
    LanguageModel(build_model(config), tokenizer, DecodeConfig()).save(folder)
    return folder


def test_the_plan_of_a_run_from_a_decoder_has_the_runs_model(tmp_path: Path) -> None:
    values = {"task": "classify", "model": {"dropout": 0.3}}
    recipe = recipe_from({**values, "train": {"start_from": str(tiny_decoder(tmp_path))}})
    planned = plan_run(recipe, "h200").config
    assert (planned.family, planned.causal, planned.n_labels) == ("encoder", True, 2)
    assert planned.dropout == 0.3


def test_time_on_a_cpu_is_measured_and_untold_where_nothing_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--set", "model.d_model=16", "--set", "model.n_heads=2", "--length", "16")
    plan = json.loads(run_command(capsys, written(tmp_path), "--device", "cpu", "--json", *small))
    assert plan["measured"] and plan["seconds_by_kind"] == {}
    assert plan["tokens_per_second"] * plan["seconds_per_step"] == pytest.approx(
        plan["tokens_per_step"]
    )
    huge = ("--set", "model.preset=llama-7b", "--set", "model.n_decoder_layers=1000")
    printed = run_command(capsys, written(tmp_path), "--device", "cpu", *huge)
    assert "how long it takes is unknown, for it does not fit" in printed
    plan = json.loads(run_command(capsys, written(tmp_path), "--device", "cpu", "--json", *huge))
    assert (plan["measured"], plan["seconds_per_step"]) == (False, None)


def test_a_time_is_said_to_be_measured_only_where_it_is() -> None:
    """On several GPUs a layout is estimated."""
    plan = dataclasses.replace(plan_run(recipe_from({}), "h200"), measure=lambda: 3.0)
    one, many = (summary(plan, {8: best_layout(plan, 8)}, gpus) for gpus in (1, 8))
    assert (one["measured"], one["seconds_per_step"]) == (True, 3.0)
    assert not many["measured"] and many["seconds_per_step"] != 3.0


def test_a_step_of_lora_is_timed_with_the_weights_it_starts_from(tmp_path: Path) -> None:
    train = {"start_from": str(tiny_decoder(tmp_path)), "lora_rank": 2, "batch_tokens": 64}
    plan = plan_run(recipe_from({"task": "generate", "train": train}), "cpu")
    assert plan.seconds is not None and plan.seconds > 0
