"""Texts from which a tiny language model learns something, and a recipe that lets it."""

import itertools

ORDER = "天地玄黄宇宙洪荒日月盈昃辰宿列张"
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0,
    "attention_probs_dropout_prob": 0,
    "initializer_range": 0.1,
}
RECIPE = {
    "model_config": SHAPE,
    "vocabulary_min_count": 1,
    "validation_share": 0.1,
    "schedule": [{"max_length": 12, "batch_size": 8, "steps": 4}, {"max_length": 24, "batch_size": 4, "steps": 4}],
    "learning_rate": 0.01,
    "logging_steps": 2,
    "eval_strategy": "no",
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
    "seed": 0,
}


def texts():
    """Every stretch of one order of characters: what is hidden follows from what stands beside it."""
    around = ORDER * 3
    return [around[at : at + length] for at, length in itertools.product(range(len(ORDER)), (7, 11, 18))]
