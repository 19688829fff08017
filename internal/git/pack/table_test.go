package pack

import (
	"bytes"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestRaw compares the tables of all packs with the Store, also behind a multi-pack-index.
func TestRaw(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 1, gittest.Shape{})
	r.Git("repack", "-adq")
	for _, command := range [][]string{nil, {"multi-pack-index", "write"}} {
		if command != nil {
			r.Git(command...)
		}
		s, err := Open(r.Dir+"/objects", Options{Format: git.SHA1})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Raw(10, func(packs []*Raw) error {
			if len(packs) != 1 {
				t.Fatalf("Raw gave %d packs, want 1", len(packs))
			}
			checkTable(t, s, packs[0])
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Raw(0, nil); err == nil {
			t.Error("Raw with a limit of 0 succeeded")
		}
	}
}

func checkTable(t *testing.T, s *Store, p *Raw) {
	order, err := p.Order()
	if err != nil || len(order) != p.Len() || p.Len() == 0 {
		t.Fatalf("Order = %d positions, %v; want %d", len(order), err, p.Len())
	}
	last := int64(0)
	for rank, pos := range order {
		offset, err := p.Offset(int(pos))
		if err != nil || offset <= last {
			t.Fatalf("Offset(%d) = %d, %v after %d", pos, offset, err, last)
		}
		if got, ok := p.Rank(order, offset); !ok || got != rank {
			t.Errorf("Rank(%d) = %d, %v; want %d", offset, got, ok, rank)
		}
		if _, ok := p.Rank(order, offset-1); ok && offset-1 != last {
			t.Errorf("Rank(%d) found an entry", offset-1)
		}
		last = offset
		if got, ok := p.Find(p.ID(int(pos))); !ok || got != int(pos) {
			t.Errorf("Find(ID(%d)) = %d, %v", pos, got, ok)
		}
		id := git.RawObjectID(bytes.Clone(p.ID(int(pos))))
		if ok, err := s.Has(id); !ok || err != nil {
			t.Errorf("Has(%s) = %v, %v", id, ok, err)
		}
	}
}
