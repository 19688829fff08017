package replog

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// NameState is the state of a name.
type NameState string

const (
	Live    NameState = "live"    // the name refers to the repository
	Removed NameState = "removed" // the name refers to nothing
	Moving  NameState = "moving"  // the repository is being renamed to it, which every node must finish
)

// Name is a record of a name: the repository that it refers to after one change. It is only an index. A name refers to
// a repository only if the head of the repository's log lists the name.
type Name struct {
	Number uint64 // position in the log, from 1
	Txn    string // random ID of the attempt to append this record
	Parent string // Txn of the record before; empty if Number is 1
	At     time.Time
	Node   string

	Path  git.RepoPath
	State NameState
	ID    string       // the repository. With Removed: the former one.
	From  git.RepoPath // with Moving: the former name of the repository
	Actor string       // with Moving: the user who renames it, see node.WithActor
	// Renames is, with Moving, Record.Renames of the repository when the move was announced. If the repository has
	// another one, the move can never be finished.
	Renames uint64

	Unknown map[string][]byte // see Record.Unknown
}

const (
	namesPrefix = "names/"
	// nameEnd ends the path in a key. escape does not write it, so records of a path are never confused with those
	// of paths below it, and it sorts before everything that it writes.
	nameEnd    = "!/"
	maxEscaped = 700 // bytes of an escaped path: keys of S3 have at most 1024
)

// OpenName returns the log of a name, without I/O. The error is fault.Invalid if the path is too long for a key.
func OpenName(b bucket.Bucket, path git.RepoPath) (*NameLog, error) {
	escaped := escape(path.String())
	if len(escaped) > maxEscaped {
		return nil, fault.New(fault.Invalid, "repository path %q is too long: it has %d bytes when it is escaped for the "+
			"object store, and at most %d are possible", fault.Short(path.String()), len(escaped), maxEscaped)
	}
	return &NameLog{bucket: b, prefix: namesPrefix + escaped + nameEnd, decode: DecodeName}, nil
}

// NamesBelow returns the prefix of the keys of all names whose paths begin with prefix, which may end within a
// component.
func NamesBelow(prefix string) string { return namesPrefix + escape(prefix) }

// AfterName returns a string that is greater than the keys of a name, and less than those of all later names. For "" it
// is "".
func AfterName(path string) string {
	if path == "" {
		return ""
	}
	return namesPrefix + escape(path) + nameEnd + "~"
}

// NameKeys returns the prefix of the keys of all records of a name.
func NameKeys(path git.RepoPath) string { return namesPrefix + escape(path.String()) + nameEnd }

// ParseNameKey returns the path and the number of a key below names/. The error is fault.Corrupt and names the key if
// Packhorse does not write such keys.
func ParseNameKey(key string) (path git.RepoPath, number uint64, err error) {
	rest, ok := strings.CutPrefix(key, namesPrefix)
	escaped, digits, found := strings.Cut(rest, nameEnd)
	if ok && found {
		if number, ok = ParseDown(digits); ok {
			if path, err = unescapePath(escaped); err == nil {
				return path, number, nil
			}
		}
	}
	return git.RepoPath{}, 0, fault.Wrap(fault.Corrupt, "the object store contains a name of another program",
		fmt.Errorf("object %s: not the escaped form of a repository path: remove it", key))
}

// escape escapes a path, or the beginning of one, for keys. Lower-case letters, digits, '-', '_', '.' and '/' stay. All
// other bytes become "~" and two hexadecimal digits, also upper-case letters: some stores do not tell them from
// lower-case ones.
func escape(path string) string {
	var b strings.Builder
	for i := range len(path) {
		c := path[i]
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.' || c == '/' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "~%02x", c)
		}
	}
	return b.String()
}

