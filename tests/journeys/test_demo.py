"""`qkv demo`: the packaged recipe and corpus, from nothing to a translator; here a poor one."""

from __future__ import annotations

from pathlib import Path

import pytest

import qkv as package
from qkv.cli.demo import NAMED
from qkv.config import PRESETS, load_recipe, recipe_from, recipe_to_dict, to_toml
from qkv.demo import corpus as demo_room
from qkv.tasks import load
from tests.journeys.conftest import Command
from tests.run.common import read_log

HURRIED = [
    "train.steps=2",
    "train.batch_tokens=256",
    "train.valid_bleu=false",
    "train.tensorboard=false",
    "decode.beams=1",
    "decode.max_length=4",
    "model.d_model=16",
    "model.d_ff=16",
    "model.n_heads=2",
]
WORDS = [word for setting in HURRIED for word in ("--set", setting)]


def recipes() -> list[Path]:
    return sorted((Path(package.__file__).parent / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", recipes(), ids=lambda path: path.stem)
def test_every_packaged_recipe_can_be_read(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.preset in PRESETS
    assert recipe_from(recipe_to_dict(recipe)) == recipe


def test_the_demo_is_among_them() -> None:
    assert "demo" in [path.stem for path in recipes()]


def test_the_demo_runs_from_end_to_end(qkv: Command, tmp_path: Path) -> None:
    answer = qkv("demo", "--out", tmp_path / "demo", *WORDS)
    assert answer.code == 0
    assert "% exact match" in answer.out
    assert "BLEU " in answer.out
    assert "tok:13a" in answer.out
    samples = [line for line in answer.lines if " → " in line]
    assert len(samples) == 10
    assert [line.split(" → ")[0].strip() for line in samples[:3]] == list(NAMED)
    assert f'qkv translate --model {tmp_path / "demo"} "我爱你"' in answer.out
    assert isinstance(load(tmp_path / "demo").translate("我爱你"), str)
    assert "- Text: demo (licence: Apache-2.0)" in (tmp_path / "demo" / "README.md").read_text()


def test_the_demo_may_be_run_again(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = demo_room.demo_corpus()
    few = type(corpus)(corpus.train[:300], corpus.valid[:20], corpus.test[:20])
    monkeypatch.setattr(demo_room, "demo_corpus", lambda: few)
    monkeypatch.chdir(tmp_path)
    assert qkv("demo", *WORDS).code == 0
    assert len(read_log(tmp_path / "runs" / "demo")) == 2
    assert qkv("demo", *WORDS, "--set", "train.steps=3").code == 0
    assert len(read_log(tmp_path / "runs" / "demo")) == 3
    mistake = qkv("demo", *WORDS, "--set", "data.pairs=x.tsv").mistake
    assert "corpus = 'demo' brings its own text" in mistake
    assert len(read_log(tmp_path / "runs" / "demo")) == 3


def test_a_recipe_written_out_reads_the_same(tmp_path: Path) -> None:
    values = {
        "task": "translate",
        "data": {"source": ['a "b".txt', "c\\d", "爱\t\n"], "target": ["x", "y", "z"]},
        "model": {"preset": "transformer-tiny", "dropout": 0.0, "gated": True},
        "train": {"lr": 1e-09, "seconds": 1e30, "weight_decay": 0.1, "seed": 2**40},
    }
    recipe = recipe_from(values)
    (tmp_path / "recipe.toml").write_text(to_toml(recipe_to_dict(recipe)), encoding="utf-8")
    assert load_recipe(tmp_path / "recipe.toml") == recipe
