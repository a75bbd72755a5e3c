"""Parallel text from files: two line-aligned ones, TSV or JSONL, plain or compressed."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import UserError
from qkv.text.template import HALF_CHARACTER

Pair = tuple[str, str]
Place = tuple[int, int]
Paths = str | Path | Sequence[str | Path]


def read_pairs(
    source: Paths = (),
    target: Paths = (),
    pairs: Paths = (),
    source_field: str = "source",
    target_field: str = "target",
    name: str = "",
) -> list[Pair]:
    """Read sentence pairs; `name` ("", "valid_", "test_") is the settings' prefix in errors."""
    sources, targets, both = listed(source), listed(target), listed(pairs)
    _check_given(sources, targets, both, name)
    found: list[Pair] = []
    for source_path, target_path in zip(sources, targets, strict=True):
        found += _read_aligned(source_path, target_path)
    for path in both:
        found += _read_both_sides(path, source_field, target_field)
    if not found:
        files = ", ".join(map(str, [*sources, *targets, *both]))
        raise UserError(f"There is no text in {files}; give files with at least one sentence pair.")
    # A tokenizer of characters would learn stray spaces at the ends, and never see a line as empty.
    return [(one.strip(), other.strip()) for one, other in found]


def read_lines(path: Path) -> list[str]:
    r"""Read UTF-8 lines, ended by \n or \r\n alone; a name that ends in .gz is decompressed.

    `str.splitlines` would also cut at U+2028, U+0085 and others that occur inside of sentences, and
    the lines after that would no longer be each other's translations.
    """
    return lines_of(_read_bytes(path), str(path))


def read_text(path: Path) -> str:
    """Read a UTF-8 file whole, with line ends as \\n; a name that ends in .gz is decompressed."""
    return _decode(_read_bytes(path), str(path)).replace("\r\n", "\n")


def lines_of(content: bytes, name: str) -> list[str]:
    """The lines of what was read from `name`, as `read_lines` cuts them."""
    lines = _decode(content, name).split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def listed(paths: Paths) -> list[Path]:
    """The files that a setting names, one or many."""
    # A lone name is a sequence too, of characters; it is meant as one file.
    return [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]


def _check_given(source: list[Path], target: list[Path], pairs: list[Path], name: str) -> None:
    if not (source or target or pairs):
        raise UserError(
            f"data: no text is given; set {name}source and {name}target, or {name}pairs, "
            f"or corpus = 'demo'."
        )
    if bool(source) != bool(target):
        given, missing = ("source", "target") if source else ("target", "source")
        raise UserError(
            f"data: {name}{given} is given without {name}{missing}; each line needs its "
            f"translation, so set {name}{missing} too."
        )
    if len(source) != len(target):
        raise UserError(
            f"data: {name}source names {len(source)} files but {name}target names {len(target)}; "
            f"list them in pairs, the first with the first."
        )


def _read_aligned(source: Path, target: Path) -> list[Pair]:
    """Read two files whose lines are each other's translations."""
    source_lines, target_lines = read_lines(source), read_lines(target)
    if len(source_lines) != len(target_lines):
        raise UserError(
            f"{source} has {len(source_lines):,} lines but {target} has {len(target_lines):,}; "
            f"line-aligned files hold each sentence and its translation on the same line, so find "
            f"the line where they part."
        )
    return list(zip(source_lines, target_lines, strict=True))


def _read_both_sides(path: Path, source_field: str, target_field: str) -> list[Pair]:
    """Read a file that holds both sides; what is not called .jsonl or .json is tab-separated."""
    numbered = [(number, line) for number, line in enumerate(read_lines(path), 1) if line]
    if not holds_objects(path):
        return [_split_columns(line, f"{path}, line {number}") for number, line in numbered]
    found: list[Pair] = []
    for number, line in numbered:
        where = f"{path}, line {number}"
        fields = parse_object(line, where, '{"source": "…", "target": "…"}')
        found.append(
            (
                string_field(fields, source_field, "source_field", where),
                string_field(fields, target_field, "target_field", where),
            )
        )
    return found


def _split_columns(line: str, where: str) -> Pair:
    """Take the first two columns: public exports append attributions and scores."""
    columns = line.split("\t")
    if len(columns) < 2:
        raise UserError(
            f"{where}: there is no tab; each line must hold the source, a tab and the target."
        )
    return columns[0], columns[1]


def kind_of(path: Path) -> str:
    """What a file's name says that it holds, like ".tsv", compressed or not."""
    name = path.name.lower().removesuffix(".gz")  # some systems write .CSV
    return Path(name).suffix


def holds_objects(path: Path) -> bool:
    """Whether a file holds a JSON object a line, by its name."""
    return kind_of(path) in {".jsonl", ".json"}


def holds_table(path: Path) -> bool:
    """Whether a file holds columns under a line of names, by its name."""
    return kind_of(path) == ".tsv"


def parse_object(line: str, where: str, example: str) -> dict[str, object]:
    """Read the JSON object of a line that should look like `example`."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where}: this is not valid JSON; a .jsonl file holds one whole object on each line."
        ) from error
    if not isinstance(fields, dict):
        raise UserError(f"{where}: this is JSON but no object; each line must look like {example}.")
    return fields


def string_field(fields: dict[str, object], name: str, setting: str, where: str) -> str:
    """Read a field of text; `setting` is where its name is given."""
    if name not in fields:
        raise UserError(
            f"{where}: there is no field {name!r} among {', '.join(map(repr, fields)) or 'none'}; "
            f"name the right one as {setting} under [data]."
        )
    value = fields[name]
    if not isinstance(value, str):
        raise UserError(
            f"{where}: field {name!r} holds {json.dumps(value)[:40]}, but must be a string; "
            f"correct the line or name another field as {setting} under [data]."
        )
    # JSON can spell half of a surrogate pair, which is no character and has no UTF-8 form.
    if HALF_CHARACTER.search(value):
        raise UserError(
            f"{where}: field {name!r} holds half a surrogate pair (\\ud800 to \\udfff), which is "
            f"no text; correct or delete the line."
        )
    return value


def _read_bytes(path: Path) -> bytes:
    with explained(path):
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say what is wrong with a file if the block cannot read it."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"There is no file {path}; check the path.") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a directory; name the text file in it.") from error
    except gzip.BadGzipFile as error:
        raise UserError(
            f"{path} ends in .gz but is not whole gzip data; fetch it again, or rename it if it "
            f"is plain text."
        ) from error
    except (EOFError, zlib.error) as error:
        raise UserError(f"{path} is a truncated or damaged .gz file; fetch it again.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _decode(content: bytes, name: str) -> str:
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        place = passed((1, 1), content[: error.start])
        raise not_utf8(name, place, content[error.start]) from error


def passed(place: Place, content: bytes) -> Place:
    """The line, and the byte of it, that comes after `content` if that begins at `place`."""
    line, byte = place
    end = content.rfind(b"\n")
    if end < 0:
        return line, byte + len(content)
    return line + content.count(b"\n"), len(content) - end


def not_utf8(name: str, place: Place, byte: int) -> UserError:
    """The mistake of a byte that is no text."""
    return UserError(
        f"{name}, line {place[0]}: byte {place[1]} of the line (0x{byte:02x}) is not UTF-8; "
        f"convert it to UTF-8 first."
    )
