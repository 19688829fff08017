package gitssh_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// knownKeys are users by their keys.
type knownKeys struct {
	mu    sync.Mutex
	names map[string]string
}

func (k *knownKeys) set(key ssh.PublicKey, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.names[string(key.Marshal())] = name
}

func (k *knownKeys) Key(_ context.Context, _ string, key ssh.PublicKey, _ netip.Addr) (auth.Identity, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := k.names[string(key.Marshal())]
	if name == "" {
		return auth.Identity{}, false, fault.New(fault.Unauthenticated, "the key is not known")
	}
	return auth.Identity{Name: name, By: "key"}, false, nil
}

func newKey(t *testing.T) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sshServer is a gateway's SSH server on a socket, where alice has a key.
type sshServer struct {
	*server
	ssh   *gitssh.Server
	keys  *knownKeys
	alice ssh.Signer
}

func serveSSH(t *testing.T, change func(*gitssh.Options), nodes ...router.Node) *sshServer {
	t.Helper()
	s := &sshServer{server: &server{t: t, metrics: prometheus.NewRegistry(), log: &lockedBuffer{}}}
	s.alice, s.keys = newKey(t), &knownKeys{names: map[string]string{}}
	s.keys.set(s.alice.PublicKey(), "alice")
	s.pump = bulk.NewPump(bulk.PumpOptions{})
	lanes := admit.NewLanes(admit.Sizes{Small: 100, Hit: 100, Cold: 100, Push: 100})
	memory := admit.NewBudget("requests", 1<<30)
	admit.NewMetrics(lanes, memory, s.metrics)
	s.router = router.New(nil)
	var replicas []*router.Replica
	for i, n := range nodes {
		replicas = append(replicas, &router.Replica{Name: string(rune('a' + i)), Node: n})
	}
	if err := s.router.Set([]router.Route{{Replicas: replicas}}); err != nil {
		t.Fatal(err)
	}
	o := gitssh.Options{
		Gateway: &gateway.Gateway{
			Router: s.router, Pump: s.pump, Lanes: lanes, Memory: memory, Metrics: gateway.NewMetrics(s.metrics),
			Log: slog.New(slog.NewTextHandler(s.log, nil)), MaxBody: 1 << 20, ReadStall: time.Minute,
		},
		HostKeys: []ssh.Signer{newKey(t)}, Keys: s.keys, Agent: "test", Registerer: s.metrics,
		Limits:     gitssh.Limits{Logins: 100, AddressLogins: 100},
		LoginGrace: time.Minute, KeepAlive: time.Minute, Idle: time.Minute, SessionIdle: time.Minute,
		WriteStall: time.Minute, Sessions: 3,
	}
	if change != nil {
		change(&o)
	}
	var err error
	if s.ssh, err = gitssh.New(o); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	served := make(chan error, 1)
	limit := clients.NewLimiter(clients.LimiterOptions{Name: "ssh", Connections: 1000, PerAddress: 1000,
		Metrics: clients.NewMetrics(s.metrics),
		Log:     o.Log})
	go func() { served <- s.ssh.Serve(limit.ByAddress(limit.Listen(l))) }()
	t.Cleanup(func() {
		limit, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.ssh.Shutdown(limit); err != nil {
			t.Errorf("Shutdown error = %v, want none", err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		for _, left := range []string{
			"packhorse_ssh_logins", "packhorse_ssh_sessions",
			"packhorse_lane_running{lane=small}",
			"packhorse_lane_running{lane=hit}", "packhorse_lane_running{lane=cold}",
			"packhorse_lane_running{lane=push}",
		} {
			if n := s.value(left); n != 0 {
				t.Errorf("%s at the end = %v, want 0", left, n)
			}
		}
	})
	return s
}

func (s *sshServer) dial(change func(*ssh.ClientConfig)) (*ssh.Client, error) {
	s.t.Helper()
	c := &ssh.ClientConfig{User: "git", Auth: []ssh.AuthMethod{ssh.PublicKeys(s.alice)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey()}
	if change != nil {
		change(c)
	}
	client, err := ssh.Dial("tcp", s.addr, c)
	if err == nil {
		s.t.Cleanup(func() { client.Close() })
	}
	return client, err
}

func (s *sshServer) mustDial(change func(*ssh.ClientConfig)) *ssh.Client {
	s.t.Helper()
	client, err := s.dial(change)
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// run runs a command with an input, and gives what it says and its exit status.
func run(t *testing.T, client *ssh.Client, version, command, input string) (out, messages string, status int) {
	t.Helper()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if version != "" {
		if err := session.Setenv("GIT_PROTOCOL", version); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr bytes.Buffer
	session.Stdin, session.Stdout, session.Stderr = strings.NewReader(input), &stdout, &stderr
	err = session.Run(command)
	if exit, ok := errors.AsType[*ssh.ExitError](err); ok {
		status = exit.ExitStatus()
	} else if err != nil {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), status
}

func lines(texts ...string) string {
	var b []byte
	for _, s := range texts {
		switch s {
		case "flush":
			b = pktline.AppendFlush(b)
		case "delim":
			b = pktline.AppendDelim(b)
		default:
			b = pktline.AppendLine(b, s)
		}
	}
	return string(b)
}

// brackets answers each request with its bytes between brackets.
func brackets(session string) *fakeNode {
	return &fakeNode{
		advertise: func(s node.Session) ([]byte, error) { return []byte(s.Version.String() + ":"), nil },
		serve: func(_ context.Context, request io.Reader, reply node.ResponseWriter) (node.Outcome, error) {
			text, err := io.ReadAll(request)
			if err != nil {
				return node.Outcome{}, err
			}
			if strings.Contains(string(text), "fail "+session) {
				return node.Outcome{}, fault.New(fault.Unavailable, "this node has failed")
			}
			_, err = io.WriteString(reply, "["+string(text)+"]")
			return node.Outcome{}, err
		},
	}
}

func TestSSHCutsSessionsIntoRequests(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, nil, brackets("a"), brackets("b"))
	client := s.mustDial(nil)
	first, second := lines("command=ls-refs", "delim", "peel", "flush"),
		lines("command=fetch", "delim", "want x", "flush")
	out, _, status := run(t, client, "version=2", "git-upload-pack 'app'", first+second+"0000"+"left over")
	if want := "v2:[" + first + "][" + second + "]"; out != want || status != 0 {
		t.Errorf("%q, status %d; want %q", out, status, want)
	}
	// The end of what the client says is an end, too.
	if out, _, status = run(t, client, "version=2", "git-upload-pack 'app'", first); out != "v2:["+first+"]" ||
		status != 0 {
		t.Errorf("output = %q, status = %d, want the request and 0", out, status)
	}
	// A request that one node fails at is answered by the other.
	broken := lines("command=fetch", "fail a", "flush")
	if out, _, status = run(t, client, "version=2", "git-upload-pack 'app'",
		broken+first); out != "v2:["+broken+"]["+first+"]" || status != 0 {
		t.Errorf("output = %q, status = %d, want both requests and 0", out, status)
	}
	// Both fail: the client gets a protocol error, and the session ends.
	broken = lines("command=fetch", "fail a", "fail b", "flush")
	out, _, status = run(t, client, "version=2", "git-upload-pack 'app'", broken+first)
	if !strings.HasPrefix(out, "v2:") || !strings.Contains(out, "ERR this node has failed") || status != 1 {
		t.Errorf("output = %q, status = %d, want a protocol error and 1", out, status)
	}
	// Invalid and incomplete requests.
	for in, want := range map[string]string{
		"zzzz": "ERR the request", "0003": "ERR the request", "00": "ERR the request",
		lines("command=fetch"):                                "ERR the request",
		lines("command=fetch", strings.Repeat("x", 60000)):    "ERR the request",
		strings.Repeat(lines(strings.Repeat("x", 60000)), 20): "ERR the request's body is longer",
	} {
		out, _, status = run(t, client, "version=2", "git-upload-pack 'app'", in)
		if !strings.Contains(out, want) || status != 1 {
			t.Errorf("%.20q: %.200q, status %d; want %q", in, out, status, want)
		}
	}
	if !strings.Contains(s.log.String(), "transport=ssh") || !strings.Contains(s.log.String(), "user=alice") {
		t.Errorf("log = %s, want transport=ssh and user=alice", s.log)
	}
}

// TestSSHRunning: a connection with a running command is not idle, and so not closed for another; one without is.
func TestSSHRunning(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, nil, brackets("a"))
	client := s.mustDial(nil)
	want := func(running, idle float64) {
		t.Helper()
		is := func() bool {
			return s.value("packhorse_connections{listener=ssh,state=running}") == running &&
				s.value("packhorse_connections{listener=ssh,state=idle}") == idle
		}
		if !eventually(is) {
			t.Errorf("connections differ, want %v running and %v idle", running, idle)
		}
	}
	want(0, 1)
	var inputs []io.Closer
	for range 2 {
		session, err := client.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		input, err := session.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := session.Start("git-upload-pack 'app'"); err != nil {
			t.Fatal(err)
		}
		inputs = append(inputs, input)
		want(1, 0)
	}
	inputs[0].Close()
	if !eventually(func() bool { return s.value("packhorse_ssh_sessions") == 1 }) {
		t.Errorf("sessions = %v, want 1: one ends with its input", s.value("packhorse_ssh_sessions"))
	}
	want(1, 0)
	inputs[1].Close()
	want(0, 1)
}

// TestSSHSilentIsIdle: a client that lets its command wait for long counts as idle.
func TestSSHSilentIsIdle(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, func(o *gitssh.Options) { o.Idle = time.Second }, brackets("a"))
	session, err := s.mustDial(nil).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	input, err := session.StdinPipe()
	if err == nil {
		err = session.Start("git-upload-pack 'app'")
	}
	if err != nil {
		t.Fatal(err)
	}
	idle := func() bool { return s.value("packhorse_connections{listener=ssh,state=idle}") == 1 }
	running := func() bool { return s.value("packhorse_connections{listener=ssh,state=running}") == 1 }
	if !eventually(running) || !eventually(idle) || s.value("packhorse_ssh_sessions") != 1 {
		t.Error("the waiting session is not running, not idle again, or has ended, want it idle")
	}
	input.Close()
	if err := session.Wait(); err != nil {
		t.Errorf("Wait error = %v, want none", err)
	}
	if !eventually(func() bool { return idle() && !running() }) { // the client hears of the end before the server notes it
		t.Errorf("at the end: idle = %v, running = %v, want true and false", idle(), running())
	}
}

// TestSSHExitStatus: a client that closes the session at the end of its output has heard the exit status.
func TestSSHExitStatus(t *testing.T) {
	t.Parallel()
	client := serveSSH(t, nil, brackets("")).mustDial(nil)
	for range 100 {
		channel, requests, err := client.OpenChannel("session", nil)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := channel.SendRequest("exec", true,
			ssh.Marshal(struct{ Command string }{"git-upload-pack 'app'"})); err != nil || !ok {
			t.Fatalf("exec = %v, %v, want true", ok, err)
		}
		if err := channel.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, channel); err != nil {
			t.Fatal(err)
		}
		channel.Close()
		if r := <-requests; r == nil || r.Type != "exit-status" {
			t.Fatalf("request = %v, want the exit status", r)
		}
	}
}

// TestSSHVersions: the node hears which version a pusher asks for, and answers version 2 in version 0, as git does.
func TestSSHVersions(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, func(o *gitssh.Options) { o.Auth = writers{} }, counting())
	client := s.mustDial(nil)
	for asked, want := range map[string]string{
		"": "v0", "version=0": "v0", "version=1": "v1", "version=2": "v2", "version=2:version=1": "v2",
		"x:version=2": "v2", "version=3": "v0",
	} {
		out, _, status := run(t, client, asked, "git-receive-pack 'app'", "0000")
		if !strings.HasPrefix(out, "git-receive-pack "+want) || status != 0 {
			t.Errorf("GIT_PROTOCOL=%s: %q, status %d; want %s", asked, out, status, want)
		}
	}
}

