"""Changes to valid files that keep most of their structure, drawn at random."""

from __future__ import annotations

import json
import math
import random
import re
import struct
import tomllib
from collections.abc import Callable
from typing import Any

from qkv.config import to_toml

Mutation = Callable[[bytes, random.Random], bytes]
INTEGERS = (0, 1, 2, 3, 7, 255, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63)
TEXTS = (
    "",
    " ",
    "\0",
    "../../outside.txt",
    "/etc/passwd",
    "a" * 5000,
    "\ud800",
    "{content}",
    "%s{}",
    "\u2028\u0085",
    "1e999",
    "我",
    "<eos>",
)
BYTES = (
    *(text.encode("utf-8", "surrogatepass") for text in TEXTS),
    *(b"\t", b"\n", b"\r", b"\r\n", b"\n\n", b'"', b"'", b",", b"\\", b"[", b"]", b"{", b"}"),
    *(b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"-", b"#", b"=", b":", b"1" * 5000, b"NaN"),
    *(b"[" * 3000, b'{"a":' * 3000, b"null", b"-1", b"true", b"0.5", b"9" * 400),
)


def mutate_bytes(content: bytes, draw: random.Random) -> bytes:
    """Change, cut, repeat or insert bytes anywhere."""
    start = draw.randrange(len(content) + 1)
    end = min(len(content), start + draw.choice((1, 1, 2, 8, 64)))
    before, some, after = content[:start], content[start:end], content[end:]
    kind = draw.randrange(6)
    if kind == 0 and some:
        return before + bytes([some[0] ^ 1 << draw.randrange(8)]) + some[1:] + after
    if kind == 1:
        return before + after
    if kind == 2:
        return before + some * draw.choice((2, 50)) + after
    if kind == 3:
        return before
    return before + draw.choice(BYTES) + (some if kind == 4 else b"") + after


def mutate_numbers(content: bytes, draw: random.Random) -> bytes:
    """Replace a number that is written in digits."""
    matches = list(re.finditer(rb"\d+", content))
    if not matches:
        return mutate_bytes(content, draw)
    match = draw.choice(matches)
    number = draw.choice((*INTEGERS, -1, 1e308, 0.5, "NaN", "1e999", "9" * 5000))
    return content[: match.start()] + str(number).encode() + content[match.end() :]


def mutate_lines(content: bytes, draw: random.Random) -> bytes:
    """Drop, repeat, join or move lines."""
    lines = content.split(b"\n")
    i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(4)
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(j, lines[i])
    elif kind == 2:
        lines[i], lines[j] = lines[j], lines[i]
    else:
        lines[i] += draw.choice((b"\t", b",", b" ")) + lines[j]
    return b"\n".join(lines)


def _any_value(draw: random.Random) -> Any:
    deep: Any = []
    for _ in range(draw.choice((1, 100, 900))):
        deep = [deep] if draw.random() < 0.9 else {"a": deep}
    return draw.choice(
        [
            *(None, True, False, -1, 0.5, -0.0, 1e308, math.nan, math.inf, -(2**63), 10**400),
            *INTEGERS,
            *TEXTS,
            *([], {}, [0], [None], ["a", 1], {"a": None}, {"": {}}, deep, [[]] * 1000),
            [list(range(2000))],
        ]
    )


def _nodes(tree: Any) -> list[tuple[Any, Any]]:
    """List each container with each of its keys or indices."""
    found, waiting = [], [tree]
    while waiting and len(found) < 20_000:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            found.append((node, key))
            if isinstance(node[key], dict | list):
                waiting.append(node[key])
    return found


def mutate_tree(tree: Any, draw: random.Random) -> Any:
    """Change a value's type, drop, rename or repeat a key, or swap two values, in place."""
    nodes = _nodes(tree) if isinstance(tree, dict | list) else []
    if not nodes:
        return _any_value(draw)
    # Large vocabularies would draw all changes: take the depth first
    node, key = draw.choice(nodes[: draw.choice((10, 40, len(nodes)))])
    kind = draw.randrange(8)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[draw.choice([*TEXTS, *(str(k) for _, k in nodes[:50])])] = node.pop(key)
    elif kind == 2:
        other, k = draw.choice(nodes)
        node[key], other[k] = other[k], node[key]
    elif kind == 3 and isinstance(node, list):
        node.extend([node[key]] * draw.choice((1, 100)))
    elif kind == 4 and isinstance(node[key], int | float) and not isinstance(node[key], bool):
        node[key] = draw.choice((-node[key], node[key] + 1, node[key] * 2**20, str(node[key])))
    else:
        node[key] = _any_value(draw)
    return tree


