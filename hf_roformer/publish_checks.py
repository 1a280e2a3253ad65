"""What is looked at before a folder leaves this machine; nothing here writes into it or reaches a network."""

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub import get_token

from .card_checks import card_flaws, licence_of
from .checksums import (
    OF_A_TRAINING,
    SUMS,
    files_in,
    find_damage,
    leads_out,
    read_checksums,
    render_checksums,
    stays_at_home,
    travelling,
)
from .configuration_roformer import HFRoFormerConfig
from .examples import read_facts, try_folder
from .json_files import read_object
from .own_folders import HOLDER, LOCK
from .weight_files import PICKLES, read_weights

PACKAGE = Path(__file__).parent
WEIGHTS = ".safetensors"
# the Hub takes no larger file
LARGEST = 50_000_000_000
# each may be tried from every byte of a file, so what repeats is bounded unless nothing has to follow it
SECRETS = {
    "a Hugging Face token": rb"\b(?:hf|api_org)_[A-Za-z0-9]{30,}",
    "a GitHub token": rb"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{60,})",
    "a GitLab token": rb"\bglpat-[\w-]{20,}",
    "a PyPI token": rb"\bpypi-[\w-]{50,}",
    "an Amazon key": rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a Google key": rb"\bAIza[\w-]{35}",
    "an API key": rb"\bsk-[\w-]{32,}",
    "a Slack token": rb"\bxox[abeprs]-[\w-]{10,}",
    "a web token": rb"\beyJ[\w-]{15,1000}\.eyJ[\w-]{15,10000}\.[\w-]{10,}",
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a password in an address": rb"\b[a-z][a-z+]{0,20}://[^\s/:@\"'<>]+:[^\s/@\"'<>]+@",
    "what is named a secret": (
        rb"(?i)(?:api_?key|secret|passw(?:or)?d|(?:access|auth|hub|hf)_?token)\w{0,40}[\"']?\s*[:=]\s*"
        rb"[\"']?[^\s\"',;<>(){}\[\]]{12,}"
    ),
}
NAMED_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN")
# a path inside other words, but not a part of an address or of a longer relative path
ABSOLUTE = (
    rb"(?<![\w:/.~<-])/(?:home|Users|root|tmp|mnt|media|scratch|workspace|private|gpfs|lustre|nfs)/[^\s\"'`,;)\]}<>]+"
    rb"|\b[A-Za-z]:\\{1,2}[\w .-]+\\{1,2}[^\s\"'`<>]+|\bfile:///[^\s\"'`<>]+"
)


class Finding(NamedTuple):
    """One thing that was looked at: whether it may be published so, and what there is to say."""

    name: str
    right: bool
    detail: str


def _some(flaws: Iterable[str]) -> str:
    flaws = list(flaws)
    return "; ".join(flaws[:5]) + (f"; and {len(flaws) - 5} more" if len(flaws) > 5 else "")


# each returns what is wrong, and what there is to say where nothing is


def _check_model(folder: Path) -> tuple[list[str], str]:
    facts = read_facts(folder)
    kind, ours = facts.get("model_type"), HFRoFormerConfig.model_type
    if kind != ours:
        remedy = "convert it by scripts/convert_checkpoint.py" if kind == "roformer" else "publish it by `hf upload`"
        return [f"{folder} holds a model of type {kind!r}, which is none of this package ({ours!r}): {remedy}"], ""
    names = [name for name in travelling(folder) if name.endswith(WEIGHTS)]
    if not names:
        return [f"{folder} holds no {WEIGHTS} file: save the model into it by save_pretrained"], ""
    return [], ", ".join(facts.get("architectures") or ["no architecture named"])


def _check_names(folder: Path) -> tuple[list[str], str]:
    names = travelling(folder)
    render_checksums(dict.fromkeys(names, ""))
    return [], f"{len(names)} that a list can hold"


def _readable(folder: Path) -> list[str]:
    """List what travels, without what would be waited for or never ends: pipes, devices and links to such."""
    return [name for name in travelling(folder) if (folder / name).is_file()]


def _stray(folder: Path, name: str) -> str | None:
    """Say what keeps a name from being a file of the folder."""
    path = folder / name
    if path.is_symlink() and leads_out(folder, name):
        return f"{name} is a link that leads out: copy the file"
    return None if path.is_file() else f"{name} is no file, or a link to none: take it out of the folder"


