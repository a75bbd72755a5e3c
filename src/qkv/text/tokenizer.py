"""The tokenizer: a thin layer over the `tokenizers` library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import tokenizers

from qkv.errors import UserError
from qkv.files import reading, write_json, write_text
from qkv.text.offsets import ADDED_SPACE, TokenSpans, WordTokens, locate, tokens_by_word
from qkv.text.pieces import BOS, BYTE_LEVEL, BYTE_PIECE, BYTES, EOS, PAD, UNK, name_parts, readable
from qkv.text.words import Span, join_words

# The usual names of special tokens by role, the likeliest first.
USUAL_NAMES = {
    "padding": (PAD, "[PAD]", "<|pad|>"),
    "unknown": (UNK, "[UNK]", "<|unk|>"),
    "start": (BOS, "<s>", "[CLS]", "<|begin_of_text|>", "<|endoftext|>"),
    "end": (EOS, "</s>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
}
# The keys of `special_tokens_map.json`. BERT has no start and end, and uses its own two instead.
ROLE_KEYS = {
    "padding": ("pad_token",),
    "unknown": ("unk_token",),
    "start": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
}


class Tokenizer:
    """Text ⇄ token ids; special tokens are ids only, and no text can spell one."""

    def __init__(
        self, backend: tokenizers.Tokenizer, names: Mapping[str, str] | None = None
    ) -> None:
        # The library saves the padding and truncation that the last user left switched on, and it
        # does not save that "<eos>" in a text is just five characters.
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True
        self._backend = backend
        self._given = dict(names or {})

    def __len__(self) -> int:
        """One more than the highest id: some vocabularies leave ids out."""
        return max(self._backend.get_vocab().values(), default=-1) + 1

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._backend, self._given)

    @property
    def digest(self) -> str:
        """Identify the vocabulary and its special tokens."""
        content = self._backend.to_str() + json.dumps(self.names)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def names(self) -> dict[str, str]:
        """The names of the special tokens by role: those given, else the usual ones."""
        names = {role: self._name(role) for role in USUAL_NAMES}
        return {role: name for role, name in names.items() if name is not None}

    @property
    def pad_id(self) -> int:
        """The pad token, which fills a batch."""
        return self._role_id("padding")

    @property
    def unk_id(self) -> int:
        """The unknown token, for text that the vocabulary cannot spell."""
        return self._role_id("unknown")

    @property
    def bos_id(self) -> int:
        """The token that starts a sequence."""
        return self._role_id("start")

    @property
    def eos_id(self) -> int:
        """The token that ends a sequence."""
        return self._role_id("end")

    @property
    def mask_id(self) -> int:
        """The mask token, in place of a token to predict."""
        return self._role_id("mask")

    @property
    def special_ids(self) -> list[int]:
        """All special tokens, in the order of their ids."""
        return sorted(self._special_tokens())

    @property
    def special_names(self) -> list[str]:
        """The names of all special tokens, in the order of their ids."""
        return [token.content for _, token in sorted(self._special_tokens().items())]

    def special_id(self, name: str) -> int:
        """Look up a special token by its name."""
        id = self._backend.token_to_id(name)
        if id not in self._special_tokens():
            raise UserError(
                f"The tokenizer has no special token {name!r}; choose a tokenizer that has it, or "
                f"a chat template that does without, such as 'plain'."
            )
        return int(id)

    @cached_property
    def byte_ids(self) -> list[int]:
        """The pieces of the 256 bytes, <0x00> to <0xFF>; none where not all are there as bytes."""
        decoder = self._backend.decoder
        if decoder is None or decoder.decode(["<0x61>"]) != "a":
            return []
        ids = [self._backend.token_to_id(byte) for byte in BYTES]
        known = [id for id in ids if id is not None]
        return known if len(known) == len(ids) else []

    def add_special(self, names: Sequence[str]) -> int:
        """Add the special tokens that are missing at the vocabulary's end, and count those."""
        before = len(self)
        self._backend.add_special_tokens(list(names))
        return len(self) - before

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without adding special tokens."""
        ids: list[int] = self._encoded(self._backend.encode, text).ids
        return ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts in parallel."""
        encodings = self._encoded(self._backend.encode_batch_fast, texts)
        return [encoding.ids for encoding in encodings]

    def encode_by_word(self, texts: Sequence[str]) -> list[list[list[int]]]:
        """Encode texts in parallel, the ids of each word apart: no merge reaches across words."""
        encodings = self._encoded(self._backend.encode_batch, texts)
        numbered = [zip(encoding.ids, encoding.word_ids, strict=True) for encoding in encodings]
        return [
            [[id for id, _ in tokens] for _, tokens in groupby(pairs, itemgetter(1))]
            for pairs in numbered
        ]

    @property
    def merges(self) -> list[tuple[int, int, int]]:
        """Ids of left piece, right piece and their merge in the order of learning; none but BPE."""
        model = json.loads(self._backend.to_str())["model"]
        if model["type"] != "BPE":
            return []
        ids, within = model["vocab"], model.get("continuing_subword_prefix") or ""
        return [
            (ids[left], ids[right], ids[left + right.removeprefix(within)])
            for left, right in model["merges"]
        ]

    def encode_spans(self, text: str) -> TokenSpans:
        """Encode a text, with the span of characters that each token covers."""
        return self.encode_spans_many([text])[0]

    def encode_spans_many(self, texts: Sequence[str]) -> list[TokenSpans]:
        """Encode texts in parallel, with the span of characters that each token covers."""
        encodings = self._encoded(self._backend.encode_batch, texts)
        return [
            TokenSpans(encoding.ids, locate(text, encoding, self._backend.normalizer))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[WordTokens]:
        """Encode words as in their sentences, with the number of the word of each token.

        Each word has at least one token, be it the unknown one, and shares none with another: where
        the sentence has one piece for two words, each of them is encoded by itself.
        """
        joined = [join_words(words) for words in sentences]
        whole = self.encode_spans_many([text for text, _ in joined])
        return [
            self._by_word(words, tokens, spans)
            for words, tokens, (_, spans) in zip(sentences, whole, joined, strict=True)
        ]

    def _by_word(
        self, words: Sequence[str], whole: TokenSpans, spans: Sequence[Span]
    ) -> WordTokens:
        parts = WordTokens([], [], [])
        for number, tokens in enumerate(tokens_by_word(whole, spans, self._spaced)):
            start = 0
            if not tokens:
                tokens, start = self.encode_spans(words[number]), spans[number][0]
            parts.ids.extend(tokens.ids or [self.unk_id])
            parts.spans.extend([(a + start, b + start) for a, b in tokens.spans] or [spans[number]])
            parts.word.extend([number] * (len(tokens.ids) or 1))
        return parts

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text; special tokens are skipped."""
        text: str = self._backend.decode(ids)
        return text

    def n_bytes(self, id: int) -> int:
        """Count the UTF-8 bytes that a text's first token spells; a special token has none."""
        # A byte of a character decodes to U+FFFD, which has three bytes itself.
        return len(self.decode([id]).replace("\ufffd", "?").encode())

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decode sequences in parallel."""
        texts: list[str] = self._backend.decode_batch(ids)
        return texts

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Name the piece of each id, for people to read: "▁" is a space, "<0xE4>" a lone byte."""
        return [self._piece(id) for id in ids]

    def sequence_tokens(self, ids: Sequence[int]) -> list[str]:
        """Name the pieces of a text; those that spell one character together bear its name."""
        return name_parts(self.tokens(ids), [self._partial_bytes(id) for id in ids])

    def save(self, path: Path) -> None:
        """Write a `tokenizer.json`, which the `tokenizers` library itself loads.

        Unusual names of special tokens go into a `special_tokens_map.json` beside it.
        """
        write_text(path, self._backend.to_str(pretty=True))
        unusual = {
            ROLE_KEYS[role][0]: name
            for role, name in self.names.items()
            if name != self._usual_name(role)
        }
        if unusual:
            write_json(_map_path(path), unusual)
        else:
            _map_path(path).unlink(missing_ok=True)

    def to_json(self) -> str:
        """Return what `tokenizer.json` holds."""
        return self._backend.to_str()

    @classmethod
    def from_json(cls, content: str) -> Tokenizer:
        """Make a tokenizer from what `to_json` has returned."""
        return cls(tokenizers.Tokenizer.from_str(content))

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a `tokenizer.json`, made here or elsewhere."""
        with reading(path, "tokenizer"):
            content = path.read_bytes()
        with library_errors(f"{path} is not a whole tokenizer.json", "save or download it again"):
            backend = tokenizers.Tokenizer.from_str(content.decode())
        return cls(backend, _read_names(_map_path(path)))

    @cached_property
    def _spaced(self) -> bool:
        """Whether a text that begins with a word gets a space before it."""
        tokens = self._backend.encode("a", add_special_tokens=False).tokens
        return "".join(tokens).startswith(ADDED_SPACE)

    @staticmethod
    def _encoded(encode: Callable[..., Any], given: str | Sequence[str]) -> Any:
        with encoding():
            return encode(given, add_special_tokens=False)

    def _special_tokens(self) -> dict[int, tokenizers.AddedToken]:
        added = self._backend.get_added_tokens_decoder()
        return {id: token for id, token in added.items() if token.special}

    def _role_id(self, role: str) -> int:
        name = self._name(role)
        id = None if name is None else self._backend.token_to_id(name)
        if id is None:
            raise UserError(
                f"The tokenizer has no {role} token; add one of: {', '.join(USUAL_NAMES[role])}."
            )
        return int(id)

    def _name(self, role: str) -> str | None:
        given = self._given.get(role)
        if given is not None and self._backend.token_to_id(given) is not None:
            return given
        return self._usual_name(role)

    def _usual_name(self, role: str) -> str | None:
        usual = USUAL_NAMES[role]
        return next((name for name in usual if self._backend.token_to_id(name) is not None), None)

    def _partial_bytes(self, id: int) -> bytes | None:
        """The bytes of a piece that does not spell whole characters by itself."""
        piece = self._backend.id_to_token(id)
        if piece is None:
            return None
        if byte := BYTE_PIECE.fullmatch(piece):
            number = int(byte[1], 16)
            return bytes([number]) if number > 0x7F else None
        byte_level = isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel)
        if not byte_level or not all(character in BYTE_LEVEL for character in piece):
            return None
        spelt = bytes(BYTE_LEVEL[character] for character in piece)
        return spelt if "\ufffd" in spelt.decode(errors="replace") else None

    def _piece(self, id: int) -> str:
        piece = self._backend.id_to_token(id)
        if piece is None:
            return f"<no piece {id}>"
        if isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel):
            # GPT-2 writes 我 as "æĪĳ"; keep that for parts of characters only.
            text = self._backend.decode([id], skip_special_tokens=False)
            piece = piece if "\ufffd" in text else text
        return readable(piece)


@contextmanager
def encoding() -> Iterator[None]:
    """Say in one sentence that a vocabulary lacks what a text is encoded with."""
    way_out = "save or download it again"
    with library_errors("The tokenizer cannot encode the text", way_out, passing=TypeError):
        yield


@contextmanager
def library_errors(
    problem: str, way_out: str, passing: type[Exception] = UserError
) -> Iterator[None]:
    """Turn what the library of tokenizers raises into one sentence: it raises nothing precise."""
    try:
        yield
    except (UserError, passing):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # Ctrl-C, and not what the library's Rust calls a panic
        raise UserError(f"{problem} ({error}); {way_out}.") from error


def role_names(tokens: Mapping[str, Any]) -> dict[str, str]:
    """Read the roles from a Hugging Face mapping, "pad_token" and the like → a token's name."""
    names = {}
    for role, keys in ROLE_KEYS.items():
        for key in reversed(keys):
            token = tokens.get(key)  # its name or, in older files, an object that holds it
            content = token.get("content") if isinstance(token, dict) else token
            if content and isinstance(content, str):
                names[role] = content
    return names


def _map_path(path: Path) -> Path:
    """The map's name beside a tokenizer's: `source_tokenizer.json` has its own map."""
    name = "tokenizer.json"
    before = path.name.removesuffix(name) if path.name.endswith(name) else f"{path.stem}_"
    return path.with_name(f"{before}special_tokens_map.json")


def _read_names(path: Path) -> dict[str, str]:
    try:
        return role_names(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} is not a whole map of special tokens ({error}); save or download it again, "
            f"or delete it if the tokens have their usual names."
        ) from error
