package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// spoolPrefix begins the names of the files of spools. They are unlinked as soon as they exist, so that a killed
// process leaves at most the file that it was creating.
const spoolPrefix = "spool-"

// maxSpoolBytes is the maximum size of all spools together.
const maxSpoolBytes = 64 << 30

// spools creates spools in one directory and limits the space that they take together. It is safe for concurrent use.
type spools struct {
	dir   string
	limit int64 // bytes

	mu   sync.Mutex
	used int64
}

// newSpools uses a directory for spools. It creates the directory, and removes files that an earlier process left.
func newSpools(dir string, limit int64) (*spools, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(dir, spoolPrefix+"*"))
	for _, name := range left {
		err = errors.Join(err, os.Remove(name))
	}
	return &spools{dir: dir, limit: limit}, err
}

// reserve takes n bytes of the limit.
func (s *spools) reserve(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used+n > s.limit {
		return fault.Retry(fault.Unavailable, fault.RetrySoon, "too many responses of origins are being relayed")
	}
	s.used += n
	return nil
}

func (s *spools) release(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
}

// form is the form of a response in a spool.
type form uint8

const (
	// formPackets is a response of protocol version 2: packets up to a flush packet, or up to an error.
	formPackets form = iota
	// formLines is a response of versions 0 and 1 to a client that knows side-bands. Without a pack it has no flush
	// packet at its end.
	formLines
	// formBytes is a response whose packets are not known, such as one with a pack outside a side-band.
	formBytes
)

// spool is a response of an origin in a temporary file.
//
// Followers see whole packets only. So a message can follow what they have sent, and a response that the origin cut off
// can end with an error that every client understands.
type spool struct {
	growing
	store *spools
	file  *os.File
	form  form

	// Used only by the writer.
	written  int64
	reserved int64
	packet   packetState

	// Guarded by mu.
	length int64 // bytes that followers may send
	banded int64 // offset after which messages may be sent on side-band 2; -1: not now
	isPack bool  // the response is a complete pack; valid if ended
}

// create returns an empty spool with one user, the writer.
func (s *spools) create(f form) (*spool, error) {
	file, err := os.CreateTemp(s.dir, spoolPrefix)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	y := &spool{store: s, file: file, form: f, banded: -1}
	y.users, y.free = 1, func() {
		_ = file.Close()
		s.release(y.reserved)
	}
	return y, nil
}

// reserveStep is the number of bytes that a spool reserves at once.
const reserveStep = 16 << 20

// Write appends to the response, and shows followers the packets that are now complete.
func (s *spool) Write(p []byte) (int, error) {
	for s.written+int64(len(p)) > s.reserved {
		if err := s.store.reserve(reserveStep); err != nil {
			return 0, err
		}
		s.reserved += reserveStep
	}
	if _, err := s.file.WriteAt(p, s.written); err != nil {
		return 0, fault.Wrap(fault.Unavailable, "the response of the origin could not be stored", err)
	}
	begin := s.written
	s.written += int64(len(p))
	length, banded := s.written, int64(-1)
	if s.form != formBytes {
		if err := s.packet.read(p, begin); err != nil {
			return 0, err
		}
		length, banded = s.packet.end, s.packet.banded()
	}
	s.change(func() { s.length, s.banded = length, banded })
	return len(p), nil
}

// end ends the response. A nil error means that the origin has ended it; end finds out whether it is complete.
func (s *spool) end(err error) {
	isPack := false
	if s.form != formBytes {
		if err == nil {
			err = s.packet.check(s.written, s.form)
		}
		if isPack = s.packet.hasBand && s.packet.flushed && s.packet.end == s.written; isPack {
			err = nil // the flush packet is the end
		}
	}
	s.change(func() {
		s.ended, s.err, s.isPack = true, err, isPack
		s.store.release(s.reserved - s.written)
		s.reserved = s.written
	})
}

// isShareable reports whether the response has ended with a complete pack, which later requests may get as well.
func (s *spool) isShareable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isPack
}

// isOver reports whether the response has ended without a complete pack, so that later requests may not get it.
func (s *spool) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended && !s.isPack
}

// size returns the number of bytes that followers may send.
func (s *spool) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.length
}

// followOptions is how a follower sends a spool.
type followOptions struct {
	prefix []byte                     // sent instead of the first skip bytes
	skip   int64                      // must not be beyond the first packet
	every  time.Duration              // the time between two messages
	note   func(arrived int64) string // a message on side-band 2 when so many bytes have arrived; nil: none
}

