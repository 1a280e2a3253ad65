"""Fine-tune a classifier, as someone does who knows the library's run_glue and has a folder to start from.

$ python run_glue.py FOLDER OUTPUT
"""

import json
import sys

import numpy as np
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

folder, output = sys.argv[1:]
set_seed(0)
names, things = ["差评", "好评"], ["这本书写得", "那家店的菜", "房间的窗", "老板的话", "今天的天气"]
words = ["很差", "太坏了", "真难看"], ["很好", "太美了", "真香"]
rows = [(thing, word, label) for label in (0, 1) for word in words[label] for thing in things]
columns = zip(("sentence1", "sentence2", "label"), zip(*rows, strict=True), strict=True)
raw = Dataset.from_dict({name: list(values) for name, values in columns})
raw = raw.train_test_split(test_size=6, seed=0)

config = AutoConfig.from_pretrained(
    folder, num_labels=2, id2label=dict(enumerate(names)), label2id={"差评": 0, "好评": 1}, trust_remote_code=True
)
tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, trust_remote_code=True)
model = AutoModelForSequenceClassification.from_pretrained(folder, config=config, trust_remote_code=True)


def preprocess(examples):
    return tokenizer(examples["sentence1"], examples["sentence2"], truncation=True, max_length=32)


def compute_metrics(p):
    return {"accuracy": float((np.argmax(p.predictions, axis=1) == p.label_ids).mean())}


data = raw.map(preprocess, batched=True)
args = TrainingArguments(
    output,
    num_train_epochs=20,
    per_device_train_batch_size=8,
    learning_rate=5e-3,
    logging_strategy="epoch",
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=1,
    load_best_model_at_end=True,
    metric_for_best_model="accuracy",
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=data["train"],
    eval_dataset=data["test"],
    processing_class=tokenizer,
    data_collator=DataCollatorWithPadding(tokenizer),
    compute_metrics=compute_metrics,
)
trainer.train()
trainer.save_model()
trainer.save_state()
trainer.save_metrics("eval", trainer.evaluate())
trainer.create_model_card(tasks="text-classification", finetuned_from=folder)
logits = trainer.predict(data["test"]).predictions

classify = pipeline("text-classification", output, trust_remote_code=True)
pairs = [{"text": row["sentence1"], "text_pair": row["sentence2"]} for row in raw["test"]]
again = classify(pairs, top_k=None, batch_size=4, function_to_apply="none")
found = np.array([[{s["label"]: s["score"] for s in scores}[name] for name in names] for scores in again])
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
with open(f"{output}/told.json", "w") as file:
    told = {"losses": [losses[0], losses[-1]], "score": trainer.state.best_metric}
    json.dump({**told, "difference": float(np.abs(found - logits).max())}, file)
