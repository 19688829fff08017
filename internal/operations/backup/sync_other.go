//go:build !linux

package backup

import "golang.org/x/sys/unix"

// syncFileSystem writes all files to disk.
func syncFileSystem(string) error { return unix.Sync() }
