"""Whether a converted checkpoint answers as its source does.

The source is run by the program that it was written for where that is here, else in float64 on its own arrays; the
conversion is run from the folder that was written. Both read the same rows, always the same ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from . import numpy_forward
from .builtin_export import as_read, builtin_config
from .checkpoint_meaning import same_numbers
from .checkpoint_names import list_some
from .checkpoint_sources import Source
from .configuration_roformer import HFRoFormerConfig
from .converted_weights import Places
from .heads import (
    BODY,
    HEADS,
    STATES,
    build_empty,
    names_of_answers,
    our_class,
    prefix_of,
    quiet,
    shallow,
    shapes_of,
    tied_names,
)
from .weight_files import read_weights

# heads that are written in float64; of the others the body is compared
SLOW_HEADS: dict[str, Callable[..., np.ndarray]] = {
    "masked_lm": numpy_forward.score_words,
    "causal_lm": numpy_forward.score_words,
    "sentence_embedding": numpy_forward.embed_rows,
    "pre_training": numpy_forward.score_replaced,
}
ROWS, LENGTH, SEED = 2, 24, 0
# a share of the largest answer: float32 through a deep network errs by less, a wrong weight by more
TOLERANCE = 2e-5

SLOWLY = "a float64 forward on its own arrays"

Answers = dict[str, np.ndarray]


def draw_rows(config: HFRoFormerConfig) -> tuple[Tensor, Tensor]:
    """Draw ids and segments [ROWS, LENGTH]: a source, then a target, where there are segments."""
    generator = np.random.default_rng(SEED)
    length = min(LENGTH, config.max_position_embeddings)
    ids = generator.integers(0, config.vocab_size, (ROWS, length))
    starts = generator.integers(1, length + 1, (ROWS, 1))
    segments = (np.arange(length) >= starts) * (config.type_vocab_size > 1)
    return torch.from_numpy(ids), torch.from_numpy(segments.astype(np.int64))


def run_model(model: Any, head: str, names: Sequence[str], ids: Tensor, segments: Tensor) -> Answers:
    """Run a model of the library or of ours; head `base` runs its body alone."""
    inputs: dict[str, Any] = {"input_ids": ids, "token_type_ids": segments}
    model = model.eval().base_model if head == "base" else model.eval()
    if head == "multiple_choice":
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    if head == "causal_lm" and isinstance(model, transformers.RoFormerForCausalLM):
        # some versions let this class see the future unless told not to
        hidden = torch.full((ids.shape[1],) * 2, torch.finfo(torch.float32).min).triu(1)
        inputs["attention_mask"] = hidden.expand(ROWS, 1, -1, -1)
    with torch.no_grad():
        answers = model(**inputs)
    return {name: answers[name].double().numpy() for name in names}


def meaning_of(config: HFRoFormerConfig) -> numpy_forward.Meaning:
    """Return what the arrays alone do not tell.

    Raises:
        ValueError: for positions that the slow arithmetic does not know.
    """
    rope, usual = config.rope_parameters, HFRoFormerConfig()
    fields = (
        "position_kind",
        "rope_axes",
        "rotation_kind",
        "rotation_frequencies",
        "score_scaling",
        "attention_window",
    )
    strange = [f"{name} {getattr(config, name)!r}" for name in fields if getattr(config, name) != getattr(usual, name)]
    strange += [f"rope_type {rope['rope_type']!r}"] if rope["rope_type"] not in ("default", "linear") else []
    if strange:
        raise ValueError(f"nothing published has {', '.join(strange)}, so there is nothing to verify it against")
    return numpy_forward.Meaning(
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        activation=config.hidden_act,
        eps=config.layer_norm_eps,
        rotary_value=config.rotary_value,
        pattern=config.pattern,
        pooler_activation=config.pooler_activation or "linear",
        pooling=config.classifier_pooling,
        theta=rope["rope_theta"],
        stretch=rope.get("factor", 1.0),
        share=rope.get("partial_rotary_factor", 1.0),
    )


def run_slowly(
    source: Source, config: HFRoFormerConfig, head: str, names: Sequence[str], ids: Tensor, segments: Tensor
) -> Answers:
    """Run the source's own arrays in float64."""
    arrays: numpy_forward.Arrays = numpy_forward.PublishedArrays(source.weights)
    if source.layout == "tensorflow":
        arrays = numpy_forward.TensorFlowArrays({name: array.numpy() for name, array in source.weights.items()})
    meaning = meaning_of(config)
    states = numpy_forward.run_body(arrays, meaning, ids.numpy(), segments.numpy())
    if head != "base":
        return {name: SLOW_HEADS[head](arrays, meaning, states) for name in names}
    answers = {"last_hidden_state": states}
    if "pooler_output" in names:
        answers["pooler_output"] = numpy_forward.pool_first(arrays, meaning, states)
    return answers