func TestSSHKnownUsers(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, nil, brackets(""))
	if _, err := s.dial(func(c *ssh.ClientConfig) { c.Auth = []ssh.AuthMethod{ssh.PublicKeys(newKey(t))} }); err == nil {
		t.Error("login with an unknown key: error = nil, want one")
	}
	if _, err := s.dial(func(c *ssh.ClientConfig) { c.Auth, c.User = nil, gitssh.AnonymousLogin }); err == nil {
		t.Error("anonymous login: error = nil, want one")
	}
	if _, err := s.dial(func(c *ssh.ClientConfig) { c.Auth = []ssh.AuthMethod{ssh.Password("x")} }); err == nil {
		t.Error("login with a password: error = nil, want one")
	}
	// A public key without the private one is not accepted.
	bob := newKey(t)
	s.keys.set(bob.PublicKey(), "bob")
	if _, err := s.dial(func(c *ssh.ClientConfig) {
		c.Auth = []ssh.AuthMethod{ssh.PublicKeys(otherSigner{s.alice,
			bob})}
	}); err == nil {
		t.Error("login with a signature of another key: error = nil, want one")
	}
	// A removed key is not accepted for further sessions of a connection.
	client := s.mustDial(nil)
	if out, _, status := run(t, client, "version=2", "git-upload-pack 'app'", ""); out != "v2:" || status != 0 {
		t.Errorf("output = %q, status = %d, want v2: and 0", out, status)
	}
	s.keys.set(s.alice.PublicKey(), "")
	if out, _, status := run(t, client, "version=2", "git-upload-pack 'app'", ""); !strings.Contains(out,
		"ERR the key is not known") || status != 1 {
		t.Errorf("output = %q, status = %d, want that the key is not known and 1", out, status)
	}
	s.keys.set(s.alice.PublicKey(), "carol")
	if out, _, status := run(t, client, "version=2", "git-upload-pack 'app'", ""); !strings.Contains(out,
		"ERR the key now belongs to another user") || status != 1 {
		t.Errorf("output = %q, status = %d, want that the key has another owner and 1", out, status)
	}
}

