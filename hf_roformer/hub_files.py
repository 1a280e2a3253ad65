# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""What goes to the Hub, and in what order: all files of a folder and their checksums, in one commit.

A commit is made on the state that was looked at, or not at all. Files that an earlier push has brought and that are
gone by now are deleted; what somebody else put there stays.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.errors import RevisionNotFoundError

from .checksums import SUMS, checksums_of, parse_checksums, render_checksums

CARD = "README.md"
PIPELINES = {
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForSentenceEmbedding": "sentence-similarity",
    "Model": "feature-extraction",
}
BARE_CARD = """---
library_name: transformers
pipeline_tag: {pipeline}
tags:
{tags}
---

# {name}

A RoFormer (rotary position embedding), saved as `{kind}`, with {count:,} parameters.

## How to use

The network's code lies beside its weights; `trust_remote_code=True` runs it, so read it first.

```python
from transformers import {auto}

model = {auto}.from_pretrained({place!r}, trust_remote_code=True)
```

## Limits

Not recorded: what it was trained on, what it scores and under which licence it may be used. Ask whoever published it.
"""
TAGS = ("roformer", "hf_roformer", "rotary-position-embedding")


class Target(NamedTuple):
    """Where on the Hub files go, and by whose leave; without a token the one that is logged in."""

    repo_id: str
    revision: str | None = None
    create_pr: bool = False
    token: str | bool | None = None


class Remote(NamedTuple):
    """What lies there: the commit, the files' names, and the checksums that an earlier push has listed."""

    commit: str
    names: frozenset[str]
    checksums: dict[str, str]


class Pushed(NamedTuple):
    """What a push has done."""

    commit: CommitInfo
    changed: bool
    deleted: list[str]


def _info(api: HfApi, place: Target) -> Any:
    """Ask for the revision; a branch that is not there yet is made, from the main one."""
    try:
        return api.repo_info(place.repo_id, revision=place.revision, token=place.token)
    except RevisionNotFoundError:
        if place.create_pr or str(place.revision).startswith("refs/"):
            raise
    api.create_branch(place.repo_id, branch=str(place.revision), token=place.token, exist_ok=True)
    return api.repo_info(place.repo_id, revision=place.revision, token=place.token)


def _fetch(api: HfApi, place: Target, commit: str, name: str) -> Path:
    return Path(api.hf_hub_download(place.repo_id, name, revision=commit, token=place.token))


def look_at(api: HfApi, place: Target) -> Remote:
    """Return the state that a push starts from; a damaged list of checksums counts as none."""
    info = _info(api, place)
    names = frozenset(item.rfilename for item in info.siblings or ())
    if SUMS not in names:
        return Remote(info.sha, names, {})
    try:
        return Remote(info.sha, names, parse_checksums(_fetch(api, place, info.sha, SUMS).read_text("utf-8")))
    except ValueError:
        return Remote(info.sha, names, {})


def push_folder(
    api: HfApi,
    folder: Path,
    place: Target,
    remote: Remote,
    *,
    message: str,
    description: str = "",
    replaced: Iterable[str] = ("*",),
) -> Pushed:
    """Bring the files of a folder to the Hub in one commit; where nothing differs, none is made.

    replaced: patterns of the names that go, where an earlier push has brought them and the folder lacks them.
    """
    own = checksums_of(folder)
    others = {name: value for name, value in remote.checksums.items() if name in remote.names and name not in own}
    deleted = sorted(name for name in others if any(fnmatch(name, pattern) for pattern in replaced))
    listed = {name: value for name, value in others.items() if name not in deleted} | own
    operations: list[Any] = [CommitOperationAdd(name, str(Path(folder, name))) for name in own]
    operations.append(CommitOperationAdd(SUMS, render_checksums(listed).encode()))
    operations += [CommitOperationDelete(name) for name in deleted]
    commit = api.create_commit(
        place.repo_id,
        operations,
        commit_message=message,
        commit_description=description,
        token=place.token,
        revision=place.revision,
        create_pr=place.create_pr,
        # a pull request may stand on any commit
        parent_commit=None if place.create_pr else remote.commit,
    )
    return Pushed(commit, commit.oid != remote.commit, deleted)


def keep_card(api: HfApi, place: Target, remote: Remote, folder: Path, tags: list[str] | None) -> bool:
    """Put the card that lies there into the folder, with further tags if there are any; say whether there was one."""
    if CARD not in remote.names:
        return False
    shutil.copyfile(_fetch(api, place, remote.commit, CARD), folder / CARD)
    card = ModelCard.load(folder / CARD)
    missing = [tag for tag in tags or () if tag not in (card.data.tags or ())]
    if missing:
        card.data.tags = [*(card.data.tags or ()), *missing]
        card.save(folder / CARD)
    return True


def push_saved(
    save: Callable[[Path], Any],
    complete: Callable[[Path, Remote, str], Any],
    place: Target,
    *,
    private: bool | None,
    tags: list[str] | None,
    message: str,
    description: str | None,
    replaced: Iterable[str] = (),
) -> str:
    """Save, then look at what lies on the Hub, complete the folder, and push it; return where the commit is.

    save: writes the files into a folder, before any network is touched.
    complete: adds, knowing the folder, what lies on the Hub and the repository's name, what there is to add.
    """
    api = HfApi()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save(folder)
        if not place.create_pr:
            created = api.create_repo(place.repo_id, private=private, token=place.token, exist_ok=True)
            place = place._replace(repo_id=created.repo_id)
        remote = look_at(api, place)
        keep_card(api, place, remote, folder, tags)
        complete(folder, remote, place.repo_id)
        pushed = push_folder(
            api, folder, place, remote, message=message, description=description or "", replaced=replaced
        )
    return pushed.commit


def write_bare_card(folder: Path, model: Any, repo_id: str, tags: list[str] | None) -> None:
    """Write a card of what a model knows of itself, which says what it does not know."""
    kind = type(model).__name__
    ending = kind.removeprefix("HFRoFormer")
    auto = next(name for name, place in model.config.auto_map.items() if place.endswith(f".{kind}"))
    text = BARE_CARD.format(
        pipeline=PIPELINES.get(ending, "feature-extraction"),
        tags="\n".join(f"- {tag}" for tag in dict.fromkeys([*TAGS, *(tags or ())])),
        name=repo_id.split("/")[-1],
        kind=kind,
        count=model.num_parameters(),
        auto=auto,
        place=repo_id,
    )
    (folder / CARD).write_text(text, encoding="utf-8")


__all__ = ["Pushed", "Remote", "Target", "look_at", "push_folder", "push_saved", "write_bare_card"]
