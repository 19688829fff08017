package gateway

import (
	"bufio"
	"context"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/router"
)

// sshSession is one session on a connection: one command, and its answer (RFC 4254, section 6).
type sshSession struct {
	*sshClient
	channel ssh.Channel
	begun   time.Time
	ctx     context.Context // ends with the session, as the client sees it
	cancel  context.CancelFunc

	environment string // GIT_PROTOCOL, as the client sent it
	command     sshCommand
	input       *bufio.Reader
	streamed    bool // a node may still wait for more of what the client says, though its answer has ended

	// What end the session when the client lets it wait, and why the first of them does: an sshCut.
	reading, writing *time.Timer
	readingFor       atomic.Value
	isCut            atomic.Bool
	ended            atomic.Bool
	stderr           sync.Mutex // one message at a time, and none after the end of the output

	// Whether the client has closed it, and who wants to know: see isClosed.
	closed chan struct{}
	asked  chan chan<- struct{}
	asker  chan<- struct{} // has no answer yet
}

func newSSHSession(c *sshClient) *sshSession {
	s := &sshSession{sshClient: c, begun: time.Now(), closed: make(chan struct{}), asked: make(chan chan<- struct{})}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	return s
}

// never is longer than anything takes.
const never = 1 << 62

// maxEnvironment bounds what a client says in GIT_PROTOCOL, in bytes.
const maxEnvironment = 1024

// run answers the client's requests about the session, until it has a command, and runs that.
func (s *sshSession) run(requests <-chan *ssh.Request) {
	s.readingFor.Store(cutNoCommand)
	s.reading = time.AfterFunc(s.Idle, func() { s.cut(s.readingFor.Load().(sshCut)) })
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
			if ssh.Unmarshal(r.Payload, &v) == nil && v.Name == "GIT_PROTOCOL" && len(v.Value) <= maxEnvironment && !begun {
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
		if start != nil { // after the reply, which the end of a quick command must not overtake
			command.Go(start)
		}
	}
	close(s.closed) // by the client, or it is gone
	s.cancel()
	if !counted {
		s.Watch.sessions.WithLabelValues("none").Inc()
	}
}

// execute does what a session is for, and ends it.
func (s *sshSession) execute(shell bool, command string) {
	s.reading.Stop()
	s.commandRuns(1)
	defer s.commandRuns(-1)
	status := 1
	defer func() {
		if cause := recover(); cause != nil {
			s.Log.Error("panic in an SSH session", "panic", cause, "stack", string(debug.Stack()))
			status = 1
		}
		s.finish(status)
	}()
	if shell {
		s.Watch.sessions.WithLabelValues("greeting").Inc()
		s.greet()
		status = 0
		return
	}
	parsed, err := parseSSHCommand(command)
	if err != nil && parsed.service == "" {
		s.Watch.sessions.WithLabelValues("refused").Inc()
		s.say(fault.Message(err))
		return
	}
	s.command = parsed
	if s.service() == protocol.ReceivePack {
		s.Watch.sessions.WithLabelValues("receive_pack").Inc()
	} else {
		s.Watch.sessions.WithLabelValues("upload_pack").Inc()
	}
	if err == nil {
		status = s.serveGit()
		return
	}
	_, _ = s.channel.Write(protocol.AppendError(nil, fault.Message(err)))
}

// finish tells the client the exit status, and ends the session. The status goes before the end of the output: a client whose
// input has ended closes the session as soon as it sees that end, as OpenSSH's connection sharing does, and nothing can be sent
// to it after that.
func (s *sshSession) finish(status int) {
	s.writing.Reset(s.WriteStall) // for the client to take the end
	s.exitStatus(status)
	s.stderr.Lock()
	_ = s.channel.CloseWrite()
	s.stderr.Unlock()
	s.channel.Close()
}

func (s *sshSession) exitStatus(status int) {
	_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(status)}))
}

func (s *sshSession) service() protocol.Service { return s.command.service }

// greet tells who asks for a shell that it knows them.
func (s *sshSession) greet() {
	name := s.who.id.Name
	if name == "" {
		name = AnonymousLogin
	}
	s.say("Hi " + name + "! You are logged in. This is a Git server: there is no shell here.")
}

// say writes a line that is shown to the user.
func (s *sshSession) say(text string) {
	s.stderr.Lock()
	defer s.stderr.Unlock()
	_, _ = io.WriteString(s.channel.Stderr(), text+"\r\n")
}

// limit sets the time until when the client has to have sent more of a request; the zero time: it need not. A time before the
// session began ends it.
func (s *sshSession) limit(t time.Time) error {
	why := cutReadStall
	if t.Before(s.begun) {
		why = cutInterrupted
	}
	s.wait(t, why)
	return nil
}

// wait sets the time until when the client has to have sent something, and why the session ends if it has not.
func (s *sshSession) wait(t time.Time, why sshCut) {
	if t.IsZero() {
		s.reading.Stop()
		return
	}
	s.readingFor.Store(why)
	s.reading.Reset(time.Until(t))
}

// Read reads what the client sends.
func (s *sshSession) Read(p []byte) (int, error) {
	n, err := s.channel.Read(p)
	s.wire.backlog.read(n)
	return n, err
}

