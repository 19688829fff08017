package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/control"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// fetch is a request for all that an object reaches, with haves of unknown objects.
func fetch(want git.ObjectID, haves int) []byte {
	b := pktline.AppendDelim(pktline.AppendLine(nil, "command=fetch"))
	b = pktline.AppendLine(pktline.AppendLine(b, "want "+want.String()), "ofs-delta")
	for i := range haves {
		b = pktline.AppendLine(b, fmt.Sprintf("have %040x", i+1))
	}
	return pktline.AppendFlush(pktline.AppendLine(b, "done"))
}

// ask sends a request to the node as the gateway does.
func (w *world) ask(ctx context.Context, path string, request []byte, reply node.ResponseWriter) (node.Outcome, error) {
	w.t.Helper()
	repo, err := git.ParseRepoPath(path)
	w.do(err)
	return w.remote.UploadPack(ctx, repo, version2, bytes.NewReader(request), reply)
}

// madeUp is a source whose packs are what a function sends.
type madeUp struct {
	packsource.Source
	open func(ctx context.Context) error
	send func(ctx context.Context, out packsource.Output) error
}

func (m *madeUp) Open(ctx context.Context, _ *packsource.Spec) (packsource.Pack, error) {
	if m.open != nil {
		if err := m.open(ctx); err != nil {
			return nil, err
		}
	}
	return madeUpPack{m}, nil
}

type madeUpPack struct{ *madeUp }

func (madeUpPack) Size() int64                                             { return -1 }
func (p madeUpPack) Send(ctx context.Context, out packsource.Output) error { return p.send(ctx, out) }
func (madeUpPack) Info() packsource.Info {
	return packsource.Info{Result: packsource.Uncached}
}
func (madeUpPack) Close() error { return nil }

var packet = pktline.AppendBand(nil, pktline.BandData, make([]byte, 60000))

// endless sends packets until the reader has gone.
func endless(_ context.Context, out packsource.Output) error {
	for {
		if _, err := out.Write(packet); err != nil {
			return err
		}
	}
}

// pack is the request for one in a small repository.
func (w *world) pack() []byte { return fetch(w.repo("app.git", 100).ID("main"), 0) }

func TestFaultsBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{source: &madeUp{open: func(context.Context) error {
		return fault.Retry(fault.Exhausted, 7*time.Second, "no slot")
	}}})
	request := w.pack()
	for name, test := range map[string]struct {
		path    string
		request []byte
		kind    fault.Kind
		says    string
		command protocol.Command
	}{
		"no repository": {"nothing", lsRefs(), fault.NotFound, "no repository nothing", ""},
		"no request":    {"app", []byte("zzzz"), fault.Invalid, "not a pkt-line stream", ""},
		"cut off":       {"app", lsRefs()[:20], fault.Invalid, "", ""},
		"no slot":       {"app", request, fault.Exhausted, "no slot", protocol.CommandFetch},
	} {
		out := &answer{}
		outcome, err := w.ask(context.Background(), test.path, test.request, out)
		if fault.KindOf(err) != test.kind || !strings.Contains(fault.Message(err), test.says) || out.Len() > 0 ||
			outcome.Command != test.command {
			t.Errorf("%s: %v (%v), outcome %+v, %d bytes", name, err, fault.KindOf(err), outcome, out.Len())
		}
		if test.kind == fault.Exhausted && fault.RetryAfter(err) != 7*time.Second {
			t.Errorf("%s: retry after %v", name, fault.RetryAfter(err))
		}
	}
	if err := w.remote.Ready(); err != nil {
		t.Errorf("then the node is away: %v", err)
	}
}