// otherSigner shows one key and signs with another.
type otherSigner struct{ shown, signs ssh.Signer }

func (o otherSigner) PublicKey() ssh.PublicKey { return o.shown.PublicKey() }
func (o otherSigner) Sign(r io.Reader, data []byte) (*ssh.Signature, error) {
	return o.signs.Sign(r, data)
}

func TestSSHAnonymous(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, func(o *gitssh.Options) { o.Anonymous = true }, brackets(""))
	none := func(user string) func(c *ssh.ClientConfig) {
		return func(c *ssh.ClientConfig) { c.Auth, c.User = nil, user }
	}
	if _, err := s.dial(none("git")); err == nil {
		t.Error("login without a key and the anonymous name: error = nil, want one")
	}
	client := s.mustDial(none(gitssh.AnonymousLogin))
	if out, _, status := run(t, client, "version=2", "git-upload-pack 'app'", ""); out != "v2:" || status != 0 {
		t.Errorf("output = %q, status = %d, want v2: and 0", out, status)
	}
	if out, _, status := run(t, client, "", "git-receive-pack 'app'", ""); !strings.Contains(out,
		"ERR this server does not accept pushes") || status != 1 {
		t.Errorf("output = %q, status = %d, want that pushes are refused and 1", out, status)
	}
}

