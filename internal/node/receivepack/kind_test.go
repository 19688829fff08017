package receivepack

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// kindsOf returns the kinds of updates as text, sorted.
func kindsOf(updates []Update) string {
	var all []string
	for _, u := range updates {
		text := fmt.Sprintf("%s %s", u.Ref, u.Kind)
		if u.Hidden {
			text += " hidden"
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// A Decider and the receivers of changes get the kind of each update, as git sees it.
func TestKinds(t *testing.T) {
	t.Parallel()
	asked := ""
	w := newWorld(t, Options{Decider: decider(func(_ context.Context, p *Push) error {
		asked = kindsOf(p.Updates)
		return nil
	})})
	c := w.clone()
	first := c.ID("main")
	c.Git("tag", "-a", "-m", "one", "v1", first.String())
	c.Git("update-ref", "refs/heads/side", c.Commit("side").String())
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	c.Git("update-ref", "refs/heads/walk", first.String())
	w.mustPush(c, "main", "v1", "side", "walk", "main:refs/heads/gone", "main:refs/heads/moved")
	if want := "refs/heads/gone created, refs/heads/main created, refs/heads/moved created, refs/heads/side created, " +
		"refs/heads/walk created, refs/tags/v1 created"; asked != want {
		t.Errorf("the kinds are %s, want %s", asked, want)
	}
	c.Git("update-ref", "refs/heads/main", c.Commit("second", first).String())
	c.Git("tag", "-f", "-a", "-m", "two", "v1", "main")
	w.done = nil
	w.mustPush(c, "main", "+v1", ":gone", "+side:moved")
	want := "refs/heads/gone deleted, refs/heads/main fast-forward, refs/heads/moved forced, refs/tags/v1 fast-forward"
	if told := kindsOf(w.done); asked != want || told != want {
		t.Errorf("the kinds are %s and %s, want %s", asked, told, want)
	}

	w.done = nil // a blob has no ancestors
	c.Git("tag", "-f", "v1", c.Git("hash-object", "-w", "--stdin"))
	w.mustPush(c, "+v1")
	if want := "refs/tags/v1 forced"; asked != want || kindsOf(w.done) != want {
		t.Errorf("the kinds are %s and %s, want %s", asked, kindsOf(w.done), want)
	}

	commits := []git.ObjectID{first} // random histories
	for i := range 20 {
		parents := []git.ObjectID{commits[random.IntN(len(commits))]}
		if random.IntN(3) == 0 {
			if other := commits[random.IntN(len(commits))]; other != parents[0] {
				parents = append(parents, other)
			}
		}
		old, id := c.Git("rev-parse", "walk"), c.Commit(fmt.Sprint("random ", i), parents...)
		commits = append(commits, id)
		want := "refs/heads/walk fast-forward"
		cmd := exec.Command("git", "merge-base", "--is-ancestor", old, id.String())
		if cmd.Dir, cmd.Env = c.Dir, gittest.Env(); cmd.Run() != nil {
			want = "refs/heads/walk forced"
		}
		w.done = nil
		c.Git("update-ref", "refs/heads/walk", id.String())
		w.mustPush(c, "+walk")
		if asked != want || kindsOf(w.done) != want {
			t.Errorf("seed %d, push %d: the kinds are %s and %s, want %s", seed, i, asked, kindsOf(w.done), want)
		}
	}
}

// Refs that are hidden from fetches are marked.
func TestHiddenKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	w.Git("config", "uploadpack.hideRefs", "refs/secret")
	c := w.clone()
	w.mustPush(c, "main", "main:refs/secret/a")
	if told, want := kindsOf(w.done), "refs/heads/main created, refs/secret/a created hidden"; told != want {
		t.Errorf("the kinds are %s, want %s", told, want)
	}
}
