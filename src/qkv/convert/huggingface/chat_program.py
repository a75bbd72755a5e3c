"""Chat templates: Jinja programs of Hugging Face's folders ⇄ ours, which are texts with gaps.

A program is read by its output: it writes conversations of words that occur nowhere else, and the
text around these words makes a template. That is taken only if it then writes other conversations
just as the program does. Programs run in a process of their own, bounded in time, memory and
output.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from qkv.child_process import run_worker
from qkv.errors import UserError
from qkv.text.chat import SPECIAL, ChatTemplate, Message, Role, around
from qkv.text.pieces import BOS, EOS
from qkv.text.tokenizer import USUAL_NAMES

Program = Callable[[list[Message], bool], str]

WORKER = Path(__file__).with_name("chat_worker.py")
TOO_LARGE, BROKEN = 3, 4  # the worker's exit codes
SECONDS, N_BYTES, N_CHARACTERS = 5.0, 256 * 2**20, 200_000  # that a program may take
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
# Roles, whether an answer is invited, and the role whose words are padded
PROBES = (
    ("uau", False, ""),
    ("uaua", False, ""),
    ("uau", True, ""),
    ("uaua", False, "u"),
    ("uaua", False, "a"),
    ("sua", False, ""),
    ("s", False, ""),
)


class ChatProgramError(Exception):
    """A program that no template equals, or that exceeds its bounds; the message says why."""


def read_chat(
    jinja: str, tokens: Mapping[str, str], names: Collection[str] | None = None
) -> tuple[ChatTemplate, bool]:
    """Find the template that writes what a Jinja program does, and whether it begins with BOS.

    `tokens` are the program's variables, such as bos_token; `names` are the tokenizer's special
    tokens, or None where all that looks like `<|user|>` is one. A program that knows no system
    message, or puts it where it would change an earlier turn, gives a template without one.
    """
    texts = _rendered(jinja, tuple(sorted(tokens.items())))
    if isinstance(texts, str):
        raise ChatProgramError(texts)

    def program(messages: list[Message], invite: bool) -> str:
        text = texts[_key(messages, invite)]
        if text is None:
            raise ChatProgramError("it fails")
        return text

    unlike = ChatProgramError("it does more than writing turns one after another")
    try:
        turns = _read_turns(program)
    except ChatProgramError as error:
        raise unlike from error
    own = _own_names(tokens)
    begins = tokens.get("bos_token", "")
    # A token that is BOS to us comes before all turns, if it can; any other belongs to a turn.
    orders = (True, False) if own.get(begins) == BOS else (False, True)
    for has_system, bos in product((True, False), orders if begins else (False,)):
        try:
            template = _template(program, turns, begins if bos else "", has_system, own)
            template = _with_plain(template, names)
            if _agrees(program, template, begins if bos else "", own):
                return template, bos or all(_begin(template, BOS))
        except (ChatProgramError, UserError):
            continue
    raise unlike


@lru_cache(maxsize=16)
def _rendered(jinja: str, tokens: tuple[tuple[str, str], ...]) -> dict[str, str | None] | str:
    """All that is asked of a program, by `_key`; or why it was stopped."""
    conversations = [*_conversations()]
    request = {
        "jinja": jinja,
        "tokens": dict(tokens),
        "conversations": conversations,
        "n_bytes": N_BYTES,
        "n_characters": N_CHARACTERS,
        "too_large": TOO_LARGE,
        "broken": BROKEN,
    }
    try:
        run = run_worker(WORKER, request, SECONDS)
    except subprocess.TimeoutExpired:
        return f"it runs for more than {SECONDS:g} seconds"
    except OSError as error:
        return f"no process can be started to run it ({error})"
    if run.returncode == TOO_LARGE:
        return f"it writes more than {N_CHARACTERS:,} characters"
    if run.returncode == BROKEN:
        reason = " ".join(run.stderr.decode(errors="replace").split())
        return f"it is broken ({reason[:200]})"
    if run.returncode:
        return "it fails"
    keys = (_key(*conversation) for conversation in conversations)
    return dict(zip(keys, json.loads(run.stdout), strict=True))


def _conversations() -> Iterator[tuple[list[Message], bool]]:
    for roles, invite, pad in PROBES:
        yield _probe(roles, pad), invite
    yield from _talks(("", "s"))


def _key(messages: list[Message], invite: bool) -> str:
    return json.dumps([messages, invite])


def _talks(openings: tuple[str, ...]) -> Iterator[tuple[list[Message], bool]]:
    """Conversations of ordinary words, and whether an answer is invited."""
    for number, (opening, roles) in enumerate(product(openings, TALKS)):
        said = enumerate(opening + roles, start=number)
        talk = [_say(role, SAYINGS[turn % len(SAYINGS)]) for turn, role in said]
        yield talk, False
        if roles[-1] == "u":
            yield talk, True


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
        turns = "== 1" if template.default_system is None else "< 2"
        lines.append(f"{{%- elif message['role'] == 'user' and loop.index0 {turns} %}}")
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


def _say(role: str, content: str) -> Message:
    return {"role": ROLE_OF[role], "content": content}


def _words(roles: str) -> list[str]:
    """A word for each turn that occurs nowhere else."""
    return [f"Zq{role}{number}qZ" for number, role in enumerate(roles)]


def _probe(roles: str, pad: str) -> list[Message]:
    """A conversation of such words; those of one role may be padded with white space."""
    return [
        _say(role, f" \n{word}\n " if role == pad else word)
        for role, word in zip(roles, _words(roles), strict=True)
    ]


def _ask(program: Program, roles: str, invite: bool = False, pad: str = "") -> list[str]:
    """The texts that a program writes before, between and after the words of these roles."""
    text, pieces = program(_probe(roles, pad), invite), []
    for word in _words(roles):
        before, separator, text = text.partition(word)
        if not separator or word in text:
            raise ChatProgramError(f"{word} is not there once")
        pieces.append(before)
    return [*pieces, text]


def _minus(text: str, start: str = "", end: str = "") -> str:
    if not (text.startswith(start) and text.endswith(end) and len(text) >= len(start) + len(end)):
        raise ChatProgramError(f"{text!r} is not {start!r} … {end!r}")
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
        raise ChatProgramError("an answer that was given is not where one is asked for")
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
    except ChatProgramError:
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
        raise ChatProgramError("the first turn differs")
    return ChatTemplate(**{**template.to_dict(), **values})


def _default(
    first: tuple[str, str], system: tuple[str, str], user: tuple[str, str], own: Mapping[str, str]
) -> str:
    """The default system message: the text between the system's frame and the user's."""
    words = _minus(first[0], system[0], system[1] + user[0])
    # What is said spells no special token.
    if first[1] != user[1] or SPECIAL.search(words) or any(name in words for name in own):
        raise ChatProgramError("the first turn differs")
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
            raise ChatProgramError(f"{ours} is just text here")
    for name, ours in own.items():
        text = text.replace(name, ours)
    return text


def _with_plain(template: ChatTemplate, names: Collection[str] | None) -> ChatTemplate:
    if names is None:
        return template
    if any(name in (template.default_system or "") for name in names):
        raise ChatProgramError("what is said spells no special token")
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
    return all(program(*asked) == spelt(*asked) for asked in _talks(openings))
