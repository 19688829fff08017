package gitssh

import (
	"bufio"
	"context"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// session is one session on a connection: one command and its output (RFC 4254, section 6).
type session struct {
	*client
	channel ssh.Channel
	begun   time.Time
	ctx     context.Context // ends with the session, as the client sees it
	cancel  context.CancelFunc

	environment string // GIT_PROTOCOL as the client sent it
	command     command
	input       *bufio.Reader
	streamed    bool // a node may still wait for more of what the client says, though its answer has ended

	// Timers that end the session when the client lets the server wait, and the cutReason of the first.
	reading, writing *time.Timer
	readingFor       atomic.Value
	isCut            atomic.Bool
	ended            atomic.Bool
	stderr           sync.Mutex // one message at a time, and none after the end of the output

	// closed is closed when the client has closed the session; asked and asker are for isClosed.
	closed chan struct{}
	asked  chan chan<- struct{}
	asker  chan<- struct{} // not answered yet
}

func newSession(c *client) *session {
	s := &session{client: c, begun: time.Now(), closed: make(chan struct{}), asked: make(chan chan<- struct{})}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	return s
}

// never is longer than any timeout.
const never = 1 << 62

// maxEnvironment is the maximum length of GIT_PROTOCOL in bytes.
const maxEnvironment = 1024

// run answers the client's requests about the session, and runs its command.
func (s *session) run(requests <-chan *ssh.Request) {
	s.readingFor.Store(cutNoCommand)
	s.reading = time.AfterFunc(s.Idle, func() { s.cut(s.readingFor.Load().(cutReason)) })
	s.writing = time.AfterFunc(never, func() { s.cut(cutWriteStall) })
	defer func() {
		s.cancel()
		s.ended.Store(true)
		s.reading.Stop()
		s.writing.Stop()
	}()
	var command sync.WaitGroup
	defer command.Wait()
	begun, counted := false, false
	for r := s.next(requests); r != nil; r = s.next(requests) {
		ok := false
		var start func()
		switch r.Type {
		case "env":
			var v struct{ Name, Value string }
			if ssh.Unmarshal(r.Payload, &v) == nil && v.Name == "GIT_PROTOCOL" && len(v.Value) <= maxEnvironment &&
				!begun {
				s.environment, ok = v.Value, true
			}
		case "exec", "shell":
			var v struct{ Command string }
			if ok = !begun && (r.Type == "shell" || ssh.Unmarshal(r.Payload, &v) == nil); ok {
				begun, counted = true, true
				start = func() { s.execute(r.Type == "shell", v.Command) }
			}
		case "subsystem", "pty-req", "x11-req", "auth-agent-req@openssh.com":
		}
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
		if start != nil { // after the reply, which must come before the end of a short command
			command.Go(start)
		}
	}
	close(s.closed) // by the client, or with its connection
	s.cancel()
	if !counted {
		s.metrics.sessions.WithLabelValues("none").Inc()
	}
}

// execute runs the session's command, and ends the session.
func (s *session) execute(shell bool, command string) {
	s.reading.Stop()
	s.addCommand(1)
	defer s.addCommand(-1)
	status := 1
	defer func() {
		if cause := recover(); cause != nil {
			s.Log.Error("panic in an SSH session", "panic", cause, "stack", string(debug.Stack()))
			status = 1
		}
		s.finish(status)
	}()
	if shell {
		s.metrics.sessions.WithLabelValues("greeting").Inc()
		s.greet()
		status = 0
		return
	}
	parsed, err := parseCommand(command)
	if err != nil && parsed.service == "" {
		s.metrics.sessions.WithLabelValues("refused").Inc()
		s.say(fault.Message(err))
		return
	}
	s.command = parsed
	s.metrics.sessions.WithLabelValues(sessionLabels[s.service()]).Inc()
	switch {
	case s.command.isLFS() && err == nil:
		status = s.serveLFS()
	case s.command.isLFS():
		s.say("packhorse: " + fault.Message(err))
	case err == nil && s.service() == uploadArchive:
		status = s.archive()
	case err == nil:
		status = s.serveGit()
	default:
		_, _ = s.channel.Write(protocol.AppendError(nil, fault.Message(err)))
	}
}

// sessionLabels are the values of the label of packhorse_ssh_sessions_total.
var sessionLabels = map[protocol.Service]string{
	protocol.UploadPack: "upload_pack", protocol.ReceivePack: "receive_pack",
	uploadArchive:   "upload_archive",
	lfsAuthenticate: "lfs_authenticate", lfsTransfer: "lfs_transfer",
}

// finish sends the exit status, and ends the session. The status comes before the end of the output. A client whose
// input has ended, such as OpenSSH's connection sharing, closes the session at the end of the output, and gets nothing
// more.
func (s *session) finish(status int) {
	s.writing.Reset(s.WriteStall) // for the client to read the end
	s.exitStatus(status)
	s.stderr.Lock()
	_ = s.channel.CloseWrite()
	s.stderr.Unlock()
	s.channel.Close()
}

func (s *session) exitStatus(status int) {
	_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(status)}))
}

func (s *session) service() protocol.Service { return s.command.service }

// greet confirms the login of a user who requested a shell.
func (s *session) greet() {
	name := s.user.id.Name
	if name == "" {
		name = AnonymousLogin
	}
	s.say("Hi " + name + "! You are logged in. This is a Git server: there is no shell here.")
}

// say sends a line that the client shows to its user.
func (s *session) say(text string) {
	s.stderr.Lock()
	defer s.stderr.Unlock()
	_, _ = io.WriteString(s.channel.Stderr(), text+"\r\n")
}

