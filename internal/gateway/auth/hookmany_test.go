package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

// decidesAboutMany lets alice read what has an even number, and everybody "pub".
func decidesAboutMany(w http.ResponseWriter, q question) {
	may := func(name string) bool {
		return name == "pub" || q.Identity != nil && q.Identity.Name == "alice" && strings.HasSuffix(name, "0")
	}
	if q.Question == authorize {
		fmt.Fprintf(w, `{"allow": %v}`, may(q.Repository))
		return
	}
	a := answer{Allow: true, Repositories: []string{}}
	for _, name := range q.Repositories {
		if may(name) {
			a.Repositories = append(a.Repositories, name)
		}
	}
	json.NewEncoder(w).Encode(a)
}

func manyRepos(t *testing.T, n int) []git.RepoPath {
	t.Helper()
	repos := make([]git.RepoPath, n)
	for i := range repos {
		repos[i] = repoPath(t, fmt.Sprintf("team/r%d.git", i))
	}
	repos[7] = repoPath(t, "pub")
	return repos
}

func TestReadableMany(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		together  bool
		repos     int
		questions int // of which anonymous callers' are about what alice may not read
	}{{true, 10_000, 20 + 18}, {false, 100, 100 + 89}} {
		w, app := newHookWorld(t, Options{}, HookOptions{Size: 10_000, Many: test.together}, decidesAboutMany)
		alice := Identity{Name: "alice", By: ByToken, Address: "192.0.2.1"}
		repos := manyRepos(t, test.repos)
		for turn, want := range []int{test.questions, test.questions, 2 * test.questions} {
			if turn == 2 {
				w.clock = w.clock.Add(time.Minute)
			}
			may, whole := w.Reader(context.Background(), alice)(repos)
			if !whole {
				t.Error("complete = false, want true")
			}
			for i := range repos {
				if may[i] != (i%10 == 0 || i == 7) {
					t.Fatalf("many = %v: readable(%v) = %v, want %v", test.together, repos[i], may[i], !may[i])
				}
			}
			if n := app.questions(); n != want {
				t.Errorf("%v: asked %d times by turn %d, want %d", test.together, n, turn, want)
			}
		}
	}
}

// TestReadableRules: the hook is asked about what no rule decides.
func TestReadableRules(t *testing.T) {
	t.Parallel()
	w, app := newHookWorld(t, Options{Rules: rules(t, "alice team/r3 read", "alice team/r20 none")},
		HookOptions{Many: true}, decidesAboutMany)
	may, whole := w.Reader(context.Background(), Identity{Name: "alice", By: ByToken})(manyRepos(t, 30))
	for i, ok := range may {
		if ok != (i == 0 || i == 10 || i == 3 || i == 7) {
			t.Errorf("readable(repository %d) = %v, want %v", i, ok, !ok)
		}
	}
	for _, q := range app.asked {
		for _, name := range q.Repositories {
			if q.Identity != nil && (name == "team/r3" || name == "team/r20") {
				t.Errorf("question about %s, want none: a rule decides", name)
			}
		}
	}
	if !whole {
		t.Error("complete = false, want true")
	}
}

// TestReadableFails has a hook that fails or is slow. The result is incomplete; cached answers stay valid.
func TestReadableFails(t *testing.T) {
	t.Parallel()
	for _, stale := range []bool{false, true} {
		w, app := newHookWorld(t, Options{}, HookOptions{Many: true, Stale: stale}, decidesAboutMany)
		reads := w.Reader(context.Background(), Identity{Name: "alice", By: ByToken})
		if _, whole := reads(manyRepos(t, 20)); !whole {
			t.Error("complete = false, want true")
		}
		app.answers(fails)
		if may, whole := reads(manyRepos(t, 20)); !whole || !may[10] {
			t.Error("a cached answer is missing, want it while the hook fails")
		}
		if may, whole := reads(manyRepos(t, 40)); whole || !may[10] || may[30] {
			t.Errorf("while the hook fails: readable = %v, complete = %v, want cached answers only", may, whole)
		}
		w.clock = w.clock.Add(time.Minute)
		if may, whole := reads(manyRepos(t, 20)); whole != stale || may[10] != stale {
			t.Errorf("stale = %v: readable = %v, complete = %v, want expired answers only if stale", stale, may, whole)
		}
	}
	asked, release := make(chan struct{}, 10_000), make(chan struct{})
	w, _ := newHookWorld(t, Options{}, HookOptions{}, func(w http.ResponseWriter, _ question) {
		asked <- struct{}{}
		<-release
		io.WriteString(w, `{"allow": true}`)
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan bool)
	go func() {
		_, whole := w.Reader(ctx, Identity{Name: "alice", By: ByToken})(manyRepos(t, 10_000))
		done <- whole
	}()
	for range maxCallerRequests {
		<-asked
	}
	cancel()    // as readableTime does
	if <-done { // without an answer to what is on its way
		t.Error("complete = true, want false")
	}
	close(release)
	if n := maxCallerRequests + len(asked); n > 4*maxCallerRequests {
		t.Errorf("questions = %d, want at most %d", n, 4*maxCallerRequests)
	}
}

// TestReadableIsBounded has more callers than are remembered.
func TestReadableIsBounded(t *testing.T) {
	t.Parallel()
	w, _ := newHookWorld(t, Options{}, HookOptions{Size: 10, Many: true}, decidesAboutMany)
	for i := range 20 {
		w.Reader(context.Background(), Identity{Name: fmt.Sprint("user", i), By: ByToken})(manyRepos(t, 50))
	}
	if n := w.o.Hook.views.Len(); n > 200 {
		t.Errorf("%d answers are cached, want at most 200", n)
	}
}
