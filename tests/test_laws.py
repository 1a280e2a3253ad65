"""What the project says of itself is true: its README runs, its recipes are read, its imports go down only."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from variants import VARIANTS, published_weights, write_folder
from warm import warm_python

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hf_roformer"
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.M | re.S)
INSTALLS = [code for kind, code in BLOCKS if kind == "bash" and "pip install" in code]
SHELL = [code for kind, code in BLOCKS if kind == "bash" and "pip install" not in code]
PYTHON = [code for kind, code in BLOCKS if kind == "python"]

# lower may not import higher; files of one line do not meet
FLOORS = [
    {"checksums", "text_files"},
    {"number_ranges", "records"},
    {"own_folders", "yaml_files"},
    {"_version", "answer_metrics", "arguments", "benchmark_report", "checkpoint_names", "checkpoints"}
    | {"distillation", "fast_matmul", "figures", "json_files", "library_version", "local_attention"}
    | {"markdown_tables", "metrics"}
    | {"numpy_forward", "optimization", "packing", "pair_forms", "position_curves", "progress"}
    | {"published", "rope_scaling", "sentence_steps", "stopping", "tensorflow_checkpoints", "throughput"}
    | {"token_counts", "tour_drawing", "triples", "windows"},
    {"adapters", "answer_figures", "answer_spans", "class_losses", "config_files"}
    | {"encoding_arguments", "facts", "hub_files", "pair_metrics", "position_options", "pretraining_arguments"}
    | {"rotary", "rotation_options", "shards", "sources", "study_figures", "tokenizer_files", "weight_files"},
    {"answer_pipeline", "answering", "benchmark_machine", "comparison", "configuration_roformer", "corpora"}
    | {"dropout"}
    | {"general_rotation", "losses", "own_length", "position_embeddings", "position_figures", "positions"}
    | {"pretraining_texts", "publishing", "study_texts", "tables", "token_blocks", "tokenization_roformer"},
    {"answers", "base_models", "benchmark_cases", "blocked_attention", "card_checks"}
    | {"checkpoint_sources", "converted_tokenizers", "dataset_forms", "examples", "loading_checks", "masking"}
    | {"sharing", "study_cells", "tasks"},
    {"attention", "documents", "publish_checks", "study_training", "task_questions", "task_sequences"}
    | {"token_rows", "trainer", "vocabularies"},
    {"hub_upload", "linear_attention", "pretraining_predictions", "task_choices", "task_documents"}
    | {"task_embeddings", "task_tokens"},
    {"card_writing", "layers", "repository_check", "task_table"},
    {"data", "pretrained"},
    {"modeling_roformer", "training"},
    {"benchmark_systems", "builtin_export", "encoders", "endurance", "heads", "kill_trial", "labelled_memory"}
    | {"loop", "pretraining", "registration", "score_figures", "study_language"},
    {"__init__", "benchmark_onnx", "benchmark_plan", "checkpoint_meaning", "conversion_cards", "converted_weights"}
    | {
        "encoding",
        "exported_graphs",
        "hub_comparison",
        "position_tour",
        "pretraining_study",
        "study_decay",
        "study_length",
    }
    | {"study_order", "transplant"},
    {"benchmark_memory", "encoding_peers", "exported_files", "surgery", "verification"},
    {"benchmarks", "conversion", "export_evaluation", "study_costs"},
    {"exporting", "studies"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}


def imports_of(path):
    """Return the package's own files that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names |= {node.module} if node.module else {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("name", sorted(path.stem for path in PACKAGE.glob("*.py")))
def test_a_file_imports_only_files_below_it(name):
    for other in imports_of(PACKAGE / f"{name}.py"):
        assert FLOOR[other] < FLOOR[name] or {name, other} <= {"losses", "positions"}, f"{name} imports {other}"


# the plain Accelerate loop is there to be read and changed, and so is a page of code
LOOP = ROOT / "scripts" / "finetune_accelerate.py"


