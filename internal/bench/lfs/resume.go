package lfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// resume uploads an object with git-lfs through a proxy that cuts its connection.
func (w *world) resume(ctx context.Context) ([]loadgen.Figure, error) {
	own, err := w.own(ctx)
	if err != nil {
		return nil, err
	}
	token, err := gitload.CreateToken(ctx, w.server.Program, filepath.Join(w.dir, "own", "state"))
	if err != nil {
		return nil, err
	}
	var values []float64
	var took time.Duration
	for i := range w.rounds {
		local := filepath.Join(w.dir, fmt.Sprint("local", i))
		if _, err := gitload.RunGit(ctx, w.dir, nil, "init", "-q", local); err != nil {
			return nil, err
		}
		o, err := addObject(filepath.Join(local, ".git"), int64(w.upload)<<20, 'r', i)
		if err != nil {
			return nil, err
		}
		p, err := newCutter(own.url[len("http://"):], o.size, w.cuts)
		if err != nil {
			return nil, err
		}
		begun := time.Now()
		err = w.push(ctx, local, p.url(), token, o)
		took = time.Since(begun)
		p.close()
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(o.path(w.repository()))
		if err != nil {
			return nil, err
		}
		if info.Size() != o.size || p.cut != w.cuts {
			return nil, fmt.Errorf("after %d of %d cuts the server's object has %d bytes, not %d", p.cut, w.cuts, info.Size(),
				o.size)
		}
		values = append(values, float64(p.received-o.size)/float64(o.size))
		if err := errors.Join(os.RemoveAll(local), os.Remove(o.path(w.repository()))); err != nil {
			return nil, err
		}
	}
	again := loadgen.Median(values)
	return []loadgen.Figure{{What: fmt.Sprintf("upload of %d MiB, cut %d times: bytes sent again", w.upload, w.cuts),
		Goal: "<= 1 %", Value: again * 100, Got: fmt.Sprintf("%.2f %%, %s", again*100, seconds(took)),
		Reached: again <= 0.01}}, nil
}

// push uploads an object with git-lfs, which resumes an upload with tus.
func (w *world) push(ctx context.Context, local, url, token string, o object) error {
	settings := [][2]string{{"remote.origin.url", url + "/app"}, {"lfs.tustransfers", "true"},
		{"lfs.transfer.maxretries", fmt.Sprint(w.cuts + 5)}, {"lfs.transfer.maxretrydelay", "1"},
		{"lfs.locksverify", "false"}, {"http.extraheader", "Authorization: Bearer " + token}}
	for _, s := range settings {
		if _, err := gitload.RunGit(ctx, local, nil, "config", s[0], s[1]); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, w.gitLFS, "push", "--object-id", "origin", o.oid)
	cmd.Dir = local
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git-lfs push: %w: %s", err, loadgen.Clean(out[max(0, len(out)-1000):]))
	}
	return nil
}

// cutter is a TCP proxy that cuts a connection each time another part of the object has arrived.
type cutter struct {
	listener net.Listener
	server   string
	step     int64 // bytes from clients between cuts
	cuts     int   // maximum number
	running  sync.WaitGroup

	mu       sync.Mutex
	received int64 // bytes from clients
	cut      int   // number of cuts
}

func newCutter(server string, size int64, cuts int) (*cutter, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &cutter{listener: l, server: server, step: size / int64(cuts+1), cuts: cuts}
	p.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.pass(client) })
		}
	})
	return p, nil
}

func (p *cutter) url() string { return "http://" + p.listener.Addr().String() }

// close ends the proxy. Its connections end with those of its clients.
func (p *cutter) close() {
	p.listener.Close()
	p.running.Wait()
}

// clientBuffer is the size of the buffer for bytes that the proxy has not read at a cut, as on a line with a small
// product of bandwidth and delay.
const clientBuffer = 128 << 10

// pass passes one connection.
func (p *cutter) pass(client net.Conn) {
	defer client.Close()
	_ = client.(*net.TCPConn).SetReadBuffer(clientBuffer) // it only bounds what a cut loses
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	var answers sync.WaitGroup
	answers.Go(func() {
		_, _ = io.Copy(client, server) // the end of the connection shows an error
		client.Close()
	})
	defer answers.Wait()
	defer server.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := client.Read(buf)
		isCut := p.count(n)
		if _, failed := server.Write(buf[:n]); err != nil || failed != nil || isCut {
			return
		}
	}
}

// count adds bytes from a client, and reports whether the proxy has to cut the connection after them.
func (p *cutter) count(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.received += int64(n)
	if p.cut == p.cuts || p.received < p.step*int64(p.cut+1) {
		return false
	}
	p.cut++
	return true
}
