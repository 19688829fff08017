package bulk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// count returns the number of open pipes of a size.
func (p *pipes) count(size pipeSize) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made[size]
}

// Without a descriptor for a pipe, the bytes are copied through user space.
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
		one, err := p.get(small)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	if n := p.count(small); n != len(all) {
		t.Errorf("%d pipes counted, want %d", n, len(all))
	}
	p.put(all[0], true)
	if len(p.idle[small]) != 0 {
		t.Error("kept a pipe that contains bytes, want it closed")
	}
	for _, one := range all[1:] {
		p.put(one, false)
	}
	if n := p.count(small); len(p.idle[small]) != idlePipes || n != idlePipes {
		t.Errorf("%d pipes were kept and %d counted, want %d", len(p.idle[small]), n, idlePipes)
	}
}

// If there are enough large pipes, further transfers use small ones.
func TestLargePipesAreBounded(t *testing.T) {
	t.Parallel()
	p := newPipes()
	defer p.close()
	for range maxLarge + 2 {
		one, err := p.get(large)
		if err != nil {
			t.Fatal(err)
		}
		defer p.put(one, true)
	}
	if n := p.count(large); n > maxLarge {
		t.Errorf("%d large pipes, want %d at the most", n, maxLarge)
	}
	if n := p.count(large) + p.count(small); n != maxLarge+2 {
		t.Errorf("%d pipes in all, want %d", n, maxLarge+2)
	}
}

// A peer that keeps a full socket for long has small pipes until it has taken enough.
func TestPipeSuitsThePeer(t *testing.T) {
	t.Parallel()
	var r splicer
	for _, step := range []struct {
		took int64
		kept time.Duration
		want pipeSize
	}{
		{0, slowWait - 1, large},
		{0, slowWait, small},
		{leastQuick - 1, slowWait - 1, small},
		{1, 0, large},
		{0, slowWait, small},
		{leastQuick - 1, slowWait, small},
		{leastQuick - 1, 0, small},
		{leastQuick, 0, large},
	} {
		r.took(step.took)
		r.kept(step.kept)
		if got := r.size(); got != step.want {
			t.Errorf("after %+v the pipe's size is %d, want %d", step, got, step.want)
		}
	}
}

// A client that reads slowly gets a small pipe.
func TestSlowPeerGetsSmallPipe(t *testing.T) {
	t.Parallel()
	const size = 256 << 20
	path := filepath.Join(t.TempDir(), "data")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := newRoad(t, networks[0], NewPump(PumpOptions{}), time.Minute)
	if err := errors.Join(r.out.SetWriteBuffer(64<<10), r.end.SetReadBuffer(64<<10)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = r.node.ReadFrom(&Section{File: f, N: size}) })
	wg.Go(func() { _, _ = r.out.ReadFrom(&Stream{From: r.in, N: size}) })
	buf := make([]byte, largePipe)
	for range 100 {
		if r.out.pump.pipes.count(small) > 0 {
			break
		}
		time.Sleep(slowWait + slowWait/4)
		if _, err := io.ReadFull(r.end, buf); err != nil {
			t.Fatal(err)
		}
	}
	if r.out.pump.pipes.count(small) == 0 {
		t.Error("a slow peer never got a small pipe, want one")
	}
	for _, c := range []*Conn{r.out, r.in, r.node, r.end} {
		c.Close()
	}
	wg.Wait()
}

// Clients that read nothing hold at most the allowed number of large pipes, and none after they have disconnected.
func TestPeersThatTakeNothing(t *testing.T) {
	t.Parallel()
	const peers, size = maxLarge + 10, 4 << 20
	f, _ := tempFile(t, size)
	pump := NewPump(PumpOptions{})
	count := func() int { return pump.pipes.count(small) + pump.pipes.count(large) }
	var wg sync.WaitGroup
	roads := make([]*chain, peers)
	for i := range roads {
		r := newRoad(t, networks[i%len(networks)], pump, time.Minute)
		roads[i] = r
		if err := errors.Join(r.out.SetWriteBuffer(64<<10), r.end.SetReadBuffer(64<<10)); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { _, _ = r.node.ReadFrom(&Section{File: f, N: size}) })
		wg.Go(func() {
			if _, err := r.out.ReadFrom(&Stream{From: r.in, N: size}); err == nil {
				t.Error("sent everything to a peer that reads nothing, want an error")
			}
		})
	}
	// A connection that changes to a large pipe has two for a moment.
	gittest.WaitFor(t, "each peer that takes nothing has one pipe", func() bool { return count() == peers })
	if wide := pump.pipes.count(large); wide > maxLarge {
		t.Errorf("%d peers that take nothing have %d large pipes, want at most %d", peers, wide, maxLarge)
	}
	for _, r := range roads {
		for _, c := range []*Conn{r.out, r.in, r.node, r.end} {
			c.Close()
		}
	}
	wg.Wait()
	if n := count(); n > 2*idlePipes {
		t.Errorf("%d pipes are left without a peer, want %d at the most", n, 2*idlePipes)
	}
}

// bareSplice is the shortest relay there is: no turns, no time limits.
func bareSplice(to, from *Conn, left int64) error {
	pool := newPipes()
	defer pool.close()
	p, err := pool.get(large)
	if err != nil {
		return err
	}
	defer pool.put(p, false)
	var n int64
	var failed error
	in := func(fd uintptr) bool {
		n, failed = unix.Splice(int(fd), nil, p.w, nil, int(min(left, largePipe)),
			unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		return failed != unix.EAGAIN
	}
	out := func(fd uintptr) bool {
		for n > 0 && failed == nil {
			var k int64
			if k, failed = unix.Splice(p.r, nil, int(fd), nil, int(n),
				unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK); failed == unix.EAGAIN {
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

// discard reads and drops everything.
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
	for name, splicer := range map[string]func(to, from *Conn) error{
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
					if err := splicer(r.out, r.in); err != nil {
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
