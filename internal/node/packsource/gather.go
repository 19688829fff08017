package packsource

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
)

// Git writes in pieces of a few KiB. Waking this process for each of them doubles its CPU time in a cold clone. So
// after gatherAfter bytes of a pack, a read that emptied the pipe is followed by a pause. A full pipe blocks git, so
// the pause adapts until git fills an eighth to a half of the pipe in it. (A fixed pause of 4 ms after every read of 64
// KiB limited clones to 15 MB/s.) With a small pipe there is no pause.
const (
	gatherAfter   = 256 << 10
	outputBuffer  = 1 << 20 // requested size of the pipe
	leastPause    = time.Millisecond
	greatestPause = 4 * time.Millisecond
)

// gathering determines the pause after a read that emptied the pipe.
type gathering struct {
	capacity int64         // of the pipe
	pause    time.Duration // 0: no pauses
	burst    int64         // bytes read since the last pause
}

func newGathering(capacity int) *gathering {
	if capacity < process.LargePipe {
		return &gathering{}
	}
	return &gathering{capacity: int64(capacity), pause: leastPause}
}

// emptied records a read and whether it emptied the pipe. It returns the pause before the next read.
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
