"""Small folders as a training leaves them, and what can be done to them."""

from conftest import TINY
from variants import vivid

import hf_roformer
from hf_roformer.examples import write_down
from hf_roformer.facts import RunFacts

CHARACTERS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天很好不风雨")
FACTS = RunFacts(
    model_name="reviews",
    problem="single_label_classification",
    base_model=None,
    recipe={"learning_rate": 3e-05},
    data={"name": "invented reviews", "rows": {"train": 31, "test": 13}, "labels": ["坏", "好"]},
    metrics={"test": {"accuracy": 0.75, "macro_f1": 0.69, "loss": 0.5}},
    predictions=[{"text": "很好", "predicted": "好", "score": 0.9, "label": "坏"}],
    language=["zh"],
    license="apache-2.0",
)


def build(head, **facts):
    shape = TINY | {"max_position_embeddings": 64, "vocab_size": len(CHARACTERS)}
    return vivid(getattr(hf_roformer, f"HFRoFormer{head}")(hf_roformer.HFRoFormerConfig(**shape | facts)))


def build_tokenizer():
    return hf_roformer.HFRoFormerTokenizer(vocab={word: i for i, word in enumerate(CHARACTERS)})


def write_folder(folder, **options):
    """Write a classifier as a training does; return it."""
    model = build("ForSequenceClassification", id2label={0: "坏", 1: "好"}, problem_type="single_label_classification")
    model.save_pretrained(folder, **options)
    build_tokenizer().save_pretrained(folder)
    write_down(folder, FACTS)
    return model


def state_of(folder):
    """Return what there is of a folder: of each file its bytes and when they were written."""
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in folder.rglob("*")}


def flip(path, place=-3, bit=6):
    """Turn one bit of a file around."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)
