"""Published checkpoints: what is known of each, and the page that tells it.

What is known of one checkpoint is a sheet, one YAML file. The page beside the sheets is written anew by

$ python -m hf_roformer.published model_cards/zoo
"""

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from .own_folders import write_whole
from .records import read_facts
from .yaml_files import read_yaml

Part = Literal["body", "pooler", "language_model_head", "discriminator_head"]

NUM_ANSWERS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Archive:
    """The file in which the authors published it."""

    name: str
    address: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mirror:
    """Another copy on the Hub."""

    hub_id: str
    note: str
    verified: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passed:
    """An argument that `from_pretrained` of one class needs, since config.json lacks it or means something else."""

    argument: str
    value: Any
    to: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """How many numbers the class of the sheet learns, tied ones once."""

    count: int
    known_by: Literal["file size", "counted", "derived"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightFile:
    """The file of weights on the Hub; `within` is what rounding and the container account for, in megabytes."""

    name: str
    megabytes: float
    within: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerFacts:
    """How text becomes ids."""

    kind: Literal["word", "character", "wordpiece"]
    use: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Licence:
    """Under what terms it may be used, and who says so."""

    name: str
    basis: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """What somebody published."""

    what: str
    values: dict
    source: str
    verified: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trap:
    """What has misled people or will."""

    text: str
    verified: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What somebody recorded that it puts into each mask of a text, the best first."""

    text: str
    top: list[list[str]]
    source: str
    verified: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sheet:
    """What is known of one published checkpoint; what is not known is null.

    unverified: the fields, or parts of them such as `config.vocab_size`, that nobody has read at their source.
    """

    name: str
    hub_id: str | None
    archive: Archive | None
    mirrors: list[Mirror]
    variant: Literal["v1", "sim", "v2", "gpt", "electra", "antibody", "gau"]
    language: str
    config: dict
    config_source: str
    passed: list[Passed]
    head: str | None
    auto_class: str | None
    parameters: Parameters
    holds: list[Part]
    file: WeightFile | None
    tokenizer: TokenizerFacts
    licence: Licence
    context: int
    scores: list[Score]
    fill_mask: list[Answer]
    traps: list[Trap]
    code: str | None
    refusal: str | None
    unverified: list[str]


def check_sheet(sheet: Sheet) -> None:
    """Refuse a sheet that contradicts itself."""
    given = [name for name in ("head", "auto_class", "code") if getattr(sheet, name) is not None]
    if given and sheet.refusal:
        raise ValueError(
            f"{sheet.name} has a refusal and {', '.join(given)}: what is refused has no class and no code"
        )
    if len(given) < 3 and not sheet.refusal:
        raise ValueError(f"{sheet.name} gives only {given}: give head, auto_class and code, or say why it is refused")
    for path in sheet.unverified:
        _look_up(sheet, path)
    if sheet.parameters.known_by == "file size" and sheet.file is None:
        raise ValueError(f"{sheet.name} knows its parameters by the file size and has no file: say how it knows them")
    if sheet.parameters.known_by != "file size" and "parameters" not in sheet.unverified:
        raise ValueError(f"{sheet.name}: parameters are {sheet.parameters.known_by}, so list them under unverified")
    for answer in sheet.fill_mask:
        masks, lengths = answer.text.count("[MASK]"), [len(top) for top in answer.top]
        if lengths != [NUM_ANSWERS] * masks:
            raise ValueError(f"{sheet.name}: {answer.text} has {masks} masks; give {NUM_ANSWERS} answers for each")


def _look_up(sheet: Sheet, path: str) -> Any:
    value: Any = dataclasses.asdict(sheet)
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            raise ValueError(f"{sheet.name} lists {path!r} under unverified, which is none of its facts")
        value = value[name]
    return value


def read_sheet(path: Path) -> Sheet:
    """Read one YAML file, which is named for its checkpoint."""
    facts = read_yaml(path, "correct it, as the other sheets are written")
    sheet = read_facts(Sheet, facts, path.name)
    if sheet.name != path.stem:
        raise ValueError(f"{path.name} describes {sheet.name}: a sheet's file is named for its checkpoint")
    check_sheet(sheet)
    return sheet


def read_sheets(folder: Path) -> dict[str, Sheet]:
    """Read every sheet of a folder, by name."""
    sheets = [read_sheet(path) for path in sorted(Path(folder).glob("*.yaml"))]
    if not sheets:
        raise ValueError(f"{folder} holds no sheet: give the folder of the YAML files")
    return {sheet.name: sheet for sheet in sheets}


# the page

HEADER = """# The published RoFormers

Every published checkpoint of the family, what is known of it, and three lines that use it. Each fact was read in a
source or measured, unless it is marked (unverified). Parameters are those of the class that is named; the tests build
each of them and count. `python scripts/verify_published.py NAME...` compares a sheet with the Hub: it downloads, and
has not been run.

This page is written from the YAML files beside it by `python -m hf_roformer.published model_cards/zoo`.
"""
COLUMNS = ("Checkpoint", "Variant", "Layers / width / heads", "Vocabulary", "Parameters", "Context", "Text", "Licence")
UNVERIFIED = " (unverified)"
TEXT = {"word": "words", "character": "characters", "wordpiece": "WordPiece"}
VARIANTS = {
    "v1": "RoFormer",
    "sim": "RoFormer-Sim",
    "v2": "RoFormerV2",
    "gpt": "RoFormer GPT",
    "electra": "RoFormer ELECTRA",
    "antibody": "RoFormer on antibodies",
    "gau": "GAU-α",
}


def _mark(sheet: Sheet, *paths: str) -> str:
    return UNVERIFIED if any(path in sheet.unverified for path in paths) else ""


def _marked(fact: Any) -> str:
    return "" if fact.verified else UNVERIFIED


def _row(sheet: Sheet) -> list[str]:
    sizes = [sheet.config.get(name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")]
    paths = ("config", "config.num_hidden_layers", "config.hidden_size", "config.num_attention_heads")
    return [
        f"[{sheet.name}](#{sheet.name.lower()})",
        VARIANTS[sheet.variant],
        " / ".join(str(size or 1) for size in sizes) + _mark(sheet, *paths),
        f"{sheet.config['vocab_size']:,}" + _mark(sheet, "config", "config.vocab_size"),
        f"{sheet.parameters.count / 1e6:.1f} M" + _mark(sheet, "parameters"),
        f"{sheet.context:,}" + _mark(sheet, "context"),
        TEXT[sheet.tokenizer.kind] + _mark(sheet, "tokenizer"),
        sheet.licence.name + _mark(sheet, "licence"),
    ]


def _table(rows: Iterable[Iterable[str]]) -> str:
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|---" * len(COLUMNS) + "|", *body])


def _where(sheet: Sheet) -> str:
    places = [f"[{sheet.hub_id}](https://huggingface.co/{sheet.hub_id})" if sheet.hub_id else "not on the Hub"]
    if sheet.archive:
        places.append(f"original [{sheet.archive.name}]({sheet.archive.address})" + _mark(sheet, "archive"))
    places += [f"copy {mirror.hub_id}: {mirror.note}{_marked(mirror)}" for mirror in sheet.mirrors]
    return "; ".join(places)


def _config(sheet: Sheet) -> str:
    fields = (f"{name} {json.dumps(value)}{_mark(sheet, f'config.{name}')}" for name, value in sheet.config.items())
    return f"{', '.join(fields)}. Source: {sheet.config_source}{_mark(sheet, 'config')}"


def _file(sheet: Sheet) -> str | None:
    if sheet.file is None:
        return None
    return f"{sheet.file.name}, {sheet.file.megabytes:g} MB{_mark(sheet, 'file')}"


def _facts(sheet: Sheet) -> dict[str, str | None]:
    """Spell the facts of one line each, by their titles; None where there is nothing to say."""
    passed = [f"`{item.argument}={item.value!r}` to `{item.to}`: {item.why}" for item in sheet.passed]
    count = f"{sheet.parameters.count:,}, known by: {sheet.parameters.known_by}{_mark(sheet, 'parameters')}"
    holds = ", ".join(part.replace("_", " ") for part in sheet.holds)
    return {
        "Where": _where(sheet),
        "Language": sheet.language,
        "Class": f"`{sheet.head}` (`{sheet.auto_class}`)" if sheet.head else None,
        "Refused": sheet.refusal,
        "Config": _config(sheet),
        "To pass": "; ".join(passed) or None,
        "Parameters": count,
        "Weights": f"{holds}{_mark(sheet, 'holds')}" if holds else None,
        "File": _file(sheet),
        "Tokenizer": f"{TEXT[sheet.tokenizer.kind]}; {sheet.tokenizer.use}{_mark(sheet, 'tokenizer')}",
        "Licence": f"{sheet.licence.name}; {sheet.licence.basis}{_mark(sheet, 'licence')}",
        "Context": f"{sheet.context:,} tokens{_mark(sheet, 'context')}",
    }


def _lists(sheet: Sheet) -> dict[str, list[str]]:
    """Spell the facts of many lines, by their titles."""
    answers = [(answer, "; ".join("/".join(top) for top in answer.top)) for answer in sheet.fill_mask]
    scores = [(score, ", ".join(f"{name} {value}" for name, value in score.values.items())) for score in sheet.scores]
    return {
        "Published scores": [f"{score.what}: {text}. Source: {score.source}{_marked(score)}" for score, text in scores]
        or ["none found"],
        "Recorded answers": [f"{item.text} {text}. Source: {item.source}{_marked(item)}" for item, text in answers],
        "Traps": [f"{trap.text}{_marked(trap)}" for trap in sheet.traps],
    }


def render_section(sheet: Sheet) -> str:
    """Write what is known of one checkpoint."""
    code = f"\n```python\n{sheet.code.strip()}\n```\n" if sheet.code else ""
    lines = [f"- {title}: {text}" for title, text in _facts(sheet).items() if text]
    for title, items in _lists(sheet).items():
        lines += [f"- {title}:", *(f"  - {item}" for item in items)] if items else []
    return f"## {sheet.name}\n{code}\n" + "\n".join(lines) + "\n"


def render_page(sheets: Mapping[str, Sheet]) -> str:
    """Write the whole page: a table, then a section for each checkpoint."""
    table = _table([COLUMNS, *map(_row, sheets.values())])
    return "\n".join([HEADER, table, "", *map(render_section, sheets.values())])


def write_page(folder: Path) -> None:
    """Write the page of a folder of sheets beside them."""
    write_whole(Path(folder) / "README.md", render_page(read_sheets(folder)))


if __name__ == "__main__":
    write_page(Path(sys.argv[1]))
