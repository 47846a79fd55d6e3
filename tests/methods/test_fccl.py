"""FCCL: correlations in closed form, older selves as teachers, and the way back to Local."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from distilling import batch_of, engine_of, equal, resumed, trained, with_public
from fedekd import gate, methods
from fedekd.methods.fccl import standardised
from serially import same, states

METHOD = methods.get("fccl")
DRAW = torch.Generator().manual_seed(0)


def correlation_loss(own, mean, method=METHOD, **given):
    rows = torch.arange(len(own))
    return method.correlate(batch_of(rows, own, received={"logits": {"logits": mean}}, rows=rows, **given))


def all_real(z):
    return torch.ones(len(z), dtype=torch.bool)


def test_without_public_epochs_and_teachers_it_is_local_to_the_bit(images):
    federation = with_public(images)
    local = trained(federation, methods.get("local"))
    assert equal(local, trained(federation, methods.get("fccl", epochs=0, lam=0.0)))
    assert not equal(local, trained(federation, methods.get("fccl", epochs=1, lam=0.0)))
    assert not equal(local, trained(federation, methods.get("fccl", epochs=0, lam=1.0)))


@pytest.mark.parametrize("rows", [4, 16, 33])
def test_identical_clients_correlate_by_one_less_one_over_the_batch(rows):
    z = torch.randn(rows, 5, generator=DRAW, dtype=torch.float64)
    a = standardised(z, all_real(z))
    c = a.T @ a / rows
    torch.testing.assert_close(c.diag(), torch.full((5,), (rows - 1) / rows, dtype=torch.float64))
    diagonal = correlation_loss(z.float(), z.float(), methods.get("fccl", off=0.0))
    torch.testing.assert_close(diagonal, torch.tensor(5 / rows**2), rtol=1e-3, atol=1e-6)


def test_the_loss_in_closed_form():
    """Two classes, the second the mirror image of the first, against themselves: c is q [[1, -1], [-1, 1]]."""
    first = torch.tensor([1.0, 2.0, 4.0, 8.0, 9.0])
    z = torch.stack([first, -first], 1)
    q = 4 / 5
    expected = 2 * (1 - q) ** 2 + 0.5 * 2 * (1 - q) ** 2
    assert correlation_loss(z, z, methods.get("fccl", off=0.5)).item() == pytest.approx(expected, rel=1e-4)
    z = torch.stack([first, first], 1)
    expected = 2 * (1 - q) ** 2 + 0.5 * 2 * (1 + q) ** 2  # towards -1, not towards 0
    assert correlation_loss(z, z, methods.get("fccl", off=0.5)).item() == pytest.approx(expected, rel=1e-5)
    assert METHOD.off == 0.0051


def test_scale_and_shift_of_the_logits_do_not_matter():
    own, mean = torch.randn(2, 12, 4, generator=DRAW, dtype=torch.float64)
    loss = correlation_loss(own, mean)
    torch.testing.assert_close(correlation_loss(3.7 * own + 2, 0.2 * mean - 5), loss)
    assert not torch.isclose(correlation_loss(-own, mean), loss)


@pytest.mark.parametrize("constant", [0.0, 0.3, -123.4])
def test_a_column_without_spread_has_no_gradient_and_no_nan(constant):
    own = torch.randn(11, 4, generator=DRAW)
    own[:, 2] = constant
    own.requires_grad_()
    loss = correlation_loss(own, torch.randn(11, 4, generator=DRAW))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(own.grad).all()
    assert not own.grad[:, 2].any()
    assert own.grad[:, 0].any()


def test_a_batch_of_one_row_teaches_nothing():
    own = torch.randn(1, 4, generator=DRAW, requires_grad=True)
    correlation_loss(own, torch.randn(1, 4, generator=DRAW)).backward()
    assert not own.grad.any()


def test_padding_changes_no_correlation_under_vmap():
    own, mean = torch.randn(2, 8, 3, generator=DRAW), torch.randn(2, 20, 3, generator=DRAW)
    rows = torch.stack([torch.randperm(20, generator=DRAW)[:8] for _ in range(2)])
    mask = torch.arange(8) < torch.tensor([[5], [7]])
    own[~mask] = torch.nan

    def loss(own, mean, rows, mask):
        return METHOD.correlate(batch_of(rows, own, received={"logits": {"logits": mean}}, rows=rows, mask=mask))

    expected = [loss(own[k, :n], mean[k], rows[k, :n], None) for k, n in enumerate((5, 7))]
    torch.testing.assert_close(vmap(loss)(own, mean, rows, mask), torch.stack(expected))


def test_private_training_is_supervised_plus_both_teachers():
    z = {role: torch.randn(6, 3, generator=DRAW) for role in METHOD.roles}
    y, memory = torch.randint(0, 3, (6,), generator=DRAW), {"pretrained": torch.ones(()), "previous": torch.ones(())}
    teachers = gate.kl(z["pretrained"], z["private"]).mean() + gate.kl(z["previous"], z["private"]).mean()
    supervised = torch.nn.functional.cross_entropy(z["private"], y)
    torch.testing.assert_close(METHOD.loss(batch_of(y, z, memory=memory)), supervised + teachers)
    torch.testing.assert_close(
        methods.get("fccl", lam=0.5).loss(batch_of(y, z, memory=memory)), supervised + teachers / 2
    )
    memory["pretrained"] = torch.zeros(())
    only = supervised + gate.kl(z["previous"], z["private"]).mean()
    torch.testing.assert_close(METHOD.loss(batch_of(y, z, memory=memory)), only)


def test_the_first_round_is_kept_and_the_last_one_teaches(images):
    federation = with_public(images)
    engine = engine_of(federation, METHOD)
    engine.round()
    assert equal(engine, trained(federation, methods.get("local"), 1))
    assert not engine.door.log
    first = states(engine, "private")
    assert same(states(engine, "pretrained"), first)
    engine.round()
    second = states(engine, "private")
    assert same(states(engine, "previous"), first)
    engine.round()
    assert same(states(engine, "pretrained"), first)
    assert same(states(engine, "previous"), second)
    assert engine.door.bytes_up == engine.door.bytes_down == 2 * 3 * len(federation.public) * 10 * 4


def test_a_client_that_missed_the_first_round_is_not_taught_by_an_untrained_model(images):
    engine = trained(with_public(images), METHOD, 4, participation=0.34)
    ready = [float(client.memory["pretrained"]) for client in engine.clients]
    assert sum(ready) == 1


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_it_goes_on_after_an_interruption_to_the_same_bits(images, participation):
    through, again = resumed(with_public(images), METHOD, participation=participation)
    for role in METHOD.roles:
        assert equal(through, again, role)
