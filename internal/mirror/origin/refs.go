package origin

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// Refs is a list of refs at the origin. The list is parsed when List is called: an unchanged list is recognized by its
// Digest.
type Refs struct {
	Format  git.ObjectFormat
	Version protocol.Version // the protocol version of the origin; only V2 can answer a relayed request of version 2
	Offer   protocol.Offer   // the optional features of version 2 that the origin has
	Digest  [32]byte         // equal digests of one repository and equal prefixes mean equal lists
	Moved   string           // the new path of the repository if the origin redirected, else ""

	lines  []byte      // of version 2, each with a newline
	charge *listCharge // of lines
}

// List is the parsed list of refs.
type List struct {
	Head    git.RefName  // the branch that HEAD points to, which may not exist; "" if HEAD is detached or missing
	HeadID  git.ObjectID // the commit of HEAD; zero if HEAD is unborn or missing
	Refs    []Ref        // sorted by name, without HEAD
	Invalid int          // refs with names that git does not allow; they are left out
}

// Ref is one ref.
type Ref struct {
	Name   git.RefName
	ID     git.ObjectID
	Peeled git.ObjectID // the object behind an annotated tag; zero if ID is not one
}

// listing collects the lines of a list of refs.
type listing struct {
	lines    []byte
	refs     int
	maxRefs  int
	prefixes []string // only refs with these prefixes, and HEAD; all refs if empty
	skipped  bool     // the last ref has none of the prefixes
	charge   *listCharge
}

// lineBytes is the average size of a line for which a list has space.
const lineBytes = 200

// add adds a line about a ref, unless no prefix matches. Servers need not respect prefixes, and those of version 0 get
// none.
func (l *listing) add(line, name []byte) error {
	l.skipped = len(l.prefixes) > 0 && string(name) != "HEAD" &&
		!slices.ContainsFunc(l.prefixes, func(prefix string) bool {
			return len(name) >= len(prefix) && string(name[:len(prefix)]) == prefix
		})
	if l.skipped {
		return nil
	}
	return l.append(line)
}

// peel adds the object behind the tag that was added last.
func (l *listing) peel(id, tag string) error {
	if l.skipped {
		return nil
	}
	if !bytes.HasSuffix(l.lines, []byte(" "+tag+"\n")) {
		return fmt.Errorf("%w: peeled ref %q without its tag", errInvalid, fault.Short(tag))
	}
	l.lines = l.lines[:len(l.lines)-1]
	l.refs--
	return l.append([]byte(" peeled:" + id))
}

// append appends a line or the rest of one.
func (l *listing) append(line []byte) error {
	if l.refs++; l.refs > l.maxRefs || len(l.lines)+len(line) > l.maxRefs*lineBytes+pktline.MaxLine {
		return fault.New(fault.Unavailable, "the origin has more than %d refs", l.maxRefs)
	}
	if bytes.IndexByte(line, '\n') >= 0 {
		return fmt.Errorf("%w: line %.100q", errInvalid, line)
	}
	if err := l.charge.grow(len(l.lines) + len(line)); err != nil {
		return err
	}
	l.lines = append(append(l.lines, line...), '\n')
	return nil
}

// readLsRefs reads the answer to a request for refs of version 2.
func (l *listing) readLsRefs(r *pktline.Reader) error {
	for {
		line, end, err := readLine(r)
		if err == nil && !end {
			_, rest, _ := bytes.Cut(line, []byte(" "))
			name, _, _ := bytes.Cut(rest, []byte(" "))
			err = l.add(line, name)
		}
		if err != nil || end {
			return err
		}
	}
}

// result returns the collected refs.
func (l *listing) result(a *advertisement) *Refs {
	h := sha256.New()
	_, _ = io.WriteString(h, a.format.String()+"\n")
	_, _ = h.Write(l.lines)
	refs := &Refs{Format: a.format, Version: a.version, Offer: a.offer, lines: l.lines, charge: l.charge}
	h.Sum(refs.Digest[:0])
	return refs
}

// List parses the list. Its error is Unavailable if the origin sent invalid data.
func (r *Refs) List() (*List, error) {
	list := &List{Refs: make([]Ref, 0, bytes.Count(r.lines, []byte("\n")))}
	for line := range strings.Lines(string(r.lines)) {
		if err := list.parse(strings.TrimSuffix(line, "\n"), r.Format); err != nil {
			return nil, err
		}
	}
	byName := func(a, b Ref) int { return strings.Compare(string(a.Name), string(b.Name)) }
	if !slices.IsSortedFunc(list.Refs, byName) {
		slices.SortFunc(list.Refs, byName)
	}
	for i := 1; i < len(list.Refs); i++ {
		if name := list.Refs[i].Name; name == list.Refs[i-1].Name {
			return nil, fmt.Errorf("%w: ref %s is listed twice", errInvalid, name)
		}
	}
	return list, nil
}

// parse adds a line: an object ID or "unborn", a name, and attributes.
func (l *List) parse(line string, format git.ObjectFormat) error {
	word, rest, _ := strings.Cut(line, " ")
	name, attributes, _ := strings.Cut(rest, " ")
	var ref Ref
	var target string
	id := func(hex string) (id git.ObjectID) {
		id, err := git.ParseObjectID(hex)
		if err != nil || id.Format() != format {
			return git.ObjectID{}
		}
		return id
	}
	ref.ID = id(word)
	for attribute := range strings.FieldsSeq(attributes) {
		if hex, ok := strings.CutPrefix(attribute, "peeled:"); ok {
			if ref.Peeled = id(hex); ref.Peeled.IsZero() {
				return fmt.Errorf("%w: line %.100q", errInvalid, line)
			}
		} else if name, ok := strings.CutPrefix(attribute, "symref-target:"); ok {
			target = name
		}
	}
	if ref.ID.IsZero() && (word != "unborn" || name != "HEAD") {
		return fmt.Errorf("%w: line %.100q", errInvalid, line)
	}
	var err error
	ref.Name, err = git.ParseRefName(name)
	switch {
	case err != nil:
		l.Invalid++
	case ref.Name == git.HEAD:
		l.HeadID = ref.ID
		if head, err := git.ParseRefName(target); err == nil && head != git.HEAD {
			l.Head = head
		}
	default:
		l.Refs = append(l.Refs, ref)
	}
	return nil
}
