//go:build !linux

package doctor

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

const rlimitProcesses = 7 // RLIMIT_NPROC of the BSDs and macOS

// limitsOf returns the hard limits of this process, because those of others cannot be read.
func limitsOf(int) (files, processes uint64, err error) {
	var f, p unix.Rlimit
	err = errors.Join(unix.Getrlimit(unix.RLIMIT_NOFILE, &f), unix.Getrlimit(rlimitProcesses, &p))
	return f.Max, p.Max, err
}

func clockState() (synchronised, known bool) { return false, false }

func fileSkew(string) (time.Duration, bool) { return 0, false }
