"""Adapt each head by LoRA, as peft's own examples do, and save, load and merge it.

$ python run_peft.py FOLDER OUTPUT
"""

import json
import sys

import torch
from peft import AutoPeftModelForSequenceClassification, LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    set_seed,
)

folder, output = sys.argv[1:]
ids = torch.tensor([[2, 7, 8, 9, 3], [2, 9, 8, 7, 3]])
tasks = {
    "SEQ_CLS": (AutoModelForSequenceClassification, "classifier", {"labels": torch.tensor([0, 1])}),
    "TOKEN_CLS": (AutoModelForTokenClassification, "classifier", {"labels": torch.tensor([[0, 1, 0, 1, 0]] * 2)}),
    "QUESTION_ANS": (
        AutoModelForQuestionAnswering,
        "qa_outputs",
        {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([2, 3])},
    ),
    "CAUSAL_LM": (AutoModelForCausalLM, None, {"labels": ids}),
    "masked LM": (AutoModelForMaskedLM, None, {"labels": ids}),
    "FEATURE_EXTRACTION": (AutoModel, None, None),
}


def scores(model):
    with torch.no_grad():
        return model.eval()(input_ids=ids)[0]


def learn(model, labels):
    """Take a few steps on one batch; return the first and the last loss."""
    optimizer, losses = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2), []
    for _ in range(30):
        loss = model.train()(input_ids=ids, **labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [losses[0], losses[-1]]


def adapt(task, targets):
    auto, head, labels = tasks[task]
    set_seed(0)
    base = auto.from_pretrained(folder, trust_remote_code=True)
    kind = getattr(TaskType, task) if hasattr(TaskType, task) else None
    # of any model, peft would adapt these heads too, and then not know how to train them whole
    whole = [head] if task in ("TOKEN_CLS", "QUESTION_ANS") else None
    lora = LoraConfig(task_type=kind, r=2, target_modules=targets, modules_to_save=whole, init_lora_weights=False)
    model = get_peft_model(base, lora)
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    before, losses = scores(model), learn(model, labels) if labels else []
    place, after = f"{output}/{task} {targets}", scores(model)
    model.save_pretrained(place)
    # another head to begin with: the trained one must come out of the file
    set_seed(1)
    again = PeftModel.from_pretrained(auto.from_pretrained(folder, trust_remote_code=True), place)
    told = {"reloaded": scores(again)}
    merged = again.merge_and_unload()
    told["merged"] = scores(merged)
    merged.save_pretrained(f"{place}/merged")
    told["loaded without peft"] = scores(auto.from_pretrained(f"{place}/merged", trust_remote_code=True))
    if task == "SEQ_CLS":
        named = AutoPeftModelForSequenceClassification.from_pretrained(place, trust_remote_code=True)
        told["by the adapter's folder alone"] = scores(named)
    return {
        "differences": {name: float((found - after).abs().max()) for name, found in told.items()},
        "moved": float((after - before).abs().max()),
        "losses": losses,
        "head learns": head is None or any(head in name for name in learning),
        "adapted": sorted({name.split(".lora_")[0] for name in learning if ".lora_" in name}),
    }


choices = [(task, "all-linear") for task in tasks] + [(task, ["query", "value"]) for task in tasks]
with open(f"{output}/told.json", "w") as file:
    json.dump({f"{task}, {targets}": adapt(task, targets) for task, targets in choices}, file)
