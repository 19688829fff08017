package store

import (
	"slices"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// A state knows the former values of refs from its own record and from those that followed the known one, whichever
// node wrote them. It does not know when older entries of the tail were written.
func TestFormer(t *testing.T) {
	t.Parallel()
	id := func(digit string) (id git.ObjectID) {
		for range 40 {
			digit += digit[:1]
		}
		return git.MustParseObjectID(digit[:40])
	}
	entry := func(n uint64, old string) replog.TailEntry {
		c := replog.RefChange{Name: "refs/heads/main", New: id("f")}
		if old != "" {
			c.Old = id(old)
		}
		return replog.TailEntry{Number: n, Changes: []replog.RefChange{c}}
	}
	at := time.Unix(1_700_000_000, 0)
	r := &replog.Record{Number: 5, At: at}
	r.Refs.Tail = []replog.TailEntry{entry(2, ""), entry(3, "a"), entry(4, "b"), entry(5, "c")}
	value := func(digit string) refs.Former { return refs.Former{Name: "refs/heads/main", ID: id(digit), Until: at} }
	known := &state{record: &replog.Record{Number: 3}, layers: &refs.Layers{Former: []refs.Former{value("d")}}}
	for _, test := range []struct {
		known *state
		want  []refs.Former
	}{
		{nil, []refs.Former{value("c")}},
		{known, []refs.Former{value("d"), value("b"), value("c")}},
	} {
		if got := former(test.known, r); !slices.Equal(got, test.want) {
			t.Errorf("got %v, want %v", got, test.want)
		}
	}
	for i := range uint64(maxFormer) {
		r.Refs.Tail = append(r.Refs.Tail, entry(6+i, "e"))
	}
	r.Number += maxFormer
	if got := former(known, r); len(got) != maxFormer {
		t.Errorf("%d values", len(got))
	}
}
