package store

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// crashAt makes a node stop before a step of a change, and before all later ones.
func crashAt(s *Store, step string) {
	crashed := false
	s.failPoint = func(at string) error {
		if crashed = crashed || at == step; crashed {
			return errCrash
		}
		return nil
	}
}

// checkPaths compares what paths refer to, on a node without memory, with want. "" stands for no repository.
func checkPaths(t *testing.T, b *buckettest.Memory, want map[string]string) {
	t.Helper()
	s := newNode(t, b)
	for path, id := range want {
		if got := idOf(t, s, path); got != id {
			t.Errorf("%s has the repository %q, want %q", path, got, id)
		}
	}
}

func TestCrashInCreate(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"create: record", "create: name"} {
		t.Run(step, func(t *testing.T) {
			b := newBucket(t)
			a := newNode(t, b)
			crashAt(a, step)
			if err := a.Create(t.Context(), repoPath("x"), git.SHA1, "refs/heads/main", "", nil); err != errCrash {
				t.Fatalf("Create = %v, want the crash", err)
			}
			checkPaths(t, b, map[string]string{"x": ""})
			id := create(t, newNode(t, b), "x")
			checkPaths(t, b, map[string]string{"x": id})
		})
	}
}

func TestCrashAfterLosingAPath(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	var winner string
	a.failPoint = func(step string) error {
		switch step {
		case "create: name":
			winner = create(t, c, "x")
		case "create: remove":
			return errCrash
		}
		return nil
	}
	if err := a.Create(t.Context(), repoPath("x"), git.SHA1, "refs/heads/main", "", nil); !fault.Is(err, fault.Exists) {
		t.Errorf("Create = %v, want exists", err)
	}
	checkPaths(t, b, map[string]string{"x": winner})
}

func TestCrashInDelete(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"delete: record", "delete: name"} {
		t.Run(step, func(t *testing.T) {
			b := newBucket(t)
			a := newNode(t, b)
			want := create(t, a, "x")
			crashAt(a, step)
			if err := a.Delete(t.Context(), repoPath("x"), places.DeleteOptions{}); err != errCrash {
				t.Fatalf("Delete = %v, want the crash", err)
			}
			c := newNode(t, b)
			if step == "delete: name" {
				checkPaths(t, b, map[string]string{"x": ""})
				want = create(t, c, "x")
			} else if err := c.Create(t.Context(), repoPath("x"), git.SHA1, "refs/heads/main", "", nil); !fault.Is(err,
				fault.Exists) {
				t.Errorf("Create before the commit = %v, want exists", err)
			}
			checkPaths(t, b, map[string]string{"x": want})
		})
	}
}

func TestCrashInRename(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"rename: announce", "rename: switch", "rename: name"} {
		t.Run(step, func(t *testing.T) {
			b := newBucket(t)
			a := newNode(t, b)
			id := create(t, a, "x")
			crashAt(a, step)
			ctx := node.WithActor(t.Context(), "ann")
			if err := a.Rename(ctx, repoPath("x"), repoPath("y")); err != errCrash {
				t.Fatalf("Rename = %v, want the crash", err)
			}
			c := newNode(t, b)
			switch step {
			case "rename: announce":
				checkPaths(t, b, map[string]string{"x": id, "y": ""})
			case "rename: switch":
				if got := idOf(t, c, "x"); got != id {
					t.Errorf("before anybody asks for the new path, the old one has %q, want %q", got, id)
				}
				err := c.Create(node.WithActor(t.Context(), "bob"), repoPath("y"), git.SHA1, "refs/heads/main", "", nil)
				if !fault.Is(err, fault.Exists) {
					t.Errorf("Create at the new path = %v, want exists", err)
				}
				fallthrough
			default:
				checkPaths(t, b, map[string]string{"x": "", "y": id})
				if got := textOf(readEvents(t, c, "", 10)); got != "create x, rename y from x by ann" {
					t.Errorf("events: %s", got)
				}
				next := create(t, c, "x")
				checkPaths(t, b, map[string]string{"x": next, "y": id})
			}
		})
	}
}

// An announced move must not be carried out after the repository was renamed by others, even if it has its old name
// again.
func TestOutdatedMove(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	id := create(t, c, "x")
	crashAt(a, "rename: switch")
	if err := a.Rename(t.Context(), repoPath("x"), repoPath("y")); err != errCrash {
		t.Fatalf("Rename = %v, want the crash", err)
	}
	for _, to := range []string{"z", "x"} {
		from := map[string]string{"z": "x", "x": "z"}[to]
		if err := c.Rename(t.Context(), repoPath(from), repoPath(to)); err != nil {
			t.Fatal(err)
		}
	}
	checkPaths(t, b, map[string]string{"x": id, "y": "", "z": ""})
	other := create(t, c, "y")
	checkPaths(t, b, map[string]string{"x": id, "y": other, "z": ""})
}

// Random changes on several nodes, of which some crash: each leaves the state before it or after it.
func TestRandomCrashes(t *testing.T) {
	t.Parallel()
	rounds := 50
	if testing.Short() {
		rounds = 3
	}
	steps := []string{"create: record", "create: name", "delete: record", "delete: name", "rename: announce",
		"rename: switch", "rename: name", "", "", ""}
	for seed := range uint64(rounds) {
		random := rand.New(rand.NewPCG(seed, 34))
		b := newBucket(t)
		nodes, reader := []*Store{newNode(t, b), newNode(t, b)}, newNode(t, b)
		state := map[string]string{"a": "", "b": "", "c": ""}
		var history []string
		for range 12 {
			i := random.IntN(len(nodes))
			n, step := nodes[i], steps[random.IntN(len(steps))]
			from, to := string("abc"[random.IntN(3)]), string("abc"[random.IntN(3)])
			crashAt(n, step)
			after := map[string]string{"a": state["a"], "b": state["b"], "c": state["c"]}
			var err error
			var operation string
			switch random.IntN(3) {
			case 0:
				operation = "create " + from
				err = n.Create(t.Context(), repoPath(from), git.SHA1, "refs/heads/main", "", nil)
				after[from] = "new"
			case 1:
				operation = "delete " + from
				err = n.Delete(t.Context(), repoPath(from), places.DeleteOptions{})
				after[from] = ""
			case 2:
				operation = "rename " + from + " " + to
				err = n.Rename(t.Context(), repoPath(from), repoPath(to))
				after[from], after[to] = "", state[from]
			}
			history = append(history, fmt.Sprintf("%d: %s (%s): %v", i, operation, step, err))
			got := map[string]string{}
			for range 2 { // asking for one path may finish a move away from another one
				reader.names.Purge()
				for path := range state {
					got[path] = idOf(t, reader, path)
				}
			}
			if same(got, state) && err == nil && operation[0] != 'r' || !same(got, state) && !same(got, after) ||
				!same(got, state) && err != nil && err != errCrash {
				t.Fatalf("seed %d: %q: paths are %v, want %v or %v", seed, history, got, state, after)
			}
			state = got
			if err == errCrash {
				nodes[i] = newNode(t, b)
			}
		}
	}
}

// same reports whether two states are the same, where "new" stands for any ID.
func same(got, want map[string]string) bool {
	for path, id := range want {
		if got[path] != id && (id != "new" || got[path] == "") {
			return false
		}
	}
	return true
}
