"""Methods by name: variants, parameters in their types, and a user's own method from one file."""

from __future__ import annotations

import importlib
import math
import re
import sys
from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path

import pytest
import torch
from torch import nn

from fedekd import methods
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from fedekd.errors import FedekdError
from fedekd.methods.base import Copy, Exchange, Method, Remember, Train
from lines import one_line

KNOWN = methods.known()


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(methods, "_REGISTRY", dict(KNOWN))


# What there is


def test_the_methods_of_the_paper_and_their_controls_are_there():
    expected = "local fedavg fedprox feddyn fml fedtype fedtype-prox fedtype-nograd constant fedekd fedekd-ungated"
    energies = "fedekd-entropy fedekd-margin fedekd-lse fedekd-feature fedekd-half fedekd-permuted"
    assert {*expected.split(), *energies.split()} <= set(KNOWN)


def test_variants_are_their_method_with_other_parameters():
    assert methods.get("fedekd-ungated") == methods.get("fedekd", gate="constant", weight=1.0)
    assert methods.get("fedekd-half") == methods.get("fedekd", gate="constant", weight=0.5)
    assert methods.get("fedekd-entropy", beta=2).energy == "entropy"
    assert methods.get("fedtype-nograd") == methods.get("fedtype", gradient=False)
    assert methods.get("fedtype-prox") != methods.get("fedtype")
    assert methods.get("fedprox") != methods.get("fedavg")


@pytest.mark.parametrize("name", KNOWN)
def test_every_method_can_be_listed_and_checked(name):
    method = KNOWN[name]
    line = (type(method).__doc__ or "").splitlines()[0].strip()
    assert len(line) > 10
    assert not line.startswith(type(method).__name__ + "(")  # what a dataclass writes where there is nothing
    assert name == method.name or name.startswith(f"{method.name}-")
    assert set(method.like) | set(method.heads) | {"private", "proxy"} >= set(method.roles)
    assert set(method.reads_weights) <= set(method.roles)
    assert all(type(getattr(method, f.name)) in (bool, int, float, str) for f in fields(method))
    assert method.tasks
    for task in method.tasks if "-" not in name else ("classification",):
        method.check(task)
    with pytest.raises(FrozenInstanceError):
        method.beta = 3


@pytest.mark.parametrize("name", KNOWN)
def test_steps_speak_of_the_methods_own_roles(name):
    method = KNOWN[name]
    splits = (None, "train", "val", "public")
    for step in (step for steps in (*map(method.steps, range(3)), method.personalise()) for step in steps):
        assert isinstance(step, Train | Remember | Copy | Exchange)
        if isinstance(step, Train):
            assert step.roles
            assert not set(step.roles) & set(step.frozen)
            assert {*step.roles, *step.frozen} <= set(method.roles)
        elif isinstance(step, Copy):
            assert {step.target, step.source if isinstance(step.source, str) else step.target} <= set(method.roles)
            continue
        elif isinstance(step, Exchange):
            assert step.target in (None, *method.roles)
            assert step.refine is None or set(step.refine.roles) == {step.target}
        assert set(step.roles) <= set(method.roles)
        assert step.split in splits, "nothing is chosen on a test split"


