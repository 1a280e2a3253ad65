"""A training tells how many tokens it reads in a second and how much of its batches is padding."""

import json
import time

import pytest
from conftest import trainer_of
from datasets import Dataset
from transformers import TrainingArguments

from hf_roformer import HFRoFormerConfig, HFRoFormerForSequenceClassification
from hf_roformer.arguments import read_settings
from hf_roformer.sharing import SharedBatches
from hf_roformer.throughput import Throughput

LENGTHS = [1, 2, 3, 4, 5, 6, 7, 30]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture
def train(tmp_path):
    """Train on texts of known lengths, in their order, and return the trainer."""
    held = [{"text": "天" * 3, "label": "a"}, {"text": "地" * 9, "label": "b"}]
    rows = [{"text": "天地"[number % 2] * length, "label": "ab"[number % 2]} for number, length in enumerate(LENGTHS)]
    (tmp_path / "held.json").write_text(json.dumps(held), encoding="utf-8")
    (tmp_path / "rows.json").write_text(json.dumps(rows), encoding="utf-8")

    def train(slow=0.0, **changes):
        recipe = {
            "model_config": SHAPE,
            "vocabulary_min_count": 1,
            "train_file": str(tmp_path / "rows.json"),
            "validation_file": str(tmp_path / "held.json"),
            "test_file": str(tmp_path / "held.json"),
            "output_dir": str(tmp_path / "run"),
            "num_train_epochs": 2,
            "per_device_train_batch_size": 4,
            "train_sampling_strategy": "sequential",
            "logging_steps": 1,
            "save_strategy": "no",
            "load_best_model_at_end": False,
            "use_cpu": True,
            "disable_tqdm": True,
            **changes,
        }
        (tmp_path / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
        task, training = read_settings([str(tmp_path / "recipe.yaml")])
        trainer, _ = trainer_of(task, training)
        score = trainer.compute_metrics
        trainer.compute_metrics = lambda evaluation: (time.sleep(slow), score(evaluation))[1]
        trainer.train()
        return trainer

    return train


def logged(trainer, key):
    return [log[key] for log in trainer.state.log_history if key in log]


def test_padding_is_told_for_each_log_and_for_the_run(train):
    trainer = train()
    # two special tokens a text; batches of 4, filled to 6 and to 32
    padding = [1 - (1 + 2 + 3 + 4 + 8) / (4 * 6), 1 - (5 + 6 + 7 + 30 + 8) / (4 * 32)]
    whole = 1 - (sum(LENGTHS) + 16) / (4 * 6 + 4 * 32)
    assert logged(trainer, "padding_share") == pytest.approx([*padding, *padding, whole], abs=1e-4)


def test_tokens_a_second_leave_the_time_of_evaluation_out(train):
    trainer = train(slow=0.5)
    counter = trainer.callback_handler.callbacks[0]
    assert isinstance(counter, Throughput)
    runtime = logged(trainer, "train_runtime")[0]
    assert runtime > 1
    assert counter.whole.seconds < runtime - 0.9
    tokens = 2 * (sum(LENGTHS) + 16)
    assert logged(trainer, "tokens_per_second")[-1] == pytest.approx(tokens / counter.whole.seconds, rel=1e-3)
    # what is read after the training is not counted
    before = int(counter.whole.real)
    trainer.evaluate()
    assert int(counter.whole.real) == before == tokens


@pytest.mark.filterwarnings("ignore:.*use_reentrant.*")
def test_gradient_checkpointing_changes_no_loss(train):
    losses = logged(train(num_train_epochs=3), "loss")
    saving = train(num_train_epochs=3, gradient_checkpointing=True)
    assert any(getattr(module, "gradient_checkpointing", False) for module in saving.model.modules())
    assert logged(saving, "loss") == pytest.approx(losses, abs=1e-6)


def test_rows_of_like_length_share_batches_from_a_checkpoint_on_unless_told_otherwise():
    def order(*words):
        return read_settings(["configs/quickstart.yaml", "--use_cpu", *words])[1]

    assert order().sampling(from_checkpoint=True) == "group_by_length"
    assert order().sampling(from_checkpoint=False) == "random"
    assert order("--train_sampling_strategy", "random").sampling(from_checkpoint=True) == "random"


def test_rows_are_grouped_by_a_length_that_the_model_does_not_read(tmp_path, tiny):
    lengths = [37 * number % 512 for number in range(512)]
    rows = Dataset.from_dict({"input_ids": [[1, 2]] * 512, "labels": [0] * 512, "length": lengths})
    told = {"train_sampling_strategy": "group_by_length", "per_device_train_batch_size": 8, "report_to": "none"}
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, dataloader_pin_memory=False, **told)
    model = HFRoFormerForSequenceClassification(HFRoFormerConfig(**tiny))
    batches = SharedBatches(model=model, args=arguments, train_dataset=rows).get_train_dataloader().batch_sampler
    spans = [max(lengths[row] for row in batch) - min(lengths[row] for row in batch) for batch in batches]
    # eight lengths drawn from 512 span some 400; of 128 that were sorted, 32
    assert sum(spans) / len(spans) < 80
