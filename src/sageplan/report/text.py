"""Numbers as one reads them, the same in terminals, pages and tables."""

from __future__ import annotations

from typing import Any


def mean(value: dict[str, Any]) -> str:
    """With its standard error, where there is one."""
    return f"{value['mean']:.1f}" + ("" if value["se"] is None else f" ± {value['se']:.1f}")


def gap(found: dict[str, Any] | None, digits: int = 1) -> str:
    """A difference with its interval."""
    if not found:
        return "–"
    return f"{found['delta']:+.{digits}f} [{found['low']:+.{digits}f}, {found['high']:+.{digits}f}]"


def share(found: dict[str, float]) -> str:
    """A rate with its interval."""
    return f"{found['estimate']:.1%} ({found['low']:.1%}–{found['high']:.1%})"