DEFAULTS = {
    "local": {},
    "constant": {},
    "fedavg": {},
    "fedprox": {"mu": 0.01},
    "feddyn": {"a": 0.01},
    "fml": {"supervision": 0.5, "proxy_supervision": 0.5},
    "fedtype": {"level": 0.9, "lam_private": 1.0, "lam_proxy": 0.5, "gradient": True},
    "fedtype-prox": {"level": 0.9, "lam_private": 1.0, "lam_proxy": 0.5, "gradient": True, "mu": 0.01},
    "fedekd": {"beta": 1.0, "lambda_kd": 1.0, "energy": "auto", "gate": "energy", "weight": 1.0, "warmup": 0},
    "apfl": {"alpha": 0.5, "adaptive": False},
    "ditto": {"lam": 1.0},
    "fccl": {"off": 0.0051, "lam": 1.0, "epochs": 1, "rate": 0.001},
    "fedadam": {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.001, "second": "adam"},
    "fedavg-tuned": {"epochs": "local", "part": "all"},
    "fedavgm": {"beta": 0.9, "server_lr": 1.0},
    "fedbn": {},
    "feddf": {"epochs": 10, "rate": 0.001},
    "fedgh": {"rate": 0.01, "passes": 1},
    "fedmd": {"pretrain": 3, "digests": 1},
    "fedper": {"layers": 1},
    "fedproto": {"lam": 1.0, "nearest": False},
    "fedrep": {"head_epochs": 10},
    "fedrod": {"gamma": 1.0},
    "local-smooth": {"weight": 0.5},
    "knnper": {"k": 10, "lam": 0.5, "scale": 1.0},
    "second-opinion": {"smooth": 0.5, "prior": 1.0, "caution": 3.0},
    "second-opinion-near": {"smooth": 0.5, "prior": 1.0, "caution": 3.0},
    "second-opinion-taught": {"smooth": 0.5, "prior": 1.0, "caution": 3.0, "passes": 30, "keep": 0.8, "after": 0},
    "moon": {"mu": 1.0, "temperature": 0.5},
    "perfedavg": {"alpha": 0.01, "beta": 0.001},
    "pfedhr": {
        "alpha": 0.1,
        "candidates": 4,
        "clusters": 2,
        "turns": 10,
        "tune_epochs": 3,
        "tune_batch": 8,
        "tune_rate": 0.001,
        "probe": 256,
    },
    "pfedme": {"lam": 15.0, "lr": 0.005, "inner_lr": 0.01, "inner_steps": 5, "beta": 1.0},
    "scaffold": {"server_lr": 1.0},
}
VARIANTS = {
    "local-smooth-tenth": {"weight": 0.1},
    "local-smooth-quarter": {"weight": 0.25},
    "fedekd-ungated": {"gate": "constant", "weight": 1.0},
    "fedekd-half": {"gate": "constant", "weight": 0.5},
    "fedekd-permuted": {"gate": "permuted"},
    "fedtype-nograd": {"gradient": False},
    "fedgh-reset": {"rate": 0.0},
    "fedadam-yogi": {"second": "yogi"},
    "apfl-adaptive": {"adaptive": True},
    "fedproto-nearest": {"nearest": True},
    **{f"fedekd-{energy}": {"energy": energy} for energy in ("entropy", "margin", "lse", "feature")},
}


def test_every_method_has_its_defaults_pinned():
    assert set(DEFAULTS) | set(VARIANTS) == set(KNOWN)


