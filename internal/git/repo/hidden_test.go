package repo

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

func TestConfigThatRefuses(t *testing.T) {
	t.Parallel()
	const ok = fault.Kind(255)
	for text, want := range map[string]fault.Kind{
		"": ok, "[http]\nuploadpack = true": ok, "[http]\nuploadpack": ok, "[http]\nuploadpack = 1k": ok,
		"[http]\nuploadpack = -1":                      ok,
		"[http]\nuploadpack = false\nuploadpack = Yes": ok, "[http \"x\"]\nuploadpack = false": ok,
		"[http]\nreceivepack = false": ok,
		"[http]\nuploadpack = false":  fault.Denied, "[HTTP]\nuploadPack = Off": fault.Denied,
		"[http]\nuploadpack =":    fault.Denied,
		"[http]\nuploadpack = 0k": fault.Denied, "[http]\nuploadpack = perhaps": fault.Corrupt,
		"[http]\nuploadpack = 1_0": fault.Corrupt,
		"[include]\npath = x":      fault.Unavailable, "[includeIf \"gitdir:~/x\"]\npath = x": fault.Unavailable,
		"[include]\nother = x":          ok,
		"[transfer]\nhideRefs = refs/x": ok, "[transfer]\nhideRefs": fault.Corrupt, "[uploadpack]\nhiderefs": fault.Corrupt,
		"[receive]\nhiderefs": ok,
	} {
		made := gittest.Init(t)
		if err := os.WriteFile(filepath.Join(made.Dir, "config"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Open(made.Dir, Options{})
		if err == nil {
			r.Close()
		}
		if (err == nil) != (want == ok) || err != nil && fault.KindOf(err) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestHidesRefs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"": false, "[transfer]\nhideRefs = !refs/x": false, "[transfer]\nhideRefs = \"\"": false,
		"[transfer]\nhideRefs = refs/x":     true,
		"[uploadpack]\nhideRefs = ^refs/x/": true, "[receive]\nhideRefs = refs/x": false,
	} {
		config, err := ParseConfig(text)
		if err != nil {
			t.Fatal(err)
		}
		rules, err := hiddenRefs(config, hideFetch)
		if err != nil || rules.any() != want {
			t.Errorf("%q: %v, %v", text, rules, err)
		}
	}
}

// With extensions.worktreeConfig the second config counts as the first, from the next request on.
func TestWorktreeConfig(t *testing.T) {
	t.Parallel()
	made := gittest.Init(t)
	path := filepath.Join(made.Dir, worktreeFile)
	hides := func(want bool) *Repo {
		t.Helper()
		r, err := Open(made.Dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		if r.HidesRefs() != want || !r.Fresh(made.Dir) {
			t.Errorf("hides refs: %t; fresh: %t", r.HidesRefs(), r.Fresh(made.Dir))
		}
		return r
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("[transfer]\nhideRefs = refs/x\n")
	hides(false)
	made.Git("config", "extensions.worktreeConfig", "true")
	r := hides(true)
	write("[transfer]\nhideRefs = !refs\n")
	if r.Fresh(made.Dir) {
		t.Error("hidden refs are those before the change, want the new ones")
	}
	r = hides(false)
	write("[include]\npath = x")
	if _, err := Open(made.Dir, Options{}); !fault.Is(err, fault.Unavailable) || r.Fresh(made.Dir) {
		t.Errorf("an included file: %v", err)
	}
}
