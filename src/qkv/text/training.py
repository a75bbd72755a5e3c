"""Training a tokenizer: one builder for each kind, and the steps around it that lose no character.

Pieces are plain text: a space stays a space inside them, instead of becoming a mark such as "▁"
that a text could hold itself. One space belongs to the run of characters that follows it, and a
text that starts with a word gets a space before it, which decoding takes away: so a word has the
same pieces at the start of a sentence and within it. Chinese and other scripts without spaces get
none: there, the bare run is the same everywhere.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from qkv.config import TokenizerConfig
from qkv.errors import UserError
from qkv.text.pieces import BYTES, SPECIALS, UNK
from qkv.text.tokenizer import Tokenizer
from qkv.text.unigram import learn_unigram
from qkv.text.words import UNSPACED_CLASSES as UNSPACED

FIXED = (*SPECIALS, *BYTES)
# SentencePiece's default: characters rarer than this would fill a vocabulary with embeddings that
# are hardly ever trained; they are spelt in bytes instead.
COVERAGE = 0.9995
LONGEST_PIECE = 16  # characters; else a clause that occurs twice becomes a piece of a small corpus
SEEDS = 4  # Unigram starts from this many times as many pieces as it is to keep
CONTINUES = "##"
LONGEST_WORD = 100  # WordPiece's search takes cubic time in a word's length

LETTER = rf"[\p{{L}}\p{{M}}&&[^{UNSPACED}]]"
# No run holds letters or digits beside "<" or "#", and none holds two "#": hence no piece that is
# learnt from text can look like "<eos>", "<0x41>" or a piece that starts with "##".
RUNS = "|".join(
    (
        # apostrophes and joiners inside a word belong to it (don't, l'homme, می‌خواهم)
        rf" ?{LETTER}+(?:['’\u200c\u200d]{LETTER}+)*",
        rf" ?[{UNSPACED}]+",
        r" ?\p{N}",  # digits one by one
        r" ?(?:#|(\p{P})\1*)",  # punctuation by itself, or repeated: "...", "——"
        r" ?[^\s\p{L}\p{N}\p{P}]+",  # symbols, and emoji with their joiners
        r"\s+(?!\S)|\s",  # more white space than the one space that the next run takes
    )
)
WITH_RUNS = ("bpe", "unigram", "wordpiece")  # characters and bytes need no runs


def train_tokenizer(
    lines: Iterable[str], config: TokenizerConfig, what: str = "The text"
) -> Tokenizer:
    """Train a tokenizer on lines of text, or load the one that `config.path` names.

    Errors call the lines `what`.
    """
    if config.path:
        return Tokenizer.load(Path(config.path))
    if config.kind != "wordpiece" and config.vocab_size < len(FIXED):
        raise UserError(
            f"tokenizer: vocab_size is {config.vocab_size}, but kind '{config.kind}' needs at "
            f"least {len(FIXED)}: {len(SPECIALS)} special tokens and a piece for each of 256 bytes."
        )
    steps = normalizer(config)
    texts = [] if config.kind == "byte" else [steps.normalize_str(line) for line in lines]
    if config.kind != "byte" and not any(text.strip() for text in texts):
        raise UserError(
            f"{what} to train a tokenizer on holds no text; give it at least one line of words."
        )
    backend = tokenizers.Tokenizer(BUILDERS[config.kind](texts, config.vocab_size))
    backend.normalizer = steps
    backend.pre_tokenizer = pre_tokenizer(config.kind)
    backend.decoder = _decoder(config.kind)
    backend.add_special_tokens(list(SPECIALS))
    return Tokenizer(backend)


def train_pair(
    source: Iterable[str], target: Iterable[str], config: TokenizerConfig
) -> tuple[Tokenizer, Tokenizer]:
    """Train the source's and the target's tokenizer; a shared (or given) one comes back twice."""
    if config.shared or config.path:
        both = train_tokenizer(chain(source, target), config)
        return both, both
    return (
        train_tokenizer(source, config, "The source"),
        train_tokenizer(target, config, "The target"),
    )


def normalizer(config: TokenizerConfig) -> normalizers.Normalizer:
    """Apply the Unicode normal form and case asked for, then add the space before a first word."""
    steps: list[normalizers.Normalizer] = []
    if config.normalize != "none":
        steps.append(normalizers.NFC() if config.normalize == "nfc" else normalizers.NFKC())
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    if config.kind in WITH_RUNS:
        # A text that itself starts with a space keeps the added one too: decoding removes just one.
        word_or_space = rf"[\p{{L}}\p{{N}} &&[^{UNSPACED}]]"
        steps.append(normalizers.Prepend(" "))
        steps.append(normalizers.Replace(Regex(rf"\A (?!{word_or_space})"), ""))
    return normalizers.Sequence(steps)


def pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    """Cut normalised text into runs that no piece reaches across."""
    patterns = [RUNS] if kind in WITH_RUNS else []
    if kind == "wordpiece":
        # As in BERT, each Chinese character is apart: one that is not in the vocabulary makes its
        # whole run <unk>, which must not cost a clause. Nor must a long word be <unk>.
        patterns += [f"[{UNSPACED}]", rf"(?m:.{{1,{LONGEST_WORD}}})"]
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    )


def _decoder(kind: str) -> decoders.Decoder:
    """Join pieces to text again, byte pieces to their characters, and take the added space away."""
    if kind == "wordpiece":
        steps = [decoders.Replace(Regex(rf"\A{CONTINUES}"), ""), decoders.Fuse()]
    else:
        steps = [decoders.ByteFallback(), decoders.Fuse()]
    if kind in WITH_RUNS:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


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
    fixed = [*SPECIALS, *letters, *(CONTINUES + letter for letter in within)]
    vocabulary, _ = _merges(texts, fixed, vocab_size, "wordpiece")
    return models.WordPiece(vocabulary, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD)


def _characters(texts: Sequence[str], vocab_size: int) -> models.Model:
    """BPE that merges nothing: characters that it knows, bytes for all others."""
    letters, _ = _letters(texts, vocab_size - len(FIXED), 1.0)
    vocabulary = {piece: id for id, piece in enumerate([*FIXED, *letters])}
    return models.BPE(vocabulary, [], unk_token=UNK, byte_fallback=True)


BUILDERS = {  # bytes are characters of no text
    "bpe": _bpe,
    "unigram": _unigram,
    "wordpiece": _wordpiece,
    "char": _characters,
    "byte": _characters,
}


def _letters(texts: Sequence[str], room: int, coverage: float) -> tuple[list[str], Sequence[str]]:
    """Choose the commonest characters, until `coverage` of the text or `room` is reached.

    The texts come back cut at all other characters.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    letters: list[str] = []
    missing = counts.total() * coverage
    # Ties go by code point, so that equal texts give equal alphabets.
    for letter in sorted(counts, key=lambda letter: (-counts[letter], letter)):
        if missing <= 0 or len(letters) == room:
            break
        letters.append(letter)
        missing -= counts[letter]
    letters.sort()
    rare = counts.keys() - set(letters)
    if rare:
        cut = re.compile(f"[{re.escape(''.join(sorted(rare)))}]")
        texts = [part for text in texts for part in cut.split(text) if part]
    return letters, texts


def _runs(texts: Sequence[str], kind: str) -> Counter[str]:
    cut = pre_tokenizer(kind)
    return Counter(run for text in texts for run, _ in cut.pre_tokenize_str(text))


def _merges(
    texts: Sequence[str], fixed: Sequence[str], vocab_size: int, kind: str
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Learn BPE merges with the library; `fixed` pieces come first, in the order given."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizer(kind)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        max_token_length=LONGEST_PIECE,
        continuing_subword_prefix=CONTINUES if kind == "wordpiece" else "",
        # Left to itself, the library numbers "##" pieces in the order of a hash map, and ties
        # between merges go by number: naming all base pieces here makes training repeatable.
        special_tokens=list(fixed),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]
