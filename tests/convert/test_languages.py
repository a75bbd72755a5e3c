"""Translators between many languages: which tokens tell them, and what transformers writes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import qkv
from qkv.config import recipe_from
from qkv.convert import convert
from qkv.convert.tokenizers.tokenizer_files import read_tokenizers
from qkv.errors import UserError
from qkv.text.languages import Languages
from tests.convert.harness import made
from tests.convert.small import BART
from tests.convert.test_vocabularies import m2m100, mbart, write

TEXTS = ["the cat sat on the mat", "cat", "the mat"]


def nllb(folder: Path) -> None:
    """As NLLB's own tokenizer saves itself, which has a tokenizer.json."""
    letters = ["<s>", "<pad>", "</s>", "<unk>", *"▁thecasonm"]
    pieces = {letter: id for id, letter in enumerate(dict.fromkeys(letters))}
    transformers.NllbTokenizer(pieces, [], src_lang="eng_Latn").save_pretrained(folder)


KINDS: dict[str, tuple[str, Any, tuple[str, str]]] = {
    "mbart": (
        "MBart",
        lambda folder: mbart(folder, tokenizer_class="MBartTokenizer"),
        ("en_XX", "de_DE"),
    ),
    "mbart-50": (
        "MBart",
        lambda folder: mbart(folder, tokenizer_class="MBart50Tokenizer"),
        ("en_XX", "de_DE"),
    ),
    "m2m100": ("M2M100", m2m100, ("en", "de")),
    "nllb": ("M2M100", nllb, ("eng_Latn", "deu_Latn")),
}


def token(words: Any, kind: str, code: str) -> int:
    """The id of a language's token."""
    return words.convert_tokens_to_ids(f"__{code}__" if kind == "m2m100" else code)


def put(folder: Path, kind: str) -> tuple[Any, Any]:
    """A small model of a kind in a folder with its tokenizer, and both as transformers has them."""
    name, build, _ = KINDS[kind]
    build(folder)
    model_type = {"MBart": "mbart", "M2M100": "m2m_100"}[name]
    write(folder, "config.json", {"model_type": model_type})
    words = transformers.AutoTokenizer.from_pretrained(folder)
    size = len(words) + 110  # some do not count their languages
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    sizes = {"vocab_size": size, "max_position_embeddings": 40}
    theirs = made(f"{name}ForConditionalGeneration", {**BART, **sizes, **ids}, seed=3)
    theirs.save_pretrained(folder)
    return theirs, words


def expected(theirs: Any, words: Any, kind: str, beams: int) -> list[list[int]]:
    """What the library's own tokenizer and search write after the decoder's first token."""
    source, target = KINDS[kind][2]
    words.src_lang = source
    id = token(words, kind, target)
    first = {"decoder_start_token_id" if kind == "mbart" else "forced_bos_token_id": id}
    room = 9 + (kind != "mbart")  # there, a language that is forced counts
    output = theirs.generate(
        **words(TEXTS, return_tensors="pt", padding=True),
        num_beams=beams,
        do_sample=False,
        max_length=None,
        max_new_tokens=room,
        suppress_tokens=[1],
        **first,
    )
    return [[id for id in row[1:] if id != theirs.config.pad_token_id] for row in output.tolist()]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_same_text(kind, tmp_path):
    (tmp_path / "theirs").mkdir()
    theirs, words = put(tmp_path / "theirs", kind)
    source, target = KINDS[kind][2]
    ours = qkv.load(tmp_path / "theirs", "cpu")
    assert ours.languages.source == source
    for number, to in enumerate(("huggingface", "qkv")):
        convert(tmp_path / "theirs", tmp_path / f"again{number}", to)
    others = [qkv.load(tmp_path / f"again{number}", "cpu") for number in (0, 1)]
    for beams in (1, 3):
        said = expected(theirs, words, kind, beams)
        for model in (ours, *others):
            found = model.output_tokens(TEXTS, ("en", target), beams=beams, max_length=9)
            assert found == said
            assert model.languages == ours.languages
    trace = ours.trace(TEXTS[0], source_language="en", target_language="de", max_length=9)
    ids = trace.inputs.source.row_tokens(0).tolist()
    words.src_lang = source
    assert ids == words(TEXTS[0]).input_ids
    assert ours.languages.ids[target] in trace.inputs.target.row_tokens(0).tolist()[:2]


