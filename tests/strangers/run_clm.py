"""Teach a model to write on, with smoothed labels, as someone does who knows the library's run_clm.

$ python run_clm.py FOLDER OUTPUT
"""

import json
import sys

from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    default_data_collator,
    pipeline,
    set_seed,
)

folder, output = sys.argv[1:]
set_seed(0)
order = "天地玄黄宇宙洪荒日月盈昃"
raw = Dataset.from_dict({"text": [(order[i:] + order * 2)[:16] for i in range(len(order))] * 2})
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def tokenize(examples):
    inputs = tokenizer(examples["text"], add_special_tokens=False)
    return {**inputs, "labels": [list(ids) for ids in inputs["input_ids"]]}


data = raw.map(tokenize, batched=True, remove_columns="text")
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output,
        max_steps=60,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        label_smoothing_factor=0.1,
        logging_steps=20,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=data,
    processing_class=tokenizer,
    data_collator=default_data_collator,
)
trainer.train()
trainer.save_model()

write = pipeline("text-generation", output, trust_remote_code=True)
options = {"do_sample": False, "max_new_tokens": 6, "add_special_tokens": False, "return_full_text": False}
prompts = [order[:3], order[2:4], order[1:5]]
alone = [write(prompt, **options)[0]["generated_text"].replace(" ", "") for prompt in prompts]
together = [row[0]["generated_text"].replace(" ", "") for row in write(prompts, batch_size=3, **options)]
hits = [text == order[order.index(prompt[-1]) + 1 :][:6] for prompt, text in zip(prompts, alone, strict=True)]
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
with open(f"{output}/told.json", "w") as file:
    told = {"losses": [losses[0], losses[-1]], "score": sum(hits) / len(hits)}
    json.dump({**told, "difference": float(alone != together)}, file)
