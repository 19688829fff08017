package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// A short answer, a long one, and a refusal are the node's own, whatever way they take.
func TestShort(t *testing.T) {
	t.Parallel()
	var small atomic.Int64
	w := newWorld(t, options{onSmall: func() { small.Add(1) }})
	repo := w.repo("app.git", 100)
	main := repo.ID("main").String()
	reply := &answer{}
	o, err := w.ask(context.Background(), "app", lsRefs(), reply)
	if err != nil || o.Command != protocol.CommandLsRefs || o.Refs != 1 || reply.bulk != 0 ||
		!strings.Contains(reply.String(), main) ||
		reply.length != int64(reply.Len()) {
		t.Errorf("%q, %+v, %v", reply, o, err)
	}

	var lines strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&lines, "create refs/heads/main-%d %s\n", i, main)
	}
	repo.GitIn(lines.String(), "update-ref", "--stdin")
	reply = &answer{}
	small.Store(0)
	o, err = w.ask(context.Background(), "app", lsRefs(), reply)
	if err != nil || o.Refs != 5001 || reply.bulk != 1 || strings.Count(reply.String(), main) != 5001 {
		t.Errorf("a long answer of %d bytes, %+v, %v", reply.Len(), o, err)
	}
	if n := small.Load(); n != 0 {
		t.Errorf("a long answer was served %d times in the small lane", n)
	}
	// the node writes them on its own
	logLines := func() int { return strings.Count(w.log.String(), "command=ls-refs") }
	if !eventually(func() bool { return logLines() == 2 }) {
		t.Errorf("the node's log has %d lines for two requests, want 2", logLines())
	}

	if _, err = w.ask(context.Background(), "none", lsRefs(), &answer{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("no such repository: %v", err)
	}
	bad := append(lsRefs()[:20:20], "0003"...)
	if _, err = w.ask(context.Background(), "app", bad, &answer{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("no request: %v", err)
	}
	path, _ := git.ParseRepoPath("app")
	for _, version := range []protocol.Version{protocol.V0, protocol.V1, protocol.V2} {
		reply = &answer{}
		_, err = w.remote.Advertise(context.Background(), path, node.Session{Version: version, Stateless: true}, reply)
		if want := version == protocol.V2; err != nil || want == strings.Contains(reply.String(), main) {
			t.Errorf("version %v: %d bytes, %v", version, reply.Len(), err)
		}
	}
}

// A response in one message is checked as closely as a stream.
func TestHostileShort(t *testing.T) {
	t.Parallel()
	end := &internalv1.End{}
	for name, test := range map[string]struct {
		answer *internalv1.UnarySessionResponse
		err    error
		kind   fault.Kind
	}{
		"nothing":     {&internalv1.UnarySessionResponse{}, nil, fault.Internal},
		"no end":      {&internalv1.UnarySessionResponse{Data: []byte("some")}, nil, fault.Internal},
		"absurd size": {&internalv1.UnarySessionResponse{Data: make([]byte, 2<<20), End: end}, nil, fault.Unavailable},
		"broken outcome": {&internalv1.UnarySessionResponse{End: &internalv1.End{
			Outcome: &internalv1.Outcome{Json: []byte(`{"Refs":"many"}`)}}}, nil, fault.Internal},
		"fault inside": {&internalv1.UnarySessionResponse{End: &internalv1.End{
			Fault: faultrpc.Message(fault.New(fault.Corrupt, "damaged"))}}, nil, fault.Corrupt},
		"refusal": {nil, faultrpc.Error(fault.New(fault.Denied, "no"), &internalv1.Outcome{Json: []byte("{}")}),
			fault.Denied},
		"plain error": {nil, errors.New("no"), fault.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startHostile(t, &hostile{short: func() (*internalv1.UnarySessionResponse, error) {
				return test.answer,
					test.err
			}})
			repo, _ := git.ParseRepoPath("app")
			out := &answer{}
			if _, err := n.UploadPack(context.Background(), repo, version2, bytes.NewReader(lsRefs()),
				out); !fault.Is(err, test.kind) {
				t.Errorf("%v (%v), want %v, after %q", err, fault.KindOf(err), test.kind, out)
			}
		})
	}
}
