//go:build linux && (amd64 || arm64)

package refs

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// fstatat is unix.Fstatat for a path that already ends in NUL. It allocates nothing, because a Snapshot call checks
// every loose ref.
func fstatat(path string, st *unix.Stat_t, flags int) error {
	dirfd := unix.AT_FDCWD
	for {
		_, _, errno := unix.Syscall6(unix.SYS_NEWFSTATAT, uintptr(dirfd),
			uintptr(unsafe.Pointer(unsafe.StringData(path))),
			uintptr(unsafe.Pointer(st)), uintptr(flags), 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}
