"""What a stranger gets, who has a saved folder, trusts its code, and never installed this package.

One journey serves all tests: the package saves, a first stranger loads, trains and saves twice more, and a second
stranger loads what the first one left.
"""

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import TINY
from isolated import surroundings
from variants import vivid

import hf_roformer

PACKAGE = Path(hf_roformer.__file__).parent
AUTO = {
    "AutoModel": "Model",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForCausalLM": "ForCausalLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
    "AutoModelForQuestionAnswering": "ForQuestionAnswering",
    "AutoModelForMultipleChoice": "ForMultipleChoice",
    "AutoModelForTextEncoding": "ForSentenceEmbedding",
    "AutoModelForPreTraining": "ForPreTraining",
}
CHARACTERS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天很好不风雨")
LEFT = ("third", "strange/checkpoint-1", "at home/checkpoint-1")
ENTRIES = ("modeling_roformer", "tokenization_roformer")
ALLOWED = {"torch", "transformers", "huggingface_hub", "numpy", "safetensors", "tokenizers", *sys.stdlib_module_names}


def siblings(tree):
    """Return the modules that a file imports from beside it."""
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
    return [name for name in names if name.isidentifier()]


def shipped_room(entries=ENTRIES):
    """Return the syntax tree of every file that travels, by name, following the imports from the entries."""
    room, waiting = {}, list(entries)
    while waiting:
        name = waiting.pop()
        if name not in room:
            room[name] = ast.parse((PACKAGE / f"{name}.py").read_text())
            waiting += siblings(room[name])
    return room


ROOM = shipped_room()


# what runs in the stranger's process: each function is sent there as text, and so brings its own imports


def shut_the_door():
    """Make sure that neither the package nor the word splitter can be imported, installed or not."""
    import sys

    sys.modules["hf_roformer"] = sys.modules["rjieba"] = None
    try:
        import hf_roformer  # noqa: F401
    except ImportError:
        return
    raise AssertionError("the stranger knows the package")


def came_from(package):
    """Return the modules whose file lies in the package."""
    import sys

    files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
    return [name for name, file in files.items() if file.startswith(package)]


def answers_of(model, ids):
    """Return every tensor that the model answers with, by name."""
    import torch

    if "MultipleChoice" in type(model).__name__:
        ids = ids[:, None].expand(-1, 2, -1)
    with torch.no_grad():
        return {name: value for name, value in model.eval()(ids).items() if isinstance(value, torch.Tensor)}


def train_one_step(model, tokenizer, folder, steps=1, **options):
    """Train with the Trainer and save a checkpoint."""
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": [2, 5, 6, 3], "labels": [2, 5, 6, 3]}] * 2
    arguments = TrainingArguments(
        folder, max_steps=steps, save_steps=1, logging_steps=1, use_cpu=True, report_to="none", disable_tqdm=True
    )
    trainer = Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
    trainer.train(**options)
    return trainer


def load_everywhere(work, folders, autos, ids):
    """Load each folder under each auto class; return the classes, the bodies' answers and the own heads' answers."""
    import transformers

    classes, bodies, answers = {}, {}, {}
    for folder in folders:
        for auto in autos:
            # the other folders hold no pooler
            wants_pooler = auto == "AutoModelForTextEncoding" and folder != "ForSentenceEmbedding"
            options = {"classifier_pooling": "mean"} if wants_pooler else {}
            model = getattr(transformers, auto).from_pretrained(f"{work}/{folder}", trust_remote_code=True, **options)
            classes[folder, auto] = type(model).__name__
            bodies[folder, auto] = answers_of(model.base_model, ids)["last_hidden_state"]
            if type(model).__name__ in model.config.architectures:
                answers[folder] = answers_of(model, ids)
    return {"classes": classes, "bodies": bodies, "answers": answers}


def read_tokens(folder):
    """Tokenize by the folder's own tokenizer."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    return type(tokenizer).__name__, tokenizer("今天天很好")["input_ids"]


def refusal_of(folder):
    """Return what is said to one who does not trust the folder's code."""
    import transformers

    try:
        transformers.AutoModel.from_pretrained(folder, trust_remote_code=False)
    except ValueError as error:
        return str(error)


