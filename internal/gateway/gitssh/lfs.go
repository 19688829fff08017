package gitssh

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
)

// lfsCommand is a command of git-lfs-transfer. Each one is a request of its own, so that a session has no place in a
// lane between its commands.
type lfsCommand struct {
	op     *gateway.Operation
	upload bool // only in sessions for uploads
	both   bool // in sessions of both kinds
	data   bool // it reads the data of its message
	// serve answers the command. It returns the error that the client gets as a status, unless lfsSession.broken is set.
	serve func(*lfsSession, *request, *lfsMessage) error
}

// lfsCommands are the commands except for version and quit.
var lfsCommands = map[string]lfsCommand{
	"batch":         {op: gateway.LFSBatch, both: true, data: true, serve: (*lfsSession).batch},
	"get-object":    {op: gateway.LFSDownload, serve: (*lfsSession).get},
	"put-object":    {op: gateway.LFSUpload, upload: true, data: true, serve: (*lfsSession).put},
	"verify-object": {op: gateway.LFSVerify, upload: true, serve: (*lfsSession).verify},
	"lock":          {op: gateway.LFSLocks, upload: true, serve: (*lfsSession).lock},
	"unlock":        {op: gateway.LFSLocks, upload: true, serve: (*lfsSession).unlock},
	"list-lock":     {op: gateway.LFSLocks, both: true, serve: (*lfsSession).listLocks},
	// as git-lfs before 3.4 says before a push
	"list-locks": {op: gateway.LFSLocks, both: true, serve: (*lfsSession).listLocks},
}

// lfsSession is a session of git-lfs-transfer.
type lfsSession struct {
	*session
	hasVersion bool // the client has chosen the version of the protocol
	broken     bool // the session cannot continue
}

// notFound is the exit status of a shell for an unknown command. Clients then look for Git LFS by HTTP.
const notFound = 127

// serveLFS runs a command of Git LFS, and returns its exit status.
func (s *session) serveLFS() int {
	switch {
	case s.LFS == nil:
		s.say("packhorse: " + fault.Message(gateway.ErrNoLFS))
		return notFound
	case s.service() == lfsAuthenticate:
		return s.authenticateLFS()
	}
	return s.transferLFS()
}

// access returns the operation that all requests of the session need.
func (s *session) access() auth.Operation {
	if s.command.upload {
		return auth.Write
	}
	return auth.Read
}

// authenticateLFS sends the URL of the repository's HTTP API, and a token for it (docs/api/authentication.md).
func (s *session) authenticateLFS() int {
	q := s.begin(gateway.LFSAuthenticate)
	defer q.End(q)
	if q.Err = q.authorize(s.access()); q.Err == nil {
		q.LFSBatch(lfs.Batch{}, nil) // does the repository exist?
	}
	if q.Err != nil {
		s.say("packhorse: " + fault.Message(q.Err))
		return 1
	}
	login, err := q.LFSLogin(q.LFS.Tokens.New(s.conn.User(), s.user.key, q.Repo, s.access()))
	if err != nil {
		q.Err = err
		s.say("packhorse: " + fault.Message(err))
		return notFound
	}
	text, _ := json.Marshal(login) // never fails
	n, err := s.send(append(text, '\n'))
	if q.Sent(n); err != nil {
		q.Err = err
		return 1
	}
	return 0
}

// transferLFS runs git-lfs-transfer.
func (s *session) transferLFS() int {
	defer s.openInput()()
	t := &lfsSession{session: s}
	hello := pktline.AppendFlush(pktline.AppendLine(pktline.AppendLine(nil, "version=1"), "locking"))
	if _, err := s.send(hello); err != nil {
		return 1
	}
	for {
		if head, err := s.await(); err != nil {
			if len(head) == 0 && err == io.EOF {
				return 0
			}
			return 1
		}
		_ = s.setReadDeadline(time.Now().Add(s.ReadStall)) // for the whole message without its data
		message, err := readLFSMessage(s.input)
		_ = s.setReadDeadline(time.Time{})
		if err != nil {
			_ = t.answer(nil, statusLines(err))
			return 1
		}
		if message.command == "quit" {
			_ = t.answer(nil, okLines())
			return 0
		}
		if !t.serve(message) {
			return 1
		}
	}
}

