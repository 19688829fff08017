package bulk

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// pair connects two Conns that share a pump.
func pair(t testing.TB, network string, pump *Pump, stall time.Duration) (server, client *Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Listen(l, pump, stall).Accept()
	if err != nil {
		t.Fatal(err)
	}
	client, err = NewConn(c.(Socket), pump, stall)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); client.Close() })
	return s.(*Conn), client
}

// chain is the path of a file through a gateway: node -> in, out -> end.
type chain struct {
	pump               *Pump
	node, in, out, end *Conn
}

func newRoad(t testing.TB, networks [2]string, pump *Pump, stall time.Duration) *chain {
	r := &chain{pump: pump}
	r.node, r.in = pair(t, networks[0], pump, stall)
	r.out, r.end = pair(t, networks[1], pump, stall)
	return r
}

var networks = [][2]string{{"tcp", "tcp"}, {"unix", "tcp"}, {"tcp", "unix"}, {"unix", "unix"}}

// Streams of many lengths follow each other on the same connections, and each byte arrives where it belongs.
func TestRelay(t *testing.T) {
	t.Parallel()
	f, data := tempFile(t, 5<<20)
	for _, n := range networks {
		t.Run(n[0]+" to "+n[1], func(t *testing.T) {
			t.Parallel()
			r := newRoad(t, n, NewPump(PumpOptions{Width: 2}), time.Minute)
			rnd := rand.New(rand.NewPCG(1, 2))
			var wg sync.WaitGroup
			lengths := make(chan [2]int64, 16)
			ends := make(chan [2]int64, 16)
			wg.Go(func() {
				defer close(lengths)
				for i := range 16 {
					if i%4 == 0 {
						r.pump.Served() // short steps
					}
					s := Section{File: f, N: rnd.Int64N(5 << (1 + rnd.IntN(20)))}
					s.Offset = rnd.Int64N(5<<20 - s.N + 1)
					part := [2]int64{s.Offset, s.N}
					lengths <- part
					if _, err := r.node.ReadFrom(&s); err != nil {
						t.Error(err)
					}
				}
			})
			wg.Go(func() {
				defer close(ends)
				for part := range lengths {
					ends <- part
					s := Stream{From: r.in, N: part[1]}
					read := int64(0)
					if part[1]%3 == 0 { // a part through user space first, as net/http does
						buf := make([]byte, 512)
						k, _ := io.ReadFull(&s, buf)
						read = int64(k)
						if _, err := r.out.Write(buf[:k]); err != nil {
							t.Error(err)
						}
					}
					n, err := r.out.ReadFrom(&s)
					if err != nil || n+read != part[1] || s.N != 0 || s.Err() != nil {
						t.Errorf("moved %d of %d bytes, %d left: %v", n+read, part[1], s.N, err)
					}
					if kernelCopies && s.KernelBytes() != n {
						t.Errorf("the kernel moved %d of %d bytes", s.KernelBytes(), n)
					}
				}
			})
			for part := range ends {
				got := make([]byte, part[1])
				if _, err := io.ReadFull(r.end, got); err != nil ||
					sha256.Sum256(got) != sha256.Sum256(data[part[0]:part[0]+part[1]]) {
					t.Errorf("%d bytes arrived wrong: %v", part[1], err)
				}
			}
			wg.Wait()
			if r.pump.Running() != 0 {
				t.Error("a turn is still in use, want none")
			}
		})
	}
}

// TestRelayEnds ends a relay in every way. The error names the side, and nothing stays behind: no turn, and no bytes in
// a pipe that other relays use.
func TestRelayEnds(t *testing.T) {
	t.Parallel()
	const size = 32 << 20 // more than the sockets and the pipe hold
	type test struct {
		full   bool // the destination, else the source is empty
		stall  time.Duration
		end    func(r *chain)
		source bool // it is the source that fails
		want   error
	}
	for name, test := range map[string]test{
		"source closed by its peer": {end: func(r *chain) { r.node.Close() }, source: true,
			want: io.ErrUnexpectedEOF},
		"source closed by ourselves": {end: func(r *chain) { r.in.Close() }, source: true,
			want: net.ErrClosed},
		"source is silent": {stall: 100 * time.Millisecond, source: true,
			want: os.ErrDeadlineExceeded},
		"destination closed, source empty": {end: func(r *chain) { r.out.Close() }, want: net.ErrClosed},
		"destination closed by ourselves":  {full: true, end: func(r *chain) { r.out.Close() }, want: net.ErrClosed},
		"destination closed by its peer":   {full: true, end: func(r *chain) { r.end.Close() }},
		"destination takes nothing": {full: true, stall: 200 * time.Millisecond,
			want: os.ErrDeadlineExceeded},
		"source closed while destination full": {full: true,
			end: func(r *chain) { r.node.Close(); r.in.Close(); r.out.Close() }},
	} {
		for _, n := range networks {
			t.Run(name+"/"+n[0]+" to "+n[1], func(t *testing.T) {
				t.Parallel()
				r := newRoad(t, n, NewPump(PumpOptions{Width: 1}), test.stall)
				_ = r.node.SetStall(0) // the test is not about its peer
				if test.full {
					_ = r.in.SetStall(0)
				}
				s := Stream{From: r.in, N: size}
				var wg sync.WaitGroup
				wg.Go(func() {
					if test.full {
						_, _ = r.node.Write(make([]byte, size))
					} else {
						_, _ = r.node.Write(make([]byte, 1000))
					}
				})
				if test.end != nil {
					wg.Go(func() {
						_, _ = io.ReadFull(r.end, make([]byte, 1000)) // the relay runs
						test.end(r)
					})
				}
				moved, err := r.out.ReadFrom(&s)
				if err == nil || test.want != nil && !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if test.want != nil && (s.Err() != nil) != test.source {
					t.Errorf("the source failed with %v, want one: %v", s.Err(), test.source)
				}
				if moved >= size || moved+s.N > size {
					t.Errorf("%d bytes moved, %d left of %d", moved, s.N, size)
				}
				r.node.Close()
				wg.Wait()
				if r.pump.Running() != 0 {
					t.Error("a turn is still in use, want none")
				}
				// The next reader gets none of these bytes.
				next := newRoad(t, n, r.pump, time.Minute)
				wg.Go(func() { _, _ = next.node.Write(bytes.Repeat([]byte("x"), 1000)) })
				if _, err := next.out.ReadFrom(&Stream{From: next.in, N: 1000}); err != nil {
					t.Error(err)
				}
				got := make([]byte, 1000)
				if _, err := io.ReadFull(next.end, got); err != nil ||
					!bytes.Equal(got, bytes.Repeat([]byte("x"), 1000)) {
					t.Errorf("other bytes arrived: %v", err)
				}
				wg.Wait()
			})
		}
	}
}