// The node reports a fault in the middle of a pack to the client and to the gateway.
func TestFaultAfterTheFirstByte(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{source: &madeUp{send: func(_ context.Context, out packsource.Output) error {
		if _, err := out.Write(packet); err != nil {
			return err
		}
		return fault.New(fault.Corrupt, "the pack is damaged")
	}}})
	out := &answer{}
	outcome, err := w.ask(context.Background(), "app", w.pack(), out)
	if _, told := errors.AsType[*node.ReportedError](err); !told || !fault.Is(err, fault.Corrupt) {
		t.Errorf("the error is %v", err)
	}
	if !bytes.Contains(out.Bytes(), []byte("\x03packhorse: the pack could not be finished: the pack is damaged")) ||
		outcome.Fetch.Pack != "uncached" {
		t.Errorf("%d bytes, outcome %+v", out.Len(), outcome)
	}
}

func TestRequestsOfAllLengths(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{maxRequest: 3 << 20})
	want := w.repo("app.git", 100).ID("main")
	for _, haves := range []int{0, 1300, 1310, 5000, 40_000} { // around 64 KiB, and 2 MB
		request := fetch(want, haves)
		for name, r := range map[string]io.Reader{"whole": bytes.NewReader(request),
			"bytewise": io.MultiReader(bytes.NewReader(request[:9]), bytes.NewReader(request[9:]))} {
			repo, _ := git.ParseRepoPath("app")
			out := &answer{}
			outcome, err := w.remote.UploadPack(context.Background(), repo, version2, r, out)
			if err != nil || outcome.Fetch.Haves != haves || !bytes.HasSuffix(out.Bytes(), []byte("0000")) {
				t.Errorf("%s, %d haves: %v, outcome %+v", name, haves, err, outcome)
			}
		}
	}
	if _, err := w.ask(context.Background(), "app", fetch(want, 70_000), &answer{}); !fault.Is(err, fault.Invalid) ||
		!strings.Contains(err.Error(), "longer than 3145728 bytes") {
		t.Errorf("a request beyond the limit: %v", err)
	}
	// A fault of the client's own request keeps its text.
	repo, _ := git.ParseRepoPath("app")
	broken := fault.New(fault.Invalid, "the client went away")
	if _, err := w.remote.UploadPack(context.Background(), repo, version2,
		io.MultiReader(bytes.NewReader(lsRefs()), failing{broken}), &answer{}); !errors.Is(err, broken) {
		t.Errorf("a request that breaks: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{bulk: 1, source: &madeUp{send: endless}})
	request := w.pack()
	full := fault.Retry(fault.Exhausted, time.Second, "the gateway's lane is full")
	if _, err := w.ask(context.Background(), "app", request, &answer{refusal: full}); !errors.Is(err, full) {
		t.Errorf("refused by the gateway: %v", err)
	}
	// The lane of the node has one place, and it gets free again.
	if !eventually(func() bool { return strings.Contains(w.log.String(), "result=cancelled") }) {
		t.Fatal("the refused call goes on")
	}
	ctx, cancel := context.WithCancel(context.Background())
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := w.ask(ctx, "app", request, &answer{onWrite: func(int) error {
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		}})
		ended <- err
	}()
	<-begun
	if _, err := w.ask(context.Background(), "app", request, &answer{}); !fault.Is(err, fault.Exhausted) ||
		!strings.Contains(err.Error(), "too many cold requests") {
		t.Errorf("refused by the node: %v", err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled transfer is whole")
	}
}

// A request that is cancelled ends the work for it.
func TestCancelReachesTheSource(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit func() (context.Context, context.CancelFunc)
		kind  fault.Kind
	}{
		"cancel": {func() (context.Context, context.CancelFunc) { return context.WithCancel(context.Background()) },
			fault.Cancelled},
		"deadline": {func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), 5*time.Second) // long enough for the source to be asked
		}, fault.Deadline},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opened, ended := make(chan struct{}), make(chan error, 1)
			w := newWorld(t, options{source: &madeUp{open: func(ctx context.Context) error {
				close(opened)
				<-ctx.Done()
				ended <- ctx.Err()
				return ctx.Err()
			}}})
			ctx, cancel := test.limit()
			defer cancel()
			if name == "cancel" {
				go func() { <-opened; cancel() }()
			}
			if _, err := w.ask(ctx, "app", w.pack(), &answer{}); !fault.Is(err, test.kind) {
				t.Errorf("the error is %v", err)
			}
			if err := <-ended; err == nil {
				t.Error("the source was not told")
			}
		})
	}
}

