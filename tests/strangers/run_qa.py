"""Fine-tune answers from a text, as someone does who knows the library's run_qa.

$ python run_qa.py FOLDER OUTPUT
"""

import json
import sys

import numpy as np
from datasets import Dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    default_data_collator,
    pipeline,
    set_seed,
)

folder, output = sys.argv[1:]
set_seed(0)
max_seq_length, doc_stride = 24, 8
answers, fillers = ["天地人", "日月星"], "甲乙丙丁戊己庚辛壬癸"
rows = []
for number in range(24):
    answer, at = answers[number % 2], number % 9
    letters = (fillers[number % 10 :] + fillers) * 2
    context = letters[: at + 4] + answer + letters[at : at + 16]
    rows.append({"question": "何在？", "context": context, "answers": {"text": [answer], "answer_start": [at + 4]}})
raw = Dataset.from_list(rows)
tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, trust_remote_code=True)
model = AutoModelForQuestionAnswering.from_pretrained(folder, trust_remote_code=True)


def prepare_train_features(examples):
    inputs = tokenizer(
        examples["question"],
        examples["context"],
        truncation="only_second",
        max_length=max_seq_length,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length",
    )
    samples, offsets = inputs.pop("overflow_to_sample_mapping"), inputs.pop("offset_mapping")
    inputs["start_positions"], inputs["end_positions"] = [], []
    for i, spans in enumerate(offsets):
        cls_index = inputs["input_ids"][i].index(tokenizer.cls_token_id)
        sequence_ids, told = inputs.sequence_ids(i), examples["answers"][samples[i]]
        start = told["answer_start"][0]
        end = start + len(told["text"][0])
        own = [column for column, sequence in enumerate(sequence_ids) if sequence == 1]
        first, last = spans[own[0]][0], spans[own[-1]][1]
        if first > start or last < end:
            inputs["start_positions"].append(cls_index)
            inputs["end_positions"].append(cls_index)
        else:
            inputs["start_positions"].append(next(c for c in own if spans[c][1] > start))
            inputs["end_positions"].append(next(c for c in reversed(own) if spans[c][0] < end))
    return inputs


data = raw.map(prepare_train_features, batched=True, remove_columns=raw.column_names)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output,
        num_train_epochs=16,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        logging_strategy="epoch",
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=data,
    eval_dataset=data,
    processing_class=tokenizer,
    data_collator=default_data_collator,
)
trainer.train()
trainer.save_model()
start_logits, end_logits = trainer.predict(data).predictions
labels = np.array([data["start_positions"], data["end_positions"]])
right = (np.array([start_logits.argmax(-1), end_logits.argmax(-1)]) == labels).all(axis=0)

ask = pipeline("question-answering", output, trust_remote_code=True)
reading = {"max_seq_len": max_seq_length, "doc_stride": doc_stride}
found = ask([{key: row[key] for key in ("question", "context")} for row in rows], batch_size=5, **reading)
hits = [answer["answer"] == row["answers"]["text"][0] for answer, row in zip(found, rows, strict=True)]
whole = ask.model(**tokenizer("何在？", rows[0]["context"][:12], return_tensors="pt"))
alone = model.eval()(**tokenizer("何在？", rows[0]["context"][:12], return_tensors="pt"))
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
with open(f"{output}/told.json", "w") as file:
    told = {"losses": [losses[0], losses[-1]], "score": float(right.mean()), "hits": float(np.mean(hits))}
    json.dump({**told, "difference": float((whole.start_logits - alone.start_logits).abs().max())}, file)
