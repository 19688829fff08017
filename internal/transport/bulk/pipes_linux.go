package bulk

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Sizes of pipes in bytes. Large pipes need the least CPU time for each byte. Small ones hold little memory for a peer
// that does not read.
const (
	largePipe = 1 << 20
	smallPipe = 64 << 10 // the kernel's default
)

// maxLarge is the maximum number of large pipes. A user without CAP_SYS_RESOURCE can have 64 MiB of pipes in total
// (/proc/sys/fs/pipe-user-pages-soft). This leaves room for 256 small ones before the kernel shrinks new pipes.
const maxLarge = 48

// idlePipes is the maximum number of empty pipes of each size that are kept.
const idlePipes = 16

// pipeSize is one of the sizes of a relay's pipe.
type pipeSize int

const (
	small pipeSize = iota
	large
	pipeSizes
)

// pipe is a pipe by its two ends.
type pipe struct {
	r, w int
	size pipeSize
}

// pipes are a Pump's pipes.
type pipes struct {
	mu   sync.Mutex
	idle [pipeSizes][]*pipe // unused and empty
	made [pipeSizes]int     // open pipes, in use or not
}

func newPipes() *pipes { return &pipes{} }

// get returns an empty pipe: a large one if wanted and available.
func (p *pipes) get(want pipeSize) (*pipe, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if want == large && len(p.idle[large]) == 0 && p.made[large] >= maxLarge {
		want = small
	}
	if n := len(p.idle[want]); n > 0 {
		last := p.idle[want][n-1]
		p.idle[want] = p.idle[want][:n-1]
		return last, nil
	}
	one, err := newPipe(want)
	if err == nil {
		p.made[one.size]++
	}
	return one, err
}

func newPipe(want pipeSize) (*pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	one := &pipe{r: fds[0], w: fds[1]}
	if want == small {
		return one, nil
	}
	for bytes := largePipe; bytes > smallPipe; bytes /= 4 {
		if _, err := unix.FcntlInt(uintptr(one.w), unix.F_SETPIPE_SZ, bytes); err == nil {
			one.size = large
			break
		}
	}
	return one, nil
}

// put returns a pipe. A pipe that still has bytes (residue) is closed.
func (p *pipes) put(one *pipe, residue bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if idle := &p.idle[one.size]; !residue && len(*idle) < idlePipes {
		*idle = append(*idle, one)
		return
	}
	p.made[one.size]--
	one.close()
}

// close closes the unused pipes.
func (p *pipes) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for size, idle := range p.idle {
		for _, one := range idle {
			one.close()
		}
		p.made[size] -= len(idle)
		p.idle[size] = nil
	}
}

func (p *pipe) close() {
	unix.Close(p.r)
	unix.Close(p.w)
}
