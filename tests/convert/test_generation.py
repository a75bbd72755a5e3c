"""Decoding defaults, both ways."""

import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.config import DecodeConfig, ModelConfig, preset
from qkv.config.fields import from_mapping
from qkv.convert.huggingface.generation_config import read_generation, write_generation
from qkv.convert.opening import open_model
from qkv.errors import UserError
from tests.convert.harness import made, saved
from tests.convert.small import BART

MODELS = {"decoder": preset("llama-tiny"), "marian": ModelConfig(), "bart": ModelConfig(start_id=4)}
SMALL = {**BART, "max_position_embeddings": 40, "forced_eos_token_id": None}


def decoded(said, model):
    return DecodeConfig(**read_generation(said, model))


@pytest.mark.parametrize(
    ("kind", "said", "expected"),
    [
        ("decoder", {"min_new_tokens": 5}, 5),
        ("marian", {"min_new_tokens": 5}, 5),
        ("bart", {"min_new_tokens": 5}, 4),  # of which <s> is one
        ("bart", {"min_new_tokens": 1}, 0),
        ("marian", {"min_length": 5}, 4),  # of which the start is one
        ("bart", {"min_length": 56}, 54),  # and <s> another
        ("marian", {"min_length": 1}, 0),
        ("marian", {"min_length": 9, "min_new_tokens": 2}, 2),
        ("bart", {"min_length": 9, "min_new_tokens": None}, 7),
        ("decoder", {"min_length": 9, "min_new_tokens": 2}, 2),
        ("bart", {"min_length": None}, 0),
    ],
)
def test_the_least_length(kind, said, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forced = {"forced_bos_token_id": 4} if kind == "bart" else {}
        assert decoded({**said, **forced}, MODELS[kind]).min_length == expected


def test_a_start_that_is_not_forced_counts_as_any_other_token():
    said = {"min_new_tokens": 5, "max_new_tokens": 9}
    found = decoded(said, MODELS["bart"])
    assert (found.force_start, found.min_length, found.max_length) == (False, 5, 9)
    assert decoded(write_generation(found, MODELS["bart"]), MODELS["bart"]) == found


def test_a_greedy_model_that_says_so_differs_from_one_that_says_nothing():
    """A chat samples where nothing is said."""
    assert "sample" not in read_generation({}, MODELS["bart"])
    assert read_generation({"do_sample": False}, MODELS["bart"])["sample"] is False
    assert "do_sample" not in write_generation(DecodeConfig(beams=1), MODELS["bart"])


def test_what_is_left_out_is_told():
    with pytest.warns(UserWarning, match="num_beam_groups = 2, penalty_alpha = 0.6"):
        read_generation({"penalty_alpha": 0.6, "num_beam_groups": 2}, MODELS["bart"])
    with pytest.warns(UserWarning, match="min_length = 9"):  # there it counts the prompt
        assert decoded({"min_length": 9}, MODELS["decoder"]).min_length == 0
    with pytest.warns(UserWarning, match="max_length = 40"):  # there too
        assert decoded({"max_length": 40}, MODELS["decoder"]).max_length == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        longest = MODELS["decoder"].max_length
        for said in ({"max_length": 20}, {"max_length": longest}, {"max_new_tokens": 9}):
            decoded({"max_length": 40, **said}, MODELS["decoder"])


@pytest.mark.parametrize(
    "said",
    [
        {"forced_bos_token_id": 7},
        {"bad_words_ids": [[0], [6, 7]]},
        {"forced_eos_token_id": 7},
        {"sequence_bias": [[[7], -1.0]]},
    ],
    ids=str,
)
def test_tokens_that_theirs_forces_or_forbids_are_told(said):
    with pytest.warns(UserWarning, match=f"Left out of the decoding defaults: {next(iter(said))}"):
        assert not said.keys() & read_generation(said, MODELS["bart"]).keys()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, ()),
        ({"suppress_tokens": [0, 2]}, "special"),  # what ours never writes by itself
        ({"bad_words_ids": [[2]], "suppress_tokens": [0]}, "special"),
        ({"bad_words_ids": [[4], [2]], "suppress_tokens": [0]}, (0, 2, 4)),
        ({"bad_words_ids": [[3]], "suppress_tokens": []}, ()),  # theirs lets no word forbid the end
        ({"suppress_tokens": [3, -1, 9999]}, (3,)),  # what is no token never comes
    ],
)
def test_tokens_that_never_come(said, expected):
    more = {"forced_bos_token_id": 4, "guidance_scale": 1.0, "sequence_bias": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = from_mapping(
            DecodeConfig, read_generation({**said, **more}, MODELS["bart"]), "decode"
        )
    assert found.suppress == expected
    written = write_generation(found, MODELS["bart"])
    assert from_mapping(DecodeConfig, read_generation(written, MODELS["bart"]), "decode") == found


@pytest.mark.parametrize(
    "said",
    [
        {"temperature": "hot"},
        {"num_beams": 0},
        {"max_new_tokens": [3]},
        {"early_stopping": "soon"},
        {"max_length": "long"},
    ],
    ids=str,
)
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_values_that_make_no_sense_are_named_with_their_file(said, file):
    with saved(made("BartForConditionalGeneration", SMALL)) as folder:
        (folder / "generation_config.json").unlink()
        path = folder / file
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **said}))
        with pytest.raises(UserError, match=f"/{file}"):
            open_model(folder)


@given(
    kind=st.sampled_from(sorted(MODELS)),
    no_repeat=st.integers(0, 4),
    min_length=st.integers(0, 9),
    max_length=st.integers(0, 30),
    beams=st.integers(1, 4),
)
def test_both_ways(kind, no_repeat, min_length, max_length, beams):
    decode = DecodeConfig(beams, no_repeat=no_repeat, min_length=min_length, max_length=max_length)
    said = write_generation(decode, MODELS[kind])
    assert decoded(said, MODELS[kind]) == decode
    if not (no_repeat or min_length):
        assert not {"no_repeat_ngram_size", "min_new_tokens"} & {*said}
