"""The tokenizer: a thin layer over the `tokenizers` library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from qkv.errors import UserError
from qkv.files import write_json, write_text
from qkv.text.pieces import BOS, EOS, PAD, UNK, readable
from qkv.text.spans import (
    ADDED_SPACE,
    Span,
    Spelt,
    SpeltWords,
    join_words,
    locate,
    moved,
    own_tokens,
)

# What other people's tokenizers call the same tokens, the likeliest name first.
USUAL_NAMES = {
    "padding": (PAD, "[PAD]", "<|pad|>"),
    "unknown": (UNK, "[UNK]", "<|unk|>"),
    "start": (BOS, "<s>", "[CLS]", "<|begin_of_text|>", "<|endoftext|>"),
    "end": (EOS, "</s>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
}

# The field's own words for the roles. BERT's line has no start and end, and uses its own two so.
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
        return int(self._backend.get_vocab_size())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._backend, self._given)

    @property
    def digest(self) -> str:
        """Identify the vocabulary and its special tokens."""
        content = self._backend.to_str() + json.dumps(self.names)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def names(self) -> dict[str, str]:
        """What the tokens of the known roles are called: those given, else the usual names."""
        found = {role: self._name(role) for role in USUAL_NAMES}
        return {role: name for role, name in found.items() if name is not None}

    @cached_property
    def _spaced(self) -> bool:
        """Whether a text that begins with a word gets a space before it."""
        tokens = self._backend.encode("a", add_special_tokens=False).tokens
        return "".join(tokens).startswith(ADDED_SPACE)

    @property
    def pad_id(self) -> int:
        """The token that fills a batch."""
        return self._special("padding")

    @property
    def unk_id(self) -> int:
        """The token for what the vocabulary cannot spell."""
        return self._special("unknown")

    @property
    def bos_id(self) -> int:
        """The token that starts a sequence."""
        return self._special("start")

    @property
    def eos_id(self) -> int:
        """The token that ends a sequence."""
        return self._special("end")

    @property
    def mask_id(self) -> int:
        """The token that stands where one is to be guessed."""
        return self._special("mask")

    @property
    def special_ids(self) -> list[int]:
        """All special tokens, in the order of their ids."""
        added = self._backend.get_added_tokens_decoder()
        return sorted(id for id, token in added.items() if token.special)

    @property
    def special_names(self) -> list[str]:
        """What all special tokens are called, in the order of their ids."""
        added = self._backend.get_added_tokens_decoder()
        return [added[id].content for id in self.special_ids]

    def special_id(self, name: str) -> int:
        """Look up a special token by its name."""
        id = self._backend.token_to_id(name)
        added = self._backend.get_added_tokens_decoder()
        if id not in added or not added[id].special:
            raise UserError(
                f"The tokenizer has no special token {name!r}; choose a tokenizer that has it, or "
                f"a chat template that does without, such as 'plain'."
            )
        return int(id)

    def add_special(self, names: Sequence[str]) -> int:
        """Add the special tokens that are missing at the vocabulary's end, and count those."""
        before = len(self)
        self._backend.add_special_tokens(list(names))
        return len(self) - before

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without adding special tokens."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts in parallel."""
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def spell(self, text: str) -> Spelt:
        """Encode a text, and say which of its characters each token stands for."""
        return self.spell_many([text])[0]

    def spell_many(self, texts: Sequence[str]) -> list[Spelt]:
        """Encode texts in parallel, and say which of its characters each token stands for."""
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        return [
            Spelt(encoding.ids, locate(text, encoding, self._backend.normalizer))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def spell_words(self, words: Sequence[str]) -> SpeltWords:
        """Encode words as in a sentence, and say which of them each token belongs to.

        Each word has at least one token, be it the unknown one, and none in common with another:
        where the sentence has one piece for two words, they are spelt each by itself.
        """
        return self.spell_words_many([words])[0]

    def spell_words_many(self, sentences: Sequence[Sequence[str]]) -> list[SpeltWords]:
        """Encode the words of sentences in parallel, each as `spell_words` does."""
        joined = [join_words(words) for words in sentences]
        whole = self.spell_many([text for text, _ in joined])
        return [
            self._by_word(words, spelt, places)
            for words, spelt, (_, places) in zip(sentences, whole, joined, strict=True)
        ]

    def _by_word(self, words: Sequence[str], whole: Spelt, places: Sequence[Span]) -> SpeltWords:
        ids, spans, word = [], [], []
        for number, own in enumerate(own_tokens(whole, places, self._spaced)):
            alone = own or moved(self.spell(words[number]), places[number][0])
            ids += alone.ids or [self.unk_id]
            spans += alone.spans or [places[number]]
            word += [number] * (len(alone.ids) or 1)
        return SpeltWords(ids, spans, word)

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text; special tokens are skipped."""
        text: str = self._backend.decode(ids)
        return text

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decode sequences in parallel."""
        texts: list[str] = self._backend.decode_batch(ids)
        return texts

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Name the piece of each id, for people to read: "▁" is a space, "<0xE4>" a lone byte."""
        return [self._piece(id) for id in ids]

    def save(self, path: Path) -> None:
        """Write a `tokenizer.json`, which the `tokenizers` library itself loads.

        Special tokens that go by unusual names are told in a `special_tokens_map.json` beside it.
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

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a `tokenizer.json`, ours or anybody's."""
        try:
            backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UserError(f"There is no tokenizer {path}; check the path.") from error
        except OSError as error:
            raise UserError(f"The tokenizer {path} cannot be read: {error.strerror}.") from error
        except Exception as error:  # the library raises nothing more precise
            raise UserError(
                f"{path} is not a whole tokenizer.json ({error}); save or download it again."
            ) from error
        return cls(backend, _read_names(_map_path(path)))

    def _special(self, role: str) -> int:
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

    def _piece(self, id: int) -> str:
        piece = self._backend.id_to_token(id)
        if piece is None:
            return f"<no piece {id}>"
        if isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel):
            # GPT-2's way writes 我 as "æĪĳ"; keep that for parts of characters only.
            text = self._backend.decode([id], skip_special_tokens=False)
            piece = piece if "\ufffd" in text else text
        return readable(piece)


def role_names(tokens: Mapping[str, Any]) -> dict[str, str]:
    """Read the roles from a Hugging Face mapping, "pad_token" and the like → a token's name."""
    names = {}
    for role, keys in ROLE_KEYS.items():
        contents = (_content(tokens.get(key)) for key in keys)
        name = next((content for content in contents if content), None)
        if name:
            names[role] = name
    return names


def _content(token: Any) -> str | None:
    """A token stands as its name or, in older files, as an object that holds it."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _map_path(path: Path) -> Path:
    """The map's name beside a tokenizer's: `source_tokenizer.json` has one of its own."""
    own = "tokenizer.json"
    before = path.name.removesuffix(own) if path.name.endswith(own) else f"{path.stem}_"
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
