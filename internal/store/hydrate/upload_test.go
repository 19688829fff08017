package hydrate

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// An upload evicts nothing for bytes that have not arrived, and all of them leave half of the budget to others.
func TestUpload(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b, Budget: 4 * uploadStep})
	rs, recs := repositories(c, b, 1)
	use(t, rs[0], recs[0])()
	slow, other := c.NewUpload(2*uploadStep), c.NewUpload(2*uploadStep)
	for _, u := range []*Upload{slow, other} {
		if err := u.Grow(1); err != nil {
			t.Errorf("Grow of an upload = %v, want room", err)
		}
	}
	if err := other.Grow(uploadStep + 1); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Grow above half of the budget = %v, want Unavailable", err)
	}
	if !rs[0].Complete(recs[0]) {
		t.Error("a repository was evicted, want it kept")
	}
	other.End()
	if err := slow.Grow(2 * uploadStep); err != nil {
		t.Errorf("Grow after the end of another upload = %v, want room", err)
	}
	slow.End()
	if c.uploads != 0 || c.bytes != 2200 {
		t.Errorf("the uploads have %d of %d bytes, want 0 of 2200", c.uploads, c.bytes)
	}
}
