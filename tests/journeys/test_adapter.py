"""`--adapter` on the commands that load a model."""

from pathlib import Path

import pytest

import qkv as package
from tests.journeys.conftest import Command
from tests.run.common import write_lines
from tests.run.language_tiny import RUNS, sentences

GREEDY = ["--greedy", "--max-length", 20]


@pytest.fixture(scope="module")
def adapter(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that makes the model speak of fish alone."""
    folder = tmp_path_factory.mktemp("adapter")
    lines = (line.replace("dog", "fish").replace("cat", "fish") for line in sentences(200))
    write_lines(folder / "text.txt", lines)
    settings = {"train_lora_rank": 4, "train_lr": 0.02, "train_steps": 40, "train_valid_every": 40}
    return RUNS.starting_from(speaker).run(folder, "run", **settings).folder


def test_a_model_with_an_adapter(qkv: Command, speaker: Path, adapter: Path) -> None:
    prompt = ["the bird sees", *GREEDY]
    plain = qkv("generate", "--model", speaker, *prompt)
    adapted = qkv("generate", "--model", speaker, "--adapter", adapter, *prompt)
    assert adapted.code == 0
    assert adapted.out != plain.out
    assert qkv("generate", "--model", adapter, *prompt).out == adapted.out
    text = package.load(speaker, adapter=adapter).generate(
        "the bird sees", sample=False, beams=1, max_length=20
    )
    assert adapted.out == f"the bird sees{text}\n"


def test_converting_merges_it(qkv: Command, speaker: Path, adapter: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    assert qkv("convert", speaker, merged, "--adapter", adapter).code == 0
    prompt = ["the bird sees", *GREEDY]
    adapted = qkv("generate", "--model", speaker, "--adapter", adapter, *prompt)
    assert qkv("generate", "--model", merged, *prompt).out == adapted.out
    assert not (merged / "adapter_config.json").exists()


def test_folders_that_are_no_adapters(qkv: Command, speaker: Path, tmp_path: Path) -> None:
    missing = qkv("generate", "--model", speaker, "--adapter", tmp_path / "none", "the")
    assert "there is no folder" in missing.mistake
    other = qkv("generate", "--model", speaker, "--adapter", speaker, "the")
    assert "is no adapter" in other.mistake


def test_an_adapter_of_another_model_is_refused(
    qkv: Command, adapter: Path, tmp_path: Path
) -> None:
    write_lines(tmp_path / "text.txt", sentences(100))
    settings = {"train_steps": 1, "model_d_model": 48, "model_n_heads": 2}
    other = RUNS.run(tmp_path, "other", **settings).folder
    for command in (
        ["generate", "--model", other, "--adapter", adapter, "the"],
        ["convert", other, tmp_path / "merged", "--adapter", adapter],
        ["generate", "--model", "zh-en", "--adapter", adapter, "the"],
    ):
        mistake = qkv(*command).mistake
        assert f"{adapter} is an adapter for a model whose " in mistake
        assert mistake.endswith("; name the model that it was trained for.")
