"""Vector pictures for pages, as text: colours come from the page's CSS, so that light and dark both suit them.

Colours are Okabe and Ito's, which stay apart for every kind of colour vision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sageplan.tasks.maze2d import CELL_START, GOAL_RADIUS, Maze

_LOW, _MIDDLE, _HIGH = (0, 114, 178), (205, 205, 200), (213, 94, 0)  # blue, grey, vermilion
_CELL = 40  # pixels


class Path(NamedTuple):
    """A planned motion in a maze: xy [T+1, 2], and its step energies [T] or one colour for all of it."""

    xy: npt.NDArray[Any]
    paint: npt.NDArray[Any] | str
    width: float = 1.2


class View(NamedTuple):
    """The part of a maze that is shown: at most `reach` cells from a state's xy [2]."""

    centre: npt.NDArray[Any]
    reach: float


class Series(NamedTuple):
    """Quartiles [n] of numbers over x [n]."""

    name: str
    colour: str
    low: Sequence[float]
    middle: Sequence[float]
    high: Sequence[float]


def heat(share: float) -> str:
    """A colour for a share in [0, 1] of the largest energy: blue, grey, vermilion."""
    share = min(1.0, max(0.0, share)) if math.isfinite(share) else 1.0
    start, end, rest = (_LOW, _MIDDLE, 2 * share) if share < 0.5 else (_MIDDLE, _HIGH, 2 * share - 1)
    return "#" + "".join(f"{round(a + rest * (b - a)):02x}" for a, b in zip(start, end, strict=True))


def maze_plans(maze: Maze, paths: Sequence[Path], limit: float, view: View | None, label: str) -> str:
    """A maze, or a part of it, as its map is printed, with paths over it; energies are coloured up to `limit`."""
    rows, columns = maze.walls.shape
    left = top = 0.0
    right, bottom = float(columns * _CELL), float(rows * _CELL)
    if view is not None:
        x, y, reach = _pixel(view.centre[1]), _pixel(view.centre[0]), view.reach * _CELL
        left, top = max(left, x - reach), max(top, y - reach)
        right, bottom = min(right, x + reach), min(bottom, y + reach)
    scale = (right - left) / (8 * _CELL)  # of lines and dots, so that they look alike in any part
    parts = [f'<rect class="floor" width="{columns * _CELL}" height="{rows * _CELL}"/>']
    parts += [f'<rect class="wall" x="{c * _CELL - 0.3}" y="{r * _CELL - 0.3}" width="{_CELL + 0.6}" '
              f'height="{_CELL + 0.6}"/>' for r, c in np.argwhere(maze.walls)]  # fmt: skip
    x, y = _pixel(maze.goal[1]), _pixel(maze.goal[0])
    parts.append(f'<circle class="goal" cx="{x:.0f}" cy="{y:.0f}" r="{GOAL_RADIUS * _CELL:.0f}"/>')
    for path in paths:
        parts += _strokes(path, limit, scale)
    if paths:
        x, y = _pixel(paths[0].xy[0, 1]), _pixel(paths[0].xy[0, 0])
        parts.append(f'<circle class="start" cx="{x:.1f}" cy="{y:.1f}" r="{5 * scale:.2f}"/>')
    return _svg(right - left, bottom - top, parts, label, left, top, 8 * _CELL)


def _pixel(coordinate: float) -> float:
    return (float(coordinate) + CELL_START) * _CELL


def _strokes(path: Path, limit: float, scale: float) -> list[str]:
    """Neighbouring steps of one colour are one line."""
    points = [f"{_pixel(y):.2f},{_pixel(x):.2f}" for x, y in path.xy]
    steps = len(points) - 1
    if isinstance(path.paint, str):
        colours = [path.paint] * steps
    else:
        colours = [heat(round(8 * float(energy) / limit) / 8) for energy in path.paint]
    lines, begin = [], 0
    for step in range(1, steps + 1):
        if step == steps or colours[step] != colours[begin]:
            line = " ".join(points[begin : step + 1])
            lines.append(
                f'<polyline points="{line}" stroke="{colours[begin]}" stroke-width="{path.width * scale:.2f}"/>'
            )
            begin = step
    return lines


def heat_key(limit: float, label: str) -> str:
    """The scale that belongs to the colours of `maze_plans`."""
    width, steps = 240, 24
    parts = [f'<rect x="{i * width / steps:.1f}" y="0" width="{width / steps + 0.5:.1f}" height="12" '
             f'fill="{heat((i + 0.5) / steps)}"/>' for i in range(steps)]  # fmt: skip
    ticks = (("start", 0, "0"), ("middle", width / 2, f"{limit / 2:.2g}"), ("end", width, f"≥ {limit:.2g}"))
    parts += [f'<text x="{x}" y="28" text-anchor="{anchor}">{text}</text>' for anchor, x, text in ticks]
    return _svg(width, 32, parts, label)


