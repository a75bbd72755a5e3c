"""The proof that text comes back from its tokens unchanged."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from difflib import SequenceMatcher

from qkv.errors import UserError
from qkv.proofs.model_under_test import SENTENCES, ModelUnderTest, tokenizers_of
from qkv.proofs.proof import Measured, NotApplicableError
from qkv.text import Tokenizer

UNREADABLE = "\ufffd"  # what bytes become that are no character


def round_trip(tested: ModelUnderTest) -> Measured:
    """Sentences, and texts that are spelt in the vocabulary's own pieces, to tokens and back."""
    lost = tried = folded = 0
    vocabularies = tokenizers_of(tested.loaded)
    spelt = [
        [example.source for example in tested.examples],
        [example.tokens for example in tested.examples],
    ]
    for tokenizer, tokens in zip(vocabularies, spelt[-len(vocabularies) :], strict=True):
        own = (tokenizer.decode(ids) for ids in tokens)
        for text, ids in _spellable(tokenizer, [*SENTENCES, *own]):
            back = tokenizer.decode(ids)
            lost = max(lost, _changed(_folded(text), _folded(back)))
            tried, folded = tried + 1, folded + (back != text)
    if not tried:
        raise NotApplicableError("no sentence at hand can be spelt in this vocabulary")
    note = f"{tried} texts"
    if folded and not lost:
        note += f"; {folded} came back with other spaces, case or accents, by the tokenizer's rules"
    return Measured(float(lost), 0.0, note)


def _spellable(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterable[tuple[str, list[int]]]:
    """The texts that hold nothing that the vocabulary does not know, and their tokens."""
    try:
        unknown = tokenizer.unk_id
    except UserError:  # it can spell everything
        unknown = -1
    for text in texts:
        ids = tokenizer.encode(text)
        if text.strip() and UNREADABLE not in text and unknown not in ids:
            yield text, ids


def _folded(text: str) -> str:
    """What no tokenizer may lose: not spaces, case, accents and the forms of a character."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(
        character
        for character in plain
        if not (character.isspace() or unicodedata.combining(character))
    )


def _changed(before: str, after: str) -> int:
    """How many characters of the longer text are not in the other."""
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return max(len(before), len(after)) - sum(block.size for block in blocks)
