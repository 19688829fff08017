package store

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

func TestMain(m *testing.M) {
	benchtest.Main(m, func(env loadgen.Env) []*cobra.Command { return []*cobra.Command{Command(env)} })
}

// Git accepts the pushes of a pusher, and a pusher notices a push that Git refuses.
func TestPusher(t *testing.T) {
	t.Parallel()
	base, err := world.New(t.TempDir(), world.Program{})
	if err != nil {
		t.Fatal(err)
	}
	w := &stores{World: base, options: &options{}}
	app := w.Repository("app")
	if err := w.addRepositories(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := gitload.RunGit(t.Context(), app, nil, "config", "http.receivepack", "true"); err != nil {
		t.Fatal(err)
	}
	s := &server{Process: &world.Process{URL: benchtest.Backend(t, w.Root(), false).URL}}
	p, late := s.pusher("app.git", "bench", w.base), s.pusher("app.git", "bench", w.base)
	defer p.Client.Close()
	defer late.Client.Close()
	for range 3 {
		if took, advertised, err := p.Push(t.Context()); err != nil || took <= advertised {
			t.Fatalf("push took %v, %v of it for refs, %v", took, advertised, err)
		}
	}
	count, err := gitload.RunGit(t.Context(), app, nil, "rev-list", "--count", "main..bench")
	if err != nil || strings.TrimSpace(count) != "3" {
		t.Errorf("the branch has %q new commits, %v, want 3", count, err)
	}
	if _, err := gitload.RunGit(t.Context(), app, nil, "fsck", "--strict"); err != nil {
		t.Error(err)
	}
	if _, _, err := late.Push(t.Context()); err == nil {
		t.Error("a push that creates an existing branch succeeded, want an error")
	}
	if err := late.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := late.Push(t.Context()); err != nil {
		t.Errorf("push after the branch was read: %v", err)
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		get      int
		post     http.HandlerFunc
		isErrors bool
	}{
		{"refused", 503, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, false},
		{"refs", 200, nil, true},
		{"another status", 404, nil, true},
		{"read", 503, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(503)
		}, true},
		{"accepted", 503, func(http.ResponseWriter, *http.Request) {}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					c.post(w, r)
					return
				}
				w.WriteHeader(c.get)
			}))
			defer backend.Close()
			s := &server{Process: &world.Process{URL: backend.URL}}
			p := s.pusher("app", "bench", gitload.Commit{ID: strings.Repeat("1", 40), Tree: strings.Repeat("2", 40)})
			defer p.Client.Close()
			if err := s.refuses(t.Context(), p, true); (err != nil) != c.isErrors {
				t.Errorf("refuses() = %v, want an error: %v", err, c.isErrors)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"nothing":             "invalid argument",
		"push --rounds 0":     "--rounds",
		"push --store s3://b": "--endpoint",
		"clone --clients 0":   "--clients",
		"push --versitygw /missing/versitygw --packhorse /missing/packhorse": "--versitygw",
	} {
		_, _, err := benchtest.Run(t, t.Context(), append([]string{"store"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("packhorse-bench store %s = %v, want an error with %q", args, err, want)
		}
	}
}
