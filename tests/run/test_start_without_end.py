"""Beginning from a model whose texts never end: it is taught to end them."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

import qkv
from qkv.config import recipe_from
from qkv.run.train import train
from tests.convert.harness import made, saved
from tests.run.common import TRAINING, silence
from tests.run.language_tiny import write_data


@pytest.mark.parametrize("own", [True, False])
def test_its_texts_end_with_the_tokenizer_s_end_or_a_new_one(own: bool, tmp_path: Path) -> None:
    write_data(tmp_path)
    letters = sorted({*(tmp_path / "text.txt").read_text(encoding="utf-8")} - {"\n"})
    vocabulary = {name: id for id, name in enumerate(["?", *letters, *(["</s>"] if own else [])])}
    size = len(vocabulary)
    config = {"vocab_size": size, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    with saved(made("OpenAIGPTLMHeadModel", config)) as folder:
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, "?"))
        backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        backend.save(str(folder / "tokenizer.json"))
        assert qkv.load(folder, "cpu").model.config.eos_id == size  # which is no token
        recipe = recipe_from(
            {
                "task": "generate",
                "data": {"text": str(tmp_path / "text.txt"), "documents": "line"},
                "train": {**TRAINING, "steps": 3, "start_from": str(folder)},
            }
        )
        done = train(recipe, tmp_path / "run", console=silence())
    model, tokenizer = done.result.model, done.result.tokenizer
    end = size - 1 if own else size
    assert (model.config.eos_id, model.config.pad_id, tokenizer.eos_id) == (end, end, end)
    assert model.config.vocab_size == end + 1
    assert isinstance(done.result.generate("", max_length=3), str)
