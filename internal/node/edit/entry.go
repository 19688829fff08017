package edit

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// Entry is an entry of a tree. The mode 0 means that there is none.
type Entry struct {
	Name []byte
	Mode uint32
	ID   git.ObjectID
}

// Exists reports whether there is an entry.
func (e Entry) Exists() bool { return e.Mode != 0 }

// Same reports whether entries have the same mode and object, or do not exist.
func (e Entry) Same(other Entry) bool { return e.Mode == other.Mode && e.ID == other.ID }

// value returns the object of an entry in an error.
func (e Entry) value() string {
	if !e.Exists() {
		return fault.Absent
	}
	return e.ID.String()
}

// CompareEntries compares entries in the order of trees, in which the names of directories end in a slash.
func CompareEntries(a, b Entry) int {
	n := min(len(a.Name), len(b.Name))
	if c := bytes.Compare(a.Name[:n], b.Name[:n]); c != 0 {
		return c
	}
	return int(a.end(n)) - int(b.end(n))
}

// end returns the byte at n, which is at most the length of the name.
func (e Entry) end(n int) byte {
	switch {
	case n < len(e.Name):
		return e.Name[n]
	case e.Mode == pack.ModeTree:
		return '/'
	}
	return 0
}

// ParseTree returns the entries of a tree.
func ParseTree(data []byte, format git.ObjectFormat) ([]Entry, error) {
	data = bytes.Clone(data) // names refer to it
	list := make([]Entry, 0, len(data)/(format.Size()+16))
	for len(data) > 0 {
		var e Entry
		var err error
		if e.Mode, e.Name, e.ID, data, err = pack.CutEntry(data, format); err != nil {
			return nil, fault.Wrap(fault.Corrupt, "a tree is damaged", err)
		}
		list = append(list, e)
	}
	return list, nil
}

// FormatTree returns the tree with entries in their order.
func FormatTree(list []Entry) []byte {
	size := 0
	for _, e := range list {
		size += len("100644 ") + len(e.Name) + 1 + e.ID.Format().Size()
	}
	data := make([]byte, 0, size)
	for _, e := range list {
		data = append(strconv.AppendUint(data, uint64(e.Mode), 8), ' ')
		data = append(append(append(data, e.Name...), 0), e.ID.Raw()...)
	}
	return data
}

// FindEntry returns the entry with a name.
func FindEntry(list []Entry, name string) Entry {
	for _, mode := range []uint32{pack.ModeFile, pack.ModeTree} {
		if at, ok := slices.BinarySearchFunc(list, Entry{Name: []byte(name), Mode: mode}, CompareEntries); ok {
			return list[at]
		}
	}
	return Entry{}
}
