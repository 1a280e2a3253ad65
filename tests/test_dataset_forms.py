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


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def test_each_character_of_a_name_gets_its_tag_and_the_longer_of_two_names_is_kept(tmp_path):
    text = "李明在北京大学教书"
    names = {"name": {"李明": [[0, 1]]}, "address": {"北京": [[3, 4]]}, "organization": {"北京大学": [[3, 6]]}}
    write_lines(tmp_path / "dev.json", [{"text": text, "label": names}, {"text": "无名", "label": {}}])
    _, splits = prepare(tmp_path, "cluener", tmp_path / "dev.json", validation_share=0, test_share=0)
    wanted = ["B-name", "I-name", "O", "B-organization", *["I-organization"] * 3, "O", "O"]
    assert splits["train"] == [
        {"words": list(text), "tags": wanted, "text": text},
        {"words": ["无", "名"], "tags": ["O", "O"], "text": "无名"},
    ]


def test_a_pronoun_and_its_noun_are_marked_where_they_stand_and_one_text_is_in_one_split(tmp_path):
    text = "他走了，小明也走了"
    target = {"span1_text": "小明", "span1_index": 4, "span2_text": "他", "span2_index": 0}
    rows = [{"text": text, "target": target, "label": "false"}, {"text": "乙" + text, "target": None, "label": "true"}]
    rows[1]["target"] = {**target, "span1_index": 5, "span2_index": 1}
    write_lines(tmp_path / "train.json", [*rows, rows[0]])
    _, splits = prepare(tmp_path, "wsc", tmp_path / "train.json", validation_share=0.4, test_share=0)
    lines = [row for split in splits.values() for row in split]
    assert {(row["text"], row["label"]) for row in lines} == {
        ("[他]走了，_小明_也走了", "false"),
        ("乙[他]走了，_小明_也走了", "true"),
    }
    assert not {row["document"] for row in splits["train"]} & {row["document"] for row in splits["validation"]}


def test_each_blank_of_a_passage_asks_for_its_own_idiom(tmp_path):
    passage = "甲" * 120 + "#idiom000001#，乙#idiom000002#。"
    write_lines(tmp_path / "train.json", [{"candidates": ["一心一意", "画蛇添足"], "content": [passage]}])
    with pytest.raises(FileNotFoundError, match=r"train_answer\.json must lie beside train\.json"):
        prepare(tmp_path, "chid", tmp_path / "train.json")
    answers = {"#idiom000001#": 1, "#idiom000002#": 0}
    (tmp_path / "train_answer.json").write_text(json.dumps(answers), encoding="utf-8")
    _, splits = prepare(tmp_path, "chid", tmp_path / "train.json", validation_share=0, test_share=0)
    assert [(row["context"], row["label"]) for row in splits["train"]] == [
        ("甲" * 100 + "____，乙…。", 1),
        (("甲" * 120 + "…，乙")[-100:] + "____。", 0),
    ]


def test_a_name_that_does_not_stand_where_it_is_told_to_is_refused(tmp_path):
    write_lines(tmp_path / "dev.json", [{"text": "李明来了", "label": {"name": {"王五": [[0, 1]]}}}])
    with pytest.raises(ValueError, match="'王五' is told to stand at 0 to 1, where '李明' is"):
        prepare(tmp_path, "cluener", tmp_path / "dev.json")
    target = {"span1_text": "小明", "span1_index": 3, "span2_text": "他", "span2_index": 0}
    write_lines(tmp_path / "wsc.json", [{"text": "他走了，小明也走了", "target": target, "label": "true"}])
    with pytest.raises(ValueError, match="'小明' is told to stand at 3, where '，小' is"):
        prepare(tmp_path, "wsc", tmp_path / "wsc.json")
