package mirror

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
)

// The origin gives the former path of a repository to another one. The mirror follows the path, as clients of the
// origin do, and the origin is asked about readers of that repository, even after a restart.
func TestReusedPath(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		h := newHost(t)
		h.repo(t, "app.git")
		root := t.TempDir()
		w := newWorld(t, h, root)
		w.use("host/app.git")
		w.do(os.Rename(filepath.Join(h.dir, "app.git"), filepath.Join(h.dir, "internal.git")))
		h.set(func(w http.ResponseWriter, r *http.Request) bool {
			rest, moved := strings.CutPrefix(r.URL.RequestURI(), "/app.git/")
			if moved {
				http.Redirect(w, r, "/internal.git/"+rest, http.StatusMovedPermanently)
			}
			return moved
		})
		if r := w.use("host/app.git"); r.originPath() != "internal.git" {
			t.Errorf("path at the origin after the move: %s, want internal.git", r.originPath())
		}
		public := h.repo(t, "app.git")
		public.Git("update-ref", "refs/heads/new", public.Commit("new").String())
		asked := make(chan string, 100)
		h.set(func(_ http.ResponseWriter, r *http.Request) bool {
			asked <- r.URL.Path
			return false
		})
		if restart {
			w.do(w.Close())
			w = newWorld(t, h, root)
		}
		w.do(w.Probe(t.Context(), w.path("host/app.git"), protocol.UploadPack, node.Secret{}))
		if got := <-asked; got != "/app.git/info/refs" || len(asked) > 0 {
			t.Errorf("restart %v: Probe asked for %s and %d more, want /app.git/info/refs only", restart, got, len(asked))
		}
		if r := w.use("host/app.git"); r.originPath() != "app.git" {
			t.Errorf("restart %v: path at the origin: %s, want app.git", restart, r.originPath())
		}
		w.same("host/app", public)
	}
}

// All names of a mirror lead to one mirror, because two would change one repository at the same time.
func TestCanonicalNames(t *testing.T) {
	t.Parallel()
	w := &world{t: t}
	for _, name := range []string{"host/app", "host/app.git", "host/app/.git", "host/app.git.git", "host/app.git/.git",
		"host/App.GIT", "host/APP.git.GIT"} {
		rule := Rule{FoldCase: strings.ToLower(name) != name}
		if got := rule.canonical(w.path(name)).String(); got != "host/app" {
			t.Errorf("canonical(%s) = %s, want host/app", name, got)
		}
	}
}

// A repository without an origin stays one if the rule ignores case: the origin does not decide about its readers.
func TestOwnRepositoryWithCase(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "team/own.git")
	root := t.TempDir()
	gittest.InitAt(t, filepath.Join(root, "host/Team/Own.git"))
	w := newWorld(t, h, root, func(r *Rule) { r.FoldCase, r.OriginDecides = true, true })
	for _, name := range []string{"host/Team/Own", "host/Team/Own.git"} {
		if w.Covers(w.path(name)) {
			t.Errorf("Covers(%s) = true, want false", name)
		}
		if r, err := w.open(t.Context(), w.path(name), node.Secret{}); r != nil || err != nil {
			t.Errorf("open(%s) = %v, %v, want no mirror", name, r, err)
		}
	}
	if !w.Covers(w.path("host/team/own")) {
		t.Error("Covers(host/team/own) = false, want true")
	}
}

// A request that missed the opening of a mirror does not open it again.
func TestOpenedMeanwhile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir())
	r := w.use("host/app.git")
	if o, own := w.joinOpening(r.path, true); o != nil || own {
		t.Errorf("joinOpening of an open mirror = %v, %v, want none", o, own)
	}
}
