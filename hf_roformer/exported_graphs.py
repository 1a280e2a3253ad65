"""A model as one graph: it takes what a tokenizer gives, at any batch and length, and answers by name.

Shapes: B batch, C choices of a row, L tokens.
"""

import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .configuration_roformer import HFRoFormerConfig
from .heads import HEADS, names_of_answers, our_class
from .weight_files import WEIGHT_NAMES, find_file

Rows = dict[str, Tensor]

# heads that answer for each token; what they say of a pad means nothing
OF_TOKENS = ("masked_lm", "causal_lm", "pre_training", "token_classification", "question_answering")
# one token, fewer and more than a chunk or a window of any kind, one row and several
SIZES = ((1, 1), (1, 9), (3, 23), (2, 150))
TRACED = (3, 23)
# how far beyond the trained length a scaling is tried, and up to which trained length
BEYOND, LONGEST_TRIED = 7, 2048
PLACES = 32
# scalings whose turns depend on the length that a token sees
BY_LENGTH = ("dynamic", "longrope")


# loading


def head_of(config: HFRoFormerConfig, asked: str | None, source: str) -> str:
    """Take the head that is asked, else the one that the folder was saved with."""
    if asked is not None:
        return asked
    saved = next(iter(config.architectures or ()), "")
    found = [head for head, ending in HEADS.items() if saved.endswith(f"RoFormer{ending}")]
    if not found:
        raise ValueError(f"{source} names no head that is known ({saved!r}): give --head {'|'.join(HEADS)}")
    return found[0]


def _refuse_without_weights(source: str) -> None:
    if Path(source).is_dir() and find_file(source) is None:
        raise FileNotFoundError(
            f"{source} holds none of {', '.join(WEIGHT_NAMES)}: give the folder of a trained model, or convert it by "
            "scripts/convert_checkpoint.py"
        )


def _refuse_what_no_graph_holds(config: HFRoFormerConfig, head: str, source: str) -> None:
    if config.add_cross_attention:
        raise ValueError(
            f"{source} has add_cross_attention and reads another model's states, which no tokenizer gives: it cannot "
            "be exported alone"
        )
    # a causal-LM head is causal whatever its config says, unless that says prefix
    pattern = "causal" if head == "causal_lm" and config.pattern == "bidirectional" else config.pattern
    rope = (config.rope_parameters or {}).get("rope_type")
    if rope in BY_LENGTH and pattern != "bidirectional":
        raise ValueError(
            f"{source} has rope_type {rope!r} with {pattern} attention, which turns all keys anew for the length that "
            "each token sees: no graph holds that for every length. Export a model with another rope_type"
        )


def load_model(source: str, asked: str | None = None, revision: str | None = None) -> tuple[Any, str]:
    """Load a model to export, in float32; return it and its head.

    Raises:
        FileNotFoundError: for a folder without weights.
        ValueError: for a head that is untold, that the weights lack, or that reads another model's states.
    """
    _refuse_without_weights(source)
    places: dict[str, Any] = {"revision": revision or "main"}
    config = HFRoFormerConfig.from_pretrained(source, **places)
    head = head_of(config, asked, source)
    _refuse_what_no_graph_holds(config, head, source)
    # another way to compute the same, whose cuts would fix the length
    config.chunk_size_feed_forward = 0
    backend = "sdpa" if config.attention_window is None else "eager"
    model, info = our_class(head).from_pretrained(
        source, config=config, dtype=torch.float32, attn_implementation=backend, output_loading_info=True, **places
    )
    if info["missing_keys"]:
        lacking = ", ".join(sorted(info["missing_keys"])[:4])
        raise ValueError(f"{source} lacks {lacking}, which head {head} needs: train that head, or give another --head")
    return model.eval(), head


# what goes in and comes out


