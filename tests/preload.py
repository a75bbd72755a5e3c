"""What a process of `tests.forking` has imported when it begins."""

import jinja2.ext
import jinja2.sandbox
import pytest
import torch
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

import qkv.cli.chat
import qkv.cli.train
import qkv.cli.translate
import qkv.run.train
import qkv.training.tensor_parallel

__all__ = ["jinja2", "pytest", "qkv", "torch"]
torch.set_num_threads(1)
