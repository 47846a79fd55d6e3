"""Our own Adam against torch's, on a GPU or in Triton's interpreter (TRITON_INTERPRET=1, numpy below 2.4)."""

import importlib.util
import os

import pytest
import torch

from fedekd.engines import fused_conv, stacked_adam

INTERPRETED = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
runs = pytest.mark.skipif(
    not (INTERPRETED or fused_conv.available(DEVICE)), reason="needs a GPU with Triton, or TRITON_INTERPRET=1"
)


@runs
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_torchs(decay: float) -> None:
    """Over several steps at rates that change, with a gradient that lies otherwise in memory and one that lacks."""
    kind = torch.optim.AdamW if decay else torch.optim.Adam
    generator = torch.Generator().manual_seed(1)
    starts = [torch.randn(3, *shape, generator=generator).to(DEVICE) for shape in ((700, 5), (1,), (4,))]
    theirs = [w.double().requires_grad_() for w in starts]
    reference = kind(theirs, lr=1.0, weight_decay=decay)
    mine = [stacked_adam.Moments(w.clone(), torch.zeros_like(w), torch.zeros_like(w)) for w in starts]
    rate, clock = torch.zeros((), device=DEVICE), torch.zeros(1, dtype=torch.long, device=DEVICE)
    own = stacked_adam.StackedAdam(mine, rate, clock, stacked_adam.corrections(5, DEVICE), decay)
    for step in range(5):
        lr = 0.1 / (step + 1)
        reference.param_groups[0]["lr"] = lr
        rate.fill_(lr)
        own.zero_grad()
        for k, (a, b) in enumerate(zip(theirs, mine, strict=True)):
            if k == 2:
                continue
            gradient = torch.randn(a.shape, generator=generator).to(DEVICE)
            a.grad = gradient.double()
            b.weight.grad = gradient.mT.contiguous().mT if gradient.dim() == 3 else gradient
        reference.step()
        own.step()
        clock += 1
    for a, b in zip(theirs, mine, strict=True):
        torch.testing.assert_close(b.weight.double(), a, rtol=1e-5, atol=1e-6)
    assert torch.equal(mine[2].weight, starts[2])


def test_elsewhere_torchs_own_is_used() -> None:
    assert not stacked_adam.usable([torch.zeros(1)], torch.device("cpu"))
