"""Where the GPU's kernels are tested: on a GPU, or anywhere in Triton's interpreter, as ``make kernels`` does."""

import importlib.util
import os

import pytest
import torch

from fedekd.engines import fused_conv

INTERPRETED = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
needs_kernels = pytest.mark.skipif(not fused_conv.runs(DEVICE), reason="needs a GPU with Triton, or `make kernels`")