class Exportable(nn.Module):
    """A model under the arguments of a graph; its answers come by name, in float32 whatever it computes in."""

    def __init__(self, model: Any, head: str) -> None:
        super().__init__()
        self.model, self.head = model, head
        self.answers = names_of_answers(model.config, head)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Answer rows [B, L], or [B, C, L] for multiple choice; no cache is kept."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            use_cache=False,
            return_dict=True,
        )
        return {name: outputs[name].float() for name in self.answers}

    @property
    def config(self) -> HFRoFormerConfig:
        """What the model is."""
        return self.model.config

    @property
    def longest(self) -> int | None:
        """The most tokens of a row; None where there is no end."""
        return self.config.max_position_embeddings if self.config.position_kind == "learned" else None

    @property
    def axes(self) -> dict[str, list[str]]:
        """Name the axes of each input."""
        row = ["batch", "choices", "length"] if self.head == "multiple_choice" else ["batch", "length"]
        places = {"position_ids": [*row, "places"]} if self.config.rope_axes == 2 else {}
        return {**dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), row), **places}

    def is_of_tokens(self, answer: str) -> bool:
        """Say whether an answer has a value for each token."""
        return self.head in OF_TOKENS or answer == "last_hidden_state"


def draw_rows(exportable: Exportable, rows: int, length: int) -> Rows:
    """Draw ids, padded on the right and the left in turn, and segments; the first row is full."""
    config, generator = exportable.config, torch.Generator().manual_seed(rows * length)
    shape = (rows, rows + 1, length) if exportable.head == "multiple_choice" else (rows, length)
    real = torch.randint(1, length + 1, (*shape[:-1], 1), generator=generator)
    real[0] = length
    columns_L = torch.arange(length)
    padded_left = torch.arange(rows).reshape(-1, *[1] * (len(shape) - 1)) % 2 == 1
    mask = torch.where(padded_left, columns_L >= length - real, columns_L < real)
    segments = (columns_L >= length // 2) & (config.type_vocab_size > 1)
    drawn = {
        "input_ids": torch.randint(config.vocab_size, shape, generator=generator),
        "attention_mask": mask.long(),
        "token_type_ids": segments.long().expand(shape).contiguous(),
    }
    if config.rope_axes == 2:
        drawn["position_ids"] = torch.randint(PLACES, (*shape, 2), generator=generator)
    return drawn


def sizes_to_try(exportable: Exportable) -> list[tuple[int, int]]:
    """Return the rows and lengths at which an export is held against the model."""
    config, longest = exportable.config, exportable.longest
    sizes = list(SIZES)
    scaled = (config.rope_parameters or {}).get("rope_type", "default") != "default"
    if scaled and config.trained_length <= LONGEST_TRIED:
        sizes.append((2, config.trained_length + BEYOND))
    fitting = [(rows, length if longest is None else min(length, longest)) for rows, length in sizes]
    return list(dict.fromkeys(fitting))


# the graph


class Graph:
    """The graph of a model, traced when it is first asked for."""

    def __init__(self, exportable: Exportable, opset: int) -> None:
        self.exportable, self.opset = exportable, opset

    @cached_property
    def rows(self) -> Rows:
        """The rows that are traced."""
        rows, length = TRACED
        longest = self.exportable.longest
        return draw_rows(self.exportable, rows, length if longest is None else min(length, longest))

    def _dims(self) -> dict[str, dict[int, Any]]:
        longest = self.exportable.longest
        dims: dict[str, Any] = {name: torch.export.Dim(name) for name in ("batch", "choices")}
        dims["length"] = torch.export.Dim("length", max=longest)
        return {
            name: {place: dims[axis] for place, axis in enumerate(axes) if axis in dims}
            for name, axes in self.exportable.axes.items()
        }

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The graph as torch.export holds it."""
        with torch.no_grad():
            program = torch.export.export(self.exportable, (), self.rows, dynamic_shapes=self._dims())
        for node in program.graph.nodes:
            # which lines of which file on this machine it comes from
            node.meta.pop("stack_trace", None)
        return program

    def halved(self) -> "Graph":
        """Return the graph of a copy whose weights are float16; angles, norms and answers stay float32."""
        return Graph(copy.deepcopy(self.exportable).half(), self.opset)


__all__ = ["Exportable", "Graph", "Rows", "draw_rows", "load_model", "sizes_to_try"]
