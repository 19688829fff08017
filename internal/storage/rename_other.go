//go:build !linux

package storage

// renameNew renames a directory to a path at which nothing is; else the error is fs.ErrExist.
func renameNew(from, to string) error { return renameUnlessThere(from, to) }
