package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// MaxBytes is the maximum size of all new objects of a Dir together in bytes.
const MaxBytes = 256 << 20

// Objects returns the objects of the directory that tips reach. The error is Invalid above MaxBytes.
func (d *Dir) Objects(tips ...git.ObjectID) (found []*write.Object, err error) {
	total := int64(0)
	return found, walk(d.repo.Format, tips, func(id git.ObjectID) (git.ObjectType, []byte, error) {
		if _, err := os.Lstat(filepath.Join(d.Path, file(id))); errors.Is(err, fs.ErrNotExist) {
			return 0, nil, nil
		}
		typ, data, err := d.store.Read(id, MaxBytes)
		if total += int64(len(data)); err == nil && total > MaxBytes || fault.Is(err, fault.Invalid) {
			err = fault.New(fault.Invalid, "the result has more than %d bytes of new objects", int64(MaxBytes))
		}
		if err == nil {
			found = append(found, write.NewObject(d.repo.Format, typ, data))
		}
		return typ, data, err
	})
}

// Copy makes the objects that a commit or tree reaches readable for Git, if they are not on the disk yet (write.State).
func (d *Dir) Copy(s write.State, tips ...git.ObjectID) error {
	return walk(d.repo.Format, tips, func(id git.ObjectID) (git.ObjectType, []byte, error) {
		if has, err := d.repo.Objects.Has(id); has || err != nil {
			return 0, nil, err
		}
		typ, data, err := s.Read(id, MaxBytes)
		if err != nil {
			return 0, nil, err
		}
		return typ, data, d.Put(id, typ, data)
	})
}

// file returns the path of an object in a git directory (gitrepository-layout(5)).
func file(id git.ObjectID) string {
	text := id.String()
	return "objects/" + text[:2] + "/" + text[2:]
}

// Put makes an object readable for Git.
func (d *Dir) Put(id git.ObjectID, typ git.ObjectType, data []byte) error {
	if d.put[id] {
		return nil
	}
	d.put[id] = true
	if _, err := os.Lstat(filepath.Join(d.Path, file(id))); err == nil {
		return nil
	}
	return d.Write(file(id), write.Deflate(fmt.Appendf(nil, "%s %d\x00%s", typ, len(data), data)))
}

// walk visits objects and what they refer to. read returns an object whose references are followed; type 0: they are
// not.
func walk(format git.ObjectFormat, ids []git.ObjectID,
	read func(id git.ObjectID) (git.ObjectType, []byte, error)) error {
	seen := make(map[git.ObjectID]bool)
	for len(ids) > 0 {
		id := ids[len(ids)-1]
		ids = ids[:len(ids)-1]
		if seen[id] {
			continue
		}
		seen[id] = true
		typ, data, err := read(id)
		if err != nil {
			return err
		}
		switch typ {
		case git.Commit:
			c, err := pack.ParseCommit(data, format)
			if err != nil {
				return err
			}
			ids = append(append(ids, c.Tree), c.Parents...)
		case git.Tree:
			err = pack.Entries(data, format, func(mode uint32, _ []byte, entry git.ObjectID) error {
				if mode != pack.ModeGitlink {
					ids = append(ids, entry)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
