"""Whether Triton's compiler takes the kernels, for GPUs that need not be here: its interpreter checks no types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import vmap

from fedekd import gate
from fedekd.engines import fused_conv, row_kernels, stacked_adam, triton_kernels
from fedekd.tasks import Classification
from interpreted import needs_kernels

SHARED = {86: 99, 90: 227}  # kilobytes of a block's shared memory, which Triton finds lacking at the launch alone
KINDS = {torch.float32: "*fp32", torch.float64: "*fp64", torch.bfloat16: "*bf16", torch.int64: "*i64",
         torch.uint8: "*u8", torch.bool: "*i1"}  # fmt: skip


class Compiled:
    """Stands for a kernel: each launch is compiled, and not done."""

    def __init__(self, kernel: Any, capability: int) -> None:
        self.kernel, self.capability, self.done = kernel, capability, set[Any]()

    def __getitem__(self, grid: Any) -> Compiled:
        return self

    def __call__(self, *given: Any, **options: int) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        kinds, constants, hints = {}, {}, {}
        for k, (parameter, value) in enumerate(zip(self.kernel.params, given, strict=True)):
            if parameter.is_constexpr:
                kinds[parameter.name], constants[k,] = "constexpr", value
            else:
                kinds[parameter.name] = KINDS[value.dtype] if isinstance(value, torch.Tensor) else "i32"
                if isinstance(value, torch.Tensor) or (value % 16 == 0 and not parameter.do_not_specialize):
                    hints[k,] = [["tt.divisibility", 16]]
        key = (*kinds.values(), *constants.values())
        if key not in self.done:
            self.done.add(key)
            source = ASTSource(self.kernel, kinds, constants, hints)
            found = triton.compile(source, target=GPUTarget("cuda", self.capability, 32), options=options)
            assert found.metadata.shared <= SHARED[self.capability] * 1024, (self.kernel.__name__, given, options)


def main(capability: int) -> None:
    import triton

    made: list[Compiled] = []
    for module in (row_kernels, triton_kernels):
        for name, kernel in list(vars(module).items()):
            if isinstance(kernel, triton.JITFunction) and not name.startswith("_"):
                made.append(Compiled(kernel, capability))
                setattr(module, name, made[-1])
    os.environ["TRITON_INTERPRET"] = "1"  # too late for Triton, but tensors of a CPU are given to kernels
    torch.Tensor.is_cuda = True
    losses()
    layers()
    adam()
    assert made
    assert all(one.done for one in made), [one.kernel.__name__ for one in made if not one.done]


def losses() -> None:
    for batch, classes in ((1, 1), (64, 10), (8192, 2), (1, 8192)):
        x, other = (torch.zeros(2, batch, classes, requires_grad=True) for _ in range(2))
        weights = vmap(gate.trust)(vmap(gate.energy_kl)(x.detach(), other.detach()))
        assert weights.shape == (2, batch)
        vmap(gate.masked_mean)(vmap(Classification().loss)(x, torch.zeros(2, batch, dtype=torch.long))).sum().backward()
        for one, two in ((x, other), (x.detach(), other), (x, other.detach())):
            vmap(gate.kl)(one, two).sum().backward()


def layers() -> None:
    for precision in fused_conv.PRECISIONS:
        for size, inputs, outputs in ((28, 1, 64), (14, 64, 128)):
            shapes = (2, 5, size, size, inputs), (2, outputs, inputs, 3, 3), (2, outputs)
            given = [torch.zeros(shape, requires_grad=True) for shape in shapes]
            fused_conv.conv_relu_pool(*given, precision).sum().backward()


def adam() -> None:
    w, clock = torch.zeros(3, 700, requires_grad=True), torch.zeros(1, dtype=torch.long)
    moments = stacked_adam.Moments(w, torch.zeros_like(w), torch.zeros_like(w))
    w.grad = torch.zeros_like(w)
    table = stacked_adam.corrections(5, torch.device("cpu"))
    stacked_adam.StackedAdam([moments], torch.zeros(()), clock, table, 0.1).step()


@needs_kernels
@pytest.mark.parametrize("capability", SHARED)
def test_every_kernel_compiles(capability: int, tmp_path: Path) -> None:
    """In a process of its own, in which Triton compiles what it interprets here."""
    here = [*sys.path, str(Path(__file__).parents[1])]
    mine = {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(here)}
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | mine
    run = subprocess.run([sys.executable, __file__, str(capability)], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


if __name__ == "__main__":
    main(int(sys.argv[1]))
