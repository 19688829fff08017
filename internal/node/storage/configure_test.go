package storage_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// set sets one key; no values remove it.
func (r *root) set(key string, values ...string) {
	r.t.Helper()
	_, err := r.Configure(r.t.Context(), r.path("app"), func(s places.Settings) error {
		s[key] = values
		return nil
	})
	r.do(err)
}

// A setting that one node changes applies to the next request to each node.
func TestConfigure(t *testing.T) {
	t.Parallel()
	t.Run("disk", func(t *testing.T) {
		t.Parallel()
		r := newWritten(t, receivepack.Options{})
		r.initAt("app.git")
		testConfigure(t, r, r)
	})
	t.Run("store", func(t *testing.T) {
		t.Parallel()
		nodes := newStored(t)
		testConfigure(t, nodes[0], nodes[1])
	})
}

func testConfigure(t *testing.T, first, second *root) {
	_, err := first.change("app", put("main", "a", "x"))
	first.do(err)
	if _, err := second.change("app", put("other", "a", "x")); err != nil {
		t.Fatal(err)
	}
	refuses := func(kind fault.Kind, text string) {
		t.Helper()
		for name, err := range map[string]error{
			"change": second.tries(put("main", "b", strings.Repeat("random", 9))),
			"update": second.tries(update("refs/heads/main", "", strings.Repeat("1", 40))),
		} {
			if name == "update" && kind == fault.Full { // it has no objects
				continue
			}
			if !fault.Is(err, kind) || !strings.Contains(fault.Message(err), text) {
				t.Errorf("%s: %v (%v), want %v with %q", name, err, fault.KindOf(err), kind, text)
			}
		}
	}
	for key, text := range map[string]string{"packhorse.archived": "is archived", "packhorse.readonly": "is read-only"} {
		first.set(key, "true")
		refuses(fault.Denied, text)
		if _, err := second.SetHead(t.Context(), second.path("app"), "refs/heads/x", ""); !fault.Is(err, fault.Denied) {
			t.Errorf("SetHead with %s: %v", key, err)
		}
		first.set(key)
	}
	first.set("packhorse.quota", "10")
	refuses(fault.Full, "packhorse.quota")
	first.set("packhorse.quota", "1m")
	if _, err := second.change("app", put("main", "b", "x")); err != nil {
		t.Errorf("within the quota: %v", err)
	}
	before, err := second.Describe(t.Context(), second.path("app"))
	first.do(err)
	first.set("transfer.hiderefs", "refs/heads/other")
	after, err := second.Describe(t.Context(), second.path("app"))
	if err != nil || after.Refs != before.Refs-1 {
		t.Errorf("%d refs with a hidden one, %v; %d before", after.Refs, err, before.Refs)
	}
	first.set("gitweb.description", "a \"tool\" #1;\nof two lines\t\\ \u00e9 ")
	first.set("packhorse.label", "team=a", "x/y=")
	for _, r := range []*root{first, second} {
		d, err := r.Describe(t.Context(), r.path("app"))
		if err != nil || !slices.Equal(d.Settings["packhorse.label"], []string{"team=a", "x/y="}) || len(d.Settings) != 4 ||
			d.Settings["gitweb.description"][0] != "a \"tool\" #1;\nof two lines\t\\ \u00e9 " {
			t.Errorf("settings %q, %v", d.Settings, err)
		}
	}
	broken := errors.New("broken")
	_, err = first.Configure(t.Context(), first.path("app"), func(s places.Settings) error {
		s["packhorse.readonly"] = []string{"true"}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("Configure = %v, want %v", err, broken)
	}
	if err := second.tries(put("main", "c", "x")); err != nil {
		t.Errorf("after a change that failed: %v", err)
	}
}

func (r *root) tries(c write.Change) error {
	r.t.Helper()
	_, err := r.change("app", c)
	return err
}

// Git reads the settings on a disk. Git's lock, its other settings and the mode of the file are kept.
func TestConfigureOnDisk(t *testing.T) {
	t.Parallel()
	r := newWritten(t, receivepack.Options{})
	of := r.initAt("app.git")
	file := filepath.Join(of.Dir, "config")
	text, err := os.ReadFile(file)
	r.do(err)
	r.do(os.WriteFile(file, append(text, "# a comment\n[Transfer] hideRefs = refs/a\n[transfer]\n\thideRefs = refs/b\n"+
		"[transfer \"x\"]\n\ty = z"...), 0o644))
	r.do(os.Chmod(file, 0o640))
	r.do(os.WriteFile(filepath.Join(of.Dir, "description"), []byte("by hand\n"), 0o644))
	d, err := r.Describe(t.Context(), r.path("app"))
	if err != nil || !slices.Equal(d.Settings["gitweb.description"], []string{"by hand"}) {
		t.Errorf("settings %q, %v", d.Settings, err)
	}
	r.set("gitweb.description", "new\n\"one\"")
	r.set("transfer.hiderefs", "!refs/c", "refs/d")
	for key, want := range map[string]string{"gitweb.description": "new\n\"one\"", "transfer.hideRefs": "!refs/c\nrefs/d",
		"transfer.x.y": "z", "core.bare": "true"} {
		if got := of.Git("config", "--get-all", key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	if text, err = os.ReadFile(file); err != nil || !bytes.Contains(text, []byte("# a comment")) {
		t.Errorf("the comment is lost: %q, %v", text, err)
	}
	r.set("gitweb.description")
	if _, err := of.Try("config", "gitweb.description"); err == nil {
		t.Error("the description was not removed")
	}
	r.do(os.WriteFile(file+".lock", nil, 0o600))
	if _, err := r.Configure(t.Context(), r.path("app"), func(s places.Settings) error {
		s["packhorse.readonly"] = []string{"false"}
		return nil
	}); !fault.Is(err, fault.Exhausted) {
		t.Errorf("a lock: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(of.Dir, "tmp_*")); len(left) > 0 {
		t.Errorf("files %q are left, %v", left, err)
	}
	r.do(os.Remove(file + ".lock"))
	r.set("packhorse.readonly", "true")
	if _, err := os.Lstat(file + ".lock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock is left: %v", err)
	}
}

func TestConfigureLFS(t *testing.T) {
	t.Parallel()
	l := large{newWrittenAs(t, receivepack.Options{}, storage.Options{LFS: &objects.Options{MinFree: -1}})}
	l.initAt("app.git")
	content := []byte("content")
	upload := func() error {
		_, _, err := l.LFSUpload(t.Context(), l.path("app"), node.Session{}, lfs.Upload{Object: objectOf(content)},
			bytes.NewReader(content))
		return err
	}
	l.set("packhorse.readonly", "yes")
	if err := upload(); !fault.Is(err, fault.Denied) || !strings.Contains(fault.Message(err), "read-only") {
		t.Errorf("LFSUpload = %v", err)
	}
	l.set("packhorse.readonly")
	l.set("lfs.quota", "1")
	if err := upload(); !fault.Is(err, fault.Full) || !strings.Contains(fault.Message(err), "lfs.quota") {
		t.Errorf("LFSUpload = %v", err)
	}
	l.set("lfs.quota", "7")
	if err := upload(); err != nil {
		t.Error(err)
	}
}

// A new repository has its settings from the beginning.
func TestCreateWithSettings(t *testing.T) {
	t.Parallel()
	settings := places.Settings{"gitweb.description": {"x"}, "packhorse.readonly": {"true"}, "packhorse.quota": {"5"}}
	for name, r := range map[string]*root{"disk": newWritten(t, receivepack.Options{}), "store": newStored(t)[0]} {
		d, err := r.Create(t.Context(), r.path("new"), storage.CreateOptions{Settings: settings})
		if err != nil || d.Settings["gitweb.description"][0] != "x" || len(d.Settings) != 3 {
			t.Errorf("%s: Create = %q, %v", name, d.Settings, err)
		}
		if _, err := r.change("new", put("main", "a", "x")); !fault.Is(err, fault.Denied) {
			t.Errorf("%s: a change: %v", name, err)
		}
	}
}
