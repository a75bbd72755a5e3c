"""Curves are the log's numbers, run by run; a log that was cut short is still a log."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.errors import UserError
from qkv.inspect.answers.curves import MAX_POINTS, Curves, read_log, read_logs, read_smoothings
from tests.inspect.test_draw import printed


def records(count: int, factor: float = 1.0) -> list[dict[str, Any]]:
    every = []
    for step in range(1, count + 1):
        record = {"step": step, "loss": factor / step, "lr": 1e-3, "tokens_per_second": 500.0}
        if step % 5 == 0:
            record |= {"valid_loss": factor / step + 1, "bleu": step * 2.0}
        every.append(record)
    return every


def write(path: Path, lines: list[Any], tail: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail, encoding="utf-8")
    return path


def test_a_log_is_read_from_its_folder_or_itself(tmp_path: Path) -> None:
    file = write(tmp_path / "log.jsonl", records(3))
    assert read_log(tmp_path) == read_log(file) == records(3)


@pytest.mark.parametrize("tail", ['{"step": 4, "lo', "{", "4", '{"loss": 1}', "\n", "\ufffd"])
def test_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path, tail: str) -> None:
    assert read_log(write(tmp_path / "log.jsonl", records(3), tail)) == records(3)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"log\.jsonl is not there; .*qkv train"):
        read_log(tmp_path)
    with pytest.raises(UserError, match=r"log\.jsonl:2 is not a JSON object with a step"):
        read_log(write(tmp_path / "log.jsonl", [records(1)[0], [1], *records(2)]))
    with pytest.raises(UserError, match="has no steps yet"):
        read_log(write(tmp_path / "log.jsonl", []))


def test_runs_are_named_by_their_folders_where_these_differ(tmp_path: Path) -> None:
    for name in ("a/run", "b/run", "other"):
        write(tmp_path / name / "log.jsonl", records(2))
    paths = [tmp_path / "a/run", tmp_path / "b/run/log.jsonl", tmp_path / "other"]
    assert list(read_logs(paths)) == [str(tmp_path / "a/run"), str(tmp_path / "b/run"), "other"]


def test_a_long_series_is_the_means_of_its_stretches() -> None:
    loss, *_ = Curves({"run": records(MAX_POINTS * 10)}).draw().axes
    steps, values = loss.lines[0].get_data()
    assert len(steps) == len(values) == MAX_POINTS
    assert steps[0] == pytest.approx(5.5)
    assert values[0] == pytest.approx(np.mean([1 / step for step in range(1, 11)]))


def test_each_quantity_has_a_panel_and_each_run_a_curve() -> None:
    figure = Curves({"one": records(20), "two": records(10, 2.0)}).draw()
    panels = [axes for axes in figure.axes if axes.get_visible()]
    names = [axes.get_ylabel() for axes in panels]
    assert names == ["loss (nats)", "learning rate", "tokens per second", "BLEU"]
    assert all(axes.get_xlabel() == "step" for axes in panels)
    loss, *_, bleu = panels
    training, held_out, second, second_held_out = loss.lines
    np.testing.assert_allclose(training.get_ydata(), [1 / step for step in range(1, 21)])
    np.testing.assert_allclose(held_out.get_xdata(), [5, 10, 15, 20])
    np.testing.assert_allclose(held_out.get_ydata(), [1.2, 1.1, 1 + 1 / 15, 1.05])
    np.testing.assert_allclose(second_held_out.get_ydata(), [1.4, 1.2])
    assert training.get_color() == held_out.get_color() != second.get_color()
    assert [line.get_ydata().tolist() for line in bleu.lines] == [[10, 20, 30, 40], [10, 20]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
    assert figure.get_suptitle() == "one: lowest held-out loss 1.05 at step 20"
    figure.savefig(io.BytesIO())


def test_a_run_without_validation_or_with_broken_numbers_is_drawn() -> None:
    figure = Curves({"one": [{"step": 1, "loss": float("nan")}, {"step": 2, "loss": 1.0}]}).draw()
    assert figure.get_suptitle() == "Training curves"
    assert figure.legends == []
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["training"]
    figure.savefig(io.BytesIO())


def test_losses_that_fall_far_are_drawn_by_their_logarithm() -> None:
    scales = [Curves({"a": records(count)}).draw().axes[0].get_yscale() for count in (4, 60)]
    assert scales == ["linear", "log"]


def test_smoothed_labels_are_told_apart_from_plain_ones(tmp_path: Path) -> None:
    for name, value in (("a", ""), ("b", "[train]\nlabel_smoothing = 0.0\n"), ("c", "no = toml =")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text(f'task = "translate"\n{value}', "utf-8")
    (tmp_path / "d").mkdir()
    paths = [tmp_path / name for name in "abcd"]
    smoothing = read_smoothings(paths)
    assert smoothing == {"a": 0.1, "b": 0.0, "c": 0.0, "d": 0.0}
    smoothed, plain = (Curves({"a": records(5)}, {"a": share}) for share in (0.1, 0.0))
    sentence = "against smoothed labels (label_smoothing = 0.1)"
    assert sentence in " ".join(smoothed.draw().get_supxlabel().split())
    assert sentence in " ".join(printed(smoothed.text(80)))
    assert plain.about_losses == ""