def class_of_source(source: Source, config: HFRoFormerConfig, head: str, to: str) -> tuple[Any, Any]:
    """Return the class and the config that the source was written for; nothing where that cannot be run here."""
    if source.layout == "hf_roformer" and to == "builtin":
        return our_class(head), config
    found = getattr(transformers, f"RoFormer{HEADS[head]}", None)
    # what a built-in decoder sees depends on the version
    if source.layout != "roformer" or found is None or config.pattern != "bidirectional":
        return None, None
    try:
        told = builtin_config(config, found.__name__)
    except ValueError:
        return None, None
    return found, told


def greatest_difference(found: Answers, expected: Answers) -> tuple[float, float]:
    """Return the greatest difference, and the greatest answer."""
    difference = max(float(np.abs(found[name] - expected[name]).max()) for name in expected)
    return difference, max(float(np.abs(answer).max()) for answer in expected.values())


def run_source(
    source: Source,
    config: HFRoFormerConfig,
    program: Any,
    told: Any,
    head: str,
    names: Sequence[str],
    ids: Tensor,
    segments: Tensor,
) -> Answers:
    """Run the source by its program, or slowly where there is none."""
    if program is None:
        return run_slowly(source, config, head, names, ids, segments)
    # a stored table of angles may be rounded; the program computes its own
    weights = {name: source.weights[name] for name in source.renamed}
    model = program.from_pretrained(None, config=told, state_dict=weights, dtype=torch.float32)
    return run_model(model, head, names, ids, segments)


@dataclass(frozen=True)
class Written:
    """A folder that was written: which layout and head, which weights of the source, and which that it lacked."""

    folder: Path
    to: str
    places: Places
    created: set[str]

    @property
    def weights(self) -> dict[str, Tensor]:
        """The source's weights that the folder holds, by their names in a checkpoint."""
        return {**self.places.own, **self.places.beside}


def refuse_unwritten(written: Written, source: Source) -> None:
    """Refuse a folder whose file lacks a weight of another head, or has it otherwise."""
    stored = read_weights(written.folder) if written.places.beside else {}
    for name, tensor in written.places.beside.items():
        if name not in stored or not same_numbers(stored[name].float(), tensor.float()):
            raise ValueError(f"{name} was written otherwise than {source.path} holds it: report this as a fault")


def refuse_broken(model: Any, info: dict[str, Any], head: str, written: Written, source: Source) -> None:
    """Refuse a folder that loads with a complaint, or a weight that is not what the source holds."""
    known = set(written.places.beside)
    if head != written.places.head:
        known |= written.places.own.keys() | written.created
    bare = {name.removeprefix(BODY) for name in known}
    strange = {kind: sorted(set(map(str, keys))) for kind, keys in info.items()}
    strange["unexpected_keys"] = [name for name in strange["unexpected_keys"] if name not in known | bare]
    strange = {kind: names for kind, names in strange.items() if names}
    if strange:
        raise ValueError(f"what was written of {source.path} does not load whole: {strange}")
    found = {prefix_of(head) + name: tensor for name, tensor in model.state_dict().items()}
    for name, tensor in written.weights.items():
        if name in found and not same_numbers(found[name], tensor.float()):
            raise ValueError(f"{name} was written otherwise than {source.path} holds it: report this as a fault")


