//go:build linux

package sidechannel

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// A file is handed over before, between and after bytes, even if it is removed at the same time. The node has finished
// when the client has the file.
func TestHandedFiles(t *testing.T) {
	t.Parallel()
	const size = 32 << 20 // more than sockets hold
	for name, length := range map[string]int64{"known length": size + 12, "unknown length": unknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "unix", Options{}, PoolOptions{})
			f, content := tempFile(t, size)
			gateway, node := w.transfer()
			counted := &counter{}
			sent := make(chan error, 1)
			go func() {
				s := sendFiles(node, length)
				_, _ = s.Write([]byte("before"))
				first := &bulk.Section{File: f, N: size - 2}
				first.CountTo(counted)
				// A second file, in the middle, that is too short to be handed over.
				for _, section := range []*bulk.Section{first, {File: f, Offset: 1 << 20, N: 4}} {
					want := section.N
					if n, err := s.ReadFrom(section); n != want || err != nil {
						t.Errorf("sent %d bytes: %v", n, err)
					}
				}
				_, _ = s.Write([]byte("0000"))
				sent <- s.End(nil)
				node.Release()
			}()
			if _, err := gateway.Receive().Length(); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(f.Name()); err != nil {
				t.Fatal(err)
			}
			to, received := client(t)
			n, err := gateway.Receive().WriteTo(to)
			want := slices.Concat([]byte("before"), content[:size-2], content[1<<20:1<<20+4], []byte("0000"))
			if got := received(); err != nil || n != size+12 || !bytes.Equal(got, want) {
				t.Errorf("the client received %d bytes of %d: %v", len(got), len(want), err)
			}
			if err := <-sent; err != nil || counted.n.Load() != size-2 {
				t.Errorf("the node has counted %d bytes: %v", counted.n.Load(), err)
			}
			gateway.Release()
			until(t, "the node to see it acknowledged",
				func() bool { return value(w.node.transfers.WithLabelValues("ok")) == 1 })
			if value(w.gateway.gotKernel) < size-2 || value(w.node.sentKernel) < size-2 {
				t.Error("the kernel did not copy the file")
			}
			if again, _ := w.transfer(); again.Name() != gateway.Name() {
				t.Error("the channel was not reused, want it reused")
			} else {
				again.Release()
			}
		})
	}
}

type counter struct{ n atomic.Int64 }

func (c *counter) Sent(n int64) { c.n.Add(n) }

// A client may take longer for a file than the limit, if the gateway reports progress. The node receives the progress.
func TestSlowClientOfAFile(t *testing.T) {
	t.Parallel()
	const size, stall = 1 << 20, 600 * time.Millisecond // a busy machine stops a process for 200 ms
	w := newWorld(t, "unix", Options{Stall: stall}, PoolOptions{Stall: stall})
	f, content := tempFile(t, size)
	gateway, node := w.transfer()
	counted := &counter{}
	sent := make(chan error, 1)
	go func() {
		s := sendFiles(node, size)
		section := &bulk.Section{File: f, N: size}
		section.CountTo(counted)
		if n, err := s.ReadFrom(section); n != size || err != nil {
			t.Errorf("sent %d bytes: %v", n, err)
		}
		sent <- s.End(nil)
	}()
	near, far := net.Pipe() // blocks until the other end reads
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, err := gateway.Receive().WriteTo(struct{ io.Writer }{near})
		if err != nil {
			t.Error(err)
		}
		near.Close()
	}()
	half := make([]byte, size/2)
	if _, err := io.ReadFull(far, half); err != nil {
		t.Fatal(err)
	}
	until(t, "the node to hear of the first half", func() bool { return counted.n.Load() >= size/2 })
	waits := func() {
		t.Helper()
		for range 2 { // each takes as long as the limit
			silent, other := w.transfer()
			if n, err := sendFiles(other, size).ReadFrom(&bulk.Section{File: f, N: size}); n != 0 || err == nil {
				t.Errorf("sent %d bytes to a silent gateway: %v", n, err)
			}
			other.Release()
			silent.Release()
		}
		select {
		case err := <-sent:
			t.Fatalf("the node did not wait: %v", err)
		default:
		}
	}
	waits()
	rest := make([]byte, size/2-1)
	if _, err := io.ReadFull(far, rest); err != nil {
		t.Fatal(err)
	}
	waits() // for the last byte, which the gateway has read and not sent
	last, _ := io.ReadAll(far)
	if err := <-sent; err != nil || !bytes.Equal(slices.Concat(half, rest, last), content) {
		t.Errorf("the client received %d bytes: %v", len(half)+len(rest)+len(last), err)
	}
	<-written
	node.Release()
	gateway.Release()
	if again, _ := w.transfer(); again.Name() != gateway.Name() {
		t.Error("the channel was not reused, want it reused")
	} else {
		again.Release()
	}
}

