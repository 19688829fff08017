//go:build !linux

package places

// renameNew renames a directory to a path that does not exist. Otherwise the error is fs.ErrExist.
func renameNew(from, to string) error { return renameUnlessExists(from, to) }
