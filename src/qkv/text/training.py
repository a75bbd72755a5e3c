"""Training a tokenizer: one builder for each kind, all on the same road."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import tokenizers
from tokenizers import models, trainers

from qkv.config import TokenizerConfig
from qkv.errors import UserError
from qkv.text import road
from qkv.text.pieces import BYTES, COVERAGE, SPECIALS, UNK, alphabet
from qkv.text.tokenizer import Tokenizer
from qkv.text.unigram import learn_unigram

FIXED = (*SPECIALS, *BYTES)
LONGEST_PIECE = 16  # characters; else a clause that occurs twice becomes a piece of a small corpus
SEEDS = 4  # Unigram starts from this many times as many pieces as it is to keep


def train_tokenizer(lines: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train a tokenizer on lines of text, or load the one that `config.path` names."""
    return _train(lines, config, "The text")


def train_pair(
    source: Iterable[str], target: Iterable[str], config: TokenizerConfig
) -> tuple[Tokenizer, Tokenizer]:
    """Train the source's and the target's tokenizer; a shared (or given) one comes back twice."""
    if config.shared or config.path:
        both = _train(chain(source, target), config, "The text")
        return both, both
    return _train(source, config, "The source"), _train(target, config, "The target")


def _train(lines: Iterable[str], config: TokenizerConfig, what: str) -> Tokenizer:
    if config.path:
        return Tokenizer.load(Path(config.path))
    _check_size(config)
    normalizer = road.normalizer(config)
    if config.kind == "byte":
        model = _spelling([])
    else:
        texts = [normalizer.normalize_str(line) for line in lines]
        if not any(text.strip() for text in texts):
            raise UserError(
                f"{what} to train a tokenizer on holds no text; give it at least one line of words."
            )
        model = BUILDERS[config.kind](texts, config.vocab_size)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizer
    backend.pre_tokenizer = road.pre_tokenizer(config.kind)
    backend.decoder = road.decoder(config.kind)
    backend.add_special_tokens(list(SPECIALS))
    return Tokenizer(backend)


def _check_size(config: TokenizerConfig) -> None:
    if config.kind != "wordpiece" and config.vocab_size < len(FIXED):
        raise UserError(
            f"tokenizer: vocab_size is {config.vocab_size}, but kind '{config.kind}' needs at "
            f"least {len(FIXED)}: {len(SPECIALS)} special tokens and a piece for each of 256 bytes."
        )


def _bpe(texts: Sequence[str], vocab_size: int) -> models.Model:
    # Characters are the base, and bytes only a way out for rare ones: byte-level BPE would spend
    # merges on putting each Chinese character (three bytes) and each umlaut together again.
    letters, texts = _letters(texts, vocab_size - len(FIXED), COVERAGE)
    vocabulary, merges = _merges(texts, [*FIXED, *letters], vocab_size, "bpe")
    return models.BPE(vocabulary, merges, unk_token=UNK, byte_fallback=True)


def _unigram(texts: Sequence[str], vocab_size: int) -> models.Model:
    room = vocab_size - len(FIXED)
    letters, texts = _letters(texts, room, COVERAGE)
    seeds, _ = _merges(texts, letters, SEEDS * room, "unigram")
    scores = learn_unigram(_runs(texts, "unigram"), seeds, room)
    fixed = [(piece, 0.0) for piece in FIXED]
    return models.Unigram([*fixed, *scores.items()], FIXED.index(UNK), True)


def _wordpiece(texts: Sequence[str], vocab_size: int) -> models.Model:
    # Each character may need two pieces, one at the start of a run and one within it: with both,
    # no text of known characters is ever <unk>. Chinese characters are never within.
    letters, texts = _letters(texts, (vocab_size - len(SPECIALS)) // 2, 1.0)
    runs = _runs([f" {letter}{letter}" for letter in letters], "wordpiece")
    within = sorted({letter for run in runs for letter in run[1:]})
    fixed = [*SPECIALS, *letters, *(road.CONTINUES + letter for letter in within)]
    vocabulary, _ = _merges(texts, fixed, vocab_size, "wordpiece")
    return models.WordPiece(vocabulary, unk_token=UNK, max_input_chars_per_word=road.LONGEST_WORD)


def _char(texts: Sequence[str], vocab_size: int) -> models.Model:
    letters, _ = _letters(texts, vocab_size - len(FIXED), 1.0)
    return _spelling(letters)


def _spelling(letters: Sequence[str]) -> models.Model:
    """BPE that merges nothing: characters that it knows, bytes for all others."""
    vocabulary = {piece: id for id, piece in enumerate([*FIXED, *letters])}
    return models.BPE(vocabulary, [], unk_token=UNK, byte_fallback=True)


BUILDERS = {"bpe": _bpe, "unigram": _unigram, "wordpiece": _wordpiece, "char": _char}


def _letters(texts: Sequence[str], room: int, coverage: float) -> tuple[list[str], Sequence[str]]:
    """Choose the alphabet, and cut the texts where a character is not in it."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    letters = alphabet(counts, room, coverage)
    rare = counts.keys() - set(letters)
    if not rare:
        return letters, texts
    cut = re.compile(f"[{re.escape(''.join(sorted(rare)))}]")
    return letters, [part for text in texts for part in cut.split(text) if part]


def _runs(texts: Sequence[str], kind: str) -> Counter[str]:
    """Count the runs that the pre-tokenizer cuts texts into."""
    cut = road.pre_tokenizer(kind)
    return Counter(run for text in texts for run, _ in cut.pre_tokenize_str(text))


def _merges(
    texts: Sequence[str], fixed: Sequence[str], vocab_size: int, kind: str
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Learn BPE merges with the library; `fixed` pieces come first, in the order given."""
    prefix = road.CONTINUES if kind == "wordpiece" else ""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = road.pre_tokenizer(kind)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        max_token_length=LONGEST_PIECE,
        continuing_subword_prefix=prefix,
        # Left to itself, the library numbers "##" pieces in the order of a hash map, and ties
        # between merges go by number: naming all base pieces here makes training repeatable.
        special_tokens=list(fixed),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]
