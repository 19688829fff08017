//go:build !linux

package loadgen

import (
	"context"
	"net"
	"time"
)

// Yielding does nothing. Priorities are used on Linux only.
func Yielding() {}

func ProcessNice(int) bool { return false }

func sleepUntil(ctx context.Context, due time.Time) bool { return Sleep(ctx, time.Until(due)) }

func newDropper(c net.Conn) *bufferDrop { return &bufferDrop{c: c} }

type dropper = bufferDrop
