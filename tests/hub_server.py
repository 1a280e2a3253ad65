"""A small Hub on the loopback: repositories with commits, branches and pull requests, weights by way of LFS.

It speaks as much of the Hub's protocol as its own client asks for when files are pushed and pulled, keeps all in
memory, writes down each request, and fails on command.
"""

import base64
import hashlib
import json
import re
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

LICENCES = ("apache-2.0", "mit", "cc-by-4.0", "other")
# what goes by LFS, as the Hub's own list of patterns has it
LARGE = (".safetensors", ".bin", ".png")


class RefusalError(Exception):
    """An answer that is an error, as the Hub words it."""

    def __init__(self, status, code="", message="", headers=()):
        super().__init__(message)
        self.status, self.body = status, {"error": message}
        self.headers = {"X-Error-Code": code, "X-Error-Message": message, **dict(headers)}


@dataclass
class Fault:
    """What goes wrong with the next requests of a kind: an error, before or after the work, or a cut connection."""

    method: str
    path: str
    status: int = 0
    times: int = 1
    headers: dict = field(default_factory=dict)
    after_the_work: bool = False
    cut_after: int | None = None


@dataclass(frozen=True)
class Commit:
    """A state of all files: of each its bytes, or of a large one its checksum."""

    oid: str
    files: dict
    parent: str | None
    title: str


@dataclass
class Repository:
    """What one name holds."""

    name: str
    private: bool
    refs: dict = field(default_factory=dict)
    commits: dict = field(default_factory=dict)
    large: dict = field(default_factory=dict)

    def commit(self, ref, files, title):
        """Make a commit, and let the ref point to it."""
        parent = self.refs.get(ref)
        told = json.dumps([parent, title, sorted((name, oid_of(value)) for name, value in files.items())])
        made = Commit(hashlib.sha1(told.encode()).hexdigest(), dict(files), parent, title)
        self.commits[made.oid], self.refs[ref] = made, made.oid
        return made

    def at(self, revision):
        """Find a commit by a branch's name, a pull request's, or its own."""
        found = self.commits.get(self.refs.get(revision, revision))
        if found is None:
            raise RefusalError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found

    def history(self, ref="main"):
        """List the commits of a ref, the newest first."""
        found, oid = [], self.refs[ref]
        while oid:
            found.append(self.commits[oid])
            oid = self.commits[oid].parent
        return found

    def data(self, value):
        """Return the bytes of a file."""
        return self.large[value["sha256"]] if isinstance(value, dict) else value


def oid_of(value):
    """Return what the Hub calls a file's content: git's number, or of a large file its checksum."""
    if isinstance(value, dict):
        return value["sha256"]
    return hashlib.sha1(b"blob %d\0" % len(value) + value).hexdigest()


