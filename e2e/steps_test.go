package e2e

import (
	"crypto/sha1"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gitid "github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// stepWorld is a server, and what its repositories must have.
type stepWorld struct {
	t       *testing.T
	random  *rand.Rand
	dir     string
	bucket  *buckettest.Server // nil: the repositories are on a disk
	proxy   *buckettest.Proxy  // between the server and the bucket
	server  *serverProcess
	token   string
	client  *gittest.Repo
	members map[string]map[string]gitid.ObjectID // values of branches that were acknowledged, by repository
	opened  map[string]*gittest.Repo             // exports of this moment
	gone    []gitid.ObjectID                     // tips of branches that were deleted
	packs   map[[sha1.Size]byte]string           // object lists of packs, by their content
	made    int
	done    map[string]int // steps
}

// fault is what happens to the server during a step.
type fault string

const (
	noFault   fault = ""
	killFault fault = "kill" // of the server
	cutFault  fault = "cut"  // of its connections to the bucket
)

// TestSteps makes random steps, some of which a kill or a cut network interrupts. After each one git fsck finds no
// problem in any repository, and all have the refs that were acknowledged. After a purge no file has the object.
//
// PACKHORSE_STEPS is the number of steps in each form, and PACKHORSE_SEED the seed of the random numbers.
func TestSteps(t *testing.T) {
	t.Parallel()
	seed, long := seedOr(rand.Uint64()), 0
	if n, err := strconv.Atoi(os.Getenv("PACKHORSE_STEPS")); err == nil {
		long = n
	} else if !testing.Short() {
		long = 100
	}
	for name, steps := range map[string]int{"disk": 25, "store": 12} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newStepWorld(t, seed, name == "store").run(max(long, steps))
		})
	}
}

