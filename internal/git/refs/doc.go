// Package refs reads a repository's refs as immutable snapshots: packed-refs mapped and searched, loose refs overlaid.
//
// No request parses refs. Store.Snapshot compares the identity (device, inode, size, mtime, ctime) of all files with
// refs, and returns the Snapshot that it already has if nothing changed. So a `git push`, `update-ref`, `pack-refs` or
// `gc` of another program is visible to the next call. A call that finds no change costs one stat for each directory
// and each loose ref. Memory depends on the number of loose refs. The bytes of packed-refs stay in the page cache.
//
// The rules that it relies on are in gitrepository-layout(5) (HEAD, refs, packed-refs), git-pack-refs(1),
// git-check-ref-format(1) and git-symbolic-ref(1):
//
//   - HEAD is in the Git directory, refs/ and packed-refs are in the common directory. The refs of a linked worktree
//     itself (refs/bisect, refs/worktree, refs/rewritten) are below refs/ in its Git directory. Those in the common
//     directory belong to the main worktree.
//   - A loose ref is a file below refs/ with the name of the ref. It holds an object ID in hexadecimal, or "ref:" and
//     the name of another ref, each with white space behind it. A symbolic link whose text is the name of a ref is a
//     symbolic ref. It is listed too, though git only resolves it. No link below refs/ is ever followed. Names that
//     git-check-ref-format refuses, names that end in ".lock" and names that begin with a dot are not refs.
//   - A loose ref hides the packed one with its name, even if it is broken. A broken ref is empty, junk, a symbolic ref
//     to a missing ref, or a chain of more than four symbolic refs. It is absent, and counted.
//   - packed-refs has a line "<object ID> SP <name>" for each ref. If the ref is an annotated tag, a line
//     "^<object ID>" with its peeled object follows.
//   - A first line "# pack-refs with:" in packed-refs names traits. With "sorted" the refs are sorted by the bytes of
//     the name. Without it they are sorted once, in memory. With "peeled" a ref below refs/tags/ without a ^ line is
//     not a tag. With "fully-peeled" the same holds for every ref.
//   - Any other line in packed-refs, or a last line without its end, is an error of kind Corrupt.
//   - Git replaces these files by rename and never writes into them. It adds a ref to packed-refs before it removes the
//     loose file, so a scan of the loose refs and then of packed-refs misses nothing.
//   - Other programs may write into these files. Loose refs are copied. A mapped packed-refs that is truncated causes
//     an error, not a crash.
//   - A file may change twice within one tick of the clock that stamps it. So an identity that was younger than a tick
//     when it was taken is not trusted, and the file is read again the next time. A tick is 25 ms, or two seconds if
//     stamps have no fraction.
//   - File systems that cache attributes (NFS) can hide changes of other machines for as long as they cache.
//
// Package refs does not check whether objects exist.
//
// Reftables are not read. Options.List lists their refs by running git, and only after tables.list has changed. The
// rules above hold for them too, except that each change costs a process.
package refs
