"""What the parameters of a checkpoint are called here, and which of them have no place here.

A name stands in exactly one table; one that stands in none is an error, so nothing is dropped without a word. The
left column is a regular expression over the whole name.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

Table = Sequence[tuple[str, str]]


def _dense(there: str, here: str) -> Table:
    return ((f"{there}/kernel", f"{here}.weight"), (f"{there}/bias", f"{here}.bias"))


def _norm(there: str, here: str) -> Table:
    return ((f"{there}/gamma", f"{here}.weight"), (f"{there}/beta", f"{here}.bias"))


_THERE, _HERE = r"bert/encoder/layer_(\d+)", r"roformer.encoder.layer.\1"
_BODY = r"(?:roformer\.)?"
_ATTENTION = r"(?:cross)?attention\."

# Google's BERT and bert4keras
TENSORFLOW_RENAMES: Table = (
    (r"bert/embeddings/(word|token_type)_embeddings", r"roformer.embeddings.\1_embeddings.weight"),
    *_norm("bert/embeddings/LayerNorm", "roformer.embeddings.LayerNorm"),
    *_dense("bert/encoder/embedding_hidden_mapping_in", "roformer.embeddings_project"),
    *_dense(rf"{_THERE}/attention/self/(query|key|value)", rf"{_HERE}.attention.self.\2"),
    *_dense(f"{_THERE}/attention/output/dense", f"{_HERE}.attention.output.dense"),
    *_norm(f"{_THERE}/attention/output/LayerNorm", f"{_HERE}.attention.output.LayerNorm"),
    *_dense(f"{_THERE}/intermediate/dense", f"{_HERE}.intermediate.dense"),
    *_dense(f"{_THERE}/output/dense", f"{_HERE}.output.dense"),
    *_norm(f"{_THERE}/output/LayerNorm", f"{_HERE}.output.LayerNorm"),
    *_dense("bert/pooler/dense", "roformer.pooler.dense"),
    *_dense("cls/predictions/transform/dense", "cls.predictions.transform.dense"),
    *_norm("cls/predictions/transform/LayerNorm", "cls.predictions.transform.LayerNorm"),
    ("cls/predictions/output_bias", "cls.predictions.bias"),
)
TENSORFLOW_LEFT_BEHIND: Table = (
    (r"cls/seq_relationship/output_(weights|bias)", "next-sentence prediction, a head that no RoFormer has"),
    (r".+/(adam|lamb)_[mv]|.+/Adam(_\d+)?|AdamWeightDecayOptimizer(_\d+)?/.+", "a moment of the optimizer"),
    (r"global_step|beta[12]_power", "a counter of the optimizer"),
)

# state dicts of the library, of JunnYu's package and of this one
PUBLISHED_RENAMES: Table = (
    (rf"{_BODY}(embeddings\.(?:word|token_type)_embeddings\.weight)", r"roformer.\1"),
    (
        rf"{_BODY}(embeddings|encoder\.layer\.\d+\.(?:{_ATTENTION})?output)\.LayerNorm\.(?:weight|gamma)",
        r"roformer.\1.LayerNorm.weight",
    ),
    (
        rf"{_BODY}(embeddings|encoder\.layer\.\d+\.(?:{_ATTENTION})?output)\.LayerNorm\.(?:bias|beta)",
        r"roformer.\1.LayerNorm.bias",
    ),
    (rf"{_BODY}((?:embeddings_project|pooler\.dense)\.(?:weight|bias))", r"roformer.\1"),
    (
        rf"{_BODY}(encoder\.layer\.\d+\.(?:{_ATTENTION}self\.(?:query|key|value)|{_ATTENTION}output\.dense"
        r"|intermediate\.dense|output\.dense)\.(?:weight|bias))",
        r"roformer.\1",
    ),
    (r"(cls\.predictions\.(?:bias|(?:decoder|transform|transform\.dense)\.(?:weight|bias)))", r"\1"),
    (r"cls\.predictions\.transform\.LayerNorm\.(?:weight|gamma)", "cls.predictions.transform.LayerNorm.weight"),
    (r"cls\.predictions\.transform\.LayerNorm\.(?:bias|beta)", "cls.predictions.transform.LayerNorm.bias"),
    (r"(discriminator_predictions\.(?:dense|dense_prediction)\.(?:weight|bias))", r"\1"),
    (r"((?:classifier|classifier\.dense|classifier\.out_proj|qa_outputs)\.(?:weight|bias))", r"\1"),
)
PUBLISHED_LEFT_BEHIND: Table = (
    (rf"{_BODY}encoder\.embed_positions\.weight", "the table of angles, which is computed"),
    (r"cls\.seq_relationship\.(weight|bias)", "next-sentence prediction, a head that no RoFormer has"),
)

# a checkpoint that holds one of these is no RoFormer
FOREIGN: Table = (
    (r".*position_embeddings(\.weight)?", "learned positions, so it is a BERT: use scripts/convert_bert.py"),
    (r"(GAU_alpha/|gau_alpha\.).*|.*\.gau\..*", "gated attention units, so it is GAU-α, which has no class here"),
)

TABLES = {
    "tensorflow": (TENSORFLOW_RENAMES, TENSORFLOW_LEFT_BEHIND),
    "roformer": (PUBLISHED_RENAMES, PUBLISHED_LEFT_BEHIND),
    "hf_roformer": (PUBLISHED_RENAMES, PUBLISHED_LEFT_BEHIND),
}


def look_up(name: str, table: Table) -> str | None:
    """Return what the first matching row makes of a name."""
    for pattern, result in table:
        found = re.fullmatch(pattern, name)
        if found:
            return found.expand(result)
    return None


def list_some(names: Iterable[str]) -> str:
    """Name the first few."""
    names = sorted(names)
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def refuse_foreign(names: Iterable[str], path: object) -> None:
    """Refuse the checkpoint of another network."""
    for name in sorted(names):
        reason = look_up(name, FOREIGN)
        if reason:
            raise ValueError(f"{path} holds {name}: {reason}")


def refuse_doubles(renamed: Mapping[str, str], path: object) -> None:
    """Refuse two names of one parameter."""
    first: dict[str, str] = {}
    for there, here in renamed.items():
        if here in first:
            raise ValueError(f"{path} holds {first[here]} and {there}, both of them {here}: remove one")
        first[here] = there


def refuse_bad_patterns(patterns: Iterable[str]) -> None:
    """Refuse what is no regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"--leave_behind gives {pattern!r}, which is no regular expression ({error}): write a backslash "
                "before a character that stands for itself"
            ) from error


def rename(
    names: Iterable[str], layout: str, path: object, dropped: Sequence[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what each name becomes, and why others are left behind.

    Args:
        names: all names of the checkpoint at `path`.
        layout: a key of `TABLES`.
        dropped: further patterns of names to leave behind.

    Raises:
        ValueError: for another network, a name in no table, two names of one parameter, and a pattern that is none.
    """
    names = list(names)
    refuse_bad_patterns(dropped)
    rename_table, left_table = TABLES[layout]
    left_table = (*((pattern, "left behind on demand") for pattern in dropped), *left_table)
    left = {name: reason for name in names if (reason := look_up(name, left_table))}
    renamed = {name: here for name in names if name not in left and (here := look_up(name, rename_table))}
    unknown = [name for name in names if name not in left and name not in renamed]
    if unknown:
        refuse_foreign(unknown, path)
        raise ValueError(
            f"{path} holds {list_some(unknown)}, which no RoFormer has: leave out what is no weight of the model "
            "with --leave_behind PATTERN, a regular expression over the whole name"
        )
    refuse_doubles(renamed, path)
    return renamed, left
