"""A run folder is a model folder, and may be named by a text or a path."""

from pathlib import Path

import pytest

import qkv


def test_a_run_folder_is_a_model_folder_without_pickle(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert {"recipe.toml", "log.jsonl", "checkpoints"} <= names
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    suffixes = {path.suffix for path in files}
    assert suffixes <= {".json", ".safetensors", ".md", ".toml", ".jsonl"}
    assert qkv.load(folder).translate("3 1 4") == "three one four"


@pytest.mark.parametrize("as_given", [str, Path])
def test_a_folder_may_be_given_as_text_or_path(folder: Path, as_given: type) -> None:
    assert isinstance(qkv.load(as_given(folder)), qkv.Translator)