func TestSSHRefusesOtherCommands(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, nil, brackets(""))
	client := s.mustDial(nil)
	if _, err := client.Dial("tcp", "127.0.0.1:1"); err == nil {
		t.Error("forwarded connection: error = nil, want one")
	}
	if _, err := client.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Error("forwarded port: error = nil, want one")
	}
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := session.RequestPty("xterm", 80, 25, nil); err == nil {
		t.Error("terminal: error = nil, want one")
	}
	if err := session.RequestSubsystem("sftp"); err == nil {
		t.Error("subsystem: error = nil, want one")
	}
	if err := session.Setenv("LD_PRELOAD", "x"); err == nil {
		t.Error("LD_PRELOAD: error = nil, want one")
	}
	if err := session.Setenv("GIT_PROTOCOL", strings.Repeat("x", 2000)); err == nil {
		t.Error("long GIT_PROTOCOL: error = nil, want one")
	}
	if ok, err := session.SendRequest("auth-agent-req@openssh.com", true, nil); ok || err != nil {
		t.Errorf("agent forwarding = %v, %v, want false", ok, err)
	}
	var stderr bytes.Buffer
	session.Stderr = &stderr
	if err := session.Shell(); err != nil {
		t.Fatal(err)
	}
	if err := session.Wait(); err != nil || !strings.HasPrefix(stderr.String(), "Hi alice!") {
		t.Errorf("error = %v, greeting = %q, want Hi alice!", err, stderr.String())
	}
	if err := session.Start("git-upload-pack 'app'"); err == nil {
		t.Error("second command: error = nil, want one")
	}
	// No more sessions at once than are allowed.
	for range 3 {
		one, err := client.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		defer one.Close()
	}
	if _, err := client.NewSession(); err == nil || !strings.Contains(err.Error(), "too many sessions") {
		t.Errorf("fourth session: error = %v, want too many sessions", err)
	}
}

// TestSSHUnreadBytes has a client that sends many small packets that are not read. It is disconnected.
func TestSSHUnreadBytes(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, nil, brackets(""))
	session, err := s.mustDial(nil).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	in, err := session.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Setenv("GIT_PROTOCOL", "version=2"); err != nil { // the session is there, and has no command
		t.Fatal(err)
	}
	sent := 0
	for ; err == nil && sent < 1<<20; sent++ {
		_, err = in.Write([]byte{0})
	}
	if err == nil {
		t.Errorf("packets sent = %d without an error, want one", sent)
	}
}