BOUNDS = {
    "apfl": {"alpha": {"high": 1}},
    "fccl": {"rate": {"open": True}},
    "fedadam": {"server_lr": {"open": True}, "beta1": {"high": 1}, "beta2": {"high": 1}, "tau": {"open": True}},
    "fedavgm": {"beta": {"high": 1}, "server_lr": {"open": True}},
    "feddf": {"rate": {"open": True}},
    "feddyn": {"a": {"open": True}},
    "fedekd": {"beta": {"open": True}},
    "fedgh": {"passes": {"low": 1}},
    "fedtype": {"level": {"high": 1}},
    "fedtype-prox": {"level": {"high": 1}},
    "fml": {"supervision": {"high": 1}, "proxy_supervision": {"high": 1}},
    "knnper": {"k": {"low": 1}, "lam": {"high": 1}, "scale": {"open": True}},
    "second-opinion": {"caution": {"open": True}},
    "second-opinion-near": {"caution": {"open": True}},
    "second-opinion-taught": {"caution": {"open": True}, "passes": {"low": 1}, "keep": {"high": 1}},
    "moon": {"temperature": {"open": True}},
    "perfedavg": {"beta": {"open": True}},
    "pfedhr": {
        "candidates": {"low": 1},
        "clusters": {"low": 1},
        "tune_batch": {"low": 1},
        "tune_rate": {"open": True},
        "probe": {"low": 2},
    },
    "pfedme": {"lr": {"open": True}, "inner_lr": {"open": True}, "inner_steps": {"low": 1}, "beta": {"open": True}},
    "scaffold": {"server_lr": {"open": True}},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_bounds_are_what_they_were(name):
    found = {
        f.name: {key: f.metadata[key] for key in ("low", "open", "high") if key in f.metadata}
        for f in fields(KNOWN[name])
    }
    assert {field: bounds for field, bounds in found.items() if bounds} == BOUNDS.get(name, {})


def test_what_runs_serially_keeps_rows_or_needs_public_ones():
    assert {name for name, method in KNOWN.items() if not method.stacks} == {"pfedhr"}
    assert {name for name, method in KNOWN.items() if method.keeps_rows} == {"knnper"}
    assert {name: method.public for name, method in KNOWN.items() if method.public} == {
        "fedmd": "labels",
        "feddf": "rows",
        "fccl": "rows",
        "pfedhr": "labels",
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_changes_what_its_name_says(name):
    method = methods.get(name)
    changed = {**DEFAULTS[method.name], **VARIANTS[name]}
    assert {f.name: getattr(method, f.name) for f in fields(method)} == changed


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_defaults_are_the_papers(name):
    """Results are kept under a method's name: another default would be another method under the same name."""
    method = methods.get(name)
    assert {f.name: getattr(method, f.name) for f in fields(method)} == DEFAULTS[name]


@pytest.mark.parametrize(
    ("name", "uniforms", "reads_weights"),
    [
        ("local", 0, ()),
        ("fedavg", 0, ()),
        ("fedprox", 0, ("private",)),
        ("feddyn", 0, ("private",)),
        ("fml", 0, ()),
        ("fedekd", 1, ()),
        ("fedtype", 2, ()),
        ("fedtype-prox", 2, ("proxy",)),
    ],
)
def test_what_the_losses_read_is_declared(name, uniforms, reads_weights):
    assert (methods.get(name).uniforms, methods.get(name).reads_weights) == (uniforms, reads_weights)


def test_names_are_unique_in_the_source():
    folder = Path(methods.__file__).parent
    names = [n for path in folder.glob("*.py") for n in re.findall(r'^@register\(\s*"([^"]+)"', path.read_text(), re.M)]
    assert len(names) == len(set(names)) >= 9
    assert set(names) <= set(KNOWN)


def test_the_registry_cannot_be_changed_through_its_listing():
    methods.known().clear()
    assert methods.known() == KNOWN


def test_parameters_leave_the_registered_method_alone():
    assert methods.get("fedekd", beta=7.0).beta == 7.0
    assert methods.get("fedekd").beta == 1.0


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(FedekdError, match="local"):

        @methods.register("local")
        @dataclass(frozen=True)
        class Another(Method):
            """Would be the zero of every delta"""


# Groups


def test_the_groups_of_the_paper_hold_what_they_always_held():
    groups = {group: set(names) for group, names in methods.groups().items()}
    assert groups["paper"] == {
        "fedekd",
        "fedavg",
        "fedprox",
        "feddyn",
        "fedtype",
        "fedtype-prox",
        "fml",
        "local",
        "constant",
    }
    assert groups["energies"] == {"fedekd", *(f"fedekd-{energy}" for energy in ("entropy", "margin", "lse", "feature"))}
    assert groups["controls"] == {"fedekd-ungated", "fedekd-half", "fedekd-permuted", "fedtype-nograd", "constant"}


def test_a_family_is_of_methods_and_all_are_all_of_them():
    groups = methods.groups()
    base = {name: method for name, method in KNOWN.items() if name == method.name}
    assert {name: method.family for name, method in base.items()} == {
        name: family for family in methods.FAMILIES for name in groups[family]
    }
    assert sorted(groups["all"]) == sorted(base)
    assert groups["all"][0] == "fedekd"
    assert len(set(groups["all"])) == len(groups["all"])
    assert all(method.cite for name, method in base.items() if name not in ("local", "constant"))


def test_groups_come_from_what_is_registered():
    @methods.register("mine", family="optimisation", cite="Me, 2026", sharp={"gate": "off"}, far={"reach": 2.0})
    @dataclass(frozen=True)
    class Mine(type(methods.get("fedekd"))):
        """Another gate, and nothing of its parent's place"""

        reach: float = 1.0

    @methods.register("yours")
    @dataclass(frozen=True)
    class Yours(Mine):
        """Of no family, and so in no group but the energies it can take"""

    groups = {group: [name for name in names if name not in KNOWN] for group, names in methods.groups().items()}
    assert groups.pop("optimisation") == groups.pop("all") == ["mine"]
    assert groups.pop("controls") == ["mine-sharp"]
    assert groups.pop("energies") == ["mine", "yours"]
    assert not any(groups.values())
    assert (Yours.cite, Mine.cite) == ("", "Me, 2026")


def test_a_family_that_does_not_exist_costs_one_line():
    with pytest.raises(FedekdError, match="unknown family of method 'mine' 'papers'; did you mean 'paper'") as error:

        @methods.register("mine", family="papers")
        @dataclass(frozen=True)
        class Mine(Method):
            """Never known"""

    one_line(error)
    assert "mine" not in methods.known()


# Parameters


@pytest.mark.parametrize(
    ("name", "parameter", "given", "value"),
    [
        ("fedekd", "beta", "0.5", 0.5),
        ("fedekd", "beta", 2, 2.0),
        ("fedekd", "beta", " 1e-3 ", 1e-3),
        ("fedekd", "warmup", "3", 3),
        ("fedekd", "warmup", 2.0, 2),
        ("fedekd", "energy", "lse", "lse"),
        ("fedtype", "gradient", "false", False),
        ("fedtype", "gradient", "True", True),
        ("fedtype", "gradient", False, False),
        ("fedprox", "mu", 0, 0.0),
    ],
)
def test_values_are_converted_to_the_type_of_the_default(name, parameter, given, value):
    found = getattr(methods.get(name, **{parameter: given}), parameter)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "parameter", "given", "kind"),
    [
        ("fedekd", "beta", "big", "a number"),
        ("fedekd", "beta", "", "a number"),
        ("fedekd", "warmup", 1.5, "a whole number"),
        ("fedekd", "warmup", "1.5", "a whole number"),
        ("fedekd", "warmup", math.nan, "a whole number"),
        ("fedekd", "warmup", math.inf, "a whole number"),
        ("fedtype", "gradient", "maybe", "true or false"),
        ("fedtype", "gradient", 1, "true or false"),
        ("fedekd", "beta", [1.0], "a number"),
        ("fedekd", "beta", None, "a number"),
        ("fedekd", "warmup", {"a": 1}, "a whole number"),
    ],
)
def test_values_that_cannot_be_converted_cost_one_line(name, parameter, given, kind):
    with pytest.raises(FedekdError, match=rf"^{name}\.{parameter} must be {kind}, got") as error:
        methods.get(name, **{parameter: given})
    assert repr(given) in one_line(error)


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("fedekt", {}, "unknown method 'fedekt'; did you mean 'fedekd'?"),
        ("FedAvg", {}, "did you mean 'fedavg'?"),
        ("", {}, "unknown method ''; known: apfl, apfl-adaptive"),
        ("qqqqqq", {}, "known: apfl, apfl-adaptive"),
        ("fedekd", {"bata": 1}, "unknown parameter of method 'fedekd' 'bata'; did you mean 'beta'?"),
        ("fedekd", {"lambda-kd": 1}, "did you mean 'lambda_kd'?"),
        ("fedprox", {"beta": 1}, "unknown parameter of method 'fedprox' 'beta'; known: mu"),
        ("fedekd", {"roles": ()}, "unknown parameter of method 'fedekd' 'roles'"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(name, parameters, said):
    with pytest.raises(FedekdError) as error:
        methods.get(name, **parameters)
    assert said in one_line(error)


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("fedekd", {"beta": 0}, "fedekd.beta must be > 0 and finite, got 0"),
        ("fedekd", {"beta": "nan"}, "fedekd.beta must be > 0 and finite, got nan"),
        ("fedekd", {"beta": "inf"}, "fedekd.beta"),
        ("fedekd", {"lambda_kd": -0.1}, "fedekd.lambda_kd must be >= 0 and finite, got -0.1"),
        ("fedekd", {"lambda_kd": "nan"}, "fedekd.lambda_kd"),
        ("fedekd", {"warmup": -1}, "fedekd.warmup must be >= 0"),
        ("fedekd", {"energy": "entropi"}, "unknown energy 'entropi'; did you mean 'entropy'?"),
        ("fedekd", {"energy": "squared"}, "energy 'squared' is not defined for classification"),
        ("fedekd", {"gate": "closed"}, "unknown gate 'closed'"),
        ("fedprox", {"mu": -1}, "fedprox.mu must be >= 0"),
        ("feddyn", {"a": 0}, "feddyn.a must be > 0"),
        ("constant", {}, "method 'constant' is defined for regression, not for classification"),
        ("fedtype", {"level": 1.1}, "fedtype.level must be >= 0 and <= 1"),
        ("fml", {"supervision": 1.1}, "fml.supervision must be >= 0 and <= 1"),
        ("fml", {"proxy_supervision": 1.1}, "fml.proxy_supervision must be >= 0 and <= 1"),
    ],
)
def test_parameters_out_of_their_range_cost_one_line(name, parameters, said):
    with pytest.raises(FedekdError) as error:
        methods.get(name, **parameters).check("classification")
    assert said in one_line(error)


