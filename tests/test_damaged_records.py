"""A record, a seal or a list of checksums is taken, or refused by name, fault and remedy, whatever stands in it."""

import ast
import json
import math
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import at_little_cost
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_roformer import examples, pretraining_study, sources, surgery
from hf_roformer.arguments import TaskArguments
from hf_roformer.benchmark_report import Report
from hf_roformer.checkpoints import SEAL, checkpoints_in, clear_aside, flaw_of, last_whole, resume_point, rotate, seal
from hf_roformer.checksums import SUMS, find_damage, leads_out, parse_checksums, read_checksums, write_checksums
from hf_roformer.comparison import group_runs
from hf_roformer.dataset_forms import PreparationArguments, prepare_data
from hf_roformer.facts import RunFacts
from hf_roformer.own_folders import refuse_taken
from hf_roformer.publishing import read_results, write_results
from hf_roformer.study_cells import Book
from hf_roformer.text_files import parse_json, read_text

PACKAGE = Path(__file__).parents[1] / "hf_roformer"

FACTS = RunFacts(
    model_name="reviews",
    problem="single_label_classification",
    base_model=None,
    recipe={"learning_rate": 3e-5},
    data={"name": "reviews", "rows": {"train": 3}, "labels": ["bad", "good"]},
    num_parameters=7,
    seed=1,
    metrics={"test": {"accuracy": 0.75, "loss": 0.5}, "validation": {"accuracy": 0.5}},
    predictions=[{"text": "nice", "predicted": "good", "score": 0.9, "label": "good", "choices": ["a", "b"]}],
    trained_steps=8,
    other_runs=[{"seed": 2, "metrics": {"test": {"accuracy": 0.5, "loss": None}}}],
)
EXAMPLE = {
    "auto_class": "AutoModel",
    "input_ids": [[1, 2]],
    "text": "x",
    "class": "A",
    "outputs": {"logits": {"shape": [2], "values": [1.0, 200.0]}},
    "tokens": [1],
}
CELL = {"start": "nothing", "rows": None, "epochs": 1, "seed": 0, "validation": 0.5, "test": 0.5}
CELL |= {"steps": 3, "seconds": 1.5}
STUDY = {"claim": "order", "sizes": {"steps": 2}, "texts": {"novel": {"bytes": 3}}}
STUDY |= {"cells": [{"part": "novel", "arm": "rotary", "seed": 0, "loss": 1.0}]}
REPORT = {"command": "x", "machine": {}, "versions": {}, "settings": {}, "fast_products": "", "differences": {}}
REPORT |= {"records": []}


def report_at(folder):
    return Report.from_json(read_text(folder / "benchmark.json", "measure it again"))


def study_at(folder):
    return Book(folder, STUDY)


def cells_at(folder):
    return pretraining_study.read_cells(pretraining_study.StudyArguments(output_dir=str(folder)))


# where a record lies in its folder, a whole one, and what reads it
RECORDS = {
    "results": ("results.json", FACTS.__dict__, read_results),
    "compared results": ("results.json", FACTS.__dict__, lambda folder: group_runs([folder])),
    "example": ("example.json", EXAMPLE, examples.read_example),
    "study": ("study.json", STUDY, study_at),
    "cell": ("cells/a.json", CELL, cells_at),
    "benchmark": ("benchmark.json", REPORT, report_at),
    "config": ("config.json", {"model_type": "hf_roformer"}, examples.read_facts),
    "pooling": ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}, surgery.pooling_of),
}
JSON: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is no JSON .Expecting value"),
    "a half": (b'{"model_name": "rev', "is no JSON .Unterminated string starting at: line 1 column 16"),
    "another form": (b"model_name: reviews\n", "is no JSON"),
    "lists in lists": (b"[" * 100_000, "nests more than 50 deep"),
    "closed lists in lists": (b'{"recipe": ' + b"[" * 400 + b"]" * 400 + b"}", "nests more than 50 deep"),
    "mappings in mappings": (b'{"recipe": ' * 600 + b"1" + b"}" * 600, "nests more than 50 deep"),
    "a list": (b"[]", "holds a list and no fields|is .*; give a mapping"),
    "a number": (b"3", "holds a int and no fields|is 3; give a mapping"),
    "null": (b"null", "holds a NoneType and no fields|is None; give a mapping"),
    "bytes of GB 18030": ('{"model_name": "中文"}'.encode("gb18030"), "is not UTF-8 at byte 16, line 1"),
    "a zero byte": (b'{"model_name": "a\0b"}', "is no JSON .Invalid control character"),
    "a number beyond all": (b'{"seed": ' + b"9" * 10_000 + b"}", "is no JSON"),
}
OF_OURS: dict[str, tuple[bytes, str]] = {
    "NaN": (b'{"seed": NaN}', "NaN is no finite number"),
    "infinity": (b'{"seed": 1e999}', "1e999 is no finite number"),
    "a number that nothing counts to": (b'{"seed": 123456789012345678901234567890}', "no number that a computer"),
    "a name twice": (b'{"seed": 1, "seed": 2}', "it gives 'seed' twice"),
    "half of a character": (rb'{"model_name": "\ud83d"}', "holds half of a character"),
}
FOREIGN = ("config", "pooling", "study")


