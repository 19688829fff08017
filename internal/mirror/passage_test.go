package mirror

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

// hides makes the host hide refs from anonymous requests and accept all credentials, as some Git hosts do. It returns
// the credentials of requests to git-upload-pack.
func (h *host) hides(prefix string) (credentials func() string) {
	var mu sync.Mutex
	var seen []string
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		seen = append(seen, r.Header.Get("Authorization"))
		mu.Unlock()
		if r.Header.Get("Authorization") != "" {
			return false
		}
		backend := *h.backend
		backend.Env = append(slices.Clone(backend.Env), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=transfer.hideRefs",
			"GIT_CONFIG_VALUE_0="+prefix)
		backend.ServeHTTP(w, r)
		return true
	})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(seen, " ")
	}
}

// With rules that decide about readers, they get what the mirrored refs reach, and nothing else that the mirror's own
// credential may read, whether the mirror is complete or not.
func TestHiddenFromReaders(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.history(t, "app.git", 5)
	tip := from.ID("main")
	hidden := map[string]git.ObjectID{"branch": from.Commit("embargo", tip), "change request": from.Commit("change", tip),
		"unreachable": from.Commit("removed", tip)}
	from.Git("update-ref", "refs/heads/embargo", hidden["branch"].String())
	from.Git("update-ref", "refs/changes/01/1/1", hidden["change request"].String())
	from.Git("symbolic-ref", "HEAD", "refs/heads/embargo")
	for _, isComplete := range []bool{true, false} {
		w := newWorld(t, h, t.TempDir(), func(r *Rule) { r.Refs = []string{"refs/heads/main"} })
		url := w.serve() + "app"
		if isComplete {
			w.use("host/app")
		} else {
			w.firsts <- struct{}{} // first updates wait
			for range cap(w.firsts) - 1 {
				w.firsts <- struct{}{}
			}
		}
		for _, prefix := range []string{"refs/", "refs/changes/", "refs/pull/", "HEAD"} {
			if _, got := w.request(url, "ls-refs", "symrefs", "ref-prefix "+prefix, "ref-prefix refs/pull/"); strings.Contains(
				got, hidden["branch"].String()) || strings.Contains(got, hidden["change request"].String()) ||
				strings.Contains(got, "refs/changes") {
				t.Errorf("complete %v: ls-refs of %s = %q, want no hidden refs", isComplete, prefix, got)
			}
		}
		if !isComplete {
			response, err := http.Get(url + "/info/refs?service=git-upload-pack")
			w.do(err)
			text, err := io.ReadAll(response.Body)
			w.do(err)
			_ = response.Body.Close()
			for _, id := range hidden {
				if strings.Contains(string(text), id.String()) || strings.Contains(string(text), "embargo") {
					t.Errorf("advertisement of version 0 = %q, want no hidden refs", text)
				}
			}
			if !strings.Contains(string(text), tip.String()+" refs/heads/main") {
				t.Errorf("advertisement of version 0 = %q, want main", text)
			}
			if _, got := w.request(url, "fetch", "done", "want "+tip.String(), "deepen 1"); !strings.Contains(got, "PACK") {
				t.Errorf("fetch of main = %.200q, want a pack", got)
			}
			r := w.lookUp(w.path("host/app"))
			x := &exchange{mirrors: w.Mirrors, mirror: r, rule: r.currentRule(),
				session: node.Session{Version: protocol.V2, Stateless: true}}
			for _, line := range []string{"have ", "shallow "} {
				body := pktline.AppendDelim(pktline.AppendLine(nil, "command=fetch"))
				body = pktline.AppendLine(pktline.AppendLine(body, "want "+tip.String()), line+hidden["branch"].String())
				if p, err := x.passageOf(t.Context(), pktline.AppendFlush(body)); err != nil || p != passNot {
					t.Errorf("passage of a fetch with a %sline = %v, %v, want none", line, p, err)
				}
			}
			for range cap(w.firsts) {
				<-w.firsts
			}
		}
		for name, id := range hidden {
			for _, more := range [][]string{nil, {"have " + tip.String()}, {"shallow " + id.String(), "deepen 2147483647"}} {
				lines := append([]string{"fetch", "done", "want " + id.String()}, more...)
				if _, got := w.request(url, lines...); strings.Contains(got, "PACK") {
					t.Errorf("complete %v: fetch of the %s with %q has a pack, want an error", isComplete, name, more)
				}
			}
		}
	}
}

