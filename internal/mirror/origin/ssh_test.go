package origin

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// sshServer is an SSH server that runs commands with a shell, like sshd.
type sshServer struct {
	t *testing.T
	net.Listener
	root       string // of the repositories
	keyFile    string // of the client
	knownHosts string
	client     ssh.PublicKey // that may log in
	hostKeys   []ssh.Signer
	v0         bool         // it does not accept GIT_PROTOCOL
	maxOpen    atomic.Int32 // maximum number of sessions of a connection; 0 means no limit
	run        atomic.Value // a string that replaces each command, if not empty

	connections, sessions atomic.Int32
	running               sync.WaitGroup
	mu                    sync.Mutex
	open                  []net.Conn
	commands              []string
}

func newSSHKey(t *testing.T) (ssh.Signer, []byte) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer, pem.EncodeToMemory(block)
}

func newSSHServer(t *testing.T) *sshServer {
	t.Helper()
	s := &sshServer{t: t, root: t.TempDir()}
	host, _ := newSSHKey(t)
	client, text := newSSHKey(t)
	s.hostKeys, s.client, s.keyFile = []ssh.Signer{host}, client.PublicKey(), writePrivate(t, string(text))
	var err error
	if s.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s.knownHosts = writePrivate(t, knownhosts.Line([]string{s.Addr().String()}, host.PublicKey())+"\n")
	s.running.Go(s.accept)
	t.Cleanup(func() {
		s.Close()
		s.disconnect()
		s.running.Wait()
	})
	return s
}

// disconnect closes all connections.
func (s *sshServer) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.open {
		c.Close()
	}
	s.open = nil
}

func (s *sshServer) accept() {
	for {
		conn, err := s.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.open = append(s.open, conn)
		s.mu.Unlock()
		s.running.Go(func() { s.serve(conn) })
	}
}

func (s *sshServer) serve(conn net.Conn) {
	config := &ssh.ServerConfig{PublicKeyCallback: func(c ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if c.User() == "git" && bytes.Equal(key.Marshal(), s.client.Marshal()) {
			return nil, nil
		}
		return nil, errors.New("unknown key")
	}}
	for _, key := range s.hostKeys {
		config.AddHostKey(key)
	}
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		conn.Close()
		return
	}
	s.connections.Add(1)
	s.running.Go(func() { ssh.DiscardRequests(requests) })
	var count atomic.Int32
	for c := range channels {
		if n := count.Add(1); s.maxOpen.Load() > 0 && n > s.maxOpen.Load() {
			count.Add(-1)
			c.Reject(ssh.Prohibited, "too many sessions")
			continue
		}
		channel, requests, err := c.Accept()
		if err != nil {
			return
		}
		s.running.Go(func() { s.session(channel, requests); count.Add(-1) })
	}
}

func (s *sshServer) session(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	s.sessions.Add(1)
	env := gittest.Env()
	for r := range requests {
		var value struct{ Name, Value string }
		switch {
		case r.Type == "env" && !s.v0:
			ssh.Unmarshal(r.Payload, &value)
			env = append(env, value.Name+"="+value.Value)
			r.Reply(true, nil)
		case r.Type == "exec":
			r.Reply(true, nil)
			var command struct{ Text string }
			ssh.Unmarshal(r.Payload, &command)
			s.mu.Lock()
			s.commands = append(s.commands, command.Text)
			s.mu.Unlock()
			if text, _ := s.run.Load().(string); text != "" {
				command.Text = text
			}
			s.exec(channel, command.Text, env)
			return
		default:
			r.Reply(false, nil)
		}
	}
}

func (s *sshServer) exec(channel ssh.Channel, command string, env []string) {
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir, cmd.Env = s.root, env
	cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
	stdin, err := cmd.StdinPipe()
	if err != nil || cmd.Start() != nil {
		return
	}
	go func() {
		io.Copy(stdin, channel)
		stdin.Close()
	}()
	cmd.Wait()
	status := struct{ Status uint32 }{uint32(cmd.ProcessState.ExitCode())}
	channel.SendRequest("exit-status", false, ssh.Marshal(&status))
}

// origin returns a client of the server's repositories.
func (s *sshServer) origin(change ...func(*Options)) *Origin {
	s.t.Helper()
	o := Options{URL: &url.URL{Scheme: "ssh", User: url.User("git"), Host: s.Addr().String(), Path: s.root},
		SSH: &SSHOptions{KeyFile: s.keyFile, KnownHosts: s.knownHosts}, Log: discard}
	for _, f := range change {
		f(&o)
	}
	client, err := New(o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { client.Close() })
	return client
}

