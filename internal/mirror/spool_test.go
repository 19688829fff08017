package mirror

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// follower is a node.ResponseWriter that keeps what it gets.
type follower struct {
	bytes.Buffer
	length int64 // announced; -1: not
	stale  time.Duration
}

func newClient() *follower { return &follower{length: -1} }

func (c *follower) SetLength(n int64)                   { c.length = n }
func (c *follower) ReserveMemory(int64) error           { return nil }
func (c *follower) StartBulk(bool) error                { return nil }
func (c *follower) Flush() error                        { return nil }
func (c *follower) SetStaleness(age time.Duration)      { c.stale = age }
func (c *follower) ReadFrom(r io.Reader) (int64, error) { return c.Buffer.ReadFrom(r) }

func newTestSpools(t *testing.T, limit int64) *spools {
	t.Helper()
	s, err := newSpools(t.TempDir(), limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.used != 0 {
			t.Errorf("used = %d bytes after the last release, want 0", s.used)
		}
		if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
			t.Errorf("directory = %v, error %v, want no files", left, err)
		}
	})
	return s
}

// packResponse is a response of version 2 with sections, progress and n bytes of a pack.
func packResponse(n int) []byte {
	b := pktline.AppendLine(nil, "shallow-info")
	b = pktline.AppendLine(b, "shallow 0123456789012345678901234567890123456789")
	b = pktline.AppendDelim(b)
	b = pktline.AppendLine(b, "packfile")
	b = pktline.AppendBand(b, pktline.BandProgress, "Counting objects\n")
	b = pktline.AppendBand(b, pktline.BandData, strings.Repeat("PACK", n/4))
	return pktline.AppendFlush(b)
}

