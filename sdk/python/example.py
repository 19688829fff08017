"""Makes a repository with two branches, and merges them: example.py ADDRESS [SECRET]."""
import hashlib
import sys

import packhorse
from packhorse import v1

with packhorse.Node(*sys.argv[1:]) as node:
    app = node.repositories.Create(v1.CreateRequest(repository="python/app")).repository.path

    def commit(branch, path, text, **options):
        return node.commits.Create(v1.CommitServiceCreateRequest(
            repository=app, branch=branch, message=f"Add {path}", author={"name": "Ada", "email": "ada@example.com"},
            changes=[{"put": {"path": path, "text": text}}], **options))

    first = commit("main", "a.txt", "hello\n", create=True)
    commit("topic", "b.txt", "b\n", create=True, start="main")
    commit("main", "c.txt", "c\n")
    for part in node.diffs.Patch(v1.PatchRequest(repository=app, to="topic", **{"from": "main"}, merge_base=True)):
        print(part.file.patch.decode(), end="")
    merged = node.merges.Merge(v1.MergeRequest(repository=app, target="main", source="topic"))
    print("merged", merged.commit, len(merged.conflicts))
    parts = list(node.archives.Archive(v1.ArchiveRequest(repository=app, revision="main", format="tar")))
    content = b"".join(part.data for part in parts)
    print("archive", parts[0].header.sha256 == hashlib.sha256(content).hexdigest())
    try:
        commit("main", "a.txt", "again\n", expected_head=first.commit)
    except packhorse.grpc.RpcError as error:
        print("moved", packhorse.fault_of(error).mismatches[0].actual == merged.commit)
