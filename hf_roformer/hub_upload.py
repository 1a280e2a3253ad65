"""From a finished folder to a repository on the Hub, with everything looked at first; what fails says how to go on.

The folder is only read. Weights that have arrived are kept by the Hub, so a push that is given again sends what is
missing; the commit comes last, and is made whole or not at all.
"""

import argparse
import json
import logging
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import HFValidationError, validate_repo_id

from .checksums import SUMS, checksums_of, travelling
from .hub_files import Pushed, Target, look_at, push_folder
from .own_folders import FolderInUseError, reading_alone
from .publish_checks import check_folder, render_findings

logger = logging.getLogger(__name__)

TRIES = 5
# seconds: where the Hub does not say how long, and the most that is waited
WAIT, LONGEST_WAIT = 10.0, 300.0
MESSAGE = "Publish the folder"
Result = TypeVar("Result")


class Request(NamedTuple):
    """What is to be published, where, and how."""

    folder: Path
    repo: str
    public: bool | None = None
    revision: str | None = None
    create_pr: bool = False
    dry_run: bool = False
    message: str = MESSAGE
    accepted: tuple[str, ...] = ()
    token: str | None = None

    @property
    def command(self) -> str:
        """The command that asks for the same again."""
        words = ["python", "scripts/publish.py", str(self.folder), self.repo]
        words += {True: ["--public"], False: ["--private"]}.get(self.public, [])
        words += ["--revision", self.revision] if self.revision else []
        words += ["--create-pr"] if self.create_pr else []
        words += ["--dry-run"] if self.dry_run else []
        words += ["--message", self.message] if self.message != MESSAGE else []
        for name in self.accepted:
            words += ["--accept", name]
        return shlex.join(words)


class Outcome(NamedTuple):
    """What there is to say at the end, and the exit code."""

    words: str
    code: int


class RefusedError(Exception):
    """What cannot be published so, with the remedy."""


def some_words(told: str) -> str:
    """Take an option's value, which may not be blank."""
    if not told.strip():
        raise argparse.ArgumentTypeError("it is empty: give a value, or leave the option out")
    return told


def read_request(command_line: list[str]) -> Request:
    """Read `FOLDER REPO [--private | --public] [--revision NAME] [--create-pr] [--dry-run] ...`."""
    parser = argparse.ArgumentParser(description="Look at a finished folder and publish it on the Hub.")
    parser.add_argument("folder", type=Path, help="what a training or a conversion has written")
    parser.add_argument("repo", help="owner/name, or a name of yours")
    seen = parser.add_mutually_exclusive_group()
    seen.add_argument("--public", dest="public", action="store_true", default=None, help="for everybody to see")
    seen.add_argument(
        "--private", dest="public", action="store_false", help="for the owner alone (what is untold too)"
    )
    parser.add_argument(
        "--revision", type=some_words, help="a branch, which is made where it is not there; or refs/pr/NUMBER"
    )
    parser.add_argument("--create-pr", action="store_true", help="propose it as a pull request")
    parser.add_argument("--dry-run", action="store_true", help="look, and send nothing")
    parser.add_argument("--message", type=some_words, default=MESSAGE, help="what the commit says")
    parser.add_argument("--accept", action="append", default=[], metavar="CHECK", help="a check whose flaws are meant")
    told = vars(parser.parse_args(command_line))
    return Request(**{name: value for name, value in told.items() if name != "accept"}, accepted=tuple(told["accept"]))


