package bulk

import (
	"sync"

	"golang.org/x/sys/unix"
)

// pipeSize is how large a relay's pipe should be, in bytes. Whoever has no CAP_SYS_RESOURCE can have 64 MiB of pipes in all
// (/proc/sys/fs/pipe-user-pages-soft); then smaller ones have to do.
const (
	pipeSize = 1 << 20
	pipeLess = 64 << 10 // what one has anyway
)

// idlePipes is how many empty pipes are kept.
const idlePipes = 16

// pipe is a pipe by its two ends.
type pipe struct{ r, w int }

// pipes are a Pump's pipes that nobody uses now. All of them are empty.
type pipes struct {
	mu   sync.Mutex
	idle []*pipe
}

func newPipes() *pipes { return &pipes{} }

// get returns an empty pipe.
func (p *pipes) get() (*pipe, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		last := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return last, nil
	}
	p.mu.Unlock()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	for size := pipeSize; size > pipeLess; size /= 4 {
		if _, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, size); err == nil {
			break
		}
	}
	return &pipe{fds[0], fds[1]}, nil
}

// put takes a pipe back. One that has bytes in it goes with them.
func (p *pipes) put(one *pipe, residue bool) {
	p.mu.Lock()
	if !residue && len(p.idle) < idlePipes {
		p.idle = append(p.idle, one)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	one.close()
}

// close closes the pipes that nobody uses.
func (p *pipes) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.idle {
		one.close()
	}
	p.idle = nil
}

func (p *pipe) close() {
	unix.Close(p.r)
	unix.Close(p.w)
}
