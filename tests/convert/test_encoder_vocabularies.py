"""Tokenizers of encoders: what their settings say, and whose class they are."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from qkv.convert.tokenizers.tokenizer_files import read_tokenizers
from qkv.errors import UserError
from tests.convert.test_vocabularies import (
    FOLDERS,
    ROBERTA,
    SAMPLES,
    bert,
    check_same,
    deberta,
    merges,
    pieces,
    write,
)

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bert", {"do_lower_case": False}),
        ("bert, cased", {"do_lower_case": True}),
        ("bert, cased", {"do_lower_case": None}),  # it is said nowhere
        ("bert", {"strip_accents": False, "tokenizer_class": "BertTokenizerFast"}),
        ("bert", {"tokenize_chinese_chars": False, "tokenizer_class": None}),
        ("bert, cased", {"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast"}),
        ("roberta", {"add_prefix_space": True}),
        ("bart, spaced", {"add_prefix_space": False}),
        ("bart, spaced", {"add_prefix_space": False, "tokenizer_class": "PreTrainedTokenizerFast"}),
    ],
    ids=str,
)
def test_settings_go_before_the_whole_tokenizer(name: str, said: Any, tmp_path: Path) -> None:
    model_type, build = FOLDERS[name]
    build(tmp_path)
    write(tmp_path, "config.json", {"model_type": model_type})
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    before = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings = {key: value for key, value in {**before, **said}.items() if value is not None}
    write(tmp_path, "tokenizer_config.json", settings)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours, _ = read_tokenizers(tmp_path, model_type)
    for text in SAMPLES:
        check_same(theirs, ours, text)


def test_settings_of_the_wrong_kind_are_named(tmp_path: Path) -> None:
    bert(tmp_path)
    write(tmp_path, "config.json", {"model_type": "bert"})
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    write(tmp_path, "tokenizer_config.json", {"do_lower_case": "yes"})
    with pytest.raises(UserError, match=r"tokenizer_config\.json has a value of the wrong kind"):
        read_tokenizers(tmp_path, "bert")


# A tokenizer may be another model's


@pytest.mark.parametrize("model_type", ["roberta", "albert", "deberta-v2", "bart"])
def test_a_tokenizer_of_another_models_class(model_type: str, tmp_path: Path) -> None:
    bert(tmp_path)
    write(tmp_path, "config.json", {"model_type": model_type})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours, _ = read_tokenizers(tmp_path, model_type)
    for text in SAMPLES:
        check_same(theirs, ours, text)
    special = theirs.pad_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id
    assert (ours.pad_id, ours.bos_id, ours.eos_id, ours.mask_id) == special


def test_a_class_that_only_a_whole_tokenizer_can_stand_for_is_refused(tmp_path: Path) -> None:
    bert(tmp_path, tokenizer_class="BertJapaneseTokenizer")
    with pytest.raises(UserError, match=r"class BertJapaneseTokenizer, .* tokenizer\.json"):
        read_tokenizers(tmp_path, "bert")


@pytest.mark.parametrize("around", [{}, {"cls_token": "[CLS]", "sep_token": "[SEP]"}])
def test_cls_and_sep_stand_around_a_text_whatever_starts_and_ends_it(
    around: dict[str, str], tmp_path: Path
) -> None:
    bert(tmp_path, bos_token="the", eos_token="cat", **around)
    ours, _ = read_tokenizers(tmp_path, "bert")
    assert (ours.names["start"], ours.names["end"]) == ("[CLS]", "[SEP]")


def test_a_special_token_takes_the_spaces_that_it_is_said_to(tmp_path: Path) -> None:
    merges(tmp_path, ROBERTA)
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False}
    write(tmp_path, "special_tokens_map.json", {"mask_token": mask})
    write(tmp_path, "config.json", {"model_type": "roberta"})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours, _ = read_tokenizers(tmp_path, "roberta")
    backend = tokenizers.Tokenizer.from_str(ours._backend.to_str())  # where texts spell such tokens
    text = "the <mask> sat"
    found = backend.encode(text, add_special_tokens=False).ids
    assert found == theirs(text, add_special_tokens=False).input_ids
    assert found[1] == ours.mask_id


def test_an_added_token_is_found_within_words_of_sentencepiece(tmp_path: Path) -> None:
    deberta(tmp_path)
    size = 3 + len(pieces(tmp_path / "spm.model"))  # versions of the library differ in it
    write(tmp_path, "added_tokens.json", {"[MASK]": size, "<new>": size + 1})
    ours, _ = read_tokenizers(tmp_path, "deberta-v2")
    assert ours.encode("the<new>cat") == [*ours.encode("the"), size + 1, *ours.encode("cat")]
