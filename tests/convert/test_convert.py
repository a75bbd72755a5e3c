"""The folder that `qkv convert` writes: where it may be, and that it is whole or not there."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.convert import convert
from qkv.errors import UserError
from qkv.tasks import load
from tests.convert.harness import add_words
from tests.convert.small import IDS, small

FORMATS = ["qkv", "huggingface"]


@pytest.fixture
def source(tmp_path) -> Path:
    folder = tmp_path / "source"
    small("LlamaForCausalLM", **IDS).to(torch.bfloat16).save_pretrained(folder)
    add_words(folder)
    return folder


def assert_there(folder: Path) -> None:
    """A whole model, and nothing beside it that was left behind."""
    assert load(folder, "cpu").generate("w7 w8")
    assert not list(folder.resolve().parent.glob("*.writing"))


@pytest.mark.parametrize("to", FORMATS)
def test_numbers_keep_their_kind(source, tmp_path, to):
    convert(source, tmp_path / "made", to)
    kinds = {one.dtype for one in load_file(tmp_path / "made" / "model.safetensors").values()}
    assert kinds == {torch.bfloat16}


@pytest.mark.parametrize("name", ["made", "made/", "some/where/else", "source/inside", "here/."])
def test_where_a_new_folder_may_be(source, tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    convert(source, name)
    assert_there(tmp_path / name)


def test_an_empty_folder_may_be_there(source, tmp_path):
    (tmp_path / "made").mkdir()
    assert_there(convert(source, tmp_path / "made"))


def test_the_folder_that_one_is_in(source, tmp_path, monkeypatch):
    (tmp_path / "made").mkdir()
    monkeypatch.chdir(tmp_path / "made")
    convert(source, ".")
    assert_there(tmp_path / "made")


@pytest.mark.parametrize("there", [False, True])
def test_a_link_is_followed(source, tmp_path, there):
    if there:
        (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    convert(source, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert_there(tmp_path / "disk")


@pytest.mark.parametrize("name", ["source", "file"])
def test_what_is_there_is_never_written_over(source, tmp_path, name):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=f"{name} is there already and not empty; name another"):
        convert(source, tmp_path / name)
    assert_there(source)


def test_what_a_killed_process_left_does_not_stand_in_the_way(source, tmp_path):
    left = tmp_path / f".made.{os.getpid()}.writing"
    left.mkdir()
    (left / "half").write_text("")
    assert_there(convert(source, tmp_path / "made"))
    assert not (tmp_path / "made" / "half").exists()


def test_nothing_is_left_of_a_conversion_that_fails(source, tmp_path):
    (source / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="truncated or damaged"):
        convert(source, tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_what_cannot_be_written_is_said_by_its_own_name(source, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("qkv.weights.save_file", full)
    with pytest.raises(OSError, match="No space left") as found:
        convert(source, tmp_path / "made")
    assert found.value.filename == str(tmp_path / "made" / "model.safetensors")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as found:
        convert(source, tmp_path / "file" / "made")
    assert found.value.filename == str(tmp_path / "file" / "made")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "source"]


@pytest.mark.parametrize("to", FORMATS)
def test_a_folder_of_ours_that_does_not_fit_is_not_passed_on(source, tmp_path, to):
    ours = convert(source, tmp_path / "ours")
    weights = load_file(ours / "model.safetensors")
    first, second, *_ = sorted(weights)
    weights = {**weights, second: torch.ones(3), "more": torch.ones(1)}
    del weights[first]
    save_file(weights, ours / "model.safetensors", {"format": "pt"})
    wrong = rf"{second} is \[3\] but should be .*; missing {first}; unexpected more\."
    with pytest.raises(UserError, match=wrong):
        convert(ours, tmp_path / "made", to)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "source"]


def test_a_format_that_nobody_knows(source, tmp_path):
    with pytest.raises(UserError, match="Unknown format 'onnx'; it may be one of qkv, hugg"):
        convert(source, tmp_path / "made", "onnx")


@pytest.mark.parametrize("to", FORMATS)
def test_a_readme_is_taken_along_whatever_its_letters(source, tmp_path, to):
    (source / "README.md").write_bytes(b"caf\xe9")
    convert(source, tmp_path / "made", to)
    assert (tmp_path / "made" / "README.md").read_bytes() == b"caf\xe9"


@pytest.mark.parametrize("to", FORMATS)
def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(source, tmp_path, to):
    add_words(source, 1)
    with pytest.raises(UserError, match="the tokenizer has 31 tokens, but the model knows only 30"):
        convert(source, tmp_path / "made", to)


@pytest.mark.parametrize("to", FORMATS)
def test_a_model_without_a_card_gets_a_small_one(source, tmp_path, to):
    card = convert(source, tmp_path / "made", to) / "README.md"
    assert card.read_text().startswith("# source\n\nConverted by qkv from source: decoder, ")
