package packcache

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/packsource"
)

// cacheEntry is a complete pack on disk. All but the first group of fields is guarded by Cache.mu.
type cacheEntry struct {
	key  packsource.Key
	size int64 // of the data file
	cost int64 // of both files, in whole blocks

	objects uint32    // from the sidecar; 0 until the entry is trusted
	file    disk.ID   // of the data file when the entry was trusted; zero before
	repo    string    // packsource.Repository.Incarnation; "" until the entry is trusted
	used    time.Time // when it was complete; after probation, when a reader last came or left
	refs    int       // readers, and a running check
	gone    bool      // removed from the index; its last reader releases the cost
	lone    bool      // was on probation when it was removed
	check   *check    // nil: trusted; otherwise readers wait for it

	list       *list
	prev, next *cacheEntry
}

// list holds entries in the order of their used field. The zero list is empty.
type list struct{ newest, oldest *cacheEntry }

func (l *list) push(e *cacheEntry) {
	e.list, e.next, e.prev = l, l.newest, nil
	if l.newest != nil {
		l.newest.prev = e
	} else {
		l.oldest = e
	}
	l.newest = e
}

func (l *list) remove(e *cacheEntry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.newest = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.oldest = e.prev
	}
	e.list, e.prev, e.next = nil, nil, nil
}

// index has the complete entries in the order of their eviction. It does no I/O. Cache.mu guards it.
type index struct {
	entries map[packsource.Key]*cacheEntry
	young   list // requested once: on probation
	kept    list // requested again
	ghosts  ghosts
	bytes   int64 // cost of all entries
	zombies int64 // cost of removed entries and fills that still have readers
}

// blockSize is the unit of costs, so that tiny entries have a cost too.
const blockSize = 4096

// costOf returns the disk space of a pack of this size: whole blocks, and one for the sidecar.
func costOf(size int64) int64 {
	return (size+blockSize-1)/blockSize*blockSize + blockSize
}

// add adds a new entry. kept means that the entry skips probation. An older entry with the same key is removed from the
// index only, because the new files have already replaced its files.
func (x *index) add(e *cacheEntry, kept bool, now time.Time) {
	if old := x.entries[e.key]; old != nil {
		x.remove(old)
	}
	e.used = now
	e.cost = costOf(e.size)
	x.entries[e.key] = e
	x.bytes += e.cost
	if kept {
		x.kept.push(e)
	} else {
		x.young.push(e)
	}
}

// acquire counts a new request for e: it ends the probation.
func (x *index) acquire(e *cacheEntry, now time.Time) {
	e.refs++
	x.touch(e, now)
}

func (x *index) touch(e *cacheEntry, now time.Time) {
	e.used = now
	e.list.remove(e)
	x.kept.push(e)
}

// release ends one reader.
func (x *index) release(e *cacheEntry, now time.Time) {
	e.refs--
	switch {
	case e.gone && e.refs == 0:
		x.zombies -= e.cost
	case !e.gone && e.list == &x.kept:
		x.touch(e, now)
	}
}

// remove takes e out. Its files are still there: the caller unlinks them.
func (x *index) remove(e *cacheEntry) {
	e.lone = e.list == &x.young
	e.list.remove(e)
	e.gone = true
	delete(x.entries, e.key)
	x.bytes -= e.cost
	if e.refs > 0 {
		x.zombies += e.cost
	}
	x.ghosts.add(e.key)
}

// expire removes and returns entries that were idle, or on probation, for too long. Entries in use stay, because their
// readers keep the blocks of the file. Without a probation (zero or less) entries expire only when idle.
func (x *index) expire(now time.Time, probation, idle time.Duration) (young, kept []*cacheEntry) {
	if probation <= 0 {
		probation = idle
	}
	return x.expireList(&x.young, now, probation), x.expireList(&x.kept, now, idle)
}

func (x *index) expireList(l *list, now time.Time, age time.Duration) (out []*cacheEntry) {
	for e := l.oldest; e != nil && now.Sub(e.used) >= age; {
		next := e.prev
		if e.refs == 0 {
			x.remove(e)
			out = append(out, e)
		}
		e = next
	}
	return out
}

// evict removes and returns entries until their cost reaches need or there are no more. Entries on probation go first,
// so that packs requested once do not evict packs requested again. Within each kind the least recently used go first.
// Entries with readers go only if inUse is true: they free space only when their readers end.
func (x *index) evict(need int64, inUse bool) (out []*cacheEntry) {
	for _, l := range []*list{&x.young, &x.kept} {
		for e := l.oldest; e != nil && need > 0; {
			next := e.prev
			if e.refs == 0 || inUse {
				need -= e.cost
				x.remove(e)
				out = append(out, e)
			}
			e = next
		}
	}
	return out
}

// ghosts keeps the keys of recent requests. It has two generations: when the newer one is full, the older one is
// dropped. The zero value is empty.
type ghosts struct{ recent, older map[packsource.Key]struct{} }

// ghostGeneration is the size of a generation in keys. Two of them use about 2 MiB.
const ghostGeneration = 8192

func (g *ghosts) add(k packsource.Key) {
	if len(g.recent) >= ghostGeneration {
		g.recent, g.older = nil, g.recent
	}
	if g.recent == nil {
		g.recent = make(map[packsource.Key]struct{})
	}
	g.recent[k] = struct{}{}
}

func (g *ghosts) has(k packsource.Key) bool {
	if _, ok := g.recent[k]; ok {
		return true
	}
	_, ok := g.older[k]
	return ok
}