// serve serves one message. It reports whether the session can continue.
func (t *lfsSession) serve(m *lfsMessage) bool {
	c, known := lfsCommands[m.command]
	switch {
	case m.command == "version" && m.word == "1":
		t.hasVersion = true
		return t.skip(m, 0) && t.answer(nil, okLines()) == nil
	case m.command == "version":
		return t.refuse(m, fault.New(fault.Invalid, "unknown version %.40q: this server has version 1", m.word))
	case !known:
		return t.refuse(m, fault.New(fault.Invalid, "unknown command %.40q", m.command))
	case !t.hasVersion:
		return t.refuse(m, fault.New(fault.Invalid, "the first command has to be version 1"))
	case !c.data && !t.skip(m, 0): // some clients send an empty part
		return false
	}
	q := t.begin(c.op)
	defer q.End(q)
	err := q.authorize(t.access())
	if err == nil && !c.both && c.upload != t.command.upload {
		err = fault.New(fault.Denied, "%s is not for sessions with the word %s", m.command, operationWord(t.command.upload))
	}
	if err == nil {
		err = c.serve(t, q, m)
	}
	if err == nil {
		return true
	}
	q.Err = err
	return !t.broken && t.fail(q, m, err)
}

func operationWord(upload bool) string {
	if upload {
		return "upload"
	}
	return "download"
}

// refuse answers a message that is not a request.
func (t *lfsSession) refuse(m *lfsMessage, err error) bool { return t.fail(nil, m, err) }

// fail answers a message with an error, after all its data, as clients expect. It reports whether the session can
// continue.
func (t *lfsSession) fail(q *request, m *lfsMessage, err error) bool {
	size := int64(0)
	if object, err := m.object(); err == nil {
		size = object.Size
	}
	complete := t.skip(m, size)
	return t.answer(q, statusLines(err)) == nil && complete
}

// skippedData is the maximum number of bytes of data that are skipped in a message, beside those of an object.
const skippedData = 64 << 10

// skip reads the remaining data of a message, because a client reads the answer after it has sent all. It reports
// false if the data has no end.
func (t *lfsSession) skip(m *lfsMessage, size int64) bool {
	defer func() { _ = t.setReadDeadline(time.Time{}) }()
	buf := copyBuffers.Get().(*[copyBufferSize]byte)
	defer copyBuffers.Put(buf)
	for left := min(size, math.MaxInt64/2) + skippedData; left > 0; {
		_ = t.setReadDeadline(time.Now().Add(t.ReadStall))
		n, err := m.Read(buf[:])
		if left -= int64(n); err == io.EOF {
			return true
		} else if err != nil {
			return false
		}
	}
	return false
}

// answer sends an answer, which counts for a request unless that is nil.
func (t *lfsSession) answer(q *request, lines []byte) error {
	n, err := t.send(lines)
	if q != nil {
		q.Sent(n)
	}
	t.broken = t.broken || err != nil
	return err
}

