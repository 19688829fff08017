//go:build linux

package sidechannel

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/fault"
)

// A node whose file was handed over is done, whatever the gateway's client takes, and even if the file is gone.
func TestHandedFiles(t *testing.T) {
	t.Parallel()
	const size = 32 << 20 // more than sockets hold
	for name, length := range map[string]int64{"known length": size + 8, "unknown length": unknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "unix", Options{}, PoolOptions{})
			f, content := tempFile(t, size)
			gateway, node := w.transfer()
			s := node.Send(length)
			_, _ = s.Write([]byte("before"))
			if n, err := s.ReadFrom(&bulk.Section{File: f, N: size - 2}); n != size-2 || err != nil {
				t.Fatalf("sent %d bytes: %v", n, err)
			}
			// A second file, in the middle.
			if n, err := s.ReadFrom(&bulk.Section{File: f, Offset: 1 << 20, N: 4}); n != 4 || err != nil {
				t.Fatalf("sent %d bytes: %v", n, err)
			}
			if err := s.End(nil); err != nil {
				t.Fatal(err)
			}
			node.Release()
			if err := os.Remove(f.Name()); err != nil {
				t.Fatal(err)
			}
			to, received := client(t)
			n, err := gateway.Receive().WriteTo(to)
			want := append(append([]byte("before"), content[:size-2]...), content[1<<20:1<<20+4]...)
			if got := received(); err != nil || n != size+8 || !bytes.Equal(got, want) {
				t.Errorf("the client received %d bytes of %d: %v", len(got), len(want), err)
			}
			gateway.Release()
			until(t, "the node to see it acknowledged", func() bool { return value(w.node.transfers.WithLabelValues("ok")) == 1 })
			if value(w.gateway.gotKernel) < size-2 || value(w.node.sentKernel) < size-2 {
				t.Error("the kernel did not copy the file")
			}
		})
	}
}

// The node has its acknowledgement while the client has taken nothing.
func TestHandedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	w := newWorld(t, "unix", Options{}, PoolOptions{})
	f, content := tempFile(t, size)
	gateway, node := w.transfer()
	go func() {
		s := node.Send(size)
		if _, err := s.ReadFrom(&bulk.Section{File: f, N: size}); err != nil {
			t.Error(err)
		}
		if err := s.End(nil); err != nil {
			t.Error(err)
		}
		node.Release()
	}()
	near, far := net.Pipe() // takes nothing until it is read
	sent := make(chan error, 1)
	go func() {
		_, err := gateway.Receive().WriteTo(struct{ io.Writer }{near})
		near.Close()
		sent <- err
	}()
	until(t, "the node to see it acknowledged", func() bool { return value(w.node.transfers.WithLabelValues("ok")) == 1 })
	got, _ := io.ReadAll(far)
	if err := <-sent; err != nil || !bytes.Equal(got, content) {
		t.Errorf("the client received %d bytes: %v", len(got), err)
	}
	gateway.Release()
	if again, _ := w.transfer(); again.Name() != gateway.Name() {
		t.Error("the channel was not used again")
	} else {
		again.Release()
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
		s := node.Send(1<<20 + 1000)
		for _, section := range []bulk.Section{{File: writable, N: 1 << 20}, {File: f, N: 1000}} {
			if _, err := s.ReadFrom(&section); err != nil {
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
		t.Error("a file was handed over")
	}
	gateway.Release()
	node.Release()
}

// What a node sends in place of a file that has what its header says.
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
			if cerr := raw.Control(func(fd uintptr) { err = unix.Sendmsg(int(fd), b, unix.UnixRights(fds...), nil, 0) }); cerr != nil || err != nil {
				t.Fatal(cerr, err)
			}
			r := gateway.Receive()
			if got, err := io.ReadAll(r); len(got) > 0 || !fault.Is(err, fault.Internal) && !fault.Is(err, fault.Unavailable) {
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
