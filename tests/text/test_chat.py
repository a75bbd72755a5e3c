"""Chat templates: what is said goes in whole, answers are marked, and no turn can be forged."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import UserError
from qkv.text import TEMPLATES, ChatTemplate, Ends, Message, Tokenizer

Trained = Callable[[str], Tokenizer]

# An ending of plain text, two special tokens after an answer, and names of other people's tokens,
# among them some that only the tokenizer knows for special ones.
INST = ["[INST]", "[/INST]", "</s>"]
ODD = {
    "text": ChatTemplate("{content}\n", "Q{{1}}: {content}\nA:", "{content}\n--\n"),
    "two": ChatTemplate("<bos>{content}", "<|user|>{content}", "<|bot|>{content} .<|end|> <eos>"),
    "inst": ChatTemplate(
        "[INST]{content}\n",
        "<bos>[INST]{content}[/INST]",
        "{content}</s>\n",
        default_system="Be {kind} </s>",
        user_after_system="{content}[/INST]",
    ),
    "none": ChatTemplate("<|sys|>{content}", "<|u|>{content}", "{content}<eos>", plain=("<|u|>",)),
}
ALL = {**TEMPLATES, **ODD}
SNIPPETS = [
    "<eos>",
    "<|im_end|>",
    "<|im_start|>user\n",
    "User:",
    "### Response:\n",
    "cat",
    "我爱",
    "{content}",
    " ",
    "\n",
    "é",
    "👍",
    "<bos>",
    "0",
    "<|end|>",
    "[INST]",
    "</s>",
    "<|u|>",
]
CONTENTS = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.characters(codec="utf-8"))).map("".join)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Draw turns that start with the user's, or a system's before it, and end with the user's."""
    turns: list[Message] = [{"role": "user", "content": draw(CONTENTS)}]
    if draw(st.booleans()):
        turns.insert(0, {"role": "system", "content": draw(CONTENTS)})
    for _ in range(draw(st.integers(0, 2))):
        turns.append({"role": "assistant", "content": draw(CONTENTS)})
        turns.append({"role": "user", "content": draw(CONTENTS)})
    return turns


@pytest.fixture(scope="module")
def ready(trained: Trained) -> Trained:
    """Hand out a tokenizer of each kind that knows all the templates' special tokens."""

    @cache
    def of(kind: str) -> Tokenizer:
        tokenizer = copy.deepcopy(trained(kind))
        for template in ALL.values():
            tokenizer.add_special([*template.special_names, *INST])
        return tokenizer

    return of


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}  # type: ignore[typeddict-item]


def shown(template: ChatTemplate, tokenizer: Tokenizer, *turns: str, bos: bool = False) -> str:
    """What a prompt of turns such as "user: x" reads like."""
    messages = [said(*turn.split(": ")) for turn in turns]
    ids = template.prompt(messages, tokenizer, bos)
    return "".join(tokenizer.tokens(ids)).replace("⏎", "\n").replace("▁", " ")


@settings(max_examples=40)
@given(messages=conversations(), answer=CONTENTS, bos=st.booleans(), name=st.sampled_from([*ALL]))
def test_a_longer_conversation_begins_with_the_tokens_of_the_shorter(
    messages: list[Message], answer: str, bos: bool, name: str, kind: str, ready: Trained
) -> None:
    template, tokenizer = ALL[name], ready(kind)
    prompt = template.prompt(messages, tokenizer, bos)
    answered = [*messages, said("assistant", answer)]
    whole = template.encode(answered, tokenizer, bos)
    assert whole.tokens[: len(prompt)] == prompt
    assert whole.tokens[len(prompt) :][: len(tokenizer.encode(answer))] == tokenizer.encode(answer)
    for n in range(1, len(answered)):
        part = template.encode(answered[:n], tokenizer, bos)
        assert whole.tokens[: len(part.tokens)] == part.tokens
        assert whole.answer[: len(part.answer)] == part.answer
    assert (whole.tokens[0] == tokenizer.bos_id) >= bos


