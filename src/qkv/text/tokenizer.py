"""The tokenizer: a thin layer over the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from qkv.errors import UserError
from qkv.files import write_text
from qkv.text.pieces import BOS, EOS, PAD, UNK, readable
from qkv.text.spans import Span, Spelt, SpeltWords, join_words, locate, moved, own_tokens

# What other people's tokenizers call the same tokens, the likeliest name first.
USUAL_NAMES = {
    "padding": (PAD, "[PAD]", "<|pad|>"),
    "unknown": (UNK, "[UNK]", "<|unk|>"),
    "start": (BOS, "<s>", "[CLS]", "<|begin_of_text|>", "<|endoftext|>"),
    "end": (EOS, "</s>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
}


class Tokenizer:
    """Text ⇄ token ids; special tokens are ids only, and no text can spell one."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        # The library saves the padding and truncation that the last user left switched on, and it
        # does not save that "<eos>" in a text is just five characters.
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True
        self._backend = backend

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._backend,)

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
        for number, own in enumerate(own_tokens(whole, places)):
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
        """Write a `tokenizer.json`, which the `tokenizers` library itself loads."""
        write_text(path, self._backend.to_str(pretty=True))

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a `tokenizer.json`, ours or anybody's."""
        try:
            return cls(tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise UserError(f"There is no tokenizer {path}; check the path.") from error
        except OSError as error:
            raise UserError(f"The tokenizer {path} cannot be read: {error.strerror}.") from error
        except Exception as error:  # the library raises nothing more precise
            raise UserError(
                f"{path} is not a whole tokenizer.json ({error}); save or download it again."
            ) from error

    def _special(self, role: str) -> int:
        for name in USUAL_NAMES[role]:
            id = self._backend.token_to_id(name)
            if id is not None:
                return int(id)
        raise UserError(
            f"The tokenizer has no {role} token; add one of: {', '.join(USUAL_NAMES[role])}."
        )

    def _piece(self, id: int) -> str:
        piece = self._backend.id_to_token(id)
        if piece is None:
            return f"<no piece {id}>"
        if isinstance(self._backend.decoder, tokenizers.decoders.ByteLevel):
            # GPT-2's way writes 我 as "æĪĳ"; keep that for parts of characters only.
            text = self._backend.decode([id], skip_special_tokens=False)
            piece = piece if "\ufffd" in text else text
        return readable(piece)
