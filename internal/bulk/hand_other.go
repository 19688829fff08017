//go:build !linux

package bulk

import (
	"errors"
	"net"
	"os"
)

// CanHand reports whether open files can be passed to a connection's peer. Here it is always false.
func CanHand(net.Conn) bool { return false }

// Hand is for connections of which CanHand is true.
func (c *Conn) Hand([]byte, *os.File) error { return errors.ErrUnsupported }

// ErrFileLost is Take's error where a file was sent and did not arrive.
var ErrFileLost = errors.New("a file that was handed over did not arrive")

// Take is for connections of which CanHand is true.
func (c *Conn) Take([]byte) (int, *os.File, error) { return 0, nil, errors.ErrUnsupported }
