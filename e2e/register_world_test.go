package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"

	api "github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// registers is a server with one repository whose refs are registers, and the history of the clients.
type registers struct {
	*testing.T
	dir, repo string
	split     bool
	header    string // with a token
	config    string // of a gateway
	api       *api.Client
	random    *rand.Rand // of the one who kills
	actors    []*actor
	began     time.Time
	kills     int

	// Clients hold it for reading. The code that examines the effects of a kill holds it for writing.
	gate sync.RWMutex

	mu      sync.Mutex
	front   *serverProcess // what clients reach: serve or a gateway
	node    *serverProcess // the storage node; the same as front in one process
	at      string         // where clients reach it
	history []porcupine.Operation
	last    [registerRefs]string // the last value that a client read or wrote
	open    [][]action           // atomic pushes since the last kill without a known result
	halved  int                  // those that were done by half when git was killed
	retries int                  // pushes after a kill that had to be tried again
}

func newRegisters(t *testing.T, seed uint64, split bool) *registers {
	t.Helper()
	sockets, err := os.MkdirTemp("", "ph") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	r := &registers{T: t, dir: sockets, split: split, random: rand.New(rand.NewPCG(seed, 0)), began: time.Now()}
	t.Cleanup(func() {
		killAll(t, r.front, r.node)
		os.RemoveAll(sockets)
	})
	r.repo = filepath.Join(sockets, "repos/r.git")
	repo := gittest.InitAt(t, r.repo)
	if !split { // then git receive-pack makes all changes, with the lock of HEAD
		repo.Git("config", "receive.denyDeleteCurrent", "ignore")
		repo.Git("symbolic-ref", "HEAD", refName(0))
	} else { // HEAD stays
		repo.Git("update-ref", "refs/heads/main", repo.Commit("base").String())
	}
	state := filepath.Join(sockets, "front")
	r.header = basicHeader("tester", createToken(t, "tester", "--state", state))
	if r.api, err = api.New("unix:"+filepath.Join(sockets, "node.sock"), api.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.api.Close)
	if split {
		r.config = filepath.Join(sockets, "gateway.toml")
		text := fmt.Sprintf("[[node]]\nname = \"node\"\naddress = %q\n", "unix:"+filepath.Join(sockets, "node.sock"))
		if err := os.WriteFile(r.config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.at = "127.0.0.1:0"
	r.start(true, true)
	for i := range registerClients {
		a := &actor{registers: r, number: i, random: rand.New(rand.NewPCG(seed, uint64(i+1))),
			dir: filepath.Join(sockets, fmt.Sprint("client", i))}
		gittest.InitAt(t, a.dir)
		r.actors = append(r.actors, a)
	}
	return r
}

// start starts what has ended, where it was before.
func (r *registers) start(front, node bool) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	begin := func(args ...string) *serverProcess {
		p, err := startServer(r.dir, append(gittest.Env(), "GORACE=atexit_sleep_ms=0"), append(args, "--log-format", "json"))
		if err != nil {
			r.Fatal(err)
		}
		return p
	}
	listen, root := "unix:"+filepath.Join(r.dir, "node.sock"), filepath.Join(r.dir, "repos")
	state := filepath.Join(r.dir, "front")
	at := strings.TrimPrefix(r.at, "http://")
	switch {
	case !r.split:
		r.front = begin("serve", "--root", root, "--state", state, "--http", at, "--ops", "", "--listen", listen)
		r.node = r.front
	default:
		if node {
			r.node = begin("storage", "--root", root, "--state", filepath.Join(r.dir, "node"), "--ops", "", "--listen", listen)
		}
		if front {
			r.front = begin("gateway", "--config", r.config, "--state", state, "--http", at, "--ops", "")
		}
	}
	r.at = r.front.http
}

func (r *registers) url() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

func (r *registers) now() int64 { return int64(time.Since(r.began)) }

func (r *registers) note(op porcupine.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, op)
	switch in, out := op.Input.(action), op.Output.(result); {
	case in.read:
		r.last[in.ref] = out.value
	case out.kind == done:
		r.last[in.ref] = in.new
	}
}

func (r *registers) latest(ref int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[ref]
}

