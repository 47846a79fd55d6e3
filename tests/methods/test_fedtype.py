"""FedType's sets hold the label as often as they say, and its ranking loss teaches the private model alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedekd import conformal, methods, rng
from fedekd.data import Dataset, Federation, federate
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.tasks import Classification
from hand_batch import hand_batch

CLASSES = 6


@pytest.fixture(scope="module")
def overlapping() -> Federation:
    """Four clients with classes that overlap: sets of one label would often miss."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, CLASSES, 3600)
    x = draw.normal(0, 1.1, (3600, 5)) + draw.normal(0, 1, (CLASSES, 5))[y]
    return federate(Dataset("clouds", "classification", x, y, CLASSES, scale=None), clients=4, alpha=2.0)


def private(shape, outputs):
    return nn.Sequential(nn.Linear(shape[0], 16), nn.ReLU(), nn.Linear(16, outputs))


def proxy(shape, outputs):
    return nn.Linear(shape[0], outputs)


def engine_of(federation, method):
    return Serial(Job(federation, method, 0, Training(2, 1, 64, 1e-2), private, proxy))


def coverage(federation, name, role, level):
    """Share of held-out labels in the sets, and the mean size of the sets, for the models as they were calibrated."""
    method = methods.get(name, level=level)
    engine = engine_of(federation, method)
    engine.round()
    outputs = [client.outputs(role, client.rows["test"])[0] for client in engine.clients]
    engine.round()  # begins with the calibration of the models that gave these outputs
    hits, sizes = [], []
    lam = method.lam_private if role == "private" else method.lam_proxy
    for k, logits in enumerate(outputs):
        calibration = conformal.Calibration(**engine.clients[k].memory[role])
        uniform = torch.from_numpy(rng.stream(5, "test", k).random(len(logits))).float()
        sets = conformal.predict_sets(logits, uniform, calibration, conformal.regularisation_rank(CLASSES), lam)
        hits.append(
            sets.gather(1, engine.clients[k].data.y[engine.clients[k].rows["test"]][:, None]).float().mean().item()
        )
        sizes.append(sets.sum(-1).float().mean().item())
    return np.mean(hits), np.mean(sizes)


@pytest.mark.parametrize("level", [0.9, 0.75])
@pytest.mark.parametrize("role", ["private", "proxy"])
def test_calibrated_sets_cover_held_out_labels_at_their_level(overlapping, role, level):
    covered, size = coverage(overlapping, "fedtype", role, level)
    assert abs(covered - level) < 0.045  # 720 calibration and 720 test rows: a deviation of about .016
    assert 1 < size < CLASSES - 1


def test_the_calibration_is_each_clients_own_and_of_each_round(overlapping):
    engine = engine_of(overlapping, methods.get("fedtype"))
    thresholds = []
    for _ in range(2):
        engine.round()
        thresholds += [
            float(client.memory[role]["threshold"]) for client in engine.clients for role in ("private", "proxy")
        ]
    assert len(set(thresholds)) == len(thresholds) == 16
    assert all(np.isfinite(thresholds))


def test_the_calibration_reads_the_validation_split_only(overlapping):
    """Other labels in the test split change nothing; other labels in the validation split do."""

    def thresholds(split):
        y = overlapping.dataset.y.copy()
        for client in overlapping.clients if split else ():
            rows = getattr(client, split)
            y[rows] = (y[rows] + 1) % CLASSES
        dataset = Dataset("clouds", "classification", overlapping.dataset.x, y, CLASSES, scale=None)
        other = Federation(**{**vars(overlapping), "dataset": dataset})
        engine = engine_of(other, methods.get("fedtype"))
        engine.round()
        return [float(client.memory["private"]["threshold"]) for client in engine.clients]

    assert thresholds("test") == thresholds(None)
    assert thresholds("val") != thresholds(None)


# Losses

N = 40


def batch_of(memory_of=None, mask=None):
    generator = torch.Generator().manual_seed(1)
    outputs = {r: (2 * torch.randn(N, CLASSES, generator=generator)).requires_grad_() for r in ("private", "proxy")}
    y = torch.randint(0, CLASSES, (N,), generator=generator)
    uniform = torch.rand(N, 2, generator=generator)
    calibration = {"temperature": torch.tensor(1.0), "threshold": torch.tensor(0.7)}
    memory = memory_of or {"private": calibration, "proxy": calibration}
    return hand_batch(Classification(), y, outputs, memory=memory, uniform=uniform, mask=mask)


