package mirror

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// isRefused checks that a mirror cannot be read or listed, and that its status has the reason.
func (w *world) isRefused(path, reason string) {
	w.t.Helper()
	ctx, p := w.t.Context(), w.path(path)
	session := node.Session{Version: protocol.V2, Stateless: true}
	discard := newClient()
	if _, err := w.Node().Advertise(ctx, p, session, discard); err == nil {
		w.t.Errorf("Advertise of %s succeeds, want an error", path)
	}
	if _, err := w.Node().UploadPack(ctx, p, session, strings.NewReader("0014command=ls-refs\n00000000"),
		discard); err == nil {
		w.t.Errorf("UploadPack of %s succeeds, want an error", path)
	}
	if _, _, err := w.node.Exists(ctx, p, "refs/heads/main"); err == nil {
		w.t.Errorf("Exists of %s succeeds, want an error", path)
	}
	if _, err := w.node.Describe(ctx, p); err == nil {
		w.t.Errorf("Describe of %s succeeds, want an error", path)
	}
	page, err := w.node.List(ctx, places.ListQuery{})
	w.do(err)
	if text := strings.Join(page.Paths, " "); strings.Contains(text, path) {
		w.t.Errorf("List = %s, want a list without %s", text, path)
	}
	if rule, _, ok := w.find(p); w.Find(p) == nil && (!ok || rule.OriginDecides) {
		w.t.Errorf("the origin does not decide about %s, want that it does", path)
	}
	s, err := w.Status(ctx, p)
	if w.do(err); !(s.Refused || s.Orphan) || !strings.Contains(s.Error, reason) {
		w.t.Errorf("Status of %s = %+v, want it to be refused: %s", path, s, reason)
	}
}

// restart forgets the mirrors as a new process does.
func (w *world) restart() {
	w.t.Helper()
	for _, r := range w.all() {
		r.save()
		w.forget(r)
	}
	w.sweep()
}

// A mirror whose marks are not both there and right is refused, and the administrator can remove or detach it.
func TestDamagedMirrors(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	unset := func(dir string) error {
		gittest.At(t, dir).Git("config", "--unset-all", places.MirrorKey)
		return nil
	}
	write := func(text string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, stateFile), []byte(text), 0o600) }
	}
	for name, test := range map[string]struct {
		damage func(dir string) error
		reason string
	}{
		"lost":      {func(dir string) error { return os.Remove(filepath.Join(dir, stateFile)) }, "is missing"},
		"empty":     {write(""), "unexpected end"},
		"cut":       {write(`{"ori`), "unexpected end"},
		"no origin": {write("{}"), "no origin"},
		"link": {func(dir string) error {
			file := filepath.Join(dir, stateFile)
			return errors.Join(os.Rename(file, file+".old"), os.Symlink(file+".old", file))
		}, "not a regular file"},
		"directory": {func(dir string) error {
			file := filepath.Join(dir, stateFile)
			return errors.Join(os.Remove(file), os.Mkdir(file, 0o700))
		}, "not a regular file"},
		"no key": {unset, places.MirrorKey},
		"moved": {func(dir string) error { return os.Rename(dir, filepath.Join(filepath.Dir(dir), "moved.git")) },
			"the mirror is that of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, h, t.TempDir(), func(r *Rule) { r.OriginDecides = true })
			w.use("host/app")
			path, dir := "host/app", filepath.Join(w.root, "host/app.git")
			w.do(test.damage(dir))
			if name == "moved" {
				path, dir = "host/moved", filepath.Join(w.root, "host/moved.git")
			}
			w.isRefused(path, test.reason)
			w.restart()
			w.isRefused(path, test.reason)
			if name == "no key" || name == "moved" {
				w.do(w.Detach(t.Context(), w.path(path)))
				if _, _, err := w.node.Exists(t.Context(), w.path(path), "refs/heads/main"); err != nil {
					t.Errorf("Exists of the detached repository = %v, want none", err)
				}
				return
			}
			if name == "directory" {
				return
			}
			w.do(w.Remove(t.Context(), w.path(path)))
			w.use("host/app")
			w.same("host/app", from)
		})
	}
}

// A mirror without a rule stays closed, also on a node without mirrors.
func TestMirrorWithoutRule(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir())
	w.use("host/app")
	w.do(w.SetRules(nil))
	w.isRefused("host/app", "")
	w.restart()
	w.isRefused("host/app", "")

	dir := filepath.Join(w.root, "host/app.git")
	gittest.InitAt(t, filepath.Join(w.root, "own.git"))
	for _, lost := range []string{"nothing", "key", "file"} {
		switch lost {
		case "key":
			gittest.At(t, dir).Git("config", "--unset-all", places.MirrorKey)
		case "file":
			gittest.At(t, dir).Git("config", "Packhorse.Mirror", "false")
			w.do(os.Remove(filepath.Join(dir, stateFile)))
		}
		n, err := storage.New(nil, storage.Options{Root: w.root})
		w.do(err)
		if _, _, err := n.Exists(t.Context(), w.path("host/app"), "refs/heads/main"); !fault.Is(err, fault.NotFound) ||
			fault.Message(err) != "no repository host/app here" {
			t.Errorf("%s lost: Exists = %v, want that there is no repository", lost, err)
		}
		page, err := n.List(t.Context(), places.ListQuery{})
		if w.do(err); len(page.Paths) != 1 || page.Paths[0] != "own.git" {
			t.Errorf("%s lost: List = %v, want own.git", lost, page.Paths)
		}
		w.do(n.Close())
	}
}

// Lists of refs of mirrors whose updates have failed do not keep memory from others.
func TestFailedUpdatesFreeRefs(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	w := newWorld(t, h, t.TempDir(), func(r *Rule) {
		var err error
		r.Origin, err = origin.New(origin.Options{URL: r.URL, Requests: 100, Lists: origin.NewListMemory(5 << 19)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Origin.Close() })
		r.MaxPack = 1 // updates fail
	})
	for i := range 3 { // the bound is enough for two
		name := fmt.Sprintf("a%d", i)
		from := h.repo(t, name+".git")
		var packed strings.Builder
		for n := range 1000 {
			fmt.Fprintf(&packed, "%s refs/heads/%s%04d\n", from.ID("main"), strings.Repeat("x", 100), n)
		}
		w.do(os.WriteFile(filepath.Join(from.Dir, "packed-refs"), []byte(packed.String()), 0o600))
		r, err := w.open(t.Context(), w.path("host/"+name), node.Secret{})
		w.do(err)
		if <-r.last.update.done; r.last.update.err == nil {
			t.Errorf("update %d succeeds, want an error", i)
		}
	}
}
