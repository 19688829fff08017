package pack

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

func flipByte(t *testing.T, path string, at int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if at < 0 {
		at += int64(len(b))
	}
	b[at] ^= 0x41
	if err := os.WriteFile(path+".new", b, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestVerifier damages a pack in several places. The verdict is remembered until the file changes, also through
// alternates.
func TestVerifier(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		t.Run(format.String(), func(t *testing.T) {
			t.Parallel()
			r := gittest.Init(t, "--object-format="+format.String())
			id := r.Commit("one")
			r.Git("update-ref", "refs/heads/main", id.String())
			r.Git("repack", "-adq")
			objects := filepath.Join(r.Dir, "objects")
			borrower := t.TempDir() + "/objects"
			if err := os.MkdirAll(borrower+"/info", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(borrower+"/info/alternates", []byte("missing\n"+objects+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			v := NewVerifier(slog.New(slog.DiscardHandler), nil)
			defer v.Close()
			verify := func() *Damage {
				var told *Damage
				x := v.Begin(openStore(t, filepath.Dir(borrower), format), func(d *Damage) { told = d })
				<-x.Done()
				if told != x.Damage() {
					t.Errorf("told %v, found %v", told, x.Damage())
				}
				return x.Damage()
			}
			if d := verify(); d != nil {
				t.Fatal(d)
			}
			path := glob(t, objects+"/pack/*.pack")
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for name, test := range map[string]struct {
				path string
				at   int64
			}{
				"object": {path, 14}, "checksum": {path, -1}, "index": {indexOf(path), -70},
				"index's checksum": {indexOf(path), -1},
			} {
				flipByte(t, test.path, test.at)
				d := verify()
				if d == nil || d.Path != test.path {
					t.Errorf("%s: %v", name, d)
				}
				flipByte(t, test.path, test.at)
				if d := verify(); d != nil {
					t.Errorf("%s, put back: %v", name, d)
				}
			}
			if err := os.WriteFile(path, whole[:len(whole)/2], 0o644); err != nil {
				t.Fatal(err)
			}
			if d := verify(); d == nil {
				t.Error("a truncated pack is not damaged, want damage")
			}
			read := func() float64 {
				return testutil.ToFloat64(v.results.WithLabelValues("ok")) +
					testutil.ToFloat64(v.results.WithLabelValues("damaged"))
			}
			before := read()
			if d := verify(); d == nil || read() != before {
				t.Errorf("%v; read again: %v", d, read() != before)
			}
			v.Forget()
			if d := verify(); d == nil || read() != before+1 {
				t.Errorf("forgotten: %v; read again: %v", d, read() != before)
			}
		})
	}
}

// TestVerifierReplaced replaces a pack's index between the reads of both files, as `git repack` does. That is not
// damage. A large pack that is being read does not block small ones.
func TestVerifierReplaced(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	r.Git("update-ref", "refs/heads/main", r.Commit("one").String())
	r.Git("repack", "-adq")
	objects := filepath.Join(r.Dir, "objects")
	path := glob(t, objects+"/pack/*.pack")
	v := NewVerifier(slog.New(slog.DiscardHandler), nil)
	defer v.Close()
	v.large <- struct{}{} // as while one is read
	v.small <- struct{}{}
	flipByte(t, indexOf(path), -70)
	x := v.Begin(openStore(t, r.Dir, git.SHA1), func(d *Damage) { t.Errorf("told of %v", d) })
	moved := indexOf(path) + ".moved"
	if err := os.Rename(indexOf(path), moved); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(moved)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(indexOf(path), b, 0o644); err != nil { // as damaged, but another file
		t.Fatal(err)
	}
	<-v.small
	<-x.Done()
	if d := x.Damage(); d != nil {
		t.Error(d)
	}
	y := v.Begin(openStore(t, r.Dir, git.SHA1), func(*Damage) {})
	<-y.Done()
	if y.Damage() == nil {
		t.Error("the damage of an index that is not replaced was not found")
	}
}
