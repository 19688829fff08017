package sidechannel

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

func tempFile(t testing.TB, size int) (*os.File, []byte) {
	t.Helper()
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(content)
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, content
}

// sink is a client's connection with something in between that hands io.ReaderFrom on, as net/http does.
type sink struct {
	to      *bulk.Conn
	flushes int
}

func (s *sink) Write(p []byte) (int, error)         { return s.to.Write(p) }
func (s *sink) ReadFrom(r io.Reader) (int64, error) { return io.Copy(s.to, r) }
func (s *sink) Flush() error                        { s.flushes++; return nil }

// client is a connection to a client, with the received bytes.
func client(t testing.TB) (*sink, func() []byte) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := bulk.Listen(l, bulk.NewPump(bulk.PumpOptions{}), time.Minute).Accept()
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(far)
		far.Close()
		received <- all
	}()
	return &sink{to: near.(*bulk.Conn)}, func() []byte {
		near.Close()
		return <-received
	}
}

// piece is one step of a sender.
type piece struct{ offset, n int64 }

// sendParts sends parts of a file in random ways.
func sendParts(s *Sender, rnd *rand.Rand, f *os.File, content []byte, parts []piece) error {
	for _, p := range parts {
		var err error
		switch rnd.IntN(4) {
		case 0:
			_, err = s.Write(content[p.offset : p.offset+p.n])
		case 1:
			_, err = s.ReadFrom(bytes.NewReader(content[p.offset : p.offset+p.n]))
		default:
			_, err = s.ReadFrom(&bulk.Section{File: f, Offset: p.offset, N: p.n})
		}
		if err == nil && rnd.IntN(4) == 0 {
			err = s.Flush()
		}
		if err != nil {
			return err
		}
	}
	return s.End(nil)
}

func randomParts(rnd *rand.Rand, content []byte) (parts []piece, whole []byte) {
	for range rnd.IntN(6) {
		n := rnd.IntN(1 << (1 + rnd.IntN(19)))
		p := piece{rnd.Int64N(int64(len(content) - n)), int64(n)}
		parts = append(parts, p)
		whole = append(whole, content[p.offset:p.offset+p.n]...)
	}
	return parts, whole
}

// Transfers of all forms, in both directions, follow each other on a few channels, and each arrives as it was sent.
func TestTransfers(t *testing.T) {
	t.Parallel()
	f, content := tempFile(t, 1<<20)
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind, Options{}, PoolOptions{})
			var all sync.WaitGroup
			const workers, each = 4, 20
			for worker := range workers {
				all.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(worker), 1))
					for range each {
						exchange(t, w, rnd, f, content)
					}
				})
			}
			all.Wait()
			if n := value(w.node.opened.WithLabelValues("ok")); n > workers {
				t.Errorf("%v channels were opened for %d workers", n, workers)
			}
			until(t, "the node to see all acknowledged", func() bool {
				return value(w.node.transfers.WithLabelValues("ok")) == workers*each
			})
			if n := value(w.gateway.transfers.WithLabelValues("ok")); n != workers*each {
				t.Errorf("%v transfers ended well at the gateway, want %v", n, workers*each)
			}
			kernel := value(w.node.sentKernel)
			if kind == "tls" && kernel != 0 || kind != "tls" && kernel == 0 {
				t.Errorf("the kernel sent %v bytes, through user space went %v", kernel, value(w.node.sentUser))
			}
		})
	}
}

// exchange runs a transfer with bytes in no, one or both directions.
func exchange(t *testing.T, w *world, rnd *rand.Rand, f *os.File, content []byte) {
	gateway, node := w.transfer()
	up, upWhole := randomParts(rnd, content)
	down, downWhole := randomParts(rnd, content)
	form := rnd.IntN(3) // down, up, both
	upLength, downLength := int64(len(upWhole)), int64(len(downWhole))
	if rnd.IntN(2) == 0 {
		upLength = unknown
	}
	if rnd.IntN(2) == 0 {
		downLength = unknown
	}
	seeds := [3]*rand.Rand{}
	for i := range seeds {
		seeds[i] = rand.New(rand.NewPCG(rnd.Uint64(), 2))
	}
	var both sync.WaitGroup
	both.Go(func() { // the node
		defer node.Release()
		var answered sync.WaitGroup
		if form != 1 {
			answered.Go(func() {
				if err := sendParts(node.Send(downLength), seeds[0], f, content, down); err != nil {
					t.Errorf("the node sends: %v", err)
				}
			})
		}
		if form != 0 {
			got, err := io.ReadAll(node.Receive())
			if err != nil || sha256.Sum256(got) != sha256.Sum256(upWhole) {
				t.Errorf("the node received %d of %d bytes: %v", len(got), len(upWhole), err)
			}
		}
		answered.Wait()
	})
	if form != 0 {
		both.Go(func() {
			if err := sendParts(gateway.Send(upLength), seeds[1], f, content, up); err != nil {
				t.Errorf("the gateway sends: %v", err)
			}
		})
	}
	checkReceived(t, gateway.Receive(), downWhole, downLength, form != 1)
	both.Wait()
	gateway.Release()
}

