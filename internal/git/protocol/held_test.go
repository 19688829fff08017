package protocol

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// linesOf is a request with n lines that are generated when they are read, so that it takes no memory.
type linesOf struct {
	n, at int
	line  func(b []byte, i int) []byte
	buf   []byte
	rest  []byte
}

func (l *linesOf) Read(p []byte) (int, error) {
	for len(l.rest) == 0 {
		switch {
		case l.at == 0:
			l.rest = []byte(request("command=fetch", "|"))
		case l.at <= l.n:
			start := 0
			l.buf, start = pktline.Start(l.buf[:0])
			l.buf = pktline.Finish(l.line(l.buf, l.at), start)
			l.rest = l.buf
		case l.at == l.n+1:
			l.rest = []byte("0000")
		default:
			return 0, io.EOF
		}
		l.at++
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

func named(key string) func(b []byte, i int) []byte {
	return func(b []byte, i int) []byte { return fmt.Appendf(b, "%s%07x", key, i) }
}

func withID(key string) func(b []byte, i int) []byte {
	return func(b []byte, i int) []byte { return fmt.Appendf(b, "%s %08x%032x", key, uint32(i)*2654435761, i) }
}

// TestChargeCoversMemory compares the memory that counts for a request with its measured memory.
func TestChargeCoversMemory(t *testing.T) { // alone: it measures the heap
	for _, test := range []struct {
		name string
		n    int
		line func(b []byte, i int) []byte
	}{
		{"wants", 40_000, withID("want")},
		{"haves", 40_000, withID("have")},
		{"haves, lists just full", 1 << 15, withID("have")},
		{"haves, lists just grown", 1<<15 + 1000, withID("have")},
		{"shallows", 40_000, withID("shallow")},
		{"want-refs", 40_000, named("want-ref refs/heads/")},
		{"short want-refs", 20_000, func(b []byte, i int) []byte { return fmt.Appendf(b, "want-ref refs/%x", i) }},
		{"deepen-nots", 40_000, named("deepen-not ")},
		{"haves that repeat", 10_000, func(b []byte, i int) []byte { return withID("have")(b, i%10) }},
		{"wants that repeat", 10_000, func(b []byte, i int) []byte { return withID("want")(b, i%10) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			held := int64(0)
			limits := Limits{DeepenNot: test.n, Hold: func(n int64) error { held += n; return nil }}
			reader := pktline.NewReader(&linesOf{n: test.n, line: test.line})
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			r, err := ReadRequest(reader, git.SHA1, everything, limits)
			if err != nil {
				t.Fatal(err)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			runtime.KeepAlive(r)
			live := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			const slack = 256 << 10 // buffers of the reader, what else runs
			t.Logf("%d lines take %d bytes, and were counted as %d", test.n, live, held)
			if live > held+slack {
				t.Errorf("%d bytes are taken, and %d were counted", live, held)
			}
			if held > 4*live+slack {
				t.Errorf("%d bytes are taken, and %d were counted", live, held)
			}
		})
	}
}

// TestRefusedMemoryEndsTheParsing checks that parsing ends at the memory limit for every kind of line.
func TestRefusedMemoryEndsTheParsing(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]func(b []byte, i int) []byte{
		"want": withID("want"), "have": withID("have"), "shallow": withID("shallow"),
		"want-ref": named("want-ref refs/heads/"), "deepen-not": named("deepen-not "),
	} {
		full := fault.New(fault.Exhausted, "full")
		held := int64(0)
		limits := Limits{DeepenNot: 10_000, Hold: func(n int64) error {
			if held += n; held > 100<<10 {
				return full
			}
			return nil
		}}
		source := &linesOf{n: 10_000, line: line}
		if _, err := ReadRequest(pktline.NewReader(source), git.SHA1, everything, limits); !errors.Is(err, full) ||
			source.at >= 10_000 {
			t.Errorf("%s: %v after %d lines", name, err, source.at)
		}
	}
}