// A gateway that takes a file and is then silent is disconnected.
func TestSilentWithAFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "unix", Options{Stall: 100 * time.Millisecond}, PoolOptions{Stall: 100 * time.Millisecond})
	f, _ := tempFile(t, 1<<20)
	gateway, node := w.transfer()
	if n, err := sendFiles(node, 1<<20).ReadFrom(&bulk.Section{File: f, N: 1 << 20}); n != 0 ||
		!fault.Is(err, fault.Unavailable) {
		t.Errorf("sent %d bytes: %v", n, err)
	}
	if value(w.node.closed.WithLabelValues(string(closeStall))) != 1 {
		t.Error("the channel is still open, want it closed")
	}
	node.Release()
	gateway.Release()
}

// A file that the gateway cannot read is the node's to know; packs come as bytes then.
func TestUnreadableFile(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	for _, by := range []string{"WriteTo", "Read", "kernel"} {
		w := newWorld(t, "unix", Options{}, PoolOptions{})
		f, _ := tempFile(t, size)
		gateway, node := w.transfer()
		sent := make(chan error, 1)
		go func() {
			_, err := sendFiles(node, unknown).ReadFrom(&bulk.Section{File: f, N: size})
			sent <- err
		}()
		r := gateway.Receive()
		if err := r.next(); err != nil || r.file == nil {
			t.Fatal(err)
		}
		if err := os.Truncate(f.Name(), size/2); err != nil {
			t.Fatal(err)
		}
		var err error
		switch by {
		case "Read":
			_, err = io.ReadAll(r)
		case "WriteTo":
			_, err = r.WriteTo(struct{ io.Writer }{io.Discard})
		case "kernel":
			to, received := client(t)
			_, err = r.WriteTo(to)
			received()
		}
		if !fault.Is(err, fault.Unavailable) || r.Err() == nil {
			t.Errorf("%s: %v; the channel's: %v", by, err, r.Err())
		}
		if err := <-sent; !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: the node's error is %v", by, err)
		}
		gateway.Release()
		node.Release()
		if gateway, node = w.transfer(); gateway.line.files || node.line.files {
			t.Errorf("%s: files go on", by)
		}
		gateway.Release()
		node.Release()
	}
}

// A transfer that is given up ends the sending of its file.
func TestFileGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "unix", Options{}, PoolOptions{})
	f, _ := tempFile(t, 64<<20)
	gateway, node := w.transfer()
	sent := make(chan error, 1)
	go func() {
		_, err := sendFiles(node, 64<<20).ReadFrom(&bulk.Section{File: f, N: 64 << 20})
		sent <- err
	}()
	near, far := net.Pipe()
	got := make(chan error, 1)
	go func() {
		_, err := gateway.Receive().WriteTo(struct{ io.Writer }{near})
		near.Close()
		got <- err
	}()
	if _, err := io.ReadFull(far, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	node.Abort()
	if err := <-sent; !fault.Is(err, fault.Cancelled) {
		t.Errorf("the node's error is %v", err)
	}
	until(t, "the gateway to see it", func() bool { return gateway.usable() != nil })
	if n, _ := io.Copy(io.Discard, far); n > 2<<20 {
		t.Errorf("%d bytes more were sent", n)
	}
	if err := <-got; err == nil {
		t.Error("the client's file ended early without an error, want one")
	}
	gateway.Release()
	node.Release()
}

