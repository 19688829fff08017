"""Makes a repository with two branches, and merges them: example.py ADDRESS [SECRET]."""
import sys

import packhorse
from packhorse import v1

with packhorse.Node(*sys.argv[1:]) as node:
    app = node.repositories.Create(v1.CreateRequest(repository="python/app")).repository.path

    def commit(branch, path, text, **options):
        return node.commits.Create(v1.CommitServiceCreateRequest(
            repository=app, branch=branch, message=f"Add {path}", author={"name": "Ada", "email": "ada@example.com"},
            changes=[{"put": {"path": path, "text": text}}], **options))

    commit("main", "a.txt", "hello\n", create=True)
    commit("topic", "b.txt", "b\n", create=True, start="main")
    commit("main", "c.txt", "c\n")
    for part in node.diffs.Patch(v1.PatchRequest(repository=app, to="topic", **{"from": "main"}, merge_base=True)):
        print(part.file.patch.decode(), end="")
    merged = node.merges.Merge(v1.MergeRequest(repository=app, target="main", source="topic"))
    print("merged", merged.commit, len(merged.conflicts))
    parts = node.archives.Archive(v1.ArchiveRequest(repository=app, revision="main", format="tar"))
    print("archive", next(parts).header.sha256, sum(len(part.data) for part in parts) > 0)
    try:
        commit("main", "a.txt", "again\n", expected_head="0" * 40)
    except packhorse.grpc.RpcError as error:
        print("moved", packhorse.fault_of(error).mismatches[0].actual == merged.commit)
