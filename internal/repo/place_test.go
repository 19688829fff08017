package repo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gittest"
)

func TestAllows(t *testing.T) {
	t.Parallel()
	served := Options{Root: "/srv", Hidden: []string{"/srv/state", "/cache"}}
	for path, want := range map[string]bool{
		"/srv": true, "/srv/a.git": true, "/srv/state": false, "/srv/state/a": false, "/srv/stately": true,
		"/srv2": false, "/": false, "/cache/a": false, "/etc": false,
	} {
		if served.Allows(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
	if !(Options{}).Allows("/etc") {
		t.Error("there is a limit though none was given")
	}
}

// A root that cannot be followed is no reason to say that what is below it lies outside.
func TestRootThatCannotBeFollowed(t *testing.T) {
	t.Parallel()
	made := gittest.Init(t)
	loop := filepath.Join(t.TempDir(), "root")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	_, err := Open(made.Dir, Options{Root: loop})
	if !fault.Is(err, fault.Unavailable) || strings.Contains(fault.Message(err), loop) {
		t.Errorf("%v, want Unavailable without a path in the message", err)
	}
	link := filepath.Join(t.TempDir(), "root")
	if err := os.Symlink(filepath.Dir(made.Dir), link); err != nil {
		t.Fatal(err)
	}
	r, err := Open(made.Dir, Options{Root: link})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Refs.Snapshot(t.Context()); err != nil {
		t.Errorf("a root that is a link: %v", err)
	}
}
