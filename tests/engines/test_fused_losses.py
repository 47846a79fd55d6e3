"""The losses and the gate as kernels against torch's own in float64, on a GPU or in Triton's interpreter
(TRITON_INTERPRET=1, numpy below 2.4)."""

import importlib.util
import os

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from fedekd import gate
from fedekd.engines import fused_conv, fused_losses
from fedekd.tasks import Classification

INTERPRETED = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
runs = pytest.mark.skipif(
    not (INTERPRETED or fused_conv.available(DEVICE)), reason="needs a GPU with Triton, or TRITON_INTERPRET=1"
)
MODELS, BATCH = 3, 70


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(DEVICE)


def mask() -> torch.Tensor:
    """All, all but the last, and no sample."""
    real = torch.ones(MODELS, BATCH, dtype=torch.bool, device=DEVICE)
    real[1, -1], real[2] = False, False
    return real


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which kernels were asked for."""
    asked: list[str] = []
    for name in ("cross_entropy", "kl", "energy", "trust", "mean"):
        real = getattr(fused_losses, name)
        monkeypatch.setattr(fused_losses, name, lambda *given, name=name, real=real: asked.append(name) or real(*given))
    return asked


@runs
@pytest.mark.parametrize("classes", [2, 11, 130])
def test_cross_entropy(classes: int, counted: list[str]) -> None:
    x = drawn(MODELS, BATCH, classes).requires_grad_()
    y = torch.randint(0, classes, (MODELS, BATCH), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    wide, share = x.detach().double().requires_grad_(), drawn(MODELS, BATCH, seed=2)
    mine = vmap(Classification().loss)(x, y)
    theirs = cross_entropy(wide.flatten(0, 1), y.flatten(), reduction="none").view(MODELS, BATCH)
    (mine * share).sum().backward()
    (theirs * share.double()).sum().backward()
    assert counted == ["cross_entropy"]
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-5, atol=1e-5)


@runs
@pytest.mark.parametrize("wanted", [(True, True), (False, True), (True, False)])
def test_kl(wanted: tuple[bool, bool], counted: list[str]) -> None:
    t, s = (drawn(MODELS, BATCH, 11, seed=k).requires_grad_(want) for k, want in enumerate(wanted))
    wide = [one.detach().double().requires_grad_(one.requires_grad) for one in (t, s)]
    share = drawn(MODELS, BATCH, seed=2)
    mine, theirs = vmap(gate.kl)(t, s), gate.kl(*wide)
    (mine * share).sum().backward()
    (theirs * share.double()).sum().backward()
    assert counted == ["kl"]
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
    for one, other in zip((t, s), wide, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-4)


@runs
def test_one_teacher_for_all(counted: list[str]) -> None:
    t, s = drawn(BATCH, 11), drawn(MODELS, BATCH, 11, seed=1)
    mine = vmap(gate.kl, in_dims=(None, 0))(t, s)
    assert counted == ["kl"]
    torch.testing.assert_close(mine, gate.kl(t.expand_as(s), s), rtol=1e-5, atol=1e-5)


@runs
def test_energy(counted: list[str]) -> None:
    p, q = drawn(MODELS, BATCH, 11), drawn(MODELS, BATCH, 11, seed=1)
    q[0, :5] = p[0, :5]  # who agree have none
    p[1, 0], q[1, 0] = 0.0, 0.0
    p[1, 0, 0], q[1, 0, 1] = 500.0, 500.0  # a certain contradiction
    mine, theirs = vmap(gate.energy_kl)(p, q), gate.energy_kl(p.double(), q.double())
    assert counted == ["energy"]
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-6)


@runs
def test_the_gradient_of_an_energy(counted: list[str]) -> None:
    p, q = drawn(MODELS, BATCH, 11).requires_grad_(), drawn(MODELS, BATCH, 11, seed=1).requires_grad_()
    wide = [one.detach().double().requires_grad_() for one in (p, q)]
    vmap(gate.energy_kl)(p, q).sum().backward()
    gate.energy_kl(*wide).sum().backward()
    assert counted == ["energy"]
    for one, other in zip((p, q), wide, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-3, atol=1e-4)


@runs
@pytest.mark.parametrize("beta", [0.5, torch.tensor([0.5, 1.0, 4.0], dtype=torch.float32)])
def test_trust(beta: float | torch.Tensor, counted: list[str]) -> None:
    energy, real = drawn(MODELS, BATCH).exp(), mask()
    energy[0, :9] = energy[0, 0]
    energy[1, -1] = torch.nan  # padding
    each = beta.to(DEVICE) if isinstance(beta, torch.Tensor) else torch.full((MODELS,), beta, device=DEVICE)
    mine = vmap(gate.trust)(energy, each, real)
    assert counted == ["trust"]
    for k in range(MODELS):
        torch.testing.assert_close(mine[k], gate.trust(energy[k], each[k], real[k]), rtol=1e-6, atol=1e-7)
    equal = vmap(lambda e, m: gate.trust(e, 2.0, m))(torch.full_like(energy, 0.1), real)
    assert torch.equal(equal, 0.5 * real.float())


@runs
def test_padding_changes_no_bit_of_the_weights() -> None:
    energy = drawn(MODELS, 50).exp()
    wide = torch.cat([energy, drawn(MODELS, 20, seed=3)], 1)
    real = torch.arange(70, device=DEVICE).expand(MODELS, 70) < 50
    alone = vmap(lambda e: gate.trust(e, 1.0))(energy)
    assert torch.equal(vmap(lambda e, m: gate.trust(e, 1.0, m))(wide, real)[:, :50], alone)


@runs
def test_a_nan_among_the_valid_is_not_hidden() -> None:
    energy = drawn(MODELS, BATCH)
    energy[0, 3] = torch.nan
    weights = vmap(lambda e: gate.trust(e, 1.0))(energy)
    assert weights[0].isnan().any()
    assert weights[1:].isfinite().all()


@runs
def test_mean(counted: list[str]) -> None:
    values, real = drawn(MODELS, BATCH), mask()
    values[1, -1] = torch.nan
    values.requires_grad_()
    mine = vmap(gate.masked_mean)(values, real)
    (mine * torch.tensor([1.0, 2.0, 3.0], device=DEVICE)).sum().backward()
    assert counted == ["mean"]
    theirs = [values[0].mean(), values[1, :-1].mean(), torch.zeros((), device=DEVICE)]
    torch.testing.assert_close(mine, torch.stack(theirs), rtol=1e-5, atol=1e-6)
    expected = real / torch.tensor([[BATCH], [(BATCH - 1) / 2], [1]], device=DEVICE)
    torch.testing.assert_close(values.grad, expected)


@runs
def test_within_a_gradient_of_their_own_torchs_are_used(counted: list[str]) -> None:
    x, y = drawn(MODELS, BATCH, 11), torch.zeros(MODELS, BATCH, dtype=torch.long, device=DEVICE)
    found = vmap(grad(lambda x, y: Classification().loss(x, y).sum()))(x, y)
    assert counted == []
    assert found.abs().sum() > 0


def test_elsewhere_torchs_own_are_used() -> None:
    assert gate.kernels(torch.zeros(2, 3)) is None
    if not (DEVICE.type == "cuda" or INTERPRETED):
        seen = []
        vmap(lambda x: seen.append(gate.kernels(x)) or x)(torch.zeros(2, 3))
        assert seen == [None]
