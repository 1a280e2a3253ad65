"""A folder goes to a Hub and comes back whole, whatever happens on the way; the Hub here is `hub_server`."""

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import hub_server
import huggingface_hub
import pytest
import torch
import transformers
from finished_folders import CHARACTERS, build, build_tokenizer, flip, state_of, write_folder
from hub_server import Fault, Server, render_summary, summary
from huggingface_hub import constants
from isolated import surroundings
from test_remote_code import AUTO, answers_of, shut_the_door

import hf_roformer
from hf_roformer import hub_files, hub_upload
from hf_roformer.checksums import SUMS, find_damage, parse_checksums, read_checksums, render_checksums
from hf_roformer.hub_upload import publish, publish_run, read_request
from hf_roformer.repository_check import read_question, verify
from hf_roformer.trainer import ResumableTrainer

ROOT = Path(__file__).parents[1]
TOKEN = "token-of-ada"
# how the client hands a file to its own library
pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw:DeprecationWarning"),
    # the Trainer hides the bars of a push, and shows them again
    pytest.mark.filterwarnings("ignore:Cannot enable progress bars:UserWarning"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("run") / "reviews"
    return SimpleNamespace(folder=folder, model=write_folder(folder))


def point_at(server, cache, monkeypatch):
    """Let the client of this process ask our Hub; it reads the variables of the environment at its import alone."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.utils._http.time, "sleep", lambda seconds: server.waits.append(seconds))


@pytest.fixture
def server(tmp_path, monkeypatch):
    with Server() as server:
        server.waits = []
        point_at(server, tmp_path / "cache", monkeypatch)
        yield server


@pytest.fixture
def hub(server, monkeypatch):
    """The Hub, and a publisher who takes for granted what is looked at beforehand."""
    monkeypatch.setattr(hub_upload, "check_folder", lambda *_: [])
    return server.hub


@pytest.fixture
def folder(written, tmp_path):
    return Path(shutil.copytree(written.folder, tmp_path / "reviews"))


def send(folder, *words):
    return publish(read_request([str(folder), *words]))


def asked(hub, method, path):
    return sum(count for m, p, _, count in summary(hub.log) if (m, p) == (method, path))


def replace_answer(monkeypatch, asked, function):
    """Let the Hub answer one kind of request by a function."""
    routes = [(*route[:3], function if route[:2] == asked else route[3]) for route in hub_server.ROUTES]
    assert routes != hub_server.ROUTES
    monkeypatch.setattr(hub_server, "ROUTES", routes)


COMMITS = ("POST", "/api/models/{repo}/commit/{rev}")
UPLOADS = ("PUT", "/lfs/{repo}/{sha256}")

# the way up


def test_a_push_makes_one_private_commit_that_holds_the_folder_and_its_checksums(hub, folder):
    before = state_of(folder)
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 0, outcome.words
    repository = hub.repositories["ada/reviews"]
    assert repository.private
    pushed, first = repository.history()
    assert pushed.parent == first.oid
    own = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != SUMS}
    there = {name: repository.data(value) for name, value in pushed.files.items() if name != ".gitattributes"}
    assert parse_checksums(there.pop(SUMS).decode()) == read_checksums(folder)
    assert there == own
    assert asked(hub, *COMMITS) == 1
    assert state_of(folder) == before
    assert f"Published in ada/reviews (private): {hub.url}/ada/reviews/commit/{pushed.oid}" in outcome.words


def test_weights_go_the_way_of_large_files_and_text_goes_in_the_commit(hub, folder):
    send(folder, "ada/reviews")
    pushed = hub.repositories["ada/reviews"].history()[0]
    assert {name for name, value in pushed.files.items() if isinstance(value, dict)} == {"model.safetensors"}
    assert asked(hub, *UPLOADS) == 1
    assert asked(hub, "POST", "/lfs/{repo}/{sha256}/verify") == 1


def test_the_log_of_a_push_says_how_often_what_was_asked(hub, folder):
    send(folder, "ada/reviews")
    told = render_summary(hub.log)
    assert told.splitlines()[0].split() == ["method", "path", "status", "count"]
    counts = {(method, path): count for method, path, status, count in summary(hub.log) if status == 200}
    assert counts == {
        ("GET", "/api/whoami-v2"): 1,
        ("POST", "/api/repos/create"): 1,
        ("GET", "/api/models/{repo}"): 2,
        ("POST", "/api/validate-yaml"): 1,
        ("POST", "/api/models/{repo}/preupload/{rev}"): 1,
        ("POST", "/{repo}.git/info/lfs/objects/batch"): 1,
        ("PUT", "/lfs/{repo}/{sha256}"): 1,
        ("POST", "/lfs/{repo}/{sha256}/verify"): 1,
        ("POST", "/api/models/{repo}/commit/{rev}"): 1,
        ("GET", "/api/models/{repo}/tree/{rev}"): 1,
    }


def test_a_push_of_what_is_there_makes_no_commit_and_says_so(hub, folder):
    send(folder, "ada/reviews")
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 0
    assert "Nothing differs" in outcome.words
    assert len(hub.repositories["ada/reviews"].history()) == 2
    assert asked(hub, *UPLOADS) == 1


def test_a_changed_file_alone_travels_and_a_file_that_is_gone_goes_there_too(hub, folder):
    send(folder, "ada/reviews")
    repository = hub.repositories["ada/reviews"]
    files = {**repository.at("main").files, "by_hand.txt": b"of somebody"}
    repository.commit("main", files, "by hand")
    (folder / "vocab.txt").unlink()
    (folder / "README.md").write_text((folder / "README.md").read_text() + "\nMore.\n")
    outcome = send(folder, "ada/reviews", "--message", "Say more")
    assert "Deleted there, for the folder no longer has it: vocab.txt" in outcome.words
    pushed, before, *_ = repository.history()
    changed = {name for name in pushed.files if pushed.files[name] != before.files.get(name)}
    assert changed == {"README.md", SUMS}
    assert set(before.files) - set(pushed.files) == {"vocab.txt"}
    assert pushed.files["by_hand.txt"] == b"of somebody"
    assert pushed.title == "Say more"
    assert asked(hub, *UPLOADS) == 1


def test_a_branch_is_made_where_it_is_not_there_and_the_main_one_stays(hub, folder):
    assert send(folder, "ada/reviews", "--revision", "trial").code == 0
    assert send(folder, "ada/reviews", "--revision", "trial").code == 0
    repository = hub.repositories["ada/reviews"]
    assert len(repository.history("trial")) == 2
    assert len(repository.history("main")) == 1
    assert asked(hub, "POST", "/api/models/{repo}/branch/{name}") == 1


def test_a_pull_request_is_proposed_to_another_owner_and_a_second_push_goes_into_it(hub, folder):
    hub.create(None, {}, json.dumps({"name": "shared", "private": False}).encode(), "token-of-bob")
    outcome = send(folder, "bob/shared", "--create-pr")
    assert "bob/shared is public" in outcome.words
    outcome = send(folder, "bob/shared", "--create-pr", "--public")
    assert outcome.code == 0, outcome.words
    assert f"{hub.url}/bob/shared/discussions/1" in outcome.words
    repository = hub.repositories["bob/shared"]
    assert "model.safetensors" in repository.at("refs/pr/1").files
    assert "model.safetensors" not in repository.at("main").files


def test_a_name_without_an_owner_is_that_of_the_token_and_a_group_of_its_user_is_allowed(hub, folder):
    assert send(folder, "reviews").code == 0
    assert send(folder, "society/reviews", "--public").code == 0
    assert {name: repository.private for name, repository in hub.repositories.items()} == {
        "ada/reviews": True,
        "society/reviews": False,
    }


def test_a_repository_that_is_public_gets_nothing_unless_that_is_told(hub, folder):
    hub.create(None, {}, json.dumps({"name": "open", "private": False}).encode(), TOKEN)
    outcome = send(folder, "ada/open")
    assert outcome.code == 1
    assert "is public, and the folder would be: give --public" in outcome.words
    assert len(hub.repositories["ada/open"].history()) == 1
    assert send(folder, "ada/open", "--public").code == 0


@pytest.mark.parametrize("words", [("ada/closed", "--public"), ("ada/closed", "--create-pr", "--public")])
def test_a_repository_that_is_private_gets_nothing_that_was_meant_for_everybody(hub, folder, words):
    hub.create(None, {}, json.dumps({"name": "closed", "private": True}).encode(), TOKEN)
    outcome = send(folder, *words)
    assert outcome.code == 1
    assert (
        f"ada/closed is private, and no push changes that: make it public at {hub.url}/ada/closed/settings first, or "
        "leave --public out"
    ) in outcome.words
    assert list(hub.repositories["ada/closed"].refs) == ["main"]
    assert len(hub.repositories["ada/closed"].history()) == 1
    hub.repositories["ada/closed"].private = False
    assert send(folder, *words).code == 0


# what goes wrong


@pytest.mark.parametrize("asked", [("GET", "/api/whoami-v2"), ("GET", "/api/models/{repo}"), COMMITS])
def test_what_answers_and_is_no_hub_is_told_apart(hub, folder, monkeypatch, asked):
    replace_answer(monkeypatch, asked, lambda *_: (b"<html>Log in here</html>", {"Content-Type": "text/html"}))
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert f"what answers at {hub.url} is no Hub: correct HF_ENDPOINT" in outcome.words
    assert outcome.words.endswith(f"go on by:\n  python scripts/publish.py {folder} ada/reviews\n")


def test_an_answer_that_lacks_what_a_hub_tells_ends_in_words(hub, folder, monkeypatch):
    replace_answer(monkeypatch, ("GET", "/api/whoami-v2"), lambda *_: {"ok": True})
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert outcome.words.startswith(f"\nKeyError: 'name'. {folder} is as it was; then go on by:")


@pytest.mark.parametrize("how", ["vanishes", "becomes a link to nothing"])
def test_a_file_that_goes_while_it_is_pushed_ends_in_words_and_makes_no_commit(hub, folder, monkeypatch, how):
    def spoil(listed):
        (folder / "vocab.txt").unlink()
        if how != "vanishes":
            (folder / "vocab.txt").symlink_to(folder / "gone")
        return render_checksums(listed)

    monkeypatch.setattr(hub_files, "render_checksums", spoil)
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert f"{folder}/vocab.txt" in outcome.words
    assert outcome.words.endswith(f"go on by:\n  python scripts/publish.py {folder} ada/reviews\n")
    assert len(hub.repositories["ada/reviews"].history()) == 1


def test_without_a_token_the_user_is_told_how_to_get_one_and_nothing_is_asked(hub, folder, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(hub_upload, "get_token", lambda: None)
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert f"there is no token: make one that may write at {hub.url}/settings/tokens" in outcome.words
    assert hub.log == []


def test_offline_the_user_is_told_what_to_unset(hub, folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert "offline mode is on: unset HF_HUB_OFFLINE" in outcome.words
    assert f"go on by:\n  python scripts/publish.py {folder} ada/reviews\n" in outcome.words


def test_where_nothing_answers_the_user_is_told_so(hub, folder, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert "http://127.0.0.1:9 cannot be reached, or the connection broke (ConnectError" in outcome.words


def test_a_name_of_another_owner_is_refused_with_the_names_that_would_do(hub, folder):
    outcome = send(folder, "bob/reviews")
    assert outcome.code == 1
    assert "bob/reviews belongs to bob, and the token to ada" in outcome.words
    assert "publish it as ada/reviews or society/reviews, or propose it with --create-pr" in outcome.words
    assert hub.repositories == {}


@pytest.mark.parametrize(
    ("token", "told"),
    [
        ("a-token-of-nobody", "the Hub does not know the token: it was mistyped, revoked or has run out"),
        ("token-of-a-reader", "the token may not write to ada/reviews: give it the permission to write"),
    ],
)
def test_a_token_that_is_unknown_or_may_only_read_is_told_of_and_never_shown(hub, folder, monkeypatch, token, told):
    hub.create(None, {}, json.dumps({"name": "reviews", "private": True}).encode(), TOKEN)
    monkeypatch.setenv("HF_TOKEN", token)
    before = state_of(folder)
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert told in outcome.words
    assert token not in outcome.words
    assert len(hub.repositories["ada/reviews"].history()) == 1
    assert state_of(folder) == before


def test_a_repository_or_a_revision_that_is_not_there_is_named(hub, folder):
    told = send(folder, "bob/nowhere", "--create-pr").words
    assert "bob/nowhere is not there, or this token may not see it, so nothing can be proposed to it" in told
    assert "if it is to be made, publish without --create-pr first" in told
    assert "ada/reviews has no such revision" in send(folder, "ada/reviews", "--revision", "refs/pr/7").words


STATUSES = {
    401: "the Hub does not know the token",
    403: "the token may not write to ada/reviews",
    404: "ada/reviews is not there",
    409: "somebody else is changing ada/reviews",
    429: "the Hub was asked too often",
    500: r"the Hub failed (500)",
    503: r"the Hub failed (503)",
}


# that a repository is there already is no fault
POINTS = [(path, status) for path in ("/commit/", "/preupload/", "/objects/batch") for status in STATUSES]
POINTS += [("repos/create", status) for status in STATUSES if status != 409]


@pytest.mark.parametrize(("path", "status"), POINTS)
def test_a_refusal_at_any_point_says_what_to_do_and_the_same_command_goes_on(hub, folder, path, status):
    fault = Fault("POST", path, status, times=99)
    hub.faults.append(fault)
    before = state_of(folder)
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert STATUSES[status] in outcome.words
    assert f"python scripts/publish.py {folder} ada/reviews\n" in outcome.words
    assert TOKEN not in outcome.words
    assert state_of(folder) == before
    repository = hub.repositories.get("ada/reviews")
    assert repository is None or len(repository.history()) == 1
    fault.times = 0
    assert send(folder, "ada/reviews").code == 0
    assert len(hub.repositories["ada/reviews"].history()) == 2


@pytest.mark.parametrize("path", ["/commit/", "/preupload/", "/objects/batch", "repos/create", "validate-yaml"])
def test_a_hub_that_was_asked_too_often_is_waited_for_as_long_as_it_says(hub, server, folder, path):
    hub.faults.append(Fault("POST", path, 429, headers={"Retry-After": "7"}))
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 0, outcome.words
    # the library adds a second
    assert server.waits in ([7.0], [8.0])
    assert len(hub.repositories["ada/reviews"].history()) == 2


def test_a_commit_whose_answer_is_lost_is_not_made_again(hub, folder):
    hub.faults.append(Fault("POST", "/commit/", 500, after_the_work=True))
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert "the Hub failed (500)" in outcome.words
    again = send(folder, "ada/reviews")
    assert again.code == 0
    assert "Nothing differs" in again.words
    assert len(hub.repositories["ada/reviews"].history()) == 2


def test_a_commit_in_between_is_not_overwritten(hub, folder, monkeypatch):
    send(folder, "ada/reviews")
    repository = hub.repositories["ada/reviews"]
    (folder / "README.md").write_text((folder / "README.md").read_text() + "\nOurs.\n")

    def meanwhile(*arguments, **others):
        seen = look_at(*arguments, **others)
        repository.commit("main", {**repository.at("main").files, "README.md": b"---\n---\ntheirs"}, "theirs")
        return seen

    look_at = hub_upload.look_at
    monkeypatch.setattr(hub_upload, "look_at", meanwhile)
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert "ada/reviews has changed since this push began" in outcome.words
    assert repository.at("main").files["README.md"] == b"---\n---\ntheirs"


def sharded(tmp_path):
    folder = tmp_path / "sharded"
    write_folder(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    return folder


def test_a_connection_that_is_cut_is_taken_up_again(hub, server, folder):
    hub.faults.append(Fault("PUT", "/lfs/", cut_after=1000))
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 0, outcome.words
    assert ("PUT", "/lfs/{repo}/{sha256}", "cut") in hub.log
    assert server.waits
    repository = hub.repositories["ada/reviews"]
    assert (
        repository.data(repository.at("main").files["model.safetensors"])
        == (folder / "model.safetensors").read_bytes()
    )


def test_after_a_connection_that_stays_cut_only_what_is_missing_is_sent(hub, tmp_path):
    folder = sharded(tmp_path)
    checksums = read_checksums(folder)
    shards = sorted(path.name for path in folder.glob("model-*.safetensors"))
    hub.faults.append(Fault("PUT", checksums[shards[1]], cut_after=100, times=99))
    before = state_of(folder)
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert "the connection broke" in outcome.words
    assert state_of(folder) == before
    repository = hub.repositories["ada/reviews"]
    assert len(repository.history()) == 1
    arrived = set(repository.large)
    assert arrived == {checksums[name] for name in shards} - {checksums[shards[1]]}
    hub.faults.clear()
    hub.log.clear()
    assert send(folder, "ada/reviews").code == 0
    assert asked(hub, *UPLOADS) == 1
    assert set(repository.large) == {checksums[name] for name in shards}


def test_an_interrupted_push_says_how_to_go_on(hub, folder, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(hub_upload, "push_folder", interrupt)
    outcome = send(folder, "ada/reviews", "--public", "--revision", "my trial")
    assert outcome.code == 130
    assert f"python scripts/publish.py {folder} ada/reviews --public --revision 'my trial'\n" in outcome.words


def test_a_card_that_the_hub_does_not_take_is_told_in_its_words(hub, folder):
    card = folder / "README.md"
    card.write_text(card.read_text().replace("apache-2.0", "appache", 1))
    outcome = send(folder, "ada/reviews")
    assert outcome.code == 1
    assert 'the Hub does not take the card: Invalid metadata in README.md. - "license" must be one of' in outcome.words


def test_a_file_that_did_not_arrive_as_it_is_here_is_found(hub, folder, monkeypatch):
    def shortened(*arguments):
        items = hub_server.Hub.tree(*arguments)
        return [{**item, "size": item["size"] - (item["path"] == "config.json")} for item in items]

    replace_answer(monkeypatch, ("GET", "/api/models/{repo}/tree/{rev}"), shortened)
    assert "config.json is not on the Hub as it is here" in send(folder, "ada/reviews").words


# the way down


def told_by_verify(*words):
    return verify(read_question([str(word) for word in words]))


def test_verify_fetches_a_repository_and_finds_what_was_changed_there(hub, folder, tmp_path, monkeypatch):
    send(folder, "ada/reviews")
    assert "all " in told_by_verify("ada/reviews").words
    repository = hub.repositories["ada/reviews"]
    good = repository.at("main")
    value = good.files["model.safetensors"]
    data = bytearray(repository.data(value))
    data[-1] ^= 1
    repository.large["0" * 64] = bytes(data)
    changed = {**good.files, "model.safetensors": {"sha256": "0" * 64}, "more.py": b"x = 1\n"}
    del changed["vocab.txt"]
    repository.commit("main", changed, "meant badly")
    told = told_by_verify("ada/reviews")
    assert told.code == 1
    assert [line.split(" ")[0] for line in told.words.splitlines()[:3]] == [
        "model.safetensors",
        "more.py",
        "vocab.txt",
    ]
    assert told_by_verify("ada/reviews", "--revision", good.oid).code == 0


def test_verify_says_what_to_do_for_a_name_that_is_none_or_not_there_and_offline(hub, monkeypatch):
    assert "is no name for a repository" in told_by_verify("a/b/c").words
    lost = "there is no folder ada/nowhere; as a repository of the Hub, owner/name: ada/nowhere is not there"
    assert lost in told_by_verify("ada/nowhere").words
    assert "is no folder: --write needs one" in told_by_verify("ada/nowhere", "--write").words
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    told = told_by_verify("runs/typo")
    assert told.code == 1
    assert told.words.startswith(
        "there is no folder runs/typo; as a repository of the Hub, owner/name: offline mode is on"
    )


def test_verify_tells_what_is_no_hub_apart(hub, monkeypatch):
    replace_answer(monkeypatch, ("GET", "/api/models/{repo}/revision/{rev}"), lambda *_: (b"<html>", {}))
    told = told_by_verify("ada/reviews")
    assert told.code == 1
    assert f"what answers at {hub.url} is no Hub" in told.words


@pytest.mark.parametrize("damaged", [b"no checksum\n", b"\xff\xfe"])
def test_a_damaged_list_that_lies_there_counts_as_none_and_is_mended(hub, folder, damaged):
    send(folder, "ada/reviews")
    repository = hub.repositories["ada/reviews"]
    repository.commit("main", {**repository.at("main").files, SUMS: damaged}, "by hand")
    (folder / "vocab.txt").unlink()
    assert send(folder, "ada/reviews").code == 0
    files = repository.at("main").files
    listed = parse_checksums(repository.data(files[SUMS]).decode())
    assert listed == {name: value for name, value in read_checksums(folder).items() if name != "vocab.txt"}
    # nobody can know any more that it was of an earlier push
    assert "vocab.txt" in files


# the library's own ways to push


def whole(hub, name, folder):
    """Fetch a repository; say which of its files the list of checksums has otherwise, and the names of all."""
    place = huggingface_hub.snapshot_download(name, local_dir=folder)
    return find_damage(place, read_checksums(place)), {path.name for path in Path(place).iterdir()}


def test_a_model_publishes_itself_with_code_card_and_checksums_and_its_tokenizer_may_follow(hub, tmp_path):
    model = build("ForMaskedLM")
    model.push_to_hub("ada/own", private=True, tags=["a-tag"])
    damage, names = whole(hub, "ada/own", tmp_path / "first")
    assert damage == []
    assert {"model.safetensors", "modeling_roformer.py", "README.md", SUMS} <= names
    card = huggingface_hub.ModelCard.load(tmp_path / "first" / "README.md")
    assert card.data.pipeline_tag == "fill-mask"
    assert {"hf_roformer", "a-tag"} <= set(card.data.tags)
    assert card.data.license is None
    assert "AutoModelForMaskedLM.from_pretrained('ada/own', trust_remote_code=True)" in card.text
    build_tokenizer().push_to_hub("ada/own")
    damage, names = whole(hub, "ada/own", tmp_path / "second")
    assert damage == []
    assert {"model.safetensors", "tokenizer.json", "tokenization_roformer.py", "vocab.txt"} <= names
    model.push_to_hub("ada/own", max_shard_size="20KB")
    damage, names = whole(hub, "ada/own", tmp_path / "third")
    assert damage == []
    assert "model.safetensors" not in names
    assert {"model.safetensors.index.json", "tokenizer.json"} <= names
    assert hub.repositories["ada/own"].private


def test_a_card_that_lies_there_stays_and_gets_the_tags(hub, written, tmp_path):
    send(written.folder, "ada/reviews")
    written.model.push_to_hub("ada/reviews", tags=["a-tag"])
    damage, _ = whole(hub, "ada/reviews", tmp_path / "there")
    assert damage == []
    card = huggingface_hub.ModelCard.load(tmp_path / "there" / "README.md")
    assert card.data.license == "apache-2.0"
    assert card.data.tags[-1] == "a-tag"


def test_a_model_that_was_loaded_brings_the_tokenizer_of_its_folder_along(hub, written, tmp_path):
    model = hf_roformer.HFRoFormerForSequenceClassification.from_pretrained(written.folder)
    model.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id="ada/saved", private=True)
    damage, names = whole(hub, "ada/saved", tmp_path / "there")
    assert damage == []
    assert {"tokenizer.json", "vocab.txt", "README.md", "model.safetensors"} <= names
    # the folder of the user holds what was saved, and nothing of the push
    assert SUMS not in {path.name for path in (tmp_path / "saved").iterdir()}


def test_a_model_of_a_folder_without_a_tokenizer_brings_none(hub, tmp_path):
    build("ForMaskedLM").save_pretrained(tmp_path / "bare")
    hf_roformer.HFRoFormerForMaskedLM.from_pretrained(tmp_path / "bare").push_to_hub("ada/bare")
    damage, names = whole(hub, "ada/bare", tmp_path / "there")
    assert damage == []
    assert "model.safetensors" in names
    assert not [name for name in names if "tokeniz" in name or name == "vocab.txt"]


def test_a_model_is_saved_before_any_network_is_touched(hub, monkeypatch):
    model = build("Model")
    monkeypatch.setattr(type(model), "save_pretrained", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.push_to_hub("ada/own")
    assert hub.log == []


ROWS = [{"input_ids": [2, 5, 6, 3], "labels": [2, 5, 6, 3]}] * 4


def build_trainer(folder, **told):
    arguments = {"max_steps": 2, "save_steps": 1, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    hub = {"push_to_hub": True, "hub_model_id": "ada/trained", "hub_token": TOKEN}
    settings = transformers.TrainingArguments(str(folder), **arguments, **hub, **told)
    return ResumableTrainer(build("ForMaskedLM"), settings, train_dataset=ROWS, processing_class=build_tokenizer())


def test_a_trainer_publishes_a_whole_repository_and_nothing_of_its_own(hub, tmp_path):
    trainer = build_trainer(tmp_path / "run")
    assert hub.log == []
    trainer.train()
    while_training = set(hub.repositories["ada/trained"].at("main").files)
    trainer.push_to_hub()
    titles = [commit.title for commit in hub.repositories["ada/trained"].history()]
    assert hub.repositories["ada/trained"].private
    assert titles[0] == "End of training"
    assert "Training in progress" in titles[1]
    damage, names = whole(hub, "ada/trained", tmp_path / "there")
    assert damage == []
    assert {"model.safetensors", "modeling_roformer.py", "tokenizer.json", "README.md", SUMS} <= names
    own = {"training_args.bin", "optimizer.pt", "trainer_state.json", "checkpoint-2", "seal.json", "arithmetic.json"}
    assert not own & names
    assert "model.safetensors" in while_training
    assert not own & while_training
    assert TOKEN.encode() not in b"".join(
        path.read_bytes() for path in (tmp_path / "there").glob("*.*") if path.is_file()
    )


def test_a_checkpoint_that_is_to_be_resumed_from_travels_beside_without_the_pickled_arguments(hub, tmp_path):
    trainer = build_trainer(tmp_path / "run", hub_strategy="checkpoint", hub_always_push=True)
    trainer.train()
    names = set(hub.repositories["ada/trained"].at("main").files)
    assert {"last-checkpoint/optimizer.pt", "last-checkpoint/model.safetensors", "model.safetensors"} <= names
    assert "last-checkpoint/training_args.bin" not in names
    assert (tmp_path / "run" / "checkpoint-2" / "training_args.bin").is_file()
    damage, _ = whole(hub, "ada/trained", tmp_path / "there")
    assert damage == []


def test_a_model_from_the_hub_brings_the_tokenizer_of_its_repository(hub, written, tmp_path):
    written.model.push_to_hub("ada/first", private=True)
    build_tokenizer().push_to_hub("ada/first")
    loaded = hf_roformer.HFRoFormerForSequenceClassification.from_pretrained("ada/first")
    loaded.push_to_hub("ada/second", private=True)
    damage, names = whole(hub, "ada/second", tmp_path / "there")
    assert damage == []
    assert {"tokenizer.json", "vocab.txt", "tokenization_roformer.py"} <= names


def test_a_hub_that_fails_stops_no_training_and_the_checkpoints_are_whole(hub, tmp_path, caplog):
    hub.faults.append(Fault("POST", "repos/create", 500, times=99))
    trainer = build_trainer(tmp_path / "run")
    trainer.train()
    assert trainer.state.global_step == 2
    assert (tmp_path / "run" / "checkpoint-2" / "seal.json").is_file()
    assert "could not be pushed" in caplog.text
    assert TOKEN not in caplog.text
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError, match="500"):
        trainer.push_to_hub()
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_a_run_is_published_where_its_settings_say_so_and_a_failure_ends_with_what_to_do(hub, written):
    settings = SimpleNamespace(push_to_hub=False)
    assert publish_run(written.folder, settings) == ""
    settings = SimpleNamespace(
        push_to_hub=True, hub_model_id=None, hub_private_repo=None, hub_revision=None, hub_token=TOKEN
    )
    assert "Published in ada/reviews (private)" in publish_run(written.folder, settings)
    settings.hub_model_id = "bob/reviews"
    with pytest.raises(SystemExit, match="belongs to bob"):
        publish_run(written.folder, settings)


# a stranger, over HTTP


def stranger(work, autos):
    """Load every head, the tokenizer and a pipeline from the Hub that the environment names."""
    import json
    from pathlib import Path

    import torch
    import transformers

    shut_the_door()
    torch.set_num_threads(1)
    trust = {"trust_remote_code": True}
    ids, seen = torch.load(f"{work}/ids.pt"), {"heads": {}, "classes": {}}
    for auto, head in json.loads(autos).items():
        model = getattr(transformers, auto).from_pretrained(f"ada/{head}", **trust)
        seen["classes"][head], seen["heads"][head] = type(model).__name__, answers_of(model, ids)
    seen["tokens"] = transformers.AutoTokenizer.from_pretrained("ada/ForMaskedLM", **trust)("今天很好")["input_ids"]
    classify = transformers.pipeline("text-classification", "ada/reviews", **trust)
    seen["pipeline"] = classify(["今天很好", "风雨"])
    for name, revision in json.loads(Path(f"{work}/revisions.json").read_text()).items():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            "ada/revised", revision=revision, **trust
        )
        seen[name] = answers_of(model, ids)["logits"]
    try:
        transformers.AutoConfig.from_pretrained("ada/reviews", token=False, cache_dir=f"{work}/empty", **trust)
    except OSError as error:
        seen["nobody"] = str(error)
    torch.save(seen, f"{work}/seen.pt")


def environment_of(server, home):
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return surroundings(home, HF_ENDPOINT=server.url, HF_TOKEN=TOKEN, HF_HUB_DISABLE_XET="1", **quiet)


def run_script(server, work, folder):
    """Publish by the script, in a process that knows of the Hub by its environment alone."""
    home = work / "home"
    home.mkdir()
    command = [sys.executable, str(ROOT / "scripts" / "publish.py"), str(folder), "ada/reviews"]
    environment = {**environment_of(server, home), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)


def push_revisions(server, work, first, second):
    """Publish one model, another over it, and the first again on a branch; write down how each is asked for."""
    first.push_to_hub("ada/revised", private=True)
    second.push_to_hub("ada/revised")
    first.push_to_hub("ada/revised", revision="trial")
    oid = server.hub.repositories["ada/revised"].history()[1].oid
    (work / "revisions.json").write_text(json.dumps({"newest": "main", "by branch": "trial", "by commit": oid}))


def send_stranger(server, work):
    parts = map(inspect.getsource, (shut_the_door, answers_of, stranger))
    script = "\n".join([*parts, "import sys\nstranger(*sys.argv[1:])\n"])
    command = [sys.executable, "-I", "-c", script, str(work), json.dumps(AUTO)]
    home = work / "elsewhere"
    home.mkdir()
    environment = environment_of(server, home)
    sent = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)
    assert sent.returncode == 0, sent.stderr[-3000:]


@pytest.fixture(scope="module")
def journey(tmp_path_factory, written):
    """Publish by the script and by the classes, then send a stranger."""
    work = tmp_path_factory.mktemp("journey")
    torch.manual_seed(0)
    models = {head: build(head) for head in AUTO.values()}
    ids = torch.randint(5, len(CHARACTERS), (2, 12))
    torch.save(ids, work / "ids.pt")
    with Server() as server, pytest.MonkeyPatch.context() as patch:
        server.waits = []
        done = run_script(server, work, written.folder)
        log = list(server.hub.log)
        point_at(server, work / "cache", patch)
        for head, model in models.items():
            model.push_to_hub(f"ada/{head}", private=True)
        build_tokenizer().push_to_hub("ada/ForMaskedLM")
        first, second = written.model, build("ForSequenceClassification")
        torch.nn.init.ones_(second.classifier.out_proj.bias)
        push_revisions(server, work, first, second)
        send_stranger(server, work)
    expected = {"newest": second, "by branch": first, "by commit": first}
    return SimpleNamespace(
        done=done,
        log=log,
        models=models,
        ids=ids,
        seen=torch.load(work / "seen.pt"),
        revised={name: answers_of(model, ids)["logits"] for name, model in expected.items()},
        model=first,
    )


def test_the_script_checks_publishes_and_shows_no_token(journey):
    assert journey.done.returncode == 0, journey.done.stdout + journey.done.stderr
    assert "loads alone, answers alike" in journey.done.stdout
    assert "Published in ada/reviews (private)" in journey.done.stdout
    assert TOKEN not in journey.done.stdout + journey.done.stderr
    assert ("PUT", "/lfs/{repo}/{sha256}", 200) in journey.log


@pytest.mark.parametrize("head", AUTO.values())
def test_a_stranger_gets_every_head_from_the_hub_with_its_answers(journey, head):
    assert journey.seen["classes"][head] == f"HFRoFormer{head}"
    expected = answers_of(journey.models[head], journey.ids)
    torch.testing.assert_close(journey.seen["heads"][head], expected, atol=1e-6, rtol=0)


def test_a_stranger_gets_the_tokenizer_and_a_pipeline(journey):
    assert journey.seen["tokens"] == build_tokenizer()("今天很好")["input_ids"]
    with torch.no_grad():
        logits = journey.model(**build_tokenizer()(["今天很好", "风雨"], padding=True, return_tensors="pt")).logits
    for shown, chances in zip(journey.seen["pipeline"], logits.softmax(-1), strict=True):
        assert shown["label"] == ["坏", "好"][chances.argmax()]
        assert shown["score"] == pytest.approx(chances.max().item(), abs=1e-5)


def test_a_stranger_gets_the_revision_that_he_asks_for(journey):
    for name, expected in journey.revised.items():
        torch.testing.assert_close(journey.seen[name], expected, atol=1e-6, rtol=0)
    assert not torch.allclose(journey.revised["newest"], journey.revised["by branch"])


def test_nobody_else_sees_what_is_private(journey):
    assert "ada/reviews is not a local folder and is not a valid model identifier" in journey.seen["nobody"]


def test_a_flipped_byte_in_a_downloaded_copy_is_found(hub, folder, tmp_path):
    send(folder, "ada/reviews")
    place = Path(huggingface_hub.snapshot_download("ada/reviews", local_dir=tmp_path / "copy"))
    assert told_by_verify(place).code == 0
    flip(place / "model.safetensors", bit=0)
    assert "model.safetensors holds other bytes" in told_by_verify(place).words


def test_a_repository_without_a_vocabulary_was_reached_and_is_not_called_a_folder(hub):
    model = build("ForMaskedLM")
    model.push_to_hub("ada/bare")
    with pytest.raises((OSError, ValueError)) as refused:
        hf_roformer.HFRoFormerTokenizer.from_pretrained("ada/bare")
    assert "is no folder here" not in str(refused.value)
    assert "vocab.txt" in str(refused.value)
