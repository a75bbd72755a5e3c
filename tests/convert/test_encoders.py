"""What is particular in files of encoders: poolers, labels, padding, positions, and pooling."""

import json
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from qkv.config import preset
from qkv.convert.architectures.bert import BUCKETS, FARTHEST, ROBERTA
from qkv.convert.huggingface.task_heads import read_labels
from qkv.convert.model_folder import model_content, open_model_folder, save_model_folder
from qkv.convert.opening import open_model
from qkv.data import Specials, frame
from qkv.errors import UserError
from qkv.model import Layout, build_model
from qkv.model.positions.relative import buckets
from qkv.tasks import load
from tests.convert.both import said
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
from tests.convert.small import TINY, assert_reads_same, small


@torch.no_grad()
def test_a_pooler_that_no_head_looks_at_is_kept():
    """transformers reports it as unexpected, as it does of the released files."""
    theirs = made("BertForPreTraining", TINY)
    with saved(theirs) as folder:
        change(
            folder,
            lambda weights: {n: w for n, w in weights.items() if "seq_relationship" not in n},
            architectures=["BertForMaskedLM"],
        )
        source, ours = read(folder)
        assert (ours.config.pooler, ours.config.pair_head) == ("tanh", False)
        assert_round_trip(source)


@pytest.mark.parametrize("class_name", ["BertModel", "MPNetModel"])
@torch.no_grad()
def test_a_body_without_a_pooler(class_name):
    theirs = small(class_name)
    with saved(theirs) as folder:
        change(folder, lambda w: {n: one for n, one in w.items() if "pooler" not in n})
        source, ours = read(folder)
        assert ours.config.pooler == "none"
        assert_reads_same(theirs, folder)
        with exported(source) as again:
            assert not loaded(again, class_name).pooler.dense.weight.any()


@pytest.mark.parametrize(
    "given, kind",
    [
        ({"num_labels": 1}, "number"),
        ({"num_labels": 3}, "class"),
        ({"num_labels": 1, "problem_type": "multi_label_classification"}, "classes"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, "classes"),
        ({"num_labels": 3, "problem_type": "single_label_classification"}, "class"),
    ],
    ids=str,
)
def test_what_a_head_of_labels_says(given, kind):
    with saved(made("BertForSequenceClassification", {**TINY, **given})) as folder:
        source = open_model(folder)
        assert source.content["classify"]["kind"] == kind
        assert len(source.content["classify"]["labels"]) == given["num_labels"]
        assert_round_trip(source)


def test_the_only_label_of_a_head_is_a_class_when_it_is_back():
    """They refuse a config that says so in their words."""
    with saved(made("BertForSequenceClassification", {**TINY, "num_labels": 1})) as folder:
        change(folder, problem_type="single_label_classification")
        source = open_model(folder)
        assert source.content["classify"]["kind"] == "class"
        with exported(source) as again:
            assert loaded(again, "BertForSequenceClassification").config.num_labels == 1
        assert_round_trip(source)


def test_labels_are_in_the_order_of_their_numbers():
    names = {str(number): f"label {number}" for number in reversed(range(12))}
    assert read_labels({"id2label": names}) == tuple(f"label {number}" for number in range(12))
    assert read_labels({}) == ("LABEL_0", "LABEL_1")
    assert read_labels({"num_labels": 3})[-1] == "LABEL_2"


def test_labels_of_words_tell_their_scheme():
    labels = {"0": "O", "1": "B-PER", "2": "I-PER"}
    with saved(made("BertForTokenClassification", {**TINY, "num_labels": 3})) as folder:
        change(folder, id2label=labels)
        section = open_model(folder).content["tag"]
    assert section == {"labels": ("O", "B-PER", "I-PER"), "scheme": "iob2"}


# Folders of sentence-transformers


