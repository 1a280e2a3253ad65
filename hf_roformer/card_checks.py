"""Whether a model card says what its reader needs, and nothing that cannot be."""

import math
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from .publishing import METRICS, read_results
from .text_files import read_text
from .yaml_files import parse_yaml

NEEDED = {"language": "[zh]", "library_name": "transformers", "pipeline_tag": "fill-mask"}
PLACEHOLDERS = ("[More Information Needed]", "[optional]", "TODO")
# the least and the most that a metric can be; what is not named here need only be a number
SHARES = ("accuracy", "f1", "exact_match", "precision", "recall", "average_precision", "mrr", "roc_auc", "map", "ndcg")
RANGES = dict.fromkeys(SHARES, (0.0, 1.0))
RANGES |= dict.fromkeys(("pearsonr", "spearmanr", "matthews_correlation"), (-1.0, 1.0))
RANGES |= dict.fromkeys(("mse", "mae", "rmse", "loss"), (0.0, math.inf)) | {"perplexity": (1.0, math.inf)}
# a page that a browser shows
MOST_BYTES = 1 << 22
# the identifiers that huggingface.co/docs/hub/repositories-licenses lists
KNOWN_LICENCES = """
afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0
eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community h-research
intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit
mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openmdw-1.0 openmdw-1.1 openrail openrail++ osl-3.0 other pddl postgresql
unknown unlicense wtfpl zlib
"""
LICENCES = frozenset(KNOWN_LICENCES.split())
# a code of ISO 639 with a script and a region if need be, or what the Hub has for none and for many
LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z]{4})?(-([A-Za-z]{2}|[0-9]{3}))?|code|multilingual")
HOW_TO_WRITE = "write one by scripts/write_card.py from the folder's results.json, or by hand"


def read_card(folder: Path) -> ModelCard:
    """Read a folder's card.

    Raises:
        ValueError: where there is none, it is no text, or its metadata are no YAML that the Hub takes.
    """
    path = folder / "README.md"
    if not path.is_file():
        raise ValueError(f"{folder} holds no README.md, the model's card: {HOW_TO_WRITE}")
    text = read_text(path, HOW_TO_WRITE, most=MOST_BYTES)
    if block := REGEX_YAML_BLOCK.search(text):
        # the Hub's own reader would follow every alias; the lines above count in a message
        above = "\n" * text.count("\n", 0, block.start(2))
        parse_yaml(above + block[2], "the metadata on top of README.md", "correct them")
    try:
        return ModelCard(text)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"the metadata on top of README.md cannot be read ({reason}): correct them") from error


def _results(card: ModelCard) -> list[Any]:
    data: Any = card.data
    return list(data.eval_results or ())


def _impossible(result: Any) -> str | None:
    value, kind = result.metric_value, str(result.metric_type)
    if isinstance(value, (dict, list)):
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return f"{kind} is {value!r}, which is no number: leave that result out, or measure it"
    low, high = RANGES.get(kind, (-math.inf, math.inf))
    if low <= value <= high:
        return None
    share = f"; a share of 1 is meant, so perhaps {value / 100:g}" if high == 1 and 1 < value <= 100 else ""
    allowed = f"between {low:g} and {high:g}" if high < math.inf else f"{low:g} or more"
    return f"{kind} is {value:g}, and can only be {allowed}{share}"


def impossible_results(card: ModelCard) -> list[str]:
    """Name the results on a card that cannot be."""
    return [flaw for flaw in map(_impossible, _results(card)) if flaw]


def _measured(folder: Path) -> dict[tuple[Any, str], Any]:
    """Return what results.json holds, by split and by the metric's name on the page."""
    if not (folder / "results.json").is_file():
        return {}
    facts = read_results(folder)
    return {
        (split, METRICS[name].words): value
        for split, scores in facts.metrics.items()
        for name, value in scores.items()
        if name in METRICS
    }


def invented_results(card: ModelCard, folder: Path) -> list[str]:
    """Name the results on a card that results.json, where there is one, gives otherwise."""
    measured, flaws = _measured(folder), []
    for result in _results(card):
        known = measured.get((result.dataset_split, result.metric_name))
        if measured and isinstance(known, (int, float)) and result.metric_value != known:
            flaws.append(
                f"the card says {result.metric_name} {result.metric_value} on {result.dataset_split}, and "
                f"results.json {known}: write the card anew from the facts"
            )
    return flaws


def missing_parts(card: ModelCard) -> list[str]:
    """Name what a reader needs and the card lacks."""
    data = card.data.to_dict()
    flaws = [
        f"the metadata lack {name}: add a line such as `{name}: {example}`"
        for name, example in NEEDED.items()
        if not data.get(name)
    ]
    flaws += [f"it still holds {words!r}: fill that in" for words in PLACEHOLDERS if words in card.text]
    if "```" not in card.text:
        flaws.append("it shows no code that uses the model: add a fenced block")
    if not re.search(r"^#+ .*limit", card.text, re.MULTILINE | re.IGNORECASE):
        flaws.append("it does not say what the model cannot do: add a section Limits")
    return flaws


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def strange_languages(card: ModelCard) -> list[str]:
    """Name the languages on a card that are no codes."""
    return [
        f"the language {language!r} is no code of two or three letters: write one of ISO 639 such as zh, in quotes "
        "where YAML takes it for something else"
        for language in _listed(card.data.to_dict().get("language") or [])
        if not LANGUAGE.fullmatch(str(language))
    ]


def card_flaws(folder: Path) -> list[str]:
    """Name all that is wrong with a folder's card, but for its licence.

    Raises:
        ValueError: where there is none that can be read.
    """
    card = read_card(folder)
    return [*missing_parts(card), *strange_languages(card), *impossible_results(card), *invented_results(card, folder)]


def licence_of(folder: Path) -> str:
    """Return the licence that a folder's card gives.

    Raises:
        ValueError: where it gives none, one that the Hub does not know, or one without its name.
    """
    data = read_card(folder).data.to_dict()
    licence = data.get("license")
    if not licence or licence in ("unknown", "none", "null"):
        raise ValueError(
            "README.md gives no licence: add `license: apache-2.0`, or what it is under, to its metadata, or write it "
            "anew by scripts/write_card.py FOLDER --license NAME"
        )
    if licence == "other" and not data.get("license_name"):
        raise ValueError("README.md gives the licence `other` without a name: add license_name and license_link")
    unknown = [str(name) for name in _listed(licence) if str(name) not in LICENCES]
    if unknown:
        near = get_close_matches(unknown[0].lower(), sorted(LICENCES), n=1)
        raise ValueError(
            f"README.md gives the licence {unknown[0]!r}, which the Hub does not know: "
            + "".join(f"perhaps {name} is meant; " for name in near)
            + "take an identifier of huggingface.co/docs/hub/repositories-licenses, or `other` with license_name and "
            "license_link"
        )
    return ", ".join(map(str, _listed(licence)))


__all__ = ["card_flaws", "licence_of"]
