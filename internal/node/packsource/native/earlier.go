package native

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

const (
	// maxEarlier is the maximum number of earlier packs that one pack is composed from.
	maxEarlier = 2
	// maxTried is the maximum number of earlier packs that are examined for one pack.
	maxTried = 64
	// maxWants is the maximum number of wants of an earlier pack whose objects are reused as a whole.
	maxWants = 100_000
)

// earlier is a pack of the Library with the content of its index.
type earlier struct {
	earlierHeader
	// closed reports whether the pack has everything that its wants reach and the filter lets pass. It was made without
	// haves and shallow commits, and with the same filter as the new pack.
	closed bool
	wants  []git.ObjectID // if closed
	tags   []git.ObjectID // if closed: those that were added because their targets are in the pack
}

// The index of a native pack, with numbers in network byte order:
//
//	the line indexMagic
//	4 bytes: length of the next part
//	earlierHeader, as JSON
//	the wants and the tags that were added to them, raw IDs
//	a pack index of version 2 (gitformat-pack(5)) with zeros in place of its checksum: the Library has one
const indexMagic = "packhorse pack index 1\n"

// maxIndexHeader is the maximum length of an earlierHeader in JSON.
const maxIndexHeader = 64 << 10

// earlierHeader describes a pack.
type earlierHeader struct {
	Format  string `json:"format"`
	Filter  string `json:"filter"`
	Wants   int    `json:"wants"` // with the tags
	Tags    int    `json:"tags"`
	Haves   int    `json:"haves"`
	Shallow int    `json:"shallow"`
	Tip     bool   `json:"tip"` // every want is a shallow commit: a pack of depth 1
	Objects int    `json:"objects"`
}

func headerOf(spec *packsource.Spec, objects int) earlierHeader {
	h := earlierHeader{Format: spec.Repo.Format.String(), Filter: spec.Filter, Wants: len(spec.Wants),
		Haves: len(spec.Haves), Shallow: len(spec.Shallow), Objects: objects}
	h.Tip = h.Shallow > 0 && !slices.ContainsFunc(spec.Wants, func(id git.ObjectID) bool {
		_, shallow := slices.BinarySearchFunc(spec.Shallow, id, git.ObjectID.Compare)
		return !shallow
	})
	return h
}

// isLike reports whether a pack with header h shares most objects with one of another header.
func (h *earlierHeader) isLike(other *earlierHeader) bool {
	return h.Haves == 0 && other.Haves == 0 && h.Format == other.Format && h.Filter == other.Filter &&
		h.Tip == other.Tip && (h.Shallow > 0) == (other.Shallow > 0)
}

// writeIndex writes the index of a pack.
func writeIndex(to io.Writer, spec *packsource.Spec, t *indexTable) error {
	h := headerOf(spec, len(t.crcs))
	h.Wants, h.Tags = h.Wants+len(t.tags), len(t.tags)
	header, err := json.Marshal(h)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(to, 256<<10)
	w.WriteString(indexMagic)
	w.Write(binary.BigEndian.AppendUint32(nil, uint32(len(header))))
	w.Write(header)
	for _, ids := range [][]git.ObjectID{spec.Wants, t.tags} {
		for i := range ids {
			w.Write(ids[i].Raw())
		}
	}
	t.write(w)
	w.Write(make([]byte, t.size))
	return w.Flush()
}

var (
	errIndex = errors.New("not an index of this format")
)

// readHeader reads the part of an index before the wants, and returns its length.
func readHeader(r io.ReaderAt) (h earlierHeader, length int64, err error) {
	var b [len(indexMagic) + 4]byte
	if _, err := r.ReadAt(b[:], 0); err != nil {
		return h, 0, err
	}
	size := binary.BigEndian.Uint32(b[len(indexMagic):])
	if string(b[:len(indexMagic)]) != indexMagic || size > maxIndexHeader {
		return h, 0, errIndex
	}
	text := make([]byte, size)
	if _, err := r.ReadAt(text, int64(len(b))); err != nil {
		return h, 0, err
	}
	if err := json.Unmarshal(text, &h); err != nil || h.Tags < 0 || h.Wants < h.Tags {
		return h, 0, cmp.Or(err, errIndex)
	}
	return h, int64(len(b)) + int64(size), nil
}

// lent is an open pack of the Library, or a tip pack.
type lent struct {
	key      packsource.Key // of the Library
	borrowed *packsource.Borrowed
	index    *pack.Index
	source   *source
}

func (l *lent) close() {
	if l.index != nil {
		l.index.Close()
	}
	l.borrowed.Close()
}

