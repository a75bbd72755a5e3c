"""Tokenizers as other people make them."""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers


def bert(folder: Path) -> tokenizers.Tokenizer:
    lines = (folder / "bert_uncased_vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {piece: id for id, piece in enumerate(lines) if piece}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return backend


def gpt2(folder: Path, spaced: bool = False) -> tokenizers.Tokenizer:
    files = str(folder / "gpt2_vocab.json"), str(folder / "gpt2_merges.txt")
    return byte_level(models.BPE.from_file(*files), ["<|endoftext|>"], spaced)


def bytes_only(*specials: str) -> tokenizers.Tokenizer:
    """Make a byte-level tokenizer that merges nothing."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: id for id, piece in enumerate(letters)}
    return byte_level(models.BPE(vocabulary, []), list(specials))


def byte_level(
    model: models.Model, specials: list[str], spaced: bool = False
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    return backend


def metaspace(split: bool = False) -> tokenizers.Tokenizer:
    """Make one as SentencePiece's, of which a piece reaches across a space unless they `split`."""
    pieces = ["<unk>", "▁", "▁the", "▁cat", "c", "a", "t", "h", "e", "▁the▁cat", "我", "爱", "我爱"]
    scores = [(piece, -float(len(pieces) - len(piece))) for piece in pieces]
    backend = tokenizers.Tokenizer(models.Unigram(scores, 0, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=split)
    backend.decoder = decoders.Metaspace()
    return backend
