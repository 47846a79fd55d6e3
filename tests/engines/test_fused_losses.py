"""The losses and the gate as kernels against torch's own in float64: on a GPU, in Triton's interpreter
(TRITON_INTERPRET=1, numpy below 2.4), and anywhere with the kernels' arithmetic in torch."""

import importlib.util
import os
from collections.abc import Callable

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy, one_hot

from fedekd import gate, methods
from fedekd.engines import fused_conv, fused_losses, row_kernels
from fedekd.engines.stacked import Stacked
from fedekd.tasks import Classification
from tiny import job

INTERPRETED = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
RUNS = INTERPRETED or fused_conv.available(DEVICE)
MODELS, BATCH = 3, 70


class InTorch:
    """The kernels' arithmetic; each is called as the kernel is."""

    def __init__(self, arithmetic: Callable[..., None]) -> None:
        self.arithmetic = arithmetic

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.arithmetic


def cross_entropy_in_torch(x, y, out, *sizes):
    out.copy_(-x.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1))


def cross_entropy_gradient_in_torch(x, y, g, dx, *sizes):
    dx.copy_(g.unsqueeze(-1) * (x.softmax(-1) - one_hot(y, x.shape[-1])))


def kl_in_torch(t, s, out, *sizes):
    out.copy_((t.softmax(-1) * (t.log_softmax(-1) - s.log_softmax(-1))).sum(-1))


def kl_gradient_in_torch(t, s, g, dt, ds, rows, teacher, student, *sizes):
    p, apart, g = t.softmax(-1), t.log_softmax(-1) - s.log_softmax(-1), g.unsqueeze(-1)
    if student:
        ds.copy_(g * (s.softmax(-1) - p))
    if teacher:
        dt.copy_(g * p * (apart - (p * apart).sum(-1, keepdim=True)))


def energy_in_torch(p, q, out, rows, eps, *sizes):
    out.copy_(gate.energy_kl(p, q))


def trust_in_torch(energy, beta, real, out, *sizes):
    for k in range(len(energy)):
        out[k] = gate.trust(energy[k], beta[k], real[k])


def mean_in_torch(values, real, out, *sizes):
    out.copy_(torch.where(real, values, 0.0).sum(-1) / real.sum(-1).clamp(min=1))


def mean_gradient_in_torch(g, real, dv, *sizes):
    dv.copy_(real * (g / real.sum(-1).clamp(min=1)).unsqueeze(-1))


@pytest.fixture(autouse=True, params=["kernels", "in torch"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernels":
        if not RUNS:
            pytest.skip("needs a GPU with Triton, or TRITON_INTERPRET=1")
        return
    for name, own in globals().items():
        if name.endswith("_in_torch"):
            monkeypatch.setattr(row_kernels, name.removesuffix("_in_torch"), InTorch(own))
    monkeypatch.setattr(row_kernels, "INSTALLED", True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")


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


def test_one_teacher_for_all(counted: list[str]) -> None:
    t, s = drawn(BATCH, 11), drawn(MODELS, BATCH, 11, seed=1)
    mine = vmap(gate.kl, in_dims=(None, 0))(t, s)
    assert counted == ["kl"]
    torch.testing.assert_close(mine, gate.kl(t.expand_as(s), s), rtol=1e-5, atol=1e-5)


def test_energy(counted: list[str]) -> None:
    p, q = drawn(MODELS, BATCH, 11), drawn(MODELS, BATCH, 11, seed=1)
    q[0, :5] = p[0, :5]  # who agree have none
    p[1, 0], q[1, 0] = 0.0, 0.0
    p[1, 0, 0], q[1, 0, 1] = 500.0, 500.0  # a certain contradiction
    mine, theirs = vmap(gate.energy_kl)(p, q), gate.energy_kl(p.double(), q.double())
    assert counted == ["energy"]
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-6)


def test_the_gradient_of_an_energy(counted: list[str]) -> None:
    p, q = drawn(MODELS, BATCH, 11).requires_grad_(), drawn(MODELS, BATCH, 11, seed=1).requires_grad_()
    wide = [one.detach().double().requires_grad_() for one in (p, q)]
    vmap(gate.energy_kl)(p, q).sum().backward()
    gate.energy_kl(*wide).sum().backward()
    assert counted == ["energy"]
    for one, other in zip((p, q), wide, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-3, atol=1e-4)


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


def test_padding_changes_no_bit_of_the_weights() -> None:
    energy = drawn(MODELS, 50).exp()
    wide = torch.cat([energy, drawn(MODELS, 20, seed=3)], 1)
    real = torch.arange(70, device=DEVICE).expand(MODELS, 70) < 50
    alone = vmap(lambda e: gate.trust(e, 1.0))(energy)
    assert torch.equal(vmap(lambda e, m: gate.trust(e, 1.0, m))(wide, real)[:, :50], alone)


def test_a_nan_among_the_valid_is_not_hidden() -> None:
    energy = drawn(MODELS, BATCH)
    energy[0, 3] = torch.nan
    weights = vmap(lambda e: gate.trust(e, 1.0))(energy)
    assert weights[0].isnan().any()
    assert weights[1:].isfinite().all()


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


def test_within_a_gradient_of_their_own_torchs_are_used(counted: list[str]) -> None:
    x, y = drawn(MODELS, BATCH, 11), torch.zeros(MODELS, BATCH, dtype=torch.long, device=DEVICE)
    found = vmap(grad(lambda x, y: Classification().loss(x, y).sum()))(x, y)
    assert counted == []
    assert found.abs().sum() > 0


def test_elsewhere_torchs_own_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate.kernels(torch.zeros(2, 3)) is None
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    seen = []
    vmap(lambda x: seen.append(gate.kernels(x)) or x)(torch.zeros(2, 3))
    assert seen == [None]


@pytest.mark.parametrize("name", ["fedekd", "fedekd-permuted", "fml", "second-opinion"])
def test_a_stack_trains_alike(images, name: str, counted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With kernels and without: the same round, and what is told of trust."""
    found = []
    for kernels in (True, False):
        monkeypatch.setattr(row_kernels, "INSTALLED", kernels)
        engine = Stacked([job(images, methods.get(name), device=DEVICE.type)])
        counted.clear()
        for _ in range(2):
            engine.round()
        assert bool(counted) is kernels
        found.append((engine.measure()[0], engine.trust[0]))
    (mine, told), (theirs, said) = found
    for a, b in zip(mine, theirs, strict=True):
        assert a.val_loss == pytest.approx(b.val_loss, rel=1e-3)
    assert len(told) == len(said)
    for a, b in zip(told, said, strict=True):
        assert a["mean"] == pytest.approx(b["mean"], abs=1e-3)
