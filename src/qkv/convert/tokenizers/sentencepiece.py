"""SentencePiece's `.model` and `.spm` files, read without its library."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from qkv.errors import UserError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # the types of pieces
NEVER_SPELT = (UNKNOWN, CONTROL, UNUSED, BYTE)
UNKNOWN_PENALTY = 10  # how much worse than all pieces SentencePiece takes an unknown one to be
HIDDEN = 7  # our own: a piece that has an id but is no piece of this model
UNIGRAM, BPE, WORD, CHAR = range(1, 5)
SPACE = "▁"

Value = int | bytes


@dataclass(frozen=True)
class Piece:
    """An entry of the vocabulary."""

    text: str
    score: float
    type: int = NORMAL


@dataclass(frozen=True)
class SentencePiece:
    """What a SentencePiece file says."""

    pieces: tuple[Piece, ...]
    model_type: int
    byte_fallback: bool
    ids: Mapping[str, int]  # role → id, for those of padding, unknown, start and end that it has
    normalizer: str
    charsmap: bytes  # the compiled rules that replace characters; empty for none
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool

    @property
    def unk_id(self) -> int:
        """The piece for what the others cannot spell."""
        return self.ids["unknown"]

    @property
    def names(self) -> dict[str, str]:
        """The special tokens' names by their roles."""
        return {role: self.pieces[id].text for role, id in self.ids.items()}