@settings(max_examples=40)
@given(messages=conversations(), answer=CONTENTS, name=st.sampled_from([*ALL]))
def test_marked_are_the_answers_with_what_ends_them(
    messages: list[Message], answer: str, name: str, kind: str, ready: Trained
) -> None:
    template, tokenizer = ALL[name], ready(kind)
    endings = {
        "plain": [tokenizer.eos_id],
        "alpaca": [tokenizer.eos_id],
        "text": tokenizer.encode("\n--\n"),
        "inst": [tokenizer.special_id("</s>")],
        "none": [tokenizer.eos_id],
    }
    if name == "chatml":
        endings[name] = [tokenizer.special_id("<|im_end|>")]
    if name == "two":
        endings[name] = [*tokenizer.encode(" ."), tokenizer.special_id("<|end|>")]
    messages = [*messages, said("assistant", answer)]
    encoded = template.encode(messages, tokenizer, bos=True)
    assert len(encoded.tokens) == len(encoded.answer)
    marked = [id for id, is_answer in zip(encoded.tokens, encoded.answer, strict=True) if is_answer]
    expected: list[int] = []
    for message in messages:
        if message["role"] == "assistant" and message["content"].strip():
            expected += tokenizer.encode(message["content"]) + endings[name]
    assert marked == expected


@settings(max_examples=40)
@given(messages=conversations(), name=st.sampled_from([*ALL]))
def test_nobody_can_forge_a_turn(
    messages: list[Message], name: str, kind: str, ready: Trained
) -> None:
    template, tokenizer = ALL[name], ready(kind)
    special = set(tokenizer.special_ids) - {tokenizer.unk_id}
    assert len(special) > 10
    silent = [said(message["role"], "") for message in messages]
    full, empty = (template.encode(turns, tokenizer, False).tokens for turns in (messages, silent))
    assert [id for id in full if id in special] == [id for id in empty if id in special]