class Hub:
    """The Hub itself: who is who, what there is, and what was asked."""

    def __init__(self):
        self.users = {"token-of-ada": ("ada", ["society"]), "token-of-bob": ("bob", [])}
        self.readers = {"token-of-a-reader": ("ada", [])}
        self.repositories, self.log, self.faults = {}, [], []

    # who may do what

    def user(self, token):
        if token is not None and token not in self.users | self.readers:
            raise RefusalError(401, message="Invalid credentials in Authorization header")
        return (self.users | self.readers).get(token, (None, []))

    def owns(self, token, owner):
        name, orgs = self.user(token)
        return owner in (name, *orgs)

    def find(self, name, token):
        repository = self.repositories.get(name)
        if repository is None or (repository.private and not self.owns(token, name.split("/")[0])):
            raise RefusalError(401 if token is None else 404, "RepoNotFound", "Repository not found")
        return repository

    def writable(self, name, token):
        repository = self.find(name, token)
        if not self.owns(token, name.split("/")[0]) or token in self.readers:
            raise RefusalError(403, message="You don't have the rights to write to this repository")
        return repository

    # requests; each gets the match of its path, the query, the body and the token

    def whoami(self, match, query, body, token):
        name, orgs = self.user(token)
        if name is None:
            raise RefusalError(401, message="Invalid credentials in Authorization header")
        return {"name": name, "type": "user", "orgs": [{"name": org, "type": "org"} for org in orgs]}

    def create(self, match, query, body, token):
        told = json.loads(body)
        owner = told.get("organization") or self.user(token)[0]
        if owner is None:
            raise RefusalError(401, message="Invalid username or password.")
        name = f"{owner}/{told['name']}"
        if not self.owns(token, owner) or token in self.readers:
            raise RefusalError(
                403, message=f"You don't have the rights to create a model under the namespace {owner!r}"
            )
        if name in self.repositories:
            refusal = RefusalError(409, message="You already created this model repo")
            refusal.body["url"] = f"{self.url}/{name}"
            raise refusal
        private = told.get("visibility") == "private" or bool(told.get("private"))
        self.repositories[name] = Repository(name, private)
        self.repositories[name].commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        return {"url": f"{self.url}/{name}", "name": name}

    def info(self, match, query, body, token):
        repository = self.find(match["repo"], token)
        commit = repository.at(match.groupdict().get("rev") or "main")
        return {
            "id": repository.name,
            "modelId": repository.name,
            "private": repository.private,
            "sha": commit.oid,
            "siblings": [{"rfilename": name} for name in sorted(commit.files)],
            "tags": [],
        }

    def tree(self, match, query, body, token):
        repository = self.find(match["repo"], token)
        under = (match["path"] or "").strip("/")
        items = []
        for name, value in sorted(repository.at(match["rev"]).files.items()):
            if under and not name.startswith(f"{under}/"):
                continue
            size = len(repository.data(value))
            item = {"type": "file", "path": name, "size": size, "oid": hashlib.sha1(name.encode()).hexdigest()}
            if isinstance(value, dict):
                item["lfs"] = {"oid": value["sha256"], "size": size, "pointerSize": 134}
            else:
                item["oid"] = oid_of(value)
            items.append(item)
        if under and not items:
            raise RefusalError(404, "EntryNotFound", f"{under} does not exist")
        return items

    def refs(self, match, query, body, token):
        refs = self.find(match["repo"], token).refs
        pulls = [name for name in refs if name.startswith("refs/pr/")]
        return {
            "branches": [
                {"name": name, "ref": f"refs/heads/{name}", "targetCommit": refs[name]}
                for name in refs
                if name not in pulls
            ],
            "converts": [],
            "tags": [],
            "pullRequests": [{"name": name, "ref": name, "targetCommit": refs[name]} for name in pulls],
        }

    def branch(self, match, query, body, token):
        repository = self.writable(match["repo"], token)
        if match["rev"] in repository.refs:
            raise RefusalError(409, message="Reference already exists")
        start = json.loads(body or b"{}").get("startingPoint", "main")
        repository.refs[match["rev"]] = repository.at(start).oid
        return {}

    def validate(self, match, query, body, token):
        front = re.match(r"---\n(.*?)\n---\n", json.loads(body)["content"], re.DOTALL)
        data = yaml.safe_load(front[1]) if front else {}
        errors = []
        if data.get("license") not in (None, *LICENCES):
            errors = [{"message": f'"license" must be one of [{", ".join(LICENCES)}]'}]
        if errors:
            refusal = RefusalError(400, message="Invalid metadata")
            refusal.body |= {"errors": errors, "warnings": []}
            raise refusal
        return {"errors": [], "warnings": []}

    def preupload(self, match, query, body, token):
        repository = self.find(match["repo"], token) if "create_pr" in query else self.writable(match["repo"], token)
        files = repository.at(match["rev"]).files
        return {
            "files": [
                {
                    "path": item["path"],
                    "uploadMode": "lfs" if self.is_large(item) else "regular",
                    "shouldIgnore": False,
                    "oid": oid_of(files[item["path"]]) if item["path"] in files else None,
                }
                for item in json.loads(body)["files"]
            ]
        }

    def is_large(self, item):
        return item["path"].endswith(LARGE) or b"\0" in base64.b64decode(item["sample"]) or item["size"] > 10_000_000

    def lfs_batch(self, match, query, body, token):
        repository, objects = self.find(match["repo"], token), []
        for item in json.loads(body)["objects"]:
            told = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in repository.large:
                place = f"{self.url}/lfs/{repository.name}/{item['oid']}"
                told["actions"] = {"upload": {"href": place}, "verify": {"href": f"{place}/verify"}}
            objects.append(told)
        return {"transfer": "basic", "objects": objects}

    def lfs_upload(self, match, query, body, token):
        if hashlib.sha256(body).hexdigest() != match["oid"]:
            raise RefusalError(422, message="The content does not match its checksum")
        self.repositories[match["repo"]].large[match["oid"]] = body
        return {}

    def lfs_verify(self, match, query, body, token):
        if match["oid"] not in self.repositories[match["repo"]].large:
            raise RefusalError(404, message="The object is not there")
        return {}

    def commit(self, match, query, body, token):
        proposed = "create_pr" in query
        repository = self.find(match["repo"], token) if proposed else self.writable(match["repo"], token)
        base = repository.at(match["rev"])
        header, *lines = [json.loads(line) for line in body.splitlines()]
        if header["value"].get("parentCommit", base.oid) != base.oid:
            raise RefusalError(412, message="A commit has happened since. Please refresh and try again.")
        files = dict(base.files)
        for line in lines:
            self.apply(repository, files, line["key"], line["value"])
        ref = match["rev"]
        if proposed:
            number = 1 + sum(name.startswith("refs/pr/") for name in repository.refs)
            ref = f"refs/pr/{number}"
            repository.refs[ref] = base.oid
        made = repository.commit(ref, files, header["value"]["summary"])
        told = {"success": True, "commitOid": made.oid, "commitUrl": f"{self.url}/{repository.name}/commit/{made.oid}"}
        if proposed:
            told["pullRequestUrl"] = f"{self.url}/{repository.name}/discussions/{number}"
        return told

    def apply(self, repository, files, key, value):
        if key == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            if value["oid"] not in repository.large:
                raise RefusalError(400, message=f"LFS object {value['oid']} is not there")
            files[value["path"]] = {"sha256": value["oid"]}
        elif key == "deletedFile":
            if files.pop(value["path"], None) is None:
                raise RefusalError(404, "EntryNotFound", "A file with this name doesn't exist")
        else:
            raise RefusalError(400, message=f"unknown operation {key}")

    def resolve(self, match, query, body, token):
        repository = self.find(match["repo"], token)
        commit = repository.at(match["rev"])
        if match["path"] not in commit.files:
            raise RefusalError(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit.oid})
        value = commit.files[match["path"]]
        data = repository.data(value)
        headers = {"X-Repo-Commit": commit.oid, "ETag": f'"{oid_of(value)}"', "Accept-Ranges": "bytes"}
        if isinstance(value, dict):
            headers |= {"X-Linked-Etag": f'"{oid_of(value)}"', "X-Linked-Size": str(len(data))}
        return data, headers


