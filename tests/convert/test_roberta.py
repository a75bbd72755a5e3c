"""RoBERTa's checkpoints, both ways, and those of the models that are alike."""

import pytest
import tokenizers
import torch
import transformers

from qkv.config import preset
from qkv.convert.architectures.bert import ROBERTA
from qkv.convert.huggingface.fitting import fitting
from qkv.convert.model_folder import model_content, open_model_folder, save_model_folder
from qkv.convert.opening import open_model
from qkv.data import Specials, frame
from qkv.errors import UserError
from qkv.model import Layout, build_model
from qkv.tasks import load
from tests.convert.encoders import said
from tests.convert.harness import (
    assert_close,
    assert_round_trip,
    change,
    draw_weights,
    exported,
    loaded,
    made,
    read,
    saved,
    word_level,
)
from tests.convert.small import ROBERTA as CONFIG
from tests.convert.small import assert_reads_same


def test_padding_is_1_where_nothing_is_said():
    with saved(made("RobertaModel", CONFIG)) as folder:
        change(folder, drop=["pad_token_id"])
        source, _ = read(folder)
    assert source.content["model"]["pad_id"] == 1


def put_tokenizer(folder, template, **settings):
    """A tokenizer of ten words, in whose frame texts stand."""
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "c", "d", "[PAD]"]
    backend = word_level(words, "<unk>")
    backend.post_processor = template
    named = {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **{**named, **settings})
    theirs.save_pretrained(folder)


ONCE = tokenizers.processors.BertProcessing(("</s>", 2), ("<s>", 0))
TWICE = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))


@pytest.mark.parametrize("name", ["Bert", "Roberta"])
@pytest.mark.parametrize("template, separators", [(ONCE, 1), (TWICE, 2)])
@torch.no_grad()
def test_a_pair_is_parted_as_its_tokenizer_does(name, template, separators):
    theirs = made(f"{name}ForSequenceClassification", {**CONFIG, "num_labels": 3})
    with saved(theirs) as folder:
        put_tokenizer(folder, template)
        words = transformers.AutoTokenizer.from_pretrained(folder)
        ours = load(folder, "cpu")
        assert ours.model.config.pair_separators == separators
        ids = torch.tensor([words("a b", "c d a").input_ids])
        [logits] = ours.logits([("a b", "c d a")])
        assert_close(logits.softmax(-1), theirs(ids).logits[0].softmax(-1))
        with exported(open_model(folder)) as again:
            back = open_model(again).content["model"]
            assert back["pair_separators"] == separators


@torch.no_grad()
def test_positions_begin_after_the_configs_padding_whichever_the_tokenizers_is():
    theirs = made("RobertaModel", CONFIG)
    with saved(theirs) as folder:
        put_tokenizer(folder, TWICE, pad_token="[PAD]")
        source, ours = assert_reads_same(theirs, folder)
    assert source.read_tokenizers().target.pad_id == 9
    assert ours.config.pad_id == 1


@pytest.mark.parametrize("head", ["none", "sequence", "answer"])
@torch.no_grad()
def test_of_several_kinds_of_segments_only_the_first_is_given(head):
    """As a config of theirs has it by default, and their tokenizers never give another."""
    theirs = made(ROBERTA.classes[head], {**CONFIG, "type_vocab_size": 2})
    with saved(theirs) as folder:
        source, ours = read(folder)
        assert_round_trip(source)
        with exported(source) as again:
            loaded(again, ROBERTA.classes[head])
    framed = frame([5, 6, 7], [8, 9], Specials(1, 0, 2), ours.config.pair_separators)
    tokens = torch.tensor([framed.tokens])
    found = ours(tokens, Layout(), torch.tensor([framed.segments]))
    other = theirs(input_ids=tokens)
    if head == "answer":
        expected = torch.stack([other.start_logits, other.end_logits], dim=-1)
    else:
        expected = other.last_hidden_state if head == "none" else other.logits
    assert_close(found, expected)


def our_config(**differences):
    small = {"d_model": 8, "n_heads": 2, "n_encoder_layers": 1, "d_ff": 9, "vocab_size": 20}
    ids = {"pad_id": 1, "bos_id": 0, "eos_id": 2}
    return preset("roberta-mini", **{**small, **ids, **differences})


@pytest.mark.parametrize(
    "name, differences",
    [
        ("RoBERTa", {}),
        ("RoBERTa", {"n_segments": 1}),
        ("RoBERTa", {"head": "masked"}),
        ("BERT", {"pair_separators": 1}),
        ("RoBERTa", {"n_segments": 2}),
        ("BERT", {"n_segments": 2, "pair_separators": 1}),
        ("BERT", {"head": "masked", "activation": "relu"}),
        ("BERT", {"pad_id": 2}),  # where the end of a text would be padding
        ("RoBERTa", {"tie": "all"}),
        ("BERT", {"pair_separators": 1, "n_segments": 1}),
    ],
)
def test_the_architecture_that_says_most_of_a_config(name, differences):
    config = our_config(**differences)
    assert fitting(config, "embed")[0].name == name


def test_why_no_architecture_fits_is_one_sentence():
    config = our_config(pad_id=2, norm_position="pre")
    with pytest.raises(UserError, match=r"has no words for it: RoBERTa .* also the padding\.$"):
        fitting(config, "embed")


@pytest.mark.parametrize("separators, kind", [(1, "Bert"), (2, "Roberta")])
@pytest.mark.parametrize("pooler", ["none", "tanh"])
@torch.no_grad()
def test_a_model_of_ours_without_segments_gets_a_row_of_zeros(separators, kind, pooler, tmp_path):
    source, ours = written(tmp_path, n_segments=0, pair_separators=separators, pooler=pooler)
    with exported(source) as folder:
        theirs = loaded(folder, f"{kind}Model")
        for mine, other in said("none", ours, theirs, [5, 9], 0):
            assert_close(mine, other)
        assert not theirs.embeddings.token_type_embeddings.weight.any()
    assert_round_trip(source)


def written(folder, **differences):
    """A model of ours that a folder holds."""
    model = build_model(our_config(**differences)).eval()
    draw_weights(model, 0)
    embed = {"pooling": "mean", "normalize": True}
    save_model_folder(folder, model_content("embed", model.config, embed=embed), model)
    return open_model_folder(folder), model
