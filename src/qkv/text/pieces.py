"""Names of special tokens, pieces that stand for bytes, and how pieces are shown to people."""

import re

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


def readable(piece: str) -> str:
    """Show a piece to a person: white space as marks, an ASCII byte as its character."""
    return _ASCII.get(piece, piece).translate(_VISIBLE)
