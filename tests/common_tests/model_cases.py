# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""The library's common tests of models, configs and training, over every class of ours and over the built-in."""

import functools
import unittest
from unittest import mock

import torch
import transformers
from transformers.models.auto import modeling_auto

import hf_roformer

# the tests tell by these names which labels a class takes
HEADS = {
    "MODEL": "Model",
    "MODEL_FOR_MASKED_LM": "ForMaskedLM",
    "MODEL_FOR_CAUSAL_LM": "ForCausalLM",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION": "ForSequenceClassification",
    "MODEL_FOR_TOKEN_CLASSIFICATION": "ForTokenClassification",
    "MODEL_FOR_QUESTION_ANSWERING": "ForQuestionAnswering",
    "MODEL_FOR_MULTIPLE_CHOICE": "ForMultipleChoice",
    "MODEL_FOR_PRETRAINING": "ForPreTraining",
    "MODEL_FOR_TEXT_ENCODING": "ForSentenceEmbedding",
}
for mapping, head in HEADS.items():
    getattr(modeling_auto, f"{mapping}_MAPPING_NAMES")["hf_roformer"] = f"HFRoFormer{head}"

from tests.generation.test_utils import GenerationTesterMixin  # noqa: E402
from tests.test_configuration_common import ConfigTester  # noqa: E402
from tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask  # noqa: E402
from tests.test_training_mixin import TrainingTesterMixin  # noqa: E402

from tests import test_modeling_common  # noqa: E402

SHAPE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


def classes_of(module, prefix, heads):
    return tuple(getattr(module, f"{prefix}{head}") for head in heads)


OURS = classes_of(hf_roformer, "HFRoFormer", HEADS.values())
BUILTIN = classes_of(transformers, "RoFormer", list(HEADS.values())[:7])


class Tester:
    """What a model tester is to the library's tests."""

    batch_size, seq_length, num_choices, num_labels, is_training = 5, 7, 4, 3, True
    num_hidden_layers, hidden_size, num_attention_heads = 2, 32, 4
    vocab_size = SHAPE["vocab_size"]

    def __init__(self, config_class, classes, facts):
        self.config_class, self.facts = config_class, facts
        self.base_model_class, self.causal_lm_class = classes[0], classes[2]

    def get_config(self):
        return self.config_class(**SHAPE, **self.facts)

    def prepare_config_and_inputs_for_common(self):
        shape = [self.batch_size, self.seq_length]
        ids, segments = ids_tensor(shape, self.vocab_size), ids_tensor(shape, SHAPE["type_vocab_size"])
        inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": random_attention_mask(shape)}
        return self.get_config(), inputs


LABELS = {"HFRoFormerForPreTraining": "token", "HFRoFormerForSentenceEmbedding": "row"}
set_numbers = test_modeling_common._set_config_rope_params


def set_read_numbers(config, numbers):
    """Leave out what the rope_type does not read: the library only warns of it, and our config refuses it."""
    read = {"yarn"} if isinstance(config, hf_roformer.HFRoFormerConfig) else {numbers["rope_type"]}
    told = set_numbers(config, numbers)
    if told.rope_parameters["rope_type"] not in read:
        told.rope_parameters.pop("original_max_position_embeddings", None)
    return told


class Cases(ModelTesterMixin, GenerationTesterMixin, TrainingTesterMixin):
    """One variant of all classes."""

    all_model_classes = OURS
    config_class = hf_roformer.HFRoFormerConfig
    facts = {}
    # that of the library's classes is the year in the first line of the file of the config
    test_can_init_all_missing_weights_before_2023 = True

    def setUp(self):
        self.model_tester = Tester(self.config_class, self.all_model_classes, self.facts)
        self.config_tester = ConfigTester(self, config_class=self.config_class, **{**SHAPE, **self.facts})
        patch = mock.patch.object(test_modeling_common, "_set_config_rope_params", set_read_numbers)
        patch.start()
        self.addCleanup(patch.stop)

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        """Label also the heads that the library has not."""
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        if return_labels and model_class.__name__ in LABELS:
            of_token = LABELS[model_class.__name__] == "token"
            rows = torch.tensor([0, 1, 0, 1, 1])
            inputs["labels"] = rows[:, None].repeat(1, self.model_tester.seq_length) if of_token else rows
        return inputs

    def test_config(self):
        self.config_tester.run_common_tests()


class OurCases(Cases):
    """What ours do otherwise."""

    def test_model_weights_reload_no_missing_tied_weights(self):
        # a body that would stay random is refused, but on request
        ours = hf_roformer.HFRoFormerPreTrainedModel
        lenient = functools.partial(ours.from_pretrained.__func__, ignore_mismatched_sizes=True)
        with mock.patch.object(ours, "from_pretrained", classmethod(lambda cls, *a, **k: lenient(cls, *a, **k))):
            super().test_model_weights_reload_no_missing_tied_weights()


class BuiltinTest(Cases, unittest.TestCase):
    all_model_classes = BUILTIN
    config_class = transformers.RoFormerConfig


class FirstVersionTest(OurCases, unittest.TestCase):
    pass


class SecondVersionTest(OurCases, unittest.TestCase):
    facts = {"norm_type": "rms_norm", "use_bias": False}


class LinearTest(OurCases, unittest.TestCase):
    facts = {"attention_kind": "linear"}

    def test_retain_grad_hidden_states_attentions(self):
        # the weights are told on request, and nothing is computed from them
        self.has_attentions = False
        super().test_retain_grad_hidden_states_attentions()


class SinusoidalTest(OurCases, unittest.TestCase):
    facts = {"position_kind": "sinusoidal"}
    # the vectors that are added drown the small embeddings at first
    training_overfit_steps = 600


for name in dir(SinusoidalTest):
    if name.startswith("test_model_rope_scaling_"):
        setattr(SinusoidalTest, name, unittest.skip("nothing turns, as in the built-in's view")(lambda self: None))
# what the parameterized tests leave behind
SinusoidalTest.test_model_rope_scaling_from_config = None
