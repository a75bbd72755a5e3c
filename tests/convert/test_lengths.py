"""How long an exported model writes, where nobody says: as here, as far as theirs can say it."""

import dataclasses
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from qkv.config import DecodeConfig, preset
from qkv.convert import convert
from qkv.convert.huggingface.generation_config import read_generation, write_generation
from qkv.tasks import load
from tests.convert.test_model_folder import OLD

DIGITS = ["9", "3 0 2 1", "5 8 0 7 7 7 7 7"]


def with_limit(kind, limit, folder, **differences):
    """A model whose folder sets max_length."""
    model = load(OLD / kind, "cpu")
    model.decode = dataclasses.replace(model.decode, max_length=limit, **differences)
    model.save(folder)
    return model


def in_transformers(kind, folder, target):
    """An exported model, and what its tokenizer makes of a text."""
    there = convert(folder, target, "huggingface")
    auto = AutoModelForSeq2SeqLM if kind == "translator" else AutoModelForCausalLM
    tokenizer = AutoTokenizer.from_pretrained(there)
    ask = partial(tokenizer, return_tensors="pt", return_token_type_ids=False)
    return auto.from_pretrained(there).eval(), tokenizer, ask


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("limit", [1, 5, 0])
@torch.no_grad()
def test_an_exported_translator_has_our_limit_where_its_files_can_say_it(tmp_path, limit, beams):
    """A set length, for any source; the usual one, for sources to which it is the context."""
    ours = with_limit("translator", limit, tmp_path / "ours", beams=beams)
    model, _, ask = in_transformers("translator", tmp_path / "ours", tmp_path / "there")
    room = ours.model.config.max_length - 1
    texts = DIGITS if limit else ["6 0 4 8 7 6 4 7 5 9 3 8", "4 2 1 9 4 8 9 2"]
    n_cut = 0
    for text in texts:
        asked = ask(text)
        assert limit or 2 * asked.input_ids.shape[1] + 20 >= room
        [expected] = ours.output_tokens([text])
        assert model.generate(**asked)[0, 1:].tolist() == expected
        n_cut += len(expected) == (limit or room)
    assert n_cut


@pytest.mark.parametrize("beams", [1, 4])
@torch.no_grad()
def test_a_translation_that_never_ends_is_longer_in_transformers(tmp_path, beams):
    """Their limit is one number; ours is 2 · source tokens + 20, which one can pass to them."""
    ours = load(OLD / "translator", "cpu")
    model, tokenizer, ask = in_transformers("translator", OLD / "translator", tmp_path / "there")
    n_longer = 0
    for text in DIGITS:
        asked = ask(text)
        limit = min(2 * asked.input_ids.shape[1] + 20, ours.model.config.max_length - 1)
        ids, free = (
            model.generate(**asked, num_beams=beams, **settings)[0]
            for settings in ({"max_new_tokens": limit}, {})
        )
        assert tokenizer.decode(ids, skip_special_tokens=True) == ours.translate(text, beams=beams)
        n_longer += len(free) > len(ids)
    assert n_longer or beams > 1


@torch.no_grad()
def test_a_text_after_a_prompt_is_as_long_in_transformers_as_the_context_allows(tmp_path):
    """Both end where the context is full."""
    ours = load(OLD / "decoder", "cpu")
    model, tokenizer, ask = in_transformers("decoder", OLD / "decoder", tmp_path / "there")
    asked = ask("a cat")
    ids = model.generate(**asked, do_sample=False)[0, asked.input_ids.shape[1] :]
    room = ours.model.config.max_length - asked.input_ids.shape[1]
    assert len(ids) == room
    expected = ours.generate("a cat", sample=False, max_length=room)
    assert tokenizer.decode(ids, skip_special_tokens=True) == expected


def test_a_long_context_has_256_tokens_after_a_prompt():
    long = preset("llama-tiny", max_length=300)
    values = write_generation(DecodeConfig(beams=1), long)
    assert values["max_new_tokens"] == 256 and "max_length" not in values
    assert read_generation(values, long) == {"beams": 1}


@pytest.mark.parametrize("limit", [0, 5])
@pytest.mark.parametrize("kind", ["translator", "decoder"])
def test_the_page_for_ctranslate2_writes_what_we_write(kind, limit, tmp_path, monkeypatch, capsys):
    ours = with_limit(kind, limit, tmp_path / "ours")
    folder = convert(tmp_path / "ours", tmp_path / "there", "ctranslate2")
    monkeypatch.chdir(folder)
    page = (folder / "README.md").read_text()
    for text in DIGITS if kind == "translator" else ["a cat"]:
        code = page.split("```python\n")[1].split("```")[0].replace('"Hello"', repr(text))
        exec(compile(code, "README.md", "exec"), {})
        if kind == "translator":  # which always stops early
            expected = ours.translate(text, early_stopping=True)
        else:
            room = ours.model.config.max_length - len(ours.encode(text))
            expected = text + ours.generate(text, sample=False, max_length=limit or room)
        assert capsys.readouterr().out.rstrip("\n") == expected.rstrip("\n")
