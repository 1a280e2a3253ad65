"""A recipe, a sheet or a card's metadata is taken, or refused by file, line and remedy, whatever stands in it."""

import re
import shutil

import pytest
from conftest import at_little_cost

from hf_roformer import published
from hf_roformer.arguments import read_settings
from hf_roformer.card_checks import read_card
from hf_roformer.text_files import read_json
from hf_roformer.yaml_files import parse_yaml

WORDS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
BOMB = WORDS + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2000))
# what stands in the file, the line of the fault, and its words
YAML: dict[str, tuple[bytes, str, str]] = {
    "a bracket left open": (b"seed: 1\nlabels: [1, 2\nmax_length: 3\n", "line 3", "expected ',' or ']'"),
    "lists in lists": (b"seed: 1\nlabels: " + b"[" * 5000 + b"]" * 5000, "line 2", "nests more than 32 deep"),
    "mappings in mappings": (b"{a: " * 3000 + b"1" + b"}" * 3000, "line 1", "nests more than 32 deep"),
    "indents in indents": ("".join(f"{' ' * n}a:\n" for n in range(300)).encode(), "line 32", "nests more than 32"),
    "dashes": (b"a: 1\nb:\n  " + b"- " * 5000, "line 3", "nests more than 32 deep"),
    "question marks": (b"? " * 5000, "line 1", "nests more than 32 deep"),
    "a billion laughs": (BOMB.encode(), "line", "leave out the aliases"),
    "a chain of aliases": (CHAIN.encode(), "line", "leave out the aliases"),
    "an alias of what it stands in": (b"seed: 1\na: &a [*a]\n", "line 2", "leave out the aliases"),
    "a mapping of itself": (b"a: &a {b: *a}\n", "line 1", "leave out the aliases"),
    "an alias of nothing": (b"seed: 1\na: *b\n", "line 2", "undefined alias 'b'"),
    "code": (b"seed: 1\nx: !!python/object/apply:os.getcwd []\n", "line 2", "the tag .*os.getcwd has no place"),
    "a tag of its own": (b"seed: !mine 3\n", "line 1", "the tag !mine has no place here"),
    "a kind that it is not": (b"model_config:\n  hidden_size: !!int eight\n", "line 2", "'eight' is no int"),
    "a truth that it is not": (b"model_config: {a: !!bool perhaps}\n", "line 1", "'perhaps' is no bool"),
    "bytes of GB 18030": ("seed: 1\nlicense: 中文\n".encode("gb18030"), "line 2", "not UTF-8 at byte 17"),
    "UTF-16": ("seed: 1\n".encode("utf-16"), "line 1", "not UTF-8 at byte 0"),
    "a zero byte": (b"seed: 1\nmax_length: 3\0\n", "line 2", "holds the character 0x00"),
    "a name twice": (b"seed: 1\nmax_length: 3\nseed: 2\n", "line 3", "sets seed more than once"),
    "a name twice inside": (b"seed: 1\nmodel_config: {a: 1, a: 2}\n", "line 2", "sets a more than once"),
    "a list for a name": (b"seed: 1\n[a, b]: 2\n", "line 2", "a name is a word"),
    "a tab for an indent": (b"a:\n\tb: 1\n", "line 2", "cannot start any token"),
    "two colons": (b"seed: 1\na: b: c\n", "line 2", "mapping values are not allowed here"),
    "a number beyond all": (
        b"model_config: {a: " + b"9" * 5000 + b"}\n",
        "line 1",
        "no number that a computer counts",
    ),
    "another YAML": (b"%YAML 9.9\n---\na: 1\n", "line 1", "incompatible YAML document"),
}


def recipe_at(path):
    return read_settings([str(path)])


def card_at(path):
    folder = path.parent / "folder"
    folder.mkdir()
    # three lines more above: a mark, and the end of what was there
    (folder / "README.md").write_bytes(b"---\n" + path.read_bytes() + b"\n---\n# A model\n")
    return read_card(folder)


@pytest.mark.parametrize("name", YAML)
def test_a_recipe_that_cannot_be_read_is_named_with_line_and_remedy(tmp_path, name):
    content, line, words = YAML[name]
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with at_little_cost(), pytest.raises(ValueError, match=rf"recipe\.yaml .*{line}\b") as refused:
        recipe_at(path)
    assert re.search(words, str(refused.value))
    assert str(refused.value).endswith("correct it; a recipe is lines of `name: value`")


