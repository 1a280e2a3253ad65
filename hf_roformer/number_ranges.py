"""What numbers a setting may hold, looked at before anything is read: others would fail late, or do nothing."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Range(NamedTuple):
    """From the least number to the most; `above` and `below` leave these two out."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, number: Any) -> bool:
        """Say whether a number lies within."""
        beneath = number <= self.least if self.above else number < self.least
        beyond = number >= self.most if self.below else number > self.most
        return not (beneath or beyond)

    @property
    def words(self) -> str:
        """Spell it, for a message."""
        least = f"above {self.least}" if self.above else f"{self.least} or more"
        if self.most == math.inf:
            return least
        return f"{least} and {f'below {self.most}' if self.below else f'at most {self.most}'}"


def refuse_numbers(settings: Any, ranges: Mapping[str, Range]) -> None:
    """Refuse a number of a dataclass that is not finite, or not within the range of its name; None is no number.

    Raises:
        ValueError: with the setting, its value and what it may be.
    """
    for name in (item.name for item in dataclasses.fields(settings)):
        value = getattr(settings, name, None)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}; give a finite number, or leave it out")
        if name in ranges and value not in ranges[name]:
            raise ValueError(f"{name} is {value}; it must be {ranges[name].words}")


__all__ = ["Range", "refuse_numbers"]