def sentences(folder: Path, normalize: bool, **modes: object) -> None:
    """Put beside a model what makes it a sentence-transformers folder."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    parts = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 8, **modes})
    )


FLAGS = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "modes, pooling",
    [
        ({**FLAGS, "pooling_mode_mean_tokens": True}, "mean"),
        ({**FLAGS, "pooling_mode_cls_token": True}, "first"),
        ({"pooling_mode": "mean"}, "mean"),  # as newer folders say it
        ({"pooling_mode": "cls"}, "first"),
    ],
    ids=str,
)
def test_a_folder_of_sentence_transformers(normalize, modes, pooling):
    with saved(made("BertModel", TINY)) as folder:
        sentences(folder, normalize, **modes)
        source = open_model(folder)
        assert source.content["embed"] == {"pooling": pooling, "normalize": normalize}
        assert_round_trip(source)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM", "BertForPreTraining"])
@pytest.mark.parametrize("headless", [False, True])
@torch.no_grad()
def test_of_a_model_that_guesses_sentence_transformers_reads_the_body(name, headless):
    theirs = made(name, {**TINY, "pad_token_id": 0})
    with saved(theirs) as folder:
        if headless:
            change(folder, lambda w: {n: one for n, one in w.items() if n.startswith(("be", "ro"))})
        sentences(folder, True, pooling_mode_mean_tokens=True)
        source, ours = read(folder)
        assert source.content["task"] == "embed"
        assert source.content["embed"] == {"pooling": "mean", "normalize": True}
        for mine, other in said("none", ours, theirs.base_model, [7, 12, 1], 0):
            assert_close(mine, other)
        assert_round_trip(source)


@pytest.mark.parametrize(
    "modes, message",
    [
        ({"pooling_mode": "median"}, "asks for median, but"),
        ({"pooling_mode": ["cls", "mean"]}, "asks for cls, mean, but"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "asks for mean_sqrt_len_tokens, but"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "for cls, mean, but"),
        ({"pooling_mode_mean_tokens": False}, "asks for no pooling"),
    ],
)
def test_another_way_to_pool_is_refused(modes, message):
    with saved(made("BertModel", TINY)) as folder:
        sentences(folder, True, **modes)
        with pytest.raises(UserError, match=message):
            open_model(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_the_size_stay_so(dtype):
    with saved(made("BertForMaskedLM", TINY).to(dtype)) as folder:
        source, ours = read(folder)
        assert {weight.dtype for weight in ours.parameters()} == {torch.float32}
        assert_round_trip(source)
        with exported(source) as again:
            assert {one.dtype for one in load_file(again / "model.safetensors").values()} == {dtype}
            assert loaded(again, "BertForMaskedLM").dtype == dtype


@torch.no_grad()
def test_of_a_discriminator_the_body_is_read():
    theirs = small("ElectraForPreTraining")
    sentence = "head of ElectraForPreTraining, which tells replaced tokens from others, is left out"
    with saved(theirs) as folder, pytest.warns(UserWarning, match=sentence):
        source, ours = read(folder)
    assert source.content["task"] == "embed"
    for mine, other in said("none", ours, theirs.electra, [7, 12, 1], 0):
        assert_close(mine, other)
    with saved(theirs) as folder, pytest.warns(UserWarning, match=sentence):
        assert_round_trip(read(folder)[0])


def test_a_body_that_has_no_head_is_read_without_a_word(recwarn: pytest.WarningsRecorder):
    with saved(small("ElectraModel")) as folder:
        read(folder)
    assert not [w for w in recwarn.list if "is left out" in str(w.message)]


def test_the_buckets_of_long_texts():
    apart = torch.arange(1, 600)
    theirs = MPNetEncoder.relative_position_bucket(-apart)
    assert torch.equal(buckets(apart, BUCKETS // 2, FARTHEST), theirs)


def test_a_bias_of_keys_is_left_out_of_encoders_only():
    with pytest.raises(UserError, match="key_bias = false is for encoders"):
        preset("gpt2", key_bias=False)


# RoBERTa's padding and segments


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


def written(folder, **differences):
    """A model of ours that a folder holds."""
    sizes = {"d_model": 8, "n_heads": 2, "n_encoder_layers": 1, "d_ff": 9, "vocab_size": 20}
    ids = {"pad_id": 1, "bos_id": 0, "eos_id": 2}
    model = build_model(preset("roberta-mini", **{**sizes, **ids, **differences})).eval()
    draw_weights(model, 0)
    embed = {"pooling": "mean", "normalize": True}
    save_model_folder(folder, model_content("embed", model.config, embed=embed), model)
    return open_model_folder(folder), model


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
