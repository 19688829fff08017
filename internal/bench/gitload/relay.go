package gitload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// The relay does the minimum of a pair of processes. For each request a sender sends one file with sendfile(2), and the
// relay, in another process, moves it from socket to socket with splice(2). It has no turns, checks or metrics. Each
// client connection has a connection to the sender. On it a request is one byte, and a response is the whole HTTP
// response, whose length both processes have.

// RelayCommand is the relay of `packhorse-bench limit --relay`. It serves clients until its standard input is closed,
// which also happens when its parent dies.
func RelayCommand(env loadgen.Env) *cobra.Command {
	return &cobra.Command{
		Use:    "relay LISTEN SENDER LENGTH",
		Short:  "The second process of \"packhorse-bench limit --relay\"",
		Hidden: true,
		Args:   cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			length, err := strconv.ParseInt(args[2], 10, 64)
			if err != nil {
				return err
			}
			l, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", args[0])
			if err != nil {
				return err
			}
			go func() { // ends with the process at the latest
				io.Copy(io.Discard, cmd.InOrStdin()) //nolint:errcheck // any end is the end
				l.Close()
			}()
			fmt.Fprintln(env.Stdout, l.Addr())
			return acceptEach(l, func(c *net.TCPConn) error { return relayConn(c, args[1], length) })
		},
	}
}

// acceptEach serves each connection on its own goroutine until the listener is closed. Then it closes the open
// connections.
func acceptEach(l net.Listener, serve func(c *net.TCPConn) error) error {
	var (
		mu      sync.Mutex
		open    = map[net.Conn]bool{}
		serving sync.WaitGroup
	)
	l = bulk.Unpaced(l)
	for {
		c, err := l.Accept()
		if err != nil {
			mu.Lock()
			for c := range open {
				c.Close()
			}
			mu.Unlock()
			serving.Wait()
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		mu.Lock()
		open[c] = true
		mu.Unlock()
		serving.Go(func() {
			serve(c.(*net.TCPConn)) //nolint:errcheck // the peer notices
			c.Close()
			mu.Lock()
			delete(open, c)
			mu.Unlock()
		})
	}
}

// relayConn answers the requests of one client.
func relayConn(client *net.TCPConn, sender string, length int64) error {
	c, err := (&net.Dialer{Control: bulk.UnpacedDial}).Dial("tcp", sender)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := newSplicer(c.(*net.TCPConn), client)
	if err != nil {
		return err
	}
	defer s.close()
	in := bufio.NewReader(client)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return err
		}
		if _, err := c.Write([]byte{'?'}); err != nil {
			return err
		}
		if err := s.move(length); err != nil {
			return err
		}
	}
}

// sender sends a file for each received byte.
type sender struct {
	file string
	head []byte // of the response
	size int64
}

func newSender(file string, size int64) *sender {
	return &sender{file, fmt.Appendf(nil,
		"HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-result\r\nContent-Length: %d\r\n\r\n", size), size}
}

// length is the length of a response.
func (s *sender) length() int64 { return int64(len(s.head)) + s.size }

func (s *sender) conn(c *net.TCPConn) error {
	f, err := os.Open(s.file)
	if err != nil {
		return err
	}
	defer f.Close()
	for ask := make([]byte, 1); ; {
		if _, err := io.ReadFull(c, ask); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if _, err := c.Write(s.head); err != nil {
			return err
		}
		if n, err := c.ReadFrom(io.LimitReader(f, s.size)); err != nil || n != s.size {
			return errors.Join(err, io.ErrUnexpectedEOF)
		}
	}
}

// serveRelay serves the file through a relaying child until the context ends.
func serveRelay(ctx context.Context, env loadgen.Env, args []string, file, addr string) (err error) {
	info, err := regularFile(file)
	if err != nil {
		return err
	}
	if err := canSplice(); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	s := newSender(file, info.Size())
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append(args, addr, l.Addr().String(), strconv.FormatInt(s.length(), 10))...)
	cmd.Stderr, cmd.SysProcAttr = env.Stderr, &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the relay: %w", err)
	}
	release := context.AfterFunc(ctx, func() { in.Close(); l.Close() })
	defer release()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		in.Close()
		return errors.Join(errors.New("the relay did not start"), cmd.Wait())
	}
	fmt.Fprintf(env.Stdout, "http://%s/ relays %s (%.3f MB), pid %d\n", strings.TrimSpace(line), file,
		float64(info.Size())/1e6, os.Getpid())
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait(); l.Close() }()
	err = acceptEach(l, s.conn)
	in.Close()
	return errors.Join(err, <-gone)
}
