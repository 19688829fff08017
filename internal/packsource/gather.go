package packsource

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
)

// Git writes in pieces of a few KiB. To be woken for each of them cost as much CPU as all the rest of a cold clone's
// copying. So once a pack has shown to be large (gatherAfter, in bytes), a read that emptied the pipe is followed by a
// pause; one that did not has left more behind. (A pause of 4 ms after every read, of 64 KiB, bound clones to 15 MB/s.)
// Git has to wait for us where it fills the pipe meanwhile: the pause is such that it fills an eighth to a half, as far
// as the runtime sleeps that short, and there is none where the system gave us a small pipe.
const (
	gatherAfter   = 256 << 10
	outputBuffer  = 1 << 20 // of the pipe, if the system has it
	leastPause    = time.Millisecond
	greatestPause = 4 * time.Millisecond
)

// gathering is the pause after reads that empty a pipe.
type gathering struct {
	capacity int64         // of the pipe
	pause    time.Duration // 0: never one
	burst    int64         // bytes read since the last pause
}

func newGathering(capacity int) *gathering {
	if capacity < process.LargePipe {
		return &gathering{}
	}
	return &gathering{capacity: int64(capacity), pause: leastPause}
}

// emptied is told of a read, and whether it emptied the pipe. It says how long to wait before the next.
func (g *gathering) emptied(read int64, empty bool) time.Duration {
	g.burst += read
	if !empty || g.pause == 0 {
		return 0
	}
	switch {
	case g.burst > g.capacity/2:
		g.pause = max(g.pause/2, leastPause)
	case g.burst < g.capacity/8:
		g.pause = min(2*g.pause, greatestPause)
	}
	g.burst = 0
	return g.pause
}
