"""The benchmark of the shipped recipes reads what `qkv train` prints."""

from __future__ import annotations

from bench.measure import RECIPES
from bench.quality import TASKS, Outcome

PRINTED = """step 100/300  loss 2.523  lr 8.7e-04  87,069 tok/s  0:00:10 left  valid 1.616
step 1,200/3000  loss 2.1  lr 8.7e-04  87,069 tok/s  0:00:10 left  valid 1.433
step 1,300/3000  loss 2.0  lr 8.7e-04  87,069 tok/s  0:00:10 left  valid 1.451
valid: BLEU 40.32  (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0)
test: chrF 64.10  (nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0)
"""


def test_scores_and_the_first_time_a_loss_is_reached() -> None:
    outcome = Outcome()
    for seconds, line in enumerate(PRINTED.splitlines()):
        outcome.read(line, float(seconds), reached=1.4697)
    assert outcome.figures == {
        "validation loss": 1.433,
        "at step": 1200,
        "seconds to 1.4697": 1.0,
        "valid BLEU": 40.32,
        "test chrF": 64.10,
    }


def test_every_task_has_its_recipe() -> None:
    assert all((RECIPES / f"{task.recipe}.toml").is_file() for task in TASKS.values())