func TestSSH(t *testing.T) {
	t.Parallel()
	for _, v0 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v0=%v", v0), func(t *testing.T) {
			t.Parallel()
			s := newSSHServer(t)
			s.v0 = v0
			const name = "team's $(touch injected); `touch injected`!.git"
			r := gittest.InitAt(t, filepath.Join(s.root, name))
			tip := r.Commit("one")
			r.Git("update-ref", "refs/heads/main", tip.String())
			r.Git("tag", "-a", "-m", "x", "v1", tip.String())
			client := s.origin()
			want := protocol.V2
			if v0 {
				want = protocol.V0
			}
			refs, err := client.Refs(t.Context(), name, Secret{}, []string{"refs/heads/"})
			if err != nil || refs.Version != want || refs.Format != git.SHA1 {
				t.Fatalf("Refs() = %+v, error %v, want version %v", refs, err, want)
			}
			list, err := refs.List()
			if err != nil || len(list.Refs) != 1 || list.Refs[0].ID != tip || list.Head != list.Refs[0].Name {
				t.Errorf("List() = %+v, error %v, want the branch at %s", list, err, tip)
			}
			pack, err := client.Fetch(t.Context(), name, Secret{}, FetchRequest{Format: git.SHA1, Wants: []git.ObjectID{tip}})
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(pack)
			if err = errors.Join(err, pack.Close()); err != nil || !bytes.HasPrefix(text, []byte("PACK")) {
				t.Errorf("pack = %.10q, error %v, want a pack", text, err)
			}
			if _, err := os.Stat(filepath.Join(s.root, "injected")); err == nil {
				t.Error("a command in the path was run")
			}
			if got := s.connections.Load(); got != 1 {
				t.Errorf("connections = %d, want 1 for all sessions", got)
			}
			for _, command := range s.commands {
				if !strings.HasPrefix(command, "git-upload-pack '/") {
					t.Errorf("command = %q, want git-upload-pack and a quoted path", command)
				}
			}
			if client.CanRelay() {
				t.Error("CanRelay() = true, want false")
			}
			// The server closes connections, as after a restart.
			s.disconnect()
			if _, err := client.Refs(t.Context(), name, Secret{}, nil); err != nil {
				t.Errorf("Refs() after the connection was lost = %v, want none", err)
			}
			if _, err := client.Refs(t.Context(), "missing", Secret{}, nil); !fault.Is(err, fault.NotFound) || IsDown(err) {
				t.Errorf("Refs() of a missing repository = %v, want not found", err)
			}
		})
	}
}