def read_sentencepiece(path: Path) -> SentencePiece:
    """Read a SentencePiece file."""
    try:
        model = _model(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:
        raise UserError(f"{path} is not a whole SentencePiece model; fetch it again.") from error
    if model.model_type == WORD or not model.escape_whitespaces:
        raise UserError(
            f"{path} cuts text into whole words or keeps spaces as they are, which is not "
            f"supported; use a SentencePiece model of type unigram, bpe or char."
        )
    return model


# The file is one protobuf message. On the wire a field is a key (number and wire type) and a
# value; field numbers are those of SentencePiece's published schema.


def _model(content: bytes) -> SentencePiece:
    fields = list(_fields(content))
    pieces = tuple(_piece(value) for number, value in fields if number == 1)
    trainer, normalizer = _message(fields, 2), _message(fields, 3)
    if not pieces or trainer.get(24):
        raise ValueError("no pieces, or spaces that end words")
    roles = {"unknown": (40, 0), "start": (41, 1), "end": (42, 2), "padding": (43, -1)}
    ids = {role: _signed(trainer.get(key, default)) for role, (key, default) in roles.items()}
    known = {role: id for role, id in ids.items() if 0 <= id < len(pieces)}
    # The trainer's word may be stale in files that were edited; a piece's type is what counts.
    known["unknown"] = [piece.type for piece in pieces].index(UNKNOWN)
    return SentencePiece(
        pieces=pieces,
        model_type=_number(trainer.get(3, UNIGRAM)),
        byte_fallback=bool(trainer.get(35, 0)),
        ids=known,
        normalizer=_bytes(normalizer.get(1, b"")).decode(),
        charsmap=_bytes(normalizer.get(2, b"")),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        escape_whitespaces=bool(normalizer.get(5, 1)),
    )


def _piece(value: Value) -> Piece:
    fields = dict(_fields(_bytes(value)))
    (score,) = struct.unpack("<f", _bytes(fields.get(2, b"\0\0\0\0")))
    return Piece(_bytes(fields[1]).decode(), score, _number(fields.get(3, NORMAL)))


def _message(fields: Sequence[tuple[int, Value]], number: int) -> dict[int, Value]:
    return dict(_fields(_bytes(next((value for key, value in fields if key == number), b""))))


def _fields(content: bytes) -> Iterator[tuple[int, Value]]:
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(content, position)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(wire)
        if size is None:
            if wire != 2:
                raise ValueError(f"wire type {wire}")
            size, position = _varint(content, position)
        if position + size > len(content):
            raise ValueError("cut short")
        yield number, content[position : position + size]
        position += size


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """Seven bits a byte, the low ones first; the eighth says that another byte follows."""
    value = shift = 0
    while True:
        byte = content[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("a number where bytes belong")
    return value


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise TypeError("bytes where a number belongs")
    return value


def _signed(value: Value) -> int:
    """-1 travels as a 64-bit number."""
    number = _number(value)
    return number - (1 << 64) if number >= 1 << 63 else number


def build_backend(model: SentencePiece) -> tokenizers.Tokenizer:
    """Build a tokenizer that gives the ids that SentencePiece gives."""
    if model.model_type == UNIGRAM:
        scores = [(piece.text, score) for piece, score in scored(model)]
        backend = tokenizers.Tokenizer(models.Unigram(scores, model.unk_id, model.byte_fallback))
    else:
        backend = tokenizers.Tokenizer(_bpe(model))
    backend.normalizer = normalizer(model)
    backend.decoder = decoder(model)
    backend.add_special_tokens(texts(model, UNKNOWN, CONTROL))
    if model.model_type == UNIGRAM:
        keep_unspelt(backend, texts(model, *NEVER_SPELT))
    else:
        symbols = texts(model, USER_DEFINED)
        backend.add_tokens([AddedToken(symbol, normalized=False) for symbol in symbols])
    return backend


def renumbered(
    model: SentencePiece, names: Sequence[str], special: Mapping[str, str]
) -> SentencePiece:
    """Give pieces the ids of another vocabulary, whose further pieces are hidden from texts.

    Of these, a single character stands for itself where it would be unknown.
    """
    own = {piece.text: piece for piece in model.pieces if piece.type not in (UNKNOWN, CONTROL)}
    for role, name in special.items():
        own[name] = Piece(name, 0.0, UNKNOWN if role == "unknown" else CONTROL)
    worst = min(piece.score for piece in model.pieces if piece.type == NORMAL)
    pieces = [own.get(name) or _foreign(name, worst - UNKNOWN_PENALTY) for name in names]
    ids = {role: names.index(name) for role, name in special.items()}
    return replace(model, pieces=tuple(pieces), ids=ids)


def _foreign(name: str, score: float) -> Piece:
    # Normal form has "▁" for each space, so that no text can spell a piece with a space.
    return Piece(name, score) if len(name) == 1 else Piece(f" {name}", 0.0, HIDDEN)


def texts(model: SentencePiece, *types: int) -> list[str]:
    """The pieces of some types."""
    return [piece.text for piece in model.pieces if piece.type in types]


def scored(model: SentencePiece) -> Iterator[tuple[Piece, float]]:
    """The pieces with the scores that they have in the search for the best spelling."""
    best = max((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)
    for piece in model.pieces:
        # SentencePiece's own bonus, which makes sure that such a symbol is never cut
        bonus = len(piece.text.encode()) * best - 0.1
        score = bonus if piece.type == USER_DEFINED else piece.score
        # Of more digits, the library would not read from its file what it wrote.
        yield piece, float(f"{score:.15g}")


def keep_unspelt(backend: tokenizers.Tokenizer, names: Sequence[str]) -> None:
    """Cut texts that spell one of these pieces after its first character.

    A Unigram model looks pieces up by their text alone, so "</s>" in a text would end it.
    """
    rests: dict[str, list[str]] = {}
    for name in names:
        if len(name) > 1:
            rests.setdefault(re.escape(name[0]), []).append(re.escape(name[1:]))
    if rests:
        starts = "|".join(f"{first}(?={'|'.join(after)})" for first, after in rests.items())
        cut = pre_tokenizers.Split(Regex(starts), "merged_with_previous")
        before = backend.pre_tokenizer
        if before and cut.__getstate__() in before.__getstate__():
            return  # as what we wrote ourselves is
        backend.pre_tokenizer = pre_tokenizers.Sequence([before, cut]) if before else cut


def _bpe(model: SentencePiece) -> models.Model:
    """The pair with the best piece is merged first, so a piece's score is its merges' rank."""
    vocabulary = {piece.text: id for id, piece in enumerate(model.pieces)}
    scores = {piece.text: piece.score for piece in model.pieces if piece.type == NORMAL}
    merges = [
        (whole[:cut], whole[cut:])
        for whole in sorted(scores, key=lambda text: -scores[text])
        for cut in range(1, len(whole))
        if whole[:cut] in scores and whole[cut:] in scores
    ]
    if model.model_type == CHAR:
        merges = []
    return models.BPE(
        vocabulary,
        merges,
        unk_token=model.pieces[model.unk_id].text,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def normalizer(model: SentencePiece) -> normalizers.Normalizer:
    """SentencePiece's way from text to the string that is cut into pieces."""
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        if "nfkc" in model.normalizer:  # whose rules the library misses after the first mark
            steps.append(normalizers.NFC())
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def decoder(model: SentencePiece) -> decoders.Decoder:
    """The way back: spaces, lone bytes, and without the space that stands before every text."""
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if any(piece.type == HIDDEN for piece in model.pieces):
        steps.insert(0, decoders.Replace(" ", ""))
    if model.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(" ", left=1))
    return decoders.Sequence(steps)