def _check_files(folder: Path) -> tuple[list[str], str]:
    names = travelling(folder)
    states = [name for name in files_in(folder) if any(fnmatch(name, pattern) for pattern in OF_A_TRAINING)]
    flaws = [f"{name} is the state of a training: publish the run's folder, or move it away" for name in states]
    pickles = [name for name in names if name.endswith((*PICKLES, ".pkl", ".pickle", ".npy", ".h5"))]
    flaws += [f"{name} is a pickle or another program's weights: {WEIGHTS} alone travels" for name in pickles]
    flaws += [flaw for name in names if (flaw := _stray(folder, name))]
    linked = sorted(path.name for path in folder.rglob("*") if path.is_symlink() and path.is_dir())
    flaws += [f"{name} is a link to a folder, which would not travel: copy the folder" for name in linked]
    # the hold of who looks is gone when the looking is done
    home = sorted({name.split("/")[0] for name in files_in(folder) if stays_at_home(name)} - {LOCK, HOLDER})
    return flaws, f"left at home: {', '.join(home)}" if home else "nothing that would stay at home"


def _strange_code(folder: Path, names: Iterable[str]) -> list[str]:
    """Name what the auto classes would run that is no file of the folder."""
    places = []
    for name in ("config.json", "tokenizer_config.json"):
        told = read_object(folder / name).get("auto_map") if (folder / name).is_file() else None
        for place in told.values() if isinstance(told, dict) else [told]:
            places += [(name, part) for part in (place if isinstance(place, (list, tuple)) else [place])]
    modules = {name.removesuffix(".py") for name in names}
    return [
        f"{name} names the code {place!r}, which is no file of the folder: save the model into another folder"
        for name, place in places
        if place is not None and str(place).rpartition(".")[0] not in modules
    ]


def _check_code(folder: Path) -> tuple[list[str], str]:
    found = {name: (folder / name).read_bytes() for name in _readable(folder) if name.endswith(".py")}
    changed = [
        name for name, code in found.items() if not (PACKAGE / name).is_file() or (PACKAGE / name).read_bytes() != code
    ]
    return [
        f"{name} differs from this version of the package: load the folder with it and save it into another one"
        for name in changed
    ] + _strange_code(folder, found), f"{len(found)} files, those of this version"


def _check_weights(folder: Path) -> tuple[list[str], str]:
    count, bad = 0, []
    for name in _readable(folder):
        if name.endswith(WEIGHTS):
            weights = read_weights(folder / name)
            count += sum(value.numel() for value in weights.values())
            bad += [key for key, value in weights.items() if not torch.isfinite(value).all()]
    return [f"{key} holds NaN or infinity: train it again with a lower rate" for key in bad], f"{count:,} numbers"


def _check_card(folder: Path) -> tuple[list[str], str]:
    return card_flaws(folder), "complete"


def _check_licence(folder: Path) -> tuple[list[str], str]:
    return [], licence_of(folder)


def _text_of(path: Path) -> bytes:
    """Return what can be read in a file: of weights the header, of text in two bytes a letter the letters."""
    with path.open("rb") as file:
        if path.name.endswith(WEIGHTS):
            return file.read(min(int.from_bytes(file.read(8), "little"), 100_000_000))
        data = file.read()
    return data + data.replace(b"\0", b"") if b"\0" in data else data


def _own_secrets() -> list[bytes]:
    values = [os.environ.get(name) for name in NAMED_SECRETS] + [get_token()]
    return [re.escape(value.encode()) for value in values if value and len(value) >= 8]


def _own_places(folder: Path) -> list[bytes]:
    """Return the folders of this machine that would say something of it."""
    places = (Path.home(), Path.cwd(), Path(tempfile.gettempdir()), folder.resolve().parent)
    return [re.escape(str(place).encode()) + rb"(?![\w-])" for place in places if len(place.parts) > 2]


def _search(folder: Path, patterns: dict[str, bytes]) -> Iterator[str]:
    """Tell where in the files something stands, without telling what."""
    for name in _readable(folder):
        data = _text_of(folder / name)
        for what, pattern in patterns.items():
            match = re.search(pattern, data)
            if match:
                line = data.count(b"\n", 0, match.start()) + 1
                yield f"{name}, line {line}, holds {what}"


def _check_secrets(folder: Path) -> tuple[list[str], str]:
    patterns = dict(SECRETS)
    if own := _own_secrets():
        patterns["a token of this machine"] = b"|".join(own)
    flaws = [f"{flaw}: take it out, and make it invalid where it came from" for flaw in _search(folder, patterns)]
    return flaws, f"none of {len(patterns)} kinds"


