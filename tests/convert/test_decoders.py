"""What is particular in files of decoders: angles, windows, ends, scales and tokenizers."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers, processors
from transformers import AutoTokenizer, GemmaTokenizer, PreTrainedTokenizerFast

from qkv.config import DecodeConfig, preset
from qkv.convert.architectures.llama import MISTRAL
from qkv.convert.model_folder import StoredModel
from qkv.convert.opening import open_model
from qkv.decode import complete
from qkv.model import Decoder, build_model
from qkv.tasks import load
from tests.convert.harness import (
    assert_close,
    assert_round_trip,
    exported,
    loaded,
    made,
    read,
    saved,
    word_level,
)
from tests.convert.small import LLAMA as SMALL
from tests.convert.small import VARIANTS, small
from tests.parity.pairs import both_logits

left_out = pytest.mark.filterwarnings("ignore:Left out of config.json")  # of long contexts


@torch.no_grad()
def test_mistral_without_a_window_is_a_llama():
    theirs = made("MistralForCausalLM", {**SMALL, "sliding_window": None})
    with saved(theirs) as folder:
        source, ours = read(folder)
        with exported(source) as again:
            back = loaded(again, "LlamaForCausalLM")
    assert_close(*both_logits((back, ours), [9, 4]))


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


@torch.no_grad()
def test_dynamic_scaling_sets_in_where_the_context_ends():
    """Up to there it changes nothing, and longer texts are not read."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 300.0}
    theirs = made("LlamaForCausalLM", {**SMALL, "rope_parameters": rope})
    with saved(theirs) as folder, pytest.warns(UserWarning, match="more than 32 tokens"):
        source, ours = read(folder)
        assert_round_trip(source)
    assert_close(*both_logits((theirs, ours), [ours.config.max_length, 4]))


def test_groups_that_are_null_are_as_many_as_heads():
    found = MISTRAL.read_config({**SMALL, "num_key_value_heads": None}, (), "causal")
    assert found["n_kv_heads"] == 0


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


@left_out
@torch.no_grad()
def test_longer_contexts_have_the_long_factors_of_longrope():
    """Theirs change angles with a text's length; ours have one context, which may be longer."""
    name, differences = VARIANTS["phi-3, longrope"]
    theirs = small(name, **differences)
    with saved(theirs) as folder:
        _, ours = read(folder)
    assert ours.config.max_length == 32
    longer = build_model(dataclasses.replace(ours.config, max_length=64)).eval()
    longer.load_state_dict(ours.state_dict())
    assert_close(*both_logits((theirs, longer), [40, 37]))


@torch.no_grad()
def test_gemma_rounds_the_scale_of_its_embeddings():
    """√24 is 4.90625 in bfloat16, and 4.8989795 in float32."""
    theirs = small("GemmaForCausalLM", hidden_size=24)
    with saved(theirs) as folder:
        _, ours = read(folder)
    tokens = torch.arange(30)
    for dtype in (torch.bfloat16, torch.float32):
        expected = theirs.to(dtype).model.embed_tokens(tokens)
        assert torch.equal(ours.to(dtype).embedding(tokens), expected)


SENTENCES = ["a cat sat", "  two  spaces\nand a line ", "我爱你 é"]


def assert_same_tokens(folder: Path, name: str, differences: dict[str, Any]) -> None:
    """A model's folder with a tokenizer in it gives texts the ids that transformers gives them."""
    words = AutoTokenizer.from_pretrained(folder)
    small(name, vocab_size=len(words), **differences).save_pretrained(folder)
    ours = load(folder, "cpu")
    for text in SENTENCES:
        assert ours.encode(text) == words(text).input_ids
        assert ours.tokenizer.decode(ours.tokenizer.encode(text)) == text


def test_gemma_tokenizer(tmp_path):
    """Pieces with bytes for what has none; spaces stay as they are, and BOS comes first."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    letters = ["▁", "a", "c", "t", "s", "ca", "▁a", "cat", "▁cat"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = [("c", "a"), ("▁", "a"), ("ca", "t"), ("▁", "cat")]
    GemmaTokenizer({piece: id for id, piece in enumerate(pieces)}, merges).save_pretrained(tmp_path)
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    assert_same_tokens(tmp_path, "Gemma3ForCausalLM", ids)


def test_opt_tokenizer(tmp_path):
    """GPT-2's files without a tokenizer.json, and settings that put BOS first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "<pad>", "</s>", *alphabet, "at"]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na t\n")
    said = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    kind = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**said, **kind}))
    ids = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2}
    assert_same_tokens(tmp_path, "OPTForCausalLM", ids)