// An advertisement of version 0 before the first update has the refs of the rule.
func TestAdvertisementOfEachRule(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.history(t, "app.git", 2)
	from.Git("update-ref", "refs/heads/embargo", from.Commit("embargo", from.ID("main")).String())
	w := newWorld(t, h, t.TempDir())
	for range cap(w.firsts) {
		w.firsts <- struct{}{} // first updates wait
	}
	url := strings.TrimSuffix(w.serve(), "host/")
	advertise := func(path string, want bool) {
		t.Helper()
		response, err := http.Get(url + path + "/app/info/refs?service=git-upload-pack")
		w.do(err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || !strings.Contains(string(text), "refs/heads/main\n") ||
			!strings.Contains(string(text), " HEAD\x00multi_ack ") || !strings.Contains(string(text), "refs/tags/v1^{}\n") ||
			strings.Contains(string(text), "embargo") != want {
			t.Errorf("advertisement of %s = %q, %v, want main, v1, HEAD with capabilities, and embargo: %v", path, text,
				err, want)
		}
	}
	full, narrow := w.rule, w.rule
	full.Prefix, narrow.Prefix, narrow.Refs = "full", "narrow", []string{"refs/heads/main", "refs/tags/*"}
	changed := narrow
	changed.Prefix = "full"
	w.do(w.SetRules([]Rule{full, narrow}))
	advertise("full", true)
	advertise("narrow", false)
	w.do(w.SetRules([]Rule{changed, narrow}))
	advertise("full", false)
	for range cap(w.firsts) {
		<-w.firsts
	}
}

// ChangeRequests permits the IDs of change requests, and no others.
func TestChangeRequestsByID(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.history(t, "app.git", 3)
	w := newWorld(t, h, t.TempDir(), func(r *Rule) { r.ChangeRequests = true })
	url := w.serve() + "app"
	w.use("host/app")
	change, other := from.Commit("change", from.ID("main")), from.Commit("other", from.ID("main"))
	from.Git("update-ref", "refs/pull/1/merge", change.String())
	from.Git("update-ref", "refs/secret/1", other.String())
	from.Git("config", "uploadpack.allowRefInWant", "true")
	for line, want := range map[string]bool{"want " + change.String(): true, "want " + other.String(): false,
		"want-ref refs/pull/1/merge": true, "want-ref refs/secret/1": false, "want-ref refs/pull/2/merge": false} {
		if _, got := w.request(url, "fetch", "done", line); strings.Contains(got, "PACK") != want {
			t.Errorf("fetch with %s = %.200q, want a pack: %v", line, got, want)
		}
	}
}

// ownCredential is a mirror's own credential.
type ownCredential struct{}

func (ownCredential) Authorization(context.Context) (node.Secret, error) {
	return node.NewSecret("own"), nil
}

// withOwnCredential gives the client of a rule's origin the mirror's own credential.
func withOwnCredential(t *testing.T, r *Rule) {
	own, err := origin.New(origin.Options{URL: r.URL, Credential: ownCredential{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Close() })
	r.Origin = own
}

// A reader without a credential for an origin that decides stays anonymous there.
func TestAnonymousStaysAnonymous(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.history(t, "app.git", 3)
	from.Git("update-ref", "refs/changes/01/1/1", from.Commit("change", from.ID("main")).String())
	w := newWorld(t, h, t.TempDir(), func(r *Rule) {
		withOwnCredential(t, r)
		r.OriginDecides, r.Fresh.Every = true, time.Hour
	})
	url := w.serve() + "app"
	w.use("host/app")
	seen := h.hides("refs/changes")
	if _, got := w.request(url, "ls-refs", "ref-prefix refs/changes/"); strings.Contains(got, "refs/changes") {
		t.Errorf("ls-refs = %q, want no refs/changes", got)
	}
	if got := strings.TrimSpace(seen()); got != "" {
		t.Errorf("credentials at the origin for ls-refs: %q, want none", got)
	}
	w.request(url, "fetch", "done", "want "+from.ID("refs/changes/01/1/1").String())
	if got := seen(); !strings.HasSuffix(got, " ") {
		t.Errorf("credentials at the origin: %q, want none for the relayed fetch", got)
	}
}

// The same holds for Git LFS. Readers by the rules of this server have no credential for the origin, so the mirror's
// own credential gets their objects.
func TestLFSOfAnonymous(t *testing.T) {
	t.Parallel()
	for _, originDecides := range []bool{true, false} {
		h := newHost(t)
		h.repo(t, "a.git")
		s := addLFS(t, h)
		w := newWorld(t, h, t.TempDir(), func(r *Rule) {
			withOwnCredential(t, r)
			r.OriginDecides = originDecides
		})
		w.use("host/a")
		var mu sync.Mutex
		var seen []string
		private := false
		h.mu.Lock()
		serve := h.handle
		h.mu.Unlock()
		h.set(func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(r.URL.Path, "/info/lfs/") {
				seen = append(seen, r.Header.Get("Authorization"))
				if private && r.Header.Get("Authorization") == "" {
					w.WriteHeader(http.StatusUnauthorized)
					return true
				}
			}
			return serve(w, r)
		})
		content := randomBytes(1, 1000)
		w.gets("host/a", s.add("a", content), content, "miss")
		want := []string{"", ""}
		if !originDecides {
			want = []string{"own", "own"}
		}
		mu.Lock()
		if !slices.Equal(seen, want) {
			t.Errorf("the origin decides %v: credentials %q, want %q", originDecides, seen, want)
		}
		private = true
		mu.Unlock()
		o := s.add("a", []byte("private"))
		for caller, kind := range map[string]fault.Kind{"192.0.2.1/": fault.Unauthenticated, "": fault.Unauthenticated,
			"ci": fault.Denied} {
			session := node.Session{Stateless: true, Caller: caller}
			_, _, err := w.Node().LFSBatch(t.Context(), w.path("host/a"), session, lfs.Batch{Objects: []lfs.Object{o}})
			if originDecides && !fault.Is(err, kind) || !originDecides && err != nil {
				t.Errorf("the origin decides %v: batch of %q: %v, want %v", originDecides, caller, err, kind)
			}
		}
	}
}