// newStepWorld starts a server with the repository app, whose main branch has a commit.
func newStepWorld(t *testing.T, seed uint64, isInStore bool) *stepWorld {
	t.Helper()
	t.Logf("PACKHORSE_SEED=%d", seed)
	w := &stepWorld{t: t, random: rand.New(rand.NewPCG(seed, 1)), dir: t.TempDir(), client: gittest.Init(t, "--bare"),
		opened: map[string]*gittest.Repo{}, done: map[string]int{}, packs: map[[sha1.Size]byte]string{}}
	w.token = createToken(t, "alice", "--state", filepath.Join(w.dir, "state"))
	if err := os.Mkdir(filepath.Join(w.dir, "repos"), 0o700); err != nil {
		t.Fatal(err)
	}
	if isInStore {
		w.bucket = buckettest.Versioned(t)
		w.proxy = buckettest.Toxiproxy(t, w.bucket.Address)
		o := w.bucket.Options("steps")
		for name, address := range map[string]string{"store.toml": w.proxy.Address, "bucket.toml": w.bucket.Address} {
			text := fmt.Sprintf("[store]\nurl = %q\nendpoint = %q\ncredentials_file = %q\nnode = \"n\"\npath_style = true\n",
				o.URL, "http://"+address, o.CredentialsFile)
			if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		runPackhorse(t, w.dir, "store", "init", "--config", "bucket.toml")
	}
	w.start()
	t.Cleanup(func() {
		w.server.kill()
		if t.Failed() {
			t.Logf("the log of the server ends:\n%s", tail(w.server.logged(), 8000))
		}
	})
	if out, ok := w.packhorse(noFault, "repo", "create", "app"); !ok {
		t.Fatal(out)
	}
	first := w.client.Commit("first")
	if out, ok := w.push(noFault, "app", "main", first); !ok { // HEAD, which is not deleted
		t.Fatal(out)
	}
	w.members = map[string]map[string]gitid.ObjectID{"app": {"main": first}}
	return w
}

func (w *stepWorld) run(steps int) {
	w.t.Helper()
	kinds := []string{"push", "push", "push", "delete", "delete", "fork", "remove", "rename", "gc", "purge", "purge"}
	faults := []fault{noFault, noFault, noFault, noFault, killFault}
	if w.bucket != nil {
		kinds, faults = append(kinds, "maintain", "store gc"), []fault{noFault, noFault, noFault, killFault, cutFault}
	}
	for range steps {
		w.step(kinds[w.random.IntN(len(kinds))], faults[w.random.IntN(len(faults))])
		w.check()
		if w.t.Failed() {
			break
		}
	}
	w.t.Logf("%v", w.done)
}

func (w *stepWorld) start() {
	w.t.Helper()
	// Collections must not wait for the grace.
	text, name := []byte("[fetch]\ngrace = \"0s\"\n"), "c.toml"
	if w.bucket != nil {
		store, err := os.ReadFile(filepath.Join(w.dir, "store.toml"))
		if err != nil {
			w.t.Fatal(err)
		}
		text = append(text, store...)
	}
	err := os.WriteFile(filepath.Join(w.dir, name), text, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	w.server, err = startServer(w.dir, os.Environ(), []string{"serve", "--config", name, "--root", "repos", "--state",
		"state", "--http", "127.0.0.1:0", "--ops", "", "--log-format", "json"})
	if err != nil {
		w.t.Fatal(err)
	}
}

// command runs a command with a fault. It reports whether the command has succeeded.
func (w *stepWorld) command(f fault, cmd *exec.Cmd) (out string, ok bool) {
	w.t.Helper()
	cmd.Dir, cmd.Env = w.dir, append(gittest.Env(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader",
		"GIT_CONFIG_VALUE_0="+basicHeader("alice", w.token))
	clear(w.opened)
	switch f {
	case killFault:
		killed := make(chan struct{})
		time.AfterFunc(time.Duration(w.random.IntN(250))*time.Millisecond, func() { w.server.kill(); close(killed) })
		defer func() {
			<-killed
			w.start()
		}()
	case cutFault:
		w.proxy.Add("cut", "reset_peer", "downstream", 0.6, map[string]any{"timeout": w.random.IntN(40)})
		defer w.proxy.Remove("cut")
	}
	text, err := cmd.CombinedOutput()
	return string(text), err == nil
}

func (w *stepWorld) packhorse(f fault, args ...string) (string, bool) {
	return w.command(f, exec.Command(filepath.Join(binDir, "packhorse"), append(args, "--root", "repos", "--state",
		"state")...))
}

// any returns a random name.
func (w *stepWorld) any(names []string) string {
	slices.Sort(names)
	return names[w.random.IntN(len(names))]
}

// open returns a repository as it is: its directory, or an export that reads the bucket.
func (w *stepWorld) open(name string) *gittest.Repo {
	w.t.Helper()
	if w.bucket == nil {
		return gittest.At(w.t, filepath.Join(w.dir, "repos", name+".git"))
	}
	if w.opened[name] == nil {
		dir := filepath.Join(w.t.TempDir(), "export.git")
		runPackhorse(w.t, w.dir, "repo", "export", name, dir, "--config", "bucket.toml")
		w.opened[name] = gittest.At(w.t, dir)
	}
	return w.opened[name]
}

func (w *stepWorld) exists(name string) bool {
	w.t.Helper()
	list, ok := w.packhorse(noFault, "repo", "list")
	if !ok {
		w.t.Fatal(list)
	}
	return slices.Contains(strings.Fields(strings.ReplaceAll(list, ".git\n", "\n")), name)
}

// free returns a name that no repository has. Names come back.
func (w *stepWorld) free() string {
	for {
		name := []string{"", "a/", "a/b/"}[w.random.IntN(3)] + fmt.Sprint("fork", w.random.IntN(4))
		if w.members[name] == nil {
			return name
		}
	}
}

// push sets a branch, or deletes it if the ID is zero.
func (w *stepWorld) push(f fault, name, branch string, id gitid.ObjectID) (out string, ok bool) {
	text := ""
	if !id.IsZero() {
		text = id.String()
	}
	return w.command(f, exec.Command("git", "--git-dir="+w.client.Dir, "push", "--quiet", "--force",
		w.server.http+"/"+name, text+":refs/heads/"+branch))
}

func (w *stepWorld) step(kind string, f fault) {
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
		if out, ok = w.push(f, name, branch, id); ok || w.settled(name, branch, id) {
			if !refs[branch].IsZero() {
				w.gone = append(w.gone, refs[branch])
			}
			refs[branch] = id
		}
	case kind == "delete" && branch != "main":
		if out, ok = w.push(f, name, branch, gitid.ObjectID{}); ok || w.settled(name, branch, gitid.ObjectID{}) {
			w.gone = append(w.gone, refs[branch])
			delete(refs, branch)
		}
	case kind == "fork" && len(w.members) < 5:
		fork := w.free()
		if out, ok = w.packhorse(f, "repo", "fork", name, fork); ok || w.exists(fork) {
			w.members[fork] = maps.Clone(refs)
		}
	case kind == "rename":
		to := w.free()
		if out, ok = w.packhorse(f, "repo", "rename", name, to); ok || w.exists(to) {
			delete(w.members, name)
			w.members[to] = refs
		}
		if w.exists(name) != (w.members[name] != nil) {
			w.t.Errorf("%s has both names or none after it was renamed to %s: %s", name, to, out)
		}
	case kind == "remove" && len(w.members) > 1:
		if out, ok = w.packhorse(f, "repo", "remove", name, "--yes"); ok || !w.exists(name) {
			delete(w.members, name)
		}
	case kind == "gc":
		out, ok = w.packhorse(f, "repo", "gc", name, "--older-than", "1ms")
	case kind == "maintain":
		out, ok = w.packhorse(f, "repo", "maintain", name)
	case kind == "store gc":
		out, ok = w.command(f, exec.Command(filepath.Join(binDir, "packhorse"), "store", "gc", "--older-than", "1ms",
			"--config", "store.toml"))
	case kind == "purge" && len(w.gone) > 0:
		out, ok = w.purge(f, name, w.choose(name))
	default:
		return
	}
	if !ok && f == noFault {
		w.t.Errorf("%s of %s: %s", kind, name, out)
	}
	w.done[kind]++
	if f != noFault {
		w.done[string(f)]++
	}
}

// settled reports whether a push that was not acknowledged has set a branch.
func (w *stepWorld) settled(name, branch string, id gitid.ObjectID) bool {
	out, err := w.open(name).Try("rev-parse", "--verify", "--quiet", "refs/heads/"+branch)
	return err == nil && strings.TrimSpace(out) == id.String() || err != nil && id.IsZero()
}

// reaches reports whether a branch of a repository reaches a commit.
func (w *stepWorld) reaches(id gitid.ObjectID) bool {
	for _, refs := range w.members {
		for _, tip := range refs {
			if _, err := w.client.Try("merge-base", "--is-ancestor", id.String(), tip.String()); err == nil {
				return true
			}
		}
	}
	return false
}

// choose returns a commit that was the value of a branch: often one that the repository has and no branch reaches.
func (w *stepWorld) choose(name string) (id gitid.ObjectID) {
	for range 10 {
		id = w.gone[w.random.IntN(len(w.gone))]
		if _, err := w.open(name).Try("cat-file", "-e", id.String()); err == nil && !w.reaches(id) {
			break
		}
	}
	return id
}

// purge purges a commit, also from what shares objects. It has to be refused if a branch reaches the commit.
func (w *stepWorld) purge(f fault, name string, id gitid.ObjectID) (out string, ok bool) {
	w.t.Helper()
	receipt := filepath.Join(w.t.TempDir(), "receipt")
	if out, ok = w.packhorse(f, "repo", "purge", name, id.String(), "--receipt", receipt); !ok && f != noFault {
		receipt += "2"
		out, ok = w.packhorse(noFault, "repo", "purge", name, id.String(), "--receipt", receipt)
	}
	switch {
	case ok:
		w.done["purged"]++
		if text, ok := w.packhorse(noFault, "repo", "purge", "--verify", receipt); !ok {
			w.t.Errorf("the verification of a receipt: %s", text)
		}
		w.scan(id)
	case strings.Contains(out, "refs reach it"):
		return out, w.reaches(id)
	case strings.Contains(out, "has no object"): // it was collected, or this one never had it
		return out, true
	}
	return out, ok
}

// scan finds no copy of an object in any file of the server. In a store, repositories that share nothing with the one
// that was purged keep theirs, and removed ones until they expire.
func (w *stepWorld) scan(id gitid.ObjectID) {
	w.t.Helper()
	dirs := []string{w.dir}
	if w.bucket != nil {
		dirs = []string{filepath.Join(w.dir, "state")}
		for name := range w.members {
			if purged, _ := w.open(name).Try("config", "--get-all", "packhorse.purged"); !strings.Contains(purged, id.String()) {
				return
			}
		}
	}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			if strings.HasSuffix(path, filepath.Join(id.String()[:2], id.String()[2:])) {
				w.t.Errorf("%s was purged, and is in %s", id, path)
			}
			content, err := os.ReadFile(path)
			if err != nil || !strings.HasPrefix(string(content), "PACK") {
				return err
			}
			list, ok := w.packs[sha1.Sum(content)]
			if !ok {
				r := gittest.Init(w.t, "--bare") // that of a killed push may be cut off
				_, _ = r.TryIn(string(content), "unpack-objects", "-r", "-q")
				list = r.Git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
				w.packs[sha1.Sum(content)] = list
			}
			if strings.Contains(list, id.String()) {
				w.t.Errorf("%s was purged, and is in %s", id, path)
			}
			return nil
		})
		if err != nil {
			w.t.Error(err)
		}
	}
}

