"""Proofs that the methods are right: what must equal local training equals it to the bit."""

from __future__ import annotations

import pytest
import torch

import serially
from distilling import equal
from fedekd import methods


def trained(federation, method, **training):
    return serially.trained(federation, method, **{"rounds": 3, **training})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fedekd_without_distillation_is_local_to_the_bit(images, precision):
    local = trained(images, methods.get("local"), precision=precision)
    fedekd = trained(images, methods.get("fedekd", lambda_kd=0.0), precision=precision)
    assert equal(local, fedekd)
    assert local.evaluate() == fedekd.evaluate()


def test_fedekd_without_distillation_is_local_to_the_bit_in_regression(tables):
    local, fedekd = trained(tables, methods.get("local")), trained(tables, methods.get("fedekd", lambda_kd=0.0))
    assert equal(local, fedekd)
    assert local.evaluate() == fedekd.evaluate()


def test_fedtype_on_detached_logits_is_local_to_the_bit(images):
    assert equal(trained(images, methods.get("local")), trained(images, methods.get("fedtype-nograd")))


def test_distillation_and_sets_do_change_the_private_model(images):
    """The two proofs above could not fail if these did nothing."""
    local = trained(images, methods.get("local"))
    assert not equal(local, trained(images, methods.get("fedekd")))
    assert not equal(local, trained(images, methods.get("fedtype")))


def test_fedprox_without_its_term_is_fedavg_to_the_bit(images):
    assert equal(trained(images, methods.get("fedavg")), trained(images, methods.get("fedprox", mu=0.0)))


def test_a_constant_gate_is_a_smaller_lambda(images):
    half = trained(images, methods.get("fedekd-half"))
    assert equal(half, trained(images, methods.get("fedekd-ungated", lambda_kd=0.5)))


def test_warmup_rounds_leave_the_private_model_alone(images):
    """With warm-up in every round the proxy is taught but never teaches back."""
    assert equal(trained(images, methods.get("local")), trained(images, methods.get("fedekd", warmup=3)))


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(images):
    a, b = trained(images, methods.get("fml")), trained(images, methods.get("fml"))
    assert equal(a, b)
    assert not equal(a, trained(images, methods.get("fml"), seed=1))


def test_training_leaves_the_callers_random_state_alone(images):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    trained(images, methods.get("fedekd"), rounds=1)
    assert torch.equal(before, torch.random.get_rng_state())
