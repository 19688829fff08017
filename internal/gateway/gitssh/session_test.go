package gitssh

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
)

// takes is a channel whose client takes everything.
type takes struct{ ssh.Channel }

func (takes) Write(p []byte) (int, error) { return len(p), nil }

// messages is a channel that notes what it is to send.
type messages struct {
	ssh.Channel
	sent []string
}

func (m *messages) SendRequest(name string, _ bool, payload []byte) (bool, error) {
	m.sent = append(m.sent, fmt.Sprintf("%s %x", name, payload))
	return true, nil
}
func (m *messages) CloseWrite() error { m.sent = append(m.sent, "EOF"); return nil }
func (m *messages) Close() error      { m.sent = append(m.sent, "close"); return nil }

// TestSSHExitStatusBeforeEOF: nothing can be sent to a client that closes the session at the end of its output.
func TestSSHExitStatusBeforeEOF(t *testing.T) {
	t.Parallel()
	m := &messages{}
	s := &session{
		client: &client{Server: &Server{Options: Options{WriteStall: time.Hour}}}, channel: m,
		writing: time.AfterFunc(time.Hour, func() {}),
	}
	defer s.writing.Stop()
	s.finish(7)
	if want := []string{"exit-status 00000007", "EOF", "close"}; !slices.Equal(m.sent, want) {
		t.Errorf("%q, want %q", m.sent, want)
	}
}

// TestSSHSilenceDuringAnswers has silent clients. They are disconnected unless they have sent a complete request and
// wait for its answer.
func TestSSHSilenceDuringAnswers(t *testing.T) {
	t.Parallel()
	for _, push := range []bool{false, true} {
		core := &gateway.Gateway{
			Lanes:     admit.NewLanes(admit.Sizes{Small: 2, Hit: 2, Cold: 2, Push: 2}),
			Memory:    admit.NewBudget("requests", 1<<20),
			ReadStall: time.Hour, MaxBody: 1 << 20,
		}
		near, far := net.Pipe()
		defer far.Close()
		s := &session{
			client: &client{
				wire:   &wireConn{Conn: near, backlog: backlog{all: new(atomic.Int64)}},
				Server: &Server{Options: Options{Gateway: core, WriteStall: time.Hour}},
			},
			ctx: t.Context(), channel: takes{}, input: bufio.NewReader(strings.NewReader("done")),
			reading: time.AfterFunc(time.Hour, func() {}), writing: time.AfterFunc(time.Hour, func() {}),
		}
		defer s.writing.Stop()
		defer s.reading.Stop()
		op := gateway.Fetch
		if push {
			op = gateway.Push
		}
		q := s.begin(op)
		seat, err := core.Lanes.Small.Enter("alice")
		if err != nil {
			t.Fatal(err)
		}
		from := s.source(s.input)
		from.Stateful = true
		body, err := q.StreamBody(from)
		if err != nil {
			t.Fatal(err)
		}
		response := gateway.NewResponse(&q.Request, &sink{q: q}, seat, body)
		// limited does one step, and reports whether the client then has to send something in time.
		limited := func(err error) bool {
			if err != nil {
				t.Error(err)
			}
			return s.reading.Stop()
		}
		read := func() error { _, err := body.Read(make([]byte, 1)); return err }
		write := func() error { _, err := response.Write([]byte("x")); return err }
		if !limited(read()) {
			t.Errorf("push = %v: a client with an incomplete request has no limit, want one", push)
		}
		s.reading.Reset(time.Hour)
		if got := limited(write()); got == push {
			t.Errorf("push %v: after a line of the response the client is limited: %v, want %v", push, got, !push)
		}
		for _, next := range []func() error{func() error { return response.StartBulk(true) }, write} {
			s.reading.Reset(time.Hour)
			if limited(next()) {
				t.Errorf("push = %v: a client that waits for a pack has a limit, want none", push)
			}
		}
		seat.Leave()
	}
}

// TestBacklog fills the backlog. Reads make room for more, and each session keeps its minimum.
func TestBacklog(t *testing.T) {
	t.Parallel()
	var all atomic.Int64
	b, other := backlog{all: &all}, backlog{all: &all}
	for range 1000 { // a push in small packets
		if err := b.received(1<<20, 1); err != nil {
			t.Fatal(err)
		}
		b.read(1 << 18)
	}
	for range 3 { // unread bytes
		if err := b.received(2<<20, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.received(2<<20+1, 1); err == nil {
		t.Error("error of a full backlog = nil, want one")
	}
	b.ended()
	if err := b.received(1, 1); err != nil {
		t.Errorf("received error = %v, want none", err)
	}
	all.Add(allBacklog)
	if err := b.received(1, 1); err == nil {
		t.Error("error of the full backlog of all sessions = nil, want one")
	}
	if err := other.received(leastBacklog, 1); err != nil {
		t.Errorf("error within the minimum of a session = %v, want none", err)
	}
	b.close()
	other.close()
	if err := b.received(1<<30, 1); err != nil || all.Load() != allBacklog {
		t.Errorf("error = %v, bytes left = %d, want none and 0", err, all.Load()-allBacklog)
	}
}
