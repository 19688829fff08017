package storage_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
)

// warmSource is a source of one small pack, which took took to make. Its Warm calls a function.
type warmSource struct {
	took time.Duration

	mu   sync.Mutex
	warm func(context.Context) error
	fits bool
}

func (s *warmSource) Open(context.Context, *packsource.Spec) (packsource.Pack, error) {
	return &warmPack{s}, nil
}

func (s *warmSource) Warm(ctx context.Context, _ *packsource.Spec) (bytes int64, made bool, err error) {
	s.mu.Lock()
	warm := s.warm
	s.mu.Unlock()
	err = warm(ctx)
	return 100, err == nil, err
}

func (s *warmSource) Fits(int64) bool { return s.fits }

func (s *warmSource) onWarm(warm func(context.Context) error) {
	s.mu.Lock()
	s.warm = warm
	s.mu.Unlock()
}

type warmPack struct{ *warmSource }

func (p *warmPack) Size() int64  { return -1 }
func (p *warmPack) Close() error { return nil }

func (p *warmPack) Send(_ context.Context, out packsource.Output) error {
	_, err := out.Write([]byte("0009\x01PACK"))
	return err
}

func (p *warmPack) Info() packsource.Info {
	return packsource.Info{Result: packsource.Miss, Bytes: 9, Made: packsource.Made{Source: packsource.SourceGit,
		Write: p.took}}
}

// warmRoot is a node that accepts pushes and warms up, with one repository.
type warmRoot struct {
	*storage.Node
	t      *testing.T
	source *warmSource
	repo   *gittest.Repo
	path   git.RepoPath
	pushes int
}

func newWarmRoot(t *testing.T, source *warmSource) *warmRoot {
	t.Helper()
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		receivepack.ClassReceive: {Slots: 4, Queue: 100},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	pushes, err := receivepack.New(receivepack.Options{Runner: runner, Agent: "test", Scripts: t.TempDir(),
		Journal: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	source.fits = true
	w := &warmRoot{t: t, source: source}
	root := t.TempDir()
	server := uploadpack.New(source, uploadpack.Options{Agent: "test", Warmup: &uploadpack.Warmup{}})
	if w.Node, err = storage.New(server, storage.Options{Root: root, Pushes: pushes}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	w.repo = gittest.InitAt(t, root+"/app.git")
	w.repo.Git("update-ref", "refs/heads/main", w.repo.Commit("first").String())
	w.path, _ = git.ParseRepoPath("app")
	return w
}

// fetch requests a pack of main.
func (w *warmRoot) fetch() {
	w.t.Helper()
	request := pktline.AppendDelim(pktline.AppendLine(nil, "command=fetch"))
	request = pktline.AppendLine(pktline.AppendLine(request, "want "+w.repo.ID("main").String()), "done")
	request = pktline.AppendFlush(request)
	if _, err := w.UploadPack(w.t.Context(), w.path, version2, bytes.NewReader(request), &answer{}); err != nil {
		w.t.Fatal(err)
	}
}

// push moves main to a new commit, which exists already, and returns how long the report waited.
func (w *warmRoot) push() time.Duration {
	w.t.Helper()
	w.pushes++
	old := w.repo.ID("main")
	id := w.repo.Commit(fmt.Sprint("commit ", w.pushes), old)
	request := pktline.AppendLine(nil, fmt.Sprintf("%s %s refs/heads/main\x00 report-status", old, id))
	request = append(pktline.AppendFlush(request), emptyPack...)
	var report answer
	outcome, err := w.ReceivePack(w.t.Context(), w.path, node.Session{Service: protocol.ReceivePack, Stateless: true},
		node.Pusher{}, bytes.NewReader(request), &report)
	if err != nil || !strings.Contains(report.String(), "ok refs/heads/main") {
		w.t.Fatalf("push = %v, report %q", err, report.String())
	}
	return outcome.Push.Warmup
}

// emptyPack is a pack without objects.
const emptyPack = "PACK\x00\x00\x00\x02\x00\x00\x00\x00\x02\x9d\x08\x82\x3b\xd8\xa8\xea\xb5\x10\xad\x6a\xc7\x5c\x82" +
	"\x3c\xfd\x3e\xd3\x1e"

// TestReportWaitsForQuickPacks makes popular packs at once: they are there when the push returns.
func TestReportWaitsForQuickPacks(t *testing.T) {
	t.Parallel()
	w := newWarmRoot(t, &warmSource{took: time.Millisecond})
	warmed := 0
	w.source.onWarm(func(context.Context) error { warmed++; return nil })
	if waited := w.push(); waited != 0 || warmed != 0 {
		t.Errorf("a push without fetches waited %v for %d packs, want 0", waited, warmed)
	}
	w.fetch()
	w.fetch()
	for i := range 3 {
		waited := w.push()
		if waited == 0 {
			t.Errorf("push %d did not wait, want a wait for a pack that was quick", i)
		}
		if waited < uploadpack.QuickWarmup && warmed != i+1 {
			t.Errorf("%d packs after push %d and a wait of %v, want %d", warmed, i, waited, i+1)
		}
		if waited >= uploadpack.QuickWarmup {
			t.Skip("the machine is too busy")
		}
	}
}

// TestReportDoesNotWaitForSlowPacks checks the limit of the wait, that a pack that exceeded it is not waited for again,
// and that it is once it was quick.
func TestReportDoesNotWaitForSlowPacks(t *testing.T) {
	t.Parallel()
	w := newWarmRoot(t, &warmSource{took: time.Millisecond})
	w.fetch()
	w.fetch()
	begun, release := make(chan struct{}, 10), make(chan struct{})
	w.source.onWarm(func(ctx context.Context) error {
		begun <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if waited := w.push(); waited < uploadpack.QuickWarmup { // it returns although the pack is not made
		t.Errorf("the push waited %v for a pack that is not ready, want %v", waited, uploadpack.QuickWarmup)
	}
	<-begun
	w.push() // ends the fill for the tip before, which is recorded as slow
	<-begun
	for range 3 {
		if waited := w.push(); waited != 0 {
			t.Errorf("a push waited %v for a pack that was slow, want 0", waited)
		}
		<-begun
	}
	close(release)
	gittest.WaitFor(t, "a push waits again", func() bool {
		for len(begun) > 0 {
			<-begun
		}
		return w.push() > 0
	})
}

// TestPushesCloseTogetherDoNotQueue pushes while the packs for the tip before are being made.
func TestPushesCloseTogetherDoNotQueue(t *testing.T) {
	t.Parallel()
	w := newWarmRoot(t, &warmSource{took: time.Millisecond})
	w.fetch()
	w.fetch()
	var mu sync.Mutex
	running, most := 0, 0
	w.source.onWarm(func(ctx context.Context) error {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		<-ctx.Done()
		mu.Lock()
		running--
		mu.Unlock()
		return ctx.Err()
	})
	for range 5 {
		w.push()
	}
	w.StopBackground() // ends the last one
	mu.Lock()
	defer mu.Unlock()
	if running != 0 || most != 1 {
		t.Errorf("%d fills run at the end and %d ran at the same time, want 0 and 1", running, most)
	}
	if waited := w.push(); waited != 0 {
		t.Errorf("a push to a node that stops waited %v, want 0", waited)
	}
}
