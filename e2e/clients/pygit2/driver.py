"""Drives libgit2 through pygit2. See ../../clients_test.go for the operations."""

import sys
import tempfile

import pygit2

TAGS = "+refs/tags/*:refs/tags/*"


def single(url, path, branch, **options):
    repo = pygit2.init_repository(path)
    remote = repo.remotes.create("origin", url, f"+refs/heads/{branch}:refs/remotes/origin/{branch}")
    repo.config["remote.origin.tagOpt"] = "--no-tags"
    repo.remotes["origin"].fetch(**options)


def main(op, *args):
    if op == "version":
        print(f"{pygit2.__version__} (libgit2 {pygit2.LIBGIT2_VERSION})")
    elif op == "ls-remote":
        with tempfile.TemporaryDirectory() as scratch:
            remote = pygit2.init_repository(scratch, bare=True).remotes.create_anonymous(args[0])
            if hasattr(remote, "list_heads"):
                heads = [(head.oid, head.name) for head in remote.list_heads()]
            else:  # before 1.18
                heads = [(head["oid"], head["name"]) for head in remote.ls_remotes()]
            for id, name in heads:
                print(id, name, sep="\t")
    elif op == "clone":
        pygit2.clone_repository(args[0], args[1]).remotes["origin"].fetch([TAGS])
    elif op == "fetch":
        pygit2.Repository(args[0]).remotes["origin"].fetch()
    elif op == "shallow":
        single(args[0], args[1], "main", depth=int(args[2]))
    elif op == "deepen":
        pygit2.Repository(args[0]).remotes["origin"].fetch(depth=int(args[1]))
    elif op == "branch":
        single(args[0], args[1], args[2])
    elif op == "tags":
        pygit2.Repository(args[0]).remotes["origin"].fetch([TAGS])
    else:
        sys.exit(f"libgit2 has nothing for {op}")


main(*sys.argv[1:])