// check checks all repositories.
func (w *stepWorld) check() {
	w.t.Helper()
	clear(w.opened)
	for name, refs := range w.members {
		r := w.open(name)
		if out, err := r.Try("fsck", "--full", "--strict", "--no-dangling", "--no-progress"); err != nil {
			w.t.Errorf("git fsck in %s: %v\n%s", name, err, out)
		}
		w.compare(name, r, refs)
		purged, _ := r.Try("config", "--get-all", "packhorse.purged") // it fails if there is none
		for _, id := range strings.Fields(purged) {
			if out, err := r.Try("cat-file", "-e", id); err == nil {
				w.t.Errorf("%s still has %s, which was purged %s", name, id, out)
			}
		}
	}
	if w.bucket == nil {
		return
	}
	name := w.any(slices.Collect(maps.Keys(w.members))) // the server's copies are whole, too
	clone := gittest.Init(w.t, "--bare")
	if out, ok := w.command(noFault, exec.Command("git", "--git-dir="+clone.Dir, "fetch", "--quiet",
		w.server.http+"/"+name, "refs/*:refs/*")); !ok {
		w.t.Errorf("a clone of %s: %s", name, out)
	}
	clone.Git("fsck", "--full", "--strict")
	w.compare("the clone of "+name, clone, w.members[name])
}

// compare compares the branches of a repository with those that were acknowledged.
func (w *stepWorld) compare(name string, r *gittest.Repo, want map[string]gitid.ObjectID) {
	w.t.Helper()
	got := map[string]gitid.ObjectID{}
	for line := range strings.Lines(r.Git("for-each-ref", "--format=%(refname:lstrip=2) %(objectname)")) {
		branch, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		got[branch] = gitid.MustParseObjectID(id)
	}
	if !maps.Equal(got, want) {
		w.t.Errorf("%s has %v, want %v", name, got, want)
	}
}

// seedOr returns the seed of PACKHORSE_SEED, or another one without it.
func seedOr(other uint64) uint64 {
	if seed, err := strconv.ParseUint(os.Getenv("PACKHORSE_SEED"), 10, 64); err == nil {
		return seed
	}
	return other
}
