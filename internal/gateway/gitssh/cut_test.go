package gitssh_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
	"github.com/packhorse-git/packhorse/internal/node"
)

// running is a session of a client that has sent a command, and goes on as the test says.
type running struct {
	*ssh.Session
	in     io.WriteCloser
	stderr bytes.Buffer
}

// start starts a command, or with "" only opens a session.
func (s *sshServer) start(command string) *running {
	s.t.Helper()
	session, err := s.mustDial(nil).NewSession()
	if err != nil {
		s.t.Fatal(err)
	}
	r := &running{Session: session}
	session.Stdout, session.Stderr = io.Discard, &r.stderr
	if r.in, err = session.StdinPipe(); err != nil {
		s.t.Fatal(err)
	}
	if err := session.Setenv("GIT_PROTOCOL", "version=2"); err != nil {
		s.t.Fatal(err)
	}
	if command == "" {
		err = session.Shell()
	} else {
		err = session.Start(command)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// TestSSHSilentBetweenRequests: a client that runs a hook, or indexes a pack, may be silent for longer than a
// connection may be idle.
func TestSSHSilentBetweenRequests(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, func(o *gitssh.Options) {
		o.Idle, o.Auth = 500*time.Millisecond, writers{} // also between the login and the command
	}, counting())
	push, fetch := s.start("git-receive-pack 'app'"), s.start("git-upload-pack 'app'")
	_ = s.mustDial(nil).Wait() // the server closes it, so a connection may not be idle for longer
	for command, r := range map[string]*running{"push": push, "fetch": fetch} {
		if _, err := io.WriteString(r.in, "0000"); err != nil {
			t.Errorf("%s: write error = %v, want none", command, err)
		}
		if err := r.Wait(); err != nil {
			t.Errorf("%s: error = %v, want none: %s", command, err, &r.stderr)
		}
	}
}

// TestSSHCut ends sessions. The users see the reason, and the exit status is not zero.
func TestSSHCut(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{}, 1)
	waits := &fakeNode{
		advertise: func(node.Session) ([]byte, error) { return []byte("hello"), nil },
		serve: func(ctx context.Context, _ io.Reader, _ node.ResponseWriter) (node.Outcome, error) {
			entered <- struct{}{}
			<-ctx.Done()
			return node.Outcome{}, ctx.Err()
		},
	}
	for name, c := range map[string]struct {
		change  func(*gitssh.Options)
		command string
		input   string
		want    string
	}{
		"idle": {
			func(o *gitssh.Options) { o.SessionIdle = 50 * time.Millisecond }, "git-receive-pack 'app'", "",
			"nothing was received for 50ms",
		},
		"read_stall": {
			func(o *gitssh.Options) { o.ReadStall = 50 * time.Millisecond }, "git-upload-pack 'app'",
			lines("command=fetch"),
			"the rest of the request was not received in time",
		},
		"shutdown": {nil, "git-upload-pack 'app'", lines("command=fetch", "flush"),
			"the server is shutting down; try again"},
	} {
		s := serveSSH(t, func(o *gitssh.Options) {
			o.Auth = writers{}
			if c.change != nil {
				c.change(o)
			}
		}, waits)
		r := s.start(c.command)
		if _, err := io.WriteString(r.in, c.input); err != nil {
			t.Errorf("WriteString error = %v, want none", err)
		}
		if name == "shutdown" {
			<-entered
			over, cancel := context.WithCancel(t.Context())
			cancel()
			go s.ssh.Shutdown(over)
		}
		err := r.Wait()
		if exit, ok := errors.AsType[*ssh.ExitError](err); !ok || exit.ExitStatus() != 1 {
			t.Errorf("%s: error = %v, want exit status 1", name, err)
		}
		if want := "packhorse: session closed: " + c.want; !strings.Contains(r.stderr.String(), want) {
			t.Errorf("%s: %q, want %q", name, &r.stderr, want)
		}
		if n := s.value("packhorse_ssh_sessions_cut_total{reason=" + name + "}"); n != 1 {
			t.Errorf("%s: counted sessions = %v, want 1", name, n)
		}
	}
}
