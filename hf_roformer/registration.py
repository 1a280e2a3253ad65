"""Tell the library's auto classes about ours, and, when asked, about the published `roformer` checkpoints."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoModelForTokenClassification,
    AutoTokenizer,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.tokenization_auto import REGISTERED_TOKENIZER_CLASSES

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
)
from .tokenization_roformer import HFRoFormerTokenizer

BUILTIN = "roformer"
BUILTIN_TOKENIZERS = ("RoFormerTokenizer", "RoFormerTokenizerFast")
MODELS = {
    AutoModel: HFRoFormerModel,
    AutoModelForMaskedLM: HFRoFormerForMaskedLM,
    AutoModelForCausalLM: HFRoFormerForCausalLM,
    AutoModelForSequenceClassification: HFRoFormerForSequenceClassification,
    AutoModelForTokenClassification: HFRoFormerForTokenClassification,
    AutoModelForQuestionAnswering: HFRoFormerForQuestionAnswering,
    AutoModelForMultipleChoice: HFRoFormerForMultipleChoice,
    AutoModelForTextEncoding: HFRoFormerForSentenceEmbedding,
    AutoModelForPreTraining: HFRoFormerForPreTraining,
}


def register() -> None:
    """Register every class under the model type `hf_roformer`; doing it again changes nothing."""
    # exist_ok: a notebook that reloads the package registers the fresh classes
    AutoConfig.register(HFRoFormerConfig.model_type, HFRoFormerConfig, exist_ok=True)
    for auto, model in MODELS.items():
        auto.register(HFRoFormerConfig, model, exist_ok=True)
    AutoTokenizer.register(HFRoFormerConfig, tokenizer_class=HFRoFormerTokenizer, exist_ok=True)


def take_over_builtin() -> None:
    """Make the auto classes of this process load `model_type: roformer` checkpoints with our classes.

    The built-in classes themselves stay as they are, and `give_back_builtin` undoes it. Calling it again changes
    nothing.
    """
    CONFIG_MAPPING.register(BUILTIN, HFRoFormerConfig, exist_ok=True)
    for name in BUILTIN_TOKENIZERS:
        REGISTERED_TOKENIZER_CLASSES[name] = HFRoFormerTokenizer


def give_back_builtin() -> None:
    """Make the auto classes load `model_type: roformer` with the built-in classes again."""
    # here, not above: only who gives back pays for importing it
    from transformers import RoFormerConfig

    CONFIG_MAPPING.register(BUILTIN, RoFormerConfig, exist_ok=True)
    for name in BUILTIN_TOKENIZERS:
        if REGISTERED_TOKENIZER_CLASSES.get(name) is HFRoFormerTokenizer:
            del REGISTERED_TOKENIZER_CLASSES[name]
