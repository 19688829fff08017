package gitssh

import (
	"io"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node"
)

// sink sends a response into a session's channel.
type sink struct {
	q      *request
	silent bool // the client may be silent: nothing more is to come from it
}

// Begin implements gateway.Sink.
func (s *sink) Begin() error { return nil }

// SetLength implements gateway.Sink.
func (s *sink) SetLength(n int64) {
	if n < 0 {
		s.q.Bytes.Retract()
		return
	}
	s.q.Bytes.Announce(n)
}

// ExpectSilence implements gateway.Sink. The request of a session with state has no end from which the gateway could
// know it. But after a pack was announced nothing more is to come.
func (s *sink) ExpectSilence() {
	s.silent = true
	_ = s.q.session.setReadDeadline(time.Time{})
}

// Write implements gateway.Sink.
func (s *sink) Write(p []byte) (int, error) {
	n, err := s.write(p)
	s.q.Sent(n)
	return n, err
}

// write sends p.
func (s *sink) write(p []byte) (int, error) {
	session := s.q.session
	if s.silent || s.q.Op == gateway.Push { // a push is answered when it was received
		_ = session.setReadDeadline(time.Time{})
	}
	return session.send(p)
}

// send sends p, and ends the session if the client reads nothing of it for too long.
func (s *session) send(p []byte) (int, error) {
	s.writing.Reset(s.WriteStall)
	n, err := s.channel.Write(p)
	s.writing.Stop()
	s.wire.backlog.sent(n)
	if err != nil {
		err = &node.ClientConnError{Err: err}
	}
	return n, err
}

// copyBufferSize is how much of a file is read at once: two of the largest packets that OpenSSH accepts. A client that
// waits holds one buffer.
const copyBufferSize = 64 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copyBufferSize]byte) }}

// ReadFrom implements gateway.Sink. The bytes pass through a buffer because they have to be encrypted.
func (s *sink) ReadFrom(src io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[copyBufferSize]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{s}, struct{ io.Reader }{src}, buf[:])
}

// lengthField is the size of a packet's length field in bytes.
const lengthField = pktline.MaxLine - pktline.MaxPayload

// sendPackets sends src as packets that begin with the same bytes. Only the bytes of src are counted.
func (s *sink) sendPackets(src io.Reader, first []byte) (sent int64, err error) {
	buf := copyBuffers.Get().(*[copyBufferSize]byte)
	defer copyBuffers.Put(buf)
	head := lengthField + copy(buf[lengthField:], first)
	for {
		n, err := src.Read(buf[head : lengthField+pktline.MaxBandData])
		if n > 0 {
			pktline.PutLength(buf[:], head+n)
			if _, broken := s.write(buf[:head+n]); broken != nil {
				return sent, broken
			}
			s.q.Sent(n)
			sent += int64(n)
		}
		switch err {
		case nil:
		case io.EOF:
			return sent, nil
		default:
			return sent, err
		}
	}
}

// Flush implements gateway.Sink. Nothing is buffered.
func (s *sink) Flush() error { return nil }
