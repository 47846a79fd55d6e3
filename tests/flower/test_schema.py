"""What sites agree on: a site's rows are brought into the schema, and what differs is named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedekd.data import Dataset, load_dataset
from fedekd.errors import FedekdError
from fedekd.flower.protocol.rows import joined, of_site
from fedekd.flower.protocol.scaling import OWN, Scaling
from fedekd.flower.protocol.schema import Schema

CENTRE = """age,sex,ward,outcome
50,f,a,ill
61,m,b,well
42,f,c,ill
70,m,a,dead
33,f,b,well
"""


def csv(tmp_path, text, name="site.csv"):
    file = tmp_path / name
    file.write_text(text)
    return file


@pytest.fixture
def schema(tmp_path) -> Schema:
    return Schema.of(load_dataset(csv(tmp_path, CENTRE, "centre.csv"), target="outcome"))


def test_a_schema_from_a_table(schema):
    assert schema.columns == ("age", "sex=f", "sex=m", "ward=a", "ward=b", "ward=c")
    assert schema.labels == ("dead", "ill", "well")
    assert (schema.task, schema.dtype, schema.outputs) == ("classification", "float32", 3)


def test_it_survives_its_file(schema, tmp_path):
    schema.write(tmp_path / "schema.json")
    assert Schema.read(tmp_path / "schema.json") == schema
    assert Schema.parse(schema.text()) == schema


def test_other_order_and_absent_categories_and_classes_fit(schema, tmp_path):
    """This site has its columns in another order, nobody in ward c, no man, and only one class."""
    file = csv(tmp_path, "outcome,ward,age,sex\nwell,b,20,f\nwell,a,30,f\nwell,a,40,f\n")
    rows = schema.load(file, "outcome")
    assert rows.columns == schema.columns
    assert rows.labels == schema.labels
    assert rows.y.tolist() == [2, 2, 2]
    assert rows.x.tolist() == [[20, 1, 0, 0, 1, 0], [30, 1, 0, 1, 0, 0], [40, 1, 0, 1, 0, 0]]


def test_categories_that_look_like_numbers(tmp_path):
    text = "a,ward,flag,y\n" + "".join(
        f"{k},{['A1', '022', '7'][k % 3]},{['True', 'False', '?'][k % 3]},{k % 2}\n" for k in range(9)
    )
    schema = Schema.of(load_dataset(csv(tmp_path, text, "centre.csv"), target="y"))
    rows = schema.load(csv(tmp_path, "a, ward ,flag,y\n1,022,True,0\n2,7,False,1\n"), "y")
    chosen = [
        {name for name, value in zip(schema.columns, row, strict=True) if value and "=" in name} for row in rows.x
    ]
    assert chosen == [{"ward=022", "flag=True"}, {"ward=7", "flag=False"}]
    with pytest.raises(FedekdError, match="column 'ward' holds '22', which the schema does not know"):
        schema.load(csv(tmp_path, "a,ward,flag,y\n1,22,True,0\n2,7,False,1\n"), "y")


def test_labels_that_look_like_numbers(tmp_path):
    text = "a,y\n" + "".join(f"{k},{('01', '02', 'rest')[k % 3]}\n" for k in range(9))
    schema = Schema.of(load_dataset(csv(tmp_path, text, "centre.csv"), target="y"))
    assert schema.labels == ("01", "02", "rest")
    assert schema.load(csv(tmp_path, "a,y\n1,02\n2,01\n3,01\n"), "y").y.tolist() == [1, 0, 0]


@pytest.mark.parametrize("label", ["{}", "{}.0", "c{}"])
def test_many_known_classes_in_few_rows(tmp_path, label):
    def table(rows, name, label):
        return csv(tmp_path, "a,y\n" + "".join(f"{k},{label.format(k % 40)}\n" for k in range(rows)), name)

    schema = Schema.of(load_dataset(table(400, "centre.csv", label), target="y", task="classification"))
    assert schema.load(table(100, "site.csv", label), "y").outputs == 40


def test_truth_spelt_otherwise(tmp_path):
    schema = Schema.of(load_dataset(csv(tmp_path, "a,y\n1,True\n2,False\n", "centre.csv"), target="y"))
    assert schema.load(csv(tmp_path, "a,y\n1,TRUE\n2,FALSE\n3,TRUE\n"), "y").y.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("age,sex,outcome\n5,f,ill\n6,m,well\n", "column 'ward' is missing"),
        ("age,sex,ward,zip,outcome\n5,f,a,1,ill\n6,m,b,2,well\n", "'zip' is not in the schema; leave out with `drop`"),
        ("age,sex,ward,outcome\n5,f,z,ill\n6,m,a,well\n", "column 'ward' holds 'z', which the schema does not know"),
        (
            "age,sex,ward,outcome\nold,f,a,ill\nyoung,m,b,well\n",
            "'age' holds text ('old'), in the schema numbers; correct",
        ),
        ("age,sex,ward,outcome\n5,1,a,ill\n6,2,b,well\n", "column 'sex' holds '1', which the schema does not know"),
        ("age,sex,ward,outcome\n5,f,a,ill\n6,m,b,missing\n", "label 'missing' is not in the schema"),
    ],
)
def test_what_differs_is_named(schema, tmp_path, text, named):
    with pytest.raises(FedekdError) as error:
        schema.load(csv(tmp_path, text), "outcome")
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_another_sites_categories_and_labels_are_added(schema, tmp_path):
    """In their columns, behind those that are known; whoever fitted before fits afterwards."""
    file = csv(tmp_path, "outcome,ward,age,sex\nlost,d,20,f\nwell,a,30,x\n")
    wider = schema.extended(schema.read_rows(file, "outcome"))
    assert wider.columns == ("age", "sex=f", "sex=m", "sex=x", "ward=a", "ward=b", "ward=c", "ward=d")
    assert wider.labels == ("dead", "ill", "well", "lost")
    assert Schema.parse(wider.text()) == wider
    assert wider.load(file, "outcome").x.tolist() == [[20, 1, 0, 0, 0, 0, 0, 1], [30, 0, 0, 1, 1, 0, 0, 0]]
    assert wider.load(tmp_path / "centre.csv", "outcome").y.tolist() == [1, 2, 1, 0, 2]
    with pytest.raises(FedekdError, match="'zip' is not in the schema"):
        schema.extended(schema.read_rows(csv(tmp_path, "age,sex,ward,zip,outcome\n5,f,a,1,ill\n"), "outcome"))
    centre = load_dataset(tmp_path / "centre.csv", target="outcome")
    with pytest.raises(FedekdError, match="gives no scaling"):
        Schema.of(centre, Scaling.of(centre)).extended(centre)


def test_several_differences_in_one_line(schema, tmp_path):
    with pytest.raises(FedekdError, match=r"'sex' is missing.*'ward' is missing.*'zip' is not in the schema"):
        schema.load(csv(tmp_path, "age,zip,outcome\n5,1,ill\n6,2,well\n"), "outcome")


def test_images(tmp_path):
    rng = np.random.default_rng(0)
    schema = Schema.of(
        Dataset("all", "classification", rng.integers(0, 255, (6, 1, 8, 8), np.uint8), np.arange(6) % 3, 3)
    )
    assert schema.scaling == Scaling(np.float32(2 / 255).item(), -1.0)
    np.savez(tmp_path / "fits.npz", x=rng.integers(0, 255, (4, 8, 8)).astype(np.uint8), y=np.array([2, 2, 0, 2]))
    assert schema.load(tmp_path / "fits.npz").y.tolist() == [2, 2, 0, 2]
    np.savez(tmp_path / "large.npz", x=rng.integers(0, 255, (4, 9, 8)).astype(np.uint8), y=np.array([0, 1, 0, 1]))
    with pytest.raises(FedekdError, match=r"rows have shape \(1, 9, 8\), the schema's \(1, 8, 8\)"):
        schema.load(tmp_path / "large.npz")
    np.savez(tmp_path / "float.npz", x=rng.random((4, 8, 8)), y=np.array([0, 1, 0, 1]))
    with pytest.raises(FedekdError, match="values are float32, the schema's uint8"):
        schema.load(tmp_path / "float.npz")


def test_no_statistics_of_rows_without_being_asked(schema, diabetes):
    assert schema.scaling == Scaling(OWN, OWN, 0.0, 1.0)
    whole = Schema.of(diabetes)
    assert whole.scaling == Scaling(OWN, OWN, OWN, OWN)
    assert Schema.parse(whole.text()) == whole


def test_statistics_of_rows_for_all(diabetes):
    schema = Schema.of(diabetes, Scaling.of(diabetes))
    assert schema.scaling.mean == pytest.approx(float(diabetes.y.mean()), rel=1e-5)
    assert len(schema.scaling.gain) == 10
    assert of_site(diabetes, schema, "north", seed=0, number=0).gain == pytest.approx(schema.scaling.gain)


def test_each_site_scales_by_its_own_training_rows(schema, tmp_path):
    text = "age,sex,ward,outcome\n" + "".join(f"{20 + 3 * k},{'fm'[k % 2]},a,ill\n" for k in range(20))
    rows = schema.load(csv(tmp_path, text), "outcome")
    federation = of_site(rows, schema, "north", seed=4, number=1)
    (split,) = federation.clients
    ages = rows.x[split.train, 0]
    scaled = rows.x[split.train] * federation.gain + federation.shift
    assert scaled[:, 0] == pytest.approx((ages - ages.mean()) / ages.std(), abs=1e-5)
    assert (scaled[:, 1:] == rows.x[split.train, 1:]).all(), "categories are 0 or 1 at every site"
    again = of_site(rows, schema, "north", seed=4, number=1)
    assert (again.gain == federation.gain).all()
    assert (again.shift == federation.shift).all()
    with pytest.raises(FedekdError, match="one scaling for all"):
        joined([federation, again])


def test_each_site_scales_a_regressions_target_by_its_own_training_rows(diabetes):
    federation = of_site(diabetes, Schema.of(diabetes), "north", seed=4, number=1)
    targets = diabetes.y[federation.clients[0].train]
    assert federation.target_mean == pytest.approx(float(targets.mean()), rel=1e-5)
    assert federation.target_std == pytest.approx(float(targets.std()), rel=1e-5)


def test_names_and_free_text_do_not_become_categories_for_all(tmp_path):
    text = "age,name,outcome\n" + "".join(f"{20 + k},patient {k},{'iw'[k % 2]}\n" for k in range(12))
    with pytest.raises(FedekdError, match="column 'name' holds 12 different texts in 12 rows"):
        Schema.of(load_dataset(csv(tmp_path, text), target="outcome"))


@pytest.mark.parametrize(
    "change",
    [
        {"task": "clustering"}, {"shape": [0]}, {"shape": "abc"}, {"labels": ["a", "a", "b"]}, {"labels": []},
        {"columns": ["age"]}, {"dtype": "object"}, {"more": 1}, {"scaling": {"gain": [1], "shift": [float("nan")]}},
        {"scaling": {"gain": 1.0, "shift": 0.0, "mean": 0.0, "std": 0.0}}, {"scaling": 3},
        {"scaling": {"gain": "own", "shift": 0.0}}, {"scaling": {"gain": "mine", "shift": "mine"}},
        {"scaling": {"gain": 0.0, "shift": 0.0}}, {"scaling": {"gain": "own", "shift": "own", "std": float("inf")}},
        {"scaling": {"gain": 1.0, "shift": 0.0, "mean": "own", "std": 1.0}},
        {"labels": [str(k) for k in range(100_001)]},
    ],
)  # fmt: skip
def test_a_schema_from_outside_is_not_trusted(schema, change):
    text = json.dumps({**json.loads(schema.text()), **change})
    with pytest.raises(FedekdError, match="is not a fedekd schema"):
        Schema.parse(text)
    with pytest.raises(FedekdError, match="is not a fedekd schema"):
        Schema.parse("[1, 2")
