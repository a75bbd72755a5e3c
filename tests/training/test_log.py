"""What a run tells: a line of JSON a step, curves, and lines or a bar for people."""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from qkv.training import Curves, Display, JsonLog
from qkv.training.display import describe_scores


def record(step: int, **scores: float) -> dict[str, float]:
    return {
        "step": step,
        "loss": 2.5 / step,
        "lr": 0.001,
        "tokens_per_second": 12345.6,
        **scores,
    }


def test_the_log_has_an_object_a_line_at_once(tmp_path: Path) -> None:
    log = JsonLog(tmp_path / "new" / "log.jsonl", 0)
    log.record(record(1))
    log.record(record(2, valid_loss=1.5, bleu=30.0))
    lines = (tmp_path / "new" / "log.jsonl").read_text().splitlines()  # before it is closed
    assert [json.loads(line) for line in lines] == [record(1), record(2, valid_loss=1.5, bleu=30.0)]
    log.close()


@pytest.mark.parametrize("cut", ["", '{"step": 4, "lo', '{"step"', "null", "[4]", "\x00\x00"])
def test_going_on_forgets_what_came_after_the_checkpoint(tmp_path: Path, cut: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record(step)) + "\n" for step in (1, 2, 3)) + cut)
    log = JsonLog(path, from_step=2)
    log.record(record(3, valid_loss=9.0))
    log.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found == [record(1), record(2), record(3, valid_loss=9.0)]


def test_curves_can_be_read_by_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    curves = Curves(tmp_path, 0)
    curves.record(record(1))
    curves.record(record(2, valid_loss=1.5, bleu=30.0))
    curves.record(record(3))
    curves.close()
    curves = Curves(tmp_path, 2)  # killed after step 3, gone on from 2
    curves.record({**record(3), "loss": 7.0})
    curves.close()
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == {
        "loss",
        "lr",
        "tokens_per_second",
        "valid_loss",
        "bleu",
    }
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (1, 2.5),
        (2, 1.25),
        (3, 7.0),
    ]
    assert [(event.step, event.value) for event in events.Scalars("bleu")] == [(2, 30.0)]


def shown(terminal: bool, steps: int = 40, width: int = 60) -> str:
    file = StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, color_system=None)
    display = Display(console, steps)
    for step in range(1, steps + 1):
        measured = {"valid_loss": 1.234, "bleu": 31.44, "exact_match": 12.0} if step == 20 else {}
        display.record(record(step, **measured))
    display.say("warning: the model does not learn; see [model] and norm_position = 'pre'")
    display.close()
    return file.getvalue()


def test_without_a_terminal_there_is_a_whole_line_now_and_then() -> None:
    lines = shown(terminal=False).splitlines()
    assert len(lines) == 20 + 1
    line = r"step 2/40  loss 1\.250  lr 1\.0e-03  12,346 tok/s  \d+:\d\d:\d\d left"
    assert re.fullmatch(line, lines[0])
    assert lines[9].endswith("left  valid 1.234  BLEU 31.4  exact 12.0")
    assert lines[-1].endswith("see [model] and norm_position = 'pre'")
    assert all("\x1b" not in line for line in lines)
    assert "0:00:00 left" in lines[-2]


def test_on_a_terminal_there_is_a_bar_with_all_of_it() -> None:
    text = shown(terminal=True, width=140)
    assert "40/40" in text
    assert "loss 0.062  lr 1.0e-03  12,346 tok/s  valid 1.234  BLEU 31.4" in text
    assert re.search(r"step 20/40 .* valid 1\.234 ", text)
    assert re.search(r"\d:\d\d:\d\d", text)  # time left
    assert "see [model] and" in text


def test_a_run_gone_on_with_starts_its_bar_where_it_was() -> None:
    file = StringIO()
    display = Display(Console(file=file, force_terminal=True, width=120), 40, from_step=30)
    display.close()
    assert "30/40" in file.getvalue()


def test_scores_are_named_as_people_name_them() -> None:
    scores = {"valid_loss": 1.23456, "bleu": 30.06, "exact_match": 7.0, "other": 1.0}
    assert describe_scores(scores) == "valid 1.235  BLEU 30.1  exact 7.0"
