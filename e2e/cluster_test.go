package e2e

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	gitnames "github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// TestCluster has several clients change a few refs, with git push and by calls, and read them through two gateways and
// three nodes of one object store. Meanwhile nodes and the store are killed, and most connections to the store are cut.
//
//   - Each ref is a linearizable register with compare-and-set. If the results that clients do not know were
//     rejections,
//     as a careless client would assume, it would not be: then a push that took effect was reported as failed.
//   - The log in the store has each push that was reported as done, and none that was refused.
//   - Two refs that always move together are never seen apart.
//   - In the end an empty node has all of it.
//
// PACKHORSE_PUSHES is the number of pushes, and PACKHORSE_SEED the seed of the random numbers.
func TestCluster(t *testing.T) {
	t.Parallel()
	seed, pushes, clients, pause := seedOr(1), 2000, 8, time.Second
	if testing.Short() {
		pushes, clients, pause = 16, 3, 3*time.Second
	}
	if n, err := strconv.Atoi(os.Getenv("PACKHORSE_PUSHES")); err == nil {
		pushes = n
	}
	t.Logf("PACKHORSE_SEED=%d PACKHORSE_PUSHES=%d", seed, pushes)
	c := newCluster(t)
	c.create("r")
	c.setCut(true)
	h := &pushHistory{cluster: c, began: time.Now(), seen: map[string]string{}}
	h.left.Store(int64(pushes))
	stop := make(chan struct{})
	var disturbances, group sync.WaitGroup
	kills := 0
	disturbances.Go(func() { kills = c.disturb(rand.New(rand.NewPCG(seed, 0)), pause, stop) })
	for i := range clients {
		p := newClusterPusher(h, i, seed)
		group.Go(p.run)
	}
	watching := make(chan struct{})
	disturbances.Go(func() { h.watchPair(watching) })
	group.Wait()
	close(watching)
	close(stop)
	disturbances.Wait()
	c.setCut(false)
	if t.Failed() {
		return
	}
	h.check(kills)
	c.checkEmptyNode("r")
}

const (
	clusterRefs = registerRefs // registers; then come the two refs of the pair
	pairRefs    = 2
)

// pushHistory is what clients have done and seen.
type pushHistory struct {
	*cluster
	began time.Time
	left  atomic.Int64 // pushes

	mu      sync.Mutex
	ops     []porcupine.Operation
	pushed  map[string]outcome // results of the commits that were pushed
	seen    map[string]string  // last value of each ref that any client knows
	looks   int                // listings of the pair
	failed  map[string]int     // requests without a result, by operation
	longest time.Duration      // of a push that was done
}

func (h *pushHistory) now() int64 { return int64(time.Since(h.began)) }

// note notes an operation. One without a known result ends with the history.
func (h *pushHistory) note(op porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
	in, out := op.Input.(action), op.Output.(result)
	switch name := refName(in.ref); {
	case in.read:
		h.seen[name] = out.value
		return
	case out.kind == done:
		h.seen[name] = in.new
		h.longest = max(h.longest, time.Duration(op.Return-op.Call))
	}
	if h.pushed == nil {
		h.pushed = map[string]outcome{}
	}
	h.pushed[in.new] = out.kind
}

func (h *pushHistory) known(ref int) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen[refName(ref)]
}

// fail counts a request without a result.
func (h *pushHistory) fail(operation string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed == nil {
		h.failed = map[string]int{}
	}
	h.failed[operation]++
}

// list lists the refs of a repository. It reports false if the listing failed.
func (h *pushHistory) list(gateway, version int) (values map[string]string, ok bool) {
	out, err := h.git(h.dir, "-c", fmt.Sprintf("protocol.version=%d", version), "ls-remote", "--heads",
		h.url(gateway, "r"))
	if err != nil {
		h.fail("ls-remote")
		return nil, false
	}
	return listedRefs(out), true
}

// watchPair lists the pair until stop is closed.
func (h *pushHistory) watchPair(stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(200 * time.Millisecond):
		}
		values, ok := h.list(i%len(h.gateways), 2*(i/2%2))
		if !ok {
			continue
		}
		h.mu.Lock()
		h.looks++
		h.mu.Unlock()
		if a, b := values[refName(clusterRefs)], values[refName(clusterRefs+1)]; a != b {
			h.Errorf("the refs of a pair that moves together are at %q and %q", a, b)
			return
		}
	}
}

// clusterPusher is one client.
type clusterPusher struct {
	*pushHistory
	number int
	random *rand.Rand
	dir    string
	made   int
	parent string
}

