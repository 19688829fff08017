package storage_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// A change has one event, and one that changes nothing has none. Paths that are new or gone are not logged as failures.
func TestEvents(t *testing.T) {
	t.Parallel()
	j, err := event.OpenJournal(event.JournalOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	r := newRoot(t, storage.Options{Runner: newRunner(t), Events: j, Log: slog.New(slog.NewTextHandler(&log, nil))})
	t.Cleanup(func() { _ = j.Close() })
	r.do(r.create("a.git"))
	describe := func(s places.Settings) error {
		s["gitweb.description"] = []string{"A"}
		return nil
	}
	for range 2 {
		if _, err := r.SetHead(t.Context(), r.path("a.git"), "refs/heads/x", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Configure(t.Context(), r.path("a.git"), describe); err != nil {
			t.Fatal(err)
		}
	}
	r.do(r.Rename(t.Context(), r.path("a.git"), r.path("b.git")))
	if _, err := r.Fork(t.Context(), r.path("b.git"), r.path("c.git"), places.ForkOptions{}); err != nil {
		t.Fatal(err)
	}
	r.do(r.Delete(t.Context(), r.path("c.git"), places.DeleteOptions{}))
	list, _, err := j.Read(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, string(e.Kind)+" "+string(e.Repository))
	}
	want := "create a, configure a, configure a, rename b, create c, delete c"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("events: %s, want %s", s, want)
	}
	if strings.Contains(log.String(), "cannot determine the version") {
		t.Errorf("log: %s", &log)
	}
}
