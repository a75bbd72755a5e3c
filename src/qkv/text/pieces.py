"""Names of special tokens, pieces that stand for bytes, and how pieces are shown to people."""

import re
from collections.abc import Sequence

PAD, UNK, BOS, EOS, MASK = "<pad>", "<unk>", "<bos>", "<eos>", "<mask>"
SPECIALS = (PAD, UNK, BOS, EOS)
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: Latin-1's visible ones for themselves, then those from U+0100.

    Hence "Ġ", U+0120, for the space, the 33rd byte without a visible character.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    shown = [*visible, *range(0x100, 0x100 + len(hidden))]
    return dict(zip(map(chr, shown), [*visible, *hidden], strict=True))


BYTE_LEVEL = _byte_level_alphabet()
_ASCII = {BYTES[byte]: chr(byte) for byte in (*b"\t\n", *range(0x20, 0x7F))}
_VISIBLE = str.maketrans({" ": "▁", "\n": "⏎", "\t": "⇥"})


def name_parts(names: Sequence[str], spelt: Sequence[bytes | None]) -> list[str]:
    """Name pieces in a row by the character that they are parts of: 爱 1/3, 爱 2/3, 爱 3/3.

    `spelt` has the bytes of pieces that are no whole characters; an incomplete one is shown as
    them. The space before the number does not break, so that it is not taken for a token's own.
    """
    named: list[str] = []
    while len(named) < len(names):
        start = len(named)
        if spelt[start] is None:
            named.append(names[start])
            continue
        count, text = _completed(spelt[start:])
        if count > 1:
            named += [f"{readable(text)}\u00a0{part}/{count}" for part in range(1, count + 1)]
        else:
            named.append(text or "".join(f"<0x{byte:02X}>" for byte in spelt[start] or b""))
    return named


def _completed(spelt: Sequence[bytes | None]) -> tuple[int, str]:
    """How many of the first pieces spell whole characters together, and which; 1 and "" if none."""
    joined = b""
    for count, part in enumerate(spelt[:4], 1):  # a character has at most four bytes
        if part is None:
            break
        joined += part
        try:
            return count, joined.decode()
        except UnicodeDecodeError:
            continue
    return 1, ""


def readable(piece: str) -> str:
    """Show a piece to a person: white space as marks, an ASCII byte as its character."""
    return _ASCII.get(piece, piece).translate(_VISIBLE)