// settled is called when no process runs that served earlier requests. Updates with an unknown result have happened by
// now, or never will. An exception is an atomic push that may still have to create its other ref.
func (r *registers) settled() {
	may := map[action]bool{}
	var open [][]action
	for _, push := range r.open {
		is := r.values(push)
		for i, j := range []int{1, 0} {
			if is[i] == push[i].new && is[i] != "" && is[j] == "" && push[j].old == "" {
				may[push[0]], may[push[1]] = true, true
				open = append(open, push)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = open
	for i := range r.history {
		op := &r.history[i]
		if may[op.Input.(action)] {
			continue
		}
		if op.Output.(result).kind == unknown && op.Return == 0 {
			op.Return = r.now()
		}
	}
}

func (r *registers) client(args ...string) (string, error) { return r.clientIn(r.dir, args...) }

func (r *registers) clientIn(dir string, args ...string) (string, error) {
	return clientGit(r.T, r.header, dir, args...)
}

// resolve reads a ref over the control API.
func (r *registers) resolve(ref int) (value string, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	found, err := r.api.Refs().Resolve(ctx, connect.NewRequest(&packhorsev1.ResolveRequest{Repository: "r",
		Name: refName(ref)}))
	if api.IsNotFound(err) {
		return "", true
	}
	if err != nil {
		return "", false
	}
	return found.Msg.GetRef().GetOid(), true
}

// run has the clients at work for so long, and kills meanwhile.
func (r *registers) run(length time.Duration) {
	r.Helper()
	end := make(chan struct{})
	var clients sync.WaitGroup
	for _, a := range r.actors {
		clients.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				r.gate.RLock()
				err := a.act()
				r.gate.RUnlock()
				if err != nil {
					r.Error(err)
					return
				}
			}
		})
	}
	stop := sync.OnceFunc(func() { close(end); clients.Wait() })
	defer stop()
	for deadline := time.Now().Add(length); time.Now().Before(deadline) && !r.Failed(); {
		r.kill()
	}
	stop()
	r.settled()
}

// kill waits for a moment, kills a process, and checks the files that it left.
func (r *registers) kill() {
	r.Helper()
	r.moment()
	r.kills++
	var groups []int
	node, front := true, true
	switch how := r.random.IntN(4); {
	case how == 0: // git, as the kernel does when memory is short
		groups = childrenOf(r.node.cmd.Process.Pid)
		killGroups(groups)
		node, front = false, false
	default:
		if r.split && r.random.IntN(3) == 0 {
			front = false
		}
		_ = r.node.cmd.Process.Signal(syscall.SIGSTOP) // so that it starts nothing more
		groups = childrenOf(r.node.cmd.Process.Pid)
		_ = r.node.cmd.Process.Kill()
		if front && r.split {
			_ = r.front.cmd.Process.Kill()
			<-r.front.ended
		}
		if how != 1 { // else git ends as it likes
			killGroups(groups)
		}
		<-r.node.ended
	}
	r.gate.Lock()
	defer r.gate.Unlock()
	gone := func() {
		eventually(r.T, "git has ended", func() bool {
			for _, group := range groups {
				if groupRuns(group) {
					return false
				}
			}
			return true
		})
	}
	waits := r.random.IntN(2) == 0
	if waits {
		gone()
	}
	if node || front {
		r.start(front, node)
	}
	if !waits {
		gone()
	}
	r.probe()
}

// moment waits for one that is as good as any, or in which a push does something in particular.
func (r *registers) moment() {
	pattern := []string{"", "objects/tmp_objdir-*", "refs/heads/*.lock", "*.lock"}[r.random.IntN(4)]
	if pattern == "" {
		time.Sleep(time.Duration(r.random.IntN(500)) * time.Millisecond)
		return
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		if found, _ := filepath.Glob(filepath.Join(r.repo, pattern)); len(found) > 0 {
			return
		}
	}
}

// probe pushes to each ref and checks the files in the repository. No other client is active.
func (r *registers) probe() {
	r.Helper()
	a := r.actors[0]
	eventually(r.T, "clients reach the server again", func() bool {
		_, err := a.clientIn(a.dir, "ls-remote", r.url()+"/r")
		return err == nil
	})
	if halves := r.halves(); len(halves) > 0 {
		r.halved += len(halves)
		eventually(r.T, "atomic pushes are completed", func() bool { return len(r.halves()) == 0 })
	}
	r.settled()
	for ref := range registerRefs {
		tries := 0
		for a.replace(ref) != done {
			if tries++; tries == probeTries {
				r.Fatalf("after kill %d, none of %d pushes to %s went through; left: %s", r.kills, tries, refName(ref),
					r.describe())
			}
			r.retries++
			r.removeSharedLocks()
		}
	}
	r.removeSharedLocks()
	if left := r.left(); len(left) > 0 {
		r.Fatalf("after kill %d and pushes, there are %q", r.kills, left)
	}
}

// removeSharedLocks removes the lock files for all refs that a killed push has left, as the error of a refused push
// advises. The server removes them only when they are a minute old.
func (r *registers) removeSharedLocks() {
	for _, name := range []string{"packed-refs.lock", "packed-refs.new", "shallow.lock"} {
		_ = os.Remove(filepath.Join(r.repo, name))
	}
}

// probeTries is how many pushes may find that what was killed is still being cleared away. Each waits for that for some
// seconds itself, so that there is none on a machine that is not very slow.
const probeTries = 6

