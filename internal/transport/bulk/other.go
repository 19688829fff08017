//go:build !linux

package bulk

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// kernelCopies is false, because all bytes pass through user space.
const kernelCopies = false

type transfer struct{}

func (*transfer) init(*Conn)                   {}
func (*transfer) send(*Section) (int64, error) { return 0, errors.ErrUnsupported }
func (*transfer) write([]byte) (int, error)    { return 0, errors.ErrUnsupported }

type splicer struct{}

func (*splicer) init(*Conn)                  {}
func (*splicer) send(*Stream) (int64, error) { return 0, errors.ErrUnsupported }

type pipes struct{}

func newPipes() *pipes { return nil }
func (*pipes) close()  {}

func hasEnded(uintptr) (ended, known bool) { return false, false }

func replacePacing(syscall.RawConn) string { return "" }

func restore(*net.TCPConn, string) {}

// CanHand returns false, because open files cannot be passed to a peer.
func CanHand(net.Conn) bool { return false }

// Hand is not supported.
func (c *Conn) Hand([]byte, *os.File) error { return errors.ErrUnsupported }

// ErrFileLost is the error of Take if a file was sent and did not arrive.
var ErrFileLost = errors.New("an open file did not arrive")

// Take is not supported.
func (c *Conn) Take([]byte) (int, *os.File, error) { return 0, nil, errors.ErrUnsupported }
