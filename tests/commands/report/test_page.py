import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.commands.monitor.known_states import NOW_S, STATUS
from tests.commands.report.run_folder_maker import CLASS_NAMES, METRICS_TEXT, OTHER, make_run, record
from yolo_lightning.commands.report.page import render, training_facts
from yolo_lightning.commands.report.read_report import read_contents, state
from yolo_lightning.evaluation.drawing import class_colour
from yolo_lightning.supervision.run_status import write_status
from yolo_lightning.supervision.watches import WatchFinding
from yolo_lightning.utils.run_files import evaluation_record

VOID = frozenset({"meta", "img", "br"})
LOADS = frozenset({"src", "href", "xlink:href", "data", "action", "poster", "srcset"})


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects tags, references and ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in LOADS]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(read_contents(make_run(tmp_path_factory.mktemp("report") / "run")))


@pytest.mark.parametrize(
    "words",
    [
        "Summary",
        "Loss</figcaption>",
        "Validation scores</figcaption>",
        "Learning rate</figcaption>",
        "mAP50 by month</figcaption>",
        "Precision and recall at IoU 0.5</figcaption>",
        "Precision, recall and F1 over the score threshold at IoU 0.5</figcaption>",
        "best F1 at 0.",
        "Confusion matrix",
        "Worst frames",
        "restart in 0 s",
        "step-000000040.ckpt",
        "<dt>torch</dt><dd>2.6.0</dd>",
        "<summary>config.yaml</summary>",
        "Weights after 40 batches, in epoch 2.",
        "<dt>network</dt><dd>yolov8n</dd>",
        "<dt>image size</dt><dd>480 x 640</dd>",
        "<dt>images</dt><dd>1,200 train, 3 val</dd>",
        "<dt>epochs</dt><dd>2</dd>",
        "<dt>best epoch</dt><dd>1 (mAP50 0.2000)</dd>",
        "<figcaption>epoch 2</figcaption>",
    ],
)
def test_every_part_is_there(whole: str, words: str) -> None:
    assert words in whole


def test_nothing_is_loaded_from_elsewhere(whole: str) -> None:
    page = Page(whole)
    assert {load for load in page.loads if not load.startswith(("data:image/jpeg;base64,", "#"))} == set()
    assert not page.tags & {"script", "link", "iframe", "object", "base"}
    assert "http:" not in whole
    assert "https:" not in whole
    assert re.findall(r"@import|url\((?!#)", whole) == []


def test_references_lead_to_one_place_each(whole: str) -> None:
    page = Page(whole)
    assert len(page.ids) == len(set(page.ids))
    assert {load[1:] for load in page.loads if load.startswith("#")} <= set(page.ids)


def test_figures_take_the_colours_of_the_page(whole: str) -> None:
    figures = re.findall(r"<svg.*?</svg>", whole, flags=re.DOTALL)
    assert len(figures) == 6
    for figure in figures:
        assert "var(--ink)" in figure
        is_of_classes = 'aria-label="precision' in figure
        assert set(re.findall(r"#[0-9a-f]{6}\b", figure)) == ({class_colour(0)} if is_of_classes else set())


def test_what_comes_from_files_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    folder = make_run(tmp_path / "run", class_names=(evil, "bicycle"), image_id=f'"{evil}')
    incident = next(folder.glob("incidents/*/incident.json"))
    incident.write_text(incident.read_text().replace("no progress", evil.replace("/", "\\/")))
    (folder / "config.test.yaml").write_text(f"a: '{evil}'\n")
    text = render(read_contents(folder))
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(1)") >= 5
    Page(text)


def test_class_names_of_all_scripts_are_text_without_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    text = render(read_contents(make_run(tmp_path / "run", class_names=("人", "größe"))))
    figure = re.search(r'<svg role="img" aria-label="precision over recall.*?</svg>', text, flags=re.DOTALL)
    assert figure is not None
    assert "人" in figure[0]
    assert not recwarn.list


def test_addresses_for_messages_and_passwords_are_not_shown(whole: str) -> None:
    assert "hooks.example" not in whole
    assert "hidden-" not in whole
    assert "$PING_URL" in whole


def test_confusion_has_a_column_per_annotated_class(whole: str) -> None:
    table = re.search(r'<table class="confusion">.*?</table>', whole, flags=re.DOTALL)
    assert table is not None
    rows = re.findall(r"<tr><th>(\w+)</th>(.*?)</tr>", table[0])
    counts = {name: [int(count) for count in re.findall(r">(\d+)<", cells)] for name, cells in rows}
    assert counts == {"person": [1, 0, 1], "bicycle": [1, 0, 0], "background": [1, 0, 0]}
    assert "detected ↓<br>annotated →" in table[0]


def test_months_and_their_drift(whole: str) -> None:
    assert "CoV of mAP50 over 3 months 1.7321, balanced -0.2464" in whole
    assert re.search(r"<td>2020-05</td><td class=\"number\">1</td><td class=\"number\">1</td>", whole)


