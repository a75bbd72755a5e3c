"""What stands beside a model for CTranslate2: its page runs, and its vocabularies fit."""

import dataclasses
import json
from pathlib import Path

import pytest

from qkv.config import ModelConfig
from qkv.convert.ctranslate2.specification import write_ctranslate2
from qkv.errors import UserError
from qkv.model import build_model
from qkv.tasks import Tokenizers
from tests.convert.harness import any_tokenizer
from tests.convert.test_ctranslate2 import BASE, as_source, built


def test_special_tokens_of_both_sides_must_be_alike(tmp_path):
    model = build_model(ModelConfig(**BASE, source_vocab_size=30, tie="output"))
    source = as_source(model)
    other = any_tokenizer(dataclasses.replace(model.config, eos_id=5), 30)
    target = source.read_tokenizers().target
    mixed = dataclasses.replace(source, read_tokenizers=lambda: Tokenizers(other, target))
    with pytest.raises(UserError, match="'w3' of the source is '</s>'"):
        write_ctranslate2(mixed, tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(**BASE),
        ModelConfig(**BASE, source_vocab_size=30, tie="none", start_id=5),
        ModelConfig(**BASE, family="decoder"),
        ModelConfig(**BASE, family="decoder", window=4),
        ModelConfig(**BASE, family="encoder"),
    ],
)
def test_the_page_shows_code_that_runs(config, tmp_path, monkeypatch, capsys):
    write_ctranslate2(as_source(built(config)), tmp_path)
    monkeypatch.chdir(tmp_path)
    code = Path("README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_page_pools_as_the_model_was_trained(tmp_path):
    model = build_model(ModelConfig(**BASE, family="encoder"))
    embed = {"pooling": "first", "normalize": False}
    write_ctranslate2(as_source(model, embed=embed), tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "vector = vectors[0]\n" in page and "norm" not in page


def test_tokenizers_vocabularies_and_special_tokens(tmp_path):
    config = ModelConfig(**BASE, source_vocab_size=30, tie="output", start_id=5)
    source = as_source(build_model(config))
    short = any_tokenizer(config, 28)  # two rows of the table have no piece
    tokenizers = Tokenizers(short, source.read_tokenizers().target)
    mixed = dataclasses.replace(source, read_tokenizers=lambda: tokenizers)
    write_ctranslate2(mixed, tmp_path)
    there = json.loads((tmp_path / "config.json").read_text())
    assert there["decoder_start_token"] == "<s>" and there["eos_token"] == "</s>"
    assert there["bos_token"] == "w5" and there["add_source_bos"] and there["add_source_eos"]
    assert there["unk_token"] == "w39" and there["layer_norm_epsilon"] == 1e-5
    words = json.loads((tmp_path / "source_vocabulary.json").read_text())
    assert words[27:] == ["w27", "<unused 28>", "<unused 29>"]
    assert len(json.loads((tmp_path / "target_vocabulary.json").read_text())) == 40
    assert Tokenizers.load(tmp_path).source.encode("w7 w8") == [7, 8]
