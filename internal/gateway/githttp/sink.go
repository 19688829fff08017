package githttp

import (
	"cmp"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/packhorse-git/packhorse/internal/node"
)

// sink sends a response to an HTTP client.
type sink struct {
	q      *request
	prefix []byte // sent before the node's response

	status int               // default 200
	header func(http.Header) // adds to the header of a successful response

	archive func(node.ArchiveHeader) // of an archive; nil for other responses
}

// Begin implements gateway.Sink.
func (s *sink) Begin() error {
	if s.header != nil {
		s.header(s.q.w.Header())
	}
	s.q.begin(cmp.Or(s.status, http.StatusOK))
	if len(s.prefix) == 0 { // a status may have no body
		return nil
	}
	_, err := s.Write(s.prefix)
	return err
}

// SetArchive implements node.ArchiveWriter.
func (s *sink) SetArchive(h node.ArchiveHeader) {
	if s.archive != nil {
		s.archive(h)
	}
}

// SetLength implements gateway.Sink.
func (s *sink) SetLength(n int64) {
	if n < 0 {
		s.q.Bytes.Retract()
		s.q.w.Header().Del("Content-Length")
		s.q.w.Header().Del(stalenessHeader)
		return
	}
	n += int64(len(s.prefix))
	s.q.Bytes.Announce(n)
	s.q.w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
}

// stalenessHeader has the age of a mirror's state in seconds if its origin does not answer.
const stalenessHeader = "Packhorse-Staleness"

// SetStaleness implements node.StalenessWriter.
func (s *sink) SetStaleness(age time.Duration) {
	if age == 0 {
		s.q.w.Header().Del(stalenessHeader)
		return
	}
	s.q.w.Header().Set(stalenessHeader, strconv.FormatInt(int64(age.Seconds()), 10))
}

// Write implements gateway.Sink.
func (s *sink) Write(p []byte) (int, error) {
	n, err := s.q.w.Write(p)
	s.q.Sent(n)
	return n, err
}

// ReadFrom implements gateway.Sink. The kernel copies if no wrapper is around the connection.
func (s *sink) ReadFrom(src io.Reader) (int64, error) { return s.q.SendFrom(s.q.w, src) }

// Flush implements gateway.Sink.
func (s *sink) Flush() error { return http.NewResponseController(s.q.w).Flush() }

// ExpectSilence implements gateway.Sink. net/http watches the connection.
func (s *sink) ExpectSilence() {}
