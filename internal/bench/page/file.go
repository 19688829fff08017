package page

import (
	"errors"
	"io/fs"
	"os"
)

// File is where a page will be. It is opened before what takes long, so that a name where nothing can be written costs
// no results. An existing file is kept until the page is written.
type File struct {
	file  *os.File
	fresh bool // it was not there, and nothing is in it
}

// Open opens the file; without a name there is none, and nothing is written.
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

// Write writes the page in place of all that was there.
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

// Close closes the file; one that was made for a page that never came is removed.
func (f *File) Close() {
	if f == nil {
		return
	}
	f.file.Close()
	if f.fresh {
		os.Remove(f.file.Name())
	}
}
