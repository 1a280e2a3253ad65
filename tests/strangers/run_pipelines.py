"""Ask every pipeline that a text model has, one text at a time and in batches padded on either side.

$ python run_pipelines.py FOLDERS OUTPUT
"""

import json
import sys

from transformers import pipeline

# of different lengths, with a word that no vocabulary here holds, spaces, capitals and marks
TEXTS = ["张三住在北京。", "ABC公司 的playing李四在哈尔滨，没有𠮷野家！", "好"]
LONG = "王小明住在上海。" * 20
STRATEGIES = ("none", "simple", "first", "average", "max")
LABELS = ["地方", "人", "天气"]
QUESTION = "谁住在北京？"
CONTEXTS = ["张三住在北京，李四住在哈尔滨。" * 6, "王小明住在上海。", "在北京的是ABC公司。" * 3]


def asked_three_ways(pipe, inputs, long, batch_size=2, sides=("left", "right"), **options):
    """Ask one at a time, then in batches with the pads on each side, and something too long."""
    told = {"alone": [pipe(text, **options) for text in inputs]}
    for side in sides:
        pipe.tokenizer.padding_side = side
        told[side] = pipe(inputs, batch_size=batch_size, **options)
    return {**told, "long": pipe(long, **options)}


def fill_mask(folder):
    pipe = pipeline("fill-mask", folder, trust_remote_code=True, top_k=4)
    mask = pipe.tokenizer.mask_token
    texts = [text[:1] + mask + text[2:] for text in TEXTS]
    return asked_three_ways(pipe, texts, mask + LONG) | {"targets": pipe(texts[0], targets=["三", "四"])}


def text_classification(folder):
    pipe = pipeline("text-classification", folder, trust_remote_code=True)
    told = asked_three_ways(pipe, TEXTS, LONG, top_k=None)
    told["pair"] = pipe({"text": TEXTS[0], "text_pair": TEXTS[1]}, top_k=None)
    return told | {"cut": pipe(LONG, truncation=True, max_length=16, top_k=None)}


def token_classification(folder):
    pipe = pipeline("token-classification", folder, trust_remote_code=True, ignore_labels=[])
    told = {way: asked_three_ways(pipe, TEXTS, LONG, aggregation_strategy=way) for way in STRATEGIES}
    pipe.tokenizer.model_max_length = 64
    return told | {"strides": pipe(LONG, aggregation_strategy="simple", stride=16)}


def feature_extraction(folder):
    return asked_three_ways(pipeline("feature-extraction", folder, trust_remote_code=True), TEXTS, LONG)


def zero_shot_classification(folder):
    pipe = pipeline("zero-shot-classification", folder, trust_remote_code=True)
    options = {"candidate_labels": LABELS, "hypothesis_template": "这是{}。"}
    return {
        str(several): asked_three_ways(pipe, TEXTS, LONG, multi_label=several, **options) for several in (False, True)
    }


def text_generation(folder):
    pipe = pipeline("text-generation", folder, trust_remote_code=True)
    # behind pads on the right nothing can be written
    return asked_three_ways(pipe, TEXTS, LONG, sides=("left",), do_sample=False, max_new_tokens=6)


def question_answering(folder):
    pipe = pipeline("question-answering", folder, trust_remote_code=True)
    asked = [{"question": QUESTION, "context": context} for context in CONTEXTS]
    told = asked_three_ways(pipe, asked, {"question": QUESTION, "context": LONG}, max_seq_len=32, doc_stride=8)
    options = {"top_k": 3, "max_answer_len": 4, "handle_impossible_answer": True}
    told["some"] = pipe(question=QUESTION, context=CONTEXTS[0], **options)
    return told | {"untold": pipeline(model=folder, trust_remote_code=True)(asked)}


ASKED = {
    "fill-mask": fill_mask,
    "text-classification": text_classification,
    "token-classification": token_classification,
    "feature-extraction": feature_extraction,
    "zero-shot-classification": zero_shot_classification,
    "text-generation": text_generation,
    "question-answering": question_answering,
}


def main(folders, output):
    told = {}
    for name, ask in ASKED.items():
        for level in ("characters", "words"):
            told[f"{name} by {level}"] = ask(f"{folders}/{level}/{name}")
    with open(output, "w") as file:
        # numpy's numbers are floats too
        json.dump(told, file, default=float)


if __name__ == "__main__":
    main(*sys.argv[1:])