// send sends the response to a client, after StartBulk, and follows it to its end. begun reports whether anything was
// sent: if not, the caller has to report the error to the client.
func (s *spool) send(ctx context.Context, response node.ResponseWriter, o followOptions) (begun bool, err error) {
	pos, noted := o.skip, time.Now()
	var timer <-chan time.Time // nil: there are no messages
	if o.note != nil {
		ticker := time.NewTicker(o.every)
		defer ticker.Stop()
		timer = ticker.C
	}
	err = s.follow(ctx, timer, func() (done bool, err error) {
		s.mu.Lock()
		length, banded, ended, failure := s.length, s.banded, s.ended, s.err
		s.mu.Unlock()
		if pos < length {
			if !begun {
				begun = true
				if err := s.begin(response, o, length, ended && failure == nil); err != nil {
					return true, err
				}
				if ended && failure == nil {
					o.note = nil // the length is announced
				}
			}
			if _, err := sendFile(response, s.file, pos, length); err != nil {
				return true, err
			}
			pos = length // the end of a packet
		}
		switch {
		case ended && failure == nil:
			return true, nil
		case ended:
			return true, s.fail(response, failure, begun, banded >= 0 && pos >= banded)
		}
		if o.note != nil && banded >= 0 && pos >= banded && time.Since(noted) >= o.every {
			noted = time.Now()
			return false, writeNote(response, o.note(length))
		}
		return false, nil
	})
	return begun, err
}

// begin announces the response. whole means that length is the length of the complete spool.
func (s *spool) begin(response node.ResponseWriter, o followOptions, length int64, whole bool) error {
	if whole {
		response.SetLength(int64(len(o.prefix)) + length - o.skip)
	}
	if len(o.prefix) == 0 {
		return nil
	}
	if _, err := response.Write(o.prefix); err != nil {
		return &node.ClientConnError{Err: err}
	}
	return nil
}

// fail reports to a client that the response is incomplete.
func (s *spool) fail(response node.ResponseWriter, cause error, begun, banded bool) error {
	if !begun || s.form == formBytes || s.form == formLines && !banded {
		return cause
	}
	message := "packhorse: the response could not be finished: " + fault.Message(cause)
	packet := protocol.AppendError(nil, message)
	if banded {
		packet = pktline.AppendBand(nil, pktline.BandError, message[:min(len(message), maxMessage)]+"\n")
	}
	if _, err := response.Write(packet); err != nil {
		return &node.ClientConnError{Err: err}
	}
	return &node.ReportedError{Err: cause}
}

// maxMessage is the maximum length of a message that also fits into a packet of the small side-band.
const maxMessage = 900

// writeNote sends a message on side-band 2. It ends with a carriage return, so that the next one replaces it.
func writeNote(response node.ResponseWriter, text string) error {
	_, err := response.Write(pktline.AppendBand(nil, pktline.BandProgress, text+"\r"))
	if err == nil {
		err = response.Flush()
	}
	if err != nil {
		return &node.ClientConnError{Err: err}
	}
	return nil
}

// packetState parses a response as it arrives, only as far as the ends of its packets and its side-band.
type packetState struct {
	end     int64 // offset of the end of the last complete packet
	start   int64 // offset of the first packet of the side-band, valid if hasBand
	hasBand bool
	flushed bool // the last complete packet is a flush packet
	refused bool // the last complete packet is an error of the origin

	head   [4 + len("packfile\n")]byte // the first bytes of the current packet
	n      int                         // bytes of the current packet so far
	length int                         // of the current packet, valid if n >= 4
}

// read parses the bytes at an offset.
func (s *packetState) read(p []byte, offset int64) error {
	for len(p) > 0 {
		var k int
		if s.n < 4 {
			k = copy(s.head[s.n:4], p)
		} else {
			k = min(s.length-s.n, len(p))
			if s.n < len(s.head) {
				copy(s.head[s.n:], p[:k])
			}
		}
		s.n, p, offset = s.n+k, p[k:], offset+int64(k)
		if s.n == 4 {
			length, err := pktline.ParseLength(s.head[:4])
			if err != nil {
				return fault.Wrap(fault.Unavailable, "the origin sent an invalid response", err)
			}
			s.length = max(length, 4)
		}
		if !s.hasBand && s.n > 4 && s.head[4] <= byte(pktline.BandError) {
			s.hasBand, s.start = true, s.end
		}
		if s.n >= 4 && s.n == s.length {
			s.finish(offset)
		}
	}
	return nil
}

// finish ends the current packet at an offset.
func (s *packetState) finish(offset int64) {
	payload := s.head[4:min(s.n, len(s.head))]
	s.flushed = string(s.head[:4]) == "0000"
	s.refused = bytes.HasPrefix(payload, []byte("ERR ")) ||
		len(payload) > 0 && pktline.Band(payload[0]) == pktline.BandError
	if !s.hasBand && s.n <= len(s.head) && strings.TrimSuffix(string(payload), "\n") == "packfile" {
		s.hasBand, s.start = true, offset
	}
	s.end, s.n = offset, 0
}

// banded returns the offset after which messages may be sent on side-band 2, or -1 if none may be sent now.
func (s *packetState) banded() int64 {
	if s.hasBand && !s.flushed {
		return s.start
	}
	return -1
}

// check reports whether a response of so many bytes is complete.
func (s *packetState) check(written int64, f form) error {
	if s.end == written && (s.flushed || s.refused || f == formLines && !s.hasBand) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, "the origin cut off its response",
		fmt.Errorf("%w after %d bytes", io.ErrUnexpectedEOF, written))
}
