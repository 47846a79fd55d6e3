"""Our own Adam against torch's."""

import pytest
import torch

from fedekd import methods
from fedekd.engines import stacked_adam, triton_kernels
from fedekd.engines.stacked import Stacked
from interpreted import DEVICE, needs_kernels
from tiny import job


@needs_kernels
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


class InTorch:
    """The kernel's arithmetic, called as the kernel is."""

    def __getitem__(self, grid: tuple[int, ...]) -> "InTorch":
        return self

    def __call__(self, w, g, m, v, rate, clock, table, size, decay, beta1, beta2, eps, block, num_warps) -> None:
        assert w.stride() == g.stride() == m.stride() == v.stride()
        assert size == w.numel()
        scale, root = table[int(clock)]
        m += (1 - beta1) * (g - m)
        v += (1 - beta2) * (g * g - v)
        w -= rate * decay * w + rate * scale * m / (v.sqrt() * root + eps)


@pytest.mark.parametrize(
    "settings",
    [{}, {"weight_decay": 0.1}, {"lr_schedule": "cosine", "rounds": 3}],
    ids=lambda s: next(iter(s), "plain"),
)
@pytest.mark.parametrize("name", ["fedekd", "scaffold"])
def test_a_stack_trains_with_it_as_with_torchs(images, monkeypatch, name: str, settings: dict) -> None:
    """Clients are of unequal size; the learning rate may fall from round to round."""
    made = job(images, methods.get(name), **settings)
    plain, ours = Stacked([made]), Stacked([made])
    plain.round()
    plain.round()
    monkeypatch.setattr(stacked_adam, "usable", lambda weights, device: True)
    monkeypatch.setattr(triton_kernels, "adam", InTorch(), raising=False)
    ours.round()
    ours.round()
    (chunk, *_) = [chunk for _, chunk in ours.stacks[0].chunks.values()]
    assert isinstance(chunk.segments[0].optimizer, stacked_adam.StackedAdam)
    for role, tree in plain.stacks[0].weights.items():
        for n, w in tree.items():
            torch.testing.assert_close(ours.stacks[0].weights[role][n], w, rtol=1e-3, atol=1e-4)