func newClusterPusher(h *pushHistory, number int, seed uint64) *clusterPusher {
	p := &clusterPusher{pushHistory: h, number: number, random: rand.New(rand.NewPCG(seed, uint64(number+1))),
		dir: filepath.Join(h.dir, fmt.Sprint("client", number))}
	gittest.InitAt(h.T, p.dir)
	return p
}

// run pushes until there are no pushes left.
func (p *clusterPusher) run() {
	for p.left.Add(-1) >= 0 && !p.Failed() {
		for range 1 + p.random.IntN(2) {
			p.read()
		}
		refs := []int{p.random.IntN(clusterRefs)}
		if p.random.IntN(4) == 0 {
			refs = []int{clusterRefs, clusterRefs + 1}
		}
		change := p.push
		if len(refs) == 1 && p.random.IntN(2) == 0 {
			change = p.call
		}
		if err := change(refs); err != nil {
			p.Error(err)
			return
		}
	}
}

// read lists all refs.
func (p *clusterPusher) read() {
	call := p.now()
	values, ok := p.list(p.random.IntN(len(p.gateways)), 2*p.random.IntN(2))
	back := p.now()
	if !ok {
		return
	}
	for ref := range clusterRefs + pairRefs {
		p.note(porcupine.Operation{ClientId: p.number, Input: action{ref: ref, read: true}, Call: call,
			Output: result{value: values[refName(ref)]}, Return: back})
	}
}

// commit makes a commit that was not pushed yet.
func (p *clusterPusher) commit() (string, error) {
	p.made++
	text := fmt.Sprint("commit ", p.made, " of client ", p.number)
	args := []string{"commit-tree", "-m", text, "4b825dc642cb6eb9a060e54bf8d69288fbee4904"}
	if p.parent != "" && p.random.IntN(2) == 0 {
		args = append(args, "-p", p.parent)
	}
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = p.dir, gittest.Env()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git commit-tree: %w %s", err, out)
	}
	p.parent = strings.TrimSpace(string(out))
	return p.parent, nil
}

// push moves refs to a new commit, from the values that some client saw last.
func (p *clusterPusher) push(refs []int) error {
	id, err := p.commit()
	if err != nil {
		return err
	}
	updates := make([]action, len(refs))
	for i, ref := range refs {
		updates[i] = action{ref: ref, old: p.known(ref), new: id}
	}
	call := p.now()
	out, failed := p.git(p.dir, pushArgs(p.url(p.random.IntN(len(p.gateways)), "r"), true, updates)...)
	back := p.now()
	for _, do := range updates {
		kind, err := pushResult(out, refName(do.ref), failed)
		if err != nil {
			return err
		}
		if kind == unknown {
			p.fail("push")
			back = 0
		}
		p.note(porcupine.Operation{ClientId: p.number, Input: do, Call: call, Output: result{kind: kind}, Return: back})
	}
	return nil
}

// check compares what clients saw with the log, and with what registers can show.
func (h *pushHistory) check(kills int) {
	h.Helper()
	h.read() // the final values
	end := h.now()
	counts := map[outcome]int{}
	reads := 0
	for i := range h.ops {
		op := &h.ops[i]
		op.Return = cmp.Or(op.Return, end)
		if op.Input.(action).read {
			reads++
		} else {
			counts[op.Output.(result).kind]++
		}
	}
	inLog := h.pushesInLog()
	misreported, landed := 0, 0
	for id, kind := range h.pushed {
		switch isThere := inLog[id]; {
		case kind == done && !isThere, (kind == refused || kind == stale) && isThere:
			h.Errorf("commit %s: the client's result is %q, in the log: %v", id, kind, isThere)
			misreported++
		case kind == unknown && isThere:
			landed++
		}
	}
	h.Logf("%d kills, %d reads, updates: %v, of those without a result %d took effect, %d misreported, %d listings "+
		"of the pair, failed requests: %v, longest push %v", kills, reads, counts, landed, misreported, h.looks,
		h.failed, h.longest)
	checkLinearizable(h.T, h.ops)
	h.checkCareless(landed)
}

// checkCareless checks that the test would find a client for which a push without a result was rejected.
func (h *pushHistory) checkCareless(landed int) {
	h.Helper()
	if landed == 0 {
		h.Log("all pushes without a result had no effect: a careless client cannot be seen")
		return
	}
	verdict := porcupine.CheckOperationsTimeout(registerModel, careless(h.ops), 2*time.Minute)
	if verdict == porcupine.Ok {
		h.Errorf("%d pushes without a result took effect, and would be seen as rejected without an error", landed)
	} else {
		h.Logf("linearizable for a careless client: %s", verdict)
	}
}

