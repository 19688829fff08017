package edit

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// Limits of the changes of one request.
const (
	MaxChanges     = 100_000
	maxPaths       = 16 << 20 // bytes of all paths
	maxDirectories = 100_000  // in all paths
)

// Kind is the kind of a Change.
type Kind uint8

const (
	Put    Kind = iota // make or replace a file or a submodule
	Delete             // delete a file, a submodule, or a directory with everything in it
	Move               // move a file, a submodule or a directory to a path that does not exist
	Mode               // change the mode of a file
)

// Change is one change of a tree.
type Change struct {
	Kind     Kind
	Field    string        // of the request, for errors: "changes[3].put"
	Path     string        // in any encoding
	To       string        // of a Move
	Mode     uint32        // of a Put or Mode; 0: an existing file keeps its mode
	ID       git.ObjectID  // of a Put without Blob: the blob, or the commit of a submodule
	Blob     *write.Object // the new content of a Put; may be nil
	Expected Expected      // object at Path
}

// Expected is what a request expects at a path. The zero value is anything.
type Expected struct {
	Absent bool
	ID     git.ObjectID
}

// ParseMode parses the mode of a file as trees have it. Only git's modes are valid.
func ParseMode(text string) (uint32, error) {
	switch text {
	case "100644":
		return pack.ModeFile, nil
	case "100755":
		return pack.ModeExecutable, nil
	case "120000":
		return pack.ModeSymlink, nil
	}
	return 0, fault.New(fault.Invalid, "%.40q is not a mode of a file: want 100644, 100755 or 120000", text)
}

// role is what a change does at a path.
type role uint8

const (
	none role = iota
	removes
	adds
	modifies
)

// spot is a path that changes name, or a directory above one.
type spot struct {
	role   role
	change *Change
	below  map[string]*spot
}

// field returns the field with the path of a change.
func (s *spot) field() string {
	switch {
	case s.change.Kind != Move:
		return s.change.Field + ".path"
	case s.role == adds:
		return s.change.Field + ".to"
	}
	return s.change.Field + ".from"
}

// Changes are the changes of a request, which apply at the same time. The zero value has none. It is not safe for
// concurrent use until Check was called.
type Changes struct {
	list        []*Change
	root        spot
	paths       int // bytes
	directories int
}

// Len returns the number of changes.
func (c *Changes) Len() int { return len(c.list) }

// Sum appends a hash of the changes, whose order counts.
func (c *Changes) Sum(b []byte) []byte {
	hash := sha256.New()
	for _, change := range c.list {
		id := change.ID
		if change.Blob != nil {
			id = change.Blob.ID
		}
		fmt.Fprintf(hash, "%d %q %q %o %s %v\n", change.Kind, change.Path, change.To, change.Mode, id, change.Expected)
	}
	return hash.Sum(b)
}

// Add adds a change, and checks it without the others.
func (c *Changes) Add(change *Change) error {
	if len(c.list) == MaxChanges {
		return fault.InField("changes", fault.New(fault.Invalid, "there are more than %d", MaxChanges))
	}
	first := removes
	switch change.Kind {
	case Put:
		first = adds
	case Mode:
		first = modifies
	}
	c.list = append(c.list, change)
	if err := c.name(change, first, change.Path); err != nil || change.Kind != Move {
		return err
	}
	return c.name(change, adds, change.To)
}

// name notes a path of a change.
func (c *Changes) name(change *Change, r role, path string) error {
	at := &c.root
	named := spot{role: r, change: change}
	if err := CheckPath(path, change.Mode); err != nil {
		return fault.InField(named.field(), err)
	}
	c.paths += len(path)
	for component := range strings.SplitSeq(path, "/") {
		if at.below == nil {
			at.below = make(map[string]*spot)
			c.directories++
		}
		next := at.below[component]
		if next == nil {
			next = new(spot)
			at.below[component] = next
		}
		at = next
	}
	switch {
	case at.role != none:
		return fault.InField(named.field(), fault.New(fault.Invalid, "%q is in %s, too", fault.Short(path), at.field()))
	case c.paths > maxPaths:
		return fault.InField("changes", fault.New(fault.Invalid, "the paths have more than %d bytes", maxPaths))
	case c.directories > maxDirectories:
		return fault.InField("changes", fault.New(fault.Invalid, "the paths have more than %d directories", maxDirectories))
	}
	at.role, at.change = r, change
	return nil
}

// Check returns an error if the path of a change is below that of another one. Removed entries can make room for added
// ones.
func (c *Changes) Check() error { return c.root.check(nil) }

// check checks a spot and those below it. above are the named spots above it.
func (s *spot) check(above []*spot) error {
	if s.role != none {
		for _, a := range above {
			if s.role+a.role != removes+adds {
				return fault.InField(s.field(), fault.New(fault.Invalid, "it is below the path in %s", a.field()))
			}
		}
		above = append(above[:len(above):len(above)], s)
	}
	for _, below := range s.below {
		if err := below.check(above); err != nil {
			return err
		}
	}
	return nil
}
