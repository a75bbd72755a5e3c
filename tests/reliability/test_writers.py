"""Every file that a command leaves is written beside, flushed to the disk and moved into place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"
# What may write in another way, and why that is safe
ALLOWED = {
    "qkv/files.py",  # `replacing` itself
    "qkv/training/progress.py",  # the log: lines are appended, and one cut short is dropped
    "qkv/data/corpus/shards.py",  # appended to, flushed, and noted in a journal
    "qkv/run/synthesize.py",  # translations are appended, and one cut short is dropped
    "qkv/run/folder.py",  # the lock
    "qkv/hub/staging.py",  # the lock
    "qkv/hub/packages.py",  # unpacked in a folder beside, checked by its digest
    "qkv/serve/page/jobs.py",  # what a process prints, for the reader of the page
    "qkv_labs/runner.py",  # written beside and moved
}


def writes(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of calls that write a file in place, outside of `with replacing`."""
    safe = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.With) and "replacing" in ast.unparse(block.items[0])
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or id(node) in safe:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
        opens = name == "open" and any(isinstance(m, str) and m[:1] in "wax" for m in modes if m)
        if name in ("write_bytes",) or (name == "write_text" and node.args) or opens:
            yield node.lineno


def test_no_file_is_written_in_place() -> None:
    found = {
        str(path.relative_to(SOURCES)): lines
        for path in SOURCES.rglob("*.py")
        if (lines := list(writes(ast.parse(path.read_text("utf-8")))))
    }
    assert {name: lines for name, lines in found.items() if name not in ALLOWED} == {}