NAME = r"(?P<repo>[\w.-]+/[\w.-]+)"
ROUTES = [
    # asked once by each process, and answered by 404
    ("GET", "/api/agent-harnesses", r"/api/agent-harnesses", None),
    ("GET", "/api/whoami-v2", r"/api/whoami-v2", Hub.whoami),
    ("POST", "/api/repos/create", r"/api/repos/create", Hub.create),
    ("POST", "/api/validate-yaml", r"/api/validate-yaml", Hub.validate),
    ("GET", "/api/models/{repo}", rf"/api/models/{NAME}", Hub.info),
    ("GET", "/api/models/{repo}/revision/{rev}", rf"/api/models/{NAME}/revision/(?P<rev>.+)", Hub.info),
    (
        "GET",
        "/api/models/{repo}/tree/{rev}",
        rf"/api/models/{NAME}/tree/(?P<rev>refs/pr/\d+|[^/]+)(?P<path>/.*)?",
        Hub.tree,
    ),
    ("GET", "/api/models/{repo}/refs", rf"/api/models/{NAME}/refs", Hub.refs),
    ("POST", "/api/models/{repo}/branch/{name}", rf"/api/models/{NAME}/branch/(?P<rev>.+)", Hub.branch),
    ("POST", "/api/models/{repo}/preupload/{rev}", rf"/api/models/{NAME}/preupload/(?P<rev>.+)", Hub.preupload),
    ("POST", "/api/models/{repo}/commit/{rev}", rf"/api/models/{NAME}/commit/(?P<rev>.+)", Hub.commit),
    ("POST", "/{repo}.git/info/lfs/objects/batch", rf"/{NAME}\.git/info/lfs/objects/batch", Hub.lfs_batch),
    ("PUT", "/lfs/{repo}/{sha256}", rf"/lfs/{NAME}/(?P<oid>\w+)", Hub.lfs_upload),
    ("POST", "/lfs/{repo}/{sha256}/verify", rf"/lfs/{NAME}/(?P<oid>\w+)/verify", Hub.lfs_verify),
    (
        "HEAD GET",
        "/{repo}/resolve/{rev}/{file}",
        rf"/{NAME}/resolve/(?P<rev>refs/pr/\d+|[^/]+)/(?P<path>.+)",
        Hub.resolve,
    ),
]


