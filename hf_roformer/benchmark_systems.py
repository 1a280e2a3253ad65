"""What a benchmark compares: ours, its peers with random weights of the same widths, and two floors below them.

A floor is what no implementation goes below without other kernels: the matrix products of the layers on the real
tokens, and the attention of each sequence, with nothing between them.

Shapes: B rows, L columns, T real tokens, H heads, K width of one head, D hidden size, I intermediate size.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from .benchmark_cases import PAD, Case, Inputs
from .configuration_roformer import HFRoFormerConfig
from .modeling_roformer import HFRoFormerModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# a gated feed-forward multiplies by three matrices, not by two: at this share of the width it costs the same
GATED_SHARE = 2 / 3
GATED_MULTIPLE = 64
# options that say something else than a backend
NO_BACKENDS = ("fast", "compile", "checkpoint")
# outputs of a size of a few units; the same numbers within this
EQUAL_WITHIN = 1e-5


class NotRun(Exception):  # noqa: N818 - no error: the others go on
    """A system that cannot take part here, and why."""


class Shape(NamedTuple):
    """The widths that all systems share; `dropout` applies in training alone."""

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    vocab_size: int
    max_length: int
    dropout: float

    @property
    def gated_size(self) -> int:
        """The width of a gated feed-forward that multiplies as much as a plain one."""
        width = round(GATED_SHARE * self.intermediate_size)
        return max(1, round(width / GATED_MULTIPLE)) * GATED_MULTIPLE if width >= GATED_MULTIPLE else width


class Setting(NamedTuple):
    """How a system is run: `forward` or `train`, `fp32` or `bf16`, on which device with how many threads."""

    mode: str
    dtype: str
    device: str
    threads: int

    @property
    def name(self) -> str:
        """What a heading says of it."""
        return f"{self.mode} {self.dtype}"


class System(NamedTuple):
    """One thing that is timed: its kind, and words: `compile`, `checkpoint` or an attention backend's name.

    `fast` is the option that is told apart in every table: the faster road for float32 products.
    """

    kind: str
    options: tuple[str, ...] = ()

    @classmethod
    def read(cls, word: str) -> "System":
        """Read `kind+option+option`."""
        kind, *options = word.split("+")
        if kind not in KINDS:
            raise ValueError(f"system {kind!r} is none of {', '.join(KINDS)}")
        if "checkpoint" in options and kind in ("floor", *ONNX_KINDS):
            raise ValueError(f"system {word!r} has no layers to checkpoint: leave +checkpoint out")
        return cls(kind, tuple(options))

    @property
    def name(self) -> str:
        """The name without a word on its products."""
        return "+".join((self.kind, *(option for option in self.options if option != "fast")))

    @property
    def products(self) -> str:
        """Which road the float32 products take."""
        return "fast" if "fast" in self.options else "default"

    @property
    def backend(self) -> str | None:
        """The attention backend that was asked for."""
        return next((option for option in self.options if option not in NO_BACKENDS), None)

    @property
    def saves_memory(self) -> bool:
        """Whether each layer is computed again for its gradient."""
        return "checkpoint" in self.options


class FloorStack(nn.Module):
    """The products of the layers, the attention of each sequence, and nothing else."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        hidden, wide = shape.hidden_size, shape.intermediate_size
        sizes = [(hidden, hidden)] * 4 + [(wide, hidden), (hidden, wide)]
        weights = [[self._weight(*size) for size in sizes] for _ in range(shape.num_layers)]
        self.layers: Any = nn.ModuleList(nn.ParameterList(layer) for layer in weights)

    @staticmethod
    def _weight(outputs: int, inputs: int) -> nn.Parameter:
        # of a size that lets numbers neither grow nor vanish: tiny ones are slow on some processors
        return nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)

    def forward(self, states_TD: Tensor, lengths: list[int]) -> Tensor:
        """Return [T, D]; `lengths` are those of the sequences that lie end to end."""
        for layer in self.layers:
            *into_heads, output, widen, narrow = list(layer)
            heads = [F.linear(states_TD, weight) for weight in into_heads]
            states_TD = F.linear(self._attend(heads, lengths), output)
            states_TD = F.linear(F.linear(states_TD, widen), narrow)
        return states_TD

    def _attend(self, states: list[Tensor], lengths: list[int]) -> Tensor:
        heads_THK = [state_TD.unflatten(1, (self.num_heads, -1)) for state_TD in states]
        if len(set(lengths)) == 1:
            rows = [x_THK.unflatten(0, (len(lengths), -1)).transpose(1, 2) for x_THK in heads_THK]
            return F.scaled_dot_product_attention(*rows).transpose(1, 2).flatten(2).flatten(0, 1)
        parts = zip(*(x_THK.split(lengths) for x_THK in heads_THK), strict=True)
        alone = [F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in part)) for part in parts]
        return torch.cat([x_1HTK[0].transpose(0, 1).flatten(1) for x_1HTK in alone])