// checkReceived relays the bytes that a gateway receives to a client.
func checkReceived(t *testing.T, r *Receiver, whole []byte, length int64, some bool) {
	if !some {
		whole = nil
	}
	to, received := client(t)
	n, err := r.WriteTo(to)
	got := received()
	if err != nil || n != int64(len(whole)) || !bytes.Equal(got, whole) {
		t.Errorf("the client received %d of %d bytes: %v", len(got), len(whole), err)
	}
	if announced, err := r.Length(); err != nil || len(whole) > 0 && announced != length {
		t.Errorf("length %d, want %d: %v", announced, length, err)
	}
	if length == unknown && len(whole) > 0 && to.flushes == 0 {
		t.Error("no byte was flushed, want some")
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the end: %v, want %v", err, io.EOF)
	}
}

// A failure in mid-transfer has its kind, text and advice, and is never a whole answer.
func TestFailuresTravel(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		for _, sent := range []int{0, 1000, 100_000} {
			for _, length := range []int64{unknown, 200_000} {
				t.Run(fmt.Sprintf("%s/%d of %d", kind, sent, length), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, kind, Options{}, PoolOptions{})
					gateway, node := w.transfer()
					s := node.Send(length)
					_, _ = s.Write(make([]byte, sent))
					if err := s.End(fault.Retry(fault.Exhausted, 3*time.Second, "no more\x00 today")); err != nil {
						t.Error(err)
					}
					node.Release()
					got, err := io.ReadAll(gateway.Receive())
					if len(got) != sent || fault.Message(err) != "no more  today" ||
						fault.RetryAfter(err) != 3*time.Second {
						t.Errorf("%d bytes, then %q, retry after %v, want %d, %q, %v", len(got), fault.Message(err),
							fault.RetryAfter(err), sent, "no more  today", 3*time.Second)
					}
					if !fault.Is(err, fault.Exhausted) || gateway.Receive().Err() == nil {
						t.Errorf("got %v (%v), want %v", fault.KindOf(err), err, fault.Exhausted)
					}
					gateway.Release()
					until(t, "the channel to be closed",
						func() bool { return value(w.node.busy)+value(w.gateway.busy) == 0 })
					if n := value(w.gateway.idle); n != 0 {
						t.Errorf("%v channels were kept, want 0", n)
					}
				})
			}
		}
	}
}

// A failure on either side closes the channel. It is not reused, and no caller waits.
func TestGivenUpTransfers(t *testing.T) {
	t.Parallel()
	f, _ := tempFile(t, 100)
	for name, give := range map[string]func(gateway, node *Channel){
		"gateway released before the answer": func(gateway, _ *Channel) { gateway.Release() },
		"gateway aborted":                    func(gateway, _ *Channel) { gateway.Abort() },
		"node released before its answer":    func(_, node *Channel) { node.Release() },
		"node aborted":                       func(_, node *Channel) { node.Abort() },
		"fewer bytes than announced": func(_, node *Channel) {
			s := node.Send(10)
			_, _ = s.Write([]byte("123"))
			if s.End(nil) == nil {
				t.Error("a short transfer succeeded, want an error")
			}
		},
		"nothing where bytes were announced": func(_, node *Channel) {
			if node.Send(10).End(nil) == nil {
				t.Error("a short transfer succeeded, want an error")
			}
		},
		"more bytes than announced": func(_, node *Channel) {
			if _, err := node.Send(10).Write(make([]byte, 11)); err == nil {
				t.Error("a long transfer succeeded, want an error")
			}
		},
		"a file that is too short": func(_, node *Channel) {
			if _, err := node.Send(200).ReadFrom(&bulk.Section{File: f, N: 200}); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("a short file: %v", err)
			}
			node.Release()
		},
		"gateway does not take all": func(gateway, node *Channel) {
			_, _ = node.Send(10).Write(make([]byte, 10))
			_ = node.sender.End(nil)
			_, _ = gateway.Receive().Read(make([]byte, 5))
			gateway.Release()
		},
		"a client that fails": func(gateway, node *Channel) {
			_, _ = node.Send(10).Write(make([]byte, 10))
			_ = node.sender.End(nil)
			if _, err := gateway.Receive().WriteTo(failing{}); !errors.Is(err, errFailing) ||
				gateway.Receive().Err() != nil {
				t.Errorf("got %v, and of the channel %v", err, gateway.Receive().Err())
			}
			gateway.Release()
		},
	} {
		for _, kind := range kinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, kind, Options{}, PoolOptions{})
				gateway, node := w.transfer()
				give(gateway, node)
				if _, err := io.ReadAll(gateway.Receive()); err == nil {
					t.Error("the gateway received a complete transfer, want an error")
				}
				s := node.Send
				if node.sending == untouched {
					_, _ = s(unknown).Write(make([]byte, 1<<20))
				}
				if ended := node.sender.ended; node.sender.End(nil) == nil && !ended {
					t.Error("the node sent into a closed channel without an error, want one")
				}
				gateway.Release()
				node.Release()
				node.Release()
				until(t, "the channel to be closed",
					func() bool { return value(w.node.busy)+value(w.gateway.busy) == 0 })
				if n := value(w.gateway.idle) + value(w.node.idle); n != 0 {
					t.Errorf("%v channels were kept, want 0", n)
				}
			})
		}
	}
}

var errFailing = errors.New("the client is gone")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFailing }
