"""Measure all headline rows on this machine, record them and write the tables: `make bench`.

python -m bench                  # the GPU, if there is one, or else the CPU
python -m bench --device cpu
python -m bench --quick          # tiny models, to see that all works; records nothing
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench import infer, parts, tables, trace, train
from bench.measure import Session, interleaved, run, speed_parser


def look_inside(session: Session) -> None:
    """Record what a trace costs beside a forward pass and beside transformers' attentions."""
    if not session.wants("trace"):
        return
    sizes = (2, 32, 2, 16) if session.quick else trace.SHAPES[session.device.type]
    works = trace.works(session.device, sizes)
    times = interleaved(works, session.repeats)
    memory = {name: trace.most_memory(work, session.device) for name, work in works.items()}
    base = next(iter(works))
    for number, name in enumerate(works):
        columns = {
            "ms": round(1e3 * times[name], 1),
            "× forward pass": round(times[name] / times[base], 2),
            "MiB": round(memory[name], 1),
            "× its memory": round(memory[name] / memory[base], 2),
        }
        session.record(f"trace.{number}", name, columns)


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    quick = "--quick" in given
    for benchmark in (train.main, infer.main, parts.main):
        benchmark([*given, *([] if quick else ["--save"])])
    run(look_inside, speed_parser("bench", __doc__), [*given, *([] if quick else ["--save"])])
    if not quick:
        tables.main([])


if __name__ == "__main__":
    main()
