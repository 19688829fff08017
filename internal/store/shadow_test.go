package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// The files of a shadow have the refs of its base, whether they are few or many, and with deletions.
func TestShadowShowsRefs(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 3, 25_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			b := newBucket(t)
			p := &pusher{t, manyRefs(t, newNode(t, b), b, "x", n)}
			if isMany := p.place.known().record.Refs.Bytes > maxCopiedRefs; isMany != (n == 25_000) {
				t.Fatalf("the base of %d refs is shown as one of many: %v", n, isMany)
			}
			checkShadow(t, p.place)
			if _, err := p.push(nil, update("a/b", 0, 1), update("z", 0, 2)); err != nil {
				t.Fatal(err)
			}
			if shadow := checkShadow(t, p.place); n == 25_000 {
				if _, err := os.Stat(filepath.Join(shadow.dir, "refs/heads/a/b")); err != nil {
					t.Errorf("a change after many refs is not in a file of its own: %v", err)
				}
			}
			gone := []receivepack.Update{update("z", 2, 0)}
			if n > 0 {
				gone = append(gone, update("b0000001", 2, 0), update("b0000002", 3, 7))
			}
			if _, err := p.push(nil, gone...); err != nil {
				t.Fatal(err)
			}
			checkShadow(t, p.place)
		})
	}
}

// checkShadow compares the files of a shadow with the latest known refs.
func checkShadow(t *testing.T, p *place) *shadow {
	t.Helper()
	pushed, err := p.Push(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pushed.Close)
	s := pushed.(*shadow)
	files, err := refs.Open(s.dir, s.dir, refs.Options{Format: git.SHA1}).Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	layers, err := snapshotOf(s.base.layers, git.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := list(t, files), list(t, layers); got != want {
		t.Errorf("the files have %d bytes of refs, the layers %d:\n%.500s\nwant\n%.500s", len(got), len(want), got, want)
	}
	return s
}

func list(t *testing.T, s *refs.Snapshot) string {
	t.Helper()
	text := []byte(s.Head().Target + "\n")
	if err := s.Each("", func(ref refs.Ref) error {
		text = fmt.Appendf(text, "%s %s\n", ref.Name, ref.ID)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A push that would fill the disk is refused before its pack.
func TestPushNeedsRoom(t *testing.T) {
	t.Parallel()
	s := newNode(t, newBucket(t), func(o *Options) { o.Cache.MinFree = 1 << 60 })
	create(t, s, "x")
	if _, err := acquire(t, s, "x").Push(t.Context()); !fault.Is(err, fault.Unavailable) || !mentions(err, "free") {
		t.Errorf("Push on a disk without room = %v, want unavailable with the free space", err)
	}
}