// A real git process ends with the time limit of the call that it runs for.
func TestDeadlineEndsGit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	repo := w.repo("app.git", 8<<20)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err := w.ask(ctx, "app", fetch(repo.ID("main"), 0),
		&answer{onWrite: func(int) error { cancel(); return ctx.Err() }})
	if err == nil {
		t.Error("a cancelled fetch is whole")
	}
	const began, running = "packhorse_git_commands_total", "packhorse_git_commands_in_flight"
	if !eventually(func() bool { return w.value(began)+w.value(running) > 0 && w.value(running) == 0 }) {
		t.Errorf("%v git processes run on, %v have ended", w.value(running), w.value(began))
	}
	w.clone(repo, "app", "2")
}

func TestPanicIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{source: &madeUp{open: func(context.Context) error { panic("of the source") }}})
	if _, err := w.ask(context.Background(), "app", w.pack(), &answer{}); !fault.Is(err, fault.Internal) ||
		strings.Contains(fault.Message(err), "of the source") {
		t.Errorf("the error is %v", err)
	}
	logged := func() bool {
		log := w.log.String()
		return strings.Contains(log, "of the source") && strings.Contains(log, "goroutine")
	}
	if !eventually(logged) {
		t.Errorf("the node's log has no panic with its stack:\n%s", w.log)
	}
	if _, err := w.ask(context.Background(), "app", lsRefs(), &answer{}); err != nil {
		t.Errorf("then: %v", err)
	}
}

func TestWrongSecret(t *testing.T) {
	t.Parallel()
	var theirs, ours atomic.Value
	theirs.Store("sesame")
	ours.Store("wrong")
	w := newWorld(t, options{
		trust:  control.Trust{Secret: func() string { return theirs.Load().(string) }},
		secret: func() string { return ours.Load().(string) },
	})
	w.repo("app.git", 100)
	out := &answer{}
	if _, err := w.ask(context.Background(), "app", lsRefs(), out); !fault.Is(err, fault.Unavailable) ||
		out.Len() > 0 ||
		!strings.Contains(fault.Message(err), "the storage node one does not trust this server") {
		t.Errorf("with a wrong secret: %v", err)
	}
	if !eventually(func() bool { return w.remote.Ready() != nil }) {
		t.Error("a node that refuses is ready")
	}
	ours.Store("sesame")
	if !eventually(func() bool { return w.remote.Ready() == nil }) {
		t.Error("with the right secret the node is not found again")
	}
	if _, err := w.ask(context.Background(), "app", lsRefs(), out); err != nil || out.Len() == 0 {
		t.Errorf("with the right secret: %v", err)
	}
	if log := w.log.String(); strings.Contains(log, "sesame") {
		t.Error("the log tells the secret")
	}
}

func TestNodeGoesAndComesBack(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{"tcp": {}, "unix": {unix: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			repo := w.repo("app.git", 1<<20)
			w.clone(repo, "app", "2")
			w.kill()
			if _, err := w.ask(context.Background(), "app", lsRefs(), &answer{}); !fault.Is(err, fault.Unavailable) ||
				fault.RetryAfter(err) != time.Second {
				t.Errorf("while it is away: %v", err)
			}
			if !eventually(func() bool { return w.remote.Ready() != nil }) {
				t.Error("a node that is away is ready")
			}
			if !eventually(func() bool { return w.value("packhorse_node_up", "node=one") == 0 }) {
				t.Errorf("packhorse_node_up is %v, want 0", w.value("packhorse_node_up", "node=one"))
			}
			if out, err := gittest.At(t, t.TempDir()).Try("ls-remote", w.url+"/app"); err == nil ||
				!strings.Contains(err.Error(), "remote: ") || !strings.Contains(err.Error(), "503") {
				t.Errorf("git says: %s %v", out, err)
			}
			w.serve()
			if !eventually(func() bool { return w.remote.Ready() == nil }) {
				t.Fatal("a node that came back is not ready")
			}
			w.clone(repo, "app", "0")
			if n := strings.Count(w.log.String(), "storage node is down"); n != 1 {
				t.Errorf("the node was lost %d times, want once", n)
			}
		})
	}
}

