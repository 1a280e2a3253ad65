"""What all figures of the visual tour share: their form, their colours, their panels."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

GREY = "0.55"
LINES = ("-", "--", ":")
WIDTH = 9.6
Extent = tuple[float, float, float, float]


class Stop(ABC):
    """One figure of the tour: a class whose fields say everything that it draws."""

    name: ClassVar[str]
    title: ClassVar[str]
    caption: ClassVar[str]

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the numbers that the caption names."""

    @abstractmethod
    def figure(self) -> Figure:
        """Draw."""

    def notes(self) -> list[str]:
        """Return paragraphs that follow the caption."""
        return []


def sheet(columns: int, *, rows: int = 1, height: float = 3.5, **settings: Any) -> tuple[Figure, list[Axes]]:
    """Return an empty figure, and its panels row by row."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **settings).flat)


def percent(share: float | Tensor) -> str:
    """Write a share as a whole percentage."""
    return f"{100 * float(share):.0f} %"


def draw_signed(axes: Axes, values: Tensor, *, largest: float, extent: Extent | None = None) -> Any:
    """Draw numbers of both signs as a map, zero white."""
    shown: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest, "interpolation": "nearest"}
    return axes.imshow(values.numpy(), aspect="auto", extent=extent, **shown)


def tick_places(axes: Axes) -> None:
    """Let both axes count whole places."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def random_vectors(seed: int, *shape: int) -> Tensor:
    """Draw normal numbers, the same from the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


__all__ = ["Stop", "draw_signed", "percent", "random_vectors", "sheet", "tick_places"]
