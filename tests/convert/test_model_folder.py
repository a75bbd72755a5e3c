"""Our model folder: one save is loaded as one, formats are numbered, and special files refused."""

import json
import os
import re
import shutil
import socket
from pathlib import Path

import pytest
import torch

import qkv
from qkv.config import DecodeConfig, ModelConfig, preset
from qkv.convert import Tokenizers, convert, export_problems, save_model_folder
from qkv.convert.model_folder import model_content
from qkv.errors import UserError
from qkv.model import build_model
from qkv.text import Tokenizer
from tests.convert.harness import any_tokenizer

OLD = Path(__file__).parent / "folders_without_format"
SIZES = {"d_model": 8, "n_heads": 2, "d_ff": 8, "n_encoder_layers": 1, "n_decoder_layers": 1}


def save(folder: Path, seed: int, size: int = 40) -> None:
    """Save a translator; models of two seeds differ in weights, decoding and tokenizer."""
    torch.manual_seed(seed)
    model = build_model(ModelConfig(**SIZES, vocab_size=size, max_length=12))
    content = model_content("translate", model.config, DecodeConfig(beams=seed))
    tokenizer = any_tokenizer(model.config, size - seed)
    save_model_folder(folder, content, model, Tokenizers(tokenizer, tokenizer))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_models_are_saved_as_equal_files(tmp_path):
    save(tmp_path / "a", 1)
    save(tmp_path / "b", 1)
    save(tmp_path / "c", 2)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert all(files(tmp_path / "a")[name] != kept for name, kept in files(tmp_path / "c").items())


@pytest.mark.parametrize("failing", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_save_that_fails_leaves_the_model_before_it(tmp_path, monkeypatch, failing):
    save(tmp_path, 1)
    before = files(tmp_path)
    replace = Path.replace

    def full(self, target):
        if Path(target).name == failing and Path(target).parent != tmp_path:
            raise OSError(28, "No space left on device", str(target))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left") as caught:
        save(tmp_path, 2)
    assert caught.value.filename == str(tmp_path / failing)
    assert files(tmp_path) == before
    assert qkv.load(tmp_path, "cpu").decode.beams == 1


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("n_moved", [0, 1, 2, 3, 4])
def test_a_save_that_is_killed_while_files_are_moved_is_never_loaded_as_a_mixture(
    tmp_path, monkeypatch, n_moved
):
    save(tmp_path, 1)
    replace, moved = Path.replace, []

    def kill(self, target):
        if Path(target).parent == tmp_path:
            if len(moved) == n_moved:
                raise Killed
            moved.append(Path(target).name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", kill)
    try:
        save(tmp_path, 2)
    except Killed:
        assert n_moved < 4
    if n_moved in (0, 4):
        assert qkv.load(tmp_path, "cpu").decode.beams == (2 if n_moved else 1)
        return
    for attempt in (lambda: qkv.load(tmp_path), lambda: convert(tmp_path, tmp_path / "new")):
        with pytest.raises(UserError, match=r"the config.json of one save and the model.safetens"):
            attempt()


def test_a_new_save_replaces_every_file_of_the_one_before(tmp_path):
    save(tmp_path, 1)
    own = any_tokenizer(ModelConfig(**SIZES, vocab_size=40), 40)
    own.save(tmp_path / "source_tokenizer.json")
    save(tmp_path, 2)
    assert qkv.load(tmp_path, "cpu").tokenizers.shared
    assert "source_tokenizer.json" not in files(tmp_path)


def test_the_format_is_a_number_and_a_newer_one_is_refused(tmp_path):
    save(tmp_path, 1)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    assert (content["format"], content["qkv"]) == (1, qkv.__version__)
    for number in (2, "1.5"):
        path.write_text(json.dumps({**content, "format": number}))
        with pytest.raises(UserError, match=r"config.json has format .*; install a newer qkv"):
            qkv.load(tmp_path, "cpu")


def test_folders_without_a_format_give_their_outputs_of_then():
    translator, speaker = (qkv.load(OLD / kind, "cpu") for kind in ("translator", "decoder"))
    expected = json.loads((OLD / "translator" / "outputs.json").read_text())
    for text, (output, score) in expected.items():
        [best, *_] = translator.n_best(text, max_length=6)[0]
        assert (best.text, best.log_probability) == (output, pytest.approx(score, rel=1e-5))
    expected = json.loads((OLD / "decoder" / "outputs.json").read_text())
    for text, (answer, score) in expected.items():
        assert speaker.chat(text, sample=False, max_length=6) == answer
        assert speaker.score(text).log_probability == pytest.approx(score, rel=1e-5)


@pytest.mark.parametrize("kind", ["qkv", "huggingface"])
def test_a_model_is_opened_once_and_its_tokenizer_parsed_once(tmp_path, monkeypatch, kind):
    save(tmp_path / "model", 1)
    folder = convert(tmp_path / "model", tmp_path / "other", kind)
    read: list[str] = []
    plain, parse = Path.read_text, Tokenizer.load.__func__

    def read_text(self, *arguments, **settings):
        read.append(self.name if self.parent == folder else "")
        return plain(self, *arguments, **settings)

    def load(cls, path):
        read.append("a tokenizer")
        return parse(cls, path)

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(Tokenizer, "load", classmethod(load))
    assert isinstance(qkv.load(folder, "cpu"), qkv.Translator)
    for name in ("config.json", "a tokenizer", "tokenizer.json"):
        assert read.count(name) == 1


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize("make", [make_fifo, make_socket, Path.mkdir])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "x.gguf"])
@pytest.mark.parametrize("kind", ["qkv", "huggingface"])
def test_what_is_no_file_is_refused_and_not_waited_for(monkeypatch, tmp_path, kind, name, make):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    save(tmp_path / "model", 1)
    if kind == "huggingface":
        convert("model", "other", kind)
        shutil.rmtree("model")
        Path("other").rename("model")
    path = Path("model") / name
    path.unlink(missing_ok=True)
    make(path)
    asked = path if name == "x.gguf" else path.parent
    with pytest.raises(UserError, match=f"{name} is a .*, but must be a file"):
        qkv.load(asked, "cpu")


@pytest.mark.parametrize(
    ("config", "task", "problems"),
    [
        (ModelConfig(**SIZES), "translate", []),
        (preset("gpt2-mini"), "generate", []),
        (
            preset("bert-mini", head="sequence", n_labels=2, pooling="mean"),
            "classify",
            ["huggingface: .*BERT.* has no pooling = 'mean'", "ctranslate2: .*'sequence'"],
        ),
        (
            preset("bert-mini", head="sequence", n_labels=2, pooler="tanh"),
            "classify",
            ["ctranslate2: CTranslate2 has no head of the kind 'sequence' on an encoder"],
        ),
        (
            ModelConfig(**SIZES, positions="rotary"),
            "translate",
            ["huggingface: .* has no positions = 'rotary'"],
        ),
    ],
)
def test_what_rules_an_export_out_is_known_before_training(config, task, problems):
    said = export_problems(config, task)
    assert len(said) == len(problems)
    for sentence, pattern in zip(said, problems, strict=True):
        assert re.search(pattern, sentence)