def write_text(folder, ids):
    """Generate, then answer by each backend."""
    import transformers

    writer = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    text, by_backend = writer.generate(ids, max_new_tokens=8, do_sample=False), {}
    for backend in ("eager", "sdpa"):
        writer.set_attn_implementation(backend)
        by_backend[backend] = writer.config._attn_implementation, answers_of(writer, ids)["logits"]
    return text, by_backend


def write_after_a_source(folder, ids):
    """Generate by the prefix pattern, from rows padded on the left."""
    import torch
    import transformers

    options = {"trust_remote_code": True, "attention_pattern": "prefix"}
    writer = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return writer.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)


def first_stranger(work, autos, ids):
    """Load what the package saved, save twice more, and train."""
    import transformers

    seen = load_everywhere(work, autos.values(), autos, ids)
    seen["untrusted"] = refusal_of(f"{work}/Model")
    seen["tokens"] = read_tokens(f"{work}/ForMaskedLM")
    seen["text"], seen["by backend"] = write_text(f"{work}/ForCausalLM", ids)
    seen["after a source"] = write_after_a_source(f"{work}/ForCausalLM", ids)
    folder = f"{work}/ForMaskedLM"
    for generation in ("second", "third"):
        model = transformers.AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        folder = f"{work}/{generation}"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    train_one_step(model, tokenizer, f"{work}/strange")
    seen["trained"] = answers_of(model, ids)
    return seen


def second_stranger(work, autos, ids):
    """Load what the first one left and what the package's Trainer left, and take up the training."""
    import transformers

    folders = ("third", "strange/checkpoint-1", "at home/checkpoint-1")
    seen = load_everywhere(work, folders, autos, ids)
    seen["tokens"] = {folder: read_tokens(f"{work}/{folder}") for folder in folders}
    checkpoint = f"{work}/strange/checkpoint-1"
    model = transformers.AutoModelForMaskedLM.from_pretrained(checkpoint, trust_remote_code=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True)
    trainer = train_one_step(model, tokenizer, f"{work}/strange", steps=2, resume_from_checkpoint=checkpoint)
    seen["losses"] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return seen


def journal(stranger, package, work, autos):
    """Run a stranger behind a shut door and write down what it saw."""
    import json

    import torch
    import transformers

    shut_the_door()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    seen = stranger(work, json.loads(autos), torch.load(f"{work}/ids.pt"))
    seen["from the package"] = came_from(package)
    torch.save(seen, f"{work}/{stranger.__name__}.pt")


def send(stranger, work):
    """Run a function in an isolated process that starts elsewhere, with caches of its own."""
    parts = (shut_the_door, came_from, answers_of, train_one_step, load_everywhere, read_tokens, refusal_of)
    parts += (write_text, write_after_a_source, stranger, journal)
    call = f"import sys\njournal({stranger.__name__}, *sys.argv[1:])\n"
    script = "\n".join([*map(inspect.getsource, parts), call])
    home = work / f"home of {stranger.__name__}"
    home.mkdir()
    command = [sys.executable, "-I", "-c", script, str(PACKAGE), str(work), json.dumps(AUTO)]
    environment = surroundings(home, HF_HUB_OFFLINE="1")
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def journey(tmp_path_factory):
    torch.manual_seed(0)
    work = tmp_path_factory.mktemp("journey")
    (work / "vocab.txt").write_text("".join(f"{word}\n" for word in CHARACTERS), encoding="utf-8")
    tokenizer = hf_roformer.HFRoFormerTokenizer.from_pretrained(work)
    shape = TINY | {"max_position_embeddings": 64, "vocab_size": len(CHARACTERS)}
    models = {}
    for head in AUTO.values():
        models[head] = vivid(getattr(hf_roformer, f"HFRoFormer{head}")(hf_roformer.HFRoFormerConfig(**shape)))
        models[head].save_pretrained(work / head)
        tokenizer.save_pretrained(work / head)
    ids = torch.randint(5, len(CHARACTERS), (2, 12))
    torch.save(ids, work / "ids.pt")
    trained = hf_roformer.HFRoFormerForMaskedLM.from_pretrained(work / "ForMaskedLM")
    train_one_step(trained, tokenizer, work / "at home")
    send(first_stranger, work)
    send(second_stranger, work)
    first, second = (torch.load(work / f"{name}_stranger.pt") for name in ("first", "second"))
    return SimpleNamespace(
        work=work, models=models, ids=ids, trained=trained, tokenizer=tokenizer, first=first, second=second
    )


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_the_stranger_used_nothing_of_the_package(journey):
    assert journey.first["from the package"] == []
    assert journey.second["from the package"] == []


