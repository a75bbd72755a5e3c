import io
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from qkv.cli import main
from tests.run import classify_tiny, language_tiny, tiny


@dataclass(frozen=True)
class Answer:
    """What a command leaves: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.split("\n")[:-1]

    @property
    def mistake(self) -> str:
        """The one sentence that a person's mistake gets."""
        assert self.code == 2, self
        assert self.out == ""
        remarks = self.err.splitlines()
        told = [line for line in remarks if not line.startswith(("· ", "step "))]
        assert len(told) == 1, self.err
        assert remarks[-1] == told[0]
        assert told[0].startswith("qkv: ")
        assert told[0].endswith((".", "?"))
        return told[0].removeprefix("qkv: ")


Command = Callable[..., Answer]


class Terminal(io.TextIOWrapper):
    """Standard input at which somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def qkv(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process: `qkv("translate", "--model", …, stdin=…)`."""

    def call(*arguments: object, stdin: str | bytes = "", typed: bool = False) -> Answer:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        kind = Terminal if typed else io.TextIOWrapper
        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(given)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end, warnings.catch_warnings():
            # As Python does by itself, but not under pytest
            warnings.simplefilter("ignore", DeprecationWarning)
            main()
        printed = capsys.readouterr()
        return Answer(int(end.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that spells digits."""
    return tiny.learned(tmp_path_factory).folder


@pytest.fixture(scope="package")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a language model of five nouns and one verb, never taught to answer."""
    return language_tiny.learned(tmp_path_factory).folder


@pytest.fixture(scope="package")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a language model that spells a digit when it is asked."""
    return language_tiny.learned(tmp_path_factory, "instruct").folder


@pytest.fixture(scope="package")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that tells animals, plants and metals apart."""
    return classify_tiny.learned(tmp_path_factory).folder


def mistakes_in_training(qkv: Command, recipe: Path, out: Path) -> Callable[..., str]:
    """`qkv train` on the recipe with changes; gives the sentence that it ends with."""

    def call(*changes: str) -> str:
        words = [word for change in changes for word in ("--set", change)]
        mistake = qkv("train", recipe, "--out", out, *words).mistake
        assert not (out / "model.safetensors").exists()
        return mistake

    return call