def no_numbers(source: Source) -> list[str]:
    """Name the weights of a source that hold what is no number, or is infinite."""
    weights = ((name, source.weights[name]) for name in source.renamed)
    return [name for name, tensor in weights if not tensor.isfinite().all()]


def refuse_otherwise(difference: float, allowed: float, answers: Sequence[str], by: str, source: Source) -> None:
    """Refuse a conversion that means something else."""
    if difference <= allowed:
        return
    spoilt = no_numbers(source)
    if spoilt:
        raise ValueError(
            f"{source.path} holds NaN or infinity under {list_some(spoilt)}, so what it answers tells nothing: take "
            "an earlier checkpoint, or put numbers there"
        )
    raise ValueError(
        f"the conversion of {source.path} answers otherwise than its source run by {by}: {', '.join(answers)} "
        f"differ by {difference:.3g}, and {allowed:.3g} is allowed. Check hidden_act, rotary_value and the other "
        f"facts in {source.config_path}"
    )


def verify(source: Source, written: Written, config: HFRoFormerConfig, head: str) -> dict[str, Any]:
    """Compare the source with what one head answers from a folder, and return what was found.

    `config` is the head's own.

    Raises:
        ValueError: where the folder does not load whole, or answers otherwise.
    """
    config, to = as_read(config, writes=our_class(head).writes), written.to
    program, told = class_of_source(source, config, head, to)
    lacks = bool(written.created) and head == written.places.head
    can_run_head = not lacks and (program is not None or head in SLOW_HEADS)
    compared, names = (head, names_of_answers(config, head)) if can_run_head else ("base", STATES)
    rows = draw_rows(config)
    with quiet():
        expected = run_source(source, config, program, told, compared, names, *rows)
        reader = our_class(head) if to == "hf_roformer" else getattr(transformers, f"RoFormer{HEADS[head]}")
        model, info = reader.from_pretrained(written.folder, dtype=torch.float32, output_loading_info=True)
        refuse_broken(model, info, head, written, source)
        found = run_model(model, compared, names, *rows)
    difference, largest = greatest_difference(found, expected)
    by = SLOWLY if program is None else program.__name__
    refuse_otherwise(difference, TOLERANCE * largest, names, by, source)
    return {
        "source_run_by": by,
        "conversion_run_by": reader.__name__,
        "compared": list(names),
        "rows": list(rows[0].shape),
        "max_difference": difference,
        "largest_answer": largest,
        "allowed": TOLERANCE * largest,
    }


def other_heads(source: Source, written: Written, config: HFRoFormerConfig) -> dict[str, HFRoFormerConfig]:
    """Return the further heads that a folder serves whole and that can be checked, each with its own config."""
    if written.to == "builtin":
        return {}
    held, tied, found = written.weights.keys(), tied_names(config), {}
    for head in SLOW_HEADS.keys() - {written.places.head}:
        # the layers are there, or the body would have been refused
        if shapes_of(head, shallow(config)).keys() - tied.keys() <= held:
            own = build_empty(head, config).config
            runs = (
                class_of_source(source, as_read(own, writes=our_class(head).writes), head, written.to)[0] is not None
            )
            if runs or config.hidden_act in numpy_forward.ACTIVATIONS:
                found[head] = own
    return found


def verify_all(source: Source, written: Written, config: HFRoFormerConfig) -> dict[str, dict[str, Any]]:
    """Check the head that was written, then every other one that its folder serves; return what was found of each."""
    refuse_unwritten(written, source)
    heads = {written.places.head: config, **dict(sorted(other_heads(source, written, config).items()))}
    return {head: verify(source, written, own, head) for head, own in heads.items()}


__all__ = ["Written", "verify", "verify_all"]