def test_any_heads_folder_loads_under_every_auto_class(journey):
    expected = {(saved, auto): f"HFRoFormer{head}" for saved in AUTO.values() for auto, head in AUTO.items()}
    assert journey.first["classes"] == expected


def test_the_body_comes_whole_whichever_head_was_saved(journey):
    for (saved, auto), states in journey.first["bodies"].items():
        model = journey.models[saved]
        if auto == "AutoModelForCausalLM" and saved != "ForCausalLM":
            # this class is causal over any folder
            model = hf_roformer.HFRoFormerForCausalLM.from_pretrained(journey.work / saved)
        assert_same(states, answers_of(model.base_model, journey.ids)["last_hidden_state"])


@pytest.mark.parametrize("head", AUTO.values())
def test_a_stranger_gets_the_same_answers(head, journey):
    assert_same(journey.first["answers"][head], answers_of(journey.models[head], journey.ids))


def test_a_stranger_who_does_not_trust_is_told_so(journey):
    assert "trust_remote_code=True" in journey.first["untrusted"]


def test_a_stranger_reads_the_same_tokens(journey):
    expected = ("HFRoFormerTokenizer", journey.tokenizer("今天天很好")["input_ids"])
    assert journey.first["tokens"] == expected
    assert set(journey.second["tokens"]) == set(LEFT)
    assert all(found == expected for found in journey.second["tokens"].values())


def test_a_stranger_generates_the_same_tokens(journey):
    text = journey.models["ForCausalLM"].generate(journey.ids, max_new_tokens=8, do_sample=False)
    assert journey.first["text"].tolist() == text.tolist()
    assert text.shape == (2, 20)


def test_a_stranger_writes_after_a_source_as_the_package_does(journey):
    at_home = write_after_a_source(journey.work / "ForCausalLM", journey.ids)
    assert journey.first["after a source"].tolist() == at_home.tolist()
    assert at_home.tolist() != journey.first["text"].tolist()


def test_a_stranger_may_choose_how_attention_is_computed(journey):
    expected = answers_of(journey.models["ForCausalLM"], journey.ids)["logits"]
    for backend, (chosen, logits) in journey.first["by backend"].items():
        assert chosen == backend
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


