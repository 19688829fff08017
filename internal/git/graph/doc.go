// Package graph examines a repository's history in process: reachability, minimal sets of haves, and the boundary of a
// shallow clone.
//
// # Where commits come from
//
// Commits are read from the mapped commit-graph if it has them (gitformat-commit-graph(5)). That is the single file
// info/commit-graph, or else the chain info/commit-graphs/commit-graph-chain with its layers graph-<checksum>.graph,
// which may be in alternates. Among the object directories the commit-graph with the most commits is used. The format:
//
//	header  "CGPH", version 1, hash version (1: SHA-1, 2: SHA-256), number of chunks, number of layers below
//	table   for each chunk, and once more for the end: 4 bytes of name, 8 bytes of offset
//	OIDF    256 counts: object IDs with a first byte up to this one; the last is the number of commits
//	OIDL    raw object IDs, sorted
//	CDAT    for each commit: tree, two parents (0x70000000: none; high bit: list in EDGE), 30 bits of topological
//	        level, 34 bits of commit date
//	EDGE    parents of octopus merges from the second on; the high bit ends a list
//	GDA2    for each commit: corrected commit date - commit date (high bit: position in GDO2)
//	GDO2    64-bit offsets that do not fit into GDA2
//	BIDX    for each commit: end of its filter of changed paths in BDAT
//	BDAT    version of the hash, number of hashes, bits for each path, then the filters
//	BASE    checksums of the layers below, bottom first
//	end     checksum of all before, which names the file in a chain
//
// Other commits are parsed once and kept in a bounded table, about 65 bytes each. A damaged commit-graph is ignored and
// counted, and the walk is repeated from the objects.
//
// # Nodes
//
// Inside a walk a commit is a node, a uint32: its position in the commit-graph, or after those its number in the table.
// The marks of a walk are a byte slice indexed by node. Nodes are not exported, because their meaning changes when the
// commit-graph is replaced.
//
// # Dates and generations
//
// A generation number proves that one commit cannot reach another: every commit has a higher one than its parents. It
// is the corrected commit date if all layers have it, else the topological level. A commit date proves nothing, because
// clocks may be wrong. For exact results, dates only determine the order of the search. If a result may err on one side
// (have reduction, Missing), dates end a walk, with a day of tolerance. Where git itself uses dates and a client can
// notice ("ready", "deepen-since", "deepen-relative"), the walk is the same as in git, step by step.
//
// # Shallow
//
// A shallow commit (gitformat-shallow) is treated as having no parents: a set of such commits, the grafts, goes with
// each walk. Nothing here follows refs/replace or info/grafts; git upload-pack does not follow replace refs either.
package graph