// careless returns a history in which pushes without a result are rejected.
func careless(ops []porcupine.Operation) []porcupine.Operation {
	ops = slices.Clone(ops)
	for i, op := range ops {
		if out := op.Output.(result); !op.Input.(action).read && out.kind == unknown {
			ops[i].Output = result{kind: refused}
		}
	}
	return ops
}

// TestClusterModel checks the smallest history that a careless client gets wrong.
func TestClusterModel(t *testing.T) {
	t.Parallel()
	ops := []porcupine.Operation{
		{Input: action{new: "x"}, Output: result{kind: unknown}, Call: 0, Return: 10},
		{Input: action{read: true}, Output: result{value: "x"}, Call: 2, Return: 3},
	}
	if !porcupine.CheckOperations(registerModel, ops) {
		t.Error("a push without a result that took effect is not allowed")
	}
	if porcupine.CheckOperations(registerModel, careless(ops)) {
		t.Error("a rejected push that took effect is allowed")
	}
}

// read reads the final values.
func (h *pushHistory) read() {
	h.Helper()
	call := h.now()
	var values map[string]string
	eventually(h.T, "the refs can be listed", func() (ok bool) {
		call = h.now()
		values, ok = h.list(0, 2)
		return ok
	})
	for ref := range clusterRefs + pairRefs {
		h.note(porcupine.Operation{ClientId: 1000, Input: action{ref: ref, read: true}, Call: call,
			Output: result{value: values[refName(ref)]}, Return: h.now()})
	}
}

// pushesInLog returns the commits that the records in the store have ever set a ref to.
func (h *pushHistory) pushesInLog() map[string]bool {
	h.Helper()
	found := map[string]bool{}
	log := h.openLog("r")
	head, err := log.Head(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	for n := uint64(1); n <= head.Number; n++ {
		record, err := log.Get(h.Context(), n)
		if err != nil {
			h.Fatalf("record %d of %d: %v", n, head.Number, err)
		}
		for _, entry := range record.Refs.Tail {
			for _, change := range entry.Changes {
				found[change.New.String()] = true
			}
		}
	}
	return found
}

// openLog opens the log of a repository in the store.
func (c *cluster) openLog(repo string) *replog.Log {
	c.Helper()
	path, err := gitnames.ParseRepoPath(repo)
	if err != nil {
		c.Fatal(err)
	}
	b := c.store.Bucket(clusterPrefix)
	names, err := replog.OpenName(b, path)
	if err != nil {
		c.Fatal(err)
	}
	name, err := names.Head(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	return replog.Open(b, name.ID)
}

// checkEmptyNode starts a node without local data, and compares what it has with what a gateway shows.
func (c *cluster) checkEmptyNode(repo string) {
	c.Helper()
	text, err := os.ReadFile(c.path("a.toml"))
	if err != nil {
		c.Fatal(err)
	}
	c.write("d.toml", strings.NewReplacer(c.path("root-a"), c.path("root-d"), c.path("state-a"), c.path("state-d"),
		`node = "a"`, `node = "d"`).Replace(string(text))+fmt.Sprintf("[search]\nenabled = false\n[auth]\ntokens = %q\n",
		c.path("tokens")))
	p, err := startServer(c.dir, c.env, []string{"serve", "--config", c.path("d.toml"), "--http", "127.0.0.1:0", "--ops",
		"", "--log-format", "json"})
	if err != nil {
		c.Fatal(err)
	}
	defer p.kill()
	clone := c.path("clone.git")
	if out, err := c.git(c.dir, "clone", "-q", "--mirror", p.http+"/"+repo, clone); err != nil {
		c.Fatalf("clone from an empty node: %v %s\n%s", err, out, tail(p.logged(), 4000))
	}
	if out, err := gittest.At(c.T, clone).Try("fsck", "--full", "--strict", "--no-dangling"); err != nil {
		c.Errorf("fsck of a clone from an empty node: %v %s", err, out)
	}
	want := c.gitUntil(c.dir, "ls-remote", "--refs", c.url(0, repo))
	if got, err := c.git(c.dir, "ls-remote", "--refs", p.http+"/"+repo); err != nil || got != want {
		c.Errorf("refs of an empty node = %s, error %v, want %s", got, err, want)
	}
}
