"""Figures. Colours are Okabe and Ito's, which stay apart for every kind of colour vision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sageplan.diagnostics.localisation import Localisation, aligned
from sageplan.errors import MissingExtraError
from sageplan.training.checkpoint import atomic

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#999999"
_METHODS = {"sage": ("SAGE", BLUE), "mlp": ("MLP forward model", ORANGE), "ridge": ("ridge", GREEN),
            "random-latent ridge": ("random-latent ridge", PURPLE), "simulator": ("simulator", GREY)}  # fmt: skip
_STYLE: Any = {
    "figure.dpi": 140,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


@contextmanager
def figure(path: Path, size: tuple[float, float], panels: int = 1) -> Iterator[list[Any]]:
    """Yields the axes of one row of panels; on success the PNG is written atomically."""
    try:
        import matplotlib

        matplotlib.use("Agg", force=False)
        from matplotlib import pyplot as plt
    except ImportError:
        raise MissingExtraError("matplotlib", "report", "drawing figures") from None
    with plt.rc_context(_STYLE):
        fig, axes = plt.subplots(1, panels, figsize=size, squeeze=False, layout="constrained")
        try:
            yield list(axes[0])
            with atomic(path) as partial:
                fig.savefig(partial, format="png")
        finally:
            plt.close(fig)


def energy_histogram(path: Path, groups: dict[str, npt.NDArray[Any]], marks: dict[str, float], title: str) -> None:
    """groups: name to energies [n], drawn over each other; marks: name to an energy that gets a line."""
    everything = np.concatenate(list(groups.values()))
    everything = everything[everything > 0]
    bins = np.geomspace(everything.min(), everything.max(), 90)
    with figure(path, (6.4, 3.2)) as (ax,):
        for (name, energies), colour in zip(groups.items(), (BLUE, ORANGE, GREEN, PURPLE), strict=False):
            weights = np.full(len(energies), 100 / len(energies))
            ax.hist(energies, bins, weights=weights, histtype="stepfilled", alpha=0.35, color=colour)
            ax.hist(energies, bins, weights=weights, histtype="step", color=colour, label=name)
        for name, energy in marks.items():
            ax.axvline(energy, color="black", lw=0.8, ls=":")
            ax.annotate(name, (energy, 1), xycoords=("data", "axes fraction"), rotation=90, fontsize=7,
                        ha="right", va="top", xytext=(-2, -2), textcoords="offset points")  # fmt: skip
        ax.set(xscale="log", xlabel="energy of one transition", ylabel="share of transitions (%)", title=title)
        if len(groups) > 1:
            ax.legend(loc="upper center")


def localisation(path: Path, results: list[Localisation], title: str) -> None:
    """One panel per kind of corruption: median and middle half of the step energies, aligned at its start."""
    names = {
        "shuffle": "actions shuffled in time",
        "action-noise": "noise on actions",
        "state-noise": "noise on states",
    }
    with figure(path, (3.3 * len(results), 3.0), len(results)) as axes:
        for ax, result in zip(axes, results, strict=True):
            found = aligned(result)
            for name, (low, middle, high), colour in (
                ("corrupted", found.corrupted, ORANGE),
                ("as recorded", found.clean, BLUE),
            ):
                ax.fill_between(found.offsets, low, high, color=colour, alpha=0.25, lw=0)
                ax.plot(found.offsets, middle, color=colour, label=name)
            ax.axvspan(0, found.width - 1, color=GREY, alpha=0.18, lw=0)
            ax.set(title=f"{names[result.kind]}\nAUROC {result.auroc:.3f}", xlabel="step, from the corruption's first",
                   yscale="log")  # fmt: skip
        axes[0].set_ylabel(f"{title}\nenergy")
        axes[0].legend(loc="center left", fontsize=8)


def discrimination(path: Path, auroc: dict[str, float], title: str) -> None:
    """Bars of AUROC by method; the simulator, where there is one, is a line."""
    bars = {name: value for name, value in auroc.items() if name != "simulator"}
    with figure(path, (5.2, 0.8 + 0.42 * max(2, len(bars)))) as (ax,):
        for row, (name, value) in enumerate(bars.items()):
            label, colour = _METHODS[name]
            ax.barh(row, value - 0.5, left=0.5, color=colour, height=0.62)
            ax.text(value - 0.006, row, f"{label}  {value:.3f}", ha="right", va="center", color="white", fontsize=8)
        if "simulator" in auroc:
            ax.axvline(auroc["simulator"], color="black", lw=1, ls="--")
            ax.annotate(f"simulator {auroc['simulator']:.3f}", (auroc["simulator"], 0.5), rotation=90, fontsize=7,
                        xycoords=("data", "axes fraction"), ha="left", va="center", xytext=(3, 0),
                        textcoords="offset points")  # fmt: skip
        ax.set(xlim=(0.5, 1.02), yticks=[], xlabel="AUROC, real against action-shuffled transitions", title=title)
        ax.invert_yaxis()
