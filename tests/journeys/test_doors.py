"""Help, versions and what an import costs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import qkv as package
from qkv.cli.app import COMMANDS
from tests.journeys.conftest import Command


def python(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example_that_can_be_copied(qkv: Command, name: str) -> None:
    answer = qkv(name, "-h")
    assert answer.code == 0
    examples = [line.strip() for line in answer.lines if "Example: " in line]
    assert examples
    assert all(line.startswith(f"Example: qkv {name}") for line in examples)
    assert all(line.count("Example: ") == 1 for line in examples)
    if name == "train":
        assert qkv(name, "--help") == answer
        assert examples[0].endswith("data.target=train.de")  # not broken in two


def test_the_commands_are_listed(qkv: Command) -> None:
    answer = qkv("-h")
    rows = answer.out[answer.out.index("Commands:") :].splitlines()[1:]
    assert {row.split()[0] for row in rows} == set(COMMANDS)
    assert all(row.endswith(".") and not row.endswith("..") for row in rows)  # none is cut off
    assert qkv().err == answer.out  # and `qkv` alone explains itself


def test_the_version(qkv: Command) -> None:
    answer = qkv("--version")
    assert (answer.code, answer.out) == (0, f"qkv {package.__version__}\n")


def test_what_is_asked_for_wrongly_is_a_mistake_too(qkv: Command) -> None:
    for words in (["fly"], ["generate", "hello"], ["train"], ["translate", "--beams", "x"]):
        answer = qkv(*words)
        assert answer.code == 2
        assert "Traceback" not in answer.err


def test_the_package_offers_its_verbs_and_nothing_else() -> None:
    tasks = {"Answerer", "Encoder", "LanguageModel", "Tagger", "Translator"}
    tasks |= {"Classifier", "ImageClassifier"}
    verbs = {"backtranslate", "distill", "evaluate", "load", "load_trace", "train", "verify"}
    values = {"Evaluation", "Trace", "UserError", "__version__"}
    assert set(package.__all__) == tasks | verbs | values
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="module 'qkv' has no attribute 'lod'"):
        package.lod  # noqa: B018


def test_an_import_brings_no_more_than_is_needed() -> None:
    """In a process of its own, for this one has imported everything."""
    heavy = ("torch", "matplotlib", "tensorboard", "transformers", "fastapi", "uvicorn", "rich")
    program = f"""
import contextlib, io, sys
def show():
    print([name for name in {heavy} if name in sys.modules])
import qkv
show()
from qkv.cli.app import command_line
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    command_line(["-h"])
print("torch" in sys.modules)
qkv.load, qkv.Translator, qkv.train
show()
import qkv.model
print("torch.nn.attention.varlen" in sys.modules)
import qkv.training, qkv.proofs, qkv.evaluation, qkv.evaluation.scores, qkv.run
print(all(map(callable, (qkv.train, qkv.verify, qkv.evaluate, qkv.load))))
"""
    at_first, helped, loaded, packed_kernel, verbs_are_functions = python(program).splitlines()
    assert (at_first, helped) == ("[]", "False")
    assert loaded == "['torch', 'rich']"
    assert packed_kernel == "False"
    assert verbs_are_functions == "True"  # no package takes the name of one


def test_translating_a_sentence_imports_nothing_of_the_other_commands(model: Path) -> None:
    """Most of its time is the import of torch, and should stay so."""
    others = ("rich", "prompt_toolkit", "matplotlib", "sacrebleu", "jinja2", "gguf", "transformers")
    rooms = ("data", "training", "run", "evaluation", "inspect", "proofs", "hub")
    parts = ("cli.train", "cli.evaluate", "tasks.answer", "tasks.language")
    formats = ("convert.huggingface", "convert.ctranslate2", "convert.gguf")
    heavy = ("torch._dynamo", *others, *(f"qkv.{name}" for name in (*rooms, *parts, *formats)))
    program = f"""
import sys
from qkv.cli import main
sys.argv = ["qkv", "translate", "12", "--model", {str(model)!r}]
try:
    main()
finally:
    print([name for name in {heavy} if name in sys.modules])
"""
    assert python(program).splitlines()[1:] == ["[]"]


@pytest.mark.parametrize("start", [["-m", "qkv"], [str(Path(sys.executable).parent / "qkv")]])
def test_both_ways_to_start_it(start: list[str]) -> None:
    command = [sys.executable, *start] if start[0] == "-m" else start
    if not Path(command[0]).exists():
        pytest.skip("the package is not installed as a command here")
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"qkv {package.__version__}\n")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_is_no_error(model: Path, closed: int) -> None:
    command = f"exec {sys.executable} -m qkv translate --model {model} 1 {closed}>&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed != 1)


def test_a_reader_who_leaves_is_no_error(model: Path) -> None:
    """`qkv translate … | head -1`: no traceback, whatever stands in the pipe."""
    command = [sys.executable, "-m", "qkv", "translate", "--model", str(model), "1", "2"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == ""
