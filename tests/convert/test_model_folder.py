"""Our model folder: one save is loaded as one, formats are numbered, and special files refused."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
import torch

import qkv
from qkv.config import DecodeConfig, ModelConfig, preset
from qkv.convert import Tokenizers, convert, save_model_folder
from qkv.convert.model_folder import load_config, load_model, model_content, open_model_folder
from qkv.device import lay_by_columns
from qkv.errors import UserError
from qkv.model import Decoder, EncoderDecoder, build_model
from qkv.text import Tokenizer
from qkv.weights import load_weights, read_tensors, write_tensors
from tests.convert.harness import any_tokenizer
from tests.model.tiny import tiny_config

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
    own.save(tmp_path / "source_tokenizer.json")
    Tokenizers(own, own).save(tmp_path)
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
    plain, parse = Path.open, Tokenizer.load.__func__

    def open_file(self, *arguments, **settings):
        read.append(self.name if self.parent == folder else "")
        return plain(self, *arguments, **settings)

    def load(cls, path):
        read.append("a tokenizer")
        return parse(cls, path)

    monkeypatch.setattr(Path, "open", open_file)
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


def save_tiny(folder: Path, **differences: object) -> EncoderDecoder:
    """Save a tiny translator with a tokenizer of words, or with two."""
    model = build_model(tiny_config(**differences))
    assert isinstance(model, EncoderDecoder)
    target = any_tokenizer(model.config, model.config.vocab_size)
    size = model.config.source_vocab_size
    both = Tokenizers(any_tokenizer(model.config, size) if size else target, target)
    decode = DecodeConfig(beams=3, length_penalty=0.6)
    save_model_folder(folder, model_content("translate", model.config, decode), model, both)
    return model.eval()


@pytest.mark.parametrize(
    "differences",
    [
        {},
        {"tie": "output"},
        {"tie": "none", "output_bias": True, "positions": "learned"},
        {"norm": "rms", "norm_position": "pre", "gated": True, "bias": False, "n_kv_heads": 2},
    ],
)
def test_weights_and_config_come_back_bit_for_bit(tmp_path: Path, differences: dict) -> None:
    model = save_tiny(tmp_path, **differences)
    stored = open_model_folder(tmp_path)
    task, config, decode = load_config(stored)
    assert (task, config) == ("translate", model.config)
    assert decode == DecodeConfig(beams=3, length_penalty=0.6)
    found = load_model(stored, config)
    assert not found.training
    assert found.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    tied = differences.get("tie", "all") != "none"
    assert (found.output.projection.weight is found.target_embedding.table.weight) is tied
    source, target = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 7]])
    assert torch.equal(found(source, target), model(source, target))


def test_a_shared_matrix_is_saved_once(tmp_path: Path) -> None:
    model = save_tiny(tmp_path)
    saved = read_tensors(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in saved.values()) == sum(
        p.numel() for p in model.parameters()
    )


def test_separate_vocabularies_come_back_as_two(tmp_path: Path) -> None:
    save_tiny(tmp_path, source_vocab_size=30, tie="output")
    assert (tmp_path / "source_tokenizer.json").exists()
    found = qkv.load(tmp_path, device="cpu")
    assert not found.tokenizers.shared
    assert found.tokenizers.source.encode("w27 w8") == [27, 8]
    assert found.tokenizers.target.encode("w27 w8") == [22, 8]  # which does not know the first
    assert isinstance(found.translate("w27 w8"), str)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    save_tiny(tmp_path)
    return tmp_path


def complaint(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        qkv.load(folder, device="cpu")
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_or_truncated_file_is_named(copy: Path, name: str) -> None:
    content = (copy / name).read_bytes()
    for size in (len(content) - 20, len(content) // 2, 0):
        (copy / name).write_bytes(content[:size])
        assert name in complaint(copy)
    (copy / name).unlink()
    assert name in complaint(copy)


def test_each_weight_that_does_not_fit_the_config_is_named(copy: Path) -> None:
    tensors = read_tensors(copy / "model.safetensors")
    del tensors["decoder.blocks.0.feed_forward.inner.bias"]
    tensors["extra"] = torch.zeros(2)
    norm = "encoder.blocks.0.self_attention_residual.norm.weight"
    width = len(tensors[norm])
    tensors[norm] = torch.zeros(width - 1)
    write_tensors(copy / "model.safetensors", tensors, {})
    message = complaint(copy)
    assert "missing decoder.blocks.0.feed_forward.inner.bias" in message
    assert "unexpected extra" in message
    assert f"{norm} is [{width - 1}] but should be [{width}]" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "no JSON object"),
        ("{}", "name a model folder of qkv, or one of Hugging Face's, with a 'model_type'."),
        ("{}", "'task'"),
        ('{"task": "translate"}', "'model'"),
        ('{"task": "translate", "model": 3}', "'model'"),
        ('{"task": 1, "model": {}}', "'task'"),
        ('{"task": "translate", "model": {"d_modle": 3}}', "did you mean 'd_model'?"),
        ('{"task": "translate", "model": {"d_model": "3"}}', "must be a whole number"),
        ('{"task": "paint", "model": {}}', "unknown task 'paint'"),
        ('{"task": "translate", "model": {"family": "decoder"}, "x": 1}', "of one save"),
        ("\udcff", "truncated or not JSON"),
    ],
)
def test_a_config_that_is_none_of_ours_is_explained(copy: Path, content: str, words: str) -> None:
    (copy / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert words in complaint(copy)


def test_a_folder_of_ctranslate2_is_told_by_its_file(copy: Path) -> None:
    (copy / "config.json").write_text("{}")
    (copy / "model.bin").touch()
    assert complaint(copy).endswith("so name the folder that it was converted from.")


def test_another_family_is_no_translator(copy: Path) -> None:
    model = build_model(tiny_config(family="decoder"))
    save_model_folder(copy, model_content("translate", model.config), model)
    assert "family 'decoder'" in complaint(copy)


def test_a_token_with_an_id_beyond_the_model_s_is_refused(copy: Path) -> None:
    path = next(copy.glob("*tokenizer.json"))
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 1 << 20
    path.write_text(json.dumps(content))
    assert "the tokenizer has 1,048,577 tokens, but the model knows only" in complaint(copy)


def test_a_file_is_no_folder(copy: Path) -> None:
    sentence = "is not a model folder (but a file); name its folder, or a .gguf file."
    assert complaint(copy / "config.json").endswith(sentence)


def test_memory_order_changes_no_number(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = Decoder(preset("gpt2-mini", vocab_size=50, d_model=24, n_heads=2, d_ff=96)).eval()
    turned = lay_by_columns(Decoder(plain.config).eval())
    load_weights(turned, dict(plain.named_parameters()), tmp_path)
    wide = turned.decoder.blocks[0].feed_forward.inner.weight
    assert wide.stride() == (1, 96) and wide.shape == (96, 24)
    tokens = torch.randint(50, (3, 9))
    torch.testing.assert_close(turned(tokens), plain(tokens))
    save_model_folder(tmp_path, {}, turned)
    saved = read_tensors(tmp_path / "model.safetensors")
    for name, parameter in plain.named_parameters():
        assert torch.equal(saved[name], parameter)


def test_a_config_whose_tables_find_no_memory_is_refused(tmp_path, monkeypatch):
    save(tmp_path, 1)
    monkeypatch.setattr("qkv.model.empty.build_model", lambda config: torch.ones(1 << 50))
    with pytest.raises(UserError, match="ran out of memory; check the config"):
        qkv.load(tmp_path, "cpu")


def test_more_beams_than_any_search_has_are_refused(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(UserError, match="beams is 9223372036854775807, but must be at most"):
        qkv.load(tmp_path, "cpu").translate("a", beams=2**63 - 1)
    with pytest.raises(UserError, match=r"length_penalty is 1e\+300, but must be at most 50"):
        qkv.load(tmp_path, "cpu").translate("a", length_penalty=1e300)