def refuse_bad_name(repo: str) -> None:
    """Refuse what cannot be a repository's name."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise RefusedError(
            f"{repo!r} is no name for a repository: give owner/name, each of letters, digits, '-', '_' and '.', not "
            f"beginning or ending with '-' or '.', 96 characters at most"
        ) from error


# what goes wrong, in words that say what to do


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status_words(status: int, repo: str) -> str:
    words = {
        401: "the Hub does not know the token: it was mistyped, revoked or has run out. Make a new one at "
        f"{constants.ENDPOINT}/settings/tokens, then `hf auth login --force`, or set HF_TOKEN",
        403: f"the token may not write to {repo}: give it the permission to write there at "
        f"{constants.ENDPOINT}/settings/tokens, or propose the folder with --create-pr",
        404: f"{repo} is not there, or this token may not see it: see that its name is right",
        409: f"somebody else is changing {repo}: see what is new there",
        412: f"{repo} has changed since this push began: see what is new there; nothing of it was overwritten",
        413: "a file is too large for the Hub: save the model with a lower max_shard_size",
        429: "the Hub was asked too often, and still says so after waiting: try it later",
    }
    if status >= 500:
        return f"the Hub failed ({status}); what had arrived is kept there"
    return words.get(status, f"the Hub refused it ({status})")


def explain(error: BaseException, repo: str) -> str:
    """Say what an error of the network means and what to do; one that is none of the network says so itself."""
    for cause in _causes(error):
        if isinstance(cause, OfflineModeIsEnabled):
            return "offline mode is on: unset HF_HUB_OFFLINE"
        if isinstance(cause, RevisionNotFoundError):
            return f"{repo} has no such revision: see that its name is right"
        if isinstance(cause, HfHubHTTPError) and cause.response is not None:
            said = " ".join(str(getattr(cause, "server_message", None) or "").split())
            return _status_words(cause.response.status_code, repo) + (f" (it says: {said})" if said else "")
        if isinstance(cause, ValueError) and "metadata in README.md" in str(cause):
            return f"the Hub does not take the card: {' '.join(str(cause).split())}"
        if isinstance(cause, HTTPError):
            return f"{constants.ENDPOINT} cannot be reached, or the connection broke ({type(cause).__name__}: {cause})"
        if isinstance(cause, json.JSONDecodeError):
            return (
                f"what answers at {constants.ENDPOINT} is no Hub: correct HF_ENDPOINT, or log in to the network first"
            )
    return own_words(error)


def own_words(error: BaseException) -> str:
    """Return what an error says; of one that was not foreseen its kind too."""
    foreseen = isinstance(error, (RefusedError, FolderInUseError, ValueError, OSError))
    return str(error) if foreseen else f"{type(error).__name__}: {error}"


def _wait_of(error: HfHubHTTPError) -> float:
    told = error.response.headers.get("Retry-After", "")
    return min(float(told), LONGEST_WAIT) if told.isdigit() else WAIT


def patiently(call: Callable[[], Result]) -> Result:
    """Ask, and where the Hub says that it was asked too often, wait as long as it says and ask again."""
    for _ in range(TRIES - 1):
        try:
            return call()
        except HfHubHTTPError as error:
            if error.response.status_code != 429:
                raise
            logger.warning("the Hub was asked too often: waiting %g s", _wait_of(error))
            time.sleep(_wait_of(error))
    return call()


# the push


def _owned(api: HfApi, request: Request) -> str:
    """Return the repository's full name; refuse that of another owner, to whom files can only be proposed."""
    known = patiently(api.whoami)
    mine = [known["name"], *(item["name"] for item in known.get("orgs", ()))]
    owner, _, name = request.repo.rpartition("/")
    if not owner:
        return f"{known['name']}/{name}"
    if owner not in mine and not request.create_pr:
        raise RefusedError(
            f"{request.repo} belongs to {owner}, and the token to {known['name']}: publish it as "
            f"{known['name']}/{name}" + "".join(f" or {other}/{name}" for other in mine[1:]) + ", or propose it with "
            "--create-pr"
        )
    return request.repo


def _visibility(api: HfApi, request: Request) -> bool:
    """Return whether the repository is private; refuse what would be seen by more, or by fewer, than was told."""
    try:
        is_private = bool(patiently(lambda: api.repo_info(request.repo)).private)
    except RepositoryNotFoundError as error:
        if not request.create_pr:
            raise
        raise RefusedError(
            f"{request.repo} is not there, or this token may not see it, so nothing can be proposed to it: see that "
            "its name is right; if it is to be made, publish without --create-pr first"
        ) from error
    if not is_private and not request.public:
        raise RefusedError(
            f"{request.repo} is public, and the folder would be: give --public if that is meant, or another name"
        )
    if is_private and request.public:
        raise RefusedError(
            f"{request.repo} is private, and no push changes that: make it public at "
            f"{constants.ENDPOINT}/{request.repo}/settings first, or leave --public out"
        )
    return is_private


def _confirm(api: HfApi, place: Target, pushed: Pushed, folder: Path) -> None:
    """See that the commit holds every file at its size, and each large one under its checksum."""
    tree = patiently(lambda: list(api.list_repo_tree(place.repo_id, recursive=True, revision=pushed.commit.oid)))
    there = {item.path: item for item in tree}
    own = checksums_of(folder)
    for name in own:
        item: Any = there.get(name)
        large = getattr(item, "lfs", None)
        if item is None or item.size != (folder / name).stat().st_size or (large and large.sha256 != own[name]):
            raise RefusedError(f"{name} is not on the Hub as it is here")


