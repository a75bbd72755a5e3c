"""BART's checkpoints, both ways."""

import json

import pytest
import torch

from qkv.errors import UserError
from tests.convert.harness import assert_round_trip, change, exported, loaded, made, read, saved
from tests.convert.seq2seq import same_logits
from tests.convert.small import BART as SMALL

NAME = "BartForConditionalGeneration"


@torch.no_grad()
def test_a_body_alone_has_all_weights():
    """So BART itself was published."""
    theirs = made("BartModel", SMALL)
    with saved(theirs) as folder:
        source, ours = read(folder)
        assert not ours.config.output_bias
        with exported(source) as again:
            back = loaded(again, NAME)
            same_logits(ours, back, [5, 12])
            assert torch.equal(back.model.shared.weight, theirs.shared.weight)
            assert not back.final_logits_bias.any()
        assert_round_trip(source)


@torch.no_grad()
def test_an_output_apart_from_embeddings_that_are_one():
    """As transformers 4 wrote it: one matrix for both sides, and one for the output."""
    theirs = made(NAME, {**SMALL, "tie_word_embeddings": False})
    theirs.model.encoder.embed_tokens.weight = theirs.model.shared.weight
    theirs.model.decoder.embed_tokens.weight = theirs.model.shared.weight
    with saved(theirs) as folder:
        source, ours = read(folder)
        assert ours.config.tie == "inputs"
        same_logits(ours, theirs, [5, 12])
        with exported(source) as again:
            same_logits(ours, loaded(again, NAME), [5, 12])
        assert_round_trip(source)


def test_the_start_is_before_each_text_and_no_other_token_may_be_forced():
    theirs = made(NAME, SMALL)
    theirs.generation_config.forced_bos_token_id = 0
    with saved(theirs) as folder:
        source, ours = read(folder)
        assert (ours.config.start_id, ours.config.bos_id, ours.config.eos_id) == (0, 2, 2)
        with exported(source) as again:
            said = json.loads((again / "generation_config.json").read_text())
            assert (said["forced_bos_token_id"], said["decoder_start_token_id"]) == (0, 2)
        change(folder, forced_bos_token_id=7)
        with pytest.raises(UserError, match="forced_bos_token_id is 7"):
            read(folder)
