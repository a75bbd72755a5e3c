"""A bulk job: a file of output for each part of the input, written once, in the input's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.bulk.parts import Part, cut_into_parts
from qkv.data.files import text_files
from qkv.errors import UserError
from qkv.files import read_values, replacing, write_json
from qkv.run.folder import locked

FORMAT = 1
JOB = "bulk.json"
Answer = Callable[[list[str], int], Any]
"""From lines, and the number of lines before them, to a text for each or one array for all."""
Work = Callable[["BulkJob", Sequence[Part]], Iterator[int]]
"""Yields the lines of each further part that is written."""


@dataclass(frozen=True)
class BulkJob:
    """A command, its input and the folder of its output."""

    open_answer: Callable[[], Answer]
    """Loads the model; called once by each worker."""
    folder: Path
    suffix: str
    """Of the output files, which tells their form: .txt, .jsonl or .npy."""
    parts: Sequence[Part]

    def path(self, part: Part) -> Path:
        """Path of a part's output; names sort as the input does."""
        return self.folder / f"part-{part.number:06d}{self.suffix}"

    def write(self, part: Part, answer: Answer) -> None:
        """Work on a part and write its output, which is whole or not there."""
        path = self.path(part)
        if path.exists():
            return  # by a worker that was then lost
        outputs = answer(part.read(), part.first)
        with replacing(path) as beside:
            if self.suffix == ".npy":
                with beside.open("wb") as file:
                    np.save(file, np.asarray(outputs))
            else:
                beside.write_text("".join(f"{text}\n" for text in outputs), encoding="utf-8")


def run_bulk(
    open_answer: Callable[[], Answer],
    paths: Sequence[str | Path],
    folder: Path,
    suffix: str,
    about: dict[str, Any],
    part_lines: int = 10_000,
    work: Work | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BulkJob:
    """Work on all lines of files and leave a file for each part in `folder`.

    Parts that are there already are left as they are, so that a job which was stopped goes on;
    `about` must then be the same as before: it says what is done. `work` does it, by default in
    this process.
    """
    files = [path.resolve() for path in text_files(paths)]
    versions = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    with locked(folder):
        _claim(folder, {**about, "format": FORMAT, "part_lines": part_lines, "input": versions})
        job = BulkJob(open_answer, folder, suffix, cut_into_parts(files, part_lines))
        left = [part for part in job.parts if not job.path(part).exists()]
        total = sum(part.n_lines for part in job.parts)
        done = total - sum(part.n_lines for part in left)
        for n_lines in (work or in_this_process)(job, left) if left else ():
            done += n_lines
            if progress:
                progress(done, total)
    return job


def in_this_process(job: BulkJob, parts: Sequence[Part]) -> Iterator[int]:
    """Work on one part after the other."""
    answer = job.open_answer()
    for part in parts:
        job.write(part, answer)
        yield part.n_lines


def _claim(folder: Path, about: dict[str, Any]) -> None:
    """Note what a folder is for, or refuse one that was for something else."""
    path = folder / JOB
    if not path.exists():
        if any(folder.glob("part-*")):
            raise UserError(
                f"{folder} holds parts of something else (there is no {JOB}); choose another one."
            )
        write_json(path, about)
        return
    try:
        before = read_values(path)
    except UserError as error:
        raise UserError(f"{path} is damaged; delete the folder and start again.") from error
    different = [name for name in {**before, **about} if before.get(name) != about.get(name)]
    if different:
        raise UserError(
            f"{folder} holds the parts of another job: {', '.join(different)} differs; choose "
            f"another folder, or delete this one."
        )
