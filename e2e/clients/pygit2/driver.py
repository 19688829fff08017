"""Drives libgit2 through pygit2. See ../../clients_test.go for the operations."""

import os
import sys
import tempfile

import pygit2

TAGS = "+refs/tags/*:refs/tags/*"


class Callbacks(pygit2.RemoteCallbacks):
    """Over SSH, lets any host in and shows it the key in the file $KEY."""

    def credentials(self, url, username, allowed):
        if allowed & 2:  # GIT_CREDENTIAL_SSH_KEY
            return pygit2.Keypair(username or "git", os.environ["KEY"] + ".pub", os.environ["KEY"], "")
        raise pygit2.Passthrough

    def certificate_check(self, certificate, valid, host):
        return True

    def push_update_reference(self, refname, message):
        if message is not None:
            sys.exit(f"{refname}: {message}")


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
    elif op == "push":
        ref = f"refs/heads/{args[2]}"
        pygit2.Repository(args[0]).remotes.create_anonymous(args[1]).push([f"{ref}:{ref}"], callbacks=Callbacks())
    else:
        sys.exit(f"libgit2 has nothing for {op}")


main(*sys.argv[1:])
