package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gitid "github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// stepWorld is a server on a disk, and what its repositories must have.
type stepWorld struct {
	t       *testing.T
	random  *rand.Rand
	dir     string
	server  *serverProcess
	token   string
	client  *gittest.Repo
	members map[string]map[string]gitid.ObjectID // values of branches that were acknowledged, by repository
	gone    []gitid.ObjectID                     // tips of branches that were deleted
	purged  []gitid.ObjectID
	made    int
	done    map[string]int // steps
}

// TestSteps makes random steps, some of which a kill interrupts. After each one git fsck finds no problem in any
// repository, all have the refs that were acknowledged, and no file has an object that was purged.
func TestSteps(t *testing.T) {
	t.Parallel()
	seed, steps := rand.Uint64(), 40
	if !testing.Short() {
		steps = 500
	}
	t.Logf("seed %d", seed)
	w := &stepWorld{t: t, random: rand.New(rand.NewPCG(seed, 1)), dir: t.TempDir(), client: gittest.Init(t, "--bare"),
		members: map[string]map[string]gitid.ObjectID{"app": {}}, done: map[string]int{}}
	gittest.InitAt(t, filepath.Join(w.dir, "repos/app.git"), "--bare")
	w.token = createToken(t, "alice", "--state", filepath.Join(w.dir, "state"))
	w.start()
	first := w.client.Commit("first")
	if out, ok := w.push(false, "app", "main", first); !ok { // HEAD, which is not deleted
		t.Fatal(out)
	}
	w.members["app"]["main"] = first
	defer func() { w.server.kill() }()
	for range steps {
		names := []string{"push", "push", "push", "delete", "delete", "fork", "remove", "gc", "purge", "purge"}
		w.step(names[w.random.IntN(len(names))], w.random.IntN(5) == 0)
		w.check()
		if t.Failed() {
			break
		}
	}
	t.Logf("%v", w.done)
}

