package receivepack

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
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

// The memory charged for a request covers its real cost at every stage until git runs. The cost includes garbage,
// which occupies memory until it is collected.
func TestHeadsCostTheirCharge(t *testing.T) { // not parallel, as it measures the whole heap
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
	r := w.server.newRequestReader(bytes.NewReader(head))
	request, err := r.read(git.SHA1, true)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := r.rest(request)
	p := &pushSession{Server: w.server, target: target, request: request, push: &Push{ID: "x", Updates: request.updates()}}
	p.policy, err = target.PushPolicy()
	if err != nil {
		t.Fatal(err)
	}
	record, err := (&inPlace{pushSession: p}).newRecord(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	journaled, err := w.server.recovery.Begin(context.Background(), record, "x")
	if err != nil {
		t.Fatal(err)
	}
	updates, _, err := p.readHookUpdates(bufio.NewReader(bytes.NewReader(fromGit)))
	if err != nil || len(updates) != len(request.commands) {
		t.Fatal(len(updates), err)
	}
	runtime.ReadMemStats(&after)
	made := int64(after.TotalAlloc - before.TotalAlloc)
	runtime.GC()
	runtime.ReadMemStats(&after)
	kept := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("a head of %d MB: %d MB are kept, %d MB were made, %d MB are counted", len(head)>>20, kept>>20, made>>20,
		r.memory>>20)
	if made > r.memory {
		t.Errorf("a request that makes %d bytes is counted as %d", made, r.memory)
	}
	runtime.KeepAlive(body)
	w.server.recovery.End(context.Background(), journaled, true)
	r.release()
	w.clean()
}

// All requests together are held to the budget.
func TestHeadsHaveABudget(t *testing.T) {
	t.Parallel()
	s := &Server{memory: make(chan int64, 1), options: Options{MaxCommands: 100_000}}
	s.memory <- 0
	id := git.MustParseObjectID(strings.Repeat("1", 40))
	head := longHead(id, 20_000)
	var open []*requestReader
	for {
		r := s.newRequestReader(bytes.NewReader(head))
		open = append(open, r)
		if _, err := r.read(git.SHA1, true); err != nil {
			if !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) == 0 {
				t.Errorf("who is too much is told %v", err)
			}
			break
		}
	}
	if n := len(open); n < 2 || n > maxMemory/(memoryFactor*(len(head)-freeHead))+1 {
		t.Errorf("%d requests of %d bytes are read at the same time", n, len(head))
	}
	for _, r := range open {
		r.release()
	}
	if all := <-s.memory; all != 0 {
		t.Errorf("%d bytes are still held", all)
	}
}
