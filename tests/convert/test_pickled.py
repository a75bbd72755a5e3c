"""Pickled weights: read only when asked for, as tensors and nothing else, within bounds."""

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from qkv.convert import convert, open_model
from qkv.convert.huggingface import pickled
from qkv.errors import UserError
from tests.convert.harness import made
from tests.convert.small import TINY
from tests.forking import run_worker

BIN = "pytorch_model.bin"


class Calls:
    """Pickled, it calls a function when it is read."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT with its weights as a pickle."""
    made("BertModel", TINY).save_pretrained(tmp_path / "theirs")
    weights = tmp_path / "theirs" / "model.safetensors"
    torch.save(load_file(weights), tmp_path / "theirs" / BIN)
    weights.rename(tmp_path / "expected.safetensors")
    (tmp_path / "theirs" / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 122))])
    )
    return tmp_path / "theirs"


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in a process that has imported torch already."""
    monkeypatch.setattr(pickled, "run_worker", run_worker)


def unpickle(folder: Path) -> Path:
    return convert(folder, folder.parent / "new", from_pickle=True)


def refusal(folder: Path) -> str:
    """The sentence; nothing is left behind."""
    with pytest.raises(UserError) as caught:
        unpickle(folder)
    assert {path.name for path in folder.parent.iterdir()} <= {
        "theirs",
        "expected.safetensors",
        "ran",
    }
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    return str(caught.value)


def assert_same(folder: Path) -> None:
    """The weights are those of the model before it was pickled."""
    reference = folder.parent / "reference"
    (folder.parent / "expected.safetensors").rename(folder / "model.safetensors")
    convert(folder, reference)
    found, expected = (
        dict(open_model(path).read_weights().items()) for path in (folder.parent / "new", reference)
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_pickled_model_is_converted_when_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # in a new interpreter, as everybody's
    with pytest.raises(UserError, match=rf"`qkv convert {folder} NEW --from-pickle` reads"):
        open_model(folder)
    with pytest.raises(UserError, match="--from-pickle"):
        convert(folder, folder.parent / "new")
    new = unpickle(folder)
    assert sorted(path.name for path in new.iterdir() if path.name.startswith(".")) == []
    assert_same(folder)


def test_files_of_old_and_several_files(folder: Path) -> None:
    tensors = torch.load(folder / BIN, weights_only=True)
    names = list(tensors)
    parts = {"a.bin": names[::2], "b.bin": names[1::2]}
    for name, part in parts.items():
        content = {key: tensors[key] for key in part}
        torch.save(content, folder / name, _use_new_zipfile_serialization=name == "a.bin")
    index = {key: name for name, part in parts.items() for key in part}
    (folder / f"{BIN}.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / BIN).unlink()
    unpickle(folder)
    assert_same(folder)


def test_tied_and_half_precision_tensors(folder: Path) -> None:
    tensors = torch.load(folder / BIN, weights_only=True)
    name = "embeddings.LayerNorm.weight"
    tensors["embeddings.LayerNorm.bias"] = tensors[name]
    tensors["encoder.layer.0.output.dense.weight"] = (
        tensors["encoder.layer.0.output.dense.weight"].t().contiguous().t()
    )
    torch.save({"state_dict": tensors, "epoch": 3}, folder / BIN)
    weights = dict(open_model(unpickle(folder)).read_weights().items())
    same = [key for key, value in weights.items() if torch.equal(value, tensors[name])]
    assert len(same) >= 2


def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(folder: Path) -> None:
    ran = folder.parent / "ran"
    for harm in (Calls(os.system, f"touch {ran}"), Calls(eval, f"open({str(ran)!r}, 'w')")):
        torch.save({"a": torch.zeros(1), "b": harm}, folder / BIN)
        sentence = refusal(folder)
        assert f"{folder / BIN} cannot be read: it asks for " in sentence
        assert "which has no place among weights" in sentence
        assert not ran.exists()
    (folder / BIN).write_bytes(pickle.dumps(Calls(os.system, f"touch {ran}")))
    assert "cannot be read" in refusal(folder)
    assert not ran.exists()


def test_a_tensor_larger_than_its_file_is_refused(folder: Path) -> None:
    torch.save({"a": torch.zeros(1).expand(10**12)}, folder / BIN)
    assert f"{folder / BIN} asks for more memory than" in refusal(folder)


def test_an_allocation_beyond_the_bound_is_refused(folder: Path) -> None:
    torch.save({"a": torch.zeros(1), "b": Calls(bytearray, 2**40)}, folder / BIN)
    sentence = refusal(folder)
    assert "more memory than" in sentence or "cannot be read" in sentence


def test_a_small_file_that_runs_for_years_is_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of 10 tuples, each of 10, and so on: its hash takes 10^18 steps."""
    monkeypatch.setattr(pickled, "SECONDS", 1.0)
    program = b"\x80\x02)q\x00"
    for depth in range(1, 19):
        program += b"(" + bytes([ord("h"), depth - 1]) * 10 + b"tq" + bytes([depth])
    program += b"}h\x12K\x01s."
    rewrite(folder / BIN, program)
    assert "takes more than 1 seconds to read; something is wrong with it" in refusal(folder)


def rewrite(path: Path, program: bytes) -> None:
    """Give an archive of torch.save's another pickle."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, program if name.endswith("data.pkl") else content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([torch.zeros(2)], "it holds a list and no tensors by their names"),
        (torch.zeros(2), "it holds a Tensor and no tensors by their names"),
        ({"a": torch.zeros(2), "b": 3}, "'b' in it is a int and no tensor"),
        ({1: torch.zeros(2)}, "'1' in it is a Tensor and no tensor"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "a is a tensor of complex64"),
        ({"a": torch.zeros(2, 2).to_sparse()}, "a is a tensor of sparse_coo"),
    ],
)
def test_what_is_no_state_dict_is_named(folder: Path, content: object, words: str) -> None:
    torch.save(content, folder / BIN)
    assert f"{folder / BIN} cannot be read: {words}" in refusal(folder)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
def test_a_truncated_file_is_refused(folder: Path, share: float) -> None:
    content = (folder / BIN).read_bytes()
    (folder / BIN).write_bytes(content[: int(len(content) * share)])
    assert f"{folder / BIN} cannot be read: it is truncated" in refusal(folder)


def test_an_archive_without_a_pickle_is_refused(folder: Path) -> None:
    with zipfile.ZipFile(folder / BIN, "w") as archive:
        archive.writestr("readme", "nothing")
    assert f"{folder / BIN} cannot be read: it is truncated" in refusal(folder)


def test_weights_that_do_not_fit_are_named_as_ever(folder: Path) -> None:
    tensors = torch.load(folder / BIN, weights_only=True)
    del tensors["embeddings.LayerNorm.bias"]
    torch.save(tensors, folder / BIN)
    assert "missing" in refusal(folder)


def test_folders_without_pickles_are_told(folder: Path) -> None:
    (folder / BIN).unlink()
    assert f"{folder} has no pytorch_model.bin; --from-pickle is for" in refusal(folder)
    index = {"weight_map": {"a": "../outside.bin"}}
    (folder / f"{BIN}.index.json").write_text(json.dumps(index))
    assert "'../outside.bin', but weights are only read from" in refusal(folder)
    index = {"weight_map": {"a": "gone.bin"}}
    (folder / f"{BIN}.index.json").write_text(json.dumps(index))
    assert "lacks gone.bin" in refusal(folder)
    (folder / f"{BIN}.index.json").unlink()
    (folder / BIN).mkdir()
    assert "is a folder, but must be a file" in refusal(folder)
