"""The road from text to pieces and back, built so that no character is lost on the way.

Pieces are plain text: a space stays a space inside them, instead of becoming a mark such as "▁"
that a text could hold itself. One space belongs to the run of characters that follows it, and a
text that starts with a word gets a space before it, which decoding takes away: so a word has the
same pieces at the start of a sentence and within it. Chinese and other scripts without spaces get
none: there, it is the bare run that is the same everywhere.
"""

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from qkv.config import TokenizerConfig

UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
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
CONTINUES = "##"
LONGEST_WORD = 100  # WordPiece's search takes cubic time in a word's length


def normalizer(config: TokenizerConfig) -> normalizers.Normalizer:
    """Unicode normal form and case, as asked for, then the space before a first word."""
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
        # As in BERT, each Chinese character stands alone: one that is not in the vocabulary makes
        # its whole run <unk>, which must not cost a clause. Nor must a long word be <unk>.
        patterns += [f"[{UNSPACED}]", rf"(?m:.{{1,{LONGEST_WORD}}})"]
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    )


def decoder(kind: str) -> decoders.Decoder:
    """Join pieces to text again, byte pieces to their characters, and take the added space away."""
    if kind == "wordpiece":
        steps = [decoders.Replace(Regex(rf"\A{CONTINUES}"), ""), decoders.Fuse()]
    else:
        steps = [decoders.ByteFallback(), decoders.Fuse()]
    if kind in WITH_RUNS:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)