def _check_paths(folder: Path) -> tuple[list[str], str]:
    pattern = b"|".join([ABSOLUTE, *_own_places(folder)])
    return [f"{flaw}: write its last name alone" for flaw in _search(folder, {"a path of a machine": pattern})], "none"


def _check_checksums(folder: Path) -> tuple[list[str], str]:
    listed = read_checksums(folder)
    if listed is None:
        return [], f"no {SUMS} yet; one is sent along"
    flaws = find_damage(folder, listed)
    # a card is there to be worked on
    worked_on = [flaw for flaw in flaws if flaw.split(" ")[0].endswith(".md")]
    flaws = [
        f"{flaw}: get it again, or if it is meant, run scripts/verify.py {folder} --write"
        for flaw in flaws
        if flaw not in worked_on
    ]
    return flaws, "; ".join(worked_on) or f"{len(listed)} files hold what was written"


def _check_example(folder: Path) -> tuple[list[str], str]:
    if strange := set(travelling(folder)) - set(_readable(folder)):
        # what loads the folder would wait for a pipe
        return [f"the folder was not loaded, for {min(strange)} is no file"], ""
    try:
        flaw, recorded = try_folder(folder)
    except RuntimeError as error:
        return [f"the folder does not load where this package is unknown: {error}"], ""
    if not recorded:
        return [], "loads alone; no example was recorded, so its answers were compared with nothing"
    return [f"the folder does not answer as when it was written: {flaw}"] if flaw else [], "loads alone, answers alike"


def _check_size(folder: Path) -> tuple[list[str], str]:
    sizes = {name: (folder / name).stat().st_size for name in _readable(folder)}
    flaws = [
        f"{name} has {size / 1e9:.0f} GB: save it with a lower max_shard_size"
        for name, size in sizes.items()
        if size > LARGEST
    ]
    largest = max(sizes, key=sizes.__getitem__, default=None)
    told = f"{len(sizes)} files, {sum(sizes.values()) / 1e6:.2f} MB"
    return flaws, told if largest is None else f"{told}, the largest {largest} with {sizes[largest] / 1e6:.2f} MB"


CHECKS: dict[str, Callable[[Path], tuple[list[str], str]]] = {
    "model": _check_model,
    "names": _check_names,
    "files": _check_files,
    "code": _check_code,
    "weights": _check_weights,
    "card": _check_card,
    "licence": _check_licence,
    "secrets": _check_secrets,
    "paths": _check_paths,
    "checksums": _check_checksums,
    "example": _check_example,
    "size": _check_size,
}
# what nobody may wave through
NEVER_ACCEPTED = ("model", "names", "secrets", "size")


def _look(folder: Path, name: str, accepted: Iterable[str]) -> Finding:
    try:
        flaws, told = CHECKS[name](folder)
    except (ValueError, OSError) as error:
        # a folder that cannot be read is an answer too, so that the rest is still looked at
        flaws, told = [str(error)], ""
    if flaws and name in accepted:
        return Finding(name, True, f"accepted: {_some(flaws)}")
    return Finding(name, not flaws, _some(flaws) or told)


def check_folder(folder: str | os.PathLike[str], accepted: Iterable[str] = ()) -> list[Finding]:
    """Look at all that a folder must be before it is published; a model of another kind is asked nothing more.

    accepted: the checks whose flaws are known and meant.

    Raises:
        ValueError: for a check that there is not, or that cannot be waved through.
        FileNotFoundError: where there is no folder.
    """
    folder, accepted = Path(folder), list(accepted)
    for name in accepted:
        if name not in CHECKS or name in NEVER_ACCEPTED:
            able = ", ".join(check for check in CHECKS if check not in NEVER_ACCEPTED)
            raise ValueError(f"{name} cannot be accepted: give one of {able}")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder: name the one that a training has written")
    first, *others = CHECKS
    findings = [_look(folder, first, accepted)]
    return findings + [_look(folder, name, accepted) for name in others] if findings[0].right else findings


def render_findings(findings: Iterable[Finding]) -> str:
    """Lay the findings out as a table of text."""
    return "".join(f"{found.name:<10} {'right' if found.right else 'WRONG'}  {found.detail}\n" for found in findings)


__all__ = ["Finding", "check_folder", "render_findings"]
