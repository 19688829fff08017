package sidechannel

import (
	"encoding/binary"
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// A header as the package's comment defines it.
const (
	headerSize = 24
	offsetSize = 8 // bytes after a FILE
	maxMessage = 1024
	maxLength  = 1 << 44
	unknown    = -1
)

type headerType byte

const (
	start headerType = 'S'
	data  headerType = 'D'
	file  headerType = 'F'
	taken headerType = 'T'
	end   headerType = 'E'
)

type header struct {
	kind     headerType
	status   byte
	message  uint16 // bytes that follow
	retry    uint32 // ms
	transfer uint64
	length   int64 // or unknown
}

// append appends the header's bytes.
func (h *header) append(b []byte) []byte {
	b = append(b, byte(h.kind), h.status)
	b = binary.BigEndian.AppendUint16(b, h.message)
	b = binary.BigEndian.AppendUint32(b, h.retry)
	b = binary.BigEndian.AppendUint64(b, h.transfer)
	return binary.BigEndian.AppendUint64(b, uint64(h.length))
}

var errHeader = errors.New("a header that breaks the rules")

// parseHeader parses a header. It is the inverse of append.
func parseHeader(b *[headerSize]byte) (header, error) {
	h := header{
		kind:     headerType(b[0]),
		status:   b[1],
		message:  binary.BigEndian.Uint16(b[2:]),
		retry:    binary.BigEndian.Uint32(b[4:]),
		transfer: binary.BigEndian.Uint64(b[8:]),
		length:   int64(binary.BigEndian.Uint64(b[16:])),
	}
	ok := h.length >= 0 && h.length <= maxLength
	switch h.kind {
	case start:
		ok = ok || h.length == unknown
	case data, file:
		ok = ok && h.length > 0
	case taken, end:
		ok = ok && h.message <= maxMessage && (h.status != 0 || h.message == 0 && h.retry == 0)
	default:
		ok = false
	}
	if h.kind != end && h.kind != taken && (h.status != 0 || h.message != 0 || h.retry != 0) {
		ok = false
	}
	if !ok || h.transfer == 0 {
		return header{}, errHeader
	}
	return h, nil
}

// statuses are the kinds of fault by their numbers on the wire; 0 means success.
var statuses = [...]fault.Kind{
	1: fault.Internal, 2: fault.Invalid, 3: fault.NotFound, 4: fault.Denied, 5: fault.Exhausted,
	6: fault.Unavailable, 7: fault.Corrupt, 8: fault.Cancelled, 9: fault.Deadline, 10: fault.Exists,
	11: fault.Unauthenticated, 12: fault.Full, 13: fault.Aborted, 14: fault.Precondition, 15: fault.OutOfRange,
}

// appendStatus appends an END or TAKEN header for length bytes. If err is not nil, its message follows.
func appendStatus(b []byte, kind headerType, transfer uint64, length int64, err error) []byte {
	h := header{kind: kind, transfer: transfer, length: length}
	if err == nil {
		return h.append(b)
	}
	h.status = 1
	for i, kind := range statuses {
		if i > 0 && kind == fault.KindOf(err) {
			h.status = byte(i)
		}
	}
	message := fault.Message(err)
	if len(message) > maxMessage {
		message = message[:maxMessage]
		for !utf8.ValidString(message) {
			message = message[:len(message)-1]
		}
	}
	h.message = uint16(len(message))
	h.retry = uint32(min(max(fault.RetryAfter(err).Milliseconds(), 0), 1<<31))
	return append(h.append(b), message...)
}

// fault returns the failure in an END or TAKEN.
func (h *header) fault(message []byte) error {
	kind := fault.Internal
	if int(h.status) < len(statuses) {
		kind = statuses[h.status]
	}
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(message), "?"))
	return &fault.Error{Kind: kind, Msg: text, RetryAfter: time.Duration(h.retry) * time.Millisecond}
}