// composes reports whether a pack is composed from earlier packs, and later packs from it. Packs for clients that have
// commits are not, and neither are packs of trees and blobs alone, which partial clones fetch when they need them.
func composes(spec *packsource.Spec) bool {
	return len(spec.Haves) == 0 && len(spec.First) < len(spec.Wants)
}

// borrow opens the newest packs of the Library that share most objects with a new one. A pack that cannot be read is
// logged and left out. The caller closes the result.
func (s *Source) borrow(spec *packsource.Spec) (packs []*lent) {
	if s.library == nil || !composes(spec) {
		return nil
	}
	want := headerOf(spec, 0)
	limit := maxEarlier
	if len(spec.Shallow) == 0 {
		limit = 1 // two packs of the whole history hold mostly the same objects
	}
	for i, key := range s.library.Packs(spec.Repo.Incarnation) {
		if i == maxTried || len(packs) == limit {
			break
		}
		if h, ok := s.headers.Get(key); ok && !h.isLike(&want) {
			continue
		}
		l, err := s.open(key, spec.Repo.Format)
		if err != nil {
			if !fault.Is(err, fault.NotFound) {
				s.log.Warn("cannot read the index of a pack in the pack cache", "key", key, "error", err)
			}
			continue
		}
		s.headers.Add(key, l.source.earlier.earlierHeader)
		if !l.source.earlier.isLike(&want) {
			l.close()
			continue
		}
		packs = append(packs, l)
	}
	return packs
}

// open opens a pack of the Library.
func (s *Source) open(key packsource.Key, format git.ObjectFormat) (*lent, error) {
	b, err := s.library.Borrow(key)
	if err != nil {
		return nil, err
	}
	l := &lent{key: key, borrowed: b}
	if err := l.read(format); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lent) read(format git.ObjectFormat) error {
	h, at, err := readHeader(l.borrowed.Index)
	if err != nil {
		return err
	}
	e := &earlier{earlierHeader: h, closed: h.Haves == 0 && h.Shallow == 0 && h.Wants <= maxWants}
	size := format.Size()
	if e.closed {
		raw := make([]byte, h.Wants*size)
		if _, err := l.borrowed.Index.ReadAt(raw, at); err != nil {
			return err
		}
		for wants := range slices.Chunk(raw, size) {
			e.wants = append(e.wants, git.RawObjectID(wants))
		}
		e.wants, e.tags = e.wants[:h.Wants-h.Tags], e.wants[h.Wants-h.Tags:]
	}
	l.index, err = pack.MapIndex(l.borrowed.Index, at+int64(h.Wants*size), format)
	if err != nil {
		return err
	}
	end := unframedSize(l.borrowed.Size) - int64(size)
	l.source = &source{earlier: e, Raw: &pack.Raw{Path: "cache entry " + l.key.String(), End: end,
		File: unframed{l.borrowed.Pack}}}
	return nil
}

// openTip opens the tip pack of an object directory for a pack of a shallow clone, or returns nil. The pack for a
// client that has commits would grow: it has deltas of what the client has. A tip pack that cannot be read is logged,
// and left out.
func (s *Source) openTip(spec *packsource.Spec, objects string) *lent {
	if len(spec.Shallow) == 0 || !composes(spec) {
		return nil
	}
	tip, err := pack.OpenTip(objects, spec.Repo.Format)
	if err != nil && !s.hasFailed(objects) { // log it once in a while
		s.failed.Add(objects, time.Now())
		s.log.Warn("cannot read the tip pack of a repository", "dir", objects, "error", err)
	}
	if tip == nil {
		return nil
	}
	return &lent{index: tip.Index, borrowed: &packsource.Borrowed{Close: tip.Close},
		source: &source{Raw: &pack.Raw{Path: tip.Path, File: tip.File, End: tip.End}}}
}

// use calls fn with the sources of open packs.
func use(packs []*lent, fn func([]*source) error) error {
	var sources []*source
	var each func(n int) error
	each = func(n int) error {
		if n == len(packs) {
			return fn(sources)
		}
		return packs[n].index.Do(func(t *pack.Table) error {
			packs[n].source.Table = *t
			sources = append(sources, packs[n].source)
			return each(n + 1)
		})
	}
	return each(0)
}

// chosenTags lists the tags of a Spec that are in its pack.
func chosenTags(spec *packsource.Spec, v *view, chosen *objectSet) (tags []git.ObjectID) {
	for i := range spec.Tags {
		id := spec.Tags[i].ID
		if at, ok := v.find(id.Raw()); ok && chosen.has(at) || !ok && chosen.hasLoose(id) {
			tags = append(tags, id)
		}
	}
	return tags
}
