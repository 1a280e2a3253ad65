"""Fine-tune by a loop that can be read and changed; it learns what scripts/finetune.py learns from the same recipe.

$ python scripts/finetune_accelerate.py configs/quickstart.yaml --output_dir runs/loop
$ accelerate launch --config_file configs/accelerate/cpus.yaml scripts/finetune_accelerate.py configs/quickstart.yaml
"""

import math
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from transformers import get_scheduler

from hf_roformer.adapters import save_and_copy_merged
from hf_roformer.arguments import read_settings
from hf_roformer.fast_matmul import products_of
from hf_roformer.loop import Answers, count_items, prepare_run, start, summed, windows
from hf_roformer.sharing import asks_for_fsdp, holds_rows, inputs_of, refuse_whole_parameters
from hf_roformer.trainer import holding
from hf_roformer.training import end_other_processes

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"


def build_optimizer(model, told):
    # biases and the weights of norms have one dimension, and do not decay
    decaying = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": decaying, "weight_decay": told.weight_decay}, {"params": others, "weight_decay": 0.0}]
    betas = (told.adam_beta1, told.adam_beta2)
    return torch.optim.AdamW(groups, lr=told.learning_rate, betas=betas, eps=told.adam_epsilon, fused=True)


def train_step(accelerator, model, optimizer, window, max_grad_norm):
    """Go once through the batches of a step; the loss is a mean over the items of all of them, in all processes."""
    num_items, total = summed(count_items(window)), 0.0
    for batch in window:
        # gradients of all processes are averaged at the last batch alone
        with nullcontext() if batch is window[-1] else accelerator.no_sync(model):
            loss = model(**inputs_of(batch), num_items_in_batch=num_items).loss * holds_rows(batch)
            # the average over the processes is to be their sum
            accelerator.backward(loss * accelerator.num_processes)
        total += loss.item()
    grad_norm = accelerator.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": summed(total), "grad_norm": float(grad_norm)}


@torch.no_grad()
def evaluate(accelerator, model, run, split, before):
    model.eval()
    answers = Answers(accelerator, run.task)
    for batch in run.eval_loader(accelerator, split):
        answers.add(batch, model(**inputs_of(batch), num_items_in_batch=count_items([batch])))
    model.train()
    return run.score(split, answers, before)


def save(accelerator, model, run, folder):
    # every process has its part in gathering the weights, and one writes
    writes, weights = accelerator.is_main_process, accelerator.get_state_dict(model)
    whole = accelerator.unwrap_model(model)
    plain = save_and_copy_merged(whole, folder, writes=writes)
    plain.save_pretrained(folder, is_main_process=writes, state_dict=weights if plain is whole else None)
    if accelerator.is_main_process:
        run.tokenizer.save_pretrained(folder)
    accelerator.wait_for_everyone()


def train(accelerator, run, told, folder):
    batches = run.train_loader(accelerator)
    steps_in_epoch = math.ceil(len(batches) / told.gradient_accumulation_steps)
    max_steps = told.max_steps if told.max_steps > 0 else math.ceil(told.num_train_epochs * steps_in_epoch)
    model, optimizer = accelerator.prepare(run.model, build_optimizer(run.model, told))
    refuse_whole_parameters(model, asks_for_fsdp())
    warmup = told.get_warmup_steps(max_steps)
    scheduler = get_scheduler(told.lr_scheduler_type, optimizer, warmup, max_steps, told.lr_scheduler_kwargs)
    steps, scored, best, best_step = [], [], None, None
    model.train()
    for epoch in range(math.ceil(max_steps / steps_in_epoch)):
        batches.set_epoch(epoch)
        for window in windows(batches, told.gradient_accumulation_steps):
            rate = scheduler.get_last_lr()[0]
            taken = train_step(accelerator, model, optimizer, window, told.max_grad_norm)
            scheduler.step()
            steps.append({"step": len(steps) + 1, **taken, "learning_rate": rate})
            accelerator.print(steps[-1])
            if len(steps) == max_steps:
                break
        scores = evaluate(accelerator, model, run, "validation", {})
        scored.append({"step": len(steps), **scores})
        accelerator.print(f"epoch {epoch + 1}: {scores}")
        if run.is_better(scores, best):
            best, best_step = scores, len(steps)
            save(accelerator, model, run, folder)
    return {"steps": steps, "scores": scored, "best_step": best_step, "metrics": {"validation": best}}


def main(command_line):
    settings, told = read_settings(command_line, QUICKSTART)
    accelerator, folder = start(told), Path(told.output_dir)
    with holding(told), products_of(settings.cpu_matmul, agree=True):
        run, began = prepare_run(settings, told, accelerator), time.monotonic()
        run.clear(settings)
        learnt = train(accelerator, run, told, folder) | {"seconds": time.monotonic() - began}
        if "test" in run.sets:
            # the test rows are read once, by the network that is kept
            kept = accelerator.prepare(run.reload(folder))
            learnt["metrics"]["test"] = evaluate(accelerator, kept, run, "test", learnt["metrics"])
            accelerator.print(f"test: {learnt['metrics']['test']}")
        end_other_processes()
        run.finish(folder, learnt)


if __name__ == "__main__":
    main(sys.argv[1:])
