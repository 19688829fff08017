package native

import (
	"context"
	"math"
	"math/bits"
	"path/filepath"
	"slices"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/bitmap"
)

// bitmaps keeps open reachability bitmaps by pack directory, because opening one verifies its checksum. It is safe for
// concurrent use.
type bitmaps struct {
	open *lru.Cache[string, *bitmap.Bitmap]
}

// maxBitmaps is the maximum number of open bitmaps. One takes about 100 bytes for each commit with a bitmap.
const maxBitmaps = 16

func newBitmaps() *bitmaps {
	open, _ := lru.New[string, *bitmap.Bitmap](maxBitmaps) // the size is valid
	return &bitmaps{open}
}

// find returns a bitmap of packs of a view and their sources, or nil. A damaged bitmap is ignored, as by git.
func (m *bitmaps) find(ctx context.Context, v *view) (*bitmap.Bitmap, []int) {
	var tried []string
	for _, source := range v.sources {
		dir := filepath.Dir(source.Path)
		if source.earlier != nil || slices.Contains(tried, dir) {
			continue
		}
		tried = append(tried, dir)
		if b, ok := m.open.Get(dir); ok {
			if sources := v.packsOf(b, dir); sources != nil {
				return b, sources
			}
		}
		b, err := bitmap.Open(ctx, dir, v.format)
		if err != nil {
			continue
		}
		if sources := v.packsOf(b, dir); sources != nil {
			m.open.Add(dir, b)
			return b, sources
		}
	}
	return nil, nil
}

// packsOf returns the sources of the packs of a bitmap, nil if one is missing.
func (v *view) packsOf(b *bitmap.Bitmap, dir string) (sources []int) {
	for _, name := range b.Packs() {
		i := slices.IndexFunc(v.sources, func(s *source) bool {
			return s.earlier == nil && s.Path == filepath.Join(dir, name)
		})
		if i < 0 {
			return nil
		}
		sources = append(sources, i)
	}
	return sources
}

// bitmapWalk chooses objects by a bitmap.
type bitmapWalk struct {
	s       *selection
	bitmap  *bitmap.Bitmap
	sources []int    // of the packs of the bitmap
	reached []uint64 // bits of the objects that were reached
	before  []uint64 // the same before the last commit
	omitted []uint64 // bits of the objects of types that the filter omits; nil: none
	blobs   []uint64 // bits of all blobs, if the filter depends on their size
	err     error
}

// openBitmap returns a walk by a bitmap, or nil if the repository has no bitmap that fits the Spec.
func (s *selection) openBitmap() (*bitmapWalk, error) {
	f := &s.filter
	if s.bitmaps == nil || len(s.spec.Haves)+len(s.spec.Shallow) > 0 || f.depth > 0 && f.depth < math.MaxUint64 {
		return nil, nil
	}
	b, sources := s.bitmaps.find(s.ctx, s.view)
	if b == nil {
		return nil, nil
	}
	w := &bitmapWalk{s: s, bitmap: b, sources: sources, reached: make([]uint64, b.Words()),
		before: make([]uint64, b.Words())}
	omit := func(passes bool, typ git.ObjectType) error {
		if passes {
			return nil
		}
		if w.omitted == nil {
			w.omitted = make([]uint64, b.Words())
		}
		return b.OrType(typ, w.omitted)
	}
	err := omit(f.commits, git.Commit)
	if err == nil {
		err = omit(f.trees && f.depth > 0, git.Tree)
	}
	if err == nil {
		err = omit(f.blobs && f.depth > 0, git.Blob)
	}
	if err == nil && f.limit < math.MaxUint64 {
		w.blobs = make([]uint64, b.Words())
		err = b.OrType(git.Blob, w.blobs)
	}
	return w, err
}

// stop chooses all objects that a commit reaches if it has a bitmap. It reports whether they are chosen.
func (w *bitmapWalk) stop(id []byte) bool {
	s := w.s
	if w.err != nil || s.contains(s.walked, id) {
		return true
	}
	copy(w.before, w.reached)
	commit := git.RawObjectID(id)
	ok, err := w.bitmap.Or(commit, w.reached)
	if err != nil || !ok {
		w.err = err
		return err != nil
	}
	s.byBitmap = true
	if w.err = w.add(); w.err == nil && !s.contains(s.walked, id) {
		w.err = fault.New(fault.Corrupt, "the bitmap of commit %s does not have the commit", commit)
	}
	return true
}

// add chooses the objects that were reached last.
func (w *bitmapWalk) add() error {
	if w.bitmap.IsMulti() {
		return w.addMulti()
	}
	at := w.sources[0]
	order, err := w.s.view.sources[at].Order()
	if err != nil {
		return err
	}
	for i, word := range w.reached {
		for word &^= w.before[i]; word != 0; word &= word - 1 {
			bit := 64*i + bits.TrailingZeros64(word)
			if bit >= len(order) {
				return fault.New(fault.Corrupt, "the bitmap has bits beyond its pack")
			}
			if err := w.addObject(bit, place{at, int(order[bit])}); err != nil {
				return err
			}
		}
	}
	return nil
}

// addMulti chooses the objects that were reached last by the bitmap of a multi-pack-index.
func (w *bitmapWalk) addMulti() error {
	latest := make([]uint64, len(w.reached))
	for i, word := range w.reached {
		latest[i] = word &^ w.before[i]
	}
	return w.bitmap.Objects(latest, func(bit, pack int, offset int64) error {
		from := w.s.view.sources[w.sources[pack]]
		order, err := from.Order()
		if err != nil {
			return err
		}
		rank, ok := from.Rank(order, offset)
		if !ok {
			return fault.New(fault.Corrupt, "a multi-pack-index has an offset without an entry")
		}
		return w.addObject(bit, place{w.sources[pack], int(order[rank])})
	})
}

// addObject chooses an object unless the filter omits it.
func (w *bitmapWalk) addObject(bit int, at place) (err error) {
	s := w.s
	if at.source > 0 { // an earlier source may have it too
		found, ok := s.view.find(s.view.id(at))
		if !ok {
			return fault.New(fault.Corrupt, "the index of a pack is not sorted")
		}
		at = found
	}
	s.walked.add(at)
	passes := !hasBit(w.omitted, bit)
	if passes && hasBit(w.blobs, bit) {
		if err := s.step(); err != nil {
			return err
		}
		passes, err = s.trees.isSmall(at)
	}
	if passes {
		s.chosen.add(at)
	}
	return err
}

func hasBit(set []uint64, bit int) bool { return set != nil && set[bit/64]&(1<<(bit%64)) != 0 }
