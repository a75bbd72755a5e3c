"""The model folder: what is saved comes back bit for bit, and what does not fit is said."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import qkv
from qkv.config import DecodeConfig, TokenizerConfig, preset
from qkv.convert.model_folder import load_config, load_model, model_content, save_model_folder
from qkv.device import lay_by_columns
from qkv.errors import UserError
from qkv.model import Decoder, EncoderDecoder, build_model
from qkv.tasks import Tokenizers, load
from qkv.text import train_pair
from qkv.weights import load_weights, read_tensors, write_tensors
from tests.model.tiny import tiny_config
from tests.run.tiny import sources, spell


def tokenizers(shared: bool) -> Tokenizers:
    lines = sources(50)
    config = TokenizerConfig(kind="wordpiece", vocab_size=60, shared=shared)
    return Tokenizers(*train_pair(lines, [spell(line) for line in lines], config))


def save(folder: Path, shared: bool = True, **differences: object) -> EncoderDecoder:
    both = tokenizers(shared)
    values = {
        "vocab_size": len(both.target),
        "source_vocab_size": 0 if shared else len(both.source),
    }
    model = build_model(tiny_config(**{**values, **differences}))
    assert isinstance(model, EncoderDecoder)
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
    model = save(tmp_path, **differences)
    task, config, decode = load_config(tmp_path)
    assert (task, config) == ("translate", model.config)
    assert decode == DecodeConfig(beams=3, length_penalty=0.6)
    found = load_model(tmp_path, config)
    assert not found.training
    assert found.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    tied = differences.get("tie", "all") != "none"
    assert (found.output.projection.weight is found.target_embedding.table.weight) is tied
    source, target = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 7]])
    assert torch.equal(found(source, target), model(source, target))


def test_a_shared_matrix_is_saved_once(tmp_path: Path) -> None:
    model = save(tmp_path)
    saved = read_tensors(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in saved.values()) == sum(
        p.numel() for p in model.parameters()
    )


def test_separate_vocabularies_come_back_as_two(tmp_path: Path) -> None:
    save(tmp_path, shared=False, tie="output")
    assert (tmp_path / "source_tokenizer.json").exists()
    found = load(tmp_path, device="cpu")
    assert not found.tokenizers.shared
    assert found.tokenizers.source.encode("1 2") == tokenizers(False).source.encode("1 2")
    assert found.tokenizers.target.encode("one") == tokenizers(False).target.encode("one")
    assert isinstance(found.translate("1 2"), str)


def test_a_shared_vocabulary_does_not_meet_another_model_s_source_vocabulary(
    tmp_path: Path,
) -> None:
    save(tmp_path, shared=False, tie="output")
    save(tmp_path, shared=True)
    assert load(tmp_path, device="cpu").tokenizers.shared


def test_a_run_folder_is_a_model_folder_without_pickle(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert {"recipe.toml", "log.jsonl", "checkpoints"} <= names
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".safetensors", ".md", ".toml", ".jsonl"}
    assert qkv.load(folder).translate("3 1 4") == "three one four"


@pytest.mark.parametrize("as_given", [str, Path])
def test_a_folder_may_be_given_as_text_or_path(folder: Path, as_given: type) -> None:
    assert isinstance(qkv.load(as_given(folder)), qkv.Translator)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    names = ("config.json", "model.safetensors", "tokenizer.json")
    for name in names:
        shutil.copy(folder / name, tmp_path / name)
    return tmp_path


def complaint(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, device="cpu")
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


def change_config(folder: Path, **changes: object) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **changes}))


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
    del tensors["decoder.norm.bias"]
    tensors["extra"] = torch.zeros(2)
    tensors["encoder.norm.weight"] = torch.zeros(31)
    write_tensors(copy / "model.safetensors", tensors, {})
    message = complaint(copy)
    assert "missing decoder.norm.bias" in message
    assert "unexpected extra" in message
    assert "encoder.norm.weight is [31] but should be [32]" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "no JSON object"),
        ("{}", "'task'"),
        ('{"task": "translate"}', "'model'"),
        ('{"task": "translate", "model": 3}', "'model'"),
        ('{"task": 1, "model": {}}', "'task'"),
        ('{"task": "translate", "model": {"d_modle": 3}}', "did you mean 'd_model'?"),
        ('{"task": "translate", "model": {"d_model": "3"}}', "type int"),
        ('{"task": "paint", "model": {}}', "unknown task 'paint'"),
        ('{"task": "translate", "model": {"family": "decoder"}, "x": 1}', "of one save"),
        ("\udcff", "truncated or not JSON"),
    ],
)
def test_a_config_that_is_none_of_ours_is_explained(copy: Path, content: str, words: str) -> None:
    (copy / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert words in complaint(copy)


def test_another_family_is_no_translator(copy: Path) -> None:
    model = build_model(tiny_config(family="decoder"))
    save_model_folder(copy, model_content("translate", model.config), model)
    assert "family 'decoder'" in complaint(copy)


def test_a_tokenizer_with_more_tokens_than_the_model_knows_is_refused(copy: Path) -> None:
    lines = sources(50)
    Tokenizers(*train_pair(lines, lines, TokenizerConfig(kind="char", vocab_size=300))).save(copy)
    assert "the model knows only 100" in complaint(copy)


def test_a_file_is_no_folder(folder: Path) -> None:
    assert "is not a model folder" in complaint(folder / "config.json")


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
