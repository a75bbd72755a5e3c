"""`qkv train`, and what one does with what it leaves."""

import os
import signal
from pathlib import Path

import pytest

from qkv.config import TASKS
from qkv.training import Trainer
from tests.journeys.conftest import Command, mistakes_in_training
from tests.run.common import Runs
from tests.run.test_every_task import VALUES
from tests.run.tiny import sources, spell, write_recipe

# What a task's scores begin with, and how its model is tried
USES: dict[str, tuple[list[str], list[object], str]] = {
    "translate": (["BLEU", "chrF", "exact"], ["1 2"], ""),
    "generate": (["loss", "perplexity", "bits"], ["the", "--max-length", 5], ""),
    "instruct": (["loss", "exact"], ["--max-length", 5], "say 3\n"),
    "fill": (["loss", "perplexity", "accuracy"], ["the <mask> sees"], ""),
    "classify": (["accuracy"], ["a cat"], ""),
    "tag": (["entity", "entity", "entity", "token"], ["anna sees rome"], ""),
    "answer": (["exact", "F1"], ["--text", "a 12 B", "which name?"], ""),
    "embed": (["accuracy"], ["a text"], ""),
}


@pytest.mark.parametrize("task", USES)
def test_each_task_is_trained_and_tried_as_the_command_says(
    qkv: Command, tmp_path: Path, task: str
) -> None:
    scores, arguments, stdin = USES[task]
    recipe, out = Runs(VALUES[task]).write_recipe(tmp_path), tmp_path / "run"
    usage = TASKS[task].usage
    answer = qkv("train", recipe, "--out", out)
    assert answer.code == 0, answer.err
    assert [line.split()[:2] for line in answer.lines[: len(scores)]] == [
        ["valid:", name] for name in scores
    ]
    assert answer.lines[-1] == f"{out} is ready: {usage.format(out)}"
    assert "step 12/12  loss " in answer.err
    assert qkv(usage.split()[1], "--model", out, *arguments, stdin=stdin).code == 0


def test_data_that_cannot_be_learnt_from(qkv: Command, tmp_path: Path) -> None:
    def train(task: str, *changes: str) -> str:
        recipe = Runs(VALUES[task]).write_recipe(tmp_path)
        return mistakes_in_training(qkv, recipe, tmp_path / "run")(*changes)

    text, words = tmp_path / "a.txt", tmp_path / "a.conll"
    text.write_text("a")
    assert "are left for" in train("generate", f"data.text={text}", "data.bos=false")
    words.write_text("anna\tb-person\nsees\to\n")
    assert "example has any of the labels B-person" in train("tag", f"data.examples={words}")


def test_torch_s_remarks_on_its_kernels_are_not_shown(qkv: Command, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, train_steps=2, train_precision="bfloat16", model_norm="rms")
    answer = qkv("train", recipe, "--out", tmp_path / "run")
    assert answer.code == 0
    assert "Mismatch dtype" not in answer.err


def test_a_run_is_named_after_its_recipe(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, train_steps=2)
    monkeypatch.chdir(tmp_path)
    assert qkv("train", recipe).code == 0
    assert (tmp_path / "runs" / "digits" / "model.safetensors").exists()


def test_line_aligned_files_compressed_or_not(qkv: Command, tmp_path: Path) -> None:
    recipe, lines = write_recipe(tmp_path, train_steps=2), sources(60)
    for name, text in (("a.src", lines), ("a.tgt", [spell(line) for line in lines])):
        (tmp_path / name).write_text("\n".join(text) + "\n")
    files = ["--set", "data.pairs=[]", "--set", f"data.source={tmp_path / 'a.src'}"]
    files += ["--set", f'data.target=["{tmp_path / "a.tgt"}"]']
    assert qkv("train", recipe, "--out", tmp_path / "run", *files).code == 0
    assert "a.src" in (tmp_path / "run" / "README.md").read_text()


def test_a_run_goes_on_and_is_never_written_over(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "run"
    plain = Trainer.take_step

    def stop(trainer: Trainer, batches: object) -> None:
        plain(trainer, batches)  # type: ignore[arg-type]
        if trainer.state.step == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "take_step", stop)
        answer = qkv("train", recipe, "--out", out)
    assert answer.code == 130
    assert "· stopping after this step, with a checkpoint; Ctrl-C again stops at once" in answer.err
    assert answer.err.splitlines()[-3:] == [
        "· stopped after step 7; resume with:",
        f"  qkv train {out / 'recipe.toml'} --out {out} --resume",
        "qkv: stopped",
    ]

    refused = qkv("train", recipe, "--out", out).mistake
    assert f"{out} holds a run already; resume it (--resume, or" in refused
    changed = qkv("train", recipe, "--out", out, "--resume", "--set", "train.lr=0.5").mistake
    assert changed.startswith(f"train.lr differs from the run in {out}; ")

    answer = qkv("train", recipe, "--out", out, "--resume")
    assert answer.code == 0
    assert "· resuming from step 7" in answer.err
    whole = qkv("train", recipe, "--out", tmp_path / "whole")
    assert answer.lines[:3] == whole.lines[:3]
