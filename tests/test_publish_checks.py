"""A folder that should not leave this machine is found out, and stays as it was."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from finished_folders import build, flip, state_of, write_folder
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from hf_roformer import checksums, examples, publish_checks
from hf_roformer.card_checks import licence_of, read_card, strange_languages
from hf_roformer.checksums import SUMS, find_damage, parse_checksums, read_checksums, write_checksums
from hf_roformer.hub_upload import publish, read_request
from hf_roformer.publish_checks import check_folder
from hf_roformer.repository_check import read_question, verify


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder as a training leaves it: what can be published, and what stays at home."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("run") / "reviews"
    write_folder(folder)
    (folder / "checkpoint-4").mkdir()
    (folder / "checkpoint-4" / "optimizer.pt").write_bytes(b"moments")
    (folder / "trainer_state.json").write_text("{}")
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "reviews"))


def finding(folder, name):
    """Look at one thing alone."""
    return publish_checks._look(folder, name, ())


@contextmanager
def watched(opened):
    """Note every file that Python opens, and refuse to wait for a pipe or a device."""
    watching = True

    def note(event, arguments):
        if watching and event == "open":
            opened.append(str(arguments[0]))
            if not os.path.isfile(arguments[0]) and os.path.lexists(arguments[0]):
                raise AssertionError(f"{arguments[0]} would be waited for")

    sys.addaudithook(note)
    yield
    watching = False


def flaw(folder, name):
    found = finding(folder, name)
    assert not found.right, found
    return found.detail


# all is right


@pytest.fixture(scope="module")
def looked_at(finished):
    before = state_of(finished)
    outcome = publish(read_request([str(finished), "ada/reviews", "--dry-run"]))
    return outcome, before, state_of(finished)


def test_a_finished_folder_passes_every_check_and_a_dry_run_tells_what_would_travel(looked_at):
    outcome, _, _ = looked_at
    assert outcome.code == 0, outcome.words
    assert "WRONG" not in outcome.words
    assert "loads alone, answers alike" in outcome.words
    assert "the largest " in outcome.words
    assert "left at home: checkpoint-4, trainer_state.json" in outcome.words
    told = outcome.words.split("would travel to ada/reviews: ")[1]
    assert {"model.safetensors", "README.md", "modeling_roformer.py", "tokenizer.json", SUMS} <= set(
        told.strip().split(", ")
    )
    assert "checkpoint" not in told


def test_the_checks_leave_every_byte_and_every_time_of_the_folder_as_they_were(looked_at):
    _, before, after = looked_at
    assert after == before


# the checksums


def test_sha256sum_itself_reads_the_list(finished):

    if shutil.which("sha256sum") is None:
        pytest.skip("no sha256sum here")
    done = subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=finished, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "model.safetensors: OK" in done.stdout


def test_the_checksum_is_that_of_the_standard(tmp_path):
    # FIPS 180-2, appendix B.1
    (tmp_path / "a").write_bytes(b"abc")
    assert checksums.checksum_of(tmp_path / "a") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def told_by_verify(*words):
    return verify(read_question([str(word) for word in words]))


def test_verify_names_a_flipped_byte_a_missing_file_and_one_that_was_not_there(folder):
    assert told_by_verify(folder).code == 0
    flip(folder / "model.safetensors", bit=0)
    (folder / "vocab.txt").unlink()
    (folder / "extra.py").write_text("x = 1\n")
    told = told_by_verify(folder)
    assert told.code == 1
    assert told.words.splitlines()[:3] == [
        f"extra.py is not listed in {SUMS}",
        f"model.safetensors holds other bytes than {SUMS} says",
        "vocab.txt is missing",
    ]


@pytest.mark.parametrize("place", [0, 9, 5000, -1])
def test_any_flipped_byte_of_the_weights_is_found(folder, place):
    flip(folder / "model.safetensors", place, bit=0)
    assert find_damage(folder, read_checksums(folder)) == [f"model.safetensors holds other bytes than {SUMS} says"]


def test_a_folder_without_a_list_is_told_how_to_get_one_and_writing_mends(folder):
    (folder / SUMS).unlink()
    assert "--write" in told_by_verify(folder).words
    told = told_by_verify(folder, "--write")
    assert told.code == 0, told.words
    # nothing of it was ever published
    assert re.fullmatch(rf".*: all \d+ files hold what {SUMS} lists\n", told_by_verify(folder).words)
    assert f"{SUMS}.unfinished" not in "".join(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "line",
    ["0" * 64 + "  ../elsewhere", "0" * 64 + "  /etc/passwd", "0" * 63 + "  a", "0" * 64 + " a", "nonsense", ""],
)
def test_a_list_that_leads_out_or_is_damaged_is_refused_by_its_line(line):
    with pytest.raises(ValueError, match=f"line 2 of {SUMS} is damaged"):
        parse_checksums("1" * 64 + f"  first\n{line}\n" + "1" * 64 + "  last\n")


def test_a_list_that_names_a_file_twice_is_refused():
    with pytest.raises(ValueError, match="line 2"):
        parse_checksums(("1" * 64 + "  a\n") * 2)


def test_a_name_that_breaks_the_list_is_refused(folder):
    (folder / "two\nlines.txt").write_text("x")
    with pytest.raises(ValueError, match="rename it"):
        write_checksums(folder)
    assert parse_checksums((folder / SUMS).read_text())


def test_a_changed_card_is_told_and_any_other_change_is_refused(folder):
    card = folder / "README.md"
    card.write_text(card.read_text() + "\nBy hand.\n")
    found = finding(folder, "checksums")
    assert found.right
    assert "README.md holds other bytes" in found.detail
    flip(folder / "model.safetensors")
    assert "model.safetensors holds other bytes" in flaw(folder, "checksums")


# the example


def test_a_folder_that_answers_otherwise_than_when_it_was_written_is_found_in_a_process_of_its_own(folder):
    weights = load_file(folder / "model.safetensors")
    weights["classifier.out_proj.weight"] = weights["classifier.out_proj.weight"] + 0.01
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "its logits differ by up to 0.0" in flaw(folder, "example")


def test_a_folder_whose_code_lacks_a_file_does_not_load(folder):
    (folder / "rotary.py").unlink()
    assert "does not load where this package is unknown" in flaw(folder, "example")


def test_an_answer_is_compared_in_values_shape_class_and_tokens():
    told = {"class": "A", "outputs": {"logits": {"shape": [2], "values": [1.0, 200.0]}}, "tokens": [1], "text": "x"}
    assert examples.differences(told, told) == []
    for values, apart in (
        ([1.0, 200.019], False),
        ([1.0, 200.03], True),
        ([float("nan"), 200.0], True),
        ([1.0], True),
    ):
        found = {**told, "outputs": {"logits": {"shape": [2], "values": values}}}
        assert bool(examples.differences(found, told)) == apart, values
    assert examples.differences({**told, "class": "B"}, told) == ["it loads as B for A"]
    assert "reads 'x' as [2] for [1]" in examples.differences({**told, "tokens": [2]}, told)[0]
    assert examples.differences({**told, "outputs": {}}, told) == ["its logits have the shape None for [2]"]


def test_a_folder_without_an_example_is_told_of_not_refused(folder, monkeypatch):
    (folder / examples.EXAMPLE).unlink()
    monkeypatch.setattr(examples, "answer_alone", lambda *_: {})
    found = finding(folder, "example")
    assert found.right
    assert "no example was recorded" in found.detail


VARIANTS = {
    "Model": {},
    "ForMaskedLM": {"position_kind": "learned", "max_position_embeddings": 8},
    "ForCausalLM": {"attention_pattern": "prefix"},
    "ForSentenceEmbedding": {"rope_axes": 2},
    "ForMultipleChoice": {"attention_kind": "linear"},
    "ForQuestionAnswering": {"norm_type": "rms_norm", "use_bias": False},
}


@pytest.mark.parametrize("head", VARIANTS)
def test_an_example_holds_what_the_network_itself_answers(tmp_path, head):
    model = build(head, **VARIANTS[head])
    model.save_pretrained(tmp_path)
    told = json.loads(examples.write_example(tmp_path).read_text(encoding="utf-8"))
    with torch.no_grad():
        outputs = model(torch.tensor(told["input_ids"]))
    assert told["class"] == f"HFRoFormer{head}"
    assert told["tokens"] is None
    assert told["outputs"]
    for name, output in told["outputs"].items():
        assert output["shape"] == list(outputs[name].shape)
        assert 1 <= len(output["values"]) <= 128
        assert output["values"][0] == pytest.approx(outputs[name].flatten()[0].item(), abs=1e-6)
        assert len(set(output["values"])) > len(output["values"]) / 2, "an answer that hardly varies shows little"


def test_a_network_that_answers_no_numbers_is_not_recorded(folder):
    weights = load_file(folder / "model.safetensors")
    weights["classifier.out_proj.bias"][:] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / examples.EXAMPLE).unlink()
    with pytest.raises(ValueError, match="answers with logits that are no numbers"):
        examples.write_example(folder)
    assert not (folder / examples.EXAMPLE).exists()


# what must not be told

SECRETS = {
    "a Hugging Face token": "hf_" + "aB3" * 12,
    "a GitHub token": "ghp_" + "aB3" * 12,
    "an Amazon key": "AK" + "IA" + "ABCD1234EFGH5678",
    "a Google key": "AI" + "za" + "x" * 35,
    "an API key": "sk-" + "a1" * 20,
    "a Slack token": "xox" + "b-1234567890-abc",
    "a private key": "-----BEGIN RSA PRIVATE" + " KEY-----",
    "a password in an address": "https://ada:" + "secret1@example.org/x",
    "a web token": "eyJ" + "a1" * 20 + "." + "eyJ" + "b2" * 400 + "." + "c3" * 20,
    "what is named a secret": '"wandb_api' + '_key": "0123456789abcdef"',
}


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("name", ["README.md", "results.json", "notes.txt"])
def test_a_secret_in_any_text_is_found_and_never_repeated(folder, kind, name):
    path = folder / name
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}\nuse {SECRETS[kind]} for it\n")
    told = flaw(folder, "secrets")
    assert f"{name}, line {before.count(chr(10)) + 2}, holds {kind}" in told
    assert SECRETS[kind] not in told


def test_a_secret_in_the_header_of_the_weights_or_in_wide_text_is_found(folder):
    weights = load_file(folder / "model.safetensors")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt", "by": SECRETS["a Hugging Face token"]})
    (folder / "notes.txt").write_bytes(SECRETS["a GitHub token"].encode("utf-16"))
    told = flaw(folder, "secrets")
    assert "model.safetensors, line 1, holds a Hugging Face token" in told
    assert "notes.txt, line 1, holds a GitHub token" in told


@pytest.mark.parametrize("kind", publish_checks.SECRETS)
@pytest.mark.parametrize(
    "piece",
    [
        "secret",
        "secret ",
        "secret=",
        "eyJ-",
        "eyJ" + "x" * 15 + ".",
        "a+",
        "a://b",
        "a://b:",
        "-----BEGIN A",
        "sk-",
        "a:\\",
    ],
)
def test_the_time_to_look_for_a_secret_grows_with_the_text_and_not_with_its_square(kind, piece):
    pattern = re.compile(publish_checks.SECRETS[kind])

    def seconds(times):
        began = time.process_time()
        pattern.search(piece.encode() * times)
        return time.process_time() - began

    # what grows with the square takes 100 times as long; where both are quick, a clock says little
    assert seconds(10_000) < 30 * seconds(1_000) + 0.1


def test_a_token_of_this_machine_is_found_whatever_it_looks_like(folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "quite-ordinary-words")
    (folder / "notes.txt").write_text("made with quite-ordinary-words")
    told = flaw(folder, "secrets")
    assert "notes.txt, line 1, holds a token of this machine" in told
    assert "quite-ordinary-words" not in told


@pytest.mark.parametrize(
    "path",
    [
        "/home/ada/data/train.csv",
        "/Users/ada/x",
        "C:\\Users\\ada\\x.csv",
        "C:\\\\Users\\\\ada",
        "file:///data/x",
        "{here}",
    ],
)
def test_a_path_of_a_machine_is_found(folder, path):
    (folder / "notes.txt").write_text(f"read from '{path.format(here=folder.parent)}'")
    assert "notes.txt, line 1, holds a path of a machine" in flaw(folder, "paths")


def test_addresses_relative_paths_and_slashes_are_no_paths_of_a_machine(folder):
    text = "https://example.org/home/x runs/home/a and/or </s> ./home/x ~/x /home 1/2 C: x\\y"
    (folder / "notes.txt").write_text(text)
    assert finding(folder, "paths").right


# what must not travel


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"])
def test_the_state_of_a_training_is_refused(folder, name):
    (folder / name).write_bytes(b"state")
    assert f"{name} is the state of a training" in flaw(folder, "files")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "sub/weights.pkl"])
def test_a_pickle_is_refused(folder, name):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"x")
    assert f"{name} is a pickle" in flaw(folder, "files")


def test_a_link_that_leads_out_is_refused(folder, tmp_path):
    (tmp_path / "outside.txt").write_text("x")
    (folder / "notes.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "same.txt").symlink_to(folder / "vocab.txt")
    (folder / "more").symlink_to(tmp_path)
    told = flaw(folder, "files")
    assert "notes.txt is a link that leads out" in told
    assert "more is a link to a folder" in told
    assert "same.txt" not in told


@pytest.mark.parametrize("name", ["notes.txt", "more.py", "more.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "nothing"])
def test_what_is_no_file_is_told_and_never_opened(folder, name, kind):
    (folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to({"device": "/dev/tty", "nothing": folder / "gone"}[kind])
    opened = []
    with watched(opened):
        found = {found.name: found for found in check_folder(folder)}
    assert str(folder / name) not in opened
    assert str(folder / "model.safetensors") in opened
    why = "is a link that leads out" if kind == "device" else "is no file, or a link to none"
    assert f"{name} {why}" in found["files"].detail
    assert found["example"].detail == f"the folder was not loaded, for {name} is no file"
    assert found["secrets"].right


@pytest.mark.parametrize("name", ["two\nlines.txt", "back\\slash.txt"])
def test_a_name_that_no_list_of_checksums_holds_is_refused_before_anything_is_asked(folder, name, loads):
    (folder / SUMS).unlink()
    (folder / name).write_text("x")
    for accepted in ((), ("files",)):
        wrong = [found for found in check_folder(folder, accepted) if not found.right]
        assert [found.name for found in wrong] == ["names"]
        assert f"{name!r} cannot stand in {SUMS}: rename it" in wrong[0].detail


def test_code_of_another_version_is_refused(folder):
    (folder / "rotary.py").write_text("# older\n")
    assert "rotary.py differs from this version" in flaw(folder, "code")


def test_weights_that_are_no_numbers_are_refused_by_name(folder):
    weights = load_file(folder / "model.safetensors")
    weights["classifier.out_proj.bias"][0] = float("nan")
    save_file(weights, folder / "model.safetensors")
    assert "classifier.out_proj.bias holds NaN" in flaw(folder, "weights")


def test_a_header_that_promises_too_much_is_damage_not_a_crash(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + data[8:])
    assert "damaged" in flaw(folder, "weights")
    assert finding(folder, "secrets").right


# the card


def spoil(folder, old, new):
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8")
    assert old in text
    card.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("value: 0.75", "value: 87.5", "accuracy is 87.5, and can only be between 0 and 1; .* perhaps 0.875"),
        ("value: 0.75", "value: -0.1", "can only be between 0 and 1"),
        ("value: 0.75", "value: .nan", "which is no number"),
        ("value: 0.75", "value: 0.76", "the card says accuracy 0.76 on test, and results.json 0.75"),
        ("- zh\n", "", "the metadata lack language"),
        ("pipeline_tag: text-classification\n", "", "the metadata lack pipeline_tag"),
        ("## Limits", "## Further", "does not say what the model cannot do"),
        ("```", "'''", "shows no code"),
        ("## Limits\n", "## Limits\n[More Information Needed]\n", "still holds"),
        ("language:\n", "language: [\n", "no YAML that can be read .line"),
        ("language:\n", "x: !!python/object/apply:os.getcwd []\nlanguage:\n", "the tag .* has no place"),
    ],
)
def test_a_card_that_lacks_or_promises_too_much_is_told_what_to_do(folder, old, new, told):

    spoil(folder, old, new)
    found = flaw(folder, "card")
    assert re.search(told, found), found


def test_a_folder_without_a_card_is_told_how_to_write_one(folder):
    (folder / "README.md").unlink()
    assert "holds no README.md" in flaw(folder, "card")
    assert "scripts/write_card.py" in flaw(folder, "licence")


@pytest.mark.parametrize(
    ("new", "told"),
    [
        ("", "gives no licence"),
        ("license: ''\n", "gives no licence"),
        ("license: unknown\n", "gives no licence"),
        ("license: other\n", "without a name: add license_name"),
        ("license: no such licence\n", "'no such licence', which the Hub does not know: take an identifier of"),
        ("license: Apache 2.0\n", "'Apache 2.0', which the Hub does not know: perhaps apache-2.0 is meant; take"),
        ("license: [mit, apache]\n", "'apache', which the Hub does not know"),
    ],
)
def test_a_card_without_a_licence_is_refused(folder, new, told):
    spoil(folder, "license: apache-2.0\n", new)
    assert told in flaw(folder, "licence")


@pytest.mark.parametrize(
    ("new", "told"),
    [
        ("license: gpl-3.0\n", "gpl-3.0"),
        ("license: llama3.1\n", "llama3.1"),
        ("license: openrail++\n", "openrail++"),
        ("license: [mit, apache-2.0]\n", "mit, apache-2.0"),
        ("license: other\nlicense_name: own\n", "other"),
    ],
)
def test_a_licence_that_the_hub_knows_is_taken(folder, new, told):
    spoil(folder, "license: apache-2.0\n", new)
    assert finding(folder, "licence") == ("licence", True, told)


@pytest.mark.parametrize("language", ["zh", "yue", "zh-Hant", "zh-Hant-TW", "pt-BR", "es-419", "multilingual", "'no'"])
def test_a_language_that_is_a_code_is_taken(folder, language):
    spoil(folder, "- zh\n", f"- {language}\n")
    assert finding(folder, "card").right


@pytest.mark.parametrize("language", ["Chinese", "z", "zh_TW", "ZH", "antibody sequences", "no", "12"])
def test_a_language_that_is_no_code_is_refused(folder, language):
    spoil(folder, "- zh\n", f"- {language}\n")
    assert "is no code of two or three letters: write one of ISO 639" in flaw(folder, "card")


ROOT = Path(__file__).parents[1]
CARDS = [path for path in sorted(ROOT.glob("model_cards/**/README.md")) if path.read_text("utf-8").startswith("---")]
RECIPES = [path for path in sorted(ROOT.glob("configs/**/*.yaml")) if path.parent.name != "accelerate"]


@pytest.mark.parametrize("path", CARDS + RECIPES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_committed_card_and_recipe_gives_a_licence_and_languages_that_the_hub_takes(path, tmp_path):
    told = ModelCard.load(path).data.to_dict() if path.suffix == ".md" else yaml.safe_load(path.read_text("utf-8"))
    licence = told.get("license") or "mit"
    data = {"language": told.get("language") or ["zh"], "license": licence}
    (tmp_path / "README.md").write_text(f"---\n{yaml.safe_dump(data)}---\n", encoding="utf-8")
    assert licence_of(tmp_path) == licence
    assert strange_languages(read_card(tmp_path)) == []


# the folder


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"model_type": "bert"}, "type 'bert', .*hf upload"),
        ({"model_type": "roformer"}, "type 'roformer', .*scripts/convert_checkpoint.py"),
        ([], "holds a list and no fields"),
        (None, "holds no config.json"),
    ],
)
def test_a_foreign_model_is_refused_alone_and_nothing_is_sent(folder, facts, told):

    (folder / "config.json").unlink()
    if facts is not None:
        (folder / "config.json").write_text(json.dumps(facts))
    before = state_of(folder)
    outcome = publish(read_request([str(folder), "ada/reviews"]))
    assert outcome.code == 1
    assert re.search(told, outcome.words), outcome.words
    assert outcome.words.count("WRONG") == 1
    assert "Nothing was sent" in outcome.words
    assert state_of(folder) == before


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no folder: name the one"):
        check_folder(tmp_path / "nowhere")
    assert "is no folder" in publish(read_request([str(tmp_path / "nowhere"), "ada/x"])).words


@pytest.fixture
def loads(monkeypatch):
    """Take for granted that a folder loads alone, which other tests try."""
    monkeypatch.setitem(publish_checks.CHECKS, "example", lambda folder: ([], "not tried here"))


def test_every_flaw_is_told_at_once_and_one_that_is_meant_can_be_accepted(folder, loads):
    (folder / "notes.txt").write_text("from /home/ada/x")
    write_checksums(folder)
    spoil(folder, "license: apache-2.0\n", "")
    wrong = {found.name for found in check_folder(folder) if not found.right}
    assert wrong == {"licence", "paths"}
    assert [found.name for found in check_folder(folder, ["paths"]) if not found.right] == ["licence"]
    told = publish(read_request([str(folder), "ada/x", "--accept", "paths"])).words
    assert "accepted: notes.txt" in told
    assert "see licence. Mend it" in told
    assert f"scripts/publish.py {folder} ada/x --accept paths" in told


def test_the_command_that_follows_a_refused_dry_run_sends_nothing_either(folder, loads):
    spoil(folder, "license: apache-2.0\n", "")
    told = publish(read_request([str(folder), "ada/x", "--dry-run"])).words
    command = told.splitlines()[-1].split()
    assert command[:2] == ["python", "scripts/publish.py"]
    assert read_request(command[2:]) == read_request([str(folder), "ada/x", "--dry-run"])


@pytest.mark.parametrize(
    ("read", "option"), [(read_request, "--message"), (read_request, "--revision"), (read_question, "--revision")]
)
@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_option_is_refused_when_it_is_read(read, option, blank, capsys):
    with pytest.raises(SystemExit):
        read(["runs/x", "ada/x", option, blank][read is read_question :])
    assert f"argument {option}: it is empty: give a value, or leave the option out" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["secrets", "nonsense"])
def test_a_secret_or_what_is_no_check_cannot_be_accepted(folder, name):
    with pytest.raises(ValueError, match=f"{name} cannot be accepted: give one of files, code"):
        check_folder(folder, [name])


@pytest.mark.parametrize("name", ["a/b/c", "-x/y", "ada/re views", "ada/..", "x" * 97, "", "ada/x.git"])
def test_a_malformed_name_is_refused_before_anything_is_looked_at(name, tmp_path):
    outcome = publish(read_request([str(tmp_path / "nowhere"), "--", name]))
    assert "is no name for a repository: give owner/name" in outcome.words
    assert outcome.code == 1
