"""The table of architectures in docs/checkpoints.md: `python docs/write_architectures.py`."""

from __future__ import annotations

import re
from pathlib import Path

from qkv.convert.architectures import ARCHITECTURES, CAUSAL_CLASSIFIERS
from qkv.convert.architectures.architecture import Architecture
from qkv.convert.gguf.gguf_architectures import GGUF_ARCHITECTURES
from qkv.convert.tokenizers.tokenizer_files import KINDS

COMMAND = "python docs/write_architectures.py"
PAGE = Path(__file__).with_name("checkpoints.md")
BLOCK = re.compile(
    r"(<!-- architectures: .+? -->\n)(.*?)(<!-- end of architectures -->)", re.DOTALL
)
HEAD = ["architecture", "`model_type`", "load", "save", "GGUF", "tokenizer", "becomes"]
# The test behind each ✓, which goes through all architectures
LOADED = "[✓](../tests/parity/test_architectures.py)"
SAVED = "[✓](../tests/convert/test_both_ways.py)"
IN_ITS_FILE = "[✓](../tests/convert/test_gguf.py)"
# What a head becomes here
BECOMES = {
    "none": "vectors",
    "masked": "gaps",
    "pairs": "pairs",
    "sequence": "`Classifier`",
    "token": "`Tagger`",
    "answer": "`Answerer`",
    "image": "`ImageClassifier`",
    "seq2seq": "`Translator`",
    "causal": "`LanguageModel`",
}
# Where llama.cpp has another name for a model type, or the same for several
IN_GGUF = {"gpt_neox": "gptneox", "gemma3_text": "gemma3", "mistral": "llama", "mixtral": "llama"}


def with_table(page: str) -> str:
    """Return a page with its table made anew."""
    rows = [HEAD, ["---"] * len(HEAD), *map(_row, ARCHITECTURES.values())]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return BLOCK.sub(lambda found: found[1] + table + found[3], page)


def _row(architecture: Architecture) -> list[str]:
    name = architecture.model_type
    heads = [BECOMES[head] for head in architecture.classes]
    heads += [BECOMES["sequence"]] if name in CAUSAL_CLASSIFIERS else []
    in_gguf = IN_ITS_FILE if IN_GGUF.get(name, name) in GGUF_ARCHITECTURES else ""
    proven = [LOADED, SAVED, in_gguf]
    return [architecture.name, f"`{name}`", *proven, _tokenizer(name), ", ".join(heads)]


def _tokenizer(model_type: str) -> str:
    """Return the files of a tokenizer, any one of which is enough; none for images."""
    if model_type not in KINDS:
        return ""
    ways = [" with ".join(f"`{file}`" for file in files) for _, files in KINDS[model_type].ways]
    return ", ".join(["`tokenizer.json`", *ways])


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
