"""One self-contained HTML page: no script, no font and no picture from elsewhere; light, dark, narrow and wide."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """title is plain text; lead and sections are HTML."""
    style = files("sageplan.report").joinpath("page.css").read_text()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f'<body><main><h1>{escape(title)}</h1><p class="lead">{lead}</p>\n'
        + "\n".join(sections)
        + "\n</main></body></html>\n"
    )


def section(heading: str, *parts: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{''.join(parts)}</section>"


def figure(svg: str, caption: str) -> str:
    """caption is HTML"""
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def row(*figures: str) -> str:
    """Side by side where there is room, below each other where there is not."""
    return f'<div class="row">{"".join(figures)}</div>'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Plain text cells, the first column to the left."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def details(summary: str, text: str) -> str:
    """Plain text that opens on demand."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"