// setReadDeadline sets the time by which the client must have sent more of a request; the zero time means none. A time
// before the begin of the session ends the session.
func (s *session) setReadDeadline(t time.Time) error {
	why := cutReadStall
	if t.Before(s.begun) {
		why = cutInterrupted
	}
	s.wait(t, why)
	return nil
}

// wait sets the time by which the client must have sent something, and the reason for the end of the session after it.
func (s *session) wait(t time.Time, why cutReason) {
	if t.IsZero() {
		s.reading.Stop()
		return
	}
	s.readingFor.Store(why)
	s.reading.Reset(time.Until(t))
}

// Read reads the client's input.
func (s *session) Read(p []byte) (int, error) {
	n, err := s.channel.Read(p)
	s.wire.backlog.read(n)
	return n, err
}

// identify returns the session's user. It checks the key again: it may have been revoked since the login.
func (s *session) identify() (auth.Identity, error) {
	if s.user.key == nil {
		return auth.Identity{Address: s.address.String()}, nil
	}
	id, _, err := s.Keys.Key(s.ctx, s.conn.User(), s.user.key, s.address)
	if err == nil && id.Name != s.user.id.Name {
		err = fault.New(fault.Unauthenticated, "the key now belongs to another user; connect again")
	}
	return id, err
}

// inputs has the buffers that sessions read through.
var inputs = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 16<<10) }}

// openInput starts to read the client's input through a buffer. The caller has to call close.
func (s *session) openInput() (close func()) {
	s.input = inputs.Get().(*bufio.Reader)
	s.input.Reset(s)
	return func() {
		if !s.streamed {
			s.input.Reset(nil)
			inputs.Put(s.input)
		}
	}
}

// serveGit runs a session of git, and returns its exit status.
func (s *session) serveGit() int {
	defer s.openInput()()
	session := node.Session{Service: s.service(), Version: protocol.ParseVersion(s.environment)}
	if !s.advertise(session) {
		return 1
	}
	switch {
	case session.Service == protocol.ReceivePack:
		return s.receivePack(session)
	case session.Version == protocol.V2:
		return s.requests(session)
	}
	return s.conversation(session)
}

// more waits for the client's next request, and reports false if there is none. A client may take its time, because it
// runs its user's pre-push hook or indexes a pack. The connection's keep-alives find a client that is down. After the
// idle timeout of a connection without a session, the command counts as not running: clients that only wait cannot keep
// others out.
func (s *session) more() bool {
	head, err := s.await()
	return err == nil && string(head) != "0000" || len(head) > 0 && err != nil
}

// await waits for the first packet of the client's next request, and returns its length field.
func (s *session) await() (head []byte, err error) {
	s.wait(time.Now().Add(s.SessionIdle), cutIdle)
	silent := time.AfterFunc(s.Idle, func() { s.addCommand(-1) })
	head, err = s.input.Peek(4)
	if !silent.Stop() {
		s.addCommand(1)
	}
	_ = s.setReadDeadline(time.Time{})
	return head, err
}

// advertise begins the session.
func (s *session) advertise(session node.Session) bool {
	q := s.begin(gateway.Advertise)
	defer q.End(q)
	return q.may(s.operation()) && q.respond(gateway.EmptyBody(), func(response *gateway.Response) {
		q.Advertise(session, response)
	})
}

func (s *session) operation() auth.Operation {
	if s.service() == protocol.ReceivePack {
		return auth.Write
	}
	return auth.Read
}

// requests answers a session of version 2. Each of its requests is complete in itself, as over HTTP, so that another
// node may answer the next one.
func (s *session) requests(session node.Session) int {
	session.Stateless = true
	for s.more() {
		if !s.request(session, s.source(&requestReader{r: s.input})) {
			return 1
		}
	}
	return 0
}

// conversation answers a session of version 0 or 1, in which both sides take turns on one stream.
func (s *session) conversation(session node.Session) int {
	if !s.more() {
		return 0
	}
	s.streamed = true
	from := s.source(s.input)
	from.Stateful = true
	if !s.request(session, from) {
		return 1
	}
	return 0
}

// request answers one request of a fetch session.
func (s *session) request(session node.Session, from gateway.Source) bool {
	q := s.begin(gateway.Fetch)
	defer q.End(q)
	if !q.may(auth.Read) { // again: a session may be long
		return false
	}
	read := q.ReadBody
	if from.Stateful {
		read = q.StreamBody
	}
	body, err := read(from)
	if err != nil {
		q.fail(err)
		return false
	}
	if from.Stateful {
		defer body.ReleaseMemory() // a node may still read
	} else {
		defer body.Close()
	}
	return q.respond(body, func(response *gateway.Response) { q.UploadPack(session, body, response) })
}

// receivePack takes a push.
func (s *session) receivePack(session node.Session) int {
	if !s.more() {
		return 0
	}
	q := s.begin(gateway.Push)
	defer q.End(q)
	s.streamed = true
	from := s.source(s.input)
	from.Stateful, from.Stall = true, pushStalls*s.ReadStall
	if !q.may(auth.Write) {
		return 1
	}
	body, err := q.StreamBody(from)
	if err != nil {
		q.fail(err)
		return 1
	}
	complete := q.respond(body, func(response *gateway.Response) { q.ReceivePack(session, body, response) })
	_ = s.setReadDeadline(time.Time{})
	if !complete && !q.Outcome.Reported() {
		return 1
	}
	return 0
}

// pushStalls is how many times longer than other clients a client may be silent during a push: it computes what to
// send.
const pushStalls = 10
