package packcache

import (
	"container/list"
	"slices"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// cacheEntry is a complete pack on disk. All but the first group of fields is guarded by Cache.mu.
type cacheEntry struct {
	key       packsource.Key
	size      int64 // of the data file
	indexSize int64 // of the index; 0: it has none
	cost      int64 // of all files, in whole blocks

	objects  uint32    // from the sidecar; 0 until the entry is trusted
	files    files     // when the entry was trusted; zero before
	repo     string    // packsource.Repository.Incarnation; "" while the sidecar could not be read
	used     time.Time // when it was complete, or when a reader last came or left
	shape    shape     // of the requests; zero if it does not count
	repeated bool      // requested again
	refs     int       // readers, borrowers, and a running check
	pins     int       // borrowers
	gone     bool      // removed from the index; its last reader releases the cost
	check    *check    // nil: trusted; otherwise readers wait for it

	list *list.List    // young or kept of the index
	at   *list.Element // in it
}

// files identifies the files of an entry. The index is zero if the entry has none.
type files struct{ data, index disk.ID }

// index has the complete entries in the order of their eviction. It does no I/O. Cache.mu guards it.
type index struct {
	entries map[packsource.Key]*cacheEntry
	repos   map[string][]*cacheEntry                 // by repository, the newest last
	young   *list.List                               // requested once: on probation. The newest is the first
	kept    *list.List                               // requested again
	ghosts  *simplelru.LRU[packsource.Key, struct{}] // keys of recent requests
	popular popular
	bytes   int64 // cost of all entries
	largest int64 // cost of the largest entry
	pinned  int64 // cost of entries with borrowers
	zombies int64 // cost of removed entries and fills that still have readers

	probation, maxIdle time.Duration // how long entries of young and kept stay without a request
}

// maxGhosts is the number of keys in index.ghosts. They use about 3 MiB.
const maxGhosts = 16 << 10

func newIndex(probation, maxIdle time.Duration) index {
	ghosts, _ := simplelru.NewLRU[packsource.Key, struct{}](maxGhosts, nil) // the size is valid
	return index{
		ghosts: ghosts, young: list.New(), kept: list.New(),
		entries: make(map[packsource.Key]*cacheEntry), repos: make(map[string][]*cacheEntry),
		popular: make(popular), probation: probation, maxIdle: maxIdle,
	}
}

// blockSize is the unit of costs, so that tiny entries have a cost too.
const blockSize = 4096

// blocks returns the disk space of a file of this size.
func blocks(size int64) int64 { return (size + blockSize - 1) / blockSize * blockSize }

// add adds a new entry. kept means that the entry skips probation. An older entry with the same key is removed from the
// index only, because the new files have already replaced its files.
func (x *index) add(e *cacheEntry, kept bool, now time.Time) {
	if old := x.entries[e.key]; old != nil {
		x.remove(old)
	}
	e.used = now
	e.cost = blocks(e.size) + blocks(e.indexSize) + blockSize // one for the sidecar
	x.entries[e.key] = e
	x.repos[e.repo] = append(x.repos[e.repo], e)
	x.bytes += e.cost
	x.largest = max(x.largest, e.cost)
	if e.list = x.young; kept {
		e.list = x.kept
	}
	e.at = e.list.PushFront(e)
}

// skipsProbation reports whether a new pack is expected to be requested again: its key was requested before, or a pack
// of the same shape was requested again.
func (x *index) skipsProbation(k packsource.Key, s shape) bool {
	return x.ghosts.Contains(k) || x.popular.has(s)
}

// acquire counts a new request for e: it ends the probation.
func (x *index) acquire(e *cacheEntry, now time.Time) {
	e.refs++
	if !e.repeated {
		e.repeated = true
		x.popular.add(e.shape, now)
	}
	x.touch(e, now)
}

func (x *index) touch(e *cacheEntry, now time.Time) {
	e.used = now
	e.list.Remove(e.at)
	e.list = x.kept
	e.at = e.list.PushFront(e)
}

// release ends one reader. The probation of an entry begins when its last reader leaves, because the transfer of a
// large pack may take longer than the probation.
func (x *index) release(e *cacheEntry, now time.Time) {
	x.endUse(e)
	switch {
	case e.gone:
	case e.list == x.kept:
		x.touch(e, now)
	case e.refs == 0:
		e.used = now
		x.young.MoveToFront(e.at)
	}
}

// pin keeps e in the index until unpin. It is not a request.
func (x *index) pin(e *cacheEntry) {
	e.refs++
	if e.pins++; e.pins == 1 {
		x.pinned += e.cost
	}
}

func (x *index) unpin(e *cacheEntry) {
	if e.pins--; e.pins == 0 && !e.gone {
		x.pinned -= e.cost
	}
	x.endUse(e)
}

// endUse ends one use of e that is not a request.
func (x *index) endUse(e *cacheEntry) {
	if e.refs--; e.gone && e.refs == 0 {
		x.zombies -= e.cost
	}
}

// newest returns the keys of the entries of a repository that have an index, the newest first.
func (x *index) newest(repository string) (keys []packsource.Key) {
	for _, e := range slices.Backward(x.repos[repository]) {
		if e.indexSize > 0 {
			keys = append(keys, e.key)
		}
	}
	return keys
}

// assign sets the repository of e.
func (x *index) assign(e *cacheEntry, repository string) {
	x.unlist(e)
	e.repo = repository
	x.repos[repository] = append(x.repos[repository], e)
}

// unlist removes e from the entries of its repository.
func (x *index) unlist(e *cacheEntry) {
	of := x.repos[e.repo]
	i := slices.Index(of, e)
	if of = slices.Delete(of, i, i+1); len(of) == 0 {
		delete(x.repos, e.repo)
	} else {
		x.repos[e.repo] = of
	}
}

// remove takes e out. Its files are still there: the caller unlinks them.
func (x *index) remove(e *cacheEntry) {
	e.list.Remove(e.at)
	e.gone = true
	delete(x.entries, e.key)
	x.unlist(e)
	x.bytes -= e.cost
	if e.cost == x.largest {
		x.largest = 0
		for _, other := range x.entries {
			x.largest = max(x.largest, other.cost)
		}
	}
	if e.pins > 0 {
		x.pinned -= e.cost
	}
	if e.refs > 0 {
		x.zombies += e.cost
	}
	x.ghosts.Add(e.key, struct{}{})
}

// expire removes and returns entries that were idle, or on probation, for too long. Entries in use stay, because their
// readers keep the blocks of the file.
func (x *index) expire(now time.Time) (young, kept []*cacheEntry) {
	x.popular.expire(now, x.maxIdle)
	return x.expireList(x.young, now, x.probation), x.expireList(x.kept, now, x.maxIdle)
}

func (x *index) expireList(l *list.List, now time.Time, age time.Duration) (out []*cacheEntry) {
	for e := entryOf(l.Back()); e != nil && now.Sub(e.used) >= age; {
		next := entryOf(e.at.Prev())
		if e.refs == 0 {
			x.remove(e)
			out = append(out, e)
		}
		e = next
	}
	return out
}

// entryOf returns the entry of an element of a list; nil for nil.
func entryOf(at *list.Element) *cacheEntry {
	if at == nil {
		return nil
	}
	return at.Value.(*cacheEntry)
}

// evict removes and returns entries until their cost reaches need or there are no more. The entry that was idle for the
// longest time goes first, where time on probation counts double. So packs requested once do not evict packs that are
// requested again and again. But the packs of a new tip, whose second request is still to come, stay longer than those
// of superseded tips. Entries with readers go only if inUse is true: they free space only when their readers end.
// Borrowed entries stay.
func (x *index) evict(now time.Time, need int64, inUse bool) (out []*cacheEntry) {
	next := func(e *cacheEntry) *cacheEntry { // the next one that may go, from e on
		for e != nil && (e.pins > 0 || e.refs > 0 && !inUse) {
			e = entryOf(e.at.Prev())
		}
		return e
	}
	if need <= 0 {
		return nil
	}
	young, kept := next(entryOf(x.young.Back())), next(entryOf(x.kept.Back()))
	for need > 0 && (young != nil || kept != nil) {
		var e *cacheEntry
		if kept == nil || young != nil && 2*now.Sub(young.used) >= now.Sub(kept.used) {
			e, young = young, next(entryOf(young.at.Prev()))
		} else {
			e, kept = kept, next(entryOf(kept.at.Prev()))
		}
		need -= e.cost
		x.remove(e)
		out = append(out, e)
	}
	return out
}
