package gitssh_test

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
	"github.com/packhorse-git/packhorse/internal/node"
)

// TestSSHSessionAfterSession starts a session after the end of another one, which must have released its place.
func TestSSHSessionAfterSession(t *testing.T) {
	t.Parallel()
	client := serveSSH(t, func(o *gitssh.Options) { o.Sessions = 1 }, brackets("")).mustDial(nil)
	for i := range 200 {
		if out, _, status := run(t, client, "version=2", "git-upload-pack 'app'", ""); out != "v2:" || status != 0 {
			t.Fatalf("session %d: output = %q, status = %d, want v2: and 0", i, out, status)
		}
	}
	// Sessions that the client closes, also with an unread command.
	for i := range 200 {
		session, err := client.NewSession()
		if err != nil {
			t.Fatalf("session %d: error = %v, want none", i, err)
		}
		if i%2 == 0 {
			if _, err := session.SendRequest("exec", false,
				ssh.Marshal(struct{ Command string }{"git-upload-pack 'app'"})); err != nil {
				t.Fatal(err)
			}
		}
		session.Close()
	}
}

// TestSSHSessionBehindEnding: a session that the client has closed holds its place for as long as its command still
// runs, and the next one waits for it.
func TestSSHSessionBehindEnding(t *testing.T) {
	t.Parallel()
	var running, most atomic.Int64
	begun, release := make(chan struct{}), make(chan struct{})
	n := brackets("")
	n.serve = func(_ context.Context, request io.Reader, _ node.ResponseWriter) (node.Outcome, error) {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		begun <- struct{}{}
		<-release // even if its client leaves
		return node.Outcome{}, nil
	}
	client := serveSSH(t, func(o *gitssh.Options) { o.Sessions = 1 }, n).mustDial(nil)
	next := make(chan *ssh.Session, 1)
	for range 5 {
		var session *ssh.Session
		select {
		case session = <-next:
		default:
			var err error
			if session, err = client.NewSession(); err != nil {
				t.Fatal(err)
			}
		}
		session.Stdin = strings.NewReader(lines("command=fetch", "delim", "want x", "flush"))
		if err := session.Setenv("GIT_PROTOCOL", "version=2"); err != nil {
			t.Fatal(err)
		}
		if err := session.Start("git-upload-pack 'app'"); err != nil {
			t.Fatal(err)
		}
		<-begun
		if _, err := client.NewSession(); err == nil || !strings.Contains(err.Error(), "too many sessions") {
			t.Fatalf("second session: error = %v, want too many sessions", err)
		}
		session.Close()
		failed := make(chan error, 1)
		go func() {
			session, err := client.NewSession()
			if err == nil {
				next <- session
			}
			failed <- err
		}()
		release <- struct{}{}
		if err := <-failed; err != nil {
			t.Fatalf("session after a closed one: error = %v, want none", err)
		}
	}
	if most.Load() != 1 {
		t.Errorf("sessions at the same time = %d, want 1", most.Load())
	}
}