// Through a forwarded Unix socket no file is sent.
func TestForwardedSocket(t *testing.T) {
	t.Parallel()
	dials := 0
	var w *world
	dial := func(ctx context.Context) (net.Conn, error) {
		dials++
		there, err := w.dialRaw(ctx)
		if err != nil {
			return nil, err
		}
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		var ends [2]net.Conn
		for i, fd := range pair {
			f := os.NewFile(uintptr(fd), "pair")
			defer f.Close()
			if ends[i], err = net.FileConn(f); err != nil {
				return nil, err
			}
		}
		for _, way := range [][2]net.Conn{{ends[1], there}, {there, ends[1]}} {
			go func() {
				_, _ = io.Copy(struct{ io.Writer }{way[0]}, struct{ io.Reader }{way[1]})
				way[0].Close()
			}()
		}
		return ends[0], nil
	}
	w = newWorld(t, "unix", Options{}, PoolOptions{Dial: dial})
	for range 2 {
		gateway, node := w.transfer()
		if gateway.line.files || node.line.files {
			t.Error("the peers agreed to hand over files, want bytes")
		}
		gateway.Abort()
		node.Release()
	}
	if dials != 3 {
		t.Errorf("%d connections, want 3: the first is closed, and files are not asked for again", dials)
	}
}

// TestWrongTaken has invalid messages of a gateway about files.
func TestWrongTaken(t *testing.T) {
	t.Parallel()
	f, _ := tempFile(t, 1<<20)
	for name, wrong := range map[string]struct {
		handed bool
		header header
	}{
		"without a file":         {false, header{kind: taken, transfer: 1}},
		"more than there is":     {true, header{kind: taken, transfer: 1, length: 1<<20 + 1}},
		"another transfer's":     {true, header{kind: taken, transfer: 2, length: 1}},
		"an END in its place":    {true, header{kind: end, transfer: 1}},
		"a START in its place":   {true, header{kind: start, transfer: 1, length: 1}},
		"less than before":       {true, header{kind: taken, transfer: 1, length: 1<<19 - 1}},
		"more to say than it is": {true, header{kind: taken, transfer: 1, message: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "unix", Options{}, PoolOptions{})
			gateway, node := w.transfer()
			sent := make(chan error, 1)
			if wrong.handed {
				go func() {
					_, err := sendFiles(node, 1<<20).ReadFrom(&bulk.Section{File: f, N: 1 << 20})
					sent <- err
				}()
				if err := gateway.Receive().next(); err != nil {
					t.Fatal(err)
				}
				before := header{kind: taken, transfer: 1, length: 1 << 19}
				if err := gateway.line.write(before.append(nil), time.Minute); err != nil {
					t.Fatal(err)
				}
			} else {
				sent <- fault.New(fault.Internal, "none was sent")
			}
			if err := gateway.line.write(wrong.header.append(nil), time.Minute); err != nil {
				t.Fatal(err)
			}
			if err := <-sent; !fault.Is(err, fault.Internal) {
				t.Errorf("the node's error is %v", err)
			}
			until(t, "the node to close the channel",
				func() bool { return value(w.node.closed.WithLabelValues(string(closeProtocol))) == 1 })
			gateway.Release()
			node.Release()
		})
	}
}

