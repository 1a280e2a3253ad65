"""Published datasets in forms of their own, turned into the json lines that a recipe reads.

What is said of one document, or asked on one context, stays in one split.
"""

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .sources import Table, unfold_questions
from .tables import cut_table, row_length

Row = dict[str, Any]


@dataclass
class PreparationArguments:
    """Which dataset is read from where, and how it is shared out."""

    kind: Literal["contract_nli", "hyperpartisan", "squad"] = field(metadata={"help": "the form of the dataset"})
    source: str = field(metadata={"help": "its file; of hyperpartisan the folder with articles and ground truth"})
    output_dir: str = field(metadata={"help": "where train, validation and test.jsonl are written"})
    validation_share: float = field(default=0.1, metadata={"help": "share of the documents; 0: no such file"})
    test_share: float = field(default=0.1, metadata={"help": "share of the documents; 0: no such file"})
    split_seed: int = field(default=0, metadata={"help": "which documents fall into which split"})


def read_contract_nli(path: Path) -> list[Row]:
    """Pair each contract with each hypothesis (ContractNLI, arXiv 2110.01799)."""
    content = json.loads(path.read_text(encoding="utf-8"))
    hypotheses = {name: label["hypothesis"] for name, label in content["labels"].items()}
    return [
        {"hypothesis": hypotheses[name], "document": contract["text"], "label": answer["choice"], "id": contract["id"]}
        for contract in content["documents"]
        for name, answer in contract["annotation_sets"][0]["annotations"].items()
    ]


def _words(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def read_hyperpartisan(folder: Path) -> list[Row]:
    """Read an article a row, its title first, with its label (SemEval-2019 task 4, doi 10.5281/zenodo.1489920)."""
    files = [sorted(folder.glob(pattern)) for pattern in ("articles*.xml", "ground-truth*.xml")]
    if [len(found) for found in files] != [1, 1]:
        raise FileNotFoundError(f"{folder} must hold one articles*.xml and one ground-truth*.xml")
    articles, truths = (ElementTree.parse(found[0]).getroot() for found in files)
    labels = {truth.get("id"): truth.get("hyperpartisan") for truth in truths}
    texts = {article.get("id"): f"{article.get('title')}\n{_words(article)}" for article in articles}
    return [{"text": text, "label": labels[name], "id": name} for name, text in texts.items()]


def read_squad(path: Path) -> list[Row]:
    """Read a question a row from SQuAD's nest."""
    return unfold_questions(json.loads(path.read_text(encoding="utf-8"))["data"])


class Form(NamedTuple):
    """How a dataset is read, and which column holds what may be in one split only."""

    read: Callable[[Path], list[Row]]
    document: str


FORMS = {
    "contract_nli": Form(read_contract_nli, "document"),
    "hyperpartisan": Form(read_hyperpartisan, "text"),
    "squad": Form(read_squad, "context"),
}


def _write_lines(path: Path, table: Table) -> None:
    rows = zip(*table.values(), strict=True)
    lines = (json.dumps(dict(zip(table, row, strict=True)), ensure_ascii=False) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _tell(name: str, table: Table) -> str:
    labels = Counter(map(str, table["label"])) if "label" in table else {}
    counts = ", ".join(f"{label} {count}" for label, count in sorted(labels.items()))
    return f"{name}: {row_length(table)} rows" + (f" ({counts})" if counts else "")


def prepare_data(told: PreparationArguments) -> str:
    """Write the splits, and tell how many rows each has."""
    source, folder = Path(told.source), Path(told.output_dir)
    form = FORMS[told.kind]
    try:
        rows = form.read(source)
    except (KeyError, TypeError, json.JSONDecodeError, ElementTree.ParseError) as error:
        raise ValueError(f"{source.name} is not in the form of {told.kind}: {type(error).__name__} {error}") from error
    table: Table = {name: [row[name] for row in rows] for name in rows[0]}
    shares = {"validation": told.validation_share, "test": told.test_share}
    shares = {name: share for name, share in shares.items() if share > 0}
    splits = cut_table(table, shares, told.split_seed, lambda table: [(text,) for text in table[form.document]])
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in splits.items():
        _write_lines(folder / f"{name}.jsonl", split)
    return "\n".join([*(_tell(name, split) for name, split in splits.items()), ""])
