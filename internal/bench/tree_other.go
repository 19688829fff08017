//go:build !linux

package bench

import (
	"errors"
	"time"
)

// procTree needs Linux's /proc.
type procTree struct{}

func newProcTree(int) (*procTree, error) {
	return nil, errors.New("--server-pid works on Linux only")
}

func (*procTree) scan()              {}
func (*procTree) cpu() time.Duration { return 0 }
func (*procTree) own() time.Duration { return 0 }
func (*procTree) anon() int64        { return 0 }
func (*procTree) rss() (_, _ int64)  { return 0, 0 }
func (*procTree) runnable() int      { return 0 }

func machineRunnable() int { return 0 }
