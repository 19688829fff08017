package mirror

import (
	"path/filepath"
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

// The client clones from the origin, which counts its requests and repeats its answers for refs.
func TestClient(t *testing.T) {
	t.Parallel()
	w, err := world.New(filepath.Join(t.TempDir(), "world"), world.Program{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.AddHistory(t.Context(), "app", 3, 50_000); err != nil {
		t.Fatal(err)
	}
	o, err := newOrigin(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	c := gitload.NewClient(o.url(), "")
	defer c.Close()
	want, err := commit(t.Context(), w.Repository("app"), "next")
	if err != nil {
		t.Fatal(err)
	}
	id, _, err := c.LsRefs(t.Context(), "app", "main")
	if err != nil || id != want {
		t.Fatalf("main is %s, %v, want %s", id, err, want)
	}
	if size, err := c.Fetch(t.Context(), "app", id, 0); err != nil || size < 150_000 {
		t.Errorf("got a pack of %d bytes, %v, want 150,000 or more", size, err)
	}
	if _, err := c.Fetch(t.Context(), "app", "1234567890123456789012345678901234567890", 1); err == nil {
		t.Error("got a pack of an unknown commit, want an error")
	}
	o.replay = true
	for range 2 {
		if err := c.Clone(t.Context(), "app", 1); err != nil {
			t.Error(err)
		}
	}
	if got := [3]int{o.count("info"), o.count("ls-refs"), o.count("fetch")}; got != [3]int{2, 3, 4} {
		t.Errorf("requests for info, ls-refs and packs: got %v, want [2 3 4]", got)
	}
}
