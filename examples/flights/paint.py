"""The look of the examples' pictures: colours, letters, the small print under a title."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib import ticker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BLUE", "INK", "IN_THOUSANDS", "ORANGE", "RED", "SOFT", "STYLE", "subtitle"]

INK: Final = "#22313f"
SOFT: Final = "#7b8a97"
BLUE: Final = "#2b6ca3"
ORANGE: Final = "#e07b39"
RED: Final = "#c0392b"
STYLE: Final[dict[Any, Any]] = {  # Any: the stubs want a literal for each name
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#c5ced6",
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 22,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
}


def subtitle(axes: Axes, text: str, color: str = SOFT) -> None:
    """Write what the axes show, in small letters between the title and the plot."""
    axes.annotate(text, (0, 1), (0, 7), xycoords="axes fraction", textcoords="offset points", fontsize=9, color=color)


def _thousands(value: float, _position: int | None) -> str:
    return f"{value / 1000:g}k" if value else "0"


IN_THOUSANDS: Final = ticker.FuncFormatter(_thousands)
