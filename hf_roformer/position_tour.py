"""A visual tour of positions: one page, its figures, and below each the very line that draws it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from .arguments import read_settings
from .own_folders import make_folder, write_figure, write_whole
from .position_figures import Decay, Interpolation, Spectrum, Turning
from .pretraining import pretrain
from .pretraining_arguments import PretrainingArguments, PretrainingRunArguments
from .publishing import write_results
from .score_figures import Heads, Scores, Shares, Weights
from .tour_drawing import Stop

RESOLUTION = 110


@dataclass
class TourArguments:
    """Whose heads are drawn, and where the page goes."""

    model: str | None = field(
        default=None, metadata={"help": "folder of the model whose heads are drawn; null: the recipe's, trained first"}
    )
    recipe: str = field(default="configs/pretrain/tour.yaml", metadata={"help": "how that model is trained"})
    train_files: list[str] | None = field(
        default=None, metadata={"help": "text files or patterns to train it on in place of the recipe's texts"}
    )
    sentence: str = field(
        default="学而时习之，不亦说乎？有朋自远方来，不亦乐乎？", metadata={"help": "what the heads read"}
    )
    page: str = field(
        default="model_cards/positions.md", metadata={"help": "where to write; figures into a folder of its name"}
    )

    def __post_init__(self) -> None:
        """Refuse a folder without a model."""
        if self.model is not None and not Path(self.model, "config.json").is_file():
            raise FileNotFoundError(
                f"{self.model} holds no config.json: give the folder of a trained model, or leave model out to train "
                f"one by {self.recipe}"
            )


def find_model(tour: TourArguments) -> str:
    """Return the folder of the model; the recipe's is trained where it is not there yet."""
    if tour.model is not None:
        return tour.model
    texts = ["--package", "null", "--train_files", *tour.train_files] if tour.train_files else []
    told, training = read_settings(
        [tour.recipe, *texts], argument_types=(PretrainingArguments, PretrainingRunArguments)
    )
    folder = str(training.output_dir)
    if not Path(folder, "results.json").is_file():
        run = pretrain(told, training)
        write_results(run.folder, run.facts)
    return folder


def command_of(tour: TourArguments) -> str:
    """Return the command that writes the page anew."""
    words = ["python", "scripts/explain.py"]
    for item in fields(tour):
        value = getattr(tour, item.name)
        if value != item.default:
            words += [f"--{item.name}", *(value if isinstance(value, list) else [value])]
    return shlex.join(words)


def stops_of(model: str, sentence: str) -> list[Stop]:
    """Return the figures of the tour, in order."""
    angles = [Turning(), Spectrum()]
    return [*angles, Scores(), Shares(), Decay(), Heads(model, sentence), Interpolation(), Weights()]


def line_of(stop: Stop) -> str:
    """Return the code that draws a figure: a class shows its fields as it is written."""
    return f'{stop!r}.figure().savefig("{stop.name}.png", dpi={RESOLUTION})'


def _section(stop: Stop, folder: str) -> str:
    code = f"from {type(stop).__module__} import {type(stop).__name__}\n\n{line_of(stop)}"
    words = "\n\n".join([stop.caption.format(**stop.facts()), *stop.notes()])
    return f"## {stop.title}\n\n![{stop.title}]({folder}/{stop.name}.png)\n\n{words}\n\n```python\n{code}\n```\n"


def page_of(stops: Sequence[Stop], folder: str, command: str) -> str:
    """Write the page, whose figures lie in a folder beside it."""
    head = (
        "# A visual tour of positions\n\nWhat rotation does, drawn by the package's own functions. Every number below "
        f"comes from the run that drew the figures; the page is written anew by\n\n```bash\n{command}\n```\n"
    )
    return "\n".join([head, *(_section(stop, folder) for stop in stops)])


def write_tour(tour: TourArguments, model: str) -> str:
    """Write page and figures; return what was written, in words."""
    page = Path(tour.page)
    folder = page.with_suffix("")
    make_folder(folder)
    stops = stops_of(model, tour.sentence)
    for stop in stops:
        write_figure(folder / f"{stop.name}.png", stop.figure(), RESOLUTION)
    write_whole(page, page_of(stops, folder.name, command_of(tour)))
    return f"{page}, and {len(stops)} figures in {folder}\n"


__all__ = ["TourArguments", "find_model", "line_of", "page_of", "stops_of", "write_tour"]
