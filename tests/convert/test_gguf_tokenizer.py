"""The tokenizers in GGUF files, beside transformers' reading of them and SentencePiece itself."""

import io
import json
from functools import cache

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

from qkv.convert.gguf.gguf_tokenizer import adds_bos, read_tokenizer
from qkv.convert.huggingface.exporting import write_huggingface
from qkv.convert.opening import open_model
from qkv.errors import UserError
from qkv.tasks import load
from tests.convert.gguf_files import write_llama
from tests.convert.harness import made, older_peer
from tests.convert.small import LLAMA

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "don't I'LL we've 's 'S",
    "x = 12345 + 6.78",
    "  two spaces\n\n\tand a tab ",
    "我爱你 👍 naïve CamelCaseWords",
    "a/b//c\r\n\r\n",
    "  5 and   7",
]
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORDS = st.text(
    st.sampled_from("abcdtheisTHE'sl  \n\t\r0123459.,/!?-_é中Ж👍ñ"), max_size=30
) | st.text(max_size=20)
SMALL = {**LLAMA, "vocab_size": 420, "max_position_embeddings": 64}
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]


@cache
def trained() -> tuple[list[str], list[str]]:
    """Tokens and merges of a small byte-level vocabulary, learnt across any boundaries."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r".{9}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        show_progress=False,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return [*tokens, "<own>"], [" ".join(merge) for merge in model["merges"]]


def byte_level(cut: str | None, **more) -> dict:
    tokens, merges = trained()
    types = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL) - 1) + [4]
    return {
        "tokenizer.ggml.model": "gpt2",
        **({"tokenizer.ggml.pre": cut} if cut else {}),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        **more,
    }


@cache
def theirs_and_ours(cut: str, folder):
    path = folder / f"{cut}.gguf"
    values = byte_level(cut)
    write_llama(path, made("LlamaForCausalLM", SMALL), values=values)
    return AutoTokenizer.from_pretrained(folder, gguf_file=path.name), read_tokenizer(
        values.get, path
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizers")


CUTS = [
    "gpt-2",
    *(pytest.param(cut, marks=older_peer) for cut in ("llama-bpe", "qwen2", "tekken", "gpt-4o")),
]


@pytest.mark.parametrize("cut", CUTS)
@settings(max_examples=60)
@given(text=WORDS | st.sampled_from(TEXTS))
def test_byte_level_equals_transformers(folder, cut, text):
    theirs, ours = theirs_and_ours(cut, folder)
    assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.decode(ours.encode(text)) == text


@settings(max_examples=40)
@given(text=WORDS | st.sampled_from(TEXTS))
def test_digits_are_cut_off_first(text):
    """As SmolLM's tokenizer.json has it; transformers' reading of GGUF leaves that out."""
    values = byte_level("smollm")
    ours = read_tokenizer(values.get, "x")
    tokens, merges = trained()
    backend = tokenizers.Tokenizer(
        models.BPE(
            {token: id for id, token in enumerate(tokens)},
            [tuple(merge.split(" ")) for merge in merges],
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    backend.decoder = decoders.ByteLevel()
    assert ours.encode(text) == backend.encode(text).ids


def test_special_tokens_have_roles_and_no_text_spells_them():
    values = byte_level("gpt-2")
    ours = read_tokenizer(values.get, "x")
    assert (ours.bos_id, ours.eos_id, ours.unk_id, ours.pad_id) == (1, 2, 0, 2)
    assert ours.special_ids == [0, 1, 2]
    assert not {0, 1, 2} & set(ours.encode("<|end|><|im_start|>"))
    own = len(values["tokenizer.ggml.tokens"]) - 1
    assert own in ours.encode("my<own>word")  # what users define stays whole


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (byte_level("gpt-2"), False),
        (byte_level("smollm"), False),
        (byte_level("llama-bpe"), True),
        (byte_level("llama-bpe", **{"tokenizer.ggml.add_bos_token": False}), False),
        (byte_level("smollm", **{"tokenizer.ggml.add_bos_token": True}), True),
        ({"tokenizer.ggml.model": "llama"}, True),
    ],
)
def test_where_texts_begin_with_bos(values, expected):
    assert adds_bos(values.get) is expected


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tokenizer.ggml.model": "bert"}, "a tokenizer of the kind 'bert'"),
        ({"tokenizer.ggml.model": "gpt2"}, "no whole vocabulary"),
        (byte_level("lama-bpe"), r"cut as 'lama-bpe' .*did you mean 'llama-bpe'"),
        (byte_level("gpt-2", **{"tokenizer.ggml.token_type": [1]}), "no whole vocabulary"),
        (byte_level("gpt-2", **{"tokenizer.ggml.merges": ["neither nor"]}), "cannot be read"),
        (byte_level("gpt-2", **{"tokenizer.ggml.merges": None}), "has no merges"),
    ],
)
def test_what_cannot_be_read_is_named(values, said):
    with pytest.raises(UserError, match=said):
        read_tokenizer(values.get, "x")


# SentencePiece


@pytest.fixture(scope="module")
def pieces():
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        remove_extra_whitespaces=False,
        minloglevel=2,
        normalization_rule_name="identity",
        character_coverage=0.99,
        hard_vocab_limit=False,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def piece_values(pieces, **more) -> dict:
    types = []
    for id in range(len(pieces)):
        kinds = {2: pieces.is_unknown, 3: pieces.is_control, 6: pieces.is_byte}
        types.append(next((kind for kind, check in kinds.items() if check(id)), 1))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.tokens": [pieces.id_to_piece(id) for id in range(len(pieces))],
        "tokenizer.ggml.scores": [pieces.get_score(id) for id in range(len(pieces))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


@settings(max_examples=60)
@given(text=WORDS | st.sampled_from(TEXTS))
def test_pieces_equal_sentencepiece(pieces, text):
    text = text.replace("\0", "")  # SentencePiece takes it for the end
    values = piece_values(pieces)
    ours = read_tokenizer(values.get, "x")
    assert ours.encode(text) == pieces.encode(text)
    assert ours.names == {"start": "<s>", "end": "</s>", "unknown": "<unk>"}


def test_what_a_file_of_pieces_does_not_say_is_as_usual(pieces, folder):
    """Bytes are known by their names; unknown, start and end are the first three."""
    values = {
        name: value
        for name, value in piece_values(pieces).items()
        if not name.endswith(("token_type", "_token_id"))
    }
    path = folder / "usual.gguf"
    write_llama(path, made("LlamaForCausalLM", SMALL), values=values)
    model = load(path, "cpu")
    text = "a\n\tλ👍"  # what only bytes can spell
    assert model.encode(text) == [pieces.bos_id(), *pieces.encode(text)]
    assert model.tokenizer.decode(model.encode(text)) == text
    assert model.model.config.ends == (pieces.eos_id(),)


def test_an_id_below_zero_names_no_token(pieces):
    values = piece_values(pieces, **{"tokenizer.ggml.padding_token_id": -1})
    assert "padding" not in read_tokenizer(values.get, "x").names


# A whole model


def test_a_model_is_loaded_and_used(folder):
    """It goes on, chats as its template says, and finds texts as likely as transformers does."""
    path = folder / "whole.gguf"
    values = byte_level("gpt-2", **{"tokenizer.chat_template": CHATML})
    write_llama(path, made("LlamaForCausalLM", SMALL), values=values)
    model = load(path, "cpu")
    assert isinstance(model.generate("The quick", max_length=4), str)
    assert isinstance(model.chat("Hello", max_length=4), str)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
    messages = [{"role": "user", "content": "Hello there"}]
    prompt = model.prompting.chat.prompt(messages, model.tokenizer, model.prompting.bos)
    expected = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True
    )["input_ids"]
    assert prompt == expected
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=path.name, dtype=torch.float32
    ).eval()
    ids = torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    with torch.no_grad():
        loss = theirs(ids, labels=ids).loss
    score = model.score(TEXTS[0])
    assert -score.log_probability / score.n_tokens == pytest.approx(loss.item(), abs=1e-4)


@pytest.mark.parametrize("begins", [False, True])
def test_a_model_goes_on_to_transformers(folder, tmp_path, begins):
    """With its tokenizer, its chat template and its weights; and it comes back as it was."""
    path = folder / f"begins-{begins}.gguf"
    more = {"tokenizer.chat_template": CHATML, "tokenizer.ggml.add_bos_token": begins}
    write_llama(path, made("LlamaForCausalLM", SMALL), values=byte_level("qwen2", **more))
    source = open_model(path)
    write_huggingface(source, tmp_path)
    back = open_model(tmp_path)
    assert as_json(back.content) == as_json(source.content)
    assert back.content["bos"] is begins
    ours, theirs = load(path, "cpu"), AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
    for name, weight in source.read_weights().items():
        assert torch.equal(back.read_weights()[name], weight)


def as_json(content) -> str:
    return json.dumps(dict(content), sort_keys=True)
