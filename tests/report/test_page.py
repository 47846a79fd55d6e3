"""The report as a file: what it says, that it needs nothing from outside, and that no name can break it."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from made_details import make_details
from rich.console import Console

from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.export.card import verdict
from fedekd.report import palette
from fedekd.report.html.chart import slant
from fedekd.report.page import write_page
from fedekd.report.terminal import print_result
from fedekd.runs import command_file
from fedekd.runs.metadata import ModelMetadata
from fedekd.runs.results import load

PAPER = Path(__file__).parents[2] / "results" / "paper"
NASTY = '<script>alert("x")</script>'


class Outline(HTMLParser):
    """Tags with their attributes, headings, and the text of the page without scripts and styles.

    Words have plain spaces, where the text may have some at which no line ends.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside not in ("script", "style") and data.strip():
            self.text.append(data.strip())
            self.words.append(data.strip().replace("\u00a0", " "))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def save(folder: Path, records, details=True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if details:
        (folder / "details").mkdir(exist_ok=True)
        for record in records:
            (folder / "details" / f"{record['key']}.json").write_text(json.dumps(make_details(record)))
    return folder


def page_data(text: str) -> dict:
    return json.loads(re.search(r'id="page-data">(.*?)</script>', text, re.S)[1])


def page(folder: Path) -> str:
    return write_page(folder).read_text(encoding="utf-8")


def test_a_run_has_its_headline_its_charts_and_its_settings(tmp_path, result):
    text = page(save(tmp_path, result(methods=3, seeds=3, rows=100).records))
    outline, charts = Outline(text), page_data(text)["charts"]
    words = " ".join(outline.words)
    assert {"clients", "methods", "curves", "holdings", "trust", "reliability", "traffic", "time"} <= set(charts)
    assert re.search(r"fedekd: \d+ of 18 client-runs (clearly|equivalent|undecided)", words)
    assert "95 % interval" in words
    assert outline.count("main") == outline.count("nav") == outline.count("footer") == 1
    for name, attributes in outline.tags:
        if name == "figure":
            assert attributes["aria-labelledby"]


def no_heading_skips_a_level(text: str) -> None:
    levels = [int(name[1]) for name, _ in Outline(text).tags if re.fullmatch(r"h[1-6]", name)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_headings_never_skip_a_level(tmp_path, result):
    no_heading_skips_a_level(page(save(tmp_path, result(2, 2).records)))


def test_no_line_ends_between_a_number_and_its_unit(tmp_path, result):
    folder = save(tmp_path, result(methods=2, seeds=2, rows=100).records)
    text = page(folder)
    charts = page_data(text)["charts"].values()
    beside = [column["title"] for chart in charts for column in chart["columns"]]
    beside += [note for chart in charts for note in chart["notes"].values()]
    said = "\n".join([*Outline(text).text, *beside])
    for unit in ("%", "points", "MB", "s"):
        assert re.search(rf"\d\u00a0{unit}(?!\w)", said), unit
    assert not re.search(r"\d (%|points?\b|[kM]?B\b|s\b|min\b)", said)


def test_the_headline_counts_the_four_states_and_names_the_worst(tmp_path, record):
    deltas = (0.05, -0.04, 0.0, 0.0, 0.02, -0.11)
    records = [record(name, deltas, rows=2000) for name in ("local", "fedekd", "local-smooth", "fedekd@alone")]
    text = page(save(tmp_path, records))
    words = " ".join(Outline(text).words)
    assert "fedekd: 2 of 6 clients clearly harmed, 2 clearly helped, 2 equivalent" in words
    assert "Worst off is client 5: accuracy 81.0 % alone (local), 70.0 % with the method" in words
    assert "One seed tells you about these trained models, not about the method" in words
    assert "assumed independent" in words
    assert "2 should join, 4 should stay alone, 0 are undecided" in words
    assert "with fedekd its accuracy is 11.0 points worse than alone (local), 95 % interval" in words
    found = page_data(text)
    assert found["choices"]["method"]["options"] == ["fedekd"]  # the others are controls
    assert "local-smooth" in words
    clients = found["charts"]["clients"]
    titles = {"gain, points", "95\u00a0% from", "95\u00a0% to", "can show", "verdict", "best alone", "test rows"}
    assert titles <= {column["title"] for column in clients["columns"]}
    states = [row[clients["fields"].index("state")] for row in clients["rows"]["0|0"]]
    assert states == ["clearly harmed"] * 2 + ["equivalent"] * 2 + ["clearly helped"] * 2
    parts = found["charts"]["parts"]
    assert {row[parts["fields"].index("part")] for row in parts["rows"][""]} >= {"recipe", "federation"}


def test_a_row_or_two_harm_nobody(tmp_path, record):
    text = page(save(tmp_path, [record(m, (0.05, -0.04, 0.03), rows=30) for m in ("local", "fedekd")]))
    words = " ".join(Outline(text).words)
    assert "fedekd: 3 of 3 clients undecided" in words
    assert 'class="harm' not in text
    assert 'class="help' not in text
    assert "which may be chance: its 30 test rows can only show" in words


def test_old_records_are_told_by_sign_alone(tmp_path, record):
    text = page(save(tmp_path, [record("local"), record("fedekd")]))
    assert "fedekd: 1 of 6 clients harmed by sign alone" in text
    assert "do not hold the test rows" in text
    assert 'class="harm' not in text


def test_regression_is_worded_by_its_error(tmp_path, result):
    text = page(save(tmp_path, result(2, 2, metric="rmse").records))
    assert "RMSE" in " ".join(Outline(text).words)
    rows = page_data(text)["charts"]["holdings"]["rows"]["0"]
    assert rows[0][3][:2] == ["below 50", "50 to 90"]
    assert rows[0][3][-1] == "above 320"  # neither the lowest nor the highest target


def test_no_row_and_no_label_of_the_data_is_shown_unasked(tmp_path, record):
    folder = save(tmp_path, [record("local"), record("fedekd")])
    assert "distrusted samples" not in page(folder)
    assert "data:image" not in page(folder)
    assert main(["report", str(folder), "--thumbnails"]) == 0
    asked = (folder / "report.html").read_text(encoding="utf-8")
    assert "Most distrusted samples" in asked
    assert asked.count("data:image/png") == 6


def test_a_split_that_is_held_fixed_gets_verdicts_over_seeds(tmp_path, result):
    records = result(2, 4, rows=60).records
    dealt = page_data(page(save(tmp_path / "dealt", records)))["charts"]["clients"]
    assert dealt["follows"] == ["method", "seed"]
    low, high = (dealt["fields"].index(name) for name in ("low", "high"))
    assert all(row[low] < row[high] for rows in dealt["rows"].values() for row in rows)
    for one in records:
        one["partition"] |= {"seed": 0, "fixed": True, "fingerprint": "0f"}
    text = page(save(tmp_path / "held", records))
    held = page_data(text)["charts"]["clients"]
    assert held["follows"] == ["method"]
    low, gain, high = (held["fields"].index(name) for name in ("low", "gain", "high"))
    assert all(row[low] < row[gain] < row[high] for row in held["rows"]["0"])
    assert "the same on all 4 seeds" in text


def test_gains_stand_on_an_axis_of_gains(tmp_path, record):
    records = [record(m, (0.05, -0.04, 0.0, 0.15), rows=300, local=0.95) for m in ("local", "fedekd")]
    clients = page_data(page(save(tmp_path, records)))["charts"]["clients"]
    axes = {layer["encoding"]["x"].get("field") for layer in clients["spec"]["layer"]}
    assert axes == {None, "low", "gain"}  # None: the line of zero and the words at the end
    said, high = (clients["fields"].index(name) for name in ("said", "high"))
    assert [row[said] for row in clients["rows"]["0|0"]] == ["−4.0", "0.0", "+5.0", "+15.0"]
    assert any(row[high] > 5 for row in clients["rows"]["0|0"])  # though 95 % alone leaves 5


def test_the_command_the_machine_the_rows_and_the_losses_are_told(tmp_path, record):
    records = [record("local"), record("fedekd")]
    for one in records:
        for client in one["clients"]:
            client["curve"] = {"value": [0.1, 0.2], "val": [0.1, 0.2], "val_loss": [2.0, 1.0]}
    folder = save(tmp_path, records)
    command_file.write(folder, ["run", "--dataset", "own data.csv"], "cpu")
    text = page(folder)
    words, charts = " ".join(Outline(text).words), page_data(text)["charts"]
    assert "fedekd run --dataset 'own data.csv'" in words
    assert "cores of" in words
    assert {"training", "validation", "test"} <= {column["title"] for column in charts["holdings"]["columns"]}
    assert "training rows" in {column["title"] for column in charts["clients"]["columns"]}
    assert [row[2] for row in charts["losses"]["rows"]["0"]] == [2.0, 1.0, 2.0, 1.0]
    (folder / "command.json").write_text("[")
    assert "last command" not in page(folder)


def test_answers_by_class_are_shown_alone_and_with_the_method(tmp_path, record):
    records = [record("local"), record("fedekd")]
    found = page_data(page(save(tmp_path, records)))
    assert found["choices"]["client"]["options"] == [client["id"] for client in records[0]["clients"]]
    alone, joined = (found["charts"][name] for name in ("confusion-alone", "confusion"))
    for c, client in enumerate(records[0]["clients"]):
        assert sum(row[2] for row in alone["rows"][f"0|{c}"]) == client["n_test"]
        assert sum(row[2] for row in joined["rows"][f"0|0|{c}"]) == client["n_test"]
        right = sum(row[2] for row in joined["rows"][f"0|0|{c}"] if row[0] == row[1])
        assert joined["notes"][f"0|0|{c}"] == f"Client {client['id']}: {right} of {client['n_test']} test rows right."


def test_calibration_is_over_all_clients_alone_and_with_the_method(tmp_path, record):
    records = [record(m, (0.05, -0.04, 0.0), rows=300) for m in ("local", "fedekd")]
    chart = page_data(page(save(tmp_path, records)))["charts"]["calibration"]
    rows = [dict(zip(chart["fields"], row, strict=True)) for row in chart["rows"]["0|0"]]
    assert [row["who"] for row in rows] == ["with the method"] * 2 + ["alone"] * 2
    assert [row["sure"] for row in rows] == [45, 95] * 2
    assert {row["count"] for row in rows} == {450}
    for who, name in (("with the method", "value"), ("alone", "local")):
        right = sum(row["right"] * row["count"] / 100 for row in rows if row["who"] == who)
        assert right == pytest.approx(sum(client[name] * 300 for client in records[1]["clients"]), abs=0.1)


def test_training_loss_stands_beside_validation_loss(tmp_path, record):
    records = [record(m, rows=60) for m in ("local", "fedekd")]
    for client in (client for one in records for client in one["clients"]):
        client["curve"] = {"value": [0.1] * 3, "val": [0.1] * 3, "val_loss": [0.9, 0.8, 0.85]}
    chart = page_data(page(save(tmp_path, records)))["charts"]["two-losses"]
    rows = [dict(zip(chart["fields"], row, strict=True)) for row in chart["rows"]["0|0"]]
    assert [(row["rows"], row["round"], row["loss"]) for row in rows if row["round"] == 3] == [
        ("training", 3, pytest.approx(0.358333)),
        ("validation", 3, 0.85),
    ]
    older = save(tmp_path / "older", records)
    for path in (older / "details").iterdir():
        kept = json.loads(path.read_text())
        path.write_text(json.dumps({name: kept[name] for name in kept if name not in ("train_loss", "calibration")}))
    assert not {"two-losses", "calibration"} & page_data(page(older))["charts"].keys()


def test_the_colour_of_harm_means_nothing_else(tmp_path, result):
    found = page_data(page(save(tmp_path, result(2, 2).records)))["charts"]
    painted = {name for name, chart in found.items() if "$harm" in json.dumps(chart["spec"])}
    assert painted == {"clients", "methods"}
    assert "harm" not in palette.SERIES


def card_verdict(records, method, client):
    one = next(r for r in records if r["method"] == method)
    return verdict(ModelMetadata(Path("m"), {"method": method, "client": client, "key": one["key"]}), records)


def test_terminal_page_and_card_say_the_same(tmp_path, record):
    records = [record(m, (0.05, -0.04, 0.0), rows=300) for m in ("local", "fedekd")]
    folder = save(tmp_path, records)
    out = io.StringIO()
    print_result(Console(file=out, width=200), load(folder))
    clients = page_data(page(folder))["charts"]["clients"]
    place, state = (clients["fields"].index(name) for name in ("client", "state"))
    lines = out.getvalue()[out.getvalue().index("95 % interval") :].splitlines()
    for row in clients["rows"]["0|0"]:
        assert next(line for line in lines if line.startswith(f"{row[place]} ")).rstrip().endswith(row[state])
        assert row[state] in card_verdict(load(folder).records, "fedekd", row[place])


def test_without_a_gate_there_is_nothing_about_trust(tmp_path, record):
    text = page(save(tmp_path, [record("local"), record("fedavg")]))
    assert "trust" not in page_data(text)["charts"]
    assert "no gate" not in text


def nothing_comes_from_outside(text: str) -> None:
    outline = Outline(text)
    for name, attributes in outline.tags:
        assert name not in ("link", "iframe", "object", "embed", "base")
        for key in ("src", "href"):
            assert (attributes.get(key) or "#").startswith(("#", "data:image/png;base64,"))
    policy = next(a["content"] for n, a in outline.tags if n == "meta" and a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2]
    assert not re.search(r"@import|url\(", text[: text.index("</style>")])
    assert len(text.encode()) < 6e6


def test_nothing_comes_from_outside(tmp_path, result):
    nothing_comes_from_outside(page(save(tmp_path, result(2, 2).records)))


def test_names_and_labels_cannot_become_markup(tmp_path, record):
    records = [record("local"), record("fedekd", label=f"fedekd ({NASTY})")]
    for one in records:
        one["clients"][0]["id"] = NASTY
        one["dataset"] = f"data{NASTY}"
    folder = save(tmp_path, records)
    for one in records:
        details = make_details(one, (NASTY, "</style>", '" onerror="alert(1)'))
        (folder / "details" / f"{one['key']}.json").write_text(json.dumps(details))
    text = page(folder)
    outline = Outline(text)
    assert NASTY not in text
    assert outline.count("script") == 3  # data, Vega, the page's own
    assert not any(key.startswith("on") for _, attributes in outline.tags for key in attributes)
    clients = page_data(text)["charts"]["clients"]
    place = clients["fields"].index("client")
    assert NASTY in [row[place] for row in clients["rows"]["0|0"]]


def test_details_may_be_missing(tmp_path, result):
    text = page(save(tmp_path, result(2, 2).records, details=False))
    assert "no details of rounds" in " ".join(Outline(text).words)
    assert {"clients", "methods", "time"} <= set(page_data(text)["charts"])


def test_a_run_of_nothing_but_local_has_a_page(tmp_path, record):
    assert "Nothing to compare yet" in page(save(tmp_path, [record("local")]))


def test_a_result_that_is_not_a_number_is_shown_as_none(tmp_path, record):
    records = [record("local"), record("fedavg", deltas=(float("nan"), 0.1, 0.0, 0.0, 0.0, 0.0))]
    clients = page_data(page(save(tmp_path, records, details=False)))["charts"]["clients"]
    place = clients["fields"].index("gain")
    assert None in [row[place] for row in clients["rows"]["0|0"]]


def test_very_many_clients_stay_readable_and_small(tmp_path, result):
    folder = save(tmp_path, result(methods=3, seeds=2, clients=600).records)
    text = page(folder)
    charts = page_data(text)["charts"]
    assert len(charts["clients"]["rows"]["0|0"]) == 40
    assert len(charts["ranks"]["rows"]["0|0"]) == 600
    assert len(charts["methods"]["rows"][""]) == 3
    assert len(charts["trust-clients"]["rows"]["0|0"]) == 40
    assert len({row[0] for row in charts["trust-course"]["rows"]["0|0"]}) == 40
    assert len(text.encode()) < 2e6


def test_the_latest_settings_are_shown_and_the_others_counted(tmp_path, result):
    old, new = result(1, 1).records, result(2, 1).records
    for one in old:
        one.update(key="old" + one["key"], params={"rounds": 3, "epochs": 2}, finished="2026-01-01T00:00:00Z")
    for one in new:
        one.update(finished="2026-02-01T00:00:00Z")
    text = page(save(tmp_path, new + old))
    assert "2 runs with other settings" in text
    assert page_data(text)["choices"]["method"]["options"] == ["fedekd", "fedavg"]
    only = write_page(tmp_path, tmp_path / "old.html", keys=[one["key"] for one in old]).read_text(encoding="utf-8")
    assert page_data(only)["choices"]["method"]["options"] == ["fedekd"]


def test_the_chosen_methods_twin_has_a_line_and_no_name(tmp_path, record):
    methods = ["local", "fedekd", "fedavg", "local-smooth"]
    with_twin, without = (
        page(save(tmp_path / str(len(some)), [record(name, (0.1, 0.2)) for name in some]))
        for some in ([*methods, "fedekd@alone"], methods)
    )
    said = "thin and dashed: the chosen method without exchange"
    assert said in with_twin
    assert said not in without
    chart = page_data(with_twin)["charts"]["curves"]
    rows = [dict(zip(chart["fields"], row, strict=True)) for row in chart["rows"]["0"]]
    twins = {"local": "", "fedekd": "", "fedavg": "", "fedekd@alone": "fedekd"}
    assert {row["method"]: row["twin_of"] for row in rows} == twins
    assert {row["method"] for row in rows if row["at"] is not None} == {"local", "fedekd", "fedavg"}
    filters = {layer["transform"][0]["filter"]: layer["mark"] for layer in chart["spec"]["layer"]}
    assert filters["datum.twin_of === method"]["strokeDash"] == [3, 3]


def test_a_study_of_ones_own_needs_nothing_of_the_paper(tmp_path, result):
    records = result(2, 2).records
    other = [{**r, "alpha": 0.5, "key": r["key"] + "b"} for r in records]
    found = page_data(page(save(tmp_path, records + other, details=False)))
    assert "agreement" not in found["charts"]
    assert "heat-classification" in found["charts"]


def test_the_command_writes_whole_files_and_says_what_is_wrong(tmp_path, result, capsys):
    folder = save(tmp_path / "run", result(1, 1).records)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert main(["report", str(folder), "--out", str(tmp_path / "a" / "b.html")]) == 0
    assert not list(tmp_path.rglob("*.part"))
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "no results.jsonl" in capsys.readouterr().err
    with pytest.raises(FedekdError, match="cannot write"):
        write_page(folder, tmp_path)


def parts_of(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))


def luminance_of(parts: tuple[float, ...]) -> float:
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    dark, light = sorted(map(luminance_of, (one, other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("most", ["cell", "cell-harm"])
def test_figures_in_heat_maps_can_be_read_on_every_shade(theme, most):
    low, high, ink = (parts_of(theme[name]) for name in ("low", most, "ink"))
    for step in range(11):
        ground = tuple(a + (b - a) * step / 10 for a, b in zip(low, high, strict=True))
        assert contrast(ground, ink) >= 4.5


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["surface", "page"])
@pytest.mark.parametrize("ink", ["ink", "soft", "muted", "help", "harm", "accent"])
def test_text_has_the_contrast_of_wcag_aa(theme, ground, ink):
    assert contrast(parts_of(theme[ink]), parts_of(theme[ground])) >= 4.5


def test_compared_with_plain_local_nothing_is_called_the_best_alone(tmp_path, record):
    plain = page(save(tmp_path / "plain", [record(m, rows=100) for m in ("local", "fedekd")]))
    words = " ".join(Outline(plain).words)
    assert "over training alone" in words
    assert "Δ against Local" in words
    assert "gain over the best alone" not in words
    assert "gain over Local at the chosen rounds" not in words  # it is Δ again
    clients = page_data(plain)["charts"]["clients"]
    assert "best alone" not in {column["title"] for column in clients["columns"]}
    menu = page(save(tmp_path / "menu", [record(m, rows=100) for m in ("local", "local-smooth", "fedekd")]))
    assert "gain over the best alone" in " ".join(Outline(menu).words)


def test_of_very_many_clients_those_that_gain_nothing_are_not_drawn(tmp_path, record):
    records = [record(m, (0.0, -0.2, 0.1), rows=200) for m in ("local", "fedekd")]
    for one in records:
        same, lost, won = one["clients"]
        one["clients"] = [{**{30: lost, 40: won}.get(k, same), "id": str(k)} for k in range(60)]
    text = page(save(tmp_path, records))
    clients = page_data(text)["charts"]["clients"]
    assert [row[clients["fields"].index("client")] for row in clients["rows"]["0|0"]] == ["30", "40"]
    assert "at most 40 are shown: those that lose and gain most" in " ".join(Outline(text).words)


def test_clients_are_drawn_in_their_order_also_where_one_has_no_interval(tmp_path, record):
    """Vega-Lite takes the names from the first layer that has any."""
    clients = page_data(page(save(tmp_path, [record(m, rows=60) for m in ("local", "fedekd")])))["charts"]["clients"]
    rows = [layer for layer in clients["spec"]["layer"] if "data" not in layer]
    assert "transform" not in rows[0]
    assert any("transform" in layer for layer in rows)


def test_what_is_advised_on_one_seed_says_so(tmp_path, record):
    records = [record(m, rows=60, seed=seed) for m in ("local", "fedekd") for seed in (3, 7)]
    words = " ".join(Outline(page(save(tmp_path, records))).words)
    assert re.search(r"Seed 3: \d+ should join", words)
    assert re.search(r"Seed 7: \d+ should join", words)


def test_sections_that_show_one_seed_say_so(tmp_path, result):
    words = "For the seed that is chosen at the top."
    assert words not in page(save(tmp_path / "one", result(2, 1, rows=60).records))
    records = result(2, 3, rows=60).records
    for one in records:
        one["partition"] |= {"seed": 0, "fixed": True, "fingerprint": "0f"}
    text = page(save(tmp_path / "three", records))
    sections = {part.split('"', 1)[0]: part for part in text.split('<section id="')[1:]}
    assert {name for name, part in sections.items() if words in part} >= {"learning", "data", "energy", "trust-weights"}
    assert not any(words in sections[name] for name in ("sites", "all", "cost", "settings"))


@pytest.mark.parametrize(
    ("labels", "angle"),
    [
        (["no disease", "disease"], 0),
        ([str(k) for k in range(10)], 0),
        (["no finding", "effusion", "nodule"], -35),
        ([], 0),
    ],
)
def test_names_above_columns_are_level_where_they_have_room(labels, angle):
    assert slant(labels) == angle
