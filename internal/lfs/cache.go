package lfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// PointerCache keeps the pointers of packs in a directory: one file for each pack, with its name. A file has a line for
// each pointer, with the ID of its blob, the ID of the object and the object's size. The last line is end. A file
// without it is not used, so a file that is not complete never hides a pointer.
//
// The name of a pack is a checksum of its objects, so a file never needs to be replaced. A nil *PointerCache keeps
// nothing.
type PointerCache struct{ dir string }

// NewPointerCache returns the cache in a directory, which is created when it is needed.
func NewPointerCache(dir string) *PointerCache { return &PointerCache{dir} }

// end has the version of ParsePointer: it changes if that accepts more.
const end = "end 2\n"

// load returns the pointers of a pack. ok is false if they are not known.
func (c *PointerCache) load(name string) (found []Pointer, ok bool) {
	if c == nil {
		return nil, false
	}
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	text, ok = bytes.CutSuffix(text, []byte(end))
	if err != nil || !ok {
		return nil, false
	}
	for line := range strings.Lines(string(text)) {
		p, err := parseLine(line)
		if err != nil {
			return nil, false
		}
		found = append(found, p)
	}
	return found, true
}

func parseLine(line string) (p Pointer, err error) {
	var blob, oid string
	if _, err = fmt.Sscanf(line, "%s %s %d\n", &blob, &oid, &p.Size); err != nil {
		return p, err
	}
	var failed error
	p.Blob, err = git.ParseObjectID(blob)
	p.OID, failed = ParseOID(oid)
	return p, errors.Join(err, failed)
}

// save keeps the pointers of a pack. A failure costs only another scan.
func (c *PointerCache) save(name string, found []Pointer) {
	if c == nil || !strings.HasPrefix(name, "pack-") {
		return
	}
	var b bytes.Buffer
	for _, p := range found {
		fmt.Fprintf(&b, "%s %s %d\n", p.Blob, p.OID, p.Size)
	}
	b.WriteString(end)
	if err := os.MkdirAll(c.dir, 0o777); err == nil {
		_ = disk.ReplaceFile(filepath.Join(c.dir, name), b.Bytes())
	}
}

// retain removes the files of other packs.
func (c *PointerCache) retain(names map[string]bool) {
	if c == nil {
		return
	}
	entries, _ := os.ReadDir(c.dir)
	for _, e := range entries {
		if !names[e.Name()] {
			os.Remove(filepath.Join(c.dir, e.Name()))
		}
	}
}
