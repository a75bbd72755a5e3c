"""What the verbs are given: any iterable of texts, as they are, and settings by their names."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from qkv.config import DecodeConfig, preset
from qkv.errors import UserError
from qkv.model import Decoder, EncoderDecoder
from qkv.tasks import (
    Answerer,
    Classification,
    Encoder,
    LanguageModel,
    Tagger,
    Tokenizers,
    Translator,
)
from qkv.tasks.answer import Answers
from qkv.tasks.reading import Reader
from qkv.tasks.tag import Tags
from qkv.tasks.texts import DecodeSettings
from qkv.text import Tokenizer
from tests.run.common import ids_of
from tests.tasks.understand_tiny import TOKENIZER, classifier, encoder
from tests.text.foreign import bytes_only, metaspace

SIZES = {"d_model": 16, "n_heads": 2, "d_ff": 24, "max_length": 24, "dropout": 0.5}
IDS = ids_of(TOKENIZER)
TEXTS = ["the cat", "a dog", "no fish"]
SAMPLED = ("translate", "generate")
SPACED = ["a cat", " a cat", "a cat ", "  a\tcat\n", "a  cat"]


def translator() -> Translator:
    model = EncoderDecoder(preset("transformer-tiny", **SIZES, **IDS))
    decode = DecodeConfig(beams=1, max_length=4)
    return Translator(model.eval(), Tokenizers(TOKENIZER, TOKENIZER), decode)


def speaker() -> LanguageModel:
    model = Decoder(preset("llama-tiny", **SIZES | {"n_kv_heads": 2}, **IDS))
    return LanguageModel(model.eval(), TOKENIZER, DecodeConfig(beams=1, max_length=4))


def tagger() -> Tagger:
    return Tagger(encoder(head="token", n_labels=2), TOKENIZER, Tags(("O", "B-x")))


def embedder() -> Encoder:
    return Encoder(encoder(head="none"), TOKENIZER)


MODELS: dict[str, Callable[[], Any]] = {
    "translate": translator,
    "generate": speaker,
    "score": speaker,
    "embed": embedder,
    "classify": classifier,
    "tag": tagger,
}


def verb_of(model: Any, name: str) -> Callable[..., Any]:
    """A model's method; vectors come as lists, which can be compared."""
    if name != "embed":
        return getattr(model, name)
    return lambda texts, **more: model.embed(texts, **more).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_one_text_gives_one_and_any_iterable_gives_many(name: str) -> None:
    verb = verb_of(MODELS[name](), name)
    found = verb(TEXTS)
    assert len(found) == 3
    assert verb(text for text in TEXTS) == found
    assert verb(dict.fromkeys(TEXTS)) == found
    assert verb([]) == verb(iter([])) == []
    assert verb(TEXTS[:1]) == [verb(TEXTS[0])]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_training_is_used_without_dropout_and_left_as_it_was(name: str) -> None:
    model = MODELS[name]()
    verb, settings = verb_of(model, name), {"sample": True} if name in SAMPLED else {}
    expected, state = verb(TEXTS, **settings), torch.random.get_rng_state()
    weights = {name: weight.clone() for name, weight in model.model.state_dict().items()}
    model.model.train()
    assert verb(TEXTS, **settings) == expected
    assert model.model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(weight, weights[k]) for k, weight in model.model.state_dict().items())


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"score"}))
def test_progress_counts_texts(name: str) -> None:
    told: list[int] = []
    verb_of(MODELS[name](), name)([*TEXTS, "the cat " * 2], progress=told.append)
    assert sum(told) == 4


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("given", [None, 3, b"the cat"])
def test_what_holds_no_texts_is_refused(name: str, given: object) -> None:
    with pytest.raises(UserError, match=r"^Texts are strings, but .* was given; give a string"):
        verb_of(MODELS[name](), name)(given)


@pytest.mark.parametrize("name", MODELS)
def test_texts_of_numpy_are_texts(name: str) -> None:
    verb = verb_of(MODELS[name](), name)
    assert repr(verb(np.array(TEXTS))) == repr(verb(TEXTS))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_answers_as_the_object_does(name: str, copied: Callable[[Any], Any]) -> None:
    model = MODELS[name]()
    expected = verb_of(model, name)(TEXTS)
    assert repr(verb_of(copied(model), name)(TEXTS)) == repr(expected)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("translate", "Translator(2 + 2 layers × 16; vocabulary {size}; context 24; on cpu)"),
        ("generate", "LanguageModel(4 layers × 16; vocabulary {size}; context 24; on cpu)"),
        ("tag", "; labels O, B-x; on cpu)"),
    ],
)
def test_an_object_shows_what_it_is(name: str, shown: str) -> None:
    assert repr(MODELS[name]()).endswith(shown.format(size=len(TOKENIZER)))


