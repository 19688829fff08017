package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

var ada = node.Pusher{Name: "ada", Address: "192.0.2.1"}

// over is how a push over HTTP talks.
var over = node.Session{Service: protocol.ReceivePack, Stateless: true}

// noise is bytes that no compression makes fewer.
func noise(seed byte, size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// work is a repository with one commit more than what it was cloned from, with a file of size bytes.
func (w *world) work(from *gittest.Repo, size int) *gittest.Repo {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "work")
	gittest.Run(w.t, "", "", "clone", "-q", "--bare", from.Dir, dir)
	work := gittest.At(w.t, dir)
	file := filepath.Join(w.t.TempDir(), "data")
	w.do(os.WriteFile(file, noise(2, size), 0o600))
	blob := work.Git("hash-object", "-w", file)
	tree := work.GitIn("100644 blob "+blob+"\tmore\n", "mktree")
	work.Git("update-ref", "refs/heads/main", work.GitIn("more", "commit-tree", "-p", "main", tree))
	return work
}

// pushOf is what a client says that pushes a branch.
func (w *world) pushOf(work *gittest.Repo, old git.ObjectID, ref string) []byte {
	w.t.Helper()
	id := work.ID("main")
	b := pktline.AppendLine(nil, fmt.Sprintf("%s %s %s\x00 report-status side-band-64k agent=test", old, id, ref))
	b = pktline.AppendFlush(b)
	return append(b, work.GitIn(id.String()+"\n^"+old.String()+"\n", "pack-objects", "--revs", "--stdout", "-q",
		"--thin")...)
}

// push sends one to the node as the gateway does.
func (w *world) push(ctx context.Context, path string, session node.Session, request io.Reader,
	reply node.ResponseWriter) (node.Outcome, error) {
	w.t.Helper()
	repo, err := git.ParseRepoPath(path)
	w.do(err)
	return w.remote.ReceivePack(ctx, repo, session, ada, request, reply)
}

// trickle gives a few bytes at each Read.
type trickle struct {
	r    io.Reader
	step int
}

func (t trickle) Read(p []byte) (int, error) { return t.r.Read(p[:min(len(p), t.step)]) }

// A node that was restarted with another object store refuses a push before it reads it.
func TestPushToAnotherStore(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{"other store": {store: hintedStore{}}, "no store": {}} {
		w := newWorld(t, o)
		session := over
		session.StoreID = "s0"
		request := strings.NewReader("never read")
		_, err := w.push(t.Context(), "team/app", session, request, &answer{})
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "object store") || request.Len() < 10 {
			t.Errorf("%s: push to store s0: %v with %d unread bytes, want unavailable and 10", name, err, request.Len())
		}
	}
}

func TestPushes(t *testing.T) {
	t.Parallel()
	for name, o := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			repo := w.repo("team/app.git", 100)
			for i, size := range []int{10, 3 << 20} {
				work := w.work(repo, size)
				request := w.pushOf(work, repo.ID("main"), "refs/heads/main")
				var body io.Reader = bytes.NewReader(request)
				if i == 1 {
					body = trickle{body, 5000}
				}
				out := &answer{}
				if _, err := w.push(t.Context(), "team/app", over, body, out); err != nil ||
					!bytes.Contains(out.Bytes(), []byte("ok refs/heads/main")) {
					t.Errorf("%d bytes: %v, %q", size, err, out)
				}
				if got, want := repo.ID("main"), work.ID("main"); got != want {
					t.Errorf("%d bytes: main is %s, want %s", size, got, want)
				}
			}
			// by the node, on its own
			counted := func() bool { return w.value("packhorse_channel_transfers_total", "end=ok") == 1 }
			if !o.inBand && !eventually(counted) {
				t.Error("not one transfer took a side channel and left it whole, of one that is long")
			}
		})
	}
}

