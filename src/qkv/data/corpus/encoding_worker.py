"""Script of a process that encodes text: it reads an encoder, then jobs, and writes chunks."""

import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

if "qkv.data" not in sys.modules:
    # The package as a bare folder of modules: its own imports need torch, which takes seconds and
    # hundreds of MB in each process, and has no part in encoding text.
    package = ModuleType("qkv.data")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["qkv.data"] = package

from qkv.data.corpus.encoding import ChunkEncoder
from qkv.data.corpus.shards import Chunk


def end_with(parent: int) -> None:
    """End this process soon after the one that started it, be it in the middle of a job."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main() -> None:
    """Answer each job with its chunk, or with what went wrong, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    threading.Thread(target=end_with, args=[os.getppid()], daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that a library prints gets among the answers
    requests = os.fdopen(0, "rb")
    encoder: ChunkEncoder = pickle.load(requests)
    while True:
        try:
            job = pickle.load(requests)
        except EOFError:
            return
        answer: Chunk | Exception
        try:
            answer = encoder(job)
        except Exception as error:
            answer = error
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