def code_in(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.py")}


@pytest.mark.parametrize("folder", [*AUTO.values(), "second", *LEFT])
def test_a_saved_folder_holds_the_packages_own_files_to_the_byte(folder, journey):
    assert code_in(journey.work / folder) == {f"{name}.py": (PACKAGE / f"{name}.py").read_bytes() for name in ROOM}


class Mine(hf_roformer.HFRoFormerForTokenClassification):
    """As if written in a notebook, whose code the library cannot save."""

    __module__ = "__main__"


def test_a_config_saved_alone_and_a_class_of_a_notebook_bring_the_code_of_every_class_that_they_name(tmp_path):
    config = hf_roformer.HFRoFormerConfig(**TINY)
    named = {f"{name}.py": (PACKAGE / f"{name}.py").read_bytes() for name in shipped_room(["modeling_roformer"])}
    for saved in (config, Mine(config)):
        folder = tmp_path / type(saved).__name__
        saved.save_pretrained(folder)
        assert code_in(folder) == named


@pytest.mark.parametrize("folder", [*AUTO.values(), "second", *LEFT])
def test_a_saved_folder_names_its_code_the_same_way_each_time(folder, journey):
    expected = {auto: f"modeling_roformer.HFRoFormer{head}" for auto, head in AUTO.items()}
    expected["AutoConfig"] = "configuration_roformer.HFRoFormerConfig"
    facts = json.loads((journey.work / folder / "config.json").read_text())
    assert facts["auto_map"] == expected
    named = json.loads((journey.work / folder / "tokenizer_config.json").read_text())["auto_map"]["AutoTokenizer"]
    assert [name for name in named if name is not None] == ["tokenization_roformer.HFRoFormerTokenizer"]


def test_the_third_generation_loads_under_every_auto_class_and_answers_alike(journey):
    found = {auto: name for (folder, auto), name in journey.second["classes"].items() if folder == "third"}
    assert found == {auto: f"HFRoFormer{head}" for auto, head in AUTO.items()}
    assert_same(journey.second["answers"]["third"], answers_of(journey.models["ForMaskedLM"], journey.ids))


def test_a_trainers_checkpoint_needs_nothing_else(journey):
    for folder, trained in (
        ("strange/checkpoint-1", journey.first["trained"]),
        ("at home/checkpoint-1", answers_of(journey.trained, journey.ids)),
    ):
        found = {auto: name for (at, auto), name in journey.second["classes"].items() if at == folder}
        assert found == {auto: f"HFRoFormer{head}" for auto, head in AUTO.items()}
        assert_same(journey.second["answers"][folder], trained)
        assert not torch.allclose(trained["logits"], answers_of(journey.models["ForMaskedLM"], journey.ids)["logits"])


def test_a_stranger_takes_up_the_training_where_it_stopped(journey):
    # the first step's loss comes from the checkpoint's own record, the second step from this process
    assert len(journey.second["losses"]) == 2
    assert journey.second["losses"][1] < journey.second["losses"][0]


@pytest.mark.parametrize("auto", AUTO)
def test_where_the_package_is_imported_its_classes_win_over_the_folders_code(auto, journey):
    options = {"classifier_pooling": "mean"} if auto == "AutoModelForTextEncoding" else {}
    model = getattr(transformers, auto).from_pretrained(journey.work / "third", trust_remote_code=True, **options)
    assert type(model) is getattr(hf_roformer, f"HFRoFormer{AUTO[auto]}")


# an older library

TOO_OLD = """
import sys
import transformers
sys.modules["hf_roformer"] = None
for folder, auto, version in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3], strict=True):
    transformers.__version__ = version
    try:
        getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True)
    except ImportError as error:
        print(f"{type(error).__name__}: {error}")
"""


def test_a_library_of_which_only_the_version_string_is_faked_to_be_older_is_told_of_with_the_remedy(tmp_path):
    model, tokenizer = tmp_path / "model", tmp_path / "tokenizer"
    hf_roformer.HFRoFormerModel(hf_roformer.HFRoFormerConfig(**TINY)).save_pretrained(model)
    hf_roformer.HFRoFormerTokenizer(vocab={word: i for i, word in enumerate(CHARACTERS)}).save_pretrained(tokenizer)
    told = [model, "AutoModel", "5.16.1", tokenizer, "AutoTokenizer", "4.57.6"]
    command = [sys.executable, "-I", "-c", TOO_OLD, *map(str, told)]
    environment = surroundings(tmp_path / "home", HF_HUB_OFFLINE="1")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        f"ImportError: hf_roformer needs transformers 5.17 or later, and {version} is installed: run "
        "`pip install --upgrade transformers`"
        for version in ("5.16.1", "4.57.6")
    ]


@pytest.mark.parametrize("first", ["configuration_roformer", "tokenization_roformer"])
def test_what_a_stranger_imports_first_names_every_file_that_it_leads_to(first):
    # what copies no further than one import, as transformers 4.57 does from a folder, still comes to our words
    assert {first, *siblings(ROOM[first])} == set(shipped_room([first]))


def guarded_imports(tree):
    """Return the nodes in the body of a try that catches ImportError."""
    tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try)]
    tries = [node for node in tries if any(h.type and "ImportError" in ast.unparse(h.type) for h in node.handlers)]
    return [inner for node in tries for statement in node.body for inner in ast.walk(statement)]


def packages_of(node):
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("name", sorted(ROOM))
def test_a_shipped_file_imports_only_what_every_stranger_has(name):
    tree = ROOM[name]
    allowed_if_guarded = {"rjieba"} if name == "tokenization_roformer" else set()
    guarded = guarded_imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level):
            assert packages_of(node) <= ALLOWED | (allowed_if_guarded if node in guarded else set()), ast.unparse(node)


@pytest.mark.parametrize("name", sorted(ROOM))
def test_a_shipped_file_names_its_siblings_in_the_one_way_that_the_library_copies(name):
    for node in ast.walk(ROOM[name]):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1, ast.unparse(node)
            assert node.module, ast.unparse(node)
            assert "." not in node.module, ast.unparse(node)