// TestSSHSilent connects without a login, like a health check. It gets the greeting and is not logged.
func TestSSHSilent(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, nil, brackets(""))
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "SSH-2.0-") {
		t.Errorf("greeting = %q, error = %v, want SSH-2.0-", line, err)
	}
	conn.Close()
	if !eventually(func() bool { return s.value("packhorse_ssh_connections_total{result=silent}") == 1 }) {
		t.Error("connections counted as silent = 0, want 1")
	}
	if n := s.value("packhorse_ssh_connections_total{result=handshake}"); n != 0 {
		t.Errorf("failed handshakes = %v, want 0", n)
	}
}

func TestSSHBadBanners(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, nil, brackets(""))
	banners := []string{
		"GET / HTTP/1.1\r\n\r\n", "SSH-1.5-old\r\n", "SSH-2.0\r\n", "\n", "ssh-2.0-x\r\n",
		strings.Repeat("SSH-2.0-", 100), strings.Repeat("x", 1<<16),
		strings.Repeat("\n", 1<<16), "SSH-2.0-a\x00b\r\n", "\x16\x03\x01\x02\x00",
	}
	for _, banner := range banners {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, banner)
		_, _ = io.Copy(io.Discard, conn) // to the end
		conn.Close()
	}
	want := float64(len(banners))
	if !eventually(func() bool { return s.value("packhorse_ssh_connections_total{result=banner}") == want }) {
		t.Errorf("%v banners were refused, want %v", s.value("packhorse_ssh_connections_total{result=banner}"), want)
	}
	// One that comes byte by byte, and whose key exchange is garbage.
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, b := range []byte("SSH-2.0-slow\r\n\xff\xff\xff\xff\xff\xff\xff\xff") {
		_, _ = conn.Write([]byte{b})
	}
	_, _ = io.Copy(io.Discard, conn)
	s.mustDial(nil)
}

// TestSSHManyWithoutLogin opens thousands of connections without a login, which are refused early. A client with a key
// can log in when some of them have ended.
func TestSSHManyWithoutLogin(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, func(o *gitssh.Options) { o.Limits.Logins, o.Limits.AddressLogins = 8, 8 }, brackets(""))
	var open []net.Conn
	most := 0.0
	for range 2000 {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		if open = append(open, conn); len(open) > 50 {
			open[0].Close()
			open = open[1:]
		}
		most = max(most, s.value("packhorse_ssh_logins"))
	}
	if most > 8 {
		t.Errorf("%v logins at once, want at most 8", most)
	}
	for _, conn := range open {
		conn.Close()
	}
	var err error
	if !eventually(func() bool { _, err = s.dial(nil); return err == nil }) {
		t.Errorf("login after the others have ended: error = %v, want none", err)
	}
}

func TestSSHLoginGrace(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, func(o *gitssh.Options) { o.LoginGrace = 50 * time.Millisecond }, brackets(""))
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "SSH-2.0-x\r\n")
	if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Log(err) // reset
	}
	if !eventually(func() bool { return s.value("packhorse_ssh_connections_total{result=timeout}") == 1 }) {
		t.Error("connections counted as timeout = 0, want 1")
	}
}

// TestSSHClientsThatStall has clients that neither read nor write. They lose their places after a time limit.
func TestSSHClientsThatStall(t *testing.T) {
	t.Parallel()
	n := &fakeNode{
		advertise: func(node.Session) ([]byte, error) { return []byte("hello"), nil },
		serve: func(_ context.Context, request io.Reader, reply node.ResponseWriter) (node.Outcome, error) {
			if err := reply.StartBulk(false); err != nil {
				return node.Outcome{}, err
			}
			for range 1000 {
				if _, err := reply.Write(make([]byte, 64<<10)); err != nil {
					return node.Outcome{}, err
				}
			}
			return node.Outcome{}, nil
		},
	}
	s := serveSSH(t, func(o *gitssh.Options) {
		o.WriteStall, o.ReadStall, o.SessionIdle = 300*time.Millisecond, 300*time.Millisecond, 500*time.Millisecond
	}, n)
	for _, input := range []string{lines("command=fetch", "flush"), lines("command=fetch"), ""} {
		if err := s.begin(input); err != nil {
			t.Logf("%q: cut before it began: %v", input, err) // on a machine that is slower than that
		}
		if !eventually(func() bool { return s.value("packhorse_ssh_sessions") == 0 }) {
			t.Errorf("%q: sessions = %v, want 0", input, s.value("packhorse_ssh_sessions"))
		}
	}
}