@pytest.mark.parametrize("name", YAML)
def test_a_sheet_that_cannot_be_read_is_named_with_line_and_remedy(tmp_path, name):
    content, line, words = YAML[name]
    path = tmp_path / "sheet.yaml"
    path.write_bytes(content)
    with at_little_cost(), pytest.raises(ValueError, match=rf"sheet\.yaml .*{line}\b") as refused:
        published.read_sheet(path)
    assert re.search(f"{words}.*as the other sheets are written", str(refused.value))


# a zero byte and a second YAML are the metadata's own; bytes that are no UTF-8 are the whole page's
@pytest.mark.parametrize("name", sorted(YAML.keys() - {"another YAML"}))
def test_metadata_of_a_card_that_cannot_be_read_are_told_with_their_line_on_the_page(tmp_path, name):
    content, line, words = YAML[name]
    (tmp_path / "some.yaml").write_bytes(content)
    number = re.search(r"\d+", line)
    line = f"line {int(number[0]) + 1}" if number else line
    words = words.replace("byte 17", "byte 21").replace("byte 0", "byte 4")
    with at_little_cost(), pytest.raises(ValueError, match=rf"README\.md .*{line}\b") as refused:
        card_at(tmp_path / "some.yaml")
    assert re.search(words, str(refused.value))


@pytest.mark.parametrize("content", [b"", b"null", b"- a\n- b\n", b"seed", b"3", b"# nothing\n"])
def test_a_recipe_or_sheet_without_names_is_refused(tmp_path, content):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"recipe\.yaml holds no `name: value` lines: correct it; a recipe is lines"):
        recipe_at(path)
    with pytest.raises(ValueError, match=r"recipe\.yaml is .*; give a mapping with name, hub_id"):
        published.read_sheet(path)


def test_a_file_of_a_hundred_megabytes_is_refused_at_once(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    for read in (recipe_at, published.read_sheet, lambda path: read_json(path, "go on")):
        with (
            at_little_cost(),
            pytest.raises(ValueError, match=r"huge\.yaml holds more than [\d,]+ bytes, so"),
        ):
            read(path)
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(path, folder / "README.md")
    with at_little_cost(), pytest.raises(ValueError, match=r"README\.md holds more than"):
        read_card(folder)


def test_a_device_without_an_end_is_read_no_further_than_a_file(tmp_path):
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    with at_little_cost(), pytest.raises(ValueError, match="holds more than 262,144 bytes"):
        recipe_at(tmp_path / "endless.yaml")


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_a_recipe_that_is_not_there_or_a_folder_is_named_with_the_remedy(tmp_path, make):
    make(tmp_path / "recipe.yaml")
    with pytest.raises(OSError, match=r"name a file that is there and may be read: '.*recipe\.yaml'"):
        recipe_at(tmp_path / "recipe.yaml")


@pytest.mark.parametrize("text", ["a: &x [1, 2]\nb: *x\n", "a: &x 1\nb: [*x, *x]\n", "a: &x {c: [1]}\nb: *x\n"])
def test_a_plain_alias_still_means_what_it_stands_for(text):
    written_out = {
        "a: &x [1, 2]\nb: *x\n": {"a": [1, 2], "b": [1, 2]},
        "a: &x 1\nb: [*x, *x]\n": {"a": 1, "b": [1, 1]},
    }
    assert parse_yaml(text, "it", "") == written_out.get(text, {"a": {"c": [1]}, "b": {"c": [1]}})


def test_a_number_in_a_mapping_means_what_it_says(tmp_path):
    (tmp_path / "recipe.yaml").write_text("use_cpu: true\ntrain_file: x.csv\nmodel_config: {a: 010, b: 1e2, c: no}\n")
    task, _ = recipe_at(tmp_path / "recipe.yaml")
    assert task.model_config == {"a": 10, "b": 100.0, "c": "no"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model_config", "{a: [" + "[" * 3000], "model_config is .*, which is not dict"),
        (["--model_config.a", "[1, 2"], r"model_config\.a is no YAML that can be read .line 1"),
        (["--model_config.a", "!!python/object/apply:os.getcwd []"], "the tag .* has no place here"),
        (["--seed.a", "3"], "seed is '7', no mapping in which a could be set"),
    ],
)
def test_a_flag_that_cannot_be_read_is_refused_by_its_name(tmp_path, words, told):
    path = tmp_path / "recipe.yaml"
    path.write_text("use_cpu: true\ntrain_file: x.csv\nseed: 7\nmodel_config: {}\n", encoding="utf-8")
    with at_little_cost(), pytest.raises(ValueError, match=told):
        read_settings([str(path), *words])
