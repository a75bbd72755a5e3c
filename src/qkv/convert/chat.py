"""Chat templates as other people write them, which are Jinja programs ⇄ ours, which are texts.

A program is read by what it writes: it is given conversations of words that occur nowhere else, and
what stands around these words makes a template. That is taken only if it then writes other
conversations just as the program does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from qkv.text.chat import SPECIAL, ChatTemplate, Message, Role, around
from qkv.text.pieces import BOS, EOS
from qkv.text.tokenizer import USUAL_NAMES

Program = Callable[[list[Message], bool], str]

ROLE_OF: dict[str, Role] = {"s": "system", "u": "user", "a": "assistant"}
TALKS = ("u", "ua", "uau", "uaua", "uauaua", "uauauau")
SAYINGS = (
    "Hello!",
    "What's {content} in {{ Jinja }}?",
    "Zwei\nZeilen \\ und\n\n'eine' \"mehr\".",
    "我爱你",
    "x",
    "1 < 2 & <b>3</b> {% if %}",
    "Well: a, b;  c.",
    "👍",
)


class _UnlikeError(Exception):
    """A program does what no template can."""


def read_chat(
    jinja: str, tokens: Mapping[str, str], names: Collection[str] | None = None
) -> tuple[ChatTemplate, bool] | None:
    """Find the template that writes what a Jinja program does, and whether it begins with BOS.

    `tokens` are the program's variables, such as bos_token; `names` are the tokenizer's special
    tokens, or None where all that looks like `<|user|>` is one. None is returned for a program
    that no template equals, or that fails. One that knows no system message, or puts it where it
    would change what was said before, gives a template without a place for it.
    """
    try:
        program = _program(jinja, tokens)
        turns = _read_turns(program)
    except Exception:  # the program is anybody's, and may fail in any way
        return None
    own = _own_names(tokens)
    begins = tokens.get("bos_token", "")
    # What is BOS to us stands before all turns, if it can; any other token belongs to a turn.
    orders = (True, False) if own.get(begins) == BOS else (False, True)
    for has_system, bos in product((True, False), orders if begins else (False,)):
        try:
            template = _template(program, turns, begins if bos else "", has_system, own)
            template = _with_plain(template, names)
            if _agrees(program, template, begins if bos else "", own):
                return template, bos or all(_begin(template, BOS))
        except Exception:
            continue
    return None


def write_chat(template: ChatTemplate, bos: bool, bos_token: str, eos_token: str) -> str:
    """Write a template as a Jinja program, with the tokenizer's names for BOS and EOS."""

    def code(text: str) -> str:
        names = {BOS: bos_token, EOS: eos_token}
        return json.dumps(_named(text, names), ensure_ascii=False)

    def turn(written: str, said: str) -> str:
        before, after = around(written)
        return f"{{{{- {code(before)} + {said} + {code(after)} }}}}"

    said = "message['content'] | trim" if template.trim else "message['content']"
    refusal = "{{- raise_exception('This template has no place for a system message.') }}"
    system = turn(template.system, f"({said})") if template.system else refusal
    lines = [*_start_lines(template, bos_token)] if bos else []
    if template.default_system is not None:
        default = turn(template.system, json.dumps(template.default_system, ensure_ascii=False))
        lines += ["{%- if messages[0]['role'] != 'system' %}", default, "{%- endif %}"]
    lines += ["{%- for message in messages %}", "{%- if message['role'] == 'system' %}", system]
    if template.user_after_system:
        # The user speaks first or, after a system message, second.
        place = "== 1" if template.default_system is None else "< 2"
        lines.append(f"{{%- elif message['role'] == 'user' and loop.index0 {place} %}}")
        lines.append(turn(template.user_after_system, f"({said})"))
    for role in ("user", "assistant"):
        lines.append(f"{{%- elif message['role'] == '{role}' %}}")
        lines.append(turn(getattr(template, role), f"({said})"))
    invitation = f"{{{{- {code(_invitation(template))} }}}}"
    lines += ["{%- endif %}", "{%- endfor %}"]
    lines += ["{%- if add_generation_prompt %}", invitation, "{%- endif %}"]
    return "\n".join(lines)


