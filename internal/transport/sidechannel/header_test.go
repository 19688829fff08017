package sidechannel

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
)

func headerBytes(h header) []byte { return h.append(nil) }

func FuzzHeader(f *testing.F) {
	for _, h := range []header{
		{kind: start, transfer: 1, length: 10},
		{kind: start, transfer: 1, length: unknown},
		{kind: data, transfer: 7, length: maxLength},
		{kind: end, transfer: 1 << 63},
		{kind: end, transfer: 3, status: 9, message: maxMessage, retry: 1},
		{kind: data, transfer: 1, length: maxLength + 1},
		{kind: data, transfer: 1, length: unknown},
		{kind: end, transfer: 3, message: 1},
		{kind: 'X', transfer: 3},
		{kind: start},
	} {
		f.Add(headerBytes(h))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerSize {
			return
		}
		raw := [headerSize]byte(b[:headerSize])
		h, err := parseHeader(&raw)
		if err != nil {
			if h != (header{}) {
				t.Errorf("%+v beside an error", h)
			}
			return
		}
		if !bytes.Equal(h.append(nil), raw[:]) {
			t.Errorf("%x became %+v, and that %x", raw, h, h.append(nil))
		}
		if h.length > maxLength || h.length < unknown || h.length == unknown && h.kind != start ||
			h.message > maxMessage {
			t.Errorf("%+v is beyond the limits", h)
		}
	})
}

// Faults have the same kind, text and retry hint at the other end.
func FuzzEnd(f *testing.F) {
	f.Add(byte(3), "gone", int64(1500))
	f.Add(byte(9), strings.Repeat("ä", maxMessage), int64(-1))
	f.Add(byte(200), "\x00\xff", int64(1)<<60)
	f.Fuzz(func(t *testing.T, kind byte, text string, ms int64) {
		sent := &fault.Error{Kind: fault.Kind(kind), Msg: text, RetryAfter: time.Duration(ms) * time.Millisecond,
			Err: errors.New("a secret")}
		b := appendStatus(nil, end, 5, 77, sent)
		raw := [headerSize]byte(b[:headerSize])
		h, err := parseHeader(&raw)
		if err != nil || h.transfer != 5 || h.length != 77 || h.status == 0 || int(h.message) != len(b)-headerSize {
			t.Fatalf("%+v, %v, and %d bytes", h, err, len(b)-headerSize)
		}
		got := h.fault(b[headerSize:])
		if want := fault.Kind(kind); fault.KindOf(got) != want && want <= fault.Full {
			t.Errorf("kind %v became %v", want, fault.KindOf(got))
		}
		if m := fault.Message(got); !utf8.ValidString(m) || strings.ContainsAny(m, "\x00\n") || len(m) > 4*maxMessage {
			t.Errorf("message %q", m)
		}
		if utf8.ValidString(text) && len(text) < maxMessage &&
			!strings.ContainsFunc(text, func(r rune) bool { return r < 0xa0 && (r < ' ' || r >= 0x7f) }) &&
			fault.Message(got) != text {
			t.Errorf("message %q became %q", text, fault.Message(got))
		}
		if ms >= 0 && ms < 1<<31 && fault.RetryAfter(got) != sent.RetryAfter {
			t.Errorf("retry after %v became %v", sent.RetryAfter, fault.RetryAfter(got))
		}
	})
}
