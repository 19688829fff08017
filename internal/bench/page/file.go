package page

import (
	"errors"
	"io/fs"
	"os"
)

// File is the future file of a page. It is opened before a long run, so that a name that is not writable is an error
// before the run. An existing file is kept until Write.
type File struct {
	file  *os.File
	fresh bool // the file is new and empty
}

// Open opens the file. Without a name the file writes nothing.
func Open(name string) (*File, error) {
	if name == "" {
		return nil, nil
	}
	_, err := os.Lstat(name)
	fresh := errors.Is(err, fs.ErrNotExist)
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	return &File{file, fresh}, nil
}

// Write replaces the contents of the file with the page.
func (f *File) Write(page []byte) error {
	if f == nil {
		return nil
	}
	f.fresh = false
	if info, err := f.file.Stat(); err == nil && info.Mode().IsRegular() {
		if err := f.file.Truncate(0); err != nil {
			return err
		}
	}
	_, err := f.file.Write(page)
	return errors.Join(err, f.file.Close())
}

// Close closes the file. It removes a new file without a page.
func (f *File) Close() {
	if f == nil {
		return
	}
	f.file.Close()
	if f.fresh {
		os.Remove(f.file.Name())
	}
}
