package pack

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestRepackUnderReaders reads everything, all the time, while git replaces the packs.
func TestRepackUnderReaders(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 8, gittest.Shape{Commits: 40, Merge: 0.2})
	r.Git("gc", "-q", "--prune=now") // the test may remove unreachable objects below
	all := allObjects(t, r.Dir)
	s := openStore(t, r.Dir, git.SHA1)
	var stop atomic.Bool
	var wg sync.WaitGroup
	var reads atomic.Int64
	for w := range 4 {
		wg.Go(func() {
			for i := w; !stop.Load(); i++ {
				if i%len(all) == 0 {
					if err := s.Refresh(); err != nil {
						t.Errorf("Refresh: %v", err)
						return
					}
				}
				o := all[i%len(all)]
				typ, data, err := s.Read(o.id, 0)
				if err != nil || typ != o.typ || !bytes.Equal(data, o.data) {
					t.Errorf("Read(%s): %v, %d bytes, %v", o.id, typ, len(data), err)
					return
				}
				if ok, err := s.Has(o.id); !ok || err != nil {
					t.Errorf("Has(%s) = %v, %v", o.id, ok, err)
					return
				}
				if _, size, err := s.Header(o.id); err != nil || size != int64(len(o.data)) {
					t.Errorf("Header(%s) = %d, %v", o.id, size, err)
					return
				}
				reads.Add(1)
			}
		})
	}
	for i := range 4 {
		id := r.Commit(fmt.Sprint("new ", i))
		r.Git("update-ref", fmt.Sprint("refs/heads/new", i), id.String())
		if ok, err := s.Has(id); !ok || err != nil {
			t.Errorf("Has of a new commit = %v, %v", ok, err)
		}
		r.Git("repack", "-adfq", fmt.Sprintf("--depth=%d", 1+10*i))
		r.Git("multi-pack-index", "write")
		r.Git("gc", "-q", "--prune=now")
		r.Git("-c", fmt.Sprintf("pack.packSizeLimit=%dk", 1024), "repack", "-adfq", "--window=0")
		if typ, _, err := s.Read(id, 0); typ != git.Commit || err != nil {
			t.Errorf("Read of a new commit: %v, %v", typ, err)
		}
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d reads", reads.Load())
}
