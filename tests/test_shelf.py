"""A name finds a path, a packaged or pulled model, or a sentence that says what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qkv.errors import UserError
from qkv.shelf import find_model, folder_of, home, packaged, pulled, split_adapter


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKV_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "models"


def add(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_bytes(b"four")
    return folder


def test_the_shelf_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home() == tmp_path / "home"
    monkeypatch.delenv("QKV_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert home() == tmp_path / "cache" / "qkv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home() == tmp_path / ".cache" / "qkv"
    monkeypatch.setenv("QKV_HOME", "~/models")
    assert home() == tmp_path / "models"


def test_a_path_that_exists_is_that_path(shelf: Path, tmp_path: Path) -> None:
    add(shelf / "minilm", "config.json")
    assert find_model("minilm") == shelf / "minilm"
    add(tmp_path / "minilm")
    assert find_model("minilm") == Path("minilm")  # what is near comes first
    assert find_model(tmp_path / "minilm") == tmp_path / "minilm"


def test_a_hub_model_is_found_by_its_full_name_and_by_its_last_part(shelf: Path) -> None:
    folder = add(shelf / "ann--tiny-model", "config.json", "model.gguf")
    assert folder_of("ann/tiny-model") == folder
    assert find_model("ann/tiny-model") == find_model("tiny-model") == folder
    assert find_model(Path("ann/tiny-model")) == folder


def test_a_last_part_that_two_models_have_is_asked_back(shelf: Path) -> None:
    add(shelf / "ann--tiny", "config.json")
    bob = add(shelf / "bob--tiny", "config.json")
    assert find_model("bob/tiny") == bob
    with pytest.raises(UserError, match=r"^tiny may be ann/tiny or bob/tiny on the shelf; give"):
        find_model("tiny")
    own = add(shelf / "tiny", "config.json")
    assert find_model("tiny") == own


def test_a_packaged_model_has_its_name_unless_something_nearer_has_it(
    shelf: Path, tmp_path: Path
) -> None:
    folder = packaged()["zh-en"]
    assert find_model("zh-en") == folder
    add(shelf / "ann--zh-en", "config.json")
    assert find_model("zh-en") == folder
    assert find_model("ann/zh-en") == shelf / "ann--zh-en"
    own = add(shelf / "zh-en", "config.json")
    assert find_model("zh-en") == own
    add(tmp_path / "zh-en")
    assert find_model("zh-en") == Path("zh-en")


def test_one_gguf_file_is_the_model_itself(shelf: Path) -> None:
    folder = add(shelf / "smollm2", "a.gguf", "SOURCE.json", "LICENSE.package")
    assert find_model("smollm2") == folder / "a.gguf"
    (folder / "b.gguf").touch()
    assert find_model("smollm2") == folder


def test_what_is_on_the_shelf_is_listed_with_its_source(shelf: Path) -> None:
    assert pulled() == []
    add(shelf / "zoe--big", "config.json", "model.safetensors")
    source = add(shelf / "ann--tiny", "config.json") / "SOURCE.json"
    source.write_text(json.dumps({"licence": "MIT"}))
    (shelf / "a file").touch()
    ann, zoe = pulled()
    assert (ann.name, zoe.name) == ("ann/tiny", "zoe/big")
    assert (ann.source, zoe.source) == ({"licence": "MIT"}, {})
    assert zoe.size == 8


def test_what_is_found_nowhere_gets_the_way_out(shelf: Path) -> None:
    with pytest.raises(UserError) as caught:
        find_model("minilm")
    assert str(caught.value) == (
        "minilm is neither a path that exists nor a packaged model (mini-bert, zh-en) nor a "
        "pulled one (the shelf is empty); fetch it with `qkv pull minilm`."
    )
    add(shelf / "ann--tiny")
    add(shelf / "smollm2")
    for name in ("runs/nothing", "../models/smollm2", "smollm"):
        with pytest.raises(UserError) as caught:
            find_model(name)
        assert str(caught.value) == (
            f"{name} is neither a path that exists nor a packaged model (mini-bert, zh-en) nor "
            f"a pulled one (the shelf has ann/tiny, smollm2); check the path, train one with "
            f"`qkv train`, or see `qkv pull --list`."
        )


@pytest.mark.parametrize("name", ["a" * 5000, "base+" + "a" * 5000, "\0"])
def test_what_can_be_no_path_is_found_nowhere(shelf: Path, name: str) -> None:
    assert split_adapter(name) == (name, None)
    with pytest.raises(UserError, match="neither a path that exists"):
        find_model(name)


class Model:
    """The object of a model, given for its name."""

    def __repr__(self) -> str:
        return "Translator(2 + 2 layers)"


@pytest.mark.parametrize("name", [None, 3, "", Model()])
def test_what_is_no_name_is_refused(name: Any) -> None:
    assert split_adapter(name) == (name, None)
    with pytest.raises(UserError, match=r"A model is named by its path, .* but .* was given; give"):
        find_model(name)
