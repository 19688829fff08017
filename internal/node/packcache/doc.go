// Package packcache keeps and shares the packs that another packsource.Source makes, within a limit of space.
//
// A pack is a pure function of its Spec's Key, so an entry is never stale. Entries leave only to make room. An entry is
// a file of framed bytes exactly as they are sent to a client. On a hit the kernel copies the file to the connection.
//
// The first request for a key starts a fill: one goroutine takes the pack from the inner Source and writes it to a
// file. All readers, including the first, read that file as it grows. A fill continues while it has readers, and for
// Options.Grace after the last one left.
//
// # No fetch fails because of the cache
//
// If the disk is full, the fill evicts other entries. If that does not help, or the disk fails, the fill continues
// without its file. Its current readers read the rest of the file, and then a window of a few hundred kilobytes in
// memory. The slowest reader moves the window. Such a fill gets no new readers and is not kept. A stored entry that
// cannot be opened or trusted is removed, and the pack is made again.
//
// If the inner Source fails, Open or Send returns its error to all readers, and the next request starts again.
//
// # Eviction
//
// An entry leaves if it is not requested for MaxIdle. If it was requested only once, it leaves at the end of its
// Probation, which begins when its reader has left. That is shorter than the kernel's delay before it writes dirty
// pages (30 s on Linux, from the first write). So most packs that are requested only once never reach the disk.
//
// Entries that are expected to be requested again skip probation. These are keys that return, of which the cache has a
// limited memory, and packs of a popular shape, which every pipeline requests. A shape is popular for MaxIdle after one
// of its packs was requested again. It consists of the repository, the filter, and whether the request has a shallow
// boundary, several wants, and include-tag. Fetches with haves have no shape, because most of them are different.
//
// Entries also leave if the byte budget or the free-space floor needs room. The entry that was idle for the longest
// time goes first, and time on probation counts double. Entries with readers go last. Entries on probation must not go
// before all others. In a busy fleet the packs of superseded tips fill the cache. They were requested often, but they
// will not be requested again, while the second request for the newest pack is still to come.
//
// # Budget
//
// A pack may use all of Options.MaxBytes. A borrowed entry may exceed that until it is returned.
//
// Without MaxBytes, the budget adapts to large packs. Half of it is for other packs, and beside that there is room for
// the largest pack twice: a repository's next pack is composed from the last one. Only the free-space floor limits a
// pack that is being made.
//
// # Library
//
// If the inner Source knows where the objects of a pack are (packsource.Indexed), the cache keeps this index with the
// pack. The index is written after the readers got the end of the pack. If that fails, the entry has no index. The
// cache is a packsource.Library of these entries: the inner Source borrows packs to compose others from them. A
// borrowed entry stays until it is closed. Borrowing does not count as a request, so an entry that is only borrowed
// leaves like an unused one.
//
// # Format
//
// The directory holds
//
//	lock           locked (flock) by the process that uses the directory; its number inside, for people
//	tmp/fill-N     fills; swept at start
//	ab/KEY.pack    an entry: nothing but side-band-1 pkt-lines (gitprotocol-pack(5)) of at most 65520 bytes each, which
//	               carry the pack; no flush packet, no other band
//	ab/KEY.index   what WriteIndex of packsource.Indexed wrote; missing if the pack has no index
//	ab/KEY.meta    the sidecar of both
//
// where KEY is the packsource.Key in 64 lower-case hexadecimal digits and ab its first two. Directories have mode 0700,
// files 0600. The sidecar has three lines:
//
//	packhorse cache entry 6
//	{"key": KEY, ...}      JSON, see the type sidecar
//	CHECKSUM               CRC-32C of the lines before this one, 8 hexadecimal digits
//
// The index and then the sidecar are written before the data file gets its name by rename. The cache syncs nothing: an
// entry of an earlier run is read completely and compared with its sidecar before it is sent. Before it is borrowed,
// only its index is compared, which has checksums for each object of the pack. An entry whose files another program has
// written to, which shows in their sizes and times, is read completely again. At the start, a data file without a
// sidecar is removed, and so are a sidecar or an index without a data file, and entries of other versions.
//
// # Damaged repositories
//
// A pack made from a damaged repository is as damaged as its source. When damage is found, Drop removes the
// repository's entries, and packs that are still being made are not kept.
package packcache
