package disk

import (
	"errors"
	"os"
	"path/filepath"
)

// SyncDir writes the entries of a directory to disk. It works for files too.
func SyncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// ReplaceFile atomically replaces the content of a file, readable by its owner only. If prepare is given, it is called
// with the new file before the file gets its name, for example to change its mode. The new content is on disk when
// there is no error. After a crash the directory can have a temporary file: its name is that of the file with a dot and
// digits.
func ReplaceFile(path string, content []byte, prepare ...func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	for _, change := range prepare {
		err = errors.Join(err, change(f))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return SyncDir(filepath.Dir(path))
}
