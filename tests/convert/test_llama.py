"""Llama's and Mistral's checkpoints, both ways."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from qkv.config import DecodeConfig, preset
from qkv.convert.architectures.llama import LLAMA, MISTRAL
from qkv.convert.huggingface.fitting import misfits
from qkv.convert.model_folder import StoredModel
from qkv.convert.opening import open_model
from qkv.decode import complete
from qkv.model import Decoder
from qkv.tasks import load
from tests.convert.harness import (
    assert_close,
    assert_round_trip,
    change,
    exported,
    loaded,
    made,
    read,
    saved,
    word_level,
)
from tests.convert.small import ANGLES, assert_reads_same, small
from tests.convert.small import LLAMA as SMALL
from tests.parity.pairs import both_logits

# With so small bases, no pair turns so slowly that it stands still over a test's few tokens.
SCALINGS = [{"rope_type": "default"}, *ANGLES.values()]


@torch.no_grad()
def test_mistral_without_a_window_is_a_llama():
    theirs = made("MistralForCausalLM", {**SMALL, "sliding_window": None})
    with saved(theirs) as folder:
        source, ours = read(folder)
        with exported(source) as again:
            back = loaded(again, "LlamaForCausalLM")
    assert_close(*both_logits((back, ours), [9, 4]))
    # But Llama's heads must divide its width.
    odd = replace(ours.config, d_model=14, d_key=4)
    assert "not a multiple" in misfits(LLAMA, odd, "causal")[0]
    assert not misfits(MISTRAL, odd, "causal")


@torch.no_grad()
def test_our_ntk_scaling_is_a_larger_base_to_them():
    """And ours again when it comes back."""
    config = preset(
        "llama-tiny",
        vocab_size=30,
        d_model=16,
        n_heads=2,
        n_decoder_layers=2,
        d_ff=20,
        n_kv_heads=0,
        max_length=32,
        rotary_base=100.0,
        rotary_scaling="ntk",
        rotary_factor=3.0,
        tie="all",
        pad_id=0,
        bos_id=1,
        eos_id=2,
    )
    ours = Decoder(config).eval()
    torch.nn.init.normal_(ours.embedding.table.weight)
    content = {"task": "generate", "model": config.to_dict(), "bos": True, "chat": None}
    weights = dict(ours.named_parameters())
    source = StoredModel(Path("nowhere"), content, lambda: None, lambda: weights)
    with exported(source) as folder:
        back = loaded(folder, "LlamaForCausalLM")
        again = open_model(folder)
    assert_close(*both_logits((back, ours), [9, 4]))
    assert again.content["model"] == content["model"]
    assert again.content["bos"] is True


@pytest.mark.parametrize("rope", SCALINGS, ids=str)
def test_older_configs_say_the_angles_in_two_places(rope):
    """And call the kind of scaling its type, which may stand there in vain."""
    for name in ("type", "rope_type"):
        old = {name: rope["rope_type"], **{key: rope[key] for key in rope if key != "rope_type"}}
        scaling = old if rope["rope_type"] != "default" else None
        older = {"rope_theta": 300.0, "rope_scaling": scaling}
        theirs = small("LlamaForCausalLM", rope_parameters={**rope, "rope_theta": 300.0})
        with saved(theirs) as folder:
            change(folder, drop=["rope_parameters", "head_dim"], **older)
            _, ours = assert_reads_same(theirs, folder)
            assert ours.config.rotary_base == 300.0


@torch.no_grad()
def test_dynamic_scaling_sets_in_where_the_context_ends():
    """Up to there it changes nothing, and longer texts are not read."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 300.0}
    theirs = made("LlamaForCausalLM", {**SMALL, "rope_parameters": rope})
    with saved(theirs) as folder, pytest.warns(UserWarning, match="more than 32 tokens"):
        source, ours = read(folder)
        assert_round_trip(source)
    assert_close(*both_logits((theirs, ours), [ours.config.max_length, 4]))


def test_files_of_other_times():
    """Without groups; with angles among the weights; with an output that is the embedding."""

    def old(tensors):
        rates = {
            f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(2)
            for layer in range(2)
        }
        copy = tensors["model.embed_tokens.weight"].clone()
        return {**tensors, **rates, "lm_head.weight": copy}

    theirs = small("LlamaForCausalLM", num_key_value_heads=4, tie_word_embeddings=True)
    with saved(theirs) as folder:
        unsaid = ["num_key_value_heads", "attention_bias", "mlp_bias"]
        change(folder, old, unsaid, pad_token_id=-1)
        _, ours = assert_reads_same(theirs, folder)
        assert ours.config.pad_id == ours.config.eos_id  # as where none is said
        assert ours.config.tie == "output"


@torch.no_grad()
def test_layers_that_all_see_everything_have_no_window():
    """Whatever its width is said to be: transformers takes such a Mistral for a Ministral."""
    with saved(made("MistralForCausalLM", {**SMALL, "sliding_window": 3})) as folder:
        change(folder, layer_types=["full_attention"] * 2)
        theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
        assert assert_reads_same(theirs, folder)[1].config.window == 0