// batch answers which objects a client has to transfer.
func (t *lfsSession) batch(q *request, m *lfsMessage) error {
	if algorithm, ok := m.args["hash-algo"]; ok && algorithm != "sha256" {
		return fault.New(fault.Invalid, "hash algorithm %.40q: only sha256 is supported", algorithm)
	}
	memory := t.Memory.Hold(q.Caller(), skippedData)
	defer memory.Shrink(0)
	_ = t.setReadDeadline(time.Now().Add(t.ReadStall))
	objects, err := m.objects(&memory)
	_ = t.setReadDeadline(time.Time{})
	if err != nil {
		return err
	}
	states := q.LFSBatch(lfs.Batch{Upload: t.command.upload, Ref: m.args["refname"], Objects: objects}, nil)
	if q.Err != nil {
		return q.Err
	}
	for _, state := range states {
		if state.State == lfs.Refused && t.command.upload { // a line has no room for the reason
			return state.Err
		}
	}
	b := pktline.AppendDelim(appendStatus(nil, http.StatusOK, "hash-algo=sha256"))
	for i, object := range objects {
		action := "noop"
		switch {
		case t.command.upload && states[i].State == lfs.Missing:
			action = "upload"
		case !t.command.upload: // clients skip noop silently, and get-object reports a missing or refused object
			action = "download"
		}
		b = pktline.AppendLine(b, fmt.Sprintf("%s %d %s", object.OID, object.Size, action))
		if len(b) > copyBufferSize/2 {
			if err := t.answer(q, b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	return t.answer(q, pktline.AppendFlush(b))
}

// verify answers whether an object was uploaded.
func (t *lfsSession) verify(q *request, m *lfsMessage) error {
	object, err := m.object()
	if err != nil {
		return err
	}
	if q.FindLFS(object, nil); q.Err != nil {
		return q.Err
	}
	return t.answer(q, okLines())
}

// get sends an object.
func (t *lfsSession) get(q *request, m *lfsMessage) error {
	object, err := m.object()
	if err != nil {
		return err
	}
	seat, err := q.Enter()
	if err != nil {
		return err
	}
	defer seat.Leave()
	response := gateway.NewResponse(&q.Request, &lfsSink{sink: sink{q: q}, size: object.Size}, seat, gateway.EmptyBody())
	q.LFSDownload(lfs.Download{Object: object, Length: -1}, response)
	err = response.Finish()
	if err != nil && response.Begun() { // without its flush packet the answer does not look complete
		t.broken = true
		if _, gone := errors.AsType[*node.ClientConnError](err); !gone {
			t.say("packhorse: " + fault.Message(err))
		}
	}
	if err != nil {
		return err
	}
	return t.answer(nil, pktline.AppendFlush(nil))
}

// put receives an object.
func (t *lfsSession) put(q *request, m *lfsMessage) error {
	object, err := m.object()
	if err != nil {
		return err
	}
	seat, err := q.Enter()
	if err != nil {
		return err
	}
	defer seat.Leave()
	body, err := q.StreamBody(gateway.Source{Reader: m, SetDeadline: t.setContentDeadline})
	if err != nil {
		return err
	}
	defer body.Close()
	body.LimitTo(object.Size)
	q.LFSUpload(lfs.Upload{Object: object}, body, gateway.NewResponse(&q.Request, &sink{q: q}, seat, body))
	_ = t.setReadDeadline(time.Time{})
	if q.Err != nil {
		return q.Err
	}
	if !t.skip(m, object.Size) { // the node had the object already
		t.broken = true
		return fault.New(fault.Invalid, "the content of an LFS object has no end")
	}
	return t.answer(q, okLines())
}

// setContentDeadline sets the time by which the client must have sent more of an object. A time in the past interrupts
// the request, which ends with the next bytes: the session continues.
func (t *lfsSession) setContentDeadline(at time.Time) error {
	if !at.IsZero() && at.Before(t.begun) {
		return nil
	}
	return t.setReadDeadline(at)
}

// locks asks a node about locks.
func (t *lfsSession) locks(q *request, m *lfsMessage, l lfs.LockRequest) (lfs.LockAnswer, error) {
	if l.Ref = m.args["refname"]; l.Ref == "" {
		l.Ref = m.args["refspec"]
	}
	found := q.LFSLocks(l, nil)
	return found, q.Err
}

// lock makes a lock.
func (t *lfsSession) lock(q *request, m *lfsMessage) error {
	if m.args["path"] == "" {
		return fault.New(fault.Invalid, "lock without a path")
	}
	found, err := t.locks(q, m, lfs.LockRequest{Action: lfs.CreateLock, Path: m.args["path"]})
	conflict := fault.Is(err, fault.Exists) && len(found.Locks) == 1
	if err != nil && !conflict {
		return err
	}
	args := lockArgs(found.Locks[0])
	if conflict {
		return t.answer(q, statusLines(err, args...))
	}
	return t.answer(q, pktline.AppendFlush(appendStatus(nil, http.StatusCreated, args...)))
}

func lockArgs(l lfs.Lock) []string {
	return []string{"id=" + l.ID, "path=" + l.Path, "locked-at=" + lockTime(l), "ownername=" + l.Owner}
}

func lockTime(l lfs.Lock) string { return l.Time.UTC().Format(time.RFC3339) }

// unlock removes a lock.
func (t *lfsSession) unlock(q *request, m *lfsMessage) error {
	force := m.args["force"]
	found, err := t.locks(q, m, lfs.LockRequest{Action: lfs.Unlock, ID: m.word, Force: force == "true" || force == "1"})
	if err != nil {
		return err
	}
	return t.answer(q, okLines(lockArgs(found.Locks[0])...))
}

// listLocks lists locks.
func (t *lfsSession) listLocks(q *request, m *lfsMessage) error {
	l := lfs.LockRequest{Action: lfs.ListLocks, Path: m.args["path"], ID: m.args["id"], Cursor: m.args["cursor"]}
	if limit := m.args["limit"]; limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 0 {
			return fault.New(fault.Invalid, "invalid limit %.40q", limit)
		}
		l.Limit = n
	}
	found, err := t.locks(q, m, l)
	if err != nil {
		return err
	}
	var args []string
	if found.Next != "" {
		args = append(args, "next-cursor="+found.Next)
	}
	b := pktline.AppendDelim(appendStatus(nil, http.StatusOK, args...))
	for _, lock := range found.Locks {
		owner := "theirs"
		if lock.Ours {
			owner = "ours"
		}
		b = pktline.AppendLine(b, "lock "+lock.ID)
		b = pktline.AppendLine(b, "path "+lock.ID+" "+lock.Path)
		b = pktline.AppendLine(b, "locked-at "+lock.ID+" "+lockTime(lock))
		b = pktline.AppendLine(b, "ownername "+lock.ID+" "+lock.Owner)
		b = pktline.AppendLine(b, "owner "+lock.ID+" "+owner)
	}
	return t.answer(q, pktline.AppendFlush(b))
}
