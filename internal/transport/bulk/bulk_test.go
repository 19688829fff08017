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

func tempFile(t *testing.T, size int) (*os.File, []byte) {
	t.Helper()
	data := make([]byte, size)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(data)
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, data
}

func connect(t *testing.T, pump *Pump, stall time.Duration) (server *Conn, client *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Listen(l, pump, stall).Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); c.Close() })
	return s.(*Conn), c.(*net.TCPConn)
}

func TestManyConnectionsShareOneFile(t *testing.T) {
	t.Parallel()
	f, data := tempFile(t, 3<<20+17)
	pump := NewPump(PumpOptions{Width: 2, Narrow: 1})
	var wg sync.WaitGroup
	for i := range 8 {
		server, client := connect(t, pump, time.Minute)
		offset := int64(i * 1000)
		wg.Go(func() {
			s := &Section{File: f, Offset: offset, N: int64(len(data)) - offset}
			n, err := io.Copy(server, s)
			if err != nil || n != int64(len(data))-offset {
				t.Errorf("sent %d bytes: %v", n, err)
			}
			if kernelCopies && s.KernelBytes() != n {
				t.Errorf("the kernel copied %d of %d bytes", s.KernelBytes(), n)
			}
			_, _ = server.Write(data[:100<<10]) // user-space bytes after it keep their place
			server.Close()
		})
		wg.Go(func() {
			got, err := io.ReadAll(client)
			want := append(bytes.Clone(data[offset:]), data[:100<<10]...)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
				t.Errorf("received %d bytes, want %d: %v", len(got), len(want), err)
			}
		})
	}
	wg.Wait()
	if n := pump.Running(); n != 0 {
		t.Errorf("%d turns were not given back, want 0", n)
	}
}

func TestShortFileIsAnError(t *testing.T) {
	t.Parallel()
	f, _ := tempFile(t, 1000)
	server, client := connect(t, NewPump(PumpOptions{}), time.Minute)
	go io.Copy(io.Discard, client)
	n, err := server.ReadFrom(&Section{File: f, N: 2000})
	if n != 1000 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %d, %v; want 1000 bytes and an unexpected EOF", n, err)
	}
}

func TestReaderThatTakesNothingIsCutOff(t *testing.T) {
	t.Parallel()
	f, _ := tempFile(t, 16<<20)
	for name, send := range map[string]func(*Conn) error{
		"sendfile": func(c *Conn) error { _, err := c.ReadFrom(&Section{File: f, N: 16 << 20}); return err },
		"write":    func(c *Conn) error { _, err := c.Write(make([]byte, 16<<20)); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pump := NewPump(PumpOptions{Width: 1})
			server, _ := connect(t, pump, 50*time.Millisecond)
			if err := send(server); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v, want a time-out", err)
			}
			if n := pump.Running(); n != 0 {
				t.Errorf("%d turns were not given back, want 0", n)
			}
		})
	}
}

func TestPumpWidth(t *testing.T) {
	t.Parallel()
	p := NewPump(PumpOptions{Width: 3, Narrow: 1})
	if p.Width() != 3 {
		t.Errorf("width %d of a single sender, want 3", p.Width())
	}
	p.Served()
	if p.Width() != 1 || p.step() != narrowStep {
		t.Errorf("width %d, step %d right after a small request, want 1 and short steps", p.Width(), p.step())
	}
}

func TestTurnsAreBoundedAndNoneIsLost(t *testing.T) {
	t.Parallel()
	p := NewPump(PumpOptions{Width: 2})
	var mu sync.Mutex
	running, most := 0, 0
	stop := make(chan struct{})
	var wg, small sync.WaitGroup
	for range 3 {
		small.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				p.Began()
				time.Sleep(time.Duration(i%8) * 100 * time.Microsecond)
				p.Served()
				p.Ended()
			}
		})
	}
	for i := range 16 {
		take := p.take
		if i%4 == 0 {
			take = p.takeOwn
		}
		wg.Go(func() {
			w := waiter{ready: make(chan struct{}, 1)}
			for range 3000 {
				take(&w)
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				mu.Lock()
				running--
				mu.Unlock()
				p.give()
			}
		})
	}
	wg.Wait()
	close(stop)
	small.Wait()
	if most > 2 || p.Running() != 0 {
		t.Errorf("%d turns at once (at most 2), %d left over", most, p.Running())
	}
}

func BenchmarkSendSection(b *testing.B) {
	path := filepath.Join(b.TempDir(), "data")
	const size = 32 << 20
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	server, err := Listen(l, NewPump(PumpOptions{}), time.Minute).Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	go io.Copy(io.Discard, c)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := server.(*Conn).ReadFrom(&Section{File: f, N: size}); err != nil {
			b.Fatal(err)
		}
	}
}
