package pack

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// TipDir is the directory of the tip pack below an object directory. Git does not read it.
const TipDir = "tip"

// Tip is the open tip pack of a repository: copies of the objects of one commit without its history, so that a shallow
// clone can be copied from it. It only saves work, and the repository has all its objects. Close it after use.
type Tip struct {
	Index *Index
	Path  string // without ".pack"
	File  *os.File
	End   int64 // offset of the pack's checksum
}

// FindTip returns the path of the tip pack of an object directory, without an extension, and its time. Without a tip
// pack the path is empty. Symbolic links are ignored. The pack itself may be missing: see OpenTip.
func FindTip(objects string) (path string, made time.Time) {
	dir := filepath.Join(objects, TipDir)
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
		return "", made
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".idx")
		if !ok || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil && (path == "" || info.ModTime().After(made)) {
			path, made = filepath.Join(dir, name), info.ModTime()
		}
	}
	return path, made
}

// OpenTip opens the tip pack of an object directory. It verifies the checksum of the index, and that the pack belongs
// to it. Without a tip pack the result and the error are nil. That includes an index without a pack, which marks a
// commit for which a tip pack is not worth its size.
func OpenTip(objects string, format git.ObjectFormat) (*Tip, error) {
	path, _ := FindTip(objects)
	if path == "" {
		return nil, nil
	}
	info, err := os.Lstat(path + ".pack")
	if err == nil && !info.Mode().IsRegular() {
		return nil, fault.New(fault.Corrupt, "%s.pack is not a regular file", path)
	}
	var x *packIndex
	if err == nil {
		x, err = openIdx(path+".idx", format)
	}
	if err == nil {
		err = x.file.Do(func(b []byte) error { return verifyIdx(b, format) })
	}
	var o *openPack
	if err == nil {
		o, err = (&packFile{path: path, hash: format.Size(), index: x}).openFile()
	}
	if isAbsent(err) || err == errGone {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &Tip{Index: &Index{x: x}, Path: path, File: o.file, End: o.size}, nil
}

// Verify compares the pack with its checksum.
func (t *Tip) Verify(format git.ObjectFormat) error {
	h := format.New()
	if _, err := io.Copy(h, io.NewSectionReader(t.File, 0, t.End)); err != nil {
		return err
	}
	if !bytes.Equal(h.Sum(nil), t.Index.x.sum) {
		return errors.New("its checksum is wrong")
	}
	return nil
}

// Close closes the pack and its index.
func (t *Tip) Close() {
	t.Index.Close()
	t.File.Close()
}
