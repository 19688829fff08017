//go:build !linux

package gitload

import (
	"errors"
	"net"
)

func canSplice() error { return errors.New("--relay needs Linux's splice") }

// splicer needs Linux.
type splicer struct{}

func newSplicer(_, _ *net.TCPConn) (*splicer, error) { return nil, canSplice() }
func (*splicer) move(int64) error                    { return canSplice() }
func (*splicer) close()                              {}