func (w *stepWorld) start() {
	w.t.Helper()
	// Collections must not wait for the grace.
	err := os.WriteFile(filepath.Join(w.dir, "c.toml"), []byte("[fetch]\ngrace = \"0s\"\n"), 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	w.server, err = startServer(w.dir, os.Environ(), []string{"serve", "--config", "c.toml", "--root", "repos",
		"--state", "state", "--http", "127.0.0.1:0", "--ops", "", "--log-format", "json"})
	if err != nil {
		w.t.Fatal(err)
	}
}

// run runs a command, and kills the server meanwhile if isKilled. It reports whether the command has succeeded.
func (w *stepWorld) run(isKilled bool, cmd *exec.Cmd) (out string, ok bool) {
	cmd.Dir, cmd.Env = w.dir, append(gittest.Env(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader",
		"GIT_CONFIG_VALUE_0="+basicHeader("alice", w.token))
	var killed chan struct{}
	if isKilled {
		killed = make(chan struct{})
		time.AfterFunc(time.Duration(w.random.IntN(250))*time.Millisecond, func() { w.server.kill(); close(killed) })
	}
	text, err := cmd.CombinedOutput()
	if isKilled {
		<-killed
		w.start()
	}
	return string(text), err == nil
}

func (w *stepWorld) packhorse(isKilled bool, args ...string) (string, bool) {
	return w.run(isKilled, exec.Command(filepath.Join(binDir, "packhorse"), append(args, "--root", "repos", "--state",
		"state")...))
}

// any returns a random name.
func (w *stepWorld) any(names []string) string {
	slices.Sort(names)
	return names[w.random.IntN(len(names))]
}

func (w *stepWorld) path(name string) string { return filepath.Join(w.dir, "repos", name+".git") }

// push sets a branch, or deletes it if the ID is zero.
func (w *stepWorld) push(isKilled bool, name, branch string, id gitid.ObjectID) (out string, ok bool) {
	text := ""
	if !id.IsZero() {
		text = id.String()
	}
	return w.run(isKilled, exec.Command("git", "--git-dir="+w.client.Dir, "push", "--quiet", "--force",
		w.server.http+"/"+name, text+":refs/heads/"+branch))
}

func (w *stepWorld) step(kind string, isKilled bool) {
	w.t.Helper()
	name := w.any(slices.Collect(maps.Keys(w.members)))
	refs := w.members[name]
	branch := w.any(slices.Collect(maps.Keys(refs)))
	var out string
	var ok bool
	switch {
	case kind == "push":
		w.made++
		var parents []gitid.ObjectID
		if w.random.IntN(4) > 0 {
			parents = append(parents, refs[branch])
		}
		id := w.client.Commit(fmt.Sprint("commit ", w.made), parents...)
		branch = fmt.Sprint("b", w.random.IntN(4))
		if out, ok = w.push(isKilled, name, branch, id); ok || w.settled(name, branch, id) {
			if !refs[branch].IsZero() {
				w.gone = append(w.gone, refs[branch])
			}
			refs[branch] = id
		}
	case kind == "delete" && branch != "main":
		if out, ok = w.push(isKilled, name, branch, gitid.ObjectID{}); ok || w.settled(name, branch, gitid.ObjectID{}) {
			w.gone = append(w.gone, refs[branch])
			delete(refs, branch)
		}
	case kind == "fork" && len(w.members) < 5:
		w.made++
		fork := fmt.Sprint("fork", w.made)
		out, ok = w.packhorse(isKilled, "repo", "fork", name, fork)
		if _, err := os.Stat(w.path(fork)); ok || err == nil {
			w.members[fork] = maps.Clone(refs)
		}
	case kind == "remove" && len(w.members) > 1:
		out, ok = w.packhorse(isKilled, "repo", "remove", name, "--yes")
		if _, err := os.Stat(w.path(name)); ok || err != nil {
			delete(w.members, name)
		}
	case kind == "gc":
		out, ok = w.packhorse(isKilled, "repo", "gc", name, "--older-than", "1ms")
	case kind == "purge" && len(w.gone) > 0:
		out, ok = w.purge(isKilled, name, w.gone[w.random.IntN(len(w.gone))])
	default:
		return
	}
	if !ok && !isKilled {
		w.t.Errorf("%s of %s: %s", kind, name, out)
	}
	w.done[kind]++
	if isKilled {
		w.done["kill"]++
	}
}

// settled reports whether a push that was not acknowledged has set a branch.
func (w *stepWorld) settled(name, branch string, id gitid.ObjectID) bool {
	out, err := gittest.At(w.t, w.path(name)).Try("rev-parse", "--verify", "--quiet", "refs/heads/"+branch)
	return err == nil && strings.TrimSpace(out) == id.String() || err != nil && id.IsZero()
}

// purge purges a commit, also from what shares objects. It has to be refused if a branch reaches the commit.
func (w *stepWorld) purge(isKilled bool, name string, id gitid.ObjectID) (out string, ok bool) {
	if out, ok = w.packhorse(isKilled, "repo", "purge", name, id.String()); !ok && isKilled {
		out, ok = w.packhorse(false, "repo", "purge", name, id.String())
	}
	switch {
	case ok:
		w.purged = append(w.purged, id)
	case strings.Contains(out, "refs reach it"):
		for _, refs := range w.members {
			for _, tip := range refs {
				if _, err := w.client.Try("merge-base", "--is-ancestor", id.String(), tip.String()); err == nil {
					return out, true
				}
			}
		}
	case strings.Contains(out, "has no object"): // it was collected, or this one never had it
		return out, true
	}
	return out, ok
}

// check checks all repositories.
func (w *stepWorld) check() {
	w.t.Helper()
	for name, refs := range w.members {
		r := gittest.At(w.t, w.path(name))
		if out, err := r.Try("fsck", "--full", "--strict", "--no-dangling", "--no-progress"); err != nil {
			w.t.Errorf("git fsck in %s: %v\n%s", name, err, out)
		}
		got := map[string]gitid.ObjectID{}
		for line := range strings.Lines(r.Git("for-each-ref", "--format=%(refname:lstrip=2) %(objectname)")) {
			branch, id, _ := strings.Cut(strings.TrimSpace(line), " ")
			got[branch] = gitid.MustParseObjectID(id)
		}
		if !maps.Equal(got, refs) {
			w.t.Errorf("%s has %v, want %v", name, got, refs)
		}
		purged, _ := r.Try("config", "--get-all", "packhorse.purged") // it fails if there is none
		for _, id := range strings.Fields(purged) {
			if out, err := r.Try("cat-file", "-e", id); err == nil {
				w.t.Errorf("%s still has %s, which was purged %s", name, id, out)
			}
		}
	}
}
