"""The table of docs/checkpoints.md: each architecture, what is read and written, and which tests.

It is made from the architectures' records and from the files of the tests that name them.

python -m qkv.convert.architecture_table            # write the table
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from qkv.convert.architectures import ARCHITECTURES, CAUSAL_CLASSIFIERS
from qkv.convert.architectures.architecture import Architecture
from qkv.convert.tokenizers.tokenizer_files import KINDS

COMMAND = "python -m qkv.convert.architecture_table"
BLOCK = re.compile(
    r"(<!-- architectures: .+? -->\n)(.*?)(<!-- end of architectures -->)", re.DOTALL
)
HEAD = ("architecture", "`model_type`", "load", "save", "GGUF", "tokenizer", "becomes", "proven by")
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
MOST_TESTS = 3  # named in a row
GGUF = "test_gguf.py"
# By this, a test compares a checkpoint's outputs with what they should be.
COMPARED = re.compile(r"both_ways|assert_exact|assert_round_trip|assert_reads_same|assert_same_\w+")


def architecture_table(tests: Path) -> str:
    """The table as Markdown; `tests` is the folder whose files tell what is proven."""
    sources = {
        path: path.read_text(encoding="utf-8")
        for folder in ("convert", "parity")
        for path in sorted((tests / folder).glob("test_*.py"))
    }
    rows = [_row(architecture, sources) for architecture in ARCHITECTURES.values()]
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_table(page: str, tests: Path) -> str:
    """A page with its table made anew."""
    return BLOCK.sub(lambda found: found[1] + architecture_table(tests) + found[3], page)


def _row(architecture: Architecture, sources: dict[Path, str]) -> list[str]:
    proofs = [path for path in proving_tests(architecture, sources) if path.name != GGUF]
    return [
        architecture.name,
        f"`{architecture.model_type}`",
        "✓",
        "✓",
        _gguf_test(architecture, sources),
        _tokenizer(architecture.model_type),
        ", ".join(_becomes(architecture)),
        ", ".join(f"[{path.stem.removeprefix('test_')}]({_link(path)})" for path in proofs),
    ]


def _link(path: Path) -> str:
    return f"../tests/{path.parent.name}/{path.name}"


def _tokenizer(model_type: str) -> str:
    """The files of a tokenizer, any one of which is enough."""
    if model_type not in KINDS:
        return ""  # it reads images
    ways = [" with ".join(f"`{file}`" for file in files) for _, files in KINDS[model_type].ways]
    return ", ".join(["`tokenizer.json`", *ways])


def _becomes(architecture: Architecture) -> list[str]:
    heads = [BECOMES[head] for head in architecture.classes]
    labels = architecture.model_type in CAUSAL_CLASSIFIERS
    return heads + ([BECOMES["sequence"]] if labels else [])


def proving_tests(architecture: Architecture, sources: dict[Path, str]) -> list[Path]:
    """The tests that compare an architecture: those that are called so, then others."""
    places = _places(architecture)
    names = [*architecture.classes.values(), *sorted({constant for _, constant in places})]
    pattern = re.compile(rf'\b({"|".join(names)})\b|"{re.escape(architecture.model_type)}"')
    called = {part.lower() for place in places for part in place}
    own = {f"test_{name}.py" for name in {architecture.model_type.replace("-", "_"), *called}}
    found = [path for path, text in sources.items() if pattern.search(text)]
    compared = [path for path in found if COMPARED.search(sources[path])]
    return sorted(compared, key=lambda path: (path.name not in own, str(path)))[:MOST_TESTS]


def _gguf_test(architecture: Architecture, sources: dict[Path, str]) -> str:
    """A link to the test that reads GGUF files of an architecture; "" where there is none."""
    pattern = re.compile(rf"\b({'|'.join(architecture.classes.values())})\b")
    found = [path for path in sources if path.name == GGUF and pattern.search(sources[path])]
    return f"[✓]({_link(found[0])})" if found else ""


def _places(architecture: Architecture) -> list[tuple[str, str]]:
    """The modules of architectures that know a record, and the name that each knows it by."""
    package = "qkv.convert.architectures."
    return [
        (module.__name__.removeprefix(package), name)
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith(package)
        for name, value in vars(module).items()
        if value is architecture
    ]


def main() -> None:
    """Write the table into docs/checkpoints.md of the working directory's repository."""
    page = Path("docs/checkpoints.md")
    page.write_text(with_table(page.read_text(encoding="utf-8"), Path("tests")), encoding="utf-8")


if __name__ == "__main__":
    main()