def test_without_months_the_scores_are_those_of_the_classes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    record(CLASS_NAMES, months=(0, 0, 0)).save(folder / evaluation_record("val"))
    text = render(read_contents(folder))
    for name in ("all", "person"):
        row = re.search(f"<td>{name}</td>(.*)</tr>", text)
        assert row is not None
        objects, precision, recall, f1, *scores = re.findall(r">([^<]+)<", row[1])
        assert (objects, recall, scores) == ("3", "0.3333", ["0.3366", "0.3366"])
        assert float(recall) < float(f1) < float(precision)
    for word in ("CoV", "balanced", "month", "nan", "map_50"):
        assert re.search(rf"\b{word}\b", text, flags=re.IGNORECASE) is None


def test_scores_that_do_not_exist_are_not_shown(tmp_path: Path) -> None:
    """All months score 0, so that the coefficient of variation is 0 / 0."""
    folder = make_run(tmp_path / "run")
    record(CLASS_NAMES, first_box=OTHER).save(folder / evaluation_record("val"))
    text = re.sub("<figure.*?</figure>", "", render(read_contents(folder)), flags=re.DOTALL)
    assert re.search(r"\bnan\b", text, flags=re.IGNORECASE) is None
    assert "mAP50 is 0 in all 3 months: no CoV, no balanced score" in text
    assert "<dd>mAP50 0.0000, mAP50-95 0.0000</dd>" in text


def test_run_that_has_just_begun_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,step,time_s,train/loss\n0,10,9.0,3.0\n")
    text = render(read_contents(tmp_path))
    Page(text)
    for sentence in (
        "No validation and no test yet.",
        "Validation scores: no validation yet.",
        "No incidents.",
        "There is no checkpoint.",
        "Environment: not recorded.",
    ):
        assert sentence in text


def test_findings_of_the_watches_are_listed_with_their_times(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    ended = WatchFinding("GPU too hot", "84 °C, limit 80 °C", NOW_S - 900, NOW_S - 300)
    lasting = WatchFinding("disk fills", "+4 GB/h <fast>", NOW_S)
    write_status(replace(STATUS, findings=(ended, lasting)), tmp_path / "status.json")
    text = render(read_contents(tmp_path))
    Page(text)
    assert re.search(r"<li>GPU too hot: 84 °C, limit 80 °C, .* to .* \(10 min 0 s\)</li>", text)
    assert "<li>disk fills: +4 GB/h &lt;fast&gt;, since " in text


def test_empty_run_is_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    text = render(read_contents(tmp_path))
    Page(text)
    assert "Nothing was logged yet." in text
    assert "<svg" not in text


@pytest.mark.parametrize(
    "damaged",
    [
        "evaluations/val.npz",
        "evaluations/frames/val.json",
        "evaluations/frames/val-worst-1.jpg",
        "incidents/20261121-095523/incident.json",
        "config.yaml",
        "environment.json",
    ],
)
def test_damaged_file_is_named_and_the_rest_is_shown(tmp_path: Path, damaged: str) -> None:
    folder = make_run(tmp_path / "run")
    path = folder / damaged
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + b"\xff\0: [")
    text = render(read_contents(folder))
    Page(text)
    assert f"<li>{damaged} cannot be read:" in text
    assert "Loss</figcaption>" in text


def test_lines_of_metrics_that_are_torn_are_counted(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "metrics.csv").write_text(METRICS_TEXT + "1,50,6\n1,x,60.0,,,,,,,,\n")
    text = render(read_contents(folder))
    assert "metrics.csv has 2 lines that cannot be parsed" in text


def test_picture_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "evaluations" / "frames" / "val-worst-1.jpg").unlink()
    assert "val-worst-1.jpg is listed but missing" in render(read_contents(folder))


def test_list_cannot_name_a_file_outside(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (tmp_path / "outside.jpg").write_bytes((folder / "evaluations" / "frames" / "val-worst-1.jpg").read_bytes())
    listed = folder / "evaluations" / "frames" / "val.json"
    listed.write_text(listed.read_text().replace("val-worst-1.jpg", "../../../outside.jpg"))
    assert render(read_contents(folder)).count("data:image") == 1  # the sheet of the validation


def test_summary_contains_the_deadline(tmp_path: Path) -> None:
    write_status(replace(STATUS, deadline_s=1e9, deadline_problem="40 s are left"), tmp_path / "status.json")
    assert re.fullmatch(r"not finished; deadline \d\d Sep 2001 \d\d:46; 40 s are left", state(tmp_path))


@pytest.mark.parametrize(
    ("place", "per_epoch", "epochs", "time_per_epoch"),
    [
        ({"epoch": 1, "batch": 20, "step": 40}, 20, 2.0, "25 s"),
        ({"epoch": 1, "batch": 25, "step": 45}, 100, 1.2, "42 s"),  # status.json can be newer than the last row
        ({"epoch": 2, "batch": 0, "step": 40}, 20, 2.0, "25 s"),
    ],
)
def test_epoch_that_has_not_ended_counts_by_its_batches(
    tmp_path: Path, place: dict[str, int], per_epoch: int, epochs: float, time_per_epoch: str
) -> None:
    (tmp_path / "metrics.csv").write_text(METRICS_TEXT)
    status = replace(STATUS, epochs=15, batches_per_epoch=per_epoch, last_epoch_batches=None)
    write_status(replace(status, **place), tmp_path / "status.json")
    contents = read_contents(tmp_path)
    facts = training_facts(contents)
    assert facts["epochs"] == f"{epochs:g} of 15"
    assert facts["time per epoch"] == time_per_epoch
    assert contents.metrics.trained_epochs()[-1] == pytest.approx(epochs)