def route_of(method, path):
    """Find what answers a request: its name, the match and the function."""
    for methods, name, pattern, function in ROUTES:
        match = re.fullmatch(pattern, path) if method in methods.split() else None
        if match:
            return name, match, function
    return "(other)", None, None


class Handler(BaseHTTPRequestHandler):
    """Read a request, let the Hub answer, or fail as told."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def next_fault(self, path):
        for fault in self.server.hub.faults:
            if fault.times and fault.method == self.command and re.search(fault.path, path):
                fault.times -= 1
                return fault
        return None

    def read_body(self, most=None):
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
                if most is not None and sum(map(len, parts)) >= most:
                    break
            else:
                self.rfile.readline()
            return b"".join(parts)
        length = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(length if most is None else min(most, length))

    def answer(self):
        address = urlsplit(self.path)
        path, query = unquote(address.path), parse_qs(address.query)
        fault, hub = self.next_fault(path), self.server.hub
        name, match, function = route_of(self.command, path)
        if fault and fault.cut_after is not None:
            self.read_body(fault.cut_after)
            hub.log.append((self.command, name, "cut"))
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = self.read_body()
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        try:
            if fault and not fault.after_the_work:
                raise RefusalError(fault.status, message="as told", headers=fault.headers)
            if function is None:
                raise RefusalError(404, message=f"nothing answers {self.command} {path}")
            with hub.lock:
                answered = function(hub, match, query, body, token)
            if fault:
                raise RefusalError(fault.status, message="as told", headers=fault.headers)
            data, headers = answered if isinstance(answered, tuple) else (json.dumps(answered).encode(), {})
            self.reply(name, 200, data, headers)
        except RefusalError as refusal:
            self.reply(name, refusal.status, json.dumps(refusal.body).encode(), refusal.headers)

    def reply(self, name, status, data, headers):
        self.server.hub.log.append((self.command, name, status))
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if start and status == 200:
            status, headers = 206, {**headers, "Content-Range": f"bytes {start[1]}-{len(data) - 1}/{len(data)}"}
            data = data[int(start[1]) :]
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(data))}.items():
            if value:
                self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_PUT = answer


class Server(ThreadingHTTPServer):
    """Answers in threads, as long as the context lasts."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub = Hub()
        self.hub.lock = threading.Lock()
        self.hub.url = self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """Say nothing of a connection that was cut on purpose."""

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


def summary(log):
    """Count a log's requests by method, kind of path and status."""
    return [(method, path, status, count) for (method, path, status), count in Counter(log).items()]


def render_summary(log):
    """Lay the summary of a log out as a table of text."""
    rows = [("method", "path", "status", "count"), *summary(log)]
    widths = [max(len(str(row[column])) for row in rows) for column in range(4)]
    lines = ("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines) + "\n"
