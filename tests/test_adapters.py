"""What learns, how fast, and what of it is left: adapters, frozen parts, rates by layer, and weight decay."""

import importlib.util
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from test_training import RECIPE, SHAPE, single  # noqa: F401 - read by the fixture `settings`
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification, Trainer

from hf_roformer.adapters import head_names, read_lora, target_names
from hf_roformer.arguments import RunArguments
from hf_roformer.checkpoints import checkpoints_in
from hf_roformer.configuration_roformer import HFRoFormerConfig
from hf_roformer.kill_trial import equal_parts
from hf_roformer.modeling_roformer import (
    HFRoFormerForMaskedLM,
    HFRoFormerForSequenceClassification,
    HFRoFormerForTokenClassification,
    HFRoFormerModel,
)
from hf_roformer.optimization import decay_by_layer, depth_of, freeze
from hf_roformer.trainer import ResumableTrainer
from hf_roformer.training import finetune

needs_peft = pytest.mark.skipif(not importlib.util.find_spec("peft"), reason="peft is not installed")
TWO_LAYERS = {
    "vocab_size": 20,
    "embedding_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


NO_EVALUATION = {"eval_strategy": "no", "load_best_model_at_end": False}


def classifier(**changes):
    return HFRoFormerForSequenceClassification(HFRoFormerConfig(**TWO_LAYERS, **changes))


def learning(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


# adapters


def test_the_targets_are_linear_layers_of_the_body_alone():
    model = classifier()
    body = [f"roformer.encoder.layer.{n}." for n in (0, 1)]
    attention = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    both = [layer + name for layer in body for name in attention]
    assert sorted(target_names(model, "attention")) == sorted(both)
    rest = [layer + name for layer in body for name in ("intermediate.dense", "output.dense")]
    assert sorted(target_names(model, "all-linear")) == sorted([*both, *rest, "roformer.embeddings_project"])
    assert target_names(model, ["self.query"]) == [layer + "attention.self.query" for layer in body]
    assert head_names(model) == ["classifier"]
    assert head_names(HFRoFormerModel(HFRoFormerConfig(**TWO_LAYERS))) == []
    with pytest.raises(ValueError, match=r"targets quary, which no linear layer .* the nearest is query"):
        target_names(model, ["quary"])


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"rank": 8}, "lora has rank, which it does not know; the nearest key is r"),
        ({"r": 0}, "lora has r 0; a rank is 1 or more"),
        ({"r": "many"}, "r and alpha are whole numbers"),
        ({"dropout": 1}, r"dropout 1\.0; give a share"),
    ],
)
def test_settings_that_make_no_adapter_are_refused(told, message):
    with pytest.raises(ValueError, match=message):
        read_lora(told)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A finished run, to be adapted."""
    place = tmp_path_factory.mktemp("base")
    rows = place / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in single()), encoding="utf-8")
    recipe = {"train_file": str(rows), "model_config": json.dumps(SHAPE), "vocabulary_min_count": "1"}
    recipe |= {"output_dir": str(place / "run"), "max_steps": "1", "use_cpu": "true", "disable_tqdm": "true"}
    from hf_roformer.arguments import read_settings

    words = [word for name, value in recipe.items() for word in (f"--{name}", value)]
    return finetune(*read_settings(words)).folder


LORA = {"model_config": {"hidden_dropout_prob": 0.1}, "lora": {"r": 4, "targets": "attention"}, "num_train_epochs": 2}
LORA |= {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 2, "eval_steps": 2, "save_total_limit": 9}


@needs_peft
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_adapted_run_leaves_an_adapter_and_a_plain_model_that_answer_alike(settings, base):
    from peft import PeftModel

    run = finetune(*settings(single(), base_model=str(base), **LORA))
    assert not (run.folder / "adapter_config.json").exists()
    merged = AutoModelForSequenceClassification.from_pretrained(run.folder).eval()
    told = json.loads((run.folder / "adapter" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == base.name
    plain = AutoModelForSequenceClassification.from_pretrained(base)
    adapted = PeftModel.from_pretrained(plain, run.folder / "adapter").eval()
    ids = torch.tensor([[2, 5, 6, 3], [2, 7, 8, 3]])
    with torch.no_grad():
        torch.testing.assert_close(adapted(input_ids=ids).logits, merged(input_ids=ids).logits, atol=1e-6, rtol=1e-5)
    # the body moved only where it was adapted; the head learnt
    before, after = load_file(base / "model.safetensors"), load_file(run.folder / "model.safetensors")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    places = ("query.weight", "key.weight", "value.weight", "attention.output.dense.weight")
    assert {name for name in moved if name.startswith("roformer.")} == {
        name for name in before if name.endswith(places)
    }
    assert any(name.startswith("classifier.") for name in moved)
    assert run.facts.num_parameters == sum(value.numel() for value in before.values())


@needs_peft
def test_an_adapted_run_resumes_to_the_same_bits(settings, base, tmp_path):
    whole = finetune(*settings(single(), base_model=str(base), **LORA))
    cut = tmp_path / "cut"
    cut.mkdir()
    shutil.copytree(whole.folder / "checkpoint-4", cut / "checkpoint-4")
    changes = {"output_dir": str(cut), "resume_from_checkpoint": "true"}
    finetune(*settings(single(), base_model=str(base), **LORA, **changes))
    last = [checkpoints_in(folder)[-1] for folder in (whole.folder, cut)]
    assert last[0].name == last[1].name != "checkpoint-4"
    parts = equal_parts(*last)
    assert all(parts.values()), parts


@needs_peft
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_checkpoint_of_an_adapter_is_counted_without_the_network_it_adapts(tmp_path):
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    model = get_peft_model(classifier(), LoraConfig(r=2, target_modules=["query"], modules_to_save=["classifier"]))
    trainer = ResumableTrainer(model, RunArguments(str(tmp_path), use_cpu=True, **NO_EVALUATION))
    written = get_peft_model_state_dict(model).values()
    assert trainer.checkpoint_bytes() == sum(4 * tensor.numel() for tensor in written)


@needs_peft
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize(
    "told",
    [
        {"target_modules": ["word_embeddings", "token_type_embeddings"]},
        {"target_modules": ["query"], "trainable_token_indices": {"word_embeddings": [5, 6]}},
        {"target_modules": ["query"], "modules_to_save": ["word_embeddings"]},
    ],
    ids=["low rank", "some tokens", "whole"],
)
@pytest.mark.parametrize("facts", [{}, {"norm_type": "rms_norm", "use_bias": False}, {"attention_kind": "linear"}])
def test_an_adapter_around_the_embeddings_is_read_learns_and_comes_back(told, facts, tmp_path):
    from peft import LoraConfig, PeftModel, get_peft_model

    ids, mask = torch.tensor([[2, 5, 6, 3], [2, 7, 99, -1]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    torch.manual_seed(0)
    adapted = get_peft_model(classifier(**facts), LoraConfig(r=2, task_type="SEQ_CLS", **told))
    adapted(input_ids=ids, attention_mask=mask, labels=torch.tensor([0, 1])).loss.backward()
    moved = [(name, value) for name, value in adapted.named_parameters() if value.requires_grad]
    assert any("embeddings" in name and value.grad is not None for name, value in moved)
    with torch.no_grad():
        for _, value in moved:
            value += torch.randn_like(value) * 0.1
        wanted = adapted.eval()(input_ids=ids, attention_mask=mask).logits
        adapted.save_pretrained(tmp_path)
        torch.manual_seed(0)
        again = PeftModel.from_pretrained(classifier(**facts), tmp_path).eval()
        torch.testing.assert_close(again(input_ids=ids, attention_mask=mask).logits, wanted)
        plain = again.merge_and_unload().eval()
        torch.testing.assert_close(plain(ids, attention_mask=mask).logits, wanted, atol=1e-6, rtol=1e-5)
    with pytest.raises(ValueError, match="input_ids holds 99, but vocab_size is 20"):
        adapted(input_ids=ids)


@needs_peft
def test_adapting_needs_a_trained_network_and_no_freezing(settings):
    with pytest.raises(ValueError, match="lora adapts a trained network: give base_model"):
        finetune(*settings(single(), lora={}))
    with pytest.raises(ValueError, match="lora keeps the whole body as it is"):
        settings(single(), lora={}, freeze_layers=1)


# freezing


def test_what_is_named_does_not_learn_and_the_rest_does():
    model = classifier()
    everything = learning(model)
    frozen = freeze(model, ["embeddings", "layer.1.attention"])
    assert learning(model) == everything - set(frozen)
    assert {name.split(".attention.")[0] for name in frozen} == {
        "roformer.encoder.layer.1",
        *(f"roformer.embeddings.{name}" for name in ("word_embeddings.weight", "token_type_embeddings.weight")),
        *(f"roformer.embeddings.LayerNorm.{name}" for name in ("weight", "bias")),
    }


def test_frozen_layers_are_those_next_to_the_input_and_the_embeddings():
    model = classifier()
    freeze(model, layers=1)
    assert all(name.startswith(("roformer.encoder.layer.1.", "classifier.")) for name in learning(model))


def test_parts_that_are_not_there_and_freezing_all_are_refused():
    with pytest.raises(ValueError, match=r"freeze names embedings, .* nearest part is"):
        freeze(classifier(), ["embedings"])
    with pytest.raises(ValueError, match="freeze_layers is 3, and the model has 2 layers"):
        freeze(classifier(), layers=3)
    with pytest.raises(ValueError, match="leave nothing to train"):
        freeze(classifier(), ["roformer", "classifier"])


def test_a_frozen_part_is_the_same_after_a_run(settings, base):
    changes = {"base_model": str(base), "model_config": None, "num_train_epochs": 1, "freeze": ["roformer"]}
    run = finetune(*settings(single(), **changes))
    before, after = load_file(base / "model.safetensors"), load_file(run.folder / "model.safetensors")
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"classifier"}


# rates and weight decay


def rates(model, decay):
    optimizer = torch.optim.AdamW([{"params": list(model.parameters()), "weight_decay": 0.1}], lr=1.0)
    decay_by_layer(optimizer, model, decay)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"]}, optimizer


def test_the_rate_falls_from_the_head_to_the_embeddings():
    told, optimizer = rates(classifier(), 0.5)
    assert set(told) == {name for name, _ in classifier().named_parameters()}
    assert told["classifier.out_proj.weight"] == 1.0
    assert told["roformer.encoder.layer.1.output.dense.bias"] == 0.5
    assert told["roformer.encoder.layer.0.attention.self.query.weight"] == 0.25
    assert told["roformer.embeddings.word_embeddings.weight"] == told["roformer.embeddings_project.weight"] == 0.125
    assert optimizer.param_groups[0]["lr"] == 1.0
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1}


def test_a_model_without_a_head_and_one_of_another_family_have_depths_too():
    bare, _ = rates(HFRoFormerModel(HFRoFormerConfig(**TWO_LAYERS)), 0.5)
    assert bare["embeddings.word_embeddings.weight"] == 0.125
    shape = {name: value for name, value in TWO_LAYERS.items() if name != "embedding_size"}
    bert, _ = rates(BertForSequenceClassification(BertConfig(**shape)), 0.5)
    assert bert["bert.embeddings.word_embeddings.weight"] == 0.125
    assert bert["bert.pooler.dense.weight"] == bert["classifier.weight"] == 1.0
    assert depth_of("base_model.model.roformer.encoder.layer.1.x.lora_A.default.weight", "roformer.", 2) == 2


def test_the_trainer_takes_the_decay_and_logs_the_heads_rate(settings):
    run = finetune(*settings(single(), layer_lr_decay=0.5, num_train_epochs=1, lr_scheduler_type="constant"))
    state = torch.load(checkpoints_in(run.folder)[-1] / "optimizer.pt", weights_only=True)
    # one layer: head, layer, embeddings
    assert sorted({group["lr"] for group in state["param_groups"]}) == [0.005, 0.01, 0.02]
    log = json.loads((run.folder / "trainer_state.json").read_text())["log_history"]
    assert {entry["learning_rate"] for entry in log if "learning_rate" in entry} == {0.02}
    with pytest.raises(ValueError, match=r"layer_lr_decay is 1\.5; it must be above 0"):
        settings(single(), layer_lr_decay=1.5)


@pytest.mark.parametrize(
    "kind", [HFRoFormerForSequenceClassification, HFRoFormerForTokenClassification, HFRoFormerForMaskedLM]
)
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_weight_decay_touches_matrices_alone(kind, norm, tmp_path):
    model = kind(HFRoFormerConfig(**TWO_LAYERS, norm_type=norm))
    decayed = set(
        Trainer(model, RunArguments(str(tmp_path), use_cpu=True, **NO_EVALUATION)).get_decay_parameter_names(model)
    )
    assert decayed == {name for name, weight in model.named_parameters(remove_duplicate=False) if weight.ndim > 1}


# early stopping


def test_a_run_stops_after_so_many_evaluations_without_a_better_one(settings):
    task, training = settings(single(), early_stopping_patience=2, num_train_epochs=9, learning_rate=1e-60)
    # a resumed run goes on counting
    assert training.restore_callback_states_from_checkpoint
    run = finetune(task, training)
    steps = run.facts.trained_steps / run.facts.best_step
    assert steps == 3
    with pytest.raises(ValueError, match=r"early_stopping_patience is 1; .* needs load_best_model_at_end"):
        settings(single(), early_stopping_patience=1, load_best_model_at_end=False)
