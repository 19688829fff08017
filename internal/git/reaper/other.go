//go:build !linux

package reaper

import (
	"errors"
	"os"
)

const supported = false

func makePipe() (reader, writer *os.File, err error)              { return nil, nil, errors.ErrUnsupported }
func session() int                                                { return 0 }
func spawn(command []string, stdin *os.File) (*os.Process, error) { return nil, errors.ErrUnsupported }