def lay(folder, record, content):
    path = folder / RECORDS[record][0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("record", RECORDS)
def test_a_whole_record_is_read(tmp_path, record):
    _, whole, read = RECORDS[record]
    lay(tmp_path, record, json.dumps(whole).encode("utf-8-sig"))
    assert read(tmp_path)


# what other programs write may hold such numbers, and a study whose loss ran away
DAMAGED = [(record, name) for record in RECORDS for name in (JSON if record in FOREIGN else JSON | OF_OURS)]


@pytest.mark.parametrize(("record", "name"), DAMAGED)
def test_a_damaged_record_is_refused_by_file_fault_and_remedy(tmp_path, record, name):
    content, words = (JSON | OF_OURS)[name]
    lay(tmp_path, record, content)
    with at_little_cost(), pytest.raises(ValueError, match=words) as refused:
        RECORDS[record][2](tmp_path)
    said = str(refused.value)
    assert Path(RECORDS[record][0]).name in said or (record == "benchmark" and "the report" in said)
    # what is wrong is followed by what to do
    assert re.search(r"(: |; )[a-z][^:]+$", said), said


WRONG = (None, True, 7, -1.5, "", "word", [], [[]], {}, {"a": 1}, "../x")


def places_in(value, place=()):
    """List the way to everything inside a value."""
    found = [place] if place else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [way for key, item in items for way in places_in(item, (*place, key))]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_record_with_a_wrong_value_anywhere_is_taken_or_refused(tmp_path_factory, data):
    record = data.draw(st.sampled_from(sorted(RECORDS)))
    _, whole, read = RECORDS[record]
    changed = json.loads(json.dumps(whole))
    *way, last = data.draw(st.sampled_from(places_in(changed)))
    inside = changed
    for key in way:
        inside = inside[key]
    if data.draw(st.booleans()):
        inside[last] = data.draw(st.sampled_from(WRONG))
    else:
        del inside[last]
    folder = tmp_path_factory.mktemp("changed")
    lay(folder, record, json.dumps(changed).encode())
    # anything else that it raised would be a fault
    with suppress(ValueError):
        read(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"metrics": {"test": {"accuracy": "high"}}},
            r"results\.json: metrics: test: accuracy is 'high'; give a float",
        ),
        ({"metrics": [1]}, r"results\.json: metrics is \[1\]; give a mapping"),
        ({"seed": "1"}, r"results\.json: seed is '1'; give a int"),
        ({"seed": True}, r"results\.json: seed is True; give a int"),
        ({"predictions": ["nice"]}, r"predictions\[0\] is 'nice'; give a mapping"),
        ({"predictions": [{"choices": 3}]}, r"predictions\[0\]: choices is 3; give a list"),
        ({"other_runs": [{"seed": 1}]}, r"results\.json: other_runs\[0\] lacks metrics"),
        (
            {"other_runs": [{"seed": 1, "metrics": {"test": 3}}]},
            r"other_runs\[0\]: metrics: test is 3; give a mapping",
        ),
        (
            {"other_runs": [{"seed": 1, "metrics": {"test": {"loss": "low"}}}]},
            r"other_runs\[0\]: metrics: test: loss is 'low'; give a float",
        ),
        ({"data": {"labels": 3}}, r"data: labels is 3; give a list"),
        ({"problm": "x"}, r"results\.json has unknown fields: problm; its fields are model_name"),
    ],
)
def test_a_fact_of_another_type_is_named_with_what_to_give(tmp_path, change, words):
    (tmp_path / "results.json").write_text(json.dumps(FACTS.__dict__ | change), encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        read_results(tmp_path)


def test_what_a_run_may_leave_out_is_left_out(tmp_path):
    (tmp_path / "results.json").write_text('{"model_name": "a", "problem": "regression", "base_model": null}')
    assert read_results(tmp_path) == RunFacts(model_name="a", problem="regression", base_model=None)
    (tmp_path / "results.json").write_text('{"problem": "regression", "base_model": null}')
    with pytest.raises(ValueError, match=r"results\.json lacks model_name; write null"):
        read_results(tmp_path)


def test_what_was_no_number_is_read_back_as_unknown(tmp_path):
    write_results(
        tmp_path, RunFacts(model_name="a", problem="regression", base_model=None, metrics={"t": {"f": math.nan}})
    )
    assert read_results(tmp_path).metrics == {"t": {"f": None}}


def test_a_record_of_another_program_is_never_replaced_whatever_stands_in_it(tmp_path):
    for content in [content for content, _ in (JSON | OF_OURS).values()]:
        (tmp_path / "conversion.json").write_bytes(content)
        with pytest.raises(FileExistsError, match="was not written by this program"):
            refuse_taken(tmp_path, "conversion.json", "us", overwrite=True)
    for files in (3, "conversion.json", [3], {"conversion.json": 1}):
        (tmp_path / "conversion.json").write_text(json.dumps({"program": "us", "files": files}))
        with pytest.raises(FileExistsError, match="was not written by this program"):
            refuse_taken(tmp_path, "conversion.json", "us", overwrite=True)
    assert (tmp_path / "conversion.json").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"text": "a"}\n' + b"[" * 50_000, r"a\.jsonl, line 2 nests more than 50 deep"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": "\xff"}\n',
            r"a\.jsonl is not UTF-8 at byte 24, line 2: save the",
        ),
        ("a.json", b'{"data": [{"paragraphs": ["a"]}]}', r"a\.json looks like SQuAD's form"),
        (
            "a.json",
            b'{"data": [{"paragraphs": [{"context": "a", "qas": ["b"]}]}]}',
            r"a\.json looks like SQuAD's form",
        ),
        ("a.json", "[天]".encode("gb18030"), r"a\.json is not UTF-8 at byte 1"),
        ("a.csv", "text,label\n天,1\n".encode("gb18030"), r"a\.csv is not UTF-8 at byte 11, line 2"),
        ("a.txt", b"a\nb\xff\n", r"a\.txt is not UTF-8 at byte 3, line 2"),
        ("a.conll", b"a O\n\xff O\n", r"a\.conll is not UTF-8 at byte 4, line 2"),
    ],
)
def test_data_that_cannot_be_read_are_named_with_their_line(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with at_little_cost(), pytest.raises(ValueError, match=words):
        sources.read_source(TaskArguments(model_config={}, train_file=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("contract_nli", b'{"labels": [], "documents": []}'),
        ("contract_nli", b'{"labels": {}, "documents": []}'),
        ("squad", b'{"data": [3]}'),
        ("squad", b'{"data": [{"paragraphs": [{"context": "a", "qas": ["b"]}]}]}'),
        ("squad", b"[" * 50_000),
        ("squad", b"\xff"),
        ("cluener", b"3\n"),
        ("cluener", b'{"text": "a", "label": {"name": {"a": [3]}}}\n'),
        ("wsc", b"[]\n"),
        ("wsc", b""),
    ],
)
def test_a_dataset_of_another_form_is_refused_by_its_name(tmp_path, kind, content):
    (tmp_path / "dev.json").write_bytes(content)
    with at_little_cost(), pytest.raises(ValueError, match=r"dev\.json (is|holds|nests|looks|,)"):
        prepare_data(PreparationArguments(kind, str(tmp_path / "dev.json"), str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_an_answer_of_foreign_code_that_is_none_is_told_as_its_fault(tmp_path, monkeypatch):
    for said in ("{", "[]", '{"class": 3, "outputs": {}, "tokens": null}', "[" * 50_000):
        monkeypatch.setattr(
            examples.subprocess,
            "run",
            lambda *_, said=said, **__: type(
                "Done", (), {"returncode": 0, "stderr": "", "stdout": examples.MARK + said}
            ),
        )
        with pytest.raises(RuntimeError, match="its answer"):
            examples.answer_alone(tmp_path, {})


def calls_in(path):
    """Name the functions of a module that a file calls, as `module.function`."""
    nodes = [node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    dotted = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    return {f"{node.value.id}.{node.attr}" for node in dotted}


# files of weights and configs have readers of their own, which travel with a model
OWN_READERS = {"weight_files", "shards", "configuration_roformer", "tokenization_roformer", "pretrained", "hub_files"}


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_json_and_yaml_are_parsed_in_one_place_each(path):
    if path.stem not in OWN_READERS | {"text_files", "records"}:
        assert not calls_in(path) & {"json.load", "json.loads"}
    if path.stem != "yaml_files":
        assert not {call for call in calls_in(path) if call.startswith("yaml.")}


# a seal


@pytest.fixture
def run(tmp_path):
    """A run of two sealed checkpoints, beside a file that is not its own."""
    (tmp_path / "outside.bin").write_bytes(b"abc")
    for step in (1, 2):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        for name in ("model.bin", "rng_state.pth"):
            (folder / name).write_bytes(b"abc")
        seal(folder)
    return tmp_path / "run"


def sealed(run):
    return json.loads((run / "checkpoint-2" / SEAL).read_text())


def reseal(run, told):
    (run / "checkpoint-2" / SEAL).write_text(json.dumps(told), encoding="utf-8")


@pytest.mark.parametrize("name", [*JSON, *OF_OURS])
def test_a_checkpoint_with_a_damaged_seal_is_skipped_by_name(run, caplog, name):
    content, words = (JSON | OF_OURS)[name]
    (run / "checkpoint-2" / SEAL).write_bytes(content)
    assert last_whole(run) == run / "checkpoint-1"
    assert re.search(
        rf"checkpoint-2 is left out: it was not written to its end, or is damaged .*({words})", caplog.text
    )
    assert resume_point(run, True) == str(run / "checkpoint-1")


@pytest.mark.parametrize(
    "told",
    [
        {"files": None},
        {"files": []},
        {"files": {"model.bin": None}},
        {"files": {"model.bin": 3}},
        {"files": {"model.bin": {"bytes": "3", "crc32c": "364b3fb7"}}},
        {"files": {"model.bin": {"bytes": 3}}},
        {"files": {"model.bin": {"bytes": 3, "crc32c": 5}}},
        {"files": {"model.bin": {"bytes": True, "crc32c": ""}}},
        {"fils": {}},
        {},
    ],
)
def test_a_seal_of_another_form_makes_its_checkpoint_half_written(run, caplog, told):
    reseal(run, told)
    assert last_whole(run) == last_whole(run, read=False) == run / "checkpoint-1"
    assert "checkpoint-2 is left out: it was not written to its end, or is damaged (seal.json" in caplog.text
    with pytest.raises(ValueError, match=r"checkpoint-2 cannot be resumed from: it was not written to its end"):
        resume_point(run, str(run / "checkpoint-2"))


def outside_names(run):
    """Name what is not the checkpoint's own, by every road that leads out."""
    return [
        "../../outside.bin",
        "../checkpoint-1/model.bin",
        str(run.parent / "outside.bin"),
        "a/../../x",
        "..",
        "a\0b",
    ]


def test_a_seal_that_names_what_is_not_its_own_is_refused_and_nothing_else_is_opened(run, monkeypatch, caplog):
    opened = []
    as_it_is = Path.open

    def remembering(self, *args, **kwargs):
        opened.append(self)
        return as_it_is(self, *args, **kwargs)

    for name in outside_names(run):
        told = sealed(run)
        told["files"] = {name: {"bytes": 3, "crc32c": "364b3fb7"}}
        reseal(run, told)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", remembering)
            assert "which leads out of it" in flaw_of(run / "checkpoint-2")
    assert opened == []
    rotate(run, 1, None)
    assert checkpoints_in(run) == [run / "checkpoint-1"]
    assert (run.parent / "outside.bin").read_bytes() == b"abc"


def test_a_sealed_file_that_is_a_link_out_of_the_checkpoint_is_refused(run):
    inside = run / "checkpoint-2" / "model.bin"
    inside.unlink()
    inside.symlink_to(run.parent / "outside.bin")
    assert "'model.bin', which leads out of it" in flaw_of(run / "checkpoint-2")
    rotate(run, 1, None)
    assert (run.parent / "outside.bin").read_bytes() == b"abc"


def test_a_link_within_the_checkpoint_and_a_checkpoint_that_is_a_link_are_whole(run):
    inside = run / "checkpoint-2" / "model.bin"
    inside.rename(inside.with_name("real.bin"))
    inside.symlink_to("real.bin")
    seal(run / "checkpoint-2")
    (run / "checkpoint-2").rename(run.parent / "elsewhere")
    (run / "checkpoint-2").symlink_to(run.parent / "elsewhere")
    assert flaw_of(run / "checkpoint-2") is None
    # of a link that must go, the link alone goes
    rotate(run, 1, best_step=1)
    assert [path.name for path in checkpoints_in(run)] == ["checkpoint-1", "checkpoint-2"]
    (run.parent / "elsewhere" / SEAL).unlink()
    rotate(run, 1, best_step=1)
    assert [path.name for path in checkpoints_in(run)] == ["checkpoint-1"]
    assert (run.parent / "elsewhere" / "real.bin").exists()


@pytest.mark.parametrize("kind", ["link", "link to nowhere", "file"])
def test_what_lies_in_the_place_of_unfinished_checkpoints_goes_and_what_it_leads_to_stays(run, kind):
    aside, kept = run / ".unfinished", run.parent / "kept"
    kept.mkdir()
    (kept / "mine").write_text("mine")
    if kind == "file":
        aside.write_text("")
    else:
        aside.symlink_to(kept if kind == "link" else run / "nowhere")
    assert clear_aside(run) == aside
    assert aside.is_dir()
    assert not aside.is_symlink()
    assert (kept / "mine").read_text() == "mine"


# a list of checksums


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a\\b", "a\0b", ".."])
def test_a_list_of_checksums_that_names_what_is_not_its_own_is_refused(tmp_path, name):
    (tmp_path / SUMS).write_bytes(f"{'1' * 64}  {name}\n".encode())
    with pytest.raises(ValueError, match=f"line 1 of {SUMS} is damaged .*get the file again"):
        read_checksums(tmp_path)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"[" * 10_000, b"\0" * 100, b"1" * 64, ("1" * 63 + "x  a\n").encode()]
)
def test_a_damaged_list_of_checksums_is_refused_with_its_line(tmp_path, content):
    (tmp_path / SUMS).write_bytes(content)
    with at_little_cost(), pytest.raises(ValueError, match=f"line 1 of {SUMS} is damaged"):
        read_checksums(tmp_path)


def test_a_file_that_cannot_be_read_is_damage_and_no_pipe_is_waited_for(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    listed = parse_checksums(write_checksums(tmp_path).read_text()) | {"pipe": "1" * 64, "lost": "1" * 64}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    flaws = find_damage(tmp_path, listed)
    assert [flaw.split(" cannot be read")[0] for flaw in flaws] == ["lost", "pipe"]
    with pytest.raises(OSError, match="take it out of the folder"):
        write_checksums(tmp_path)


def test_a_name_leads_out_by_itself_or_by_a_link_only(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "up").symlink_to("..")
    (tmp_path / "in" / "same").symlink_to(".")
    (tmp_path / "in" / "loop").symlink_to("loop")
    assert [
        name for name in ("a", "a/b", "..a", "same/a", "loop", "a" * 300) if leads_out(tmp_path / "in", name)
    ] == []
    assert all(leads_out(tmp_path / "in", name) for name in ("", "up/a", "/a", "../in/../a", "a/..", "up"))


def test_a_study_whose_loss_ran_away_goes_on(tmp_path):
    cell = {"part": "novel", "arm": "rotary", "seed": 0, "loss": math.nan}
    Book(tmp_path, STUDY | {"cells": []}).add(cell)
    assert Book(tmp_path, STUDY).has("novel", "rotary", 0)


def test_a_folder_of_ours_whose_report_holds_what_is_no_number_is_still_ours(tmp_path):
    (tmp_path / "conversion.json").write_text('{"program": "us", "files": ["conversion.json"], "difference": NaN}')
    refuse_taken(tmp_path, "conversion.json", "us", overwrite=True)


def test_a_name_given_twice_among_many_is_found_at_once():
    names = ", ".join(f'"{number}": 0' for number in range(300_000))
    with at_little_cost(), pytest.raises(ValueError, match="it gives '299999' twice"):
        parse_json(f'{{{names}, "299999": 1}}', "it", "")


def test_strictness_is_for_our_own_records_alone():
    assert math.isnan(parse_json('{"a": NaN}', "it", "", strictly=False)["a"])
    assert parse_json('{"a": 1, "a": 2}', "it", "", strictly=False) == {"a": 2}
    assert parse_json(r'{"a": "\ud83d\ude00"}', "it", "") == {"a": "😀"}
