package pack

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Commit is the part of a commit that a history walk needs.
type Commit struct {
	Tree    git.ObjectID
	Parents []git.ObjectID
	Date    int64 // committer's, in seconds since the epoch; 0 if it cannot be read
}

var (
	treeField   = []byte("tree ")
	parentField = []byte("parent ")
)

// ParseCommit parses the headers of a commit as leniently as git: only the tree and parent lines must be valid.
func ParseCommit(data []byte, format git.ObjectFormat) (Commit, error) {
	var c Commit
	rest, id, ok := idLine(data, treeField, format)
	if !ok || len(rest) == 0 {
		return c, fault.New(fault.Corrupt, "bogus commit: it has no tree, or nothing more")
	}
	c.Tree = id
	size := len(parentField) + format.HexSize()
	parents := 0
	for p := rest; len(p) > size && bytes.HasPrefix(p, parentField) && p[size] == '\n'; p = p[size+1:] {
		parents++
	}
	if parents > 0 {
		c.Parents = make([]git.ObjectID, 0, parents)
	}
	for len(rest) > size && bytes.HasPrefix(rest, parentField) {
		if rest, id, ok = idLine(rest, parentField, format); !ok {
			return c, fault.New(fault.Corrupt, "bogus commit: a parent line is bad")
		}
		c.Parents = append(c.Parents, id)
	}
	c.Date = commitDate(rest)
	return c, nil
}

// idLine reads a line of a field name and an object ID.
func idLine(data, field []byte, format git.ObjectFormat) (rest []byte, id git.ObjectID, ok bool) {
	end := len(field) + format.HexSize()
	if len(data) <= end || data[end] != '\n' || !bytes.HasPrefix(data, field) {
		return data, id, false
	}
	id, err := git.ParseObjectID(data[len(field):end])
	return data[end+1:], id, err == nil
}

// commitDate reads the committer line, which must follow the author line. The date is after the line's last '>', up to
// the first character that is not a digit.
func commitDate(headers []byte) int64 {
	author, rest, ok := bytes.Cut(headers, []byte{'\n'})
	if !ok || !bytes.HasPrefix(author, []byte("author")) {
		return 0
	}
	committer, _, ok := bytes.Cut(rest, []byte{'\n'})
	if !ok || !bytes.HasPrefix(committer, []byte("committer")) {
		return 0
	}
	digits := bytes.TrimLeft(committer[bytes.LastIndexByte(committer, '>')+1:], " \t\v\f\r")
	if len(digits) == len(committer) {
		return 0 // no '>' at all
	}
	negative := len(digits) > 0 && digits[0] == '-'
	if negative {
		digits = digits[1:]
	}
	var date int64
	for _, d := range digits {
		if d < '0' || d > '9' {
			break
		}
		if date > (math.MaxInt64-9)/10 {
			return math.MaxInt64
		}
		date = 10*date + int64(d-'0')
	}
	if negative && date > 0 {
		return math.MaxInt64 // git's timestamps are unsigned and wrap
	}
	return date
}

// ParseTag returns the target of an annotated tag, and the target's type as the tag states it.
func ParseTag(data []byte, format git.ObjectFormat) (target git.ObjectID, typ git.ObjectType, err error) {
	rest, target, ok := idLine(data, []byte("object "), format)
	if !ok {
		return git.ObjectID{}, 0, fault.New(fault.Corrupt, "bogus tag: it names no object")
	}
	line, rest, ok := bytes.Cut(rest, []byte{'\n'})
	name, hasType := bytes.CutPrefix(line, []byte("type "))
	if !ok || !hasType {
		return git.ObjectID{}, 0, fault.New(fault.Corrupt, "bogus tag: it has no type")
	}
	if typ, err = git.ParseObjectType(string(name)); err != nil {
		return git.ObjectID{}, 0, fault.Wrap(fault.Corrupt, "bogus tag", err)
	}
	if line, _, ok = bytes.Cut(rest, []byte{'\n'}); !ok || !bytes.HasPrefix(line, []byte("tag ")) {
		return git.ObjectID{}, 0, fault.New(fault.Corrupt, "bogus tag: it has no name")
	}
	return target, typ, nil
}

