package scratch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zlib"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// MaxBytes is the maximum size of all new objects of a Dir together in bytes.
const MaxBytes = 256 << 20

// Objects returns the new objects that tips reach: those that Git has written. The error is Invalid above MaxBytes.
func (d *Dir) Objects(tips ...git.ObjectID) ([]*write.Object, error) {
	var found []*write.Object
	total := int64(0)
	w := walk{format: d.repo.Format, seen: make(map[git.ObjectID]bool)}
	w.read = func(id git.ObjectID) (git.ObjectType, []byte, error) {
		if d.copied[id] {
			return 0, nil, nil
		}
		typ, data, err := d.store.Read(id, MaxBytes)
		if fault.Is(err, fault.NotFound) {
			return 0, nil, nil
		}
		if total += int64(len(data)); err == nil && total > MaxBytes || fault.Is(err, fault.Invalid) {
			err = fault.New(fault.Invalid, "the result has more than %d bytes of new objects", int64(MaxBytes))
		}
		if err == nil {
			found = append(found, write.NewObject(d.repo.Format, typ, data))
		}
		return typ, data, err
	}
	return found, w.all(tips...)
}

// Copy makes the objects that a commit or tree reaches readable for Git, if they are not on the disk yet (write.State).
func (d *Dir) Copy(s write.State, tips ...git.ObjectID) error {
	w := walk{format: d.repo.Format, seen: d.copied}
	w.read = func(id git.ObjectID) (git.ObjectType, []byte, error) {
		if has, err := d.repo.Objects.Has(id); has || err != nil {
			return 0, nil, err
		}
		typ, data, err := s.Read(id, MaxBytes)
		if err != nil {
			return 0, nil, err
		}
		return typ, data, d.Put(id, typ, data)
	}
	return w.all(tips...)
}

// Read reads an object that Git has written. The errors are those of pack.Store.
func (d *Dir) Read(id git.ObjectID, limit int64) (git.ObjectType, []byte, error) {
	return d.store.Read(id, limit)
}

// Put makes an object readable for Git. It writes a loose object (gitrepository-layout(5)).
func (d *Dir) Put(id git.ObjectID, typ git.ObjectType, data []byte) error {
	var b bytes.Buffer
	z, _ := zlib.NewWriterLevel(&b, zlib.NoCompression) // the level is valid
	fmt.Fprintf(z, "%s %d\x00", typ, len(data))
	_, _ = z.Write(data) // into memory
	_ = z.Close()
	text := id.String()
	dir := filepath.Join(d.Path, "objects", text[:2])
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, text[2:]), b.Bytes(), 0o600)
	}
	return fault.Wrap(fault.Unavailable, "cannot write to the state directory", err)
}

// walk visits objects and what they refer to.
type walk struct {
	format git.ObjectFormat
	// read returns an object whose references are followed; type 0: they are not.
	read func(id git.ObjectID) (git.ObjectType, []byte, error)
	seen map[git.ObjectID]bool
}

func (w *walk) all(ids ...git.ObjectID) error {
	for len(ids) > 0 {
		id := ids[len(ids)-1]
		ids = ids[:len(ids)-1]
		if w.seen[id] {
			continue
		}
		typ, data, err := w.read(id)
		if err != nil {
			return err
		}
		if typ == 0 {
			continue
		}
		w.seen[id] = true
		switch typ {
		case git.Commit:
			c, err := pack.ParseCommit(data, w.format)
			if err != nil {
				return err
			}
			ids = append(append(ids, c.Tree), c.Parents...)
		case git.Tree:
			for len(data) > 0 {
				mode, _, entry, rest, err := pack.CutEntry(data, w.format)
				if err != nil {
					return err
				}
				if data = rest; mode != pack.ModeGitlink {
					ids = append(ids, entry)
				}
			}
		}
	}
	return nil
}