def test_a_decoder_that_classifies_shows_one_stack() -> None:
    sizes = {"n_decoder_layers": 2, "n_encoder_layers": 1}
    assert repr(classifier(sizes=sizes)).startswith("Classifier(1 layer × ")


def test_of_many_labels_the_first_are_shown() -> None:
    assert "; labels 0, 1, 2, 3, 4, … (7); on cpu)" in repr(classifier(tuple("0123456")))


@pytest.mark.parametrize("name", MODELS)
def test_what_is_no_text_is_named_by_its_position(name: str) -> None:
    verb = verb_of(MODELS[name](), name)
    with pytest.raises(UserError, match=r"^Text 2 is 3, of type int; give a string\.$"):
        verb(["the cat", 3])
    with pytest.raises(UserError, match=r"^Text 1 is None, of type NoneType"):
        verb([None])
    with pytest.raises(UserError, match=r"^Text 3 holds bytes that are not UTF-8; convert it"):
        verb([*TEXTS[:2], "\udcff"])


def test_pairs_that_are_none_are_named() -> None:
    answerer = Answerer(encoder(head="token", n_labels=2), TOKENIZER, Answers())
    with pytest.raises(UserError, match="Text 2 is 'who', but must be a pair: a question and a"):
        answerer.answers([("who?", "the cat"), "who"])  # type: ignore[list-item]
    with pytest.raises(UserError, match="Text 1 is 3, of type int"):
        answerer.answers([("who?", 3)])  # type: ignore[list-item]
    pairs = [("the?", "the cat"), ("a?", "a dog")]
    assert answerer.answers(iter(pairs)) == answerer.answers(pairs)


@pytest.mark.parametrize("kind", ["class", "classes", "number"])
def test_a_blank_text_has_no_label(kind: str) -> None:
    model = classifier(("a",) if kind == "number" else ("a", "b", "c"), kind=kind)
    blank = model.classify("")
    assert blank == Classification(()) == model.classify(" \t")
    assert (blank.label, blank.probability, blank.value) == ("", None, None)
    found = model.classify(["the cat", "", ("", " "), "a dog"])
    assert found[1:3] == [blank, blank]
    assert [found[0], found[3]] == model.classify(["the cat", "a dog"])


def test_the_settings_are_those_of_the_config() -> None:
    names = [field.name for field in dataclasses.fields(DecodeConfig)]
    assert list(DecodeSettings.__annotations__) == names


def test_draws_go_by_a_text_s_index_wherever_it_comes_from() -> None:
    for verb in (translator().n_best, speaker().n_best):
        settings: Any = {"sample": True, "temperature": 5.0, "seed": 3}
        whole = verb(["the cat"] * 3, **settings)
        assert whole[0] != whole[1]
        assert verb(["the cat"] * 2, first=1, **settings) == whole[1:]


def test_errors_speak_of_keywords_not_of_options() -> None:
    for verb in (translator().translate, speaker().generate):
        with pytest.raises(UserError, match=r"Text 2 has .* with truncate=True") as caught:
            verb(["the cat", "the cat" * 9])
        assert "--" not in str(caught.value)
        assert len(verb(["the cat" * 9], truncate=True)) == 1


@pytest.mark.parametrize("made", [bytes_only("<|endoftext|>"), metaspace(split=True)])
def test_texts_are_encoded_as_transformers_encodes_them(made: tokenizers.Tokenizer) -> None:
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=made)
    expected = [theirs.encode(text, add_special_tokens=False) for text in SPACED]
    assert len(set(map(tuple, expected))) > 2  # spaces matter to them
    ours = Tokenizer(made)
    sizes = {"vocab_size": len(ours), "pad_id": 0, "bos_id": 0, "eos_id": 1 % len(ours)}
    reader = Reader(encoder(**sizes), ours)
    assert reader.encode(SPACED) == expected
    model = EncoderDecoder(preset("t5-mini", **SIZES | sizes))
    translating = Translator(model, Tokenizers(ours, ours), DecodeConfig())
    assert translating.encode(SPACED) == expected
    assert reader.encode([" \t"]) == translating.encode([" \t"]) == [[]]