// With one turn in all, neither an empty source nor a full destination keeps others waiting.
func TestWaitingRelayHoldsNoTurn(t *testing.T) {
	t.Parallel()
	f, data := tempFile(t, 16<<20)
	pump := NewPump(PumpOptions{Width: 1})
	var wg sync.WaitGroup
	var stuck []*Conn
	for i := range 4 {
		r := newRoad(t, networks[i], pump, 0)
		stuck = append(stuck, r.node, r.in, r.out)
		if i%2 == 0 {
			wg.Go(func() { _, _ = r.node.ReadFrom(&Section{File: f, N: 16 << 20}) })
		}
		wg.Go(func() { _, _ = r.out.ReadFrom(&Stream{From: r.in, N: 16 << 20}) })
	}
	r := newRoad(t, networks[0], pump, time.Minute)
	wg.Go(func() { _, _ = r.node.ReadFrom(&Section{File: f, N: 16 << 20}) })
	wg.Go(func() { _, _ = r.out.ReadFrom(&Stream{From: r.in, N: 16 << 20}); r.out.Close() })
	got, err := io.ReadAll(r.end)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes beside stuck relays: %v", len(got), err)
	}
	for _, c := range stuck {
		c.Close()
	}
	wg.Wait()
}

// A source keeps no deadline that a stream has set.
func TestRelayLeavesNoDeadline(t *testing.T) {
	t.Parallel()
	r := newRoad(t, networks[0], NewPump(PumpOptions{}), time.Minute)
	for name, splicer := range map[string]func(s *Stream) (int64, error){
		"splice": func(s *Stream) (int64, error) { return r.out.ReadFrom(s) },
		"user":   func(s *Stream) (int64, error) { return io.Copy(r.out, readerOnly{s}) },
		"both": func(s *Stream) (int64, error) {
			n, err := s.Read(make([]byte, 100))
			if _, err := r.out.Write(make([]byte, n)); err != nil {
				return 0, err
			}
			k, _ := r.out.ReadFrom(s)
			return int64(n) + k, err
		},
	} {
		s := Stream{From: r.in, N: 2000}
		var wg sync.WaitGroup
		wg.Go(func() {
			if n, err := splicer(&s); n != 2000 || err != nil {
				t.Errorf("%s: %d bytes: %v", name, n, err)
			}
		})
		for range 2 {
			_, _ = r.node.Write(make([]byte, 1000))
			if _, err := io.ReadFull(r.end, make([]byte, 1000)); err != nil { // so the relay waits for more now
				t.Fatal(err)
			}
		}
		wg.Wait()
		if s.limited {
			t.Errorf("%s: a deadline was left set", name)
		}
	}
}

func TestRelayDoesNotAllocate(t *testing.T) {
	const size = 32 << 20
	f, _ := tempFile(t, size)
	for _, n := range networks {
		r := newRoad(t, n, NewPump(PumpOptions{}), time.Minute)
		var drained sync.WaitGroup
		drained.Go(func() { _, _ = io.Copy(io.Discard, r.end.Socket.(io.Reader)) })
		start, section, stream := make(chan bool), &Section{}, &Stream{}
		drained.Go(func() {
			for range start {
				*section = Section{File: f, N: size}
				if _, err := r.node.ReadFrom(section); err != nil {
					t.Error(err)
				}
			}
		})
		allocs := testing.AllocsPerRun(5, func() {
			start <- true
			*stream = Stream{From: r.in, N: size}
			if _, err := r.out.ReadFrom(stream); err != nil {
				t.Error(err)
			}
		})
		if allocs > 20 {
			t.Errorf("%v: %v allocations for a transfer of %d bytes", n, allocs, size)
		}
		close(start)
		r.out.Close()
		drained.Wait()
	}
}