def curves(x: Sequence[float], series: Sequence[Series], shade: tuple[float, float], label: str) -> str:
    """Medians as lines and middle halves as bands, over x, the ordinate logarithmic; `shade` marks a stretch of x."""
    width, height, left, bottom = 340, 226, 46, 36
    values = [v for s in series for v in (*s.low, *s.high) if v > 0 and math.isfinite(v)]
    across = _linear(x[0], x[-1], left, width - 8)
    up = _linear(math.log10(min(values)), math.log10(max(values)), height - bottom, 8)

    def point(position: float, value: float) -> str:
        return f"{across(position):.1f},{up(math.log10(max(value, min(values)))):.1f}"

    parts = [f'<rect class="shade" x="{across(shade[0]):.1f}" y="8" width="{across(shade[1]) - across(shade[0]):.1f}" '
             f'height="{height - bottom - 8}"/>']  # fmt: skip
    for power in range(math.ceil(math.log10(min(values))), math.floor(math.log10(max(values))) + 1):
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 8}" y1="{up(power):.1f}" y2="{up(power):.1f}"/>')
        parts.append(f'<text x="{left - 4}" y="{up(power) + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for s in series:
        band = [point(a, b) for a, b in zip(x, s.low, strict=True)]
        band += [point(a, b) for a, b in reversed(list(zip(x, s.high, strict=True)))]
        parts.append(f'<polygon points="{" ".join(band)}" fill="{s.colour}" fill-opacity="0.22"/>')
        line = " ".join(point(a, b) for a, b in zip(x, s.middle, strict=True))
        parts.append(f'<polyline points="{line}" stroke="{s.colour}" stroke-width="2"/>')
    parts += [f'<text x="{across(tick):.1f}" y="{height - 12}" text-anchor="middle">{tick:g}</text>'
              for tick in (x[0], 0, x[-1])]  # fmt: skip
    parts.append(
        f'<text x="{(left + width) / 2}" y="{height - 4}" text-anchor="middle">step, from the first corrupted</text>'
    )
    return _svg(width, height, parts, label)


class Estimate(NamedTuple):
    """A number with its interval."""

    name: str
    value: float
    low: float
    high: float
    colour: str


def intervals(rows: Sequence[Estimate], unit: str, label: str, zero: bool = False) -> str:
    """A dot and a line per row; `zero` draws where there is no difference."""
    left, step = 24 + 7 * max(len(row.name) for row in rows), 30
    width = left + 342
    low, high = min(r.low for r in rows), max(r.high for r in rows)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    margin = 0.06 * (high - low) or 1.0
    across = _linear(low - margin, high + margin, left, width - 62)
    height = step * len(rows) + 34
    parts = []
    for tick in _ticks(low - margin, high + margin):
        parts.append(f'<line class="grid" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="4" y2="{height - 30}"/>')
        parts.append(f'<text x="{across(tick):.1f}" y="{height - 16}" text-anchor="middle">{tick:g}</text>')
    if zero:
        parts.append(f'<line class="zero" x1="{across(0):.1f}" x2="{across(0):.1f}" y1="2" y2="{height - 30}"/>')
    for number, row in enumerate(rows):
        y = step * number + step / 2 + 2
        parts += [
            f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(row.name)}</text>',
            f'<line x1="{across(row.low):.1f}" x2="{across(row.high):.1f}" y1="{y}" y2="{y}" stroke="{row.colour}" '
            'stroke-width="3" stroke-linecap="round"/>',
            f'<circle cx="{across(row.value):.1f}" cy="{y}" r="5.5" fill="{row.colour}"/>',
            f'<text class="strong" x="{width - 50}" y="{y + 4}">{row.value:{"+" if zero else ""}.1f}</text>',
        ]
    parts.append(f'<text x="{(left + width - 62) / 2}" y="{height - 3}" text-anchor="middle">{escape(unit)}</text>')
    return _svg(width, height, parts, label)


def stacked(parts_of: Sequence[tuple[str, float, str]], unit: str, label: str) -> str:
    """One bar of named, coloured parts, each labelled beneath with its size."""
    width, total = 560, sum(size for _, size, _ in parts_of) or 1.0
    across, parts, legend = 0.0, [], []
    for number, (name, size, colour) in enumerate(parts_of):
        share = width * size / total
        text = f"{escape(name)}: {size:.2f} {escape(unit)} ({size / total:.0%})"
        parts.append(
            f'<rect x="{across:.1f}" y="0" width="{share:.1f}" height="34" fill="{colour}"><title>{text}</title></rect>'
        )
        x, y = (number % 2) * width / 2, 58 + 22 * (number // 2)
        legend.append(f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{colour}"/>'
                      f'<text x="{x + 18}" y="{y}">{text}</text>')  # fmt: skip
        across += share
    return _svg(width, 50 + 22 * math.ceil(len(parts_of) / 2), [*parts, *legend], label)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, about five of them."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
    return [round(i * step, 10) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _linear(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _svg(
    width: float, height: float, parts: Sequence[str], label: str, left: float = 0, top: float = 0, most: float = 0
) -> str:
    """most: the largest width it is shown at, in pixels; default: its own"""
    return (
        f'<svg viewBox="{left:.1f} {top:.1f} {width:.1f} {height:.1f}" role="img" aria-label="{escape(label)}" '
        f'style="max-width:{most or width:.0f}px">{"".join(parts)}</svg>'
    )
