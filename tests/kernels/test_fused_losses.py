"""The losses and the gate as kernels against torch's own in float64."""

from collections.abc import Callable

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from fedekd import gate, methods
from fedekd.engines import fused_losses, row_kernels
from fedekd.engines.stacked import Stacked
from fedekd.tasks import Classification
from interpreted import DEVICE, needs_kernels
from tiny import job

pytestmark = needs_kernels
Derivative = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
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


def test_a_row_without_a_target_has_no_loss_and_no_gradient() -> None:
    x, y = drawn(MODELS, BATCH, 11).requires_grad_(), torch.zeros(MODELS, BATCH, dtype=torch.long, device=DEVICE)
    y[:, 0] = -100
    loss = vmap(Classification().loss)(x, y)
    loss.sum().backward()
    assert not loss[:, 0].any()
    assert not x.grad[:, 0].any()
    assert x.grad[:, 1:].abs().sum(-1).all()


@pytest.mark.parametrize(("batch", "classes"), [(1, 1), (1, 3), (3, 4097), (2, 8193), (8193, 2)])
def test_sizes_at_the_ends(batch: int, classes: int, counted: list[str]) -> None:
    """One sample, one class, a row for each program, and what is too long for one, which goes to torch."""
    x, t = (drawn(2, batch, classes, seed=k).requires_grad_(k == 0) for k in range(2))
    y = torch.randint(0, classes, (2, batch), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    losses, apart = vmap(Classification().loss)(x, y), vmap(gate.kl)(t, x)
    trust, means = vmap(gate.trust)(apart), vmap(gate.masked_mean)(losses)
    (means + vmap(gate.masked_mean)(apart)).sum().backward()
    by_rows, by_batches = classes <= fused_losses.LONGEST, batch <= fused_losses.LONGEST
    assert counted == ["cross_entropy", "kl"] * by_rows + ["trust", "mean", "mean"] * by_batches
    wide = x.detach().double().requires_grad_()
    expected = cross_entropy(wide.flatten(0, 1), y.flatten(), reduction="none").view(2, batch)
    (expected + gate.kl(t.double(), wide)).mean(1).sum().backward()
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(means.double(), expected.mean(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(trust, torch.stack([gate.trust(one) for one in apart]))
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [(1, 0), (2, 1), (None, 0), (0, None)])
def test_wherever_the_models_lie(dims: tuple[int | None, int | None], counted: list[str]) -> None:
    """Also where all share one teacher or one student, whose gradient is the sum over them, and logits are views."""
    whole = [drawn(5, 4, 11, seed=k) for k in range(2)]
    given = [one[0] if dim is None else one.movedim(0, dim) for one, dim in zip(whole, dims, strict=True)]
    leaves = [one.contiguous().requires_grad_() for one in given]
    wide = [one.detach().double().requires_grad_() for one in leaves]
    share = drawn(5, 4, seed=2)
    mine = vmap(lambda t, s: gate.kl(t.mT.contiguous().mT, s), in_dims=dims)(*leaves)
    theirs = gate.kl(
        *(one.expand(5, 4, 11) if dim is None else one.movedim(dim, 0) for one, dim in zip(wide, dims, strict=True))
    )
    (mine * share).sum().backward()
    (theirs * share.double()).sum().backward()
    assert counted == ["kl"]
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
    for one, other in zip(leaves, wide, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-4)


def test_a_map_within_a_map(counted: list[str]) -> None:
    """With one target, one mask and one sharpness for all models of the inner one."""
    x, y, real = drawn(2, 3, 7, 5).requires_grad_(), torch.arange(7, device=DEVICE) % 5, mask()[:2, -7:]
    beta = torch.tensor([0.5, 2.0], device=DEVICE)

    def outer(x: torch.Tensor, real: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def inner(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            losses = Classification().loss(x, y)
            return gate.masked_mean(losses, real), gate.trust(losses, beta, real)

        return vmap(inner)(x)

    means, weights = vmap(outer)(x, real, beta)
    means.sum().backward()
    assert counted == ["cross_entropy", "mean", "trust"]
    wide = x.detach().double().requires_grad_()
    losses = cross_entropy(wide.flatten(0, 2), y.repeat(6), reduction="none").view(2, 3, 7)
    expected = torch.stack([torch.stack([one[m].mean() for one in each]) for each, m in zip(losses, real, strict=True)])
    expected.sum().backward()
    torch.testing.assert_close(means.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-4, atol=1e-5)
    for i in range(2):
        for k in range(3):
            found = gate.trust(losses[i, k].float(), beta[i], real[i])
            torch.testing.assert_close(weights[i, k], found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("taught", [False, True])
def test_what_is_not_finite_is_so_where_torchs_is(taught: bool) -> None:
    """So that a client that diverges is told of as elsewhere."""
    x, other, y = drawn(1, 6, 5), drawn(1, 6, 5, seed=1), torch.zeros(1, 6, dtype=torch.long, device=DEVICE)
    x[0, 0, 1], x[0, 1], x[0, 2, 2], x[0, 3, 2] = torch.nan, torch.nan, torch.inf, -torch.inf
    functions: list[Derivative] = [lambda a, b: Classification().loss(a, y[0]), gate.kl, gate.energy_kl]
    for function in functions:
        given = [one.clone().requires_grad_(k == taught) for k, one in enumerate((x, other))]
        wide = [one.detach().double().requires_grad_(one.requires_grad) for one in given]
        mine, theirs = vmap(function)(*given), function(*(one[0] for one in wide))
        assert torch.equal(mine[0].isfinite(), theirs.isfinite())
        assert mine[0, 4:].isfinite().all()
        if mine.requires_grad and function is not gate.energy_kl:
            mine.sum().backward()
            theirs.sum().backward()
            assert torch.equal(given[taught].grad.isfinite(), wide[taught].grad.isfinite())


def test_trust_has_no_gradient() -> None:
    beta = torch.ones(MODELS, device=DEVICE, requires_grad=True)
    assert not vmap(gate.trust)(drawn(MODELS, BATCH).requires_grad_(), beta).requires_grad


def nested(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return vmap(grad(lambda x, y: Classification().loss(x, y).sum()))(x, y)


def around(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return grad(lambda x: vmap(gate.energy_kl)(x, x.detach() + 1 + y.unsqueeze(-1) * x.detach()).sum())(x)


@pytest.mark.parametrize("derivative", [nested, around])
def test_in_derivatives_that_are_mapped_torchs_are_used(derivative: Derivative, counted: list[str]) -> None:
    y = torch.zeros(MODELS, BATCH, dtype=torch.long, device=DEVICE)
    found = derivative(drawn(MODELS, BATCH, 11), y + 1)
    assert counted == []
    assert found.abs().sum() > 0


def test_what_kernels_do_not_take_goes_to_torch(counted: list[str]) -> None:
    """Targets that are probabilities, a sharpness for each sample, and a mask for all samples."""
    x, values = drawn(MODELS, BATCH, 11), drawn(MODELS, BATCH)
    soft, sharp = drawn(MODELS, BATCH, 11, seed=1).softmax(-1), drawn(MODELS, BATCH, seed=2).exp()
    whole = torch.tensor([True, True, False], device=DEVICE)
    losses, weights = vmap(Classification().loss)(x, soft), vmap(gate.trust)(values, sharp)
    means, dealt = vmap(gate.masked_mean)(values, whole), vmap(lambda e, m: gate.trust(e, 1.0, m))(values, whole)
    assert counted == []
    for k in range(MODELS):
        torch.testing.assert_close(losses[k], Classification().loss(x[k], soft[k]))
        torch.testing.assert_close(weights[k], gate.trust(values[k], sharp[k]))
        torch.testing.assert_close(means[k], gate.masked_mean(values[k], whole[k]))
        torch.testing.assert_close(dealt[k], gate.trust(values[k], 1.0, whole[k]))


def test_without_triton_torchs_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate.kernels(torch.zeros(2, 3, device=DEVICE)) is None
    monkeypatch.setattr(row_kernels, "INSTALLED", False)
    seen = []
    vmap(lambda x: seen.append(gate.kernels(x)) or x)(torch.zeros(2, 3, device=DEVICE))
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
