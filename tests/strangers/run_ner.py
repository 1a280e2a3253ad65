"""Fine-tune a tagger of names, as someone does who knows the library's run_ner.

$ python run_ner.py FOLDER OUTPUT
"""

import json
import sys

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Sequence
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

folder, output = sys.argv[1:]
set_seed(0)
names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
people, places = ["张三", "李四", "王小明"], ["北京", "上海", "哈尔滨"]


def tagged(person, place):
    tokens = [*person, "住", "在", *place, "Street", "。"]
    tags = ["B-PER", *["I-PER"] * (len(person) - 1), "O", "O", "B-LOC", *["I-LOC"] * (len(place) - 1), "O", "O"]
    return {"tokens": tokens, "ner_tags": [names.index(tag) for tag in tags]}


rows = [tagged(person, place) for person in people for place in places]
raw = Dataset.from_list(rows).cast_column("ner_tags", Sequence(ClassLabel(names=names)))
tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, add_prefix_space=True, trust_remote_code=True)
model = AutoModelForTokenClassification.from_pretrained(
    folder,
    num_labels=len(names),
    id2label=dict(enumerate(names)),
    label2id={name: number for number, name in enumerate(names)},
    trust_remote_code=True,
)


def tokenize_and_align_labels(examples):
    inputs = tokenizer(examples["tokens"], truncation=True, is_split_into_words=True)
    inputs["labels"] = []
    for i, tags in enumerate(examples["ner_tags"]):
        word_ids, labels = inputs.word_ids(batch_index=i), []
        for before, word in zip([None, *word_ids[:-1]], word_ids, strict=True):
            labels.append(-100 if word is None or word == before else tags[word])
        inputs["labels"].append(labels)
    return inputs


data = raw.map(tokenize_and_align_labels, batched=True, remove_columns=raw.column_names)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output,
        num_train_epochs=25,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_strategy="epoch",
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=data,
    processing_class=tokenizer,
    data_collator=DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=8),
)
trainer.train()
trainer.save_model()
predictions, labels, _ = trainer.predict(data)
right = (predictions.argmax(-1) == labels)[labels != -100]

text = "李四住在哈尔滨Street。王小明住在上海。"
tag = pipeline("token-classification", output, aggregation_strategy="first", trust_remote_code=True)
entities = [(entity["entity_group"], text[entity["start"] : entity["end"]]) for entity in tag(text)]
reloaded = AutoModelForTokenClassification.from_pretrained(output, trust_remote_code=True)
batch = trainer.data_collator([data[i] for i in range(len(data))])
with torch.no_grad():
    difference = np.abs(reloaded(**batch).logits.numpy() - predictions[:, : batch["labels"].shape[1]])
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
with open(f"{output}/told.json", "w") as file:
    told = {"losses": [losses[0], losses[-1]], "score": float(right.mean()), "entities": entities}
    real = batch["attention_mask"].bool().numpy()
    json.dump({**told, "difference": float(difference[real].max())}, file)