def test_the_usual_target_is_what_is_forced(tmp_path):
    theirs, words = put(tmp_path, "mbart-50")
    theirs.generation_config.forced_bos_token_id = words.convert_tokens_to_ids("fr_XX")
    theirs.save_pretrained(tmp_path)
    ours = qkv.load(tmp_path, "cpu")
    assert ours.languages.target == "fr_XX"
    assert ours.translate(TEXTS) == ours.translate(TEXTS, target_language="fr")
    convert(tmp_path, tmp_path / "again", "huggingface")
    back = transformers.GenerationConfig.from_pretrained(tmp_path / "again")
    assert back.forced_bos_token_id == words.convert_tokens_to_ids("fr_XX")


M2M = Languages({"de": 1, "en": 2, "zh": 3}, "en")
NLLB = Languages({"deu_Latn": 1, "eng_Latn": 2, "zho_Hans": 3, "zho_Hant": 4, "kas_Arab": 5})
NLLB = Languages({**NLLB.ids, "kas_Deva": 6})
MBART = Languages({"de_DE": 1, "en_XX": 2, "zh_CN": 3})


@pytest.mark.parametrize(
    ("languages", "name", "id"),
    [
        (M2M, "de", 1),
        (M2M, "de_DE", 1),
        (M2M, "deu_Latn", 1),
        (M2M, "EN-us", 2),
        (NLLB, "de", 1),
        (NLLB, "deu", 1),
        (NLLB, "zh", 3),
        (NLLB, "zho-Hant", 4),
        (NLLB, "kas_Deva", 6),
        (MBART, "de", 1),
        (MBART, "deu_Latn", 1),
        (MBART, "en", 2),
    ],
)
def test_a_language_by_any_of_its_codes(languages, name, id):
    assert languages.find(name, "target") == id


@pytest.mark.parametrize(
    ("languages", "name", "message"),
    [
        (M2M, "xx", "target's language 'xx' is not known; this model knows de, en, zh"),
        (M2M, "", r"knows 3 languages; name the target's with target_language \(--to\): de, en"),
        (NLLB, "kas", "target's language 'kas' is one of kas_Arab, kas_Deva; this model knows"),
    ],
)
def test_a_language_that_is_not_known_is_refused_with_those_that_are(languages, name, message):
    with pytest.raises(UserError, match=message):
        languages.find(name, "target")


def test_training_does_not_begin_from_one(tmp_path):
    put(tmp_path, "m2m100")
    recipe = {
        "task": "translate",
        "data": {"corpus": "demo"},
        "train": {"start_from": str(tmp_path), "steps": 1},
    }
    with pytest.raises(UserError, match="is told languages by tokens, which training does not"):
        qkv.train(recipe_from(recipe), tmp_path / "run")


def test_ctranslate2_is_not_told_languages(tmp_path):
    (tmp_path / "model").mkdir()
    put(tmp_path / "model", "mbart")
    with pytest.raises(UserError, match="languages by tokens, which are not written for CTransl"):
        convert(tmp_path / "model", tmp_path / "ct2", "ctranslate2")


def test_config_json_may_name_the_tokenizers_class(tmp_path):
    mbart(tmp_path)
    named = {"model_type": "mbart", "tokenizer_class": "MBart50Tokenizer"}
    write(tmp_path, "config.json", named)
    tokenizer, _ = read_tokenizers(tmp_path, "mbart")
    assert "sl_SI" in tokenizer.special_names
