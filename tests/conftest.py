"""What all tests share."""

import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings

gc.disable()  # until all is imported, of which nothing is freed
torch.set_num_threads(1)  # small models are slower on more
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, max_examples=30
)
settings.load_profile("repeatable")

# Encoded data and pulled models of tests go to a folder of their own, also in child processes.
HOME = tempfile.TemporaryDirectory(prefix="qkv-tests-", ignore_cleanup_errors=True)
os.environ["QKV_HOME"] = HOME.name

# Some environments forbid compiled modules, and each of our processes would compile all of qkv.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What a test writes need not outlive a power failure; waiting for the disk took a tenth of a run.
os.fsync = lambda descriptor: None

# A shell that runs the tests in the background may let them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_finish() -> None:
    """Search what was imported for unreachable objects no more: it took a sixth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


@pytest.fixture(autouse=True)
def seed() -> None:
    """Random numbers are the same in every run, whichever tests run before."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed asks every kind of device
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora that stands beside the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"needs the shared corpora, and there is no folder {SHARED_DATA}")
    return SHARED_DATA
