package bulk

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConnectionClosedDuringASend(t *testing.T) {
	t.Parallel()
	f, _ := tempFile(t, 16<<20)
	for name, end := range map[string]func(server *Conn, client *net.TCPConn) error{
		"by the peer": func(_ *Conn, client *net.TCPConn) error { return client.Close() },
		"by a reset": func(_ *Conn, client *net.TCPConn) error {
			return errors.Join(client.SetLinger(0),
				client.Close())
		},
		"by ourselves":   func(server *Conn, _ *net.TCPConn) error { return server.Close() },
		"by a deadline":  func(server *Conn, _ *net.TCPConn) error { return server.SetWriteDeadline(time.Unix(1, 0)) },
		"for more bytes": func(server *Conn, _ *net.TCPConn) error { return server.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pump := NewPump(PumpOptions{Width: 1})
			server, client := connect(t, pump, 0)
			section := &Section{File: f, N: 16 << 20}
			sent := make(chan int64, 1)
			go func() {
				n, err := server.ReadFrom(section)
				if err == nil {
					t.Error("sent the whole file into a closed connection, want an error")
				}
				sent <- n
			}()
			if _, err := io.ReadFull(client, make([]byte, 1<<20)); err != nil {
				t.Error(err)
			}
			if err := end(server, client); err != nil {
				t.Error(err)
			}
			n := <-sent
			if section.Offset != n || section.N != 16<<20-n || section.KernelBytes() > n {
				t.Errorf("%d bytes sent, but the section is at %d with %d left", n, section.Offset, section.N)
			}
			if pump.Running() != 0 {
				t.Error("a turn is still in use, want none")
			}
		})
	}
}

// With a single turn, a peer that reads nothing does not block others: no turn is held while a socket is full.
func TestFullSocketHoldsNoTurn(t *testing.T) {
	t.Parallel()
	f, data := tempFile(t, 16<<20)
	pump := NewPump(PumpOptions{Width: 1})
	var sends sync.WaitGroup
	var stuck []*Conn
	for range 4 {
		server, _ := connect(t, pump, time.Minute)
		stuck = append(stuck, server)
		sends.Go(func() { _, _ = server.ReadFrom(&Section{File: f, N: 16 << 20}) })
	}
	server, client := connect(t, pump, time.Minute)
	sends.Go(func() { _, _ = server.ReadFrom(&Section{File: f, N: 16 << 20}); server.Close() })
	got, err := io.ReadAll(client)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes beside stuck peers: %v", len(got), err)
	}
	for _, server := range stuck {
		server.Close()
	}
	sends.Wait()
}

// A peer that takes a byte now and then is cut off all the same, in one long write and in many.
func TestTricklingPeerIsCutOff(t *testing.T) {
	t.Parallel()
	f, _ := tempFile(t, 16<<20)
	const stall = 200 * time.Millisecond
	for name, send := range map[string]func(*Conn) error{
		"sendfile": func(c *Conn) error { _, err := c.ReadFrom(&Section{File: f, N: 16 << 20}); return err },
		"write":    func(c *Conn) error { _, err := c.Write(make([]byte, 16<<20)); return err },
		"writes": func(c *Conn) error {
			for range 16 << 20 / 1000 {
				if _, err := c.Write(make([]byte, 1000)); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, client := connect(t, NewPump(PumpOptions{}), stall)
			_ = server.SetWriteBuffer(8 << 10)
			_ = client.SetReadBuffer(8 << 10)
			var trickle sync.WaitGroup
			defer trickle.Wait()
			defer client.Close()
			trickle.Go(func() {
				for buf := make([]byte, 2<<10); ; {
					if _, err := client.Read(buf); err != nil {
						return
					}
					time.Sleep(stall / 4) // the client's pace: 40 KB/s where 320 are wanted
				}
			})
			if err := send(server); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v, want a time-out", err)
			}
		})
	}
}

// Time between writes does not count as time of the peer.
func TestTimeBetweenWritesIsNotCharged(t *testing.T) {
	t.Parallel()
	const stall = 2 * time.Second
	server, client := connect(t, NewPump(PumpOptions{}), stall)
	go io.Copy(io.Discard, client)
	for range 4 {
		if _, err := server.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stall / 2) // the server's pace
	}
}

// A peer that takes enough is not cut off, however long the whole takes.
func TestSlowPeerIsServed(t *testing.T) {
	t.Parallel()
	f, data := tempFile(t, 8<<20)
	const stall = 3 * time.Second // long, because the test must not be as slow as a peer that is cut off
	server, client := connect(t, NewPump(PumpOptions{}), stall)
	_ = client.SetReadBuffer(64 << 10)
	done := make(chan error, 1)
	go func() {
		_, err := server.ReadFrom(&Section{File: f, N: int64(len(data))})
		server.Close()
		done <- err
	}()
	start := time.Now()
	var got []byte
	for buf := make([]byte, 1<<20); ; {
		n, err := io.ReadFull(client, buf)
		got = append(got, buf[:n]...)
		if err != nil {
			break
		}
		time.Sleep(stall / 6) // the client's pace: longer than the limit in all
	}
	if err := <-done; err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes in %v: %v", len(got), time.Since(start), err)
	}
}

// Some files of /proc cannot be sent by the kernel; they go through user space then.
func TestFileSystemWithoutSendfile(t *testing.T) {
	t.Parallel()
	f, err := os.Open("/proc/self/environ")
	if err != nil {
		t.Skip("no /proc here")
	}
	defer f.Close()
	want, err := os.ReadFile("/proc/self/environ")
	if err != nil {
		t.Fatal(err)
	}
	server, client := connect(t, NewPump(PumpOptions{}), time.Minute)
	section := &Section{File: f, N: int64(len(want))}
	n, err := server.ReadFrom(section)
	server.Close()
	got, _ := io.ReadAll(client)
	if err != nil || n != int64(len(want)) || !bytes.Equal(got, want) {
		t.Errorf("%d of %d bytes: %v", n, len(want), err)
	}
	t.Logf("the kernel copied %d bytes", section.KernelBytes())
}

// A copy allocates no memory for each byte: some hundred bytes for a transfer of any length.
func TestCopiesDoNotAllocate(t *testing.T) {
	const size = 32 << 20
	f, _ := tempFile(t, size)
	server, client := connect(t, NewPump(PumpOptions{}), time.Minute)
	var drained sync.WaitGroup
	drained.Go(func() { _, _ = io.Copy(io.Discard, client) })
	section := &Section{}
	allocs := testing.AllocsPerRun(10, func() {
		*section = Section{File: f, N: size}
		if _, err := server.ReadFrom(section); err != nil {
			t.Error(err)
		}
	})
	if allocs > 20 {
		t.Errorf("%v allocations for a transfer of %d bytes", allocs, size)
	}
	server.Close()
	drained.Wait()
}