// begin starts a fetch, sends only input, and does not read the answer.
func (s *sshServer) begin(input string) error {
	client, err := s.dial(nil)
	if err != nil {
		return err
	}
	session, err := client.NewSession()
	if err != nil {
		return err
	}
	in, err := session.StdinPipe()
	if err != nil {
		return err
	}
	if _, err := session.StdoutPipe(); err != nil {
		return err
	}
	if err := session.Setenv("GIT_PROTOCOL", "version=2"); err != nil {
		return err
	}
	if err := session.Start("git-upload-pack 'app'"); err != nil {
		return err
	}
	_, err = io.WriteString(in, input)
	return err
}

func TestSSHManyKeyExchanges(t *testing.T) {
	t.Parallel()
	s := serveSSH(t, nil, brackets(""))
	client := s.mustDial(func(c *ssh.ClientConfig) { c.RekeyThreshold = 64 << 10 })
	body := strings.Repeat(lines(strings.Repeat("x", 60000)), 16) + "0000"
	for range 3 {
		if out, _, status := run(t, client, "version=2", "git-upload-pack 'app'", body); out != "v2:["+body+"]" ||
			status != 0 {
			t.Errorf("output = %d bytes, status = %d, want the request and 0", len(out), status)
		}
	}
}

// TestSilentPeer: a client that no longer answers whether it is there loses its connection, also while a session runs;
// before, it was asked.
func TestSilentPeer(t *testing.T) {
	t.Parallel()
	entered, cut := make(chan struct{}), make(chan struct{})
	s := serveSSH(t, func(o *gitssh.Options) { o.KeepAlive = 2 * time.Second }, &fakeNode{
		advertise: func(node.Session) ([]byte, error) { return []byte("0000"), nil },
		serve: func(ctx context.Context, request io.Reader, response node.ResponseWriter) (node.Outcome, error) {
			if _, err := io.Copy(io.Discard, request); err != nil {
				return node.Outcome{}, err
			}
			if err := response.StartBulk(true); err != nil {
				return node.Outcome{}, err
			}
			close(entered)
			<-ctx.Done() // as long as the client is there
			close(cut)
			return node.Outcome{}, ctx.Err()
		},
	})
	wire, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	conn, channels, requests, err := ssh.NewClientConn(wire, s.addr, &ssh.ClientConfig{
		User: "git", Auth: []ssh.AuthMethod{ssh.PublicKeys(s.alice)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		t.Fatal(err)
	}
	silent, asked := make(chan struct{}), make(chan string, 1000)
	go func() {
		for r := range requests {
			select {
			case <-silent:
				asked <- r.Type
			default:
				_ = r.Reply(false, nil)
			}
		}
	}()
	none := make(chan *ssh.Request)
	close(none)
	client := ssh.NewClient(conn, channels, none)
	defer client.Close()
	go func() {
		session, err := client.NewSession()
		if err == nil {
			err = session.Setenv("GIT_PROTOCOL", "version=2")
		}
		if err == nil {
			session.Stdin = strings.NewReader(lines("command=fetch", "delim", "done", "flush"))
			err = session.Run("git-upload-pack 'app'")
		}
		if err == nil {
			t.Error("error of the session = nil, want one")
		}
	}()
	<-entered
	close(silent)
	_ = conn.Wait()
	<-cut
	if len(asked) == 0 || <-asked != "keepalive@openssh.com" {
		t.Error("the client got no keep-alive request, want one")
	}
}

// TestPanicRevealsNoTokens: the log line of a panic has no access token.
func TestPanicRevealsNoTokens(t *testing.T) {
	t.Parallel()
	const token = "phk_abcdefghijklmnopqrstuvwxyz234567abcdefghijklm"
	s := serveSSH(t, nil, &fakeNode{advertise: func(node.Session) ([]byte, error) { panic("a bug") }})
	run(t, s.mustDial(nil), "version=2", "git-upload-pack '/"+token+"'", "")
	if log := s.log.String(); !strings.Contains(log, "panic") || strings.Count(log, "repository=phk_***") != 2 ||
		strings.Contains(log, token[:20]) {
		t.Errorf("log = %s, want a panic without the token", log)
	}
}
