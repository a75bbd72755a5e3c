"""A matrix that is tied may be stored twice, or under either name; but then it is one."""

import pytest
import torch
import transformers

from qkv.errors import UserError
from tests.convert.harness import change, read, saved
from tests.convert.small import assert_reads_same, small

BART, BART_TABLE = "BartForConditionalGeneration", "model.shared.weight"
BERT, BERT_TABLE = "BertForMaskedLM", "bert.embeddings.word_embeddings.weight"
BERT_COPY, BIAS = "cls.predictions.decoder.weight", "cls.predictions.bias"
GPT2, GPT2_TABLE = "GPT2LMHeadModel", "transformer.wte.weight"
LLAMA, LLAMA_TABLE = "LlamaForCausalLM", "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"
SIDES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
HEADS = {BERT: "masked"}
# Class, copies by the name of what they copy, what is not stored, and how ours is tied then
STORED = [
    (BART, {BART_TABLE: [*SIDES, OUTPUT]}, [BART_TABLE], "all"),
    (BERT, {BERT_TABLE: [BERT_COPY]}, [], "output"),
    (BERT, {BIAS: ["cls.predictions.decoder.bias"]}, [], "output"),
    (BERT, {BERT_TABLE: [BERT_COPY], BIAS: ["cls.predictions.decoder.bias"]}, [], "output"),
    (BERT, {BIAS: ["cls.predictions.decoder.bias"]}, [BIAS], "output"),
    (GPT2, {GPT2_TABLE: [OUTPUT]}, [], "output"),
    (GPT2, {GPT2_TABLE: [OUTPUT]}, [GPT2_TABLE], "output"),
    ("T5ForConditionalGeneration", {"shared.weight": [OUTPUT]}, ["shared.weight"], "all"),
]


@pytest.mark.parametrize(("class_name", "copies", "lost", "tie"), STORED)
def test_copies_are_read_past(class_name, copies, lost, tie):
    def stored(weights):
        copied = {name: weights[table].clone() for table, names in copies.items() for name in names}
        return {name: one for name, one in weights.items() if name not in lost} | copied

    theirs = small(class_name)
    with saved(theirs) as folder:
        change(folder, stored)
        _, ours = assert_reads_same(theirs, folder, HEADS.get(class_name, "none"))
    assert ours.config.tie == tie


@pytest.mark.parametrize(
    ("class_name", "table", "copy"),
    [
        (BART, BART_TABLE, OUTPUT),
        (BART, BART_TABLE, SIDES[1]),
        (BERT, BERT_TABLE, BERT_COPY),
        (LLAMA, LLAMA_TABLE, OUTPUT),
    ],
)
def test_a_copy_that_differs_is_refused_unless_the_config_says_so(class_name, table, copy):
    """transformers sets it free, whatever the config says."""
    with saved(small(class_name, tie_word_embeddings=True)) as folder:
        change(folder, lambda weights: {**weights, copy: weights[table] + 1})
        with pytest.raises(UserError, match=f"{copy} and {table} differ"):
            read(folder)
        if copy in SIDES:
            return
        theirs = getattr(transformers, class_name).from_pretrained(folder).eval()
        change(folder, tie_word_embeddings=False)
        assert_reads_same(theirs, folder, HEADS.get(class_name, "none"))


@pytest.mark.parametrize("lost", [LLAMA_TABLE, OUTPUT])
def test_of_two_matrices_that_are_not_tied_none_stands_for_the_other(lost):
    with saved(small(LLAMA, tie_word_embeddings=False)) as folder:
        change(folder, lambda weights: {n: w for n, w in weights.items() if n != lost})
        with pytest.raises(UserError, match=f"missing {lost}"):
            read(folder)


@pytest.mark.parametrize(
    ("class_name", "prefix"),
    [("OpenAIGPTLMHeadModel", "transformer."), (GPT2, "transformer."), (LLAMA, "model.")],
)
def test_a_body_alone_is_read_where_it_is_tied(class_name, prefix):
    def alone(weights):
        return {name.removeprefix(prefix): w for name, w in weights.items() if name != OUTPUT}

    body = class_name.replace("LMHeadModel", "Model").replace("ForCausalLM", "Model")
    for tied in (True, False):
        theirs = small(class_name, tie_word_embeddings=tied)
        with saved(theirs) as folder:
            change(folder, alone, architectures=[body])
            if tied:
                assert_reads_same(theirs, folder)
            else:
                with pytest.raises(UserError, match=r"missing lm_head\.weight"):
                    read(folder)


@pytest.mark.parametrize("class_name", ["OpenAIGPTLMHeadModel", GPT2])
def test_old_files_have_no_prefix_but_what_is_not_learnt(class_name):
    """As the published files are."""

    def old(weights):
        masks = {
            f"h.{layer}.attn.{kind}": torch.ones(1, 1, 16, 16)
            for layer in range(2)
            for kind in ("bias", "masked_bias")
        }
        masks["position_ids"] = torch.arange(16)
        return {name.removeprefix("transformer."): w for name, w in weights.items()} | masks

    theirs = small(class_name)
    with saved(theirs) as folder:
        change(folder, old)
        assert_reads_same(theirs, folder)
