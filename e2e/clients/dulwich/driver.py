"""Drives dulwich in protocol version $PROTOCOL. See ../../clients_test.go for the operations."""

import inspect
import io
import os
import sys

import dulwich
from dulwich import porcelain
from dulwich.client import HttpGitClient, get_transport_and_path
from dulwich.repo import Repo

# Before 0.22 there is nothing to choose.
VERSION = {"protocol_version": int(os.environ.get("PROTOCOL", "2"))}
if "protocol_version" not in inspect.signature(HttpGitClient.fetch).parameters:
    VERSION = {}


def clone(url, path, **options):
    porcelain.clone(url, path, checkout=False, errstream=io.BytesIO(), **VERSION, **options)


def single(url, path, branch, depth=None):
    porcelain.remote_add(porcelain.init(path), "origin", url)
    update(path, depth, lambda name: name == b"refs/heads/" + branch.encode())


def origin(path):
    repo = Repo(path)
    url = repo.get_config().get((b"remote", b"origin"), b"url").decode()
    return (repo, *get_transport_and_path(url))


def update(path, depth=None, wanted=lambda name: True):
    """Fetches what origin has and moves the tracking branches and tags that are wanted, as git's default refspecs say."""
    repo, client, location = origin(path)

    def wants(refs, depth=None):
        ids = {id for name, id in refs.items() if wanted(name) and not name.endswith(b"^{}") and id}
        return [id for id in ids if depth or id not in repo.object_store]

    result = client.fetch(location, repo, determine_wants=wants, depth=depth, **VERSION)
    for name, id in result.refs.items():
        if not wanted(name) or name.endswith(b"^{}") or not id:
            continue
        if name.startswith(b"refs/heads/"):
            repo.refs[b"refs/remotes/origin/" + name[len(b"refs/heads/"):]] = id
        elif name.startswith(b"refs/tags/"):
            repo.refs[name] = id


def main(op, *args):
    if op == "version":
        print(".".join(map(str, dulwich.__version__)))
    elif op == "ls-remote":
        client, location = get_transport_and_path(args[0])
        result = client.get_refs(location, **VERSION)
        for name, id in getattr(result, "refs", result).items():
            if id:  # else HEAD of an empty repository
                print(id.decode(), name.decode(), sep="\t")
    elif op == "clone":
        clone(args[0], args[1])
    elif op == "fetch":
        update(args[0])
    elif op == "shallow":
        single(args[0], args[1], "main", int(args[2]))
    elif op == "deepen":
        update(args[0], depth=int(args[1]), wanted=lambda name: name == b"refs/heads/main")
    elif op == "partial":
        clone(args[0], args[1], filter_spec="blob:none")
    elif op == "branch":
        single(args[0], args[1], args[2])
    elif op == "tags":
        update(args[0], wanted=lambda name: name.startswith(b"refs/tags/"))
    elif op == "push":
        ref = b"refs/heads/" + args[2].encode()
        porcelain.push(args[0], args[1], [ref + b":" + ref], outstream=io.BytesIO(), errstream=sys.stderr.buffer)
    else:
        sys.exit(2)


main(*sys.argv[1:])
