//go:build !linux || !(amd64 || arm64)

package refs

import "golang.org/x/sys/unix"

// fstatat is unix.Fstatat for a path that ends in NUL.
func fstatat(path string, st *unix.Stat_t, flags int) error {
	return ignoringEINTR(func() error { return unix.Fstatat(unix.AT_FDCWD, path[:len(path)-1], st, flags) })
}
