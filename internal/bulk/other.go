//go:build !linux

package bulk

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// kernelCopies is false: everything goes through user space here.
const kernelCopies = false

type transfer struct{}

func (*transfer) init(*Conn)                   {}
func (*transfer) send(*Section) (int64, error) { return 0, errors.ErrUnsupported }
func (*transfer) write([]byte) (int, error)    { return 0, errors.ErrUnsupported }

type splicer struct{}

func (*splicer) init(*Conn)                  {}
func (*splicer) send(*Stream) (int64, error) { return 0, errors.ErrUnsupported }

type pipes struct{}

func newPipes() *pipes            { return nil }
func (*pipes) close()             {}
func (*pipes) count(pipeSize) int { return 0 }

func hasEnded(uintptr) (ended, known bool) { return false, false }

func replacePacing(syscall.RawConn) string { return "" }

func restore(*net.TCPConn, string) {}

// CanHand reports whether open files can be passed to a connection's peer. Here it is always false.
func CanHand(net.Conn) bool { return false }

// Hand is for connections of which CanHand is true.
func (c *Conn) Hand([]byte, *os.File) error { return errors.ErrUnsupported }

// ErrFileLost is Take's error where a file was sent and did not arrive.
var ErrFileLost = errors.New("a file that was handed over did not arrive")

// Take is for connections of which CanHand is true.
func (c *Conn) Take([]byte) (int, *os.File, error) { return 0, nil, errors.ErrUnsupported }
