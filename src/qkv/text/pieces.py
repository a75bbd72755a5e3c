"""The pieces that stand in a vocabulary before any text is seen, and those that text brings."""

from collections import Counter

PAD, UNK, BOS, EOS, MASK = "<pad>", "<unk>", "<bos>", "<eos>", "<mask>"
SPECIALS = (PAD, UNK, BOS, EOS)
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))

# SentencePiece's default: characters rarer than this would fill a vocabulary with embeddings that
# are hardly ever trained; they are spelt in bytes instead.
COVERAGE = 0.9995


def alphabet(counts: Counter[str], room: int, coverage: float) -> list[str]:
    """Choose the commonest characters, until `coverage` of the text or `room` is reached."""
    kept: list[str] = []
    missing = sum(counts.values()) * coverage
    # Ties go by code point, so that the same text always gives the same alphabet.
    for character in sorted(counts, key=lambda character: (-counts[character], character)):
        if missing <= 0 or len(kept) == room:
            break
        kept.append(character)
        missing -= counts[character]
    return sorted(kept)


def readable(piece: str) -> str:
    """Show a piece to a person: white space as marks, an ASCII byte as its character."""
    if piece in _BYTE_CHARACTERS:
        piece = _BYTE_CHARACTERS[piece]
    return piece.translate(_VISIBLE)


_BYTE_CHARACTERS = {BYTES[byte]: chr(byte) for byte in (*b"\t\n", *range(0x20, 0x7F))}
_VISIBLE = str.maketrans({" ": "▁", "\n": "⏎", "\t": "⇥"})
