package mirror

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
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
		w.do(w.probe("host/app.git"))
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
		if w.Find(w.path(name)) != nil {
			t.Errorf("Find(%s) is not nil, want nil", name)
		}
		if r, err := w.open(t.Context(), w.path(name), node.Secret{}); r != nil || err != nil {
			t.Errorf("open(%s) = %v, %v, want no mirror", name, r, err)
		}
	}
	if w.Find(w.path("host/team/own")) == nil {
		t.Error("Find(host/team/own) = nil, want an origin")
	}
	for name, want := range map[string]bool{"host/team/own": true, "host/TEAM/Own": true, "host/Team/Own": false,
		"other/own": false} {
		if got := w.FoldsCase(w.path(name)); got != want {
			t.Errorf("FoldsCase(%s) = %v, want %v", name, got, want)
		}
	}
}

// A request that missed the opening of a mirror does not open it again.
func TestOpenedMeanwhile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir())
	r := w.use("host/app.git")
	if o, own := w.joinOpening(r.path, true, ""); o != nil || own {
		t.Errorf("joinOpening of an open mirror = %v, %v, want none", o, own)
	}
}

// Another table for a part of an origin takes over the mirrors there. One of another origin does not get them: its
// readers are others.
func TestTablesOfOtherURLs(t *testing.T) {
	t.Parallel()
	h, other := newHost(t), newHost(t)
	h.repo(t, "acme/app.git")
	other.repo(t, "acme/app.git")
	w := newWorld(t, h, t.TempDir())
	w.use("host/acme/app.git")
	for _, test := range []struct {
		rule Rule
		at   *host
		want string
	}{
		{Rule{Prefix: "host/acme"}, h, h.URL + "/acme/app.git"},
		{Rule{Prefix: "host"}, h, h.URL + "/acme/app.git"},
		{Rule{Prefix: "host"}, other, ""},
		{Rule{Prefix: "host"}, h, h.URL + "/acme/app.git"},
	} {
		base, err := url.Parse(test.at.URL + strings.TrimPrefix(test.rule.Prefix, "host") + "/")
		w.do(err)
		client, err := origin.New(origin.Options{URL: base})
		w.do(err)
		t.Cleanup(func() { _ = client.Close() })
		test.rule.URL, test.rule.Origin, test.rule.StaleFor = base, client, time.Hour
		for _, restarted := range []bool{false, true} {
			w.do(w.SetRules([]Rule{test.rule}))
			if r := w.lookUp(w.path("host/acme/app")); restarted && r != nil {
				r.save()
				w.forget(r)
			}
			if test.want == "" {
				w.isRefused("host/acme/app", "the mirror is that of "+h.URL+"/acme/app.git")
				continue
			}
			if err := w.probe("host/acme/app.git"); err != nil {
				t.Errorf("%s of %s: Probe = %v, want none", test.rule.Prefix, base, err)
			}
			w.use("host/acme/app.git")
			if s, err := w.Status(t.Context(), w.path("host/acme/app")); err != nil || s.Origin != test.want {
				t.Errorf("%s of %s: Status = %+v, %v, want the origin %s", test.rule.Prefix, base, s, err, test.want)
			}
		}
	}
}
