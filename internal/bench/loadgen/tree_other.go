//go:build !linux

package loadgen

import (
	"errors"
	"time"
)

// ProcTree needs Linux's /proc.
type ProcTree struct{}

func NewProcTree(int) (*ProcTree, error) {
	return nil, errors.New("--server-pid works on Linux only")
}

func (*ProcTree) Scan()              {}
func (*ProcTree) Cpu() time.Duration { return 0 }
func (*ProcTree) Own() time.Duration { return 0 }
func (*ProcTree) Anon() int64        { return 0 }
func (*ProcTree) rss() int64         { return 0 }
func (*ProcTree) Runnable() int      { return 0 }

func ProcessCPU(int) (time.Duration, error) { return 0, errors.New("CPU times need Linux's /proc") }
