//go:build !linux

package reaper

import (
	"errors"
	"os"
)

const supported = false

func spawn([]string, *os.File) (*os.Process, error) { return nil, errors.ErrUnsupported }
