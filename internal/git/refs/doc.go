// Package refs reads a repository's refs as immutable snapshots: packed-refs mapped and searched, loose refs overlaid.
//
// The one idea: a Snapshot is never parsed for a request. Store.Snapshot looks at the identity (device, inode, size,
// mtime, ctime) of everything that refs are made of and hands out the Snapshot it already has when nothing changed. So
// a foreign `git push`, `update-ref`, `pack-refs` or `gc` is visible to the very next call, and a call that finds
// nothing new costs one stat for each directory and each loose ref. Memory is bounded by the loose refs; packed-refs
// stays in the page cache.
//
// What it relies on (gitrepository-layout: HEAD, refs, packed-refs; git-pack-refs; git-check-ref-format;
// git-symbolic-ref):
//
//   - HEAD is in the Git directory, refs/ and packed-refs are in the common directory. What a linked worktree has for itself
//     (refs/bisect, refs/worktree, refs/rewritten) is below refs/ in its Git directory; the common directory's are the main worktree's.
//   - A loose ref is a file below refs/ named as the ref. It holds an object ID in hexadecimal and white space after it, or
//     "ref:", the name of another ref and white space. A symbolic link whose text is the name of a ref is a symbolic ref,
//     which we list too (git only resolves it); no link below refs/ is ever followed. Names that git-check-ref-format
//     refuses, names in ".lock" and names that begin with a dot are not refs.
//   - A loose ref hides the packed one of its name, also when it is broken: empty, junk, a symbolic ref to nothing, a chain
//     of more than four symbolic refs. A broken ref is absent, and counted.
//   - packed-refs has a line "<object ID> SP <name>" for each ref, and after it "^<object ID>" when the ref is an annotated
//     tag: what it peels to. A first line "# pack-refs with:" names traits: "sorted" (by the bytes of the name; else we
//     sort once, in memory), "peeled" (no ^ line below refs/tags/ means: not a tag), "fully-peeled" (the same for every ref).
//     A line that is none of this, or a last line without its end, is an error of kind Corrupt.
//   - Git replaces these files by rename and never writes into them; packed-refs gets a ref before its loose file goes, so
//     looking at the loose refs first and at packed-refs after them misses nothing. Others do write into them:
//     loose refs are copied, and a mapped packed-refs that somebody shortens yields an error, not a crash.
//   - A file may change twice within one tick of the clock that stamps it. An identity younger than that (25 ms, or two
//     seconds where stamps have no fraction) when it was taken is not trusted: the file is read again the next time.
//     File systems that cache attributes (NFS) can hide foreign writes for as long as they cache.
//
// Whether an object exists is not asked here.
//
// Reftables are not read: Options.List asks somebody who can, which is git, and only after tables.list has changed. So
// what stands above holds for them too, but that a change costs a process.
package refs
