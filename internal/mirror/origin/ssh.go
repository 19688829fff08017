package origin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// SSHOptions are the keys and the known hosts of an SSH origin. Changed files apply to the next connection.
type SSHOptions struct {
	KeyFile    string // private key without a passphrase, and without permissions for other users
	KnownHosts string // host keys (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"); certificates of hosts are not supported
}

// sshUser is the user of an SSH origin whose URL has none.
const sshUser = "git"

// sshHost opens sessions at an SSH origin. Safe for concurrent use.
type sshHost struct {
	user, address string // address: HOST:PORT
	base          string // path before that of a repository, with slashes at its ends
	dialer        *net.Dialer
	key           *credfile.Private[ssh.Signer]
	knownHosts    string // file
	pool          *sshPool
}

// newSessions returns the sessions of an SSH origin.
func newSessions(o Options, dialer *net.Dialer) (sessions, error) {
	if o.SSH == nil || o.SSH.KeyFile == "" || o.SSH.KnownHosts == "" {
		return nil, fault.New(fault.Invalid, "origin %s: SSH needs a key and known hosts", o.URL.Host)
	}
	key, err := credfile.LoadPrivate("SSH key", o.SSH.KeyFile, ssh.ParsePrivateKey,
		cmp.Or(o.Log, slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	if _, err := knownhosts.New(o.SSH.KnownHosts); err != nil {
		return nil, fmt.Errorf("read the known hosts: %w", err)
	}
	h := &sshHost{user: cmp.Or(o.URL.User.Username(), sshUser), base: "/", dialer: dialer, key: key,
		knownHosts: o.SSH.KnownHosts, address: net.JoinHostPort(o.URL.Hostname(), cmp.Or(o.URL.Port(), "22"))}
	if base := strings.Trim(o.URL.Path, "/"); base != "" {
		h.base = "/" + base + "/"
	}
	h.pool = newSSHPool(h.dial)
	return h, nil
}

// Close implements io.Closer.
func (h *sshHost) Close() error { return h.pool.Close() }

// open implements sessions.
func (h *sshHost) open(ctx context.Context, path string, service protocol.Service,
	operands ...string) (io.ReadWriteCloser, error) {
	command := strings.Join(append([]string{string(service), quotePath(h.base + path)}, operands...), " ")
	for {
		conn, isNew, err := h.pool.take(ctx)
		if err != nil {
			return nil, err
		}
		s, err := startSSH(ctx, conn, command, func(isGood bool) { h.pool.leave(conn, isGood) })
		if err == nil {
			return s, nil
		}
		h.pool.leave(conn, false)
		if isNew || ctx.Err() != nil { // the server may have closed an older connection
			return nil, err
		}
	}
}

// quotePath quotes a path for a shell as git does, because some servers remove git's quotation marks without a shell.
// The path has no control characters and begins with a slash, so that it is not an option.
func quotePath(path string) string {
	return "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(path) + "'"
}

// dial connects and authenticates both sides.
func (h *sshHost) dial(ctx context.Context) (*ssh.Client, error) {
	check, err := knownhosts.New(h.knownHosts)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "the known hosts of the mirror cannot be read", err)
	}
	conn, err := h.dialer.DialContext(ctx, "tcp", h.address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	client, channels, requests, err := ssh.NewClientConn(conn, h.address, &ssh.ClientConfig{
		User: h.user, Auth: []ssh.AuthMethod{ssh.PublicKeys(h.key.Get())}, ClientVersion: "SSH-2.0-packhorse",
		HostKeyAlgorithms: knownAlgorithms(check, h.address, conn.RemoteAddr()),
		HostKeyCallback: func(address string, remote net.Addr, key ssh.PublicKey) error {
			return h.explain(check(address, remote, key), key)
		},
	})
	if err != nil {
		_ = conn.Close()
		if strings.Contains(err.Error(), "unable to authenticate") {
			err = fault.Wrap(fault.Unavailable, "origin "+h.address+" refused the mirror's SSH key for the user "+h.user, err)
		}
		return nil, err
	}
	return ssh.NewClient(client, channels, requests), nil
}

// explain adds to an error about a host key what an administrator can do.
func (h *sshHost) explain(err error, key ssh.PublicKey) error {
	if err == nil {
		return nil
	}
	host, port, _ := net.SplitHostPort(h.address)
	known, isKeyError := errors.AsType[*knownhosts.KeyError](err)
	switch {
	case isKeyError && len(known.Want) == 0:
		err = fmt.Errorf("%s is not in %s: the host presents a key of type %s with the fingerprint %s. Compare it with what "+
			"the host's operator publishes, and add it with: ssh-keyscan -p %s %s >> %s", h.address, h.knownHosts, key.Type(),
			ssh.FingerprintSHA256(key), port, host, h.knownHosts)
	case isKeyError:
		err = fmt.Errorf("the key of %s has changed, or another host answers: it has the fingerprint %s, and %s:%d has %s. "+
			"If the host's operator has replaced the key, replace the line", h.address, ssh.FingerprintSHA256(key),
			known.Want[0].Filename, known.Want[0].Line, ssh.FingerprintSHA256(known.Want[0].Key))
	}
	return fault.Wrap(fault.Unavailable, "the host key of origin "+h.address+" is not trusted", err)
}

// knownAlgorithms returns the algorithms of a host's known keys. A host with several keys would otherwise present one
// that is not known. It returns nil, which means all, if the host is not known.
func knownAlgorithms(check ssh.HostKeyCallback, address string, remote net.Addr) (list []string) {
	known, ok := errors.AsType[*knownhosts.KeyError](check(address, remote, noKey{}))
	if !ok {
		return nil
	}
	for _, k := range known.Want {
		switch t := k.Key.Type(); t {
		case ssh.KeyAlgoRSA:
			list = append(list, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		default:
			list = append(list, t)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// noKey is a public key that no host has.
type noKey struct{}

func (noKey) Type() string                        { return "none" }
func (noKey) Marshal() []byte                     { return nil }
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.ErrUnsupported }

// sshSession is a running service. Reading ends with the error of the service, if it fails.
type sshSession struct {
	io.Reader
	io.Writer
	close func()
}

// Close implements io.Closer.
func (s *sshSession) Close() error {
	s.close()
	return nil
}

// startSSH starts a command. The session ends with ctx or Close and then calls leave.
func startSSH(ctx context.Context, conn *ssh.Client, command string, leave func(isGood bool)) (*sshSession, error) {
	late := context.AfterFunc(ctx, func() { _ = conn.Close() }) // the library's calls know no context
	defer late()
	session, err := conn.NewSession()
	if err != nil {
		return nil, err
	}
	// A server that does not accept the variable answers in version 0.
	if err = session.Setenv("GIT_PROTOCOL", version2); err != nil && !strings.Contains(err.Error(), "setenv failed") {
		return nil, errors.Join(err, session.Close())
	}
	reader, writer := io.Pipe()
	messages := &messages{}
	session.Stdout, session.Stderr = writer, messages
	stdin, err := session.StdinPipe()
	if err == nil {
		err = session.Start(command)
	}
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	go func() { writer.CloseWithError(serviceError(session.Wait(), messages.text)) }()
	finish := func(cause error) {
		reader.CloseWithError(cause)
		_ = session.Close()     // the server may end it later
		leave(ctx.Err() == nil) // the connection may be the reason for which a request was given up
	}
	unwatch := context.AfterFunc(ctx, func() { finish(context.Cause(ctx)) })
	return &sshSession{Reader: reader, Writer: stdin, close: func() {
		if unwatch() {
			finish(io.ErrClosedPipe)
		}
	}}, nil
}

// messages are the first messages of a service to people.
type messages struct{ text string }

// Write implements io.Writer.
func (m *messages) Write(p []byte) (int, error) {
	const limit = 4 << 10
	m.text += string(p[:min(len(p), limit-len(m.text))])
	return len(p), nil
}

// serviceError returns the error of a service from the result of ssh.Session.Wait.
func serviceError(err error, text string) error {
	if err == nil {
		return nil
	}
	if _, hasStatus := errors.AsType[*ssh.ExitError](err); !hasStatus {
		return err // the connection broke
	}
	return classify(fmt.Errorf("%w: %s", err, Printable(text)))
}

// classify gives an error of a service its kind, if its text is about the repository. Over SSH, hosts report their
// reasons to people only. Other errors may be of an outage.
func classify(err error) error {
	lower := strings.ToLower(err.Error())
	says := func(words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(lower, word) })
	}
	switch {
	case says("not found", "not be found", "not appear to be a git repository", "not exist", "no such", "no repository"):
		return fault.Wrap(fault.NotFound, "the origin has no such repository for the mirror", err)
	case says("denied", "not allowed", "forbidden", "permission"):
		return fault.Wrap(fault.Unavailable, "the origin refused the mirror's own credential", err)
	}
	return err
}