// identify tells who it is now: a key may have been taken from its user since the login.
func (s *sshSession) identify() (auth.Identity, error) {
	if s.who.key == nil {
		return auth.Identity{Address: s.address.String()}, nil
	}
	id, _, err := s.Keys.Key(s.ctx, s.conn.User(), s.who.key, s.address)
	if err == nil && id.Name != s.who.id.Name {
		err = fault.New(fault.Unauthenticated, "the key is another user's now; connect again")
	}
	return id, err
}

// inputs keeps the buffers that sessions read through.
var inputs = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 16<<10) }}

// serveGit runs a session of git's, and gives its exit status.
func (s *sshSession) serveGit() int {
	s.input = inputs.Get().(*bufio.Reader)
	s.input.Reset(s)
	defer func() {
		if !s.streamed {
			s.input.Reset(nil)
			inputs.Put(s.input)
		}
	}()
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

// begin makes the call for one request.
func (s *sshSession) begin(op operation) *sshCall {
	ctx, running := s.Board.Begin(s.ctx, string(op), "")
	running.Is("", s.command.repo.String(), s.address.String())
	ctx, span := s.Tracer.FromAnybody(ctx, nil)
	return &sshCall{s: s, call: call{Options: s.Options, ctx: ctx, running: running, span: span, start: time.Now(), op: op, repo: s.command.repo}}
}

// more waits for the client to say something; false if it has nothing more to ask. A client that is there may take its time:
// it runs its user's pre-push hook, or indexes what it has received. The connection's keep-alives find one that is not. Once
// it has been silent for as long as a connection without a session may be, its command counts as none that runs: clients
// that only wait cannot keep all others out.
func (s *sshSession) more() bool {
	s.wait(time.Now().Add(s.SessionIdle), cutIdle)
	silent := time.AfterFunc(s.Idle, func() { s.commandRuns(-1) })
	head, err := s.input.Peek(4)
	if !silent.Stop() {
		s.commandRuns(1)
	}
	_ = s.limit(time.Time{})
	return err == nil && string(head) != "0000" || len(head) > 0 && err != nil
}

// advertise begins the session.
func (s *sshSession) advertise(session node.Session) bool {
	c := s.begin(opAdvertise)
	defer c.done()
	if !c.allowed(s.operation()) || !c.enter(c.Lanes.Small, &body{ended: true}) {
		return false
	}
	defer c.reply.seat.Leave()
	c.reply.seat.Stay()
	session.Caller, session.Reachable = string(c.caller()), c.reachable
	c.push = session.Service == protocol.ReceivePack
	c.relay(c.reply, func(n router.Node) (node.Outcome, error) { return n.Advertise(c.ctx, c.repo, session, c.reply) })
	return c.finish()
}

func (s *sshSession) operation() auth.Operation {
	if s.service() == protocol.ReceivePack {
		return auth.Write
	}
	return auth.Read
}

// requests answers a session of version 2. Each of its requests says all that is needed for its answer, as over HTTP, so that each is one of its own:
// another node may answer the next one.
func (s *sshSession) requests(session node.Session) int {
	session.Stateless = true
	for s.more() {
		if !s.request(session, &requestReader{r: s.input}) {
			return 1
		}
	}
	return 0
}

// conversation answers a session of version 0 or 1, in which both sides talk in turn.
func (s *sshSession) conversation(session node.Session) int {
	if !s.more() {
		return 0
	}
	s.streamed = true
	if !s.request(session, nil) {
		return 1
	}
	return 0
}

// request answers a request: one that ends by itself, or all that the client says.
func (s *sshSession) request(session node.Session, own io.Reader) bool {
	c := s.begin(opFetch)
	defer c.done()
	if !c.allowed(auth.Read) { // again: a session may be long
		return false
	}
	var body *body
	var err error
	if own != nil {
		body, err = c.wholeBody(own)
	} else {
		body = c.streamBody()
		body.memory = c.Memory.Hold(c.caller(), freeMemory)
	}
	if err != nil {
		c.fail(err)
		return false
	}
	if own != nil {
		defer body.Close()
	} else { // a node may still read it
		defer body.memory.Shrink(0)
	}
	if !c.enter(c.Lanes.Small, body) {
		return false
	}
	defer c.reply.seat.Leave()
	session.Caller, session.Reachable = string(c.caller()), c.reachable
	c.relay(c.reply, func(n router.Node) (node.Outcome, error) { return n.UploadPack(c.ctx, c.repo, session, body, c.reply) })
	c.op = opOf(c.outcome.Command)
	return c.finish()
}

// receivePack takes a push.
func (s *sshSession) receivePack(session node.Session) int {
	if !s.more() {
		return 0
	}
	c := s.begin(opPush)
	defer c.done()
	s.streamed = true
	body := c.pushBody()
	if !c.allowed(auth.Write) || !c.enter(c.Lanes.Push, body) {
		return 1
	}
	defer c.reply.seat.Leave()
	pusher := node.Pusher{Name: c.id.Name, Address: s.address.String()}
	session.Caller, session.Reachable = string(c.caller()), c.reachable
	c.push = true
	c.relay(c.reply, func(n router.Node) (node.Outcome, error) {
		return n.ReceivePack(c.ctx, c.repo, session, pusher, body, c.announce(c.reply))
	})
	_ = s.limit(time.Time{})
	if !c.finish() && !c.outcome.Reported() {
		return 1
	}
	return 0
}
