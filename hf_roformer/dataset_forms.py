"""Published datasets in forms of their own, turned into the json lines that a recipe reads.

What is said of one document, or asked on one context, stays in one split.
"""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .own_folders import make_folder, write_whole
from .sources import Table, unfold_questions
from .tables import cut_table, row_length
from .text_files import AS_UTF8, parse_json, read_json, read_text

Row = dict[str, Any]
AGAIN = "get the file again"


@dataclass
class PreparationArguments:
    """Which dataset is read from where, and how it is shared out."""

    kind: Literal["contract_nli", "hyperpartisan", "squad", "cluener", "wsc", "chid"] = field(
        metadata={"help": "the form of the dataset"}
    )
    source: str = field(
        metadata={"help": "its file; of hyperpartisan the folder with articles and ground truth, of chid its texts"}
    )
    output_dir: str = field(metadata={"help": "where train, validation and test.jsonl are written"})
    validation_share: float = field(default=0.1, metadata={"help": "share of the documents; 0: no such file"})
    test_share: float = field(default=0.1, metadata={"help": "share of the documents; 0: no such file"})
    split_seed: int = field(default=0, metadata={"help": "which documents fall into which split"})


def _read_whole(path: Path) -> dict[str, Any]:
    return read_json(path, AGAIN, strictly=False, most=None)


def read_contract_nli(path: Path) -> list[Row]:
    """Pair each contract with each hypothesis (ContractNLI, arXiv 2110.01799)."""
    content = _read_whole(path)
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
    return unfold_questions(_read_whole(path)["data"])


def _read_lines(path: Path) -> list[Any]:
    lines = enumerate(read_text(path, AS_UTF8, most=None).splitlines(), 1)
    return [
        parse_json(line, f"{path.name}, line {number}", AGAIN, strictly=False)
        for number, line in lines
        if line.strip()
    ]


def _bio_tags(text: str, named: dict[str, dict[str, list[list[int]]]]) -> list[str]:
    tags = ["O"] * len(text)
    spans = ((kind, words, span) for kind, found in named.items() for words, spans in found.items() for span in spans)
    # the longer of two that overlap is kept whole
    for kind, words, (first, last) in sorted(spans, key=lambda told: told[2][1] - told[2][0]):
        if text[first : last + 1] != words:
            raise ValueError(f"{words!r} is told to stand at {first} to {last}, where {text[first : last + 1]!r} is")
        tags[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return tags


def read_cluener(path: Path) -> list[Row]:
    """Tag each character with what is named there, from spans whose ends are told (CLUENER 2020, arXiv 2001.04351)."""
    rows = _read_lines(path)
    return [
        {"words": list(row["text"]), "tags": _bio_tags(row["text"], row["label"]), "text": row["text"]} for row in rows
    ]


def _mark(row: Row) -> str:
    """Put marks around the noun and around the pronoun, the later one first, so that no index moves."""
    target, text = row["target"], row["text"]
    spans = [(target["span1_index"], target["span1_text"], ("_", "_"))]
    spans += [(target["span2_index"], target["span2_text"], ("[", "]"))]
    for first, words, (opened, closed) in sorted(spans, reverse=True):
        end = first + len(words)
        if text[first:end] != words:
            raise ValueError(f"{words!r} is told to stand at {first}, where {text[first:end]!r} is")
        text = text[:first] + opened + words + closed + text[end:]
    return text


def read_wsc(path: Path) -> list[Row]:
    """Ask whether _noun_ and [pronoun] are the same (CLUEWSC 2020)."""
    return [
        {"text": _mark(row), "label": str(row["label"]).lower(), "document": row["text"]} for row in _read_lines(path)
    ]


# how much is read before and behind the blank that is to be filled
READ_AROUND = 100
BLANK = re.compile(r"#idiom\d+#")


def _blanks(passage: str) -> list[tuple[str, str]]:
    """Name each blank of a passage, with what stands around it; other blanks there are an ellipsis."""
    return [
        (
            found.group(),
            BLANK.sub("…", passage[: found.start()])[-READ_AROUND:]
            + "____"
            + BLANK.sub("…", passage[found.end() :])[:READ_AROUND],
        )
        for found in BLANK.finditer(passage)
    ]


def read_chid(path: Path) -> list[Row]:
    """Ask which of ten idioms fills a blank (ChID, arXiv 1906.01265); answers lie beside, as NAME_answer.json."""
    beside = path.with_name(f"{path.stem}_answer.json")
    if not beside.is_file():
        raise FileNotFoundError(
            f"{beside.name} must lie beside {path.name}: it holds the number of each blank's idiom"
        )
    answers = _read_whole(beside)
    return [
        {"context": context, "candidates": row["candidates"], "label": answers[name], "document": passage}
        for row in _read_lines(path)
        for passage in row["content"]
        for name, context in _blanks(passage)
    ]


class Form(NamedTuple):
    """How a dataset is read, and which column holds what may be in one split only."""

    read: Callable[[Path], list[Row]]
    document: str


FORMS = {
    "contract_nli": Form(read_contract_nli, "document"),
    "hyperpartisan": Form(read_hyperpartisan, "text"),
    "squad": Form(read_squad, "context"),
    "cluener": Form(read_cluener, "text"),
    "wsc": Form(read_wsc, "document"),
    "chid": Form(read_chid, "document"),
}


def _write_lines(path: Path, table: Table) -> None:
    rows = zip(*table.values(), strict=True)
    lines = (json.dumps(dict(zip(table, row, strict=True)), ensure_ascii=False) for row in rows)
    write_whole(path, "".join(f"{line}\n" for line in lines))


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
    except (LookupError, TypeError, AttributeError, ElementTree.ParseError) as error:
        raise ValueError(f"{source.name} is not in the form of {told.kind}: {type(error).__name__} {error}") from error
    if not rows:
        raise ValueError(f"{source.name} holds no row of {told.kind}: name the file that the dataset came in")
    table: Table = {name: [row[name] for row in rows] for name in rows[0]}
    shares = {"validation": told.validation_share, "test": told.test_share}
    shares = {name: share for name, share in shares.items() if share > 0}
    splits = cut_table(table, shares, told.split_seed, lambda table: [(text,) for text in table[form.document]])
    make_folder(folder)
    for name, split in splits.items():
        _write_lines(folder / f"{name}.jsonl", split)
    return "\n".join([*(_tell(name, split) for name, split in splits.items()), ""])