@pytest.mark.parametrize("path", sorted({*(ROOT / "scripts").glob("*.py")} - {LOOP}), ids=lambda path: path.name)
def test_a_script_is_one_straight_line_over_the_package(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert [function.name for function in functions] == ["main"]
    assert not [n for n in ast.walk(functions[0]) if isinstance(n, (ast.If, ast.For, ast.While, ast.Try))]
    assert len(functions[0].body) <= 8
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.module.split(".")[0] == "hf_roformer" or node.module in sys.stdlib_module_names


def test_the_plain_loop_is_about_a_page():
    assert len(LOOP.read_text(encoding="utf-8").splitlines()) <= 120


def test_no_file_is_named_for_a_heap_of_things():
    names = {path.stem for path in ROOT.glob("*/*.py")}
    assert not names & {"utils", "helpers", "common", "base", "misc"}


def test_the_top_level_holds_what_it_should():
    allowed = {"pyproject.toml", "hf_roformer", "configs", "scripts", "tests", "model_cards", "README.md", "LICENSE"}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert {path.split("/")[0] for path in tracked if not path.startswith(".")} <= allowed


def test_every_path_that_the_readme_and_the_scripts_name_exists():
    texts = [README] + [path.read_text(encoding="utf-8") for path in (ROOT / "scripts").glob("*.py")]
    paths = re.compile(r"\b(?:configs|scripts|tests|hf_roformer)/[\w./-]*\w")
    named = {name for text in texts for name in paths.findall(text)}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_readme_installs_and_runs_the_main_job_and_the_tests_first():
    assert len(INSTALLS) == 2
    first, second = README.index(INSTALLS[0]), README.index(INSTALLS[1])
    assert first < second < README.index(PYTHON[0])
    assert "scripts/finetune.py" in INSTALLS[0]
    assert "pytest" in INSTALLS[1]


def test_ci_runs_the_two_install_commands_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in script
    assert "PIP_CONSTRAINT" in script


# runs of a few steps; runs of one recipe stay so
SHORT = ["--max_steps", "4", "--eval_steps", "2", "--save_steps", "2", "--eval_strategy", "steps"]
SHORT += ["--save_strategy", "steps", "--max_rows", "96"]


@pytest.fixture(scope="module")
def python():
    with warm_python() as run:
        yield run


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, python):
    """A folder as the README's reader has it: the scripts and recipes, and one short run of the main job."""
    place = tmp_path_factory.mktemp("reader")
    for name in ("scripts", "configs"):
        (place / name).symlink_to(ROOT / name)
    python(["scripts/finetune.py", *SHORT], place)
    (place / "tests").mkdir()
    (place / "tests" / "data").symlink_to(ROOT / "tests" / "data")
    published_layout(place / "junnyu" / "roformer_chinese_base")
    published_sim(place / "junnyu" / "roformer_chinese_sim_char_base")
    tiny_bert(place / "google-bert" / "bert-base-chinese")
    (place / "texts").mkdir()
    (place / "texts" / "some.txt").write_text("今天天气很好。\n天气非常好。\n" * 40, encoding="utf-8")
    return place


def tiny_bert(folder):
    """Write a BERT of a few numbers, with its vocabulary."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天气非常很好。"]
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=len(words), max_position_embeddings=128, **shape)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizer.from_pretrained(folder).save_pretrained(folder)


def published_sim(folder):
    """Lay a tiny sim checkpoint out as the published one is."""
    variant = VARIANTS["sim, its package's config"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"广州和深圳哪个好？"]
    write_folder(folder, variant, published_weights(variant))
    words += [f"[unused{number}]" for number in range(variant.config["vocab_size"] - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


def published_layout(folder):
    """Lay a tiny checkpoint out as the published ones are: a pickle, a vocabulary, and the built-in model type."""
    import json

    import torch
    from transformers import RoFormerConfig, RoFormerForMaskedLM

    folder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "今", "天", "今天", "天气", "非常", "很", "好", "。", "气"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    config = RoFormerConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    weights = RoFormerForMaskedLM(config).state_dict()
    torch.save({k: v for k, v in weights.items() if "embed_positions" not in k}, folder / "pytorch_model.bin")
    facts = {k: v for k, v in config.to_dict().items() if k != "transformers_version"}
    (folder / "config.json").write_text(json.dumps({**facts, "model_type": "roformer"}, default=str))


def launch(words, place):
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_a_python_block_of_the_readme_runs(workplace, python, number):
    (workplace / "block.py").write_text(PYTHON[number], encoding="utf-8")
    python(["block.py"], workplace)


@pytest.mark.parametrize("number", range(len(SHELL)))
def test_a_shell_block_of_the_readme_runs_in_a_short_form(workplace, python, number):
    starts = {"python": python, "accelerate": launch}
    for line in SHELL[number].replace("\\\n", " ").splitlines():
        start, *words = shlex.split(line)
        if "scripts/convert_bert.py" in words:
            words += ["--steps", "2", "--batch_size", "4"]
        if "scripts/encode.py" in words:
            words += ["--max_length", "8"]
        if "scripts/pretrain.py" in words:
            words += ["--max_steps", "2", "--max_documents", "64"]
        if "scripts/finetune.py" in words:
            words += SHORT if "--output_dir" in words else [*SHORT, "--output_dir", f"runs/short_{number}_{len(line)}"]
        starts[start](words, workplace)


def test_nothing_names_a_machine_or_a_place_that_a_reader_has_not():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    patterns = [r"\.\./shar" + "ed", "/wo" + "rk/", "/ro" + "ot/", "/tm" + "p/"]
    for name in tracked:
        path = ROOT / name
        if path.is_file() and path.suffix not in (".png", ".npz") and ".ckpt" not in name:
            text = path.read_text(encoding="utf-8")
            assert not [pattern for pattern in patterns if re.search(pattern, text)], name


def test_the_readme_has_no_placeholder_left():
    prose = re.sub(r"^```.*?^```", "", README, flags=re.M | re.S)
    assert re.findall(r"\b[A-Z]{6,}\b", prose) == []