// The gateway receives the result of each ref, for any number of refs, and the reason of a failed push.
func TestResultsOfPushes(t *testing.T) {
	t.Parallel()
	for name, o := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			repo := w.repo("team/app.git", 3)
			repo.Git("config", "receive.hideRefs", "refs/hidden")
			const refs = 2000 // more than one message holds
			id, zero := repo.ID("main").String(), strings.Repeat("0", 40)
			var request []byte
			for i := range refs {
				line := fmt.Sprintf("%s %s refs/heads/%s/%d", zero, id, strings.Repeat("x", 100), i)
				if i == refs-1 {
					line = zero + " " + id + " refs/hidden/x"
				}
				if i == 0 {
					line += "\x00report-status side-band-64k object-format=sha1"
				}
				request = pktline.AppendLine(request, line)
			}
			request = append(pktline.AppendFlush(request), repo.GitIn("", "pack-objects", "--stdout", "-q")...)
			outcome, err := w.push(t.Context(), "team/app", over, bytes.NewReader(request), &answer{})
			if _, told := errors.AsType[*node.ReportedError](err); !told || !fault.Is(err, fault.Denied) ||
				outcome.Reason != "policy" {
				t.Errorf("reason %q, error %v", outcome.Reason, err)
			}
			if n := len(outcome.Push.Updates); n != refs {
				t.Fatalf("%d refs", n)
			}
			first, last := outcome.Push.Updates[0], outcome.Push.Updates[refs-1]
			if first.Result != "ok" || first.New.String() != id || !first.Old.IsZero() ||
				last.Result != "deny updating a hidden ref" || last.Ref != "refs/hidden/x" {
				t.Errorf("first %+v, last %+v", first, last)
			}
			if !o.inBand && !eventually(func() bool {
				return w.value("packhorse_channel_transfers_total",
					"end=ok") == 1
			}) {
				// the node counts it on its own
				t.Error("no transfer left its side channel whole")
			}
			if strings.Contains(w.log.String(), first.Ref) {
				t.Error("the node logs what the gateway logs")
			}
		})
	}
}

// Git's own client pushes to a node elsewhere as over SSH: its request has no end of its own.
func TestPushWithState(t *testing.T) {
	t.Parallel()
	for name, o := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			f := w.newFront()
			repo := w.repo("team/app.git", 100)
			work := w.work(repo, 3<<20)
			f.mustGit(work.Dir, "push", "-q", "ssh://host/team/app", "main", "main:refs/heads/other")
			f.mustGit(work.Dir, "push", "-q", "ssh://host/team/app", ":other")
			if got, want := repo.Git("for-each-ref"), work.Git("for-each-ref", "refs/heads/main"); got != want {
				t.Errorf("the refs are %s, want %s", got, want)
			}
			work.Git("update-ref", "refs/heads/main", work.Commit("unrelated").String())
			if out, err := f.git(work.Dir, "push", "ssh://host/team/app", "main"); err == nil ||
				!strings.Contains(err.Error()+out, "non-fast-forward") {
				t.Errorf("no fast forward: %s %v", out, err)
			}
		})
	}
}

// Real git pushes through a gateway to a node: what fits into one message, what takes a channel, what is deleted and
// what is refused.
func TestPushesThroughAGateway(t *testing.T) {
	t.Parallel()
	for name, o := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			repo := w.repo("team/app.git", 100)
			for i, size := range []int{10, 5 << 20} { // of the second the length is not known: git sends chunks
				work := w.work(repo, size)
				work.Git("push", "-q", "--atomic", w.url+"/team/app", "main", fmt.Sprintf("main:refs/heads/b%d", i))
				if got, want := repo.ID("main"), work.ID("main"); got != want {
					t.Errorf("main is %s, want %s", got, want)
				}
				work.Git("push", "-q", w.url+"/team/app", fmt.Sprintf(":b%d", i))
			}
			if got := strings.Count(repo.Git("for-each-ref"), "\n"); got != 0 {
				t.Errorf("the refs are %s", repo.Git("for-each-ref"))
			}
			work := w.work(repo, 10)
			work.Git("update-ref", "refs/heads/main", work.Commit("unrelated").String())
			if out, err := work.Try("push", w.url+"/team/app", "main"); err == nil ||
				!strings.Contains(err.Error()+out, "non-fast-forward") {
				t.Errorf("no fast forward: %s %v", out, err)
			}
			repo.Git("fsck", "--strict")
		})
	}
}