def floor_flop(shape: Shape, case: Case) -> int:
    """Return the additions and multiplications of one forward on the real tokens."""
    hidden, wide = shape.hidden_size, shape.intermediate_size
    products = 2 * case.real_tokens * (4 * hidden * hidden + 2 * hidden * wide)
    return shape.num_layers * (products + 4 * hidden * case.real_pairs)


def _library_model(name: str, facts: dict[str, Any], backend: str | None, **options: Any) -> nn.Module:
    config_class = getattr(transformers, f"{name}Config", None)
    model_class = getattr(transformers, f"{name}Model", None)
    if config_class is None or model_class is None:
        raise NotRun(f"transformers {transformers.__version__} has no {name}")
    chosen = {} if backend is None else {"attn_implementation": backend}
    return model_class(config_class(pad_token_id=PAD, **facts, **chosen), **options)


def _common(shape: Shape) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "max_position_embeddings": shape.max_length,
    }


def _bert_facts(shape: Shape) -> dict[str, Any]:
    drops = {"hidden_dropout_prob": shape.dropout, "attention_probs_dropout_prob": shape.dropout}
    return {**_common(shape), "intermediate_size": shape.intermediate_size, **drops}


def _gated_facts(shape: Shape) -> dict[str, Any]:
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    return {**_common(shape), "intermediate_size": shape.gated_size, "attention_dropout": shape.dropout, **ends}


def _ours(shape: Shape, backend: str | None) -> nn.Module:
    chosen: dict[str, Any] = {} if backend is None else {"attn_implementation": backend}
    return HFRoFormerModel(HFRoFormerConfig(**_bert_facts(shape), **chosen), add_pooling_layer=False)


def _linear(shape: Shape, backend: str | None) -> nn.Module:
    config = HFRoFormerConfig(**_bert_facts(shape), attention_kind="linear")
    return HFRoFormerModel(config, add_pooling_layer=False)


def _builtin(shape: Shape, backend: str | None) -> nn.Module:
    return _library_model("RoFormer", _bert_facts(shape), backend)


def _bert(shape: Shape, backend: str | None) -> nn.Module:
    return _library_model("Bert", _bert_facts(shape), backend or "sdpa", add_pooling_layer=False)


def _modernbert(shape: Shape, backend: str | None) -> nn.Module:
    drops = {"embedding_dropout": shape.dropout, "mlp_dropout": shape.dropout}
    ends = {"cls_token_id": 1, "sep_token_id": 2}
    return _library_model("ModernBert", {**_gated_facts(shape), **drops, **ends}, backend)


def _eurobert(shape: Shape, backend: str | None) -> nn.Module:
    facts = {**_gated_facts(shape), "num_key_value_heads": shape.num_heads, "mask_token_id": 3}
    return _library_model("EuroBert", facts, backend)


def _nomic_bert(shape: Shape, backend: str | None) -> nn.Module:
    return _library_model("NomicBert", {**_bert_facts(shape), "intermediate_size": shape.gated_size}, backend)


BUILDERS: dict[str, Callable[[Shape, str | None], nn.Module]] = {
    "floor": lambda shape, backend: FloorStack(shape),
    "ours": _ours,
    "builtin": _builtin,
    "bert": _bert,
    "modernbert": _modernbert,
    "eurobert": _eurobert,
    "nomic_bert": _nomic_bert,
    "linear": _linear,
}
ONNX_KINDS = ("onnx", "onnx_int8")
KINDS = (*BUILDERS, *ONNX_KINDS)