def _start_lines(template: ChatTemplate, bos_token: str) -> Iterator[str]:
    """Lines that write BOS before a first turn that does not bring its own."""
    code = json.dumps(bos_token, ensure_ascii=False)
    brings = _begin(template, (BOS, bos_token))
    if not any(brings):
        yield f"{{{{- {code} }}}}"
    elif not all(brings):
        sign = "==" if brings[0] else "!="
        yield f"{{%- if messages[0]['role'] {sign} 'system' %}}{{{{ {code} }}}}{{% endif %}}"


def _begin(template: ChatTemplate, names: str | tuple[str, ...]) -> list[bool]:
    """Whether a conversation begins so where the user opens it, and where a system does."""
    openings = "us" if template.system else "u"
    firsts = (template.turns([_say(role, "x")], "")[0] for role in openings)
    return [around(first.written)[0].startswith(names) for first in firsts]


def _invitation(template: ChatTemplate) -> str:
    before, _ = around(template.assistant)
    return before[:-1] if template.answer_space else before


def _named(text: str, names: Mapping[str, str]) -> str:
    """A text with other names for BOS and EOS."""
    return "".join(names.get(stretch, stretch) for stretch in SPECIAL.split(text))


def _program(jinja: str, tokens: Mapping[str, str]) -> Program:
    """Compile a program in a sandbox, with what such programs expect to find around them."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tags around what the assistant says, which write nothing."""

        tags = {"generation"}  # noqa: RUF012 (the base class says so)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise _UnlikeError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = _to_json
    # There is no `strftime_now`: a template is the same on any day, and most programs that ask for
    # the day have one to fall back on.
    environment.globals["raise_exception"] = refuse
    compiled = environment.from_string(jinja)

    def render(messages: list[Message], invite: bool) -> str:
        return compiled.render(
            **tokens, messages=messages, add_generation_prompt=invite, tools=None, documents=None
        )

    return render


