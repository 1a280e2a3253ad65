"""A dataset's own form becomes lines that a recipe reads, and no document falls into two splits."""

import json

import pytest

from hf_roformer.arguments import read_settings
from hf_roformer.dataset_forms import PreparationArguments, prepare_data

NOTES = {"nda-1": "Notes may be kept.", "nda-2": "Notes must be burnt."}
CHOICES = ["Entailment", "Contradiction", "NotMentioned"]


def contracts(count):
    documents = [
        {
            "id": number,
            "text": f"Contract {number}",
            "annotation_sets": [
                {"annotations": {name: {"choice": CHOICES[(number + at) % 3]} for at, name in enumerate(NOTES)}}
            ],
        }
        for number in range(count)
    ]
    return {"documents": documents, "labels": {name: {"hypothesis": text} for name, text in NOTES.items()}}


def prepare(tmp_path, kind, source, **changes):
    words = {"kind": kind, "source": source, "output_dir": tmp_path / "out", **changes}
    flags = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    (told,) = read_settings(flags, argument_types=(PreparationArguments,))
    said = prepare_data(told)
    lines = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in (tmp_path / "out").iterdir()}
    return said, {name: [json.loads(line) for line in rows] for name, rows in lines.items()}


def test_each_contract_is_paired_with_each_hypothesis_in_one_split(tmp_path):
    (tmp_path / "dev.json").write_text(json.dumps(contracts(10)), encoding="utf-8")
    said, splits = prepare(tmp_path, "contract_nli", tmp_path / "dev.json", validation_share=0.3, test_share=0)
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 14, "validation": 6}
    assert not {row["document"] for row in splits["train"]} & {row["document"] for row in splits["validation"]}
    row = next(row for rows in splits.values() for row in rows if row["id"] == 4 and row["label"] == "NotMentioned")
    assert row == {"hypothesis": NOTES["nda-2"], "document": "Contract 4", "label": "NotMentioned", "id": 4}
    assert said.startswith("train: 14 rows (")


def test_an_article_has_its_title_first_and_the_label_of_its_id(tmp_path):
    articles = "".join(
        f'<article id="{n}" title="Title {n}"><p>Some  <a href="x">linked</a>\n text &amp; {n}.</p></article>'
        for n in range(4)
    )
    truths = "".join(f'<article id="{n}" hyperpartisan="{str(n == 2).lower()}"/>' for n in reversed(range(4)))
    (tmp_path / "articles-x.xml").write_text(f"<articles>{articles}</articles>", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"must hold one articles.*one ground-truth"):
        prepare(tmp_path, "hyperpartisan", tmp_path)
    (tmp_path / "ground-truth-x.xml").write_text(f"<articles>{truths}</articles>", encoding="utf-8")
    _, splits = prepare(tmp_path, "hyperpartisan", tmp_path, validation_share=0, test_share=0)
    assert splits["train"][1] == {"text": "Title 1\nSome linked text & 1.", "label": "false", "id": "1"}
    assert [row["label"] for row in splits["train"]] == ["false", "false", "true", "false"]


def test_a_file_in_another_form_is_refused(tmp_path):
    (tmp_path / "dev.json").write_text(json.dumps(contracts(3)), encoding="utf-8")
    with pytest.raises(ValueError, match=r"dev\.json is not in the form of squad: KeyError 'data'"):
        prepare(tmp_path, "squad", tmp_path / "dev.json")