def push(request: Request) -> tuple[Pushed, Target, bool]:
    """Bring a folder to the Hub in one commit; return what was done, where, and whether it is private.

    Raises:
        RefusedError: for what belongs to somebody else, and for what more people would see, or fewer, than was told.
    """
    api = HfApi(token=request.token)
    place = Target(_owned(api, request), request.revision, request.create_pr, request.token)
    request = request._replace(repo=place.repo_id)
    if not request.create_pr:
        patiently(lambda: api.create_repo(place.repo_id, private=not request.public, exist_ok=True))
    is_private = _visibility(api, request)

    def attempt() -> Pushed:
        return push_folder(api, request.folder, place, look_at(api, place), message=request.message)

    pushed = patiently(attempt)
    _confirm(api, place, pushed, request.folder)
    return pushed, place, is_private


def _farewell(pushed: Pushed, place: Target, is_private: bool) -> str:
    address = getattr(pushed.commit, "pr_url", None) or pushed.commit.commit_url
    seen = "private" if is_private else "public"
    if not pushed.changed:
        return f"Nothing differs from what {place.repo_id} ({seen}) holds: no commit was made; the last is {address}\n"
    gone = f"Deleted there, for the folder no longer has it: {', '.join(pushed.deleted)}\n" if pushed.deleted else ""
    revision = f" --revision {pushed.commit.oid}" if place.revision or place.create_pr else ""
    return (
        f"Published in {place.repo_id} ({seen}): {address}\n{gone}"
        f"See whether all has arrived by: python scripts/verify.py {place.repo_id}{revision}\n"
    )


def _send(request: Request) -> Outcome:
    try:
        pushed, place, is_private = push(request)
    except KeyboardInterrupt:
        return Outcome(f"Interrupted. {how_to_go_on(request)}", 130)
    except Exception as error:
        # a refusal has its cause in its words already
        words = str(error) if isinstance(error, RefusedError) else explain(error, request.repo)
        return Outcome(f"{words}. {how_to_go_on(request)}", 1)
    return Outcome(_farewell(pushed, place, is_private), 0)


def how_to_go_on(request: Request) -> str:
    """Say what there is to do after a push that did not come to its end."""
    return f"{request.folder} is as it was; then go on by:\n  {request.command}\n"


def _without(secret: str | None, words: str) -> str:
    return words.replace(secret, "<token>") if secret else words


def _told(request: Request) -> str:
    names = [*travelling(request.folder), SUMS]
    return f"Nothing was sent, as asked. {len(names)} files would travel to {request.repo}: {', '.join(names)}\n"


def _publish(request: Request) -> Outcome:
    token = request.token or get_token()
    try:
        refuse_bad_name(request.repo)
        findings = check_folder(request.folder, request.accepted)
    except (RefusedError, ValueError, OSError) as error:
        return Outcome(f"{error}. Nothing was sent.\n", 1)
    table = render_findings(findings)
    if not all(finding.right for finding in findings):
        wrong = ", ".join(finding.name for finding in findings if not finding.right)
        return Outcome(f"{table}\nNothing was sent: see {wrong}. Mend it, {how_to_go_on(request)}", 1)
    if request.dry_run:
        return Outcome(f"{table}\n{_told(request)}", 0)
    if not token:
        words = (
            f"there is no token: make one that may write at {constants.ENDPOINT}/settings/tokens, then "
            f"`hf auth login`, or set HF_TOKEN. {how_to_go_on(request)}"
        )
        return Outcome(f"{table}\n{words}", 1)
    sent = _send(request._replace(token=token))
    return Outcome(_without(token, f"{table}\n{sent.words}"), sent.code)


def publish(request: Request) -> Outcome:
    """Look at a folder and, if all is right, publish it; the words say what was found, what was done, and what to do.

    No error of the push escapes, and no token is in the words. What is at work in the folder is not disturbed, and
    nothing begins to work there meanwhile.
    """
    try:
        with reading_alone(request.folder):
            return _publish(request)
    except FolderInUseError as error:
        return Outcome(f"{error}. Nothing was sent.\n", 1)


def publish_run(folder: Path, training: Any) -> str:
    """Publish the folder of a finished run, where its settings ask for that: everything of it is on the disk by now.

    Raises:
        SystemExit: with what there is to do, where that fails.
    """
    if not training.push_to_hub:
        return ""
    private = training.hub_private_repo
    request = Request(
        folder,
        training.hub_model_id or folder.absolute().name,
        public=None if private is None else not private,
        revision=getattr(training, "hub_revision", None),
        token=training.hub_token,
    )
    outcome = publish(request)
    if outcome.code:
        raise SystemExit(outcome.words)
    return outcome.words


__all__ = ["Outcome", "Request", "explain", "publish", "publish_run", "push", "read_request"]