// A gateway reports why a node is not ready.
func TestReasonOfNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	w.do(os.Rename(w.root, w.root+"2"))
	want := "the storage node one is not ready: the root directory does not exist any more"
	if !eventually(func() bool { err := w.remote.Ready(); return err != nil && err.Error() == want }) {
		t.Errorf("Ready() = %v, want %q", w.remote.Ready(), want)
	}
}

// A node that ends in the middle of an answer leaves an error, never a whole answer, and a client sees it.
func TestNodeEndsInMidTransfer(t *testing.T) {
	t.Parallel()
	var packs atomic.Int32
	w := newWorld(t, options{source: &madeUp{send: func(ctx context.Context, out packsource.Output) error {
		packs.Add(1)
		return endless(ctx, out)
	}}})
	request := w.pack()
	killed := false
	out := &answer{onWrite: func(total int) error {
		if total > 4<<20 && !killed {
			killed = true
			w.kill()
		}
		return nil
	}}
	if _, err := w.ask(context.Background(), "app", request, out); !fault.Is(err, fault.Unavailable) {
		t.Errorf("the error is %v", err)
	}
	if !eventually(func() bool { return w.remote.Ready() != nil }) {
		t.Error("a node that is away is ready")
	}
	w.serve()
	if !eventually(func() bool { return w.remote.Ready() == nil }) {
		t.Fatal("a node that came back is not ready")
	}
	dir := filepath.Join(t.TempDir(), "clone")
	clone := make(chan error, 1)
	go func() {
		_, err := gittest.At(t, t.TempDir()).Try("clone", "-q", w.url+"/app", dir)
		clone <- err
	}()
	if !eventually(func() bool { return packs.Load() > 1 }) {
		t.Fatal("no clone began")
	}
	w.kill()
	if err := <-clone; err == nil {
		t.Error("git took half an answer for a whole one")
	}
}

// A reader that takes nothing does not hold its transfer for ever.
func TestStalledReader(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{stall: 300 * time.Millisecond, source: &madeUp{send: endless}})
	release := make(chan struct{})
	ended := make(chan error, 1)
	request := w.pack()
	go func() {
		_, err := w.ask(context.Background(), "app", request,
			&answer{onWrite: func(int) error { <-release; return nil }})
		ended <- err
	}()
	if !eventually(func() bool { return strings.Contains(w.log.String(), "operation=upload_pack result=cancelled") }) {
		t.Error("the node still sends")
	}
	close(release)
	if err := <-ended; err == nil {
		t.Error("a stalled transfer is whole")
	}
	if _, err := w.ask(context.Background(), "app", lsRefs(), &answer{}); err != nil {
		t.Errorf("then: %v", err)
	}
}

// A transfer holds what its buffers hold, however long it is; other tests wait meanwhile.
func TestMemoryOfATransferIsBounded(t *testing.T) {
	if raceEnabled {
		t.Skip("pools forget what they are given here")
	}
	w := newWorld(t, options{})
	request := fetch(w.repo("app.git", 16<<20).ID("main"), 0)
	for range 2 {
		if _, err := w.ask(context.Background(), "app", request, &discard{}); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const times = 4
	var out discard
	for range times {
		if _, err := w.ask(context.Background(), "app", request, &out); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if out.n < times*16<<20 {
		t.Errorf("%d bytes were sent", out.n)
	}
	// Both ends together.
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > uint64(out.n)/16 {
		t.Errorf("%d bytes allocated for %d", allocated, out.n)
	} else {
		t.Logf("%d KiB allocated for %d MiB", allocated>>10, out.n>>20)
	}
}
