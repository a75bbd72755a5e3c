"""Search with ctranslate2 in a process of its own, without torch.

In one process, ctranslate2's OpenMP and torch's slow each other down: our search in int8 took 1.6
times as long as soon as ctranslate2 was imported beside it.

python -m bench.ctranslate2_search FOLDER THREADS
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


class Elapsed(float):
    """Seconds of a work by the clock of the process that did it."""


class Ctranslate2:
    """A ctranslate2 model in another process; `close` ends it."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(folder), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def search(self, sources: Sequence[Sequence[str]], beams: int, length: int) -> Elapsed:
        """Translate into outputs of one length."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps([sources, beams, length]), file=self._process.stdin, flush=True)
        seconds, lengths = json.loads(self._process.stdout.readline())
        assert set(lengths) == {length}
        return Elapsed(seconds)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main(arguments: Sequence[str]) -> None:
    import ctranslate2

    folder, threads = arguments[0], int(arguments[1])
    clock = time.process_time if threads == 1 else time.perf_counter  # as in bench.measure
    translator = ctranslate2.Translator(folder, compute_type="int8", intra_threads=threads)
    for line in sys.stdin:
        sources, beams, length = json.loads(line)
        start = clock()
        found = translator.translate_batch(
            sources,
            beam_size=beams,
            min_decoding_length=length,
            max_decoding_length=length,
        )
        seconds = clock() - start
        print(json.dumps([seconds, [len(x.hypotheses[0]) for x in found]]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