def _dump(tree: Any) -> bytes:
    try:
        return json.dumps(tree).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # a value that was swapped into itself
        return b"[" * 5000


def mutate_json(content: bytes, draw: random.Random) -> bytes:
    """Change the values of a JSON file."""
    if draw.random() < 0.15:
        return mutate_bytes(content, draw)
    try:
        return _dump(mutate_tree(json.loads(content), draw))
    except (ValueError, RecursionError):
        return mutate_bytes(content, draw)


def mutate_jsonl(content: bytes, draw: random.Random) -> bytes:
    """Change the values of one line of a JSON-lines file."""
    lines = content.split(b"\n")
    i = draw.randrange(len(lines))
    lines[i] = mutate_json(lines[i], draw)
    return b"\n".join(lines)


def mutate_toml(content: bytes, draw: random.Random) -> bytes:
    """Change the values of a TOML file."""
    if draw.random() < 0.3:
        return draw.choice((mutate_bytes, mutate_numbers, mutate_lines))(content, draw)
    try:
        return to_toml(mutate_tree(tomllib.loads(content.decode()), draw)).encode()
    except (ValueError, AttributeError, RecursionError):
        return mutate_bytes(content, draw)


def mutate_safetensors(content: bytes, draw: random.Random) -> bytes:
    """Change the header: shapes, types, offsets that overlap or reach out; or its length."""
    (size,) = struct.unpack_from("<Q", content) if len(content) >= 8 else (0,)
    header, data = content[8 : 8 + size], content[8 + size :]
    kind = draw.randrange(6)
    if kind == 0:
        return mutate_bytes(content, draw)
    if kind == 1:
        return struct.pack("<Q", draw.choice((*INTEGERS, size + 1, size - 1)) % 2**64) + content[8:]
    header = (mutate_numbers if kind == 2 else mutate_json)(header, draw)
    if kind == 3:
        data = data[: draw.randrange(len(data) + 1)]
    return struct.pack("<Q", len(header)) + header + data


def _gguf_fields(content: bytes) -> list[tuple[int, str]]:
    """Find where the numbers of a GGUF file's header are, with their formats."""
    fields: list[tuple[int, str]] = []
    at = 4

    def number(code: str) -> int:
        nonlocal at
        fields.append((at, code))
        (value,) = struct.unpack_from(f"<{code}", content, at)
        at += struct.calcsize(f"<{code}")
        return value

    def text() -> None:
        nonlocal at
        at += number("Q")

    def value(kind: int) -> None:
        codes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B"}
        if kind == 8:
            text()
        elif kind == 9:
            inner, n_values = number("I"), number("Q")
            for _ in range(n_values):
                value(inner)
        else:
            number({**codes, 10: "Q", 11: "q", 12: "d"}[kind])

    number("I")
    n_tensors, n_values = number("Q"), number("Q")
    for _ in range(n_values):
        text()
        value(number("I"))
    for _ in range(n_tensors):
        text()
        for _ in range(number("I")):  # an earlier change may have said too many
            number("Q")
        number("I")
        number("Q")
    return fields


def mutate_gguf(content: bytes, draw: random.Random) -> bytes:
    """Change a number, type, length or offset of the header, or any bytes."""
    kind = draw.randrange(4)
    try:
        fields = _gguf_fields(content)
    except (struct.error, KeyError):
        kind = 0
    if kind == 0:
        return mutate_bytes(content, draw)
    if kind == 1:  # a name, so that something is missing or twice
        names = rb"(attn_q|ffn_up|token_embd|block_count|tokens)"
        return re.sub(names, _twisted(draw), content, count=1)
    at, code = draw.choice(fields)
    width = struct.calcsize(code)
    (old,) = struct.unpack_from(f"<{code}", content, at)
    if code in "fd":
        new = struct.pack(f"<{code}", draw.choice((math.nan, math.inf, 0.0, -1.0, 1e30)))
    else:
        changed = draw.choice((*INTEGERS, old + 1, old - 1, old * 2, 12, 30, 2**64 - 1))
        new = (int(changed) % 256**width).to_bytes(width, "little")
    return content[:at] + new + content[at + width :]


def _twisted(draw: random.Random) -> Callable[[re.Match[bytes]], bytes]:
    def change(match: re.Match[bytes]) -> bytes:
        name = bytearray(match[0])
        draw.shuffle(name)
        return bytes(name)

    return change


def mutate_text(content: bytes, draw: random.Random) -> bytes:
    """Change lines, numbers or bytes."""
    return draw.choice((mutate_bytes, mutate_bytes, mutate_lines, mutate_numbers))(content, draw)
