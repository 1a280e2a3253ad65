"""The RoFormer family, first-class in today's Transformers.

Importing this package registers its classes with the library's auto classes under the model type `hf_roformer`; the
built-in `roformer` is left as it is. See `take_over_builtin` for the one way to change that.
"""

from ._version import __version__
from .configuration_roformer import HFRoFormerConfig
from .modeling_roformer import (
    HFRoFormerForCausalLM,
    HFRoFormerForMaskedLM,
    HFRoFormerForMultipleChoice,
    HFRoFormerForPreTraining,
    HFRoFormerForQuestionAnswering,
    HFRoFormerForSentenceEmbedding,
    HFRoFormerForSequenceClassification,
    HFRoFormerForTokenClassification,
    HFRoFormerModel,
    HFRoFormerPreTrainedModel,
)
from .registration import give_back_builtin, register, take_over_builtin
from .tokenization_roformer import HFRoFormerTokenizer

register()

__all__ = [
    "HFRoFormerConfig",
    "HFRoFormerForCausalLM",
    "HFRoFormerForMaskedLM",
    "HFRoFormerForMultipleChoice",
    "HFRoFormerForPreTraining",
    "HFRoFormerForQuestionAnswering",
    "HFRoFormerForSentenceEmbedding",
    "HFRoFormerForSequenceClassification",
    "HFRoFormerForTokenClassification",
    "HFRoFormerModel",
    "HFRoFormerPreTrainedModel",
    "HFRoFormerTokenizer",
    "__version__",
    "give_back_builtin",
    "take_over_builtin",
]