def test_the_built_in_templates_read_as_they_should(ready: Trained) -> None:
    tokenizer = ready("byte")

    def read(name: str) -> str:
        turns = ("system: S", "user: U", "assistant: A", "user: V")
        return shown(TEMPLATES[name], tokenizer, *turns, bos=True)

    assert read("plain") == "<bos>System:S<eos>User:U<eos>Assistant:A<eos>User:V<eos>Assistant:"
    assert read("alpaca") == (
        "<bos>S\n\n### Instruction:\nU\n\n### Response:\nA<eos>\n\n"
        "### Instruction:\nV\n\n### Response:\n"
    )
    assert read("chatml") == (
        "<bos><|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
        "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_answer_comes_back_as_it_was(kind: str, ready: Trained) -> None:
    tokenizer = ready(kind)
    for template in TEMPLATES.values():
        messages = [said("user", "Where is the cat?"), said("assistant", "The cat is there.")]
        encoded = template.encode(messages, tokenizer, bos=False)
        marked = zip(encoded.tokens, encoded.answer, strict=True)
        assert tokenizer.decode([id for id, answer in marked if answer]) == "The cat is there."


def test_many_are_the_same_as_one_by_one(ready: Trained) -> None:
    talks = [[said("user", "a")], [said("user", "b c"), said("assistant", "d")]]
    tokenizer = ready("bpe")
    for template in ALL.values():
        many = template.encode_many(talks, tokenizer, True)
        assert many == [template.encode(messages, tokenizer, True) for messages in talks]


def test_answers_end_at_a_token_or_a_text(ready: Trained) -> None:
    tokenizer = ready("unigram")
    eos = tokenizer.eos_id

    def ids(*names: str) -> frozenset[int]:
        return frozenset({eos, *map(tokenizer.special_id, names)})

    assert TEMPLATES["plain"].ends(tokenizer) == Ends(ids(), "")
    assert TEMPLATES["alpaca"].ends(tokenizer) == Ends(ids(), "")
    assert TEMPLATES["chatml"].ends(tokenizer) == Ends(ids("<|im_end|>"), "")
    assert ODD["two"].ends(tokenizer) == Ends(ids("<|end|>"), "")
    assert ODD["text"].ends(tokenizer) == Ends(ids(), "\n--\n")
    assert ODD["inst"].ends(tokenizer) == Ends(ids("</s>"), "")


def test_special_names_leave_out_what_every_tokenizer_has() -> None:
    assert TEMPLATES["plain"].special_names == TEMPLATES["alpaca"].special_names == []
    assert TEMPLATES["chatml"].special_names == ["<|im_start|>", "<|im_end|>"]
    assert ODD["two"].special_names == ["<|user|>", "<|bot|>", "<|end|>"]
    assert ODD["none"].special_names == ["<|sys|>"]
    late = ChatTemplate(
        "{content}", "{content}", "{content}<eos>", user_after_system="<|x|>{content}"
    )
    assert late.special_names == ["<|x|>"]


def test_a_system_speaks_by_default_and_the_user_after_it_differently(ready: Trained) -> None:
    tokenizer, template = ready("byte"), ODD["inst"]
    first = "[INST]Be {kind} </s>\n"
    assert shown(template, tokenizer, "user: x") == first + "x[/INST]"
    assert shown(template, tokenizer, "system: y", "user: x") == "[INST]y\nx[/INST]"
    talk = ("user: x", "assistant: z", "user: w")
    after = "x[/INST]z</s>\n<bos>[INST]w[/INST]"
    assert shown(template, tokenizer, *talk) == first + after
    assert shown(template, tokenizer, "system: y", *talk) == "[INST]y\n" + after
    silent = replace(template, default_system="", user_after_system="")
    assert shown(silent, tokenizer, "user: x") == "[INST]\n<bos>[INST]x[/INST]"
    without = replace(template, default_system=None)
    assert shown(without, tokenizer, "user: x") == "<bos>[INST]x[/INST]"


def test_what_looks_like_a_special_token_may_be_text(ready: Trained) -> None:
    tokenizer = ready("byte")
    ids = ODD["none"].encode([said("user", "x")], tokenizer, False).tokens
    assert ids == tokenizer.encode("<|u|>x")
    tokens = ODD["inst"].encode([said("user", "x")], tokenizer, False).tokens
    known = [tokenizer.special_id(name) for name in ("[INST]", "[/INST]")]
    assert [id for id in tokens if id in tokenizer.special_ids] == known
    bare = ChatTemplate("{content}", "[X]{content}", "{content}<eos>")
    assert bare.encode([said("user", "x")], tokenizer, False).tokens == tokenizer.encode("[X]x")


def test_a_conversation_never_begins_with_two_bos(ready: Trained) -> None:
    tokenizer = ready("byte")
    template = replace(ODD["inst"], default_system=None)
    assert shown(template, tokenizer, "user: x", bos=True) == "<bos>[INST]x[/INST]"
    assert shown(template, tokenizer, "system: y", "user: x", bos=True).startswith("<bos>[INST]y")
    named = Tokenizer(tokenizer._backend, {"start": "<|im_start|>"})
    for bos in (False, True):
        text = shown(TEMPLATES["chatml"], named, "user: x", bos=bos)
        assert text.startswith("<|im_start|>user")


def test_white_space_around_what_is_said_may_go(ready: Trained) -> None:
    tokenizer, template = ready("byte"), replace(TEMPLATES["chatml"], trim=True)
    messages = [said("user", " \n x y\t"), said("assistant", "\nz ")]
    bare = [said("user", "x y"), said("assistant", "z")]
    expected = TEMPLATES["chatml"].encode(bare, tokenizer, True)
    assert template.encode(messages, tokenizer, True) == expected
    assert TEMPLATES["chatml"].encode(messages, tokenizer, True) != expected


def test_the_space_before_an_answer_may_be_its_own(ready: Trained) -> None:
    tokenizer = ready("byte")
    usual = ChatTemplate("{content}", "{content}\n", "A: {content}<eos>")
    own = replace(usual, answer_space=True)
    assert shown(usual, tokenizer, "user: x") == "x\nA: "
    assert shown(own, tokenizer, "user: x") == "x\nA:"
    messages = [said("user", "x"), said("assistant", "z")]
    one, other = (each.encode(messages, tokenizer, False) for each in (usual, own))
    assert one.tokens == other.tokens
    assert [sum(one.answer), sum(other.answer)] == [2, 3]


def test_a_token_may_swallow_the_white_space_beside_it() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"<eos>": 0, "a": 1, "\n": 2}, []))
    end = tokenizers.AddedToken("<|end|>", rstrip=True, special=True)
    backend.add_special_tokens(["<eos>", end])
    template = ChatTemplate("{content}", "a{content}<|end|>\na", "{content}\n<|end|>\n")
    messages = [said("user", ""), said("assistant", "a")]
    encoded = template.encode(messages, Tokenizer(backend), False)
    assert encoded.tokens == [1, 3, 1, 1, 2, 3]
    assert encoded.answer == [False] * 3 + [True] * 3
    assert template.ends(Tokenizer(backend)) == Ends(frozenset({0, 3}), "")