func TestSpoolHasManyFollowers(t *testing.T) {
	t.Parallel()
	spools := newTestSpools(t, 1<<30)
	s, err := spools.create(formPackets)
	if err != nil {
		t.Fatal(err)
	}
	want := packResponse(300_000)
	var followers sync.WaitGroup
	for range 20 {
		s.acquire()
		followers.Go(func() {
			defer s.release()
			c := newClient()
			if begun, err := s.send(t.Context(), c, followOptions{}); err != nil || !begun {
				t.Errorf("send = %v, %v, want true and no error", begun, err)
			}
			if !bytes.Equal(c.Bytes(), want) {
				t.Errorf("got %d bytes, want %d", c.Len(), len(want))
			}
		})
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for rest := want; len(rest) > 0; {
		n := min(len(rest), 1+rnd.IntN(5000))
		if _, err := s.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	s.end(nil)
	followers.Wait()
	late := newClient() // after the end the length is known
	_, err = s.send(t.Context(), late, followOptions{prefix: []byte("0011shallow-xxx.\n"), skip: 17})
	if err != nil || late.length != int64(late.Len()) || !bytes.Equal(late.Bytes()[17:], want[17:]) {
		t.Errorf("send = %v, length %d of %d bytes, want the announced length", err, late.length, late.Len())
	}
	if !s.isShareable() {
		t.Error("isShareable() = false, want true")
	}
	s.release()
}

// A response that the origin cuts off ends with an error for each follower, and never looks complete.
func TestSpoolIsCutOff(t *testing.T) {
	t.Parallel()
	spools := newTestSpools(t, 1<<30)
	response := packResponse(100_000)
	inPack := bytes.Index(response, []byte("PACK")) + 70_000
	v0 := pktline.AppendBand(pktline.AppendLine(nil, "NAK"), pktline.BandData, "PACK")
	broken := fault.New(fault.Unavailable, "connection reset")
	for _, test := range []struct {
		name   string
		form   form
		bytes  []byte
		cause  error
		suffix string // in what the client gets
		told   bool   // the client gets an error
	}{
		{"in the pack", formPackets, response[:inPack], broken, "\x03packhorse: the response could not be finished: " +
			"connection reset\n", true},
		{"in the pack, without an error", formPackets, response[:inPack], nil, "the origin cut off its response\n", true},
		{"before the flush packet", formPackets, response[:len(response)-4], nil, "cut off its response\n", true},
		{"in the sections", formPackets, response[:30], broken, "ERR packhorse: the response could not be finished: " +
			"connection reset", true},
		{"at once", formPackets, nil, broken, "", false},
		{"without any packet", formPackets, response[:7], nil, "", false},
		{"in a pack of version 0", formLines, v0, nil, "cut off its response\n", true},
		{"in the lines of version 0", formLines, v0[:10], nil, "", false},
		{"without a side-band", formBytes, []byte("0008NAK\nPACK"), broken, "PACK", false},
		{"invalid", formPackets, append(response[:17:17], "zzzz"...), nil, "", false},
	} {
		s, err := spools.create(test.form)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Write(test.bytes)
		s.end(errors.Join(err, test.cause))
		c := newClient()
		begun, err := s.send(t.Context(), c, followOptions{note: func(int64) string { return "waiting" }, every: time.Hour})
		_, told := errors.AsType[*node.ReportedError](err)
		if err == nil || told != test.told || begun != (c.Len() > 0) || !strings.HasSuffix(c.String(), test.suffix) {
			t.Errorf("%s: got begun %v, error %v (reported: %v) and a response that ends with %q, want %q (reported: %v)",
				test.name, begun, err, told, c.Bytes()[max(0, c.Len()-90):], test.suffix, test.told)
		}
		if !fault.Is(err, fault.Unavailable) || c.length >= 0 || s.isShareable() {
			t.Errorf("%s: kind %v, length %d, shareable %v, want unavailable without a length", test.name,
				fault.KindOf(err), c.length, s.isShareable())
		}
		s.release()
	}
}

func TestSpoolEndsWithErrorOfOrigin(t *testing.T) {
	t.Parallel()
	spools := newTestSpools(t, 1<<30)
	for _, response := range [][]byte{
		protocol.AppendError(nil, "not our ref"),
		pktline.AppendBand(packResponse(8)[:100:100][:0], pktline.BandError, "internal error\n"),
	} {
		s, err := spools.create(formPackets)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Write(response)
		s.end(err)
		c := newClient()
		if _, err := s.send(t.Context(), c, followOptions{}); err != nil || !bytes.Equal(c.Bytes(), response) {
			t.Errorf("send = %q, %v, want %q", c.Bytes(), err, response)
		}
		if s.isShareable() {
			t.Errorf("%q is shareable, want an error that is not kept", response)
		}
		s.release()
	}
}

func TestMessagesKeepClientAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		spools := newTestSpools(t, 1<<30)
		s, err := spools.create(formPackets)
		if err != nil {
			t.Fatal(err)
		}
		response := packResponse(40)
		begin := bytes.Index(response, []byte("packfile\n"))
		var followers sync.WaitGroup
		c, quiet := newClient(), newClient()
		for out, o := range map[*follower]followOptions{
			c:     {note: func(int64) string { return "mirroring" }, every: time.Second},
			quiet: {},
		} {
			followers.Go(func() {
				if _, err := s.send(t.Context(), out, o); err != nil {
					t.Error(err)
				}
			})
		}
		part := func(p []byte) {
			if _, err := s.Write(p); err != nil {
				t.Error(err)
			}
			time.Sleep(2500 * time.Millisecond)
		}
		part(response[:begin]) // no side-band yet
		part(response[begin : begin+9])
		part(response[begin+9 : begin+30]) // a part of a packet
		part(response[begin+30:])
		s.end(nil)
		followers.Wait()
		s.release()
		if !bytes.Equal(quiet.Bytes(), response) {
			t.Errorf("without messages: got %q, want %q", quiet.Bytes(), response)
		}
		const note = "000f\x02mirroring\r"
		if got := bytes.Count(c.Bytes(), []byte(note)); got < 4 || got > 8 {
			t.Errorf("got %d messages, want about 2 in each of the last three steps", got)
		}
		if got := bytes.ReplaceAll(c.Bytes()[:c.Len()-4], []byte(note), nil); !bytes.Equal(got, response[:len(response)-4]) {
			t.Errorf("without the messages: got %q, want %q", got, response)
		}
	})
}

func TestSpoolsAreBounded(t *testing.T) {
	t.Parallel()
	spools := newTestSpools(t, reserveStep)
	a, err := spools.create(formBytes)
	if err != nil {
		t.Fatal(err)
	}
	b, err := spools.create(formBytes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := b.Write([]byte("x")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Write = %v, want unavailable", err)
	}
	a.end(nil) // gives back what it does not need
	if _, err := b.Write([]byte("x")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Write = %v, want unavailable", err)
	}
	a.release()
	if _, err := b.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	b.release()
}

func TestFollowerLeaves(t *testing.T) {
	t.Parallel()
	spools := newTestSpools(t, 1<<30)
	s, err := spools.create(formPackets)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if begun, err := s.send(ctx, newClient(), followOptions{}); begun || !errors.Is(err, context.Canceled) {
		t.Errorf("send = %v, %v, want false and a cancelled context", begun, err)
	}
	s.release()
}
