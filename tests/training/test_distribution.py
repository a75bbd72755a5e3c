"""Many workers give what one gives: losses, scores and weights, whatever the task and the layout.

In float64 and without dropout, which workers draw each for their own share. One start of processes
serves many cases, because it takes longer than they do.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.training import ALONE
from qkv.training.checkpoint import find_checkpoints
from qkv.weights import read_metadata, read_tensors
from tests.forking import Python
from tests.run.common import Runs
from tests.run.test_every_task import VALUES
from tests.training.worker import trained

pytestmark = pytest.mark.timeout(600)  # six processes on one or two cores
ATOL = 1e-9
FULL, SPLIT = {"train_shard": "full"}, {"train_tensor_parallel": 2}
MORE: dict[str, dict[str, Any]] = {
    "translate": {"train_accumulate": 2},
    "fill": {"mask_pairs": "next", "mask_units": "word"},
    "classify": {"train_consistency": 1.0, "classify_weights": "balanced"},
    "images": {"classify_shift": 1},
    "answer": {"train_optimizer": "adamw"},
}
PACKED = {"train_packing": "on"}
LAUNCHER = """
import sys
from qkv.run.launch import launch
from tests.forking import fork_workers
fork_workers()
command = [sys.executable, "-m", "tests.training.worker", *sys.argv[2:]]
sys.exit(launch(int(sys.argv[1]), command, "the same command"))
"""


def case(name: str, task: str, layout: dict[str, Any], **more: Any) -> dict[str, Any]:
    # Where a gradient is 0 but for rounding, as that of a key's bias, a small ε would blow that up.
    settings = {"model_dropout": 0.0, "train_epsilon": 1e-6, **MORE.get(task, {}), **layout}
    settings |= more.pop("settings", {})
    if task == "prefer":
        settings.pop("model_dropout")  # it starts from a model without
    return {"name": name, "task": task, "settings": settings, **more}


def cases_on_two(folder: Path) -> list[dict[str, Any]]:
    one, two, split = (str(folder / name) for name in ("one", "two", "split"))
    families = [
        case(f"{task} {name}", task, layout, scored=name == "parts")
        for task in ("fill", "generate", "classify")  # translators are resumed below
        for name, layout in (("copies", {}), ("parts", FULL), ("split", SPLIT))
        if (task, name) not in (("fill", "copies"), ("classify", "parts"))  # packed; classes
    ]
    tasks = [
        case("instruct", "instruct", FULL),
        case("prefer", "prefer", {}, scored=True),
        case("denoise", "denoise", {}),
        case("classes", "classes", FULL),
        case("number", "number", {}),
        case("images", "images", FULL),
        case("tag", "tag", {}),
        case("answer", "answer", FULL),
        case("embed", "embed", FULL),
        case("muon", "generate", {"train_optimizer": "muon"}),
        case("8-bit state", "generate", {"train_optimizer_state": "int8"}),
        case("recompute", "translate", {"train_recompute": True, **FULL}),
    ]
    packed = [
        case("translate packed", "translate", {}, settings=PACKED),
        case("generate packed", "generate", FULL, settings=PACKED),
        case("fill packed", "fill", {}, settings=PACKED),
    ]
    resumed = [
        case("from one, in copies", "translate", {}, load=one),
        case("from one, in parts", "translate", FULL, load=one, save=two, scored=True),
        case("from parts, split", "translate", SPLIT, load=two, save=split),
        case("from split, in parts", "translate", FULL, load=split),
    ]
    return families + tasks + packed + resumed


def cases_on_four(folder: Path) -> list[dict[str, Any]]:
    return [
        case("few rows", "generate", FULL, settings={"train_batch_tokens": 32}),
        case("copies, split", "classify", SPLIT),
        case("negatives of all", "embed", {**FULL, **SPLIT}),
        case("parts of two, in four", "translate", {**FULL, **SPLIT}, load=str(folder / "two")),
    ]


TIMES_BEFORE = {"from one": 1, "from parts": 2, "from split": 3, "parts of two": 2}
"""How often a run was resumed before, by the beginning of a case's name."""


