package receivepack

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// longHead is a request that makes many refs, with names as long as CI systems make them.
func longHead(id git.ObjectID, refs int) []byte {
	var b []byte
	for i := range refs {
		line := fmt.Sprintf("%s %s refs/heads/ci/some-team/a-branch-of-this-job/%08d", zeros(id), id, i)
		if i == 0 {
			line += "\x00 report-status atomic"
		}
		b = pktline.AppendLine(b, line)
	}
	return pktline.AppendFlush(b)
}

// What a request costs is what it is counted as, whatever is made of it until git runs: not only what is kept, but all that is allocated, since
// what is garbage is there until somebody collects it.
func TestHeadsCostWhatTheyAreCountedAs(t *testing.T) { // alone, as it looks at the whole heap
	w := newWorld(t, Options{})
	id := w.Commit("x")
	head := longHead(id, 100_000)
	target := w.target()
	snapshot, err := target.Refs.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var fromGit []byte
	for i := range 100_000 {
		fromGit = fmt.Appendf(fromGit, "%s %s refs/heads/ci/some-team/a-branch-of-this-job/%08d\n", zeros(id), id, i)
	}
	fromGit = append(fromGit, ".\n"...)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := w.server.newReader(bytes.NewReader(head))
	asked, err := r.read(git.SHA1, true)
	if err != nil {
		t.Fatal(err)
	}
	request, _ := r.rest(asked)
	p := &pushing{Server: w.server, target: target, request: asked, push: &Push{ID: "x", Updates: asked.updates()}}
	p.policy, err = target.PushPolicy()
	if err != nil {
		t.Fatal(err)
	}
	e, err := p.journal(context.Background(), snapshot)
	if err != nil {
		t.Fatal(err)
	}
	updates, _, err := p.readUpdates(bufio.NewReader(bytes.NewReader(fromGit)))
	if err != nil || len(updates) != len(asked.commands) {
		t.Fatal(len(updates), err)
	}
	runtime.ReadMemStats(&after)
	made := int64(after.TotalAlloc - before.TotalAlloc)
	runtime.GC()
	runtime.ReadMemStats(&after)
	kept := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("a head of %d MB: %d MB are kept, %d MB were made, %d MB are counted", len(head)>>20, kept>>20, made>>20, r.held>>20)
	if made > r.held {
		t.Errorf("a request that makes %d bytes is counted as %d", made, r.held)
	}
	runtime.KeepAlive(request)
	w.server.sweeper.end(e, true)
	r.release()
	if _, err := os.Stat(e.path); err == nil {
		t.Error("the journal still has the push")
	}
}

// All requests together are held to the budget.
func TestHeadsHaveABudget(t *testing.T) {
	t.Parallel()
	s := &Server{heads: make(chan int64, 1), options: Options{MaxCommands: 100_000}}
	s.heads <- 0
	id := git.MustParseObjectID(strings.Repeat("1", 40))
	head := longHead(id, 20_000)
	var open []*reader
	for {
		r := s.newReader(bytes.NewReader(head))
		open = append(open, r)
		if _, err := r.read(git.SHA1, true); err != nil {
			if !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) == 0 {
				t.Errorf("who is too much is told %v", err)
			}
			break
		}
	}
	if n := len(open); n < 2 || n > maxHeads/(headCost*(len(head)-freeHead))+1 {
		t.Errorf("%d requests of %d bytes are read at the same time", n, len(head))
	}
	for _, r := range open {
		r.release()
	}
	if all := <-s.heads; all != 0 {
		t.Errorf("%d bytes are still held", all)
	}
}