@dataclass(frozen=True)
class Pulled(Method):
    """Has a fraction whose default is written as a whole number"""

    mu: float = 1


def test_a_number_may_be_a_fraction_where_the_class_says_float():
    assert methods.with_parameters(Pulled(), {"mu": "0.5"}).mu == 0.5


def test_what_is_no_field_is_no_parameter():
    class Plain(Method):
        mu = 3

    with pytest.raises(FedekdError) as error:
        methods.with_parameters(Plain(), {"mu": 4})
    assert "mu of Plain is no parameter; write its type, as in `mu: float = 1.0`, and @dataclass" in one_line(error)


@pytest.mark.parametrize(("mu", "said"), [(-1, "pulled.mu must be >= 0"), ("1", "pulled.mu must be a number, got '1'")])
def test_an_instance_is_checked_as_parameters_are(mu, said):
    with pytest.raises(FedekdError) as error:
        Pulled(mu).check("classification")
    assert said in one_line(error)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_shares_may_be_nothing_or_all(value):
    methods.get("fml", supervision=value, proxy_supervision=value).check("classification")
    methods.get("fedtype", level=value).check("classification")


def test_a_task_that_a_method_does_not_fit():
    with pytest.raises(FedekdError, match="method 'fedtype' is defined for classification, not for regression"):
        methods.get("fedtype").check("regression")
    with pytest.raises(FedekdError, match="energy 'entropy' is not defined for regression; use squared"):
        methods.get("fedekd-entropy").check("regression")


