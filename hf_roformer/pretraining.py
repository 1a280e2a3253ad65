"""One pretraining run: texts and a base model, or none, go in; a folder that anyone can load comes out.

The run goes through its stages in one training: one optimizer, one learning-rate schedule. What it reports is measured
on documents that were held out, in tokens that had to be guessed, at several lengths.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import PartialState
from datasets import disable_progress_bars
from torch import Tensor
from transformers import EarlyStoppingCallback, EvalPrediction, PreTrainedTokenizerBase, Trainer, set_seed
from transformers.trainer_utils import EvalLoopOutput

from .arguments import told_settings
from .base_models import num_ids, refuse_foreign_ids, refuse_short_table, table_reaches
from .configuration_roformer import HFRoFormerConfig
from .facts import RunFacts, versions_of
from .figures import draw_curves
from .losses import IGNORED
from .masking import Masking
from .modeling_roformer import HFRoFormerForCausalLM, HFRoFormerForMaskedLM
from .packing import Frame
from .pretraining_arguments import PretrainingArguments, PretrainingRunArguments
from .pretraining_predictions import show
from .pretraining_texts import Documents, load_documents
from .progress import show_progress
from .throughput import watch_throughput
from .token_rows import EvaluationRows, HeldBatches, Plan, Reading, Shaping, StreamedBatches, TokenStore, collate
from .trainer import holding
from .training import (
    PACKAGES,
    ClearAtStart,
    LayerwiseTrainer,
    Run,
    check_output_folder,
    last_words,
    refuse_unknown_fields,
)
from .vocabularies import build_tokenizer, check_tokenizer

HEADS: dict[str, Any] = {"masked_lm": HFRoFormerForMaskedLM, "causal_lm": HFRoFormerForCausalLM}
AUTO_CLASSES = {"masked_lm": "AutoModelForMaskedLM", "causal_lm": "AutoModelForCausalLM"}
METRICS = ("loss", "accuracy", "perplexity")
# beyond it the exponent has no float
LARGEST_LOSS = 700.0


# the model


def build_config(told: PretrainingArguments, tokenizer: PreTrainedTokenizerBase) -> HFRoFormerConfig:
    """Read the base model's config, or make one; it says for which length the run trains."""
    given = dict(told.model_config or {})
    told_attention: dict[str, Any] = (
        {"attn_implementation": told.attn_implementation} if told.attn_implementation else {}
    )
    if told.base_model is None:
        refuse_unknown_fields(given, HFRoFormerConfig())
        facts = {"vocab_size": num_ids(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        facts["max_position_embeddings"] = told.longest
        config = HFRoFormerConfig(**{**facts, **given, **told_attention})
    else:
        place: dict[str, Any] = {"revision": told.base_model_revision or "main"}
        refuse_unknown_fields(given, HFRoFormerConfig.from_pretrained(told.base_model, **place))
        config = HFRoFormerConfig.from_pretrained(told.base_model, **place, **given, **told_attention)
        if config.position_kind != "learned":
            config.max_position_embeddings = max(config.max_position_embeddings, told.longest)
    refuse_short_table(config, max(told.longest, *(told.eval_lengths or (1,))))
    if told.objective == "causal_lm":
        config.bos_token_id, config.eos_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    return config


def build_model(told: PretrainingArguments, tokenizer: PreTrainedTokenizerBase) -> Any:
    """Load the base model under the objective's head, or start a network from nothing."""
    config, head = build_config(told, tokenizer), HEADS[told.objective]
    if told.base_model is None:
        model = head._from_config(config, attn_implementation=told.attn_implementation)
    else:
        model = head.from_pretrained(told.base_model, config=config, revision=told.base_model_revision or "main")
    refuse_foreign_ids(tokenizer, model.get_input_embeddings().num_embeddings)
    model.logits_of_labels_only = True
    return model


def build_shaping(told: PretrainingArguments, tokenizer: PreTrainedTokenizerBase, seed: int) -> Shaping:
    """Say what stands around the pieces of a row and what is masked in it."""
    masked = told.objective == "masked_lm"
    frame = Frame(tokenizer.cls_token_id, tokenizer.sep_token_id if masked else None, tokenizer.pad_token_id)
    if not masked:
        return Shaping(frame, None, seed)
    fixed = np.array(sorted(set(tokenizer.all_special_ids)))
    drawn = np.array(sorted(set(tokenizer.get_vocab().values()) - set(fixed.tolist())))
    masking = Masking(
        share=told.mask_share,
        mask=tokenizer.mask_token_id,
        fixed=fixed,
        drawn=drawn,
        spans=told.mask_spans,
        stop=told.span_stop,
        longest=told.longest_span,
    )
    return Shaping(frame, masking, seed)


# the trainer


def score_rows(logits: Any, labels_BL: Tensor, *, causal: bool) -> Tensor:
    """Reduce scores to what counts of each row: the sum of its losses, its right guesses, its labels, [B, 3].

    logits: those of labelled tokens alone, or of all; see `logits_of_labels_only`.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    targets_BL = F.pad(labels_BL[:, 1:], (0, 1), value=IGNORED) if causal else labels_BL
    labelled_BL = targets_BL != IGNORED
    logits_TV = (logits[labelled_BL] if logits.dim() == 3 else logits).float()
    targets_T, rows_T = targets_BL[labelled_BL], labelled_BL.nonzero()[:, 0]
    losses_T = F.cross_entropy(logits_TV, targets_T, reduction="none")
    counted_T3 = torch.stack((losses_T, (logits_TV.argmax(-1) == targets_T).float(), torch.ones_like(losses_T)), dim=1)
    return counted_T3.new_zeros(len(labels_BL), 3).index_add_(0, rows_T, counted_T3)


def compute_metrics(answers: EvalPrediction) -> dict[str, float]:
    """Add rows up to the mean over tokens."""
    loss, right, count = np.asarray(answers.predictions, np.float64).sum(axis=0)
    loss, right = loss / max(count, 1), right / max(count, 1)
    return {"mean_loss": loss, "accuracy": right, "perplexity": math.exp(min(loss, LARGEST_LOSS))}


class PretrainingTrainer(LayerwiseTrainer):
    """Train by a plan, and give the loss of an evaluation as the mean over its tokens."""

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        # the library switches it off in the config, which would be saved so
        self._keeps_cache = model.config.use_cache
        super().__init__(model, *args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save a config that says of the cache what it said before the training."""
        config: Any = self.accelerator.unwrap_model(self.model).config
        while_training, config.use_cache = config.use_cache, self._keeps_cache
        super().save_model(*args, **kwargs)
        config.use_cache = while_training

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Put the mean over all tokens in the place of the mean over batches."""
        output = super().evaluation_loop(*args, **kwargs)
        for name in [name for name in output.metrics if name.endswith("_mean_loss")]:
            output.metrics[name.replace("_mean_loss", "_loss")] = output.metrics.pop(name)
        return output


def _settle(told: PretrainingArguments, training: PretrainingRunArguments) -> Plan:
    """Turn the schedule into what the Trainer reads, and refuse what cannot be trained so."""
    if training.n_gpu > 1:
        raise ValueError(
            f"one process would drive {training.n_gpu} devices and cut batches up: start one process each, by "
            "`accelerate launch scripts/pretrain.py ...`"
        )
    if training.label_smoothing_factor:
        raise ValueError(
            "label_smoothing_factor reads the scores of every token, which are not formed here: leave it out"
        )
    if training.max_steps > told.total_steps:
        raise ValueError(f"max_steps is {training.max_steps}, and the schedule's stages take {told.total_steps} steps")
    if training.max_steps <= 0:
        training.max_steps = told.total_steps
    if (training.metric_for_best_model or "loss").removeprefix("eval_") not in ("loss", "accuracy"):
        raise ValueError(f"metric_for_best_model is {training.metric_for_best_model}: choose loss or accuracy")
    training.train_sampling_strategy = "sequential"
    # every process reads the stream itself and takes its share of it
    sharing: Any = training.accelerator_config
    sharing.dispatch_batches = False
    return Plan(told.stages, training.world_size * training.gradient_accumulation_steps)


def _batches(
    told: PretrainingArguments, documents: Documents, tokenizer: PreTrainedTokenizerBase, plan: Plan, shaping: Shaping
) -> tuple[HeldBatches | StreamedBatches, dict[str, Any]]:
    """Return what to train on, and what was counted of it."""
    reading = Reading(told, tokenizer)
    if told.streaming:
        return StreamedBatches(documents.train, reading, plan, shaping, told.shuffle_buffer), {}
    store = TokenStore.of(reading.read(documents.train()))
    return HeldBatches(store, plan, shaping), reading.report("training")


def build_trainer(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    batches: HeldBatches | StreamedBatches,
    held_out: EvaluationRows,
    told: PretrainingArguments,
    training: PretrainingRunArguments,
) -> PretrainingTrainer:
    """Join model, data and metrics."""
    causal = told.objective == "causal_lm"
    trainer = PretrainingTrainer(
        model,
        training,
        data_collator=collate,
        train_dataset=batches,
        eval_dataset=held_out,
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=lambda logits, labels: score_rows(logits, labels, causal=causal),
        callbacks=[ClearAtStart(told, training)],
    )
    if training.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(training.early_stopping_patience))
    show_progress(trainer)
    watch_throughput(trainer)
    return trainer


# what is left behind


def _save(trainer: Trainer) -> Path:
    folder = Path(str(trainer.args.output_dir))
    # a push waits until the whole folder is on the disk
    trainer.save_model(_internal_call=True)
    trainer.save_state()
    if trainer.is_world_process_zero():
        # a pickle of every argument, which may hold a token
        (folder / "training_args.bin").unlink(missing_ok=True)
        title = f"{folder.name}, seed {trainer.args.seed}"
        shown = [{k: v for k, v in entry.items() if k != "eval_perplexity"} for entry in trainer.state.log_history]
        draw_curves(shown, folder / "curves.png", title=title, best_step=trainer.state.best_global_step)
    return folder


def measure(trainer: Trainer, store: TokenStore, lengths: Sequence[int], shaping: Shaping) -> dict[str, Any]:
    """Score held-out documents at several lengths; `piece` is how many tokens one saw of its document on average."""
    found = {}
    for length in lengths:
        rows = EvaluationRows(store, length, shaping)
        scores = trainer.evaluate(rows, metric_key_prefix="validation")
        found[f"validation at {length}"] = {
            **{name: scores[f"validation_{name}"] for name in METRICS},
            "tokens of a piece": rows.mean_piece,
        }
    return found


def _throughput(trainer: Trainer) -> dict[str, Any]:
    """Return what was logged last: of the whole training, if it took a step at all."""
    names = ("tokens_per_second", "padding_share")
    known = [{name: log[name] for name in names} for log in trainer.state.log_history if names[0] in log]
    return known[-1] if known else {}


def _provenance(told: PretrainingArguments, training: PretrainingRunArguments) -> dict[str, Any]:
    return {
        "model_name": training.hub_model_id or Path(str(training.output_dir)).name,
        "problem": told.objective,
        "base_model": told.base_model,
        "recipe": told_settings(told, training),
        "seed": training.seed,
        "versions": versions_of(PACKAGES),
        "language": told.language,
        "license": told.license,
    }


def _results(trainer: Trainer, store: TokenStore, told: PretrainingArguments, shaping: Shaping) -> dict[str, Any]:
    """Score what was held out, with the network that is kept."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    lengths = [length for length in told.lengths_to_measure if table_reaches(model.config, length)]
    return {
        "metrics": measure(trainer, store, lengths, shaping),
        "num_parameters": model.num_parameters(),
        "best_step": trainer.state.best_global_step,
        "trained_steps": trainer.state.global_step,
    }


def pretrain(told: PretrainingArguments, training: PretrainingRunArguments) -> Run:
    """Train, save and measure as the settings say; all but the card and the results is then in the folder."""
    check_output_folder(told, training)
    if not PartialState().is_main_process:
        disable_progress_bars()
    provenance = _provenance(told, training)
    plan = _settle(told, training)
    set_seed(training.seed)
    documents = load_documents(told)
    tokenizer = build_tokenizer(told, documents.train())
    check_tokenizer(told, tokenizer)
    model = build_model(told, tokenizer)
    shaping = build_shaping(told, tokenizer, training.seed)
    reading = Reading(told, tokenizer)
    store = TokenStore.of(reading.read(documents.validation))
    counted = {"validation": reading.report("validation")}
    batches, counted["train"] = _batches(told, documents, tokenizer, plan, shaping)
    trainer = build_trainer(model, tokenizer, batches, EvaluationRows(store, told.longest, shaping), told, training)
    with holding(training):
        outcome = trainer.train(resume_from_checkpoint=training.resume_target)
        folder = _save(trainer)
        with trainer.as_trained():
            results = _results(trainer, store, told, shaping)
            results["predictions"] = show(told, model, tokenizer, documents.validation)
    results["data"] = {**documents.facts, "counted": counted, **_throughput(trainer)}
    facts = RunFacts(**provenance, **results, train_seconds=outcome.metrics["train_runtime"])
    return Run(folder, facts, AUTO_CLASSES[told.objective])


def farewell(run: Run) -> str:
    """Tell what was reached, what a few held-out texts look like to the network, and how to load it."""
    speed = run.facts.data.get("tokens_per_second")
    told = [] if speed is None else [f"{speed:.0f} tokens a second"]
    told += ["", "Held-out texts: guessed | right, text"]
    told += [f"  {shown['predicted']} | {shown['label']}, {shown['text']}" for shown in run.facts.predictions]
    return last_words(run, told)


__all__ = ["PretrainingTrainer", "farewell", "measure", "pretrain", "score_rows"]