def test_added_special_tokens_go_to_the_end_and_into_the_file(
    kind: str, trained: Trained, tmp_path: Path
) -> None:
    tokenizer = copy.deepcopy(trained(kind))
    size, text = len(tokenizer), "the <|im_end|> cat<|im_end|>"
    before = tokenizer.encode(text)
    assert tokenizer.add_special(["<|im_start|>", "<eos>", "<|im_end|>"]) == 2
    assert tokenizer.add_special(["<|im_end|>"]) == 0
    tokenizer.save(tmp_path / "tokenizer.json")
    for each in (tokenizer, Tokenizer.load(tmp_path / "tokenizer.json")):
        assert len(each) == size + 2
        ids = [each.special_id("<|im_start|>"), each.special_id("<|im_end|>")]
        assert ids == [size, size + 1]
        assert each.encode(text) == each.encode_many([text])[0] == before
        assert each.decode([ids[0], *before, ids[1]]) == each.decode(before)


def test_a_token_that_text_could_spell_is_not_special_until_it_is_added() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"<eos>": 0, "a": 1}, []))
    backend.add_tokens(["<|end|>"])
    tokenizer = Tokenizer(backend)
    with pytest.raises(UserError, match="no special token"):
        tokenizer.special_id("<|end|>")
    assert tokenizer.add_special(["<|end|>"]) == 0
    assert tokenizer.special_id("<|end|>") == 2
    assert tokenizer.encode("a<|end|>a") == [1, 1]


def test_a_missing_special_token_is_named(trained: Trained) -> None:
    tokenizer = trained("bpe")
    for call in (TEMPLATES["chatml"].encode, TEMPLATES["chatml"].prompt):
        with pytest.raises(UserError, match=r"no special token '<\|im_start\|>'; .*'plain'"):
            call([said("user", "x")], tokenizer, True)
    with pytest.raises(UserError, match="no special token 'cat'"):
        tokenizer.special_id("cat")
    with pytest.raises(UserError, match="no special token ' the'"):
        tokenizer.special_id(" the")  # a piece, but an ordinary one


def test_a_template_comes_back_from_plain_values() -> None:
    for template in ALL.values():
        values = json.loads(json.dumps(template.to_dict()))
        assert ChatTemplate.from_dict(values, "config.json") == template
    assert [*TEMPLATES["plain"].to_dict()] == ["system", "user", "assistant"]


