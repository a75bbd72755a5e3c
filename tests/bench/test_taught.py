"""Teachers, made-up texts and students: each stage begins from the one before."""

from pathlib import Path

import pytest

import bench.taught as taught
from qkv import load
from qkv.config import load_recipe
from tests.bench.conftest import tiny_encoder
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
    data: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    writer, out = learned(tmp_path_factory).folder, tmp_path_factory.mktemp("out")
    student = tiny_encoder(tmp_path_factory.mktemp("student"))
    stages = [f"--{stage}-set {' '.join(QUICK)}" for stage in ("teacher", "student", "plain")]
    stages.append(f"--writer-set {' '.join(QUICK)} data.max_length=32")
    files = f"--data {data} --teacher {writer} --student {student} --out {out}"
    session = taught.main(
        f"{files} --seeds 0 1 --teacher-seeds 0 3 --texts 7 {' '.join(stages)}".split()
    )
    assert [one.key for one in session.records] == [
        f"quality.taught.{part}" for part in ("teachers", "labels-alone", "taught")
    ]
    assert all(list(one.ours) == ["seed 0", "seed 1", "mean"] for one in session.records)
    assert len((out / "texts.txt").read_text().splitlines()) == 7
    recipe = load_recipe(out / "minilm_sst2_taught-1" / "recipe.toml")
    assert recipe.teacher.models == tuple(str(out / f"smollm2_sst2-{seed}") for seed in (0, 3))
    assert load(out / "smollm2_sst2-3").model.config.causal