def build(system: System, shape: Shape) -> nn.Module:
    """Build a system in float32 with random weights.

    Raises:
        NotRun: where this version of the library has no such class.
    """
    torch.manual_seed(0)
    return BUILDERS[system.kind](shape, system.backend)


def take_weights(ours: nn.Module, builtin: nn.Module) -> None:
    """Give ours the weights of the built-in, which stores a table of angles besides."""
    weights = {name: weight for name, weight in builtin.state_dict().items() if "embed_positions" not in name}
    ours.load_state_dict(weights)


def _checkpoint_layers(module: Any) -> None:
    # the library renamed it in the middle of version 5
    name = "activation_checkpointing_enable"
    getattr(module, name if hasattr(module, name) else "gradient_checkpointing_enable")()


def make_ready(module: nn.Module, system: System, setting: Setting) -> nn.Module:
    """Put a system on its device, in its dtype and mode.

    A forward in bf16 has its weights in bf16; training keeps them in fp32 under autocast, as the Trainer does.
    """
    dtype = DTYPES[setting.dtype] if setting.mode == "forward" else torch.float32
    module = module.to(setting.device, dtype).train(setting.mode == "train")
    if system.saves_memory:
        _checkpoint_layers(module)
    if "compile" in system.options:
        module.compile()
    return module


def _states_of(module: nn.Module, inputs: Inputs) -> Tensor:
    return module(input_ids=inputs.ids_BL, attention_mask=inputs.mask_BL).last_hidden_state


@torch.no_grad()
def real_states(module: nn.Module, inputs: Inputs) -> Tensor:
    """Return the last states of the real tokens, [T, D]."""
    return _states_of(module, inputs)[inputs.mask_BL.bool()]


def largest_difference(ours: nn.Module, wanted_TD: Tensor, inputs: Inputs) -> float:
    """Return how far ours is from the built-in's states on the real tokens.

    Raises:
        ValueError: where they do not answer the same.
    """
    difference = (real_states(ours, inputs) - wanted_TD).abs().max().item()
    # written so that a NaN is no equality
    if not difference <= EQUAL_WITHIN:
        raise ValueError(
            f"ours and the built-in RoFormer differ by {difference:.3g} on the real tokens with the same weights, "
            f"more than {EQUAL_WITHIN:g}: times of different answers say nothing, so none is taken"
        )
    return difference


def _answer_of(module: nn.Module, inputs: Inputs, setting: Setting) -> Callable[[], Tensor]:
    """Return a call that gives the states, for a floor of the real tokens and for a model of its batch."""
    if not isinstance(module, FloorStack):
        return lambda: _states_of(module, inputs)
    lengths = inputs.mask_BL.sum(dim=1).tolist()
    weight = next(module.parameters())
    states_TD = torch.randn(sum(lengths), weight.shape[1], device=weight.device, dtype=weight.dtype)
    # in a model the embeddings below want a gradient
    states_TD.requires_grad_(setting.mode == "train")
    return lambda: module(states_TD, lengths)


def pass_of(module: nn.Module, inputs: Inputs, setting: Setting) -> Callable[[], object]:
    """Return one forward, or one training step: forward and backward; the optimizer, the same for all, is left out."""
    answer = _answer_of(module, inputs, setting)
    if setting.mode == "forward":
        return torch.no_grad()(answer)
    real_BL = inputs.mask_BL.bool()
    half = setting.dtype == "bf16"

    def step() -> None:
        autocast = torch.autocast(setting.device, torch.bfloat16) if half else contextlib.nullcontext()
        with autocast:
            states = answer()
        states_TD = states if states.dim() == 2 else states[real_BL]
        # a sum of squares would have no gradient through a norm
        direction_D = torch.linspace(-1, 1, states_TD.shape[-1], device=states_TD.device)
        (states_TD.float() @ direction_D).mean().backward()
        module.zero_grad(set_to_none=True)

    return step
