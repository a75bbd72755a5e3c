"""`qkv demo`: the packaged recipe and corpus, from nothing to a translator; here a poor one."""

import os
import shlex
import sys
from pathlib import Path

import pytest

import qkv as package
from qkv import demo
from qkv.cli.demo import NAMED
from qkv.cli.train import program
from qkv.config import PRESETS, Recipe, load_recipe, recipe_from, recipe_to_dict
from qkv.demo.corpus import PROMISED, DemoCorpus
from qkv.errors import UserError
from qkv.tasks import load
from tests.demo.sentences import demo_pairs
from tests.forking import FORKING_WORKERS, Python
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
# The package is found from any folder
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(package.__file__).resolve().parents[1])}
WORDS = [word for setting in HURRIED for word in ("--set", setting)]


def recipes() -> list[Path]:
    return sorted((Path(package.__file__).parent / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", recipes(), ids=lambda path: path.stem)
def test_every_packaged_recipe_can_be_read(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.preset in PRESETS
    assert recipe_from(recipe_to_dict(recipe)) == recipe


def test_the_demo_runs_from_end_to_end_and_may_be_run_again(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, promised = demo_pairs(337), [(one.chinese, one.english) for one in PROMISED]
    few = DemoCorpus(pairs[:300], pairs[300:320], promised + pairs[320:])
    monkeypatch.setattr(demo, "demo_corpus", lambda: few)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "nowhere")
    lines = qkv("demo", *WORDS).lines
    folder = Path("runs/demo")
    assert len(read_log(folder)) == 2
    assert any("% exact match" in line for line in lines)
    assert any("BLEU " in line and "tok:13a" in line for line in lines)
    samples = [line for line in lines if " → " in line]
    assert len(samples) == 10
    assert [line.split(" → ")[0].strip() for line in samples[:3]] == list(NAMED)
    translate, inspect, python, browser = lines[-4:]
    assert browser.startswith("Try it in the browser: ")
    assert browser.endswith(f"qkv serve {folder}")
    assert translate.endswith(f'qkv translate --model {folder} "我爱你"')
    assert inspect.endswith(f"qkv inspect {folder} --source 我爱你")
    assert python.strip().startswith(f'{sys.executable} -c "import qkv; ')
    expected = [load(folder).translate("我爱你")]
    assert qkv(*shlex.split(translate)[1:]).lines == expected
    assert Python(shlex.split(python)[1:], ENVIRONMENT).stdout.read().splitlines() == expected
    assert "- Data: demo (licence: Apache-2.0)" in (folder / "README.md").read_text()

    assert qkv("demo", *WORDS, "--set", "train.steps=3").code == 0
    assert len(read_log(folder)) == 3
    mistake = qkv("demo", *WORDS, "--set", "data.pairs=x.tsv").mistake
    assert "corpus = 'demo' has its own text" in mistake
    assert len(read_log(folder)) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="one process elsewhere")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one process on one core")
def test_the_demo_trains_in_two_processes_and_tells_it_once(tmp_path: Path) -> None:
    out = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = Python(["-c", FORKING_WORKERS, "demo", "--out", out, *WORDS], environment)
    lines = command.communicate()[0].splitlines()
    assert command.returncode == 0
    assert len([line for line in lines if "% exact match" in line]) == 1
    assert len([line for line in lines if " → " in line]) == 10
    assert lines[-1].endswith(f"serve {out}")
    assert len(read_log(out)) == 2


def test_a_mistake_is_told_once_and_before_there_are_two_processes(
    qkv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("qkv.run.launch.launch", lambda *_: pytest.fail("not to be started"))
    wrong = qkv("demo", *WORDS, "--set", "train.stepz=3").mistake
    assert wrong == "--set train.stepz: [train]: unknown key 'stepz'; did you mean 'steps'?"


def test_a_gpu_is_used_by_one_process(qkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU has none for a second."""

    def train(recipe: Recipe, *_: object, **__: object) -> None:
        raise UserError(f"trained on {recipe.train.device}.")

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("qkv.run.launch.launch", lambda *_: pytest.fail("not to be started"))
    monkeypatch.setattr("qkv.run.train.train", train)
    assert qkv("demo", "--set", "train.device=cuda").mistake == "trained on cuda."


@pytest.mark.parametrize("found", [None, "same", "other"])
@pytest.mark.parametrize("started", ["venv/bin/qkv", "src/qkv/__main__.py"])
def test_commands_are_printed_as_a_new_shell_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: str, found: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in map(Path, ("venv/bin/qkv", "other/qkv")):
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    places = {None: "nowhere", "same": "venv/bin", "other": "other"}
    monkeypatch.setenv("PATH", str(tmp_path / places[found]))
    monkeypatch.setattr(sys, "argv", [started])
    by_name = started if found != "same" else "qkv"
    assert program() == (by_name if started.endswith("qkv") else f"{sys.executable} -m qkv")
