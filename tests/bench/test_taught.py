"""Teachers, made-up texts and students: each stage begins from the one before."""

from pathlib import Path

import pytest

import bench.taught as taught
from qkv import load
from qkv.config import load_recipe
from tests.bench.test_finetune import start  # noqa: F401
from tests.run.language_tiny import learned

QUICK = ["train.steps=2", "train.warmup=0", "train.batch_tokens=256"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, size in (("train", 40), ("valid", 10)):
        rows = [("good" if n % 2 else "bad", f"the film was {n} and {name}") for n in range(size)]
        lines = ["label\ttext", *("\t".join(row) for row in rows)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_the_chain_ends_with_students_of_the_teachers(
    data: Path,
    start: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer, out = learned(tmp_path_factory).folder, tmp_path_factory.mktemp("out")
    stages = [f"--{stage}-set {' '.join(QUICK)}" for stage in ("teacher", "student", "plain")]
    stages.append(f"--writer-set {' '.join(QUICK)} data.max_length=32")
    files = f"--data {data} --teacher {writer} --student {start} --out {out}"
    found = taught.main(
        f"{files} --seeds 0 1 --teacher-seeds 0 3 --texts 7 {' '.join(stages)}".split()
    )
    assert {name: len(values) for name, values in found.items()} == {
        "teachers": 2,
        "labels alone": 2,
        "taught": 2,
    }
    assert len((out / "texts.txt").read_text().splitlines()) == 7
    recipe = load_recipe(out / "minilm_sst2_taught-1" / "recipe.toml")
    assert recipe.teacher.models == tuple(str(out / f"smollm2_sst2-{seed}") for seed in (0, 3))
    assert load(out / "smollm2_sst2-3").model.config.causal
    assert "| taught − labels alone |" in capsys.readouterr().out


def test_what_teaching_is_worth_is_told_seed_by_seed() -> None:
    found = {"teachers": [92.0], "labels alone": [89.0, 90.0], "taught": [91.0, 91.0]}
    assert taught.table(found).splitlines()[2:] == [
        "| teachers | 92.0 |",
        "| labels alone | 89.5 ± 0.7 |",
        "| taught | 91.0 ± 0.0 |",
        "| taught − labels alone | +1.5 ± 0.7 |",
    ]
