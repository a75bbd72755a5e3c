"""What a run shows: a line of JSON a step, curves, and lines or a bar for people."""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from qkv.config import TrainConfig
from qkv.training import Curves, Display, JsonLog, TrainState
from qkv.training.progress import describe_scores

WARNING = "warning: the model does not learn; see [model] and norm_position = 'pre'"


def record(step: int, **scores: float) -> dict[str, float]:
    figures = {"step": step, "loss": 2.5 / step, "lr": 0.001, "tokens_per_second": 12345.6}
    return figures | scores


def test_the_log_has_an_object_a_line_at_once(tmp_path: Path) -> None:
    log = JsonLog(tmp_path / "new" / "log.jsonl", 0)
    log.record([record(1), record(2, valid_loss=1.5, bleu=30.0)])
    lines = (tmp_path / "new" / "log.jsonl").read_text().splitlines()  # before it is closed
    assert [json.loads(line) for line in lines] == [record(1), record(2, valid_loss=1.5, bleu=30.0)]
    log.close()


@pytest.mark.parametrize("cut", ["", '{"step": 4, "lo', '{"step"', "null", "[4]", "\x00\x00"])
def test_a_resumed_log_drops_what_came_after_the_checkpoint(tmp_path: Path, cut: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record(step)) + "\n" for step in (1, 2, 3)) + cut)
    log = JsonLog(path, from_step=2)
    log.record([record(3, valid_loss=9.0)])
    log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [record(1), record(2), record(3, valid_loss=9.0)]


def test_curves_can_be_read_by_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for from_step, records in (
        (0, [record(1), record(2, valid_loss=1.5, bleu=30.0), record(3)]),
        (2, [{**record(3), "loss": 7.0}]),  # killed after step 3, resumed from 2
    ):
        curves = Curves(tmp_path, from_step)
        curves.record(records)
        curves.close()
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == {*record(2, valid_loss=1.5, bleu=30.0)} - {"step"}
    points = [(event.step, event.value) for event in events.Scalars("loss")]
    assert points == [(1, 2.5), (2, 1.25), (3, 7.0)]
    assert [(event.step, event.value) for event in events.Scalars("bleu")] == [(2, 30.0)]


class Shown:
    """A display whose clock goes on by some seconds a step."""

    def __init__(self, terminal: bool, width: int = 60, state: TrainState | None = None, **train):  # type: ignore[no-untyped-def]
        self.now, self.file = 100.0, StringIO()
        self.console = Console(
            file=self.file, force_terminal=terminal, width=width, color_system=None
        )
        config = TrainConfig(**{"steps": 40, **train})
        self.display = Display(self.console, config, state or TrainState(), lambda: self.now)

    def steps(self, *steps: int, seconds: float = 1.0, **scores: float) -> None:
        for step in steps:
            self.now += seconds
            self.display.record([record(step, **scores)])

    @property
    def text(self) -> str:
        self.display.close()
        return self.file.getvalue()

    @property
    def last(self) -> str:
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)
        return [line for line in re.split(r"[\r\n]", plain) if line][-1].rstrip()


def test_without_a_terminal_there_is_a_whole_line_now_and_then() -> None:
    shown = Shown(terminal=False)
    shown.steps(*range(1, 20))
    shown.steps(20, valid_loss=1.234, bleu=31.44, exact_match=12.0)
    shown.steps(*range(21, 41))
    shown.display.say(WARNING)
    lines = shown.text.splitlines()
    assert len(lines) == 20 + 1
    assert lines[0] == "step 2/40  loss 1.250  lr 1.0e-03  12,346 tok/s  0:00:38 left"
    assert lines[9].endswith("0:00:20 left  valid 1.234  BLEU 31.4  exact 12.0")
    assert lines[-2].endswith("0:00:00 left")
    assert lines[-1].endswith(WARNING)


def test_without_a_terminal_a_slow_run_prints_a_line_every_ten_seconds() -> None:
    shown = Shown(terminal=False, steps=10_000)
    shown.steps(*range(1, 31), seconds=4)
    steps = [line.split("/")[0] for line in shown.text.splitlines()]
    assert steps == [f"step {step}" for step in range(3, 31, 3)]


def test_of_several_steps_at_once_the_last_one_tells_the_time_left() -> None:
    shown = Shown(terminal=False, steps=10_000)
    shown.now += 20
    shown.display.record([record(step) for step in range(1, 11)])
    assert shown.text.startswith("step 10/10000 ") and shown.last.endswith("5:33:00 left")


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({}, "0:01:15 left"),  # 30 steps, 2.5 s each
        ({"seconds": 60.0}, "0:00:30 left"),  # of which 5 were spent before and 25 now
        ({"seconds": 500.0}, "0:01:15 left"),
        ({"seconds": 20.0}, "0:00:00 left"),
    ],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_the_time_left_goes_by_the_limit_that_comes_first(
    terminal: bool, limits: dict[str, float], left: str
) -> None:
    shown = Shown(terminal, 80, TrainState(step=0, seconds=5.0), **limits)
    shown.steps(*range(1, 11), seconds=2.5)
    assert left in shown.last


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_a_bar_never_leaves_out_the_time_left(width: int) -> None:
    shown = Shown(terminal=True, width=width, steps=20_000)
    shown.steps(12_344, seconds=12_344)
    shown.steps(12_345, valid_loss=1.234, bleu=31.44, exact_match=12.0)
    shown.display.say(WARNING)
    last = shown.last
    assert len(last) <= width and "…" not in last
    assert "12345/20000 2:07:35 left" in last
    for least, figure in ((60, "loss 0.000"), (80, "12,346 tok/s"), (100, "valid 1.234")):
        assert (figure in last) == (width >= least)
    assert re.search(r"step 12345/20000 .* valid 1\.234 ", shown.text)
    assert "see [model] and" in shown.text


def test_a_resumed_run_starts_its_bar_where_it_was() -> None:
    shown = Shown(terminal=True, state=TrainState(step=30))
    assert "30/40 -:--:-- left" in shown.text


def test_scores_are_named_as_people_name_them() -> None:
    scores = {"valid_loss": 1.23456, "bleu": 30.06, "exact_match": 7.0, "other": 1.0}
    assert describe_scores(scores) == ["valid 1.235", "BLEU 30.1", "exact 7.0"]