func TestSSHHostKeys(t *testing.T) {
	t.Parallel()
	s := newSSHServer(t)
	gittest.InitAt(t, filepath.Join(s.root, "r"))
	other, _ := newSSHKey(t)
	good := s.hostKeys[0].PublicKey()
	address := []string{s.Addr().String()}
	host, port, _ := net.SplitHostPort(s.Addr().String())
	for name, test := range map[string]struct{ lines, want string }{
		"unknown":   {knownhosts.Line([]string{"other.example"}, good), "ssh-keyscan -p " + port + " " + host},
		"same host": {knownhosts.Line([]string{host}, good), "ssh-keyscan -p " + port}, // another port
		"changed": {"# c\n" + knownhosts.Line(address, other.PublicKey()), ":2 has " +
			ssh.FingerprintSHA256(other.PublicKey())},
		"revoked": {knownhosts.Line(address, good) + "\n@revoked * " + string(ssh.MarshalAuthorizedKey(good)), "revoked"},
		"empty":   {"", "ssh-keyscan"},
		"known":   {knownhosts.Line(address, other.PublicKey()) + "\n" + knownhosts.Line(address, good), ""},
		"hashed":  {knownhosts.Line([]string{knownhosts.HashHostname(knownhosts.Normalize(address[0]))}, good), ""},
	} {
		client := s.origin(func(o *Options) { o.SSH.KnownHosts = writePrivate(t, test.lines+"\n") })
		_, err := client.Refs(t.Context(), "r", Secret{}, nil)
		switch {
		case test.want == "":
			if err != nil {
				t.Errorf("%s: error = %v, want none", name, err)
			}
		case !fault.Is(err, fault.Unavailable) || IsDown(err) || !strings.Contains(err.Error(), test.want):
			t.Errorf("%s: error = %v, want unavailable, no outage, with %q", name, err, test.want)
		}
	}
	// The file is read again for each connection. Nothing is sent to a host that is not known.
	file := writePrivate(t, "")
	client := s.origin(func(o *Options) { o.SSH.KnownHosts = file })
	before := s.connections.Load()
	if _, err := client.Refs(t.Context(), "r", Secret{}, nil); err == nil || s.connections.Load() != before {
		t.Errorf("error of an unknown host = %v, logins = %d, want an error without a login", err,
			s.connections.Load()-before)
	}
	if err := os.WriteFile(file, []byte(knownhosts.Line(address, good)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Refs(t.Context(), "r", Secret{}, nil); err != nil {
		t.Errorf("error after the key was added = %v, want none", err)
	}
	// Another key of a kind that the server prefers does not matter.
	if got := knownAlgorithms(mustKnownHosts(t, file), address[0], s.Addr()); len(got) != 1 ||
		got[0] != ssh.KeyAlgoED25519 {
		t.Errorf("knownAlgorithms() = %q, want only that of the known key", got)
	}
}

func mustKnownHosts(t *testing.T, file string) ssh.HostKeyCallback {
	t.Helper()
	check, err := knownhosts.New(file)
	if err != nil {
		t.Fatal(err)
	}
	return check
}

func TestSSHRefusals(t *testing.T) {
	t.Parallel()
	s := newSSHServer(t)
	_, text := newSSHKey(t)
	unknown := writePrivate(t, string(text))
	_, err := s.origin(func(o *Options) { o.SSH.KeyFile = unknown }).Refs(t.Context(), "r", Secret{}, nil)
	if !fault.Is(err, fault.Unavailable) || IsDown(err) || !strings.Contains(err.Error(), "refused the mirror's SSH key") {
		t.Errorf("error with an unknown key = %v, want unavailable and no outage", err)
	}
	if err := os.Chmod(unknown, 0o644); err != nil {
		t.Fatal(err)
	}
	u := &url.URL{Scheme: "ssh", Host: s.Addr().String(), Path: "/"}
	for name, o := range map[string]*SSHOptions{"nothing": nil, "public key file": {unknown, s.knownHosts},
		"no key": {s.knownHosts, s.knownHosts}, "no known hosts": {s.keyFile, "/nonexistent"}} {
		if _, err := New(Options{URL: u, SSH: o, Log: discard}); err == nil || strings.Contains(err.Error(), "PRIVATE KEY") {
			t.Errorf("%s: New() = %v, want an error", name, err)
		}
	}
	for script, want := range map[string]fault.Kind{
		"echo 'ERROR: Repository not found.' >&2; exit 1":                      fault.NotFound,
		"echo 'remote: The project could not be found' >&2; exit 1":            fault.NotFound,
		"echo 'fatal: r does not appear to be a git repository' >&2; exit 128": fault.NotFound,
		"echo 'remote: You are not allowed to download code.' >&2; exit 1":     fault.Unavailable,
		"printf '0020ERR no repository r is there'; exit 1":                    fault.NotFound,
		"printf 'ERR access denied' | sed 's/^/0015/'; exit 1":                 fault.Unavailable,
	} {
		s.run.Store(script)
		if _, err := s.origin().Refs(t.Context(), "r", Secret{}, nil); !fault.Is(err, want) || IsDown(err) {
			t.Errorf("%s: error = %v, want %v and no outage", script, err, want)
		}
	}
	for _, script := range []string{"exit 1", "echo 'Internal API error' >&2; exit 1", "kill -9 $$", "exit 0"} {
		s.run.Store(script)
		if _, err := s.origin().Refs(t.Context(), "r", Secret{}, nil); !fault.Is(err, fault.Unavailable) || !IsDown(err) {
			t.Errorf("%s: error = %v, want an outage", script, err)
		}
	}
}

func TestSSHSessions(t *testing.T) {
	t.Parallel()
	s := newSSHServer(t)
	s.maxOpen.Store(3)
	gittest.InitAt(t, filepath.Join(s.root, "r"))
	client := s.origin(func(o *Options) { o.Requests = 16 })
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			if _, err := client.Refs(t.Context(), "r", Secret{}, nil); err != nil {
				t.Errorf("Refs() = %v, want none", err)
			}
		})
	}
	all.Wait()
	// A silent origin: the time limit and the caller's context end the request.
	s.maxOpen.Store(0)
	s.run.Store("cat >/dev/null")
	client = s.origin(func(o *Options) { o.AnswerTimeout = 50 * time.Millisecond })
	if _, err := client.Refs(t.Context(), "r", Secret{}, nil); !IsDown(err) {
		t.Errorf("error of a silent origin = %v, want an outage", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	client = s.origin()
	all.Go(func() {
		if _, err := client.Refs(ctx, "r", Secret{}, nil); !fault.Is(err, fault.Cancelled) {
			t.Errorf("error after the caller left = %v, want cancelled", err)
		}
	})
	before := s.sessions.Load()
	gittest.WaitFor(t, "the session", func() bool { return s.sessions.Load() > before })
	cancel()
	all.Wait()
	// A listener without SSH.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client = s.origin(func(o *Options) { o.URL.Host, o.AnswerTimeout = silent.Addr().String(), 50*time.Millisecond })
	if _, err := client.Refs(t.Context(), "r", Secret{}, nil); !IsDown(err) {
		t.Errorf("error of a server without SSH = %v, want an outage", err)
	}
	if got, want := quotePath("/a'b!c d"), `'/a'\''b'\!'c d'`; got != want {
		t.Errorf("quotePath() = %s, want %s", got, want)
	}
}
