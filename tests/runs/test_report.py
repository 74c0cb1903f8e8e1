"""The page says what the records say, is whole by itself, and is drawn for any run."""

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from sageplan.cli_run import finish
from sageplan.report import svg
from sageplan.report.run_page import run_page
from sageplan.runs.summary import summarise
from sageplan.tasks.maze2d import Maze

VOID = {"meta", "rect", "circle", "line", "polyline", "polygon", "br"}


class Balanced(HTMLParser):
    """Every tag that opens closes, in order."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            raise AssertionError(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def parsed(html):
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    return parser.seen


def test_the_page_is_whole_by_itself(finished):
    finish(finished)
    html = (finished.path / "report.html").read_text()
    tags = parsed(html)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags}
    assert not re.search(r"(src|href)=|url\(|https?://", html)
    assert str(finished.path) not in html
    numbers = [float(n) for tag, attrs in tags for n in re.findall(r"-?\d+\.\d+|nan|inf", attrs.get("points", ""))]
    assert len(numbers) > 1_000
    assert np.isfinite(numbers).all()


def test_it_says_what_the_summary_says(finished):
    summary = summarise(finished)
    text = re.sub(r"<[^>]+>", " ", run_page(finished, summary, finished.diagnosis()))
    for arm in summary["arms"].values():
        assert f"{arm['sticky_score']['mean']:.1f} ± {arm['sticky_score']['se']:.1f}" in text
    gap = summary["differences"]["sage"]["sticky_score"]["paired"]
    assert f"The difference is {gap['delta']:+.1f}, 95 % interval {gap['low']:+.1f} to {gap['high']:+.1f}" in text
    stress = finished.diagnosis()["stress"]
    assert f"{stress['starts']} starts with {stress['candidates']} plans each" in text
    assert "do not stand beside published ones" not in text  # the test's file says nothing of itself


def test_names_from_outside_are_text(finished):
    marked = dataclasses.replace(finished, data=finished.data | {"origin": "<script>x</script>", "name": "<b>"})
    html = run_page(marked, summarise(finished), None)
    assert "<script>" not in html
    assert "&lt;script&gt;x&lt;/script&gt;" in html


def test_long_names_of_arms_have_room():
    row = svg.Estimate("sage:keep=0.5:prefix=20:penalty=0.3 − mcss", 1.0, 0.5, 1.5, "red")
    drawn = svg.intervals([row], "score", "x")
    place = float(re.search(r'<text x="(\d+)"[^>]*text-anchor="end">sage', drawn)[1])
    assert place > 6.5 * len(row.name)


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(1, 3, "helps here"), (-3, -1, "does harm"), (-1, 1, "do not tell whether")]
)
def test_the_verdict_follows_the_interval(finished, low, high, verdict):
    summary = summarise(finished)
    summary["differences"]["sage"]["sticky_score"]["paired"] |= {"delta": (low + high) / 2, "low": low, "high": high}
    assert verdict in run_page(finished, summary, None)


def test_without_a_diagnosis_or_with_one_arm_there_is_a_page(finished):
    summary = summarise(finished)
    summary["arms"] = {"random": summary["arms"]["random"]}
    summary["differences"], summary["effort"] = {}, None
    html = run_page(finished, summary, None)
    parsed(html)
    assert "Which plans can happen" not in html


def test_energies_are_coloured_from_blue_to_vermilion():
    assert (svg.heat(0), svg.heat(0.5), svg.heat(1), svg.heat(7), svg.heat(np.inf)) == (
        "#0072b2", "#cdcdc8", "#d55e00", "#d55e00", "#d55e00",
    )  # fmt: skip


def test_a_path_lies_where_its_states_are():
    maze = Maze.named("umaze")
    drawn = svg.maze_plans(maze, [svg.Path(np.array([[1.0, 2.0], [1.0, 3.0]]), "red")], 1.0, None, "one")
    assert 'points="108.00,68.00 148.00,68.00"' in drawn  # across is the second coordinate; 0.7 cells lie before 0
    assert drawn.count('class="wall"') == int(maze.walls.sum())


def test_steps_of_one_colour_are_one_line():
    xy = np.stack([np.linspace(1, 2, 6), np.ones(6)], 1)
    path = svg.Path(xy, np.array([0.0, 0.0, 1.0, 1.0, 0.0]))
    assert svg.maze_plans(Maze.named("umaze"), [path], 1.0, None, "one").count("<polyline") == 3


def test_a_view_is_a_part_of_the_maze_and_never_more():
    maze, path = Maze.named("umaze"), svg.Path(np.array([[1.0, 2.0], [1.0, 3.0]]), "red")
    near = svg.maze_plans(maze, [path], 1.0, svg.View(path.xy[0], 1.5), "one")
    assert 'viewBox="48.0 8.0 120.0 120.0"' in near
    assert 'viewBox="0.0 0.0 200.0 200.0"' in svg.maze_plans(maze, [path], 1.0, svg.View(path.xy[0], 9.0), "one")


def test_ticks_are_round():
    assert svg._ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert svg._ticks(-0.13, 0.21) == [-0.1, 0.0, 0.1, 0.2]
