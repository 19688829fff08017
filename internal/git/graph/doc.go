// Package graph examines a repository's history in process: reachability, minimal sets of haves, and the boundary of a
// shallow clone.
//
// # Where commits come from
//
// First from the commit-graph, mapped (gitformat-commit-graph(5)): the single file info/commit-graph, else the chain
// info/commit-graphs/commit-graph-chain with its graph-<checksum>.graph layers, which may lie in alternates. Among the
// object directories the commit-graph with the most commits is used. The format of the file:
//
//	header  "CGPH", version 1, hash version (1: SHA-1, 2: SHA-256), number of chunks, number of layers below
//	table   for each chunk, and once more for the end: 4 bytes of name, 8 bytes of offset
//	OIDF    256 counts: object IDs with a first byte up to this one; the last is the number of commits
//	OIDL    raw object IDs, sorted
//	CDAT    for each commit: tree, two parents (0x70000000: none; high bit: list in EDGE), 30 bits of topological
//	        level, 34 bits of commit date
//	EDGE    parents of octopus merges from the second on; the high bit ends a list
//	GDA2    for each commit: corrected commit date - commit date (high bit: position in GDO2)
//	GDO2    64-bit offsets that GDA2 has no room for
//	BASE    checksums of the layers below, bottom first
//	end     checksum of all before, which names the file in a chain
//
// Commits that are in no commit-graph are parsed once and remembered in a bounded table, about 45 bytes each.
// A commit-graph that is broken is put aside and counted; the walk is done again from the objects.
//
// # Nodes
//
// Inside a walk a commit is a node, a uint32: its position in the commit-graph, or behind those its number in the
// table. Marks of a walk are a byte slice indexed by node. Nodes never leave the package; they change meaning when the
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