// A file that could be written to is copied, as is a short one.
func TestFilesThatAreNotHanded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "unix", Options{}, PoolOptions{})
	f, content := tempFile(t, 1<<20)
	writable, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writable.Close()
	gateway, node := w.transfer()
	go func() {
		s := sendFiles(node, 1<<20+1000)
		for _, section := range []*bulk.Section{{File: writable, N: 1 << 20}, {File: f, N: 1000}} {
			if _, err := s.ReadFrom(section); err != nil {
				t.Error(err)
			}
		}
		if err := s.End(nil); err != nil {
			t.Error(err)
		}
	}()
	r := gateway.Receive()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, append(content, content[:1000]...)) {
		t.Errorf("received %d bytes: %v", len(got), err)
	}
	if r.section.File != nil || value(w.gateway.gotUser) != 1<<20+1000 {
		t.Error("handed over a file, want bytes")
	}
	gateway.Release()
	node.Release()
}

// TestWrongFiles has invalid files from a node.
func TestWrongFiles(t *testing.T) {
	t.Parallel()
	f, _ := tempFile(t, 1<<20)
	directory, err := os.Open(filepath.Dir(f.Name()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { directory.Close() })
	reading, writing, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reading.Close(); writing.Close() })
	for name, wrong := range map[string]struct {
		kind      headerType
		n, offset int64
		files     []*os.File
	}{
		"none":                   {file, 1 << 20, 0, nil},
		"two":                    {file, 1 << 20, 0, []*os.File{f, f}},
		"many":                   {file, 1 << 20, 0, []*os.File{f, f, f, f, f, f}},
		"a directory":            {file, 1, 0, []*os.File{directory}},
		"a pipe":                 {file, 1, 0, []*os.File{reading}},
		"one that is too short":  {file, 1 << 20, 1, []*os.File{f}},
		"a negative offset":      {file, 1 << 20, -1, []*os.File{f}},
		"an absurd offset":       {file, 1 << 20, 1<<63 - 1, []*os.File{f}},
		"more than announced":    {file, 1<<20 + 1, 0, []*os.File{f}},
		"one with DATA":          {data, 8, 0, []*os.File{f}},
		"one with another START": {start, 8, 0, []*os.File{f}},
		"another transfer's":     {file, 1 << 20, 0, []*os.File{f}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "unix", Options{}, PoolOptions{})
			gateway, node := w.transfer()
			begin := header{kind: start, transfer: 1, length: 1 << 20}
			h := header{kind: wrong.kind, transfer: 1, length: wrong.n}
			if name == "another transfer's" {
				h.transfer = 2
			}
			b := binary.BigEndian.AppendUint64(h.append(nil), uint64(wrong.offset))
			if err := node.line.write(begin.append(nil), time.Minute); err != nil {
				t.Fatal(err)
			}
			var fds []int
			for _, f := range wrong.files {
				fds = append(fds, int(f.Fd()))
			}
			raw, err := node.line.kernel.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			if cerr := raw.Control(func(fd uintptr) {
				err = unix.Sendmsg(int(fd), b, unix.UnixRights(fds...), nil,
					0)
			}); cerr != nil || err != nil {
				t.Fatal(cerr, err)
			}
			r := gateway.Receive()
			if got, err := io.ReadAll(r); len(got) > 0 || !fault.Is(err, fault.Internal) &&
				!fault.Is(err, fault.Unavailable) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
			gateway.Release()
			node.Release()
			if gateway.line.file != nil || r.file != nil {
				t.Error("a file was left open")
			}
		})
	}
}

// A node that hands files unasked has them closed, and the channel with them.
func TestFilesUnasked(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"unix", "tcp"} {
		w := newWorld(t, kind, Options{}, PoolOptions{NoFiles: true})
		gateway, node := w.transfer()
		if gateway.line.files || node.line.files {
			t.Errorf("%s: files were agreed on", kind)
		}
		begin, h := header{kind: start, transfer: 1, length: unknown}, header{kind: file, transfer: 1, length: 1}
		if err := node.line.write(h.append(begin.append(nil)), time.Minute); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(gateway.Receive()); len(got) > 0 || err == nil {
			t.Errorf("%s: got %q, %v", kind, got, err)
		}
		gateway.Release()
		node.Release()
	}
}

// sendFiles begins the node's direction.
func sendFiles(c *Channel, length int64) *Sender {
	s := c.Send(length)
	s.HandFiles()
	return s
}
