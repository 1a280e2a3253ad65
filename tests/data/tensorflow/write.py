"""Write the checkpoints of this folder with TensorFlow itself, and what the authors' own program answers from them.

It ran once, with tensorflow-cpu 2.21.0, tf_keras 2.21.0 and bert4keras 0.11.5 on the path:

$ TF_KERAS=1 TF_USE_LEGACY_KERAS=1 python write.py FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
V, E, H, WIDE, LAYERS = 11, 4, 8, 12, 2
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": H,
    "embedding_size": E,
    "initializer_range": 0.02,
    "intermediate_size": WIDE,
    "max_position_embeddings": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": LAYERS,
    "type_vocab_size": 2,
    "vocab_size": V,
}
IDS = np.array([[2, 5, 7, 9, 3, 4, 8, 10], [2, 6, 4, 10, 8, 5, 5, 3]])
SEGMENTS = np.array([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1]])


def value(shape, number):
    """Numbers that float32 holds exactly."""
    return ((np.arange(np.prod(shape)) * 37 + number * 11) % 101 - 50).reshape(shape).astype(np.float32) / 32


def dense(name, inputs, outputs, biased):
    return {f"{name}/kernel": (inputs, outputs)} | ({f"{name}/bias": (outputs,)} if biased else {})


def norm(name, width):
    return {f"{name}/gamma": (width,), f"{name}/beta": (width,)}


def layer(number, is_v1):
    scope = f"bert/encoder/layer_{number}"
    shapes = {}
    for name in ("query", "key", "value"):
        shapes |= dense(f"{scope}/attention/self/{name}", H, H, is_v1)
    shapes |= dense(f"{scope}/attention/output/dense", H, H, is_v1)
    shapes |= dense(f"{scope}/intermediate/dense", H, WIDE, is_v1) | dense(f"{scope}/output/dense", WIDE, H, is_v1)
    norms = norm(f"{scope}/attention/output/LayerNorm", H) | norm(f"{scope}/output/LayerNorm", H)
    return shapes | (norms if is_v1 else {})


def sim():
    """A small RoFormer of the first kind, with all that the authors' files hold, and an optimizer's moments."""
    shapes = {"bert/embeddings/word_embeddings": (V, E), "bert/embeddings/token_type_embeddings": (2, E)}
    shapes |= norm("bert/embeddings/LayerNorm", E) | dense("bert/encoder/embedding_hidden_mapping_in", E, H, True)
    for number in range(LAYERS):
        shapes |= layer(number, True)
    shapes |= dense("bert/pooler/dense", H, H, True) | dense("cls/predictions/transform/dense", H, E, True)
    shapes |= norm("cls/predictions/transform/LayerNorm", E) | {"cls/predictions/output_bias": (V,)}
    shapes |= {"cls/seq_relationship/output_weights": (2, H), "cls/seq_relationship/output_bias": (2,)}
    moments = {f"bert/embeddings/LayerNorm/beta/adam_{moment}": (E,) for moment in "mv"}
    return {name: value(shape, number) for number, (name, shape) in enumerate(sorted((shapes | moments).items()))} | {
        "global_step": np.int64(7)
    }


def v2():
    """A small RoFormerV2."""
    shapes = {"bert/embeddings/word_embeddings": (V, H), "bert/embeddings/token_type_embeddings": (2, H)}
    for number in range(LAYERS):
        shapes |= layer(number, False)
    return {name: value(shape, number) for number, (name, shape) in enumerate(sorted(shapes.items()))}


def kinds():
    """One variable of each type, and one without a number in it."""
    types = ("float64", "float16", "int32", "int64", "int16", "int8", "uint8", "bool")
    arrays = {name: (value((2, 3), number) * 8).astype(name) for number, name in enumerate(types)}
    return arrays | {"bfloat16": tf.cast(value((2, 3), 9), tf.bfloat16), "empty": np.zeros((0, 3), np.float32)}


def save(path, arrays, devices=("/cpu:0",), **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"CPU": len(devices)})) as session:
        for number, (name, array) in enumerate(arrays.items()):
            with tf.device(devices[number % len(devices)]):
                v1.Variable(array if isinstance(array, np.ndarray | np.generic) else array.numpy(), name=name)
        session.run(v1.global_variables_initializer())
        v1.train.Saver(**how).save(session, str(path), write_meta_graph=False, write_state=False)


def save_in_parts(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("", partitioner=v1.fixed_size_partitioner(2)):
            v1.get_variable("bert/embeddings/word_embeddings", shape=(V, E))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(path), write_meta_graph=False, write_state=False)


def save_object(path):
    module = tf.Module()
    module.kernel = tf.Variable(value((2, 3), 1))
    tf.train.Checkpoint(model=module).write(str(path))


def answer(folder, model, **how):
    from bert4keras.models import build_transformer_model

    with tf.Graph().as_default():
        files = str(folder / "bert_config.json"), str(folder / "bert_model.ckpt")
        answers = build_transformer_model(*files, model=model, **how).predict([IDS, SEGMENTS])
    return answers if isinstance(answers, list) else [answers]


def main(root):
    for name, arrays, config in (
        ("sim", sim(), CONFIG),
        ("v2", v2(), CONFIG | {"hidden_act": "relu", "embedding_size": H}),
    ):
        save(root / name / "bert_model.ckpt", arrays)
        (root / name / "bert_config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_object(root / "object" / "bert_model.ckpt")
    save_in_parts(root / "parts" / "bert_model.ckpt")
    save(root / "kinds" / "bert_model.ckpt", kinds())
    save(
        root / "shards" / "bert_model.ckpt",
        {"a": value((3, 4), 1), "b": value((2, 5), 2)},
        ("/cpu:0", "/cpu:1"),
        sharded=True,
    )
    save(root / "version_1" / "bert_model.ckpt", {"a": value((3, 4), 1)}, write_version=v1.train.SaverDef.V1)
    unilm = answer(root / "sim", "roformer", with_mlm="linear", with_pool="linear", application="unilm")
    np.savez(
        root / "answers.npz",
        ids=IDS,
        segments=SEGMENTS,
        sim_states=answer(root / "sim", "roformer")[0],
        sim_scores=answer(root / "sim", "roformer", with_mlm="linear")[0],
        sim_scores_causal=answer(root / "sim", "roformer", with_mlm="linear", application="lm")[0],
        sim_pooled=answer(root / "sim", "roformer", with_pool="linear")[0],
        sim_pooled_prefix=unilm[0],
        sim_scores_prefix=unilm[1],
        v2_states=answer(root / "v2", "roformer_v2")[0],
        v2_scores=answer(root / "v2", "roformer_v2", with_mlm="linear")[0],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