// replace replaces the value of a ref.
func (a *actor) replace(ref int) outcome {
	a.Helper()
	call := a.now()
	now, ok := a.resolve(ref)
	if !ok {
		return unknown
	}
	a.saw(call, ref, now)
	do := action{ref: ref, old: now}
	if now == "" || ref != a.kills%registerRefs {
		var err error
		if do.new, err = a.commit(); err != nil {
			a.Fatal(err)
		}
	}
	outcomes, err := a.push(false, do)
	if err != nil {
		a.Fatal(err)
	}
	return outcomes[0]
}

// halves lists the atomic pushes without a known result that are half done: git sets one ref after the other. The next
// process that finds the killed git completes them.
func (r *registers) halves() (list []string) {
	for _, push := range r.open {
		is := r.values(push)
		half := func(i, j int) bool { // values but "" are there once
			return is[i] == push[i].new && is[i] != "" && is[j] == push[j].old && is[j] != ""
		}
		if half(0, 1) || half(1, 0) {
			list = append(list, fmt.Sprint(push))
		}
	}
	return list
}

// values are what the refs of an atomic push name now; "" for none.
func (r *registers) values(push []action) (is [2]string) {
	for i, do := range push {
		if out, err := gittest.At(r, r.repo).Try("rev-parse", "--verify", "-q", refName(do.ref)); err == nil {
			is[i] = out
		}
	}
	return is
}

// left lists files that should not be in a repository without pushes, except for harmless ones: maintenance removes
// temporary packs.
func (r *registers) left() (list []string) {
	for _, pattern := range []string{"*.lock", "refs/heads/*.lock", "objects/[0-9a-f]*/tmp_*", "objects/pack/*.lock",
		"packed-refs.new"} {
		found, _ := filepath.Glob(filepath.Join(r.repo, pattern))
		list = append(list, found...)
	}
	return list
}

// describe is left with the content of each file and of the journal.
func (r *registers) describe() string {
	var text strings.Builder
	for _, path := range append(r.left(), r.notes()...) {
		holds, err := os.ReadFile(path)
		info, _ := os.Stat(path)
		if info != nil {
			fmt.Fprintf(&text, "\n%s of %s: %.300q %v", path, info.ModTime().Format(time.StampMicro), holds, err)
		}
	}
	return text.String()
}

// notes are the files of the journal of pushes.
func (r *registers) notes() []string {
	state := "front"
	if r.split {
		state = "node"
	}
	list, _ := filepath.Glob(filepath.Join(r.dir, state, "pushes/*"))
	return list
}

func killGroups(groups []int) {
	for _, group := range groups {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}

// journalStart is the field of a journal file with the beginning of the push (package pushrecovery).
var journalStart = regexp.MustCompile(`"start":\d+`)

// later ends the server, sets the times of the left files back by an hour, and starts it again. Then no such file is
// left.
func (r *registers) later() {
	r.Helper()
	for _, p := range []*serverProcess{r.front, r.node} {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.wait(); err != nil {
			r.Errorf("packhorse %s ended: %v", p.name, err)
		}
	}
	const hour = int64(time.Hour)
	notes := r.notes()
	for _, name := range notes {
		text, err := os.ReadFile(name)
		if err == nil {
			text = journalStart.ReplaceAllFunc(text, func(line []byte) []byte {
				start, _ := strconv.ParseInt(string(line[len(`"start":`):]), 10, 64)
				return fmt.Appendf(nil, `"start":%d`, start-hour)
			})
			err = os.WriteFile(name, text, 0o600)
		}
		if err != nil {
			r.Fatal(err)
		}
	}
	rest := func() []string {
		dirs, _ := filepath.Glob(filepath.Join(r.repo, "objects/tmp_objdir-*"))
		keeps, _ := filepath.Glob(filepath.Join(r.repo, "objects/pack/*.keep"))
		return append(dirs, keeps...)
	}
	for _, dir := range rest() {
		_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			info, err := os.Stat(path)
			if err == nil {
				at := info.ModTime().Add(-time.Duration(hour))
				err = os.Chtimes(path, at, at)
			}
			return err
		})
	}
	r.Logf("an hour later there are %d notes of pushes, %d quarantines and kept packs", len(notes), len(rest()))
	r.start(true, true)
	eventually(r.T, "nothing is left of pushes", func() bool {
		return len(r.notes()) == 0 && len(rest()) == 0
	})
}

// groupRuns reports whether a process of a group still runs. Zombies do not count.
func groupRuns(group int) bool {
	if err := syscall.Kill(-group, 0); errors.Is(err, syscall.ESRCH) {
		return false
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, _ := os.ReadFile(name)
		if i := strings.LastIndex(string(text), ") "); i >= 0 {
			var state string
			var parent, of int
			if _, err := fmt.Sscan(string(text[i+2:]), &state, &parent, &of); err == nil && of == group && state != "Z" &&
				state != "X" {
				return true
			}
		}
	}
	return false
}
