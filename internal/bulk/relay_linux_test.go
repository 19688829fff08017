package bulk

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Without a descriptor for a pipe, the bytes take the other road.
func TestRelayWithoutDescriptors(t *testing.T) {
	const size = 4 << 20
	f, data := tempFile(t, size)
	r := newRoad(t, networks[0], NewPump(PumpOptions{}), time.Minute)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max}); err != nil {
		t.Skip(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = r.node.ReadFrom(&Section{File: f, N: size}) })
	got := make([]byte, size)
	wg.Go(func() { _, _ = io.ReadFull(r.end, got) })
	s := Stream{From: r.in, N: size}
	n, err := r.out.ReadFrom(&s)
	if restore := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); restore != nil {
		t.Fatal(restore)
	}
	wg.Wait()
	if err != nil || n != size || s.KernelBytes() != 0 || string(got) != string(data) {
		t.Errorf("%d bytes, %d of them by the kernel: %v", n, s.KernelBytes(), err)
	}
}

// A pool keeps no pipe that has bytes in it, and not all of the empty ones.
func TestPipePool(t *testing.T) {
	t.Parallel()
	p := newPipes()
	defer p.close()
	var all []*pipe
	for range idlePipes + 2 {
		one, err := p.get()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	p.put(all[0], true)
	if len(p.idle) != 0 {
		t.Error("a pipe with bytes in it was kept")
	}
	for _, one := range all[1:] {
		p.put(one, false)
	}
	if len(p.idle) != idlePipes {
		t.Errorf("%d pipes were kept, want %d", len(p.idle), idlePipes)
	}
}

// bareSplice is the shortest relay there is: no turns, no time limits.
func bareSplice(to, from *Conn, left int64) error {
	pool := newPipes()
	defer pool.close()
	p, err := pool.get()
	if err != nil {
		return err
	}
	defer pool.put(p, false)
	var n int64
	var failed error
	in := func(fd uintptr) bool {
		n, failed = unix.Splice(int(fd), nil, p.w, nil, int(min(left, pipeSize)), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		return failed != unix.EAGAIN
	}
	out := func(fd uintptr) bool {
		for n > 0 && failed == nil {
			var k int64
			if k, failed = unix.Splice(p.r, nil, int(fd), nil, int(n), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK); failed == unix.EAGAIN {
				failed = nil
				return false
			}
			n -= k
		}
		return true
	}
	for left > 0 {
		if err := from.raw.Read(in); err != nil || failed != nil {
			return failed
		}
		left -= n
		if err := to.raw.Write(out); err != nil || failed != nil {
			return failed
		}
	}
	return nil
}

// discard takes all that comes.
func discard(c *Conn) {
	buf := make([]byte, 1<<20)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
	}
}

// processCPU is the CPU time this process has used.
func processCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkRelay(b *testing.B) {
	const size = 256 << 20
	path := filepath.Join(b.TempDir(), "data")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for name, relay := range map[string]func(to, from *Conn) error{
		"splice": func(to, from *Conn) error { _, err := to.ReadFrom(&Stream{From: from, N: size}); return err },
		"user": func(to, from *Conn) error {
			_, err := io.CopyBuffer(writerOnly{to}, readerOnly{&Stream{From: from, N: size}}, make([]byte, 64<<10))
			return err
		},
		"bare": func(to, from *Conn) error { return bareSplice(to, from, size) },
	} {
		for _, n := range networks {
			b.Run(fmt.Sprintf("%s/%s-%s", name, n[0], n[1]), func(b *testing.B) {
				r := newRoad(b, n, NewPump(PumpOptions{}), time.Minute)
				var wg sync.WaitGroup
				wg.Go(func() { discard(r.end) })
				start := make(chan bool)
				wg.Go(func() {
					for range start {
						if _, err := r.node.ReadFrom(&Section{File: f, N: size}); err != nil {
							b.Error(err)
						}
					}
				})
				b.SetBytes(size)
				b.ReportAllocs()
				began, moved := processCPU(), 0
				for b.Loop() {
					start <- true
					if err := relay(r.out, r.in); err != nil {
						b.Fatal(err)
					}
					moved += size
				}
				b.ReportMetric((processCPU()-began).Seconds()/(float64(moved)/1e9), "cpu-s/GB")
				close(start)
				r.out.Close()
				wg.Wait()
			})
		}
	}
}
