"""Measure all headline rows on this machine, record them and write the tables: `make bench`.

python -m bench                  # the GPU, if there is one, or else the CPU
python -m bench --device cpu
python -m bench --quick          # tiny models, to see that all works; records nothing
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench import infer, parts, tables, trace, train


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    quick = "--quick" in given
    for benchmark in (train.main, infer.main, parts.main, trace.main):
        benchmark([*given, *([] if quick else ["--save"])])
    if not quick:
        tables.main([])


if __name__ == "__main__":
    main()