// unescapePath is the inverse of escape. It refuses what escape does not write.
func unescapePath(escaped string) (git.RepoPath, error) {
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		if escaped[i] != '~' {
			b.WriteByte(escaped[i])
			continue
		}
		var c byte
		if i+2 >= len(escaped) {
			return git.RepoPath{}, errors.New("incomplete escape")
		}
		if _, err := fmt.Sscanf(escaped[i+1:i+3], "%02x", &c); err != nil {
			return git.RepoPath{}, err
		}
		b.WriteByte(c)
		i += 2
	}
	path, err := git.ParseRepoPath(b.String())
	if err == nil && escape(path.String()) != escaped {
		err = errors.New("another escaped form of the path")
	}
	return path, err
}

// Next returns the record that changes the name to a state. The caller sets ID and From, and appends it. The receiver
// may be nil, for a name that was never used.
func (r *Name) Next(path git.RepoPath, state NameState, id, node string, now time.Time) *Name {
	next := &Name{Number: 1, Txn: NewID(), Path: path, State: state, ID: id, Node: node, At: now}
	if r != nil {
		next.Number, next.Parent, next.Unknown = r.Number+1, r.Txn, r.Unknown
	}
	return next
}

func (r *Name) position() (number uint64, txn, parent string) { return r.Number, r.Txn, r.Parent }

func (r *Name) validate() error {
	if err := validatePosition(r.Number, r.Txn, r.Parent); err != nil {
		return err
	}
	isMoving := r.State == Moving
	switch {
	case r.Path == git.RepoPath{}:
		return errors.New("no path")
	case !isID(r.ID):
		return fmt.Errorf("invalid repository ID %.80q", r.ID)
	case r.State != Live && r.State != Removed && !isMoving:
		return fmt.Errorf("invalid state %.80q", r.State)
	case int64(r.Renames) < 0 || r.Renames > 0 && !isMoving:
		return fmt.Errorf("invalid number of renames: %d", int64(r.Renames))
	case isMoving != (r.From != git.RepoPath{}):
		return errors.New("a moving name has a former name, and no other name has one")
	}
	return nil
}

// fields maps the keys of a record's JSON object to their values. Some are not in the record, or not as in JSON.
func (r *Name) fields(version *int64, kind, path, from *git.Text) map[string]any {
	return map[string]any{"format": version, "n": &r.Number, "txn": &r.Txn, "parent": &r.Parent, "kind": kind,
		"at": (*stamp)(&r.At), "node": (*git.Text)(&r.Node), "path": path,
		"state": (*git.Text)(&r.State), "id": &r.ID, "from": from,
		"renames": &r.Renames, "actor": (*git.Text)(&r.Actor)}
}

// Encode returns the record as canonical JSON.
func (r *Name) Encode() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("name %q: record %d: %w", fault.Short(r.Path.String()), r.Number, err)
	}
	version, kind, path, from := int64(format), git.Text("name"), git.Text(r.Path.String()), git.Text(r.From.String())
	return encodeFields(r.fields(&version, &kind, &path, &from), r.Unknown)
}

// DecodeName reads a name's record. The error is fault.Unavailable if only a newer version can read it.
func DecodeName(body []byte) (*Name, error) {
	r := &Name{}
	var version int64
	var kind, path, from git.Text
	var err error
	if r.Unknown, err = decodeFields(body, r.fields(&version, &kind, &path, &from)); err != nil {
		return nil, err
	}
	if r.Path, err = decodePath(path); err == nil && from != "" {
		r.From, err = decodePath(from)
	}
	if err == nil && kind != "name" {
		err = fmt.Errorf("invalid kind %.80q, want \"name\"", kind)
	}
	if err == nil {
		err = r.validate()
	}
	return r, err
}

func decodePath(t git.Text) (git.RepoPath, error) {
	path, err := git.ParseRepoPath(string(t))
	if err != nil || path.String() != string(t) {
		return git.RepoPath{}, fmt.Errorf("invalid path %q", fault.Short(t))
	}
	return path, nil
}