def gradients(loss, batch):
    found = torch.autograd.grad(loss, list(batch.outputs.values()), allow_unused=True)
    return dict(zip(batch.outputs, found, strict=True))


def test_the_ranking_loss_moves_the_private_model_alone():
    batch = batch_of()
    alone = gradients(batch.supervised("private"), batch)
    with_ranking = gradients(methods.get("fedtype").private_loss(batch), batch)
    assert with_ranking["proxy"] is None
    assert not torch.allclose(with_ranking["private"], alone["private"], atol=1e-4)


def test_on_detached_logits_the_ranking_moves_nobody():
    batch = batch_of()
    loss = methods.get("fedtype-nograd").private_loss(batch)
    assert torch.equal(loss, batch.supervised("private"))  # a set holds the proxy's own first labels
    found = gradients(loss, batch)
    assert found["proxy"] is None
    assert torch.equal(found["private"], gradients(batch.supervised("private"), batch)["private"])


def test_the_proxys_loss_moves_the_proxy_alone():
    batch = batch_of()
    found = gradients(methods.get("fedtype").proxy_loss(batch), batch)
    assert found["private"] is None
    assert found["proxy"].abs().sum() > 0


def test_the_private_loss_by_hand():
    """CE + (mean agreement of the sets) x (mean ranking loss of the proxy's set on the private logits)."""
    batch = batch_of()
    z = batch.outputs["private"].detach()
    k_reg, calibration = CLASSES - 2, conformal.Calibration(torch.tensor(1.0), torch.tensor(0.7))
    sets = {
        role: conformal.predict_sets(batch.outputs[role], batch.uniform[:, i], calibration, k_reg, lam).tolist()
        for i, (role, lam) in enumerate((("private", 1.0), ("proxy", 0.5)))
    }
    agreements, rankings = [], []
    for i in range(N):
        f, g = ({c for c in range(CLASSES) if sets[role][i][c]} for role in ("private", "proxy"))
        agreements.append(len(f & g) / len(f | g) if len(f) <= len(g) else len(f & g) / len(g))
        pairs = [max(0.0, float(z[i, b] - z[i, a])) for a in g for b in set(range(CLASSES)) - g]
        rankings.append(sum(pairs) / len(pairs) if pairs else 0.0)
    expected = batch.supervised("private").item() + np.mean(agreements) * np.mean(rankings)
    assert methods.get("fedtype").private_loss(batch).item() == pytest.approx(expected, rel=1e-5)
    assert np.mean(rankings) > 0.05
    assert 0.05 < np.mean(agreements) < 0.95


def test_full_sets_leave_plain_supervision():
    full = {"temperature": torch.tensor(1.0), "threshold": torch.tensor(torch.inf)}
    batch = batch_of({"private": full, "proxy": full})
    assert torch.equal(methods.get("fedtype").private_loss(batch), batch.supervised("private"))


def test_padding_changes_no_loss():
    mask = torch.arange(N) < 25
    padded, short = batch_of(mask=mask), batch_of()
    outputs = {r: o[:25] for r, o in short.outputs.items()}
    cut = hand_batch(short.task, short.y[:25], outputs, memory=short.memory, uniform=short.uniform[:25])
    for name in ("private_loss", "proxy_loss"):
        loss = getattr(methods.get("fedtype"), name)
        torch.testing.assert_close(loss(padded), loss(cut))


def test_the_prox_variant_holds_the_proxy_to_what_was_received():
    batch = batch_of()
    weights, received = {"proxy": {"w": torch.tensor([1.0, 3.0])}}, {"proxy": {"w": torch.tensor([0.0, 1.0])}}
    anchored = replace(batch, weights=weights, received=received)
    plain, prox = methods.get("fedtype"), methods.get("fedtype-prox", mu=0.5)
    assert (prox.proxy_loss(anchored) - plain.proxy_loss(batch)).item() == pytest.approx(0.25 * 5, rel=1e-5)
    assert torch.equal(prox.private_loss(anchored), plain.private_loss(batch))


def test_the_proxys_loss_by_hand():
    batch = batch_of()
    private, proxy = (torch.log_softmax(batch.outputs[role].detach(), -1) for role in ("private", "proxy"))
    entropy = -proxy[torch.arange(N), batch.y].mean()
    taught = (private.exp() * (private - proxy)).sum(-1).mean()
    assert taught > 0.1
    torch.testing.assert_close(methods.get("fedtype").proxy_loss(batch), entropy + taught)