def _to_json(value: object, indent: int | None = None, **others: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _say(role: str, content: str) -> Message:
    return {"role": ROLE_OF[role], "content": content}


def _ask(program: Program, roles: str, invite: bool = False, pad: str = "") -> list[str]:
    """What a program writes around words of these roles; those of one of them may be padded."""
    words = [f"Zq{role}{number}qZ" for number, role in enumerate(roles)]
    messages = [
        _say(role, f" \n{word}\n " if role == pad else word)
        for role, word in zip(roles, words, strict=True)
    ]
    text, pieces = program(messages, invite), []
    for word in words:
        before, found, text = text.partition(word)
        if not found or word in text:
            raise _UnlikeError(f"{word} is not there once")
        pieces.append(before)
    return [*pieces, text]


def _minus(text: str, start: str = "", end: str = "") -> str:
    if not (text.startswith(start) and text.endswith(end) and len(text) >= len(start) + len(end)):
        raise _UnlikeError(f"{text!r} is not {start!r} … {end!r}")
    return text[len(start) : len(text) - len(end)]


class _Turns(NamedTuple):
    """The texts around what each side says, from the second exchange of a conversation."""

    user: tuple[str, str]
    assistant: tuple[str, str]
    first_user: tuple[str, str]  # with all that precedes it where there is no system message
    answer_space: bool
    trim: bool


def _read_turns(program: Program) -> _Turns:
    asked, answered = _ask(program, "uau"), _ask(program, "uaua")
    user_after, assistant_after = asked[3], answered[4]
    user_before = _minus(asked[2], assistant_after)
    invitation = _minus(answered[3], user_after)
    prompt = _minus(_ask(program, "uau", invite=True)[3], user_after)
    if prompt not in (invitation, invitation.removesuffix(" ")):
        raise _UnlikeError("an answer that was given is not where one is asked for")
    return _Turns(
        (user_before, user_after),
        (invitation, assistant_after),
        (asked[0], _minus(asked[1], end=invitation)),
        answer_space=prompt != invitation,
        # Programs that trim one side only are taken for those that trim both.
        trim=any(_ask(program, "uaua", pad=role) == answered for role in "ua"),
    )


class _System(NamedTuple):
    """The texts around what a system says, and around the user's words that follow."""

    system: tuple[str, str]
    user: tuple[str, str]


def _read_system(program: Program, turns: _Turns) -> _System:
    before, between, after, _ = _ask(program, "sua")
    after = _minus(after, end=turns.assistant[0])
    if between.endswith(turns.user[0]) and after == turns.user[1]:
        return _System((before, _minus(between, end=turns.user[0])), turns.user)
    try:  # a program that writes turn by turn says where this one ends
        own = _ask(program, "s")[1]
        return _System((before, own), (_minus(between, own), after))
    except Exception:
        return _System((before, between), ("", after))


def _template(
    program: Program, turns: _Turns, bos: str, has_system: bool, own: Mapping[str, str]
) -> ChatTemplate:
    """The template that a program may be, if it begins with `bos` before all turns."""

    def written(texts: tuple[str, str]) -> str:
        before, after = (_ours(text, own).replace("{", "{{").replace("}", "}}") for text in texts)
        return f"{before}{{content}}{after}"

    first = (_minus(turns.first_user[0], bos), turns.first_user[1])
    template = ChatTemplate(
        "",
        written(turns.user),
        written(turns.assistant),
        trim=turns.trim,
        answer_space=turns.answer_space,
    )
    values: dict[str, Any] = {}
    if has_system:
        system = _read_system(program, turns)
        around_system = (_minus(system.system[0], bos), system.system[1])
        values["system"] = written(around_system)
        if system.user != turns.user:
            values["user_after_system"] = written(system.user)
        if first != turns.user:
            values["default_system"] = _default(first, around_system, system.user, own)
    elif first != turns.user:
        raise _UnlikeError("the first turn differs")
    return ChatTemplate(**{**template.to_dict(), **values})


def _default(
    first: tuple[str, str], system: tuple[str, str], user: tuple[str, str], own: Mapping[str, str]
) -> str:
    """What stands where a system's words would."""
    words = _minus(first[0], system[0], system[1] + user[0])
    # What is said spells no special token.
    if first[1] != user[1] or SPECIAL.search(words) or any(name in words for name in own):
        raise _UnlikeError("the first turn differs")
    return words


def _own_names(tokens: Mapping[str, str]) -> dict[str, str]:
    """The program's EOS and BOS → ours, unless they go by names that say more about a turn."""
    own: dict[str, str] = {}
    for role, variable, ours in (("end", "eos_token", EOS), ("start", "bos_token", BOS)):
        if tokens.get(variable) in USUAL_NAMES[role]:
            own.setdefault(tokens[variable], ours)
    return own


def _ours(text: str, own: Mapping[str, str]) -> str:
    """A text with our names for EOS and BOS."""
    for ours in (BOS, EOS):
        if ours in text and own.get(ours) != ours:
            raise _UnlikeError(f"{ours} is just text here")
    for name, ours in own.items():
        text = text.replace(name, ours)
    return text


def _with_plain(template: ChatTemplate, names: Collection[str] | None) -> ChatTemplate:
    if names is None:
        return template
    if any(name in (template.default_system or "") for name in names):
        raise _UnlikeError("what is said spells no special token")
    plain = [name for name in template.special_names if name not in names]
    return ChatTemplate(**{**template.to_dict(), "plain": tuple(plain)})


def _agrees(program: Program, template: ChatTemplate, bos: str, own: Mapping[str, str]) -> bool:
    """Whether a template writes several conversations as a program does."""
    theirs = {ours: name for name, ours in own.items()}

    def spelt(messages: list[Message], invite: bool) -> str:
        text = ""
        for turn in template.turns(messages, ""):
            before, after = (_named(words, theirs) for words in around(turn.written))
            text += before if text or before.startswith(bos) else bos + before
            text += turn.content + after
        return text + (_named(_invitation(template), theirs) if invite else "")

    openings = ("", "s") if template.system else ("",)
    for number, (opening, roles) in enumerate(product(openings, TALKS)):
        talk = [
            _say(role, SAYINGS[(number + place) % len(SAYINGS)])
            for place, role in enumerate(opening + roles)
        ]
        for invite in (False, True) if roles[-1] == "u" else (False,):
            if program(talk, invite) != spelt(talk, invite):
                return False
    return True