// The modes of tree entries, as Entries reports them.
const (
	ModeTree       uint32 = 0o040000
	ModeFile       uint32 = 0o100644
	ModeExecutable uint32 = 0o100755
	ModeSymlink    uint32 = 0o120000
	ModeGitlink    uint32 = 0o160000
)

const modeType = 0o170000

// Entries calls fn for each entry of a tree, in the tree's order. Modes are made canonical, as git does (100664 is
// reported as 100644). The name is valid during the call only. An error from fn ends the walk and is returned, except
// fs.SkipAll, which ends it without one.
func Entries(data []byte, format git.ObjectFormat, fn func(mode uint32, name []byte, id git.ObjectID) error) error {
	for len(data) > 0 {
		mode, name, id, rest, err := CutEntry(data, format)
		if err != nil {
			return err
		}
		if err := fn(mode, name, id); err != nil {
			if errors.Is(err, fs.SkipAll) {
				return nil
			}
			return err
		}
		data = rest
	}
	return nil
}

// CutEntry reads the first entry of a tree that is not empty, like Entries, and returns the rest of the tree.
func CutEntry(data []byte, format git.ObjectFormat) (mode uint32, name []byte, id git.ObjectID, rest []byte,
	err error) {
	mode, rest, err = EntryMode(data)
	if err != nil {
		return 0, nil, id, nil, err
	}
	end, size := bytes.IndexByte(rest, 0), format.Size()
	if end <= 0 || len(rest) < end+1+size {
		return 0, nil, id, nil, fault.New(fault.Corrupt, "bogus tree: an entry has no name or ends early")
	}
	return mode, rest[:end], git.RawObjectID(rest[end+1 : end+1+size]), rest[end+1+size:], nil
}

// EntryMode reads the octal mode before the name of a tree entry, and makes it canonical. It returns the rest.
func EntryMode(data []byte) (mode uint32, rest []byte, err error) {
	for i, c := range data {
		if c == ' ' && i > 0 {
			return canonicalMode(mode), data[i+1:], nil
		}
		if c < '0' || c > '7' || mode > 0o177777 {
			break
		}
		mode = mode<<3 | uint32(c-'0')
	}
	return 0, nil, fault.New(fault.Corrupt, "bogus tree: an entry has a bad mode")
}

func canonicalMode(mode uint32) uint32 {
	switch mode & modeType {
	case ModeFile & modeType:
		if mode&0o100 != 0 {
			return ModeExecutable
		}
		return ModeFile
	case ModeSymlink, ModeTree:
		return mode & modeType
	}
	return ModeGitlink
}

// Resolve walks from a tree down a path ("dir/file") and returns the entry's ID and mode. The empty path is the tree
// itself; a slash at the end is allowed after a tree. The error is NotFound if there is no such entry.
func (s *Store) Resolve(tree git.ObjectID, path string) (git.ObjectID, uint32, error) {
	id, mode := tree, ModeTree
	for path != "" {
		if mode != ModeTree {
			return git.ObjectID{}, 0, errNoEntry()
		}
		name, rest, _ := strings.Cut(path, "/")
		typ, data, err := s.Read(id, 0)
		if err != nil {
			return git.ObjectID{}, 0, err
		}
		if typ != git.Tree {
			return git.ObjectID{}, 0, fault.New(fault.Corrupt, "object %s is a %s where a tree should be", id, typ)
		}
		found := false
		err = Entries(data, s.format, func(m uint32, n []byte, child git.ObjectID) error {
			if string(n) == name {
				id, mode, found = child, m, true
				return fs.SkipAll
			}
			return nil
		})
		if err != nil {
			return git.ObjectID{}, 0, err
		}
		if !found || mode != ModeTree && len(rest) == 0 && strings.HasSuffix(path, "/") {
			return git.ObjectID{}, 0, errNoEntry()
		}
		path = rest
	}
	return id, mode, nil
}

func errNoEntry() error { return fault.New(fault.NotFound, "the tree has no entry of that path") }
