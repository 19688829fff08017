package repo

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/graph"
)

// TestShallowFileChanges checks that the shallow file is read again after each change.
func TestShallowFileChanges(t *testing.T) {
	t.Parallel()
	made, r := opened(t)
	path := filepath.Join(made.Dir, "shallow")
	for i := range 50 { // most of them within one tick of the clock
		id := strings.Repeat(string("0123456789"[i%10]), 39) + "f"
		if err := os.WriteFile(path, []byte(id+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if i%5 == 0 { // old enough to be remembered
			old := time.Now().Add(-time.Hour)
			if err := os.Chtimes(path, old, old.Add(time.Duration(i))); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			ids, err := r.Shallow()
			if err != nil || len(ids) != 1 || ids[0].String() != id {
				t.Fatalf("round %d: %v, %v; want %s", i, ids, err, id)
			}
			if set, err := r.ShallowSet(); err != nil || !slices.Equal(set.IDs(), ids) {
				t.Fatalf("round %d: %v, %v; want %s", i, set.IDs(), err, id)
			}
		}
	}
	if err := os.Truncate(path, maxShallowFile+1); err != nil { // a file of holes
		t.Fatal(err)
	}
	if _, err := r.Shallow(); !fault.Is(err, fault.Corrupt) || !strings.Contains(fault.Message(err), "longer than") {
		t.Errorf("a giant file: %v", err)
	}
}

// TestShallowIsSorted has a file without order and with duplicates, which git accepts. The result is that of clients.
func TestShallowIsSorted(t *testing.T) {
	t.Parallel()
	made, r := opened(t)
	var text, want []string
	for _, digit := range []string{"3", "1", "2", "1", "3"} {
		text = append(text, strings.Repeat(digit, 40)+"\n")
	}
	for _, digit := range []string{"1", "2", "3"} {
		want = append(want, strings.Repeat(digit, 40))
	}
	if err := os.WriteFile(filepath.Join(made.Dir, "shallow"), []byte(strings.Join(text, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	ids, err := r.Shallow()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, id := range ids {
		got = append(got, id.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A cached boundary is one set for all callers.
func TestShallowSetIsShared(t *testing.T) {
	t.Parallel()
	made, r := opened(t)
	if set, err := r.ShallowSet(); set != nil || err != nil {
		t.Errorf("a repository with whole history: %v, %v", set, err)
	}
	if err := os.WriteFile(filepath.Join(made.Dir, "shallow"), []byte(strings.Repeat("1", 40)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gittest.WaitFor(t, "the file is old enough to be cached", func() bool {
		if _, err := r.Shallow(); err != nil {
			t.Fatal(err)
		}
		return r.shallow.known.Load() != nil
	})
	sets := make([]graph.Commits, 8)
	var group sync.WaitGroup
	for i := range sets {
		group.Go(func() {
			if set, err := r.ShallowSet(); err == nil {
				sets[i] = set
			}
		})
	}
	group.Wait()
	for i, set := range sets {
		if len(set) != 1 || reflect.ValueOf(set).Pointer() != reflect.ValueOf(sets[0]).Pointer() {
			t.Errorf("set %d is another: %v", i, set.IDs())
		}
	}
}
