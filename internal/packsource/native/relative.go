package native

import (
	"github.com/packhorse-git/packhorse/internal/git"
)

// relative returns a similar object as the base for a delta of an item. The base is written before, or the client has
// it, or its entry is copied and is not a delta. The ID is zero if no such object is known.
func (w *writer) relative(i int, it *item) git.ObjectID {
	id, ok := w.similar[w.objectID(i, it.pos)]
	if !ok || !it.entry.isDelta() || it.large {
		return git.ObjectID{}
	}
	at, ok := w.view.find(id.Raw())
	switch {
	case !ok:
		ok = w.isKnownLoose(id.Raw())
	case w.chosen.has(at):
		ok = w.isBase(at, i, it.start)
	default:
		ok = w.known != nil && w.known.has(at)
	}
	if !ok {
		return git.ObjectID{}
	}
	return id
}

// looseRelative is relative for a loose object. These are written after all others, in the order of their IDs.
func (w *writer) looseRelative(of git.ObjectID) git.ObjectID {
	id, ok := w.similar[of]
	if !ok {
		return id
	}
	if at, packed := w.view.find(id.Raw()); packed {
		ok = w.chosen.has(at) || w.known != nil && w.known.has(at)
	} else {
		ok = w.chosen.hasLoose(id) && id.Compare(of) < 0 || w.isKnownLoose(id.Raw())
	}
	if !ok {
		return git.ObjectID{}
	}
	return id
}

// isBefore reports whether the entry at a place begins before an offset of its source.
func (w *writer) isBefore(at place, offset int64) bool {
	start, err := w.view.sources[at.source].Offset(at.pos)
	return err == nil && start < offset
}

// isWhole reports whether the entry at a place is not a delta.
func (w *writer) isWhole(at place) bool {
	source := w.view.sources[at.source]
	start, err := source.Offset(at.pos)
	if err != nil {
		return false
	}
	var b [maxEntryHeader]byte
	n, _ := source.File.ReadAt(b[:], start)
	e, err := parseEntry(b[:n], w.view.format)
	return err == nil && !e.isDelta()
}