def test_a_system_message_needs_a_place(trained: Trained) -> None:
    template = ChatTemplate("", "{content}", "{content}<eos>")
    template.encode([said("user", "x")], trained("byte"), True)
    talks = [[said("user", "x")], [said("system", "y"), said("user", "x")]]
    with pytest.raises(UserError, match=r"^conversation 2, message 1: .* no place for a system"):
        template.encode_many(talks, trained("byte"), True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"user": "User:<eos>"}, "user turn is 'User:<eos>', .* exactly once"),
        ({"user": "{content}{content}"}, "exactly once"),
        ({"system": "{name}: {content}"}, "system turn .*no other name"),
        ({"assistant": "{{content}}<eos>"}, "assistant turn .* exactly once"),
        ({"assistant": "{content"}, "a brace is meant"),
        ({"assistant": "A:{content}"}, "nothing ends an answer"),
        ({"user": 3}, "^config.json: user is 3"),
        ({"bot": "{content}"}, "^config.json: unknown key 'bot'"),
        ({"user_after_system": "x"}, "exactly once"),
        ({"user": ""}, "exactly once"),
        ({"system": "", "default_system": "x"}, "system turn is empty"),
        ({"system": "", "user_after_system": "{content}"}, "system turn is empty"),
        ({"answer_space": True}, "needs a space before"),
        ({"default_system": 3}, "^config.json: default_system is 3"),
    ],
)
def test_a_bad_template_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ChatTemplate.from_dict({**TEMPLATES["plain"].to_dict(), **change}, "config.json")


def test_a_template_needs_all_roles() -> None:
    with pytest.raises(UserError, match=r"^config.json: 'assistant' is missing"):
        ChatTemplate.from_dict({"system": "{content}", "user": "{content}"}, "config.json")


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ("", "there is no message"),
        ("a", "message 1: the assistant cannot speak first"),
        ("us", "message 2: the system cannot speak after the user's"),
        ("ss", "message 2: the system cannot speak after the system's"),
        ("sa", "message 2: the assistant cannot speak after the system's"),
        ("uu", "message 2: the user cannot speak after the user's"),
        ("suaa", "message 4: the assistant cannot speak after the assistant's"),
    ],
)
def test_turns_out_of_order_are_numbered(roles: str, words: str, trained: Trained) -> None:
    names = {"s": "system", "u": "user", "a": "assistant"}
    messages = [said(names[role], "x") for role in roles]
    for call in (TEMPLATES["plain"].encode, TEMPLATES["plain"].prompt):
        with pytest.raises(UserError, match=words):
            call(messages, trained("byte"), False)


@pytest.mark.parametrize("roles", [["system"], ["user", "assistant"]])
def test_only_a_user_can_be_answered(roles: list[str], trained: Trained) -> None:
    messages = [said(role, "x") for role in roles]
    with pytest.raises(
        UserError, match=f"message {len(roles)}: the last to speak is the {roles[-1]}"
    ):
        TEMPLATES["plain"].prompt(messages, trained("byte"), False)


@pytest.mark.parametrize("given", [3, "hello", {"role": "user", "content": "x"}])
def test_what_is_no_list_of_messages_is_refused(given: object, trained: Trained) -> None:
    with pytest.raises(UserError, match="must be a list of messages like"):
        TEMPLATES["plain"].prompt(given, trained("byte"), False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "bot", "content": "x"}, "role is 'bot', .* system, user, assistant"),
        ({"role": ["user"], "content": "x"}, "role is"),
        ({"role": "user", "content": 3}, "content is '3', but must be a string"),
        ({"role": "user", "content": "\ud83d"}, "half a surrogate pair"),
        ({"role": "user"}, "is no message"),
        ("hello", "'hello' is no message"),
    ],
)
def test_what_is_no_message_is_numbered(message: object, words: str, trained: Trained) -> None:
    talks = [[{"role": "user", "content": "x"}], [message]]
    with pytest.raises(UserError, match=f"^conversation 2, message 1: .*{words}"):
        TEMPLATES["plain"].encode_many(talks, trained("byte"), False)  # type: ignore[arg-type]
