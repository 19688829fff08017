package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestRegister has several clients change a few refs and read them at random, while the test kills the server and its
// git processes and starts them again. Clients push with git, or make commits and updates by calls. Each ref has to be
// a linearizable register with compare-and-set, despite the kills:
//
// An update that was reported is there from then on, and one that was refused never is. One whose client did not get a
// result is there or not by the end of its server process. After each kill the next push to each ref has to succeed.
// Failed pushes may leave no files in the repository, and every reported object has to be there in the end.
//
// PACKHORSE_PUSH_TIME is the time for each shape, and PACKHORSE_SEED the seed of the random numbers.
func TestRegister(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("/proc has to tell which processes a server has started")
	}
	seed, length := seedOr(1), 5*time.Second
	if testing.Short() {
		length = 2 * time.Second
	}
	if d, err := time.ParseDuration(os.Getenv("PACKHORSE_PUSH_TIME")); err == nil {
		length = d
	}
	for name, split := range map[string]bool{"serve": false, "gateway and storage": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Logf("PACKHORSE_SEED=%d PACKHORSE_PUSH_TIME=%s", seed, length)
			r := newRegisters(t, seed, split)
			r.run(length)
			if !r.Failed() {
				r.later()
			}
			r.check()
		})
	}
}

// check asks whether what was seen can be, and whether everything is there that was reported.
func (r *registers) check() {
	r.Helper()
	repo := gittest.At(r, r.repo)
	repo.Git("fsck", "--strict", "--full", "--no-dangling")
	var acknowledged []string
	counts := map[outcome]int{}
	reads := 0
	for i := range r.history {
		op := &r.history[i]
		in, out := op.Input.(action), op.Output.(result)
		switch {
		case in.read:
			reads++
			continue
		case out.kind == unknown && op.Return == 0:
			op.Return = r.now()
		case out.kind == done && in.new != "":
			acknowledged = append(acknowledged, in.new)
		}
		counts[out.kind]++
	}
	for line := range strings.Lines(repo.GitIn(strings.Join(acknowledged, "\n")+"\n", "cat-file", "--batch-check")) {
		if strings.Contains(line, "missing") {
			r.Errorf("an object is gone that was reported: %s", line)
		}
	}
	clone := filepath.Join(r.TempDir(), "clone")
	if out, err := r.client("clone", "-q", "--mirror", r.url()+"/r", clone); err != nil {
		r.Errorf("clone: %v %s", err, out)
	} else {
		gittest.At(r, clone).Git("fsck", "--strict", "--no-dangling")
	}
	r.Logf("%d kills; %d reads; updates: %v; atomic pushes that a kill has left half done: %d; pushes after a kill that "+
		"had to be tried again: %d",
		r.kills, reads, counts, r.halved, r.retries)
	checkLinearizable(r.T, r.history)
}

const (
	registerClients = 4
	registerBatch   = 40 // commits that a client makes at a time
)

// actor is one client.
type actor struct {
	*registers
	number int
	random *rand.Rand
	dir    string
	fresh  []string // commits that were not pushed yet
	made   int
	seen   [registerRefs]string // what it believes the refs are
}

// commit makes a commit that is not pushed yet. Some are large.
func (a *actor) commit() (string, error) {
	if len(a.fresh) == 0 {
		var in strings.Builder
		for range registerBatch {
			a.made++
			size := 100
			if a.made%8 == 0 {
				size = 100_000
			}
			text := make([]byte, size)
			for i := range text {
				text[i] = byte(a.random.Uint32())
			}
			fmt.Fprintf(&in, "reset refs/heads/x\ncommit refs/heads/x\nmark :%d\ncommitter C <c@example.com> 1700000000 "+
				"+0000\ndata %d\n%s\n",
				a.made, len(fmt.Sprint(a.number, a.made)), fmt.Sprint(a.number, a.made))
			fmt.Fprintf(&in, "M 100644 inline file\ndata %d\n%s\n", size, text)
		}
		marks := filepath.Join(a.dir, "marks")
		cmd := exec.Command("git", "-c", "fastimport.unpackLimit=0", "fast-import", "--quiet", "--force",
			"--export-marks="+marks)
		cmd.Dir, cmd.Env, cmd.Stdin = a.dir, gittest.Env(), strings.NewReader(in.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("git fast-import: %w %s", err, out)
		}
		text, err := os.ReadFile(marks)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(text)) {
			_, id, _ := strings.Cut(strings.TrimSpace(line), " ")
			a.fresh = append(a.fresh, id)
		}
	}
	id := a.fresh[0]
	a.fresh = a.fresh[1:]
	return id, nil
}

// act does one thing at random.
func (a *actor) act() error {
	if a.random.IntN(4) == 0 {
		return a.look()
	}
	refs := a.random.Perm(registerRefs)[:1]
	atomic := a.random.IntN(4) == 0
	if atomic {
		refs = a.random.Perm(registerRefs)[:2]
	}
	if a.random.IntN(2) == 0 {
		return a.call(atomic, refs)
	}
	var list []action
	for _, ref := range refs {
		do := action{ref: ref, old: a.seen[ref]}
		if a.random.IntN(3) == 0 {
			do.old = a.latest(ref)
		}
		if do.old == "" || a.random.IntN(5) != 0 {
			var err error
			if do.new, err = a.commit(); err != nil {
				return err
			}
		}
		list = append(list, do)
	}
	_, err := a.push(atomic, list...)
	return err
}

// push makes updates and returns the result of each.
func (a *actor) push(atomic bool, list ...action) ([]outcome, error) {
	call := a.now()
	out, failed := a.clientIn(a.dir, pushArgs(a.url()+"/r", atomic, list)...)
	back := a.now()
	outcomes := make([]outcome, len(list))
	defer func() {
		if atomic && outcomes[0] == unknown {
			a.mu.Lock()
			a.open = append(a.open, list)
			a.mu.Unlock()
		}
	}()
	for i, do := range list {
		kind, err := pushResult(out, refName(do.ref), failed)
		if err != nil {
			return nil, err
		}
		outcomes[i] = kind
		if kind == done {
			a.seen[do.ref] = do.new
		} else {
			a.seen[do.ref] = a.latest(do.ref)
		}
		op := porcupine.Operation{ClientId: a.number, Input: do, Call: call, Output: result{kind: kind}, Return: back}
		if kind == unknown {
			op.Return = 0 // until what served it has ended
		}
		a.note(op)
	}
	if atomic && (outcomes[0] == done) != (outcomes[1] == done) {
		return nil, fmt.Errorf("an atomic push was done by half: %v\n%s", outcomes, out)
	}
	return outcomes, nil
}

// look reads all refs at once: by a listing of either version, or over the control API.
func (a *actor) look() error {
	call := a.now()
	if a.random.IntN(3) == 0 {
		ref := a.random.IntN(registerRefs)
		value, ok := a.resolve(ref)
		if ok {
			a.saw(call, ref, value)
		}
		return nil
	}
	out, err := a.clientIn(a.dir, "-c", fmt.Sprintf("protocol.version=%d", 2*a.random.IntN(2)), "ls-remote", "--heads",
		a.url()+"/r")
	if err != nil {
		return nil
	}
	values := listedRefs(out)
	for ref := range registerRefs {
		a.saw(call, ref, values[refName(ref)])
	}
	return nil
}

func (a *actor) saw(call int64, ref int, value string) {
	a.seen[ref] = value
	a.note(porcupine.Operation{ClientId: a.number, Input: action{ref: ref, read: true}, Call: call,
		Output: result{value: value}, Return: a.now()})
}
