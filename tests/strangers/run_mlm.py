"""Go on with pretraining on texts, as someone does who knows the library's run_mlm.

$ python run_mlm.py FOLDER OUTPUT
"""

import json
import math
import sys
from itertools import chain

import torch
from datasets import Dataset
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

folder, output = sys.argv[1:]
set_seed(0)
block_size, order = 16, "天地玄黄宇宙洪荒日月盈昃辰宿列张"
raw = Dataset.from_dict({"text": [order[i:] + order[:i] for i in range(len(order))] * 4})
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True)
if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
    model.resize_token_embeddings(len(tokenizer))


def group_texts(examples):
    joined = {k: list(chain(*examples[k])) for k in examples}
    length = len(joined["input_ids"]) // block_size * block_size
    return {k: [values[i : i + block_size] for i in range(0, length, block_size)] for k, values in joined.items()}


data = raw.map(lambda rows: tokenizer(rows["text"], return_special_tokens_mask=True), batched=True)
data = data.remove_columns("text").map(group_texts, batched=True)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output,
        max_steps=300,
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        logging_steps=50,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=data,
    eval_dataset=data,
    processing_class=tokenizer,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3),
)
trainer.train()
trainer.save_model()
perplexity = math.exp(trainer.evaluate()["eval_loss"])

fill = pipeline("fill-mask", output, trust_remote_code=True, top_k=1)
texts = [order[: i + 8][:i] + tokenizer.mask_token + order[i + 1 : i + 9] for i in range(2, 8)]
hits = [fill(text)[0]["token_str"] == order[i] for i, text in enumerate(texts, 2)]
batch = tokenizer(texts, padding=True, return_tensors="pt")
with torch.no_grad():
    difference = (fill.model(**batch).logits - model.eval()(**batch).logits).abs().max()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
with open(f"{output}/told.json", "w") as file:
    told = {"losses": [losses[0], losses[-1]], "score": sum(hits) / len(hits), "perplexity": perplexity}
    json.dump({**told, "difference": float(difference)}, file)
