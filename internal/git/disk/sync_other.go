//go:build !linux

package disk

import "golang.org/x/sys/unix"

// SyncFileSystem writes all files to disk.
func SyncFileSystem(string) error { return unix.Sync() }
