"""A run never writes over somebody else's files."""

from dataclasses import replace
from pathlib import Path

import pytest

from qkv.config import DataConfig
from qkv.errors import UserError
from qkv.run.train import train
from tests.run.common import silence
from tests.run.tiny import recipe, run


@pytest.mark.parametrize("name", ["README.md", "config.json", "tokenizer.json"])
def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, name: str) -> None:
    mine = tmp_path / "run" / name
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(UserError, match=f"{name} belongs to something else"):
        run(tmp_path)
    assert mine.read_text() == "mine"
    assert [path.name for path in mine.parent.iterdir()] == [name]


def test_a_run_that_never_began_does_not_keep_its_folder(tmp_path: Path) -> None:
    """Its recipe was written, and then it failed, or was killed, before there was anything."""
    folder = run(tmp_path).folder
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and path.name != "recipe.toml":
            path.unlink()
    again = run(tmp_path, train_seed=7)  # neither as it was, nor to be resumed
    assert again.folder == folder
    assert "seed = 7" in (folder / "recipe.toml").read_text()


def test_the_demo_does_not_replace_another_run(tmp_path: Path) -> None:
    folder = run(tmp_path).folder
    demo = replace(recipe(tmp_path), data=DataConfig(corpus="demo"))
    before = (folder / "recipe.toml").read_text()
    with pytest.raises(UserError, match="holds a run already"):
        train(demo, folder, replace=True, console=silence())
    assert (folder / "recipe.toml").read_text() == before