def with_recipe(one: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A case with its recipe; the data that this names is written."""
    data = folder / one["task"]
    data.mkdir(exist_ok=True)
    return {**one, "recipe": Runs(VALUES[one["task"]]).settings(data, **one["settings"])}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two workers have trained their cases."""
    folder = tmp_path_factory.mktemp("workers")
    first = case("one", "translate", {}, save=str(folder / "one"))
    trained(with_recipe(first, folder), folder, ALONE)
    return start(2, cases_on_two(folder), folder)


@pytest.fixture(scope="module")
def four(two: Path) -> Path:
    """The same folder, after four workers have trained theirs."""
    return start(4, cases_on_four(two), two)


def start(n_workers: int, cases: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / f"{n_workers}.json"
    path.write_text(json.dumps([with_recipe(one, folder) for one in cases]))
    launcher = Python(["-c", LAUNCHER, n_workers, path, folder])
    _, said = launcher.communicate()
    assert launcher.returncode == 0, said
    return folder


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return read_tensors(path), json.loads(read_metadata(path)["facts"])


@cache
def alone(folder: Path, task: str, settings: str, n_times: int) -> Path:
    """The same settings in one process, begun and then resumed; return what the last run left."""
    path = folder / f"alone-{task}-{hash(settings)}-{n_times}.safetensors"
    one = {"name": path.stem, "task": task, "settings": json.loads(settings), "scored": True}
    one["save"] = str(path.with_suffix(""))
    if n_times > 1:
        one["load"] = str(alone(folder, task, settings, n_times - 1).with_suffix(""))
    trained(with_recipe(one, folder), folder, ALONE)
    return path


@pytest.mark.parametrize("name", [one["name"] for one in cases_on_two(Path())])
def test_two_workers_end_with_the_weights_and_losses_of_one_process(two: Path, name: str) -> None:
    check(name, cases_on_two(two), two)


@pytest.mark.parametrize("name", [one["name"] for one in cases_on_four(Path())])
def test_four_workers_end_with_the_weights_and_losses_of_one_process(four: Path, name: str) -> None:
    check(name, cases_on_four(four), four)


def check(name: str, cases: list[dict[str, Any]], folder: Path) -> None:
    ours = next(one for one in cases if one["name"] == name)
    layout = ("train_shard", "train_tensor_parallel", "train_recompute")
    settings = {key: value for key, value in ours["settings"].items() if key not in layout}
    n_times = 1 + next((n for begin, n in TIMES_BEFORE.items() if name.startswith(begin)), 0)
    expected = read(alone(folder, ours["task"], json.dumps(settings), n_times))
    found = read(folder / f"{name}.safetensors")
    assert found[0].keys() == expected[0].keys()
    for key, tensor in expected[0].items():
        torch.testing.assert_close(found[0][key], tensor, rtol=0, atol=ATOL, msg=key)
    assert found[1]["losses"] == pytest.approx(expected[1]["losses"], rel=ATOL)
    if found[1]["scores"]:
        assert found[1]["scores"] == pytest.approx(expected[1]["scores"], rel=1e-6)
    # Each label counts on one share, or on each of the neighbours that have one share together.
    neighbours = ours["settings"].get("train_tensor_parallel", 1)
    n_labels = torch.tensor(found[1]["shares"]).sum(dim=0) / neighbours
    assert n_labels.tolist() == expected[1]["shares"][0]


def test_one_process_goes_on_from_the_parts_of_two(two: Path) -> None:
    settings = case("", "translate", {})["settings"]
    for name, n_times in (("two", 3), ("split", 4)):
        one = {"name": f"one from {name}", "task": "translate", "settings": settings}
        trained(with_recipe({**one, "load": str(two / name)}, two), two, ALONE)
        expected = read(alone(two, "translate", json.dumps(settings), n_times))
        found = read(two / f"one from {name}.safetensors")
        for key, tensor in expected[0].items():
            torch.testing.assert_close(found[0][key], tensor, rtol=0, atol=ATOL, msg=key)


def test_a_checkpoint_with_a_damaged_part_is_not_used(two: Path) -> None:
    (checkpoint,) = (two / "two").glob("step-*")
    damaged = two / "damaged" / checkpoint.name
    shutil.copytree(checkpoint, damaged)
    part = max(damaged.glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:-1])
    readable, unreadable = find_checkpoints(two / "damaged")
    assert not readable
    assert part.name in str(unreadable[damaged])