def test_groups_that_are_null_are_as_many_as_heads():
    found = MISTRAL.read_config({**SMALL, "num_key_value_heads": None}, (), "causal")
    assert found["n_kv_heads"] == 0


def test_window_in_every_other_layer_has_no_word():
    config = preset("llama-tiny", window=3, window_layers="alternate")
    assert misfits(MISTRAL, config, "causal") == ["window_layers = 'alternate'"]
    assert misfits(LLAMA, config, "causal")[0] == "window = 3"


def test_generation_defaults():
    """As generation_config.json says; of several ends the first, where no tokenizer tells."""
    theirs = made("LlamaForCausalLM", {**SMALL, "bos_token_id": 1, "eos_token_id": [2, 7]})
    theirs.generation_config.update(
        eos_token_id=[2, 7], do_sample=True, temperature=0.6, top_p=0.9, max_new_tokens=40
    )
    with saved(theirs) as folder:
        source, ours = read(folder)
        assert source.content["decode"] == {
            "beams": 1,
            "sample": True,
            "temperature": 0.6,
            "top_k": 50,
            "top_p": 0.9,
            "max_length": 40,
            "suppress": [],
        }
        assert (ours.config.eos_id, ours.config.pad_id) == (2, 2)
        assert_round_trip(source)


def any_tokenizer(begins: bool) -> PreTrainedTokenizerFast:
    backend = word_level(["<|begin_of_text|>", "<|end_of_text|>", *"abc"], "c")
    if begins:
        backend.post_processor = processors.TemplateProcessing(
            "<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"
    )


@pytest.mark.parametrize("ends", [[4, 1], [1, 4], 1])
def test_of_several_ends_the_tokenizers_own_is_taken(ends, tmp_path):
    """Llama 3 that chats has three; what it says, in a chat or not, is its tokenizer's."""
    config = {**SMALL, "bos_token_id": 0, "eos_token_id": ends}
    made("LlamaForCausalLM", config).save_pretrained(tmp_path)
    any_tokenizer(begins=True).save_pretrained(tmp_path)
    assert open_model(tmp_path).content["model"]["eos_id"] == 1


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("said", [None, False, True])
def test_a_text_begins_with_bos_where_theirs_does(begins, said, tmp_path):
    """Which tokenizer.json says, as Llama 3's does, whatever tokenizer_config.json may."""
    made("LlamaForCausalLM", {**SMALL, "bos_token_id": 0, "eos_token_id": 1}).save_pretrained(
        tmp_path
    )
    any_tokenizer(begins).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("add_bos_token", None)
    path.write_text(json.dumps(settings if said is None else {**settings, "add_bos_token": said}))
    ids = AutoTokenizer.from_pretrained(tmp_path)("a b")["input_ids"]
    source = open_model(tmp_path)
    assert source.content["bos"] is (ids[0] == 0)
    assert source.content["bos"] is begins


@torch.no_grad()
def test_any_of_several_ends_ends_a_text():
    """Llama 3's texts and turns have ends of their own; a model that answers says both."""
    ends = list(range(2, 20))
    theirs = made("LlamaForCausalLM", {**SMALL, "bos_token_id": 1, "eos_token_id": ends}, seed=4)
    with saved(theirs) as folder:
        source, ours = read(folder)
        assert ours.config.ends == tuple(ends)
        assert_round_trip(source)
    lengths = set()
    for start in range(20, SMALL["vocab_size"]):
        [[one]] = complete(ours, [[start, 21]], DecodeConfig(beams=1, max_length=8))
        output = theirs.generate(
            torch.tensor([[start, 21]]),
            attention_mask=torch.ones(1, 2, dtype=torch.int64),
            max_new_tokens=8,
            do_sample=False,
            pad_token_id=0,
        )[0, 2:].tolist()
        assert one.tokens == [token for token in output if token not in ends]
        assert one.finished == (output[-1] in ends)
        lengths.add(len(one.tokens))
    assert len(lengths) > 2  # or nothing would have been tried


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("opening", ["", "{{ bos_token }}"])
def test_texts_and_talks_begin_as_theirs_do(tmp_path, begins, opening):
    """The tokenizer tells whether BOS stands before a text, and the template before a talk."""
    config = {**SMALL, "vocab_size": 5, "bos_token_id": 0, "eos_token_id": 1}
    made("LlamaForCausalLM", config).save_pretrained(tmp_path)
    tokenizer = any_tokenizer(begins)
    turn = "{% for m in messages %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endfor %}"
    tokenizer.chat_template = opening + turn
    tokenizer.save_pretrained(tmp_path)
    source = open_model(tmp_path)
    speaker = load(source, "cpu")
    talk = [{"role": "user", "content": "a b"}]
    expected = tokenizer.apply_chat_template(talk, return_dict=False)
    assert speaker.encode("a b") == tokenizer("a b").input_ids
    prompt = speaker.prompting.chat.prompt(talk, speaker.tokenizer, speaker.prompting.talk_bos)
    assert prompt[: len(expected)] == expected
    assert_round_trip(source)
