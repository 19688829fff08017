package search_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/search"
)

// named wants a repository among those that were not searched.
func named(missing string) func(*found) bool {
	return func(f *found) bool { return slices.Contains(f.Missing, missing) }
}

// failure returns the error of a repository in the status.
func failure(e *search.Engine, repository string) string {
	for _, f := range e.Status(nil).Failures {
		if f.Repository == repository {
			return f.Error
		}
	}
	return ""
}

// A repository beyond the limits costs no index and no content, is named with the reason, and is not searched by git
// grep either. When its refs change, it is measured again.
func TestTooLargeRepositories(t *testing.T) {
	t.Parallel()
	many := files{}
	for i := range 40 {
		many[fmt.Sprint("f", i)] = "needle"
	}
	for _, test := range []struct {
		name, key       string
		large           files
		maxFiles, bytes int64
	}{
		{"files", "index.max_repository_files", many, 30, 0},
		{"bytes", "index.max_repository_bytes", files{"f": strings.Repeat("needle\n", 200)}, 0, 1000},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newSource()
			s.push("large", main, test.large)
			s.push("small", main, files{"f": "needle"})
			o := options(t, s)
			o.MaxFiles, o.MaxBytes = test.maxFiles, test.bytes
			e := start(t, o)
			eventually(t, "the reason is in the status", func() bool { return strings.Contains(failure(e, "large"), test.key) })
			f := await(t, e, "needle", func(f *found) bool { return has(1)(f) && named("large")(f) })
			if bytes.Contains(f.json, []byte(`"repository":"large"`)) || e.Status(nil).Failed != 1 {
				t.Errorf("%s, %+v", f.json, e.Status(nil))
			}
			eventually(t, "the index is complete without the large one", func() bool {
				s := e.Status(nil)
				return s.Complete && s.TooLarge == 1 && s.Waiting == 0
			})
			if shards, _ := filepath.Glob(filepath.Join(o.Dir, "shards", "large*")); len(shards) > 0 {
				t.Errorf("it has files in the index: %q", shards)
			}
			id := s.push("large", main, files{"f": "needle", "g": "needle"})
			f = await(t, e, "needle r:large", has(2, id))
			if len(f.Missing) > 0 || failure(e, "large") != "" {
				t.Errorf("missing %q, %q", f.Missing, failure(e, "large"))
			}
		})
	}
}

// Small changes cannot grow an index beyond the limits either. The old index stays, with the error.
func TestRepositoryGrowsTooLarge(t *testing.T) {
	t.Parallel()
	s := newSource()
	all := files{"f0": "needle"}
	first := s.push("a", main, all)
	o := options(t, s)
	o.MaxFiles = 3
	e := start(t, o)
	await(t, e, "needle", has(1, first))
	for i := range 4 {
		all[fmt.Sprint("f", i)] = "needle"
	}
	s.push("a", main, all)
	await(t, e, "needle", func(f *found) bool {
		return has(1, first)(f) && len(f.Repositories) == 1 && strings.Contains(f.Repositories[0].Error, "more than 3 files")
	})
}

// A repository whose refs exist and whose objects do not is named, not left out like a removed one.
func TestMissingObjectsAreNamed(t *testing.T) {
	t.Parallel()
	s := newSource()
	id := s.push("gone", main, files{"f": "needle"})
	s.push("good", main, files{"f": "needle"})
	s.mu.Lock()
	delete(s.repos[repoPath("gone")].commits, id)
	s.mu.Unlock()
	e := start(t, options(t, s))
	await(t, e, "needle", func(f *found) bool { return has(1)(f) && named("gone")(f) })
}

// zoekt finds nothing in a shard that was overwritten, and reports no error. The time of the file shows it.
func TestShardIsOverwritten(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.push("a", main, files{"f": "needle"})
	s.push("b", main, files{"f": "needle"})
	o := options(t, s)
	e := start(t, o)
	await(t, e, "needle", has(2))
	shards, _ := filepath.Glob(filepath.Join(o.Dir, "shards", "a_v*.zoekt"))
	if len(shards) != 1 {
		t.Fatalf("got shards %q, want 1", shards)
	}
	content, err := os.ReadFile(shards[0])
	if err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(content)
	for i := 40; i < len(damaged)-100; i += 5 {
		damaged[i] ^= 0x55
	}
	f, err := os.OpenFile(shards[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(damaged, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(shards[0], time.Time{}, time.Now().Add(time.Second)); err != nil { // a coarse clock hides it
		t.Fatal(err)
	}
	eventually(t, "the shard is replaced", func() bool {
		now, err := os.ReadFile(shards[0])
		return err == nil && !bytes.Equal(now, damaged)
	})
	await(t, e, "needle", has(2))
}
