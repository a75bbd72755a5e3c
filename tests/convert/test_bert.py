"""BERT's checkpoints, both ways, and what real ones are like."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qkv.convert.architectures.bert import BERT
from qkv.convert.huggingface.task_heads import read_labels
from qkv.convert.opening import open_model
from qkv.errors import UserError
from tests.convert.encoders import TINY, said
from tests.convert.harness import (
    assert_close,
    assert_round_trip,
    change,
    exported,
    loaded,
    made,
    read,
    saved,
)
from tests.convert.small import assert_reads_same, small

UNSAID = (
    "layer_norm_eps",
    "hidden_act",
    "type_vocab_size",
    "architectures",
    "max_position_embeddings",
    "tie_word_embeddings",
    "pad_token_id",
    "hidden_dropout_prob",
)


def test_the_oldest_names_of_norms():
    theirs = made("BertForPreTraining", TINY)

    def older(weights):
        spelt = {".weight": ".gamma", ".bias": ".beta"}
        return {
            f"{name.rpartition('.')[0]}{spelt['.' + name.rpartition('.')[2]]}"
            if "LayerNorm" in name
            else name: weight
            for name, weight in weights.items()
        }

    with saved(theirs) as folder:
        change(folder, older)
        assert_reads_same(theirs, folder, "pairs")


@pytest.mark.parametrize("head", ["masked", "none"])
def test_a_file_of_all_that_was_pre_trained_may_be_called_by_a_part_of_it(head):
    """Where the head for pairs is there it is kept, unless no head at all was asked for."""
    theirs = made("BertForPreTraining", TINY)
    with saved(theirs) as folder:
        change(folder, architectures=[BERT.classes[head]])
        model = open_model(folder).content["model"]
        assert model["pair_head"] == (head == "masked")
        if head == "masked":
            assert_reads_same(theirs, folder, "pairs")
        else:
            assert_reads_same(theirs.bert, folder)


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


@pytest.mark.parametrize("name", ["position_ids", "token_type_ids"])
def test_numbers_of_positions_and_segments_are_ignored(name):
    theirs = made("BertModel", TINY)
    with saved(theirs) as folder:
        change(folder, lambda w: {**w, f"embeddings.{name}": torch.arange(16)[None]})
        assert_reads_same(theirs, folder)


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


def sentences(folder: Path, normalize: bool, **modes: bool) -> None:
    """Put beside a model what makes it a sentence-transformers folder."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    parts = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 8, **modes})
    )


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("mode, pooling", [("mean_tokens", "mean"), ("cls_token", "first")])
def test_a_folder_of_sentence_transformers(normalize, mode, pooling):
    with saved(made("BertModel", TINY)) as folder:
        modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}
        sentences(folder, normalize, **{**modes, f"pooling_mode_{mode}": True})
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


@pytest.mark.parametrize("mode, pooling", [("mean", "mean"), ("cls", "first")])
def test_newer_folders_say_how_to_pool_in_a_word(mode, pooling):
    with saved(made("BertModel", TINY)) as folder:
        sentences(folder, False, pooling_mode=mode)
        assert open_model(folder).content["embed"]["pooling"] == pooling


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


@pytest.mark.parametrize(
    "name",
    [
        "gelu_python",
        "gelu_new",
        "gelu_fast",
        "gelu_pytorch_tanh",
        "gelu_python_tanh",
        "gelu_accurate",
        "swish",
    ],
)
def test_other_names_of_activations(name):
    theirs = made("BertModel", {**TINY, "hidden_act": name})
    with saved(theirs) as folder:
        assert_reads_same(theirs, folder)


def test_what_older_configs_do_not_say():
    theirs = made("BertModel", {**TINY, "max_position_embeddings": 512})
    with saved(theirs) as folder:
        change(folder, drop=UNSAID)
        assert_reads_same(theirs, folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_the_size_stay_so(dtype):
    with saved(made("BertForMaskedLM", TINY).to(dtype)) as folder:
        source, ours = read(folder)
        assert {weight.dtype for weight in ours.parameters()} == {torch.float32}
        assert_round_trip(source)
        with exported(source) as again:
            assert {one.dtype for one in load_file(again / "model.safetensors").values()} == {dtype}
            assert loaded(again, "BertForMaskedLM").dtype == dtype