# A user's own method

OWN = '''
from dataclasses import dataclass

from fedekd.methods import Batch, Exchange, Method, Remember, Train, register
from fedekd.trees import squared_distance


@register("pulled", hard={"pull": 5.0})
@dataclass(frozen=True)
class Pulled(Method):
    """Proxies pulled to what was received, by the spread of the private outputs"""

    pull: float = 0.5
    roles = ("private", "proxy")
    reads_weights = ("proxy",)
    uniforms = 1

    def begin(self, client):
        return {"seen": 0.0 * next(iter(client.weights["private"].values())).sum()}

    def steps(self, round):
        return (
            Remember(self.spread, split="train", roles=("private",)),
            Train(("private",), lambda batch: batch.supervised("private")),
            Train(("proxy",), self.loss, frozen=("private",)),
            Exchange("proxy", self.server),
        )

    def spread(self, batch):
        return {"seen": batch.memory["seen"] + batch.mean(batch.outputs["private"].amax(-1))}

    def loss(self, batch: Batch):
        distance = squared_distance(batch.weights["proxy"], batch.received["proxy"])
        noisy = batch.mean(batch.uniform[..., 0] * batch.distilled("proxy", teacher="private"))
        return noisy + self.pull * batch.memory["seen"] * distance

    def server(self, uploads):
        mean, previous = uploads.mean(), uploads.previous
        return {n: 0.5 * (mean[n] + previous[n]) for n in mean}, {}


@dataclass(frozen=True)
class Plain(Method):
    """Not registered"""

    rate: float = 1.0

    def steps(self, round):
        return (Train(("private",), lambda batch: self.rate * batch.supervised("private")),)


plain = Plain(rate=2.0)
number = 3

class NeedsMore(Method):
    def __init__(self, more): pass
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "clinic.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("clinic")
    sys.modules.pop("clinic", None)


def private(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, outputs))


def proxy(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))


def trained(federation, method):
    """The job's private outputs and the method's memory, in the serial and in the stacked engine."""
    job = Job(federation, method, 0, Training(rounds=2, epochs=1, batch_size=32, lr=1e-2), private, proxy)
    serial, stacked = Serial(job), Stacked([job])
    for _ in range(2):
        serial.round()
        stacked.round()
    return serial, stacked


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", ["pulled", "pulled-hard"])
def test_a_registered_method_from_one_file_runs_in_both_engines(images, name):
    method = methods.get(name)
    assert method.name == "pulled"
    assert method.pull == (5.0 if name == "pulled-hard" else 0.5)
    assert methods.get(name, pull="0.25").pull == 0.25
    serial, stacked = trained(images, method)
    for role in ("private", "proxy"):
        for parameter in serial.clients[0].models[role].state_dict():
            ours = torch.stack([client.models[role].state_dict()[parameter] for client in serial.clients])
            torch.testing.assert_close(ours, stacked.stacks[0].weights[role][parameter], rtol=1e-3, atol=1e-5)
    assert serial.door.names == {"proxy"}
    assert serial.door.bytes_up == stacked.doors[0].bytes_up == 2 * 3 * 4 * (64 * 10 + 10)
    seen = torch.stack([client.memory["seen"] for client in serial.clients])
    assert (seen != 0).all()


def test_a_method_by_its_path_needs_no_registration(own, images):
    method = methods.get("clinic:Plain", rate="0.5")
    assert isinstance(method, own.Plain)
    assert (method.name, method.rate) == ("plain", 0.5)
    assert "plain" not in methods.known()
    assert methods.get("clinic:plain").rate == 2.0
    serial, stacked = trained(images, method)
    assert stacked.evaluate()[0] == pytest.approx(serial.evaluate()[0], abs=1e-6)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    "path",
    [
        "clinic:Nothing",
        "clinic:",
        "clinic.more:Plain",
        "nowhere:Plain",
        "clinic:number",
        "collections:OrderedDict",
        "clinic/own.py:Plain",
        "os:path",
        ":Plain",
        ".clinic:Plain",
        "clinic:NeedsMore",
        "torch.nn:Linear",
    ],
)
def test_a_path_to_something_else_costs_one_line(path):
    with pytest.raises(FedekdError, match=r"cannot import method|is not a fedekd Method") as error:
        methods.get(path)
    assert repr(path) in one_line(error)


def test_a_method_without_steps_says_so():
    class Empty(Method):
        pass

    with pytest.raises(NotImplementedError, match="Empty needs steps"):
        Empty().steps(0)


def test_a_name_of_an_earlier_version_gets_a_line(tmp_path, monkeypatch):
    text = "from dataclasses import dataclass\nfrom fedekd.methods import Method\n"
    text += "class Old(Method):\n    anchors = ('private',)\n"
    text += "@dataclass(frozen=True)\nclass Own(Method):\n    draws: int = 3\n"
    (tmp_path / "of_earlier.py").write_text(text)
    (tmp_path / "of_begin.py").write_text("from fedekd.methods import Beginning\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FedekdError, match="`anchors` is called `reads_weights` now; rename it"):
        methods.get("of_earlier:Old").check("classification")
    methods.get("of_earlier:Own").check("classification")  # a parameter may have any name
    with pytest.raises(FedekdError, match="`Beginning` is called `ClientInit` now"):
        methods.get("of_begin:Old")