// A push that is refused before it begins has not been read: another node could take it.
func TestRefusedPushIsNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	w.repo("app.git", 100)
	unread := failing{fault.New(fault.Internal, "it was read")}
	if _, err := w.push(t.Context(), "nothing", over, unread, &answer{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("no repository: %v", err)
	}
	repo, _ := git.ParseRepoPath("app")
	if _, err := w.remote.ReceivePack(t.Context(), repo, over, node.Pusher{Name: "a;b\n"}, unread,
		&answer{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a bad name: %v", err)
	}
	w.kill()
	if _, err := w.push(t.Context(), "app", over, unread, &answer{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("no node: %v", err)
	}
}

// A push that breaks off for any cause is an error for the client within a limited time. It changes nothing and leaves
// nothing.
func TestPushesThatBreakOff(t *testing.T) {
	t.Parallel()
	for name, o := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			repo := w.repo("app.git", 100)
			before := repo.Git("for-each-ref")
			request := w.pushOf(w.work(repo, 6<<20), repo.ID("main"), "refs/heads/main")
			for who, test := range map[string]struct {
				kind fault.Kind
				end  func(cancel func())
				last error // of the client's request
			}{
				"client":      {fault.Invalid, func(func()) {}, fault.New(fault.Invalid, "the client went away")},
				"no end":      {fault.Invalid, func(func()) {}, io.EOF},
				"cancel":      {fault.Cancelled, func(cancel func()) { cancel() }, nil},
				"node killed": {fault.Unavailable, func(func()) { w.kill() }, nil},
			} {
				for _, session := range []node.Session{over, {Service: protocol.ReceivePack}} {
					ctx, cancel := context.WithCancel(t.Context())
					cut, hang := make(chan struct{}), make(chan struct{})
					body := io.MultiReader(bytes.NewReader(request[:4<<20]),
						&ending{reached: cut, hang: hang, err: test.last})
					ended := make(chan error, 1)
					out := &answer{}
					go func() {
						_, err := w.push(ctx, "app", session, body, out)
						ended <- err
					}()
					select {
					case <-cut:
					case err := <-ended:
						t.Fatalf("%s: ended before it broke off: %v", who, err)
					}
					test.end(cancel)
					if who == "node killed" && !eventually(func() bool { return w.remote.Ready() != nil }) {
						t.Error("a node that is away is ready")
					}
					if session.Stateless {
						close(hang) // a body's Read ends with its connection
					}
					err := <-ended
					if !session.Stateless {
						close(hang)
					}
					if !fault.Is(err, test.kind) {
						t.Errorf("%s, %+v: %v (%v), answer %q", who, session, err, fault.KindOf(err), out)
					}
					cancel()
					if after := repo.Git("for-each-ref"); after != before {
						t.Errorf("%s: refs have changed to %s", who, after)
					}
					if who == "node killed" {
						w.serve()
						if !eventually(func() bool { return w.remote.Ready() == nil }) {
							t.Fatal("a node that came back is not ready")
						}
					}
				}
			}
			if locks, _ := filepath.Glob(filepath.Join(repo.Dir, "refs", "heads", "*.lock")); len(locks) > 0 {
				t.Errorf("left behind: %v", locks)
			}
			out := &answer{}
			if _, err := w.push(t.Context(), "app", over, bytes.NewReader(request), out); err != nil ||
				!bytes.Contains(out.Bytes(), []byte("ok refs/heads/main")) {
				t.Errorf("then: %v %q", err, out)
			}
		})
	}
}

// ending is the end of a request: an error, or nothing until hang is closed.
type ending struct {
	reached, hang chan struct{}
	err           error
	told          bool
}

func (e *ending) Read([]byte) (int, error) {
	if !e.told {
		e.told = true
		close(e.reached)
	}
	if e.err == nil {
		<-e.hang
		return 0, fault.New(fault.Invalid, "the connection is gone")
	}
	return 0, e.err
}

// A push holds what its buffers hold, however long it is; other tests wait meanwhile.
func TestMemoryOfAPushIsBounded(t *testing.T) {
	if raceEnabled {
		t.Skip("pools forget what they are given here")
	}
	size := 32 << 20
	if os.Getenv("PACKHORSE_TEST_LONG") != "" {
		size = 300 << 20
	}
	w := newWorld(t, options{})
	repo := w.repo("app.git", 100)
	request := w.pushOf(w.work(repo, size), repo.ID("main"), "refs/heads/main")
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	out := &answer{}
	start := time.Now()
	if _, err := w.push(t.Context(), "app", over, bytes.NewReader(request), out); err != nil ||
		!bytes.Contains(out.Bytes(), []byte("ok refs/heads/main")) {
		t.Fatalf("%v %q", err, out)
	}
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > uint64(len(request))/16 { // both ends together
		t.Errorf("%d bytes allocated for %d", allocated, len(request))
	} else {
		t.Logf("%d KiB allocated for %d MiB in %v", allocated>>10, len(request)>>20, took)
	}
}
