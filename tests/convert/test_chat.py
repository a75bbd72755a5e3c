"""Jinja chat templates ⇄ ours: the same text, the same tokens, and none where that cannot be."""

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from qkv.convert import convert
from qkv.convert.huggingface import chat_program
from qkv.convert.huggingface.chat_program import ChatProgramError, read_chat, write_chat
from qkv.convert.opening import open_model
from qkv.errors import UserError
from qkv.tasks import load
from qkv.text import TEMPLATES, ChatTemplate, Message, Tokenizer
from tests.convert.harness import add_words
from tests.convert.small import small
from tests.forking import mapped_bytes, run_worker

S = {"bos_token": "<s>", "eos_token": "</s>"}
GEMMA = {"bos_token": "<bos>", "eos_token": "<eos>"}
LLAMA3 = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
QWEN = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
HEADERS = "<|start_header_id|>{}<|end_header_id|>\n\n"

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are {helpful}<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA2 = """
{%- if messages[0]['role'] == 'system' %}
    {%- set rest = messages[1:] %}{% set words = messages[0]['content'] %}
{%- else %}
    {%- set rest = messages %}{% set words = false %}
{%- endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate') }}
    {%- endif %}
    {%- if loop.index0 == 0 and words is not false %}
        {%- set said = '<<SYS>>\\n' + words + '\\n<</SYS>>\\n\\n' + message['content'] %}
    {%- else %}{% set said = message['content'] %}{% endif %}
    {%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + said.strip() + ' [/INST]' }}
    {%- else %}{{ ' ' + said.strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}
"""
LLAMA3_STYLE = """
{%- for message in messages %}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' +
        message['content'] | trim + '<|eot_id|>' %}
    {%- if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
    {{- content }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
LLAMA31 = """
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{% set date_string = strftime_now('%d %b') %}
    {%- else %}{% set date_string = '26 Jul' %}{% endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set words = messages[0]['content'] | trim %}{% set messages = messages[1:] %}
{%- else %}{% set words = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{{- 'Today: ' + date_string + '\n\n' }}
{{- words + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
MISTRAL = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set words = messages[0].content %}{% set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' and loop.first and words is defined %}
        {{- '[INST] ' + words + '\n\n' + message.content + '[/INST]' }}
    {%- elif message.role == 'user' %}{{ '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content }}{% generation %}{{ eos_token }}{% endgeneration %}
    {%- else %}{{ raise_exception('Only user and assistant roles') }}{% endif %}
{%- endfor %}
"""
MISTRAL_LAST = MISTRAL.replace("loop.first", "loop.last")  # the system's words move along
GEMMA_STYLE = """
{{- bos_token }}{% if messages[0]['role'] == 'system' %}
    {{- raise_exception('System role not supported') }}
{%- endif %}
{%- for message in messages %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}
"""
ZEPHYR = """
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}
"""
ALPACA = """
{%- if messages[0]['role'] != 'system' %}{{ 'Below is a task.\n\n' }}{% endif %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}
    {%- elif message['role'] == 'user' %}{{ '### Task:\n' + message['content'] + '\n\n' }}
    {%- else %}{{ '### Reply:\n' + message['content'] + '\n\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '### Reply:\n' }}{% endif %}
"""


@pytest.fixture(autouse=True, scope="module")
def forked() -> Iterator[None]:
    """Render in a process that has imported Jinja already; what it has mapped counts too."""

    def run(worker: Path, request: dict[str, Any], seconds: float) -> Any:
        allowed = request["n_bytes"] + mapped_bytes()
        return run_worker(worker, {**request, "n_bytes": allowed}, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_program, "run_worker", run)
        yield


def chatml(role: str) -> str:
    return f"<|im_start|>{role}\n{{content}}<|im_end|>\n"


def headed(role: str) -> str:
    return HEADERS.format(role) + "{content}<|eot_id|>"


ZEPHYR_TURNS = [f"<|{role}|>\n{{content}}<eos>\n" for role in ("system", "user", "assistant")]
CHATML_TURNS = [chatml(role) for role in ("system", "user", "assistant")]
LLAMA3_TURNS = [headed(role) for role in ("system", "user", "assistant")]
STYLES: dict[str, tuple[str, dict[str, str], ChatTemplate, bool]] = {
    "chatml": (CHATML, QWEN, TEMPLATES["chatml"], False),
    "smollm2": (
        SMOLLM2,
        QWEN,
        ChatTemplate(*CHATML_TURNS, default_system="You are {helpful}"),
        False,
    ),
    "llama2": (
        LLAMA2,
        S,
        ChatTemplate(
            "<bos>[INST] <<SYS>>\n{content}\n<</SYS>>\n\n",
            "<bos>[INST] {content} [/INST]",
            " {content} <eos>",
            user_after_system="{content} [/INST]",
            trim=True,
            answer_space=True,
        ),
        True,
    ),
    "llama3": (LLAMA3_STYLE, LLAMA3, ChatTemplate(*LLAMA3_TURNS, trim=True), True),
    "llama3.1": (
        LLAMA31,
        LLAMA3,
        ChatTemplate(
            HEADERS.format("system") + "Today: 26 Jul\n\n{content}<|eot_id|>",
            *LLAMA3_TURNS[1:],
            default_system="",
            trim=True,
        ),
        True,
    ),
    "mistral": (
        MISTRAL,
        S,
        ChatTemplate(
            "[INST] {content}\n\n",
            "[INST] {content}[/INST]",
            " {content}<eos>",
            user_after_system="{content}[/INST]",
            answer_space=True,
        ),
        True,
    ),
    "mistral, last": (
        MISTRAL_LAST,
        S,
        ChatTemplate("", "[INST] {content}[/INST]", " {content}<eos>", answer_space=True),
        True,
    ),
    "gemma": (
        GEMMA_STYLE,
        GEMMA,
        ChatTemplate(
            "",
            "<start_of_turn>user\n{content}<end_of_turn>\n",
            "<start_of_turn>model\n{content}<end_of_turn>\n",
            trim=True,
        ),
        True,
    ),
    "zephyr": (ZEPHYR, S, ChatTemplate(*ZEPHYR_TURNS), False),
    "alpaca": (
        ALPACA,
        S,
        ChatTemplate(
            "{content}\n\n",
            "### Task:\n{content}\n\n",
            "### Reply:\n{content}\n\n",
            default_system="Below is a task.",
        ),
        False,
    ),
}
SPECIALS = [
    "<unk>",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<|begin_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
]
WORDS = ["hello", "what is", "{content}", "我爱", "é", "👍", "1, 2", "a\n\nb", "[INST]", '"q" \'']
SAID = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)


@st.composite
def conversations(draw: st.DrawFn, system: bool = True) -> list[Message]:
    """Draw turns that end with the user's or the assistant's."""
    roles = ["user", "assistant"] * 3
    turns = [message(role, draw(SAID)) for role in roles[: draw(st.integers(1, 6))]]
    if system and draw(st.booleans()):
        turns.insert(0, message("system", draw(SAID)))
    return turns


def message(role: str, content: str) -> Message:
    made: Message = {"role": role, "content": content}  # type: ignore[typeddict-item]
    return made


def byte_level() -> tokenizers.Tokenizer:
    """A tokenizer like GPT-2's, with a few words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({each: n for n, each in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator([*WORDS * 3, "user\n", "assistant\n", " what is hello"])
    return backend


def marked(first_only: bool) -> tokenizers.Tokenizer:
    """A tokenizer like Llama's, whose texts begin with a "▁", at least the first of them."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += sorted({each for word in WORDS for each in word if not each.isspace()})
    pieces += [chr(code) for code in range(33, 127) if chr(code) not in pieces]
    pieces += ["he", "▁he", "▁[", "▁a", "▁1"]
    merges = [("h", "e"), ("▁", "he"), ("▁", "["), ("▁", "a"), ("▁", "1")]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    backend = tokenizers.Tokenizer(model)
    if first_only:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        backend.normalizer = normalizers.Sequence(steps)
    return backend


BACKENDS = {
    "byte level": byte_level,
    "marked": lambda: marked(False),
    "first": lambda: marked(True),
}


@pytest.fixture(scope="module", params=BACKENDS)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Tokenizer]:
    """Hand out a tokenizer as transformers has it, and as we do."""
    from transformers import PreTrainedTokenizerFast

    backend = BACKENDS[request.param]()
    backend.add_special_tokens(SPECIALS)
    text = backend.to_str()
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(text))
    return theirs, Tokenizer(tokenizers.Tokenizer.from_str(text))


@pytest.mark.parametrize("style", STYLES)
def test_the_usual_styles_are_read(style: str) -> None:
    jinja, tokens, template, bos = STYLES[style]
    assert read_chat(jinja, tokens) == (template, bos)


@pytest.mark.parametrize("style", STYLES)
def test_what_is_written_is_read_again(style: str) -> None:
    _, tokens, template, bos = STYLES[style]
    assert read_chat(write_chat(template, bos, *tokens.values()), tokens) == (template, bos)


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_our_own_are_read_again(name: str, bos: bool) -> None:
    for names in (("<bos>", "<eos>"), ("<s>", "</s>"), ("<|begin_of_text|>", "<|end_of_text|>")):
        tokens = dict(zip(("bos_token", "eos_token"), names, strict=True))
        written = write_chat(TEMPLATES[name], bos, *names)
        assert read_chat(written, tokens) == (TEMPLATES[name], bos)


TEXTS = st.text(st.sampled_from("ab \n{}'\"\\%#é👍-"), max_size=6)


@settings(max_examples=15, deadline=None)
@given(
    texts=st.lists(TEXTS, min_size=8, max_size=8),
    trim=st.booleans(),
    bos=st.booleans(),
    default=st.none() | TEXTS,
)
def test_any_template_is_written_as_it_is(
    texts: list[str], trim: bool, bos: bool, default: str | None
) -> None:
    texts = [text.replace("{", "{{").replace("}", "}}") for text in texts]
    template = ChatTemplate(
        f"S{texts[0]}{{content}}{texts[1]}|",
        f"U{texts[2]}{{content}}{texts[3]}|",
        f"A{texts[4]}{{content}}{texts[5]}<eos>",
        default_system=default,
        user_after_system=f"V{texts[6]}{{content}}{texts[7]}|",
        trim=trim,
    )
    assert read_chat(write_chat(template, bos, "<s>", "</s>"), S) == (template, bos)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("style", STYLES)
def test_tokens_are_those_of_transformers(
    style: str, data: st.DataObject, pair: tuple[Any, Tokenizer]
) -> None:
    jinja, tokens, _, _ = STYLES[style]
    theirs, ours = pair
    template, bos = read_chat(jinja, tokens, SPECIALS)
    talk = data.draw(conversations(bool(template.system)))
    ready = Tokenizer(ours._backend, {"start": tokens["bos_token"], "end": tokens["eos_token"]})
    # The day is not ours to know.
    programs = [write_chat(template, bos, *tokens.values())]
    programs += [jinja] if style != "llama3.1" else []
    for program in programs:
        options = dict(chat_template=program, tokenize=False, **tokens)
        assert template.encode(talk, ready, bos).tokens == spelt(theirs, talk, False, options)
        if talk[-1]["role"] == "user":
            assert template.prompt(talk, ready, bos) == spelt(theirs, talk, True, options)


def spelt(theirs: Any, talk: list[Message], invite: bool, options: dict[str, Any]) -> list[int]:
    """The tokens that transformers makes of a conversation."""
    text = theirs.apply_chat_template(talk, add_generation_prompt=invite, **options)
    ids: list[int] = theirs(text, add_special_tokens=False)["input_ids"]
    return ids


@pytest.mark.parametrize(
    "jinja",
    [
        "{{ messages",  # no program
        "{{ messages[0]['content'] }}",  # one turn only
        "{{ 1 // 0 }}",
        "{{ strftime_now('%d') }}" + CHATML,
        CHATML.replace("message.content", "message.content | upper"),
        CHATML.replace("message.content", "(loop.index ~ message.content)"),
        CHATML.replace("<|im_end|>", "<eos>"),  # just text, as the tokenizer has another EOS
        CHATML.replace("assistant\\n", "assistant\\n<think>\\n"),  # where no past answer has it
        CHATML.replace("<|im_end|>\\n", ""),  # nothing ends an answer
        SMOLLM2.replace("{helpful}", "<|helpful|>"),  # what is said spells no special token
        "{{ ''.__class__.__mro__ }}" + CHATML,
        "{{ raise_exception('no') }}",
    ],
)
def test_what_no_template_can_do_is_left_alone(jinja: str) -> None:
    with pytest.raises(ChatProgramError):
        read_chat(jinja, QWEN)


def test_what_the_tokenizer_has_not_is_plain_text() -> None:
    found = read_chat(ZEPHYR, S, ["<s>", "</s>"])
    plain = ("<|system|>", "<|user|>", "<|assistant|>")
    assert found == (ChatTemplate(*ZEPHYR_TURNS, plain=plain), False)
    assert found[0].special_names == []


def test_an_end_with_a_name_of_its_own_keeps_it() -> None:
    found = read_chat(ZEPHYR, {"eos_token": "<|im_end|>"})
    assert found[0].assistant == "<|assistant|>\n{content}<|im_end|>\n"
    found = read_chat(ZEPHYR, {"eos_token": "<|endoftext|>"})
    assert found[0].assistant == "<|assistant|>\n{content}<eos>\n"


def test_a_system_message_without_a_place_is_refused(pair: tuple[Any, Tokenizer]) -> None:
    template = STYLES["gemma"][2]
    talk = [message("system", "x"), message("user", "y")]
    with pytest.raises(UserError, match="message 1: this chat template has no place for a system"):
        template.encode(talk, pair[1], True)
    written = write_chat(template, True, "<bos>", "<eos>")
    with pytest.raises(Exception, match="no place for a system message"):
        pair[0].apply_chat_template(talk, chat_template=written, tokenize=False)


def test_a_read_template_is_kept_in_a_folder(tmp_path: Path) -> None:
    for _, _, template, _ in STYLES.values():
        kept = tmp_path / "chat.json"
        kept.write_text(json.dumps(template.to_dict()), encoding="utf-8")
        values = json.loads(kept.read_text(encoding="utf-8"))
        assert ChatTemplate.from_dict(values, "chat.json") == template


def test_a_folder_tells_its_template_as_ours_do(
    pair: tuple[Any, Tokenizer], tmp_path: Path
) -> None:
    """Only what differs from the usual, so that what was exported comes back letter for letter."""
    ends = {"bos_token_id": pair[1].bos_id, "eos_token_id": pair[1].eos_id}
    small("GPT2LMHeadModel", vocab_size=len(pair[1]), **ends).save_pretrained(tmp_path)
    pair[0].save_pretrained(tmp_path)
    jinja = write_chat(TEMPLATES["plain"], True, "<bos>", "<eos>")
    (tmp_path / "chat_template.jinja").write_text(jinja, encoding="utf-8")
    assert open_model(tmp_path).full_content()["chat"] == TEMPLATES["plain"].to_dict()


UNUSABLE = {
    "{{ 'a' * 300000000 }}": "writes more than 200,000 characters",
    "{{ 'a' * 10 ** 12 }}": "writes more than 200,000 characters",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": "runs for",
    "{% for a in messages %}": r"is broken \(line 1: Unexpected end of template",
    "{{ unknown_function() }}": r"is broken \('unknown_function' is undefined\)",
    "{{ messages | length }}": "does more than writing turns one after another",
}


@pytest.mark.parametrize("jinja", UNUSABLE)
def test_a_template_that_cannot_be_used_is_not_run_when_a_model_is_opened(
    jinja: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generating runs no template; chatting is refused, and an export leaves the template out."""
    seconds = 1.0 if "range" in jinja else 60.0
    monkeypatch.setattr("qkv.convert.huggingface.chat_program.SECONDS", seconds)
    small("GPT2LMHeadModel").save_pretrained(tmp_path)
    add_words(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(jinja, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load(tmp_path, "cpu")
        model.generate("w7 w8", max_length=2)
        path = re.escape(str(tmp_path / "chat_template.jinja"))
        reason = f"^The chat template in {path} cannot be used, for it {UNUSABLE[jinja]}.*; name"
        with pytest.raises(UserError, match=reason):
            model.chat("w7")
        model.conversation(template="plain", max_length=2).say("w7")
    with pytest.warns(UserWarning, match=r"cannot be used, for it .* It was left out\.$"):
        convert(tmp_path, tmp_path / "ours")
    assert load(tmp_path / "ours", "cpu").prompting.chat is None
