//go:build !linux

package bulk

import "errors"

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
