package lookup

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// MaxRevision is the maximum length of a revision in bytes.
const MaxRevision = 8 << 10

const (
	leastDigits = 4         // of an abbreviated object ID
	maxSteps    = 5_000_000 // from commits to their parents, for all revisions of one Revisions
	maxTags     = 10_000    // nested tags of one revision
	maxListed   = 10        // candidates in an error
	maxSorted   = 1000      // candidates that are read to sort them
	maxWalks    = 100       // walks through history for the visibility of IDs, for all revisions of one Revisions
)

// Revision is a resolved revision.
type Revision struct {
	ID   git.ObjectID
	Type git.ObjectType
	Ref  git.RefName // at the beginning of the revision, after symbolic refs; empty: it begins with an object ID
}

// Revisions resolves revisions of one repository, all in one state of its refs (gitrevisions(7)). It resolves object
// IDs, whole or abbreviated, names of refs by git's rules, HEAD, "@", and the output of git describe. Any number of
// ^{TYPE}, ^{}, ~N and ^N may follow. An abbreviation of several objects means the only one of the type that the rest
// of the revision needs, as in git.
//
// Git's other forms are Invalid: ranges, paths in a commit, reflogs, upstreams, and searches by message. Of the names
// outside refs/ only HEAD exists. An ID without an object is not a revision.
//
// It is used by one goroutine.
type Revisions struct {
	*operation
	// Own excludes objects that the repository borrows from others, except for commits and tags that its visible refs
	// reach. The caller may not know of other objects.
	Own bool

	snapshot *refs.Snapshot
	shallow  graph.Commits
	grafted  bool           // shallow was read
	steps    int            // from commits to their parents
	tips     []git.ObjectID // of visible refs; nil: not read yet
	walks    int            // walks for the visibility of IDs
}

// Revisions creates a Revisions for a snapshot of a repository. The caller holds the objects (repo.Repo.Hold).
func (l *Reader) Revisions(ctx context.Context, r *repo.Repo, snapshot *refs.Snapshot) *Revisions {
	return &Revisions{operation: &operation{Reader: l, ctx: ctx, repo: r}, snapshot: snapshot}
}

// Resolve resolves a revision; "" is HEAD. The error is NotFound if the object does not exist. Exists is an
// abbreviation of several objects, which the text lists. Invalid is a malformed revision, or one that needs to visit
// too much history. Corrupt is a damaged object.
func (v *Revisions) Resolve(revision string) (Revision, error) {
	if revision == "" {
		revision = string(git.HEAD)
	}
	if len(revision) > MaxRevision {
		return Revision{}, fault.New(fault.Invalid, "a revision of %d bytes is longer than %d", len(revision),
			MaxRevision)
	}
	found, err := v.find(revision, anyType)
	if err != nil {
		return Revision{}, err
	}
	if found.Type == 0 {
		_, err = v.readType(&found, found.Ref != "")
	}
	return found, err
}

// wanted is the set of object types that an ambiguous abbreviation may have.
type wanted uint8

const (
	anyType    wanted = iota
	commitOnly        // a commit, not a tag
	committish        // a commit, or a tag of one
	treeish           // a tree, a commit, or a tag of either
	treeOnly          // used only for core.disambiguate, like blobOnly
	blobOnly
)

// defaultWanted returns the set of core.disambiguate (git-config(1)), which applies if the revision does not determine
// one. It is anyType for unknown values.
func defaultWanted(config repo.Config) wanted {
	value, _ := config.Get("core.disambiguate")
	switch strings.ToLower(value) {
	case "commit":
		return commitOnly
	case "committish":
		return committish
	case "tree":
		return treeOnly
	case "treeish":
		return treeish
	case "blob":
		return blobOnly
	}
	return anyType
}

// find resolves the beginning of a revision, as get_oid_1 in git's object-name.c does. The result has no Type if it was
// not needed yet.
func (v *Revisions) find(text string, want wanted) (Revision, error) {
	if err := v.ctx.Err(); err != nil {
		return Revision{}, err
	}
	if base, op, n := cutStep(text); op != 0 {
		from, err := v.find(base, committish)
		if err == nil {
			err = v.step(&from, base, op, n)
		}
		return from, err
	}
	if base, to, ok := cutPeel(text); ok {
		want = anyType
		switch to {
		case toCommit:
			want = committish
		case toTree:
			want = treeish
		}
		from, err := v.find(base, want)
		if err == nil {
			err = v.peel(&from, base, to)
		}
		return from, err
	}
	return v.name(text, want)
}

// cutStep removes ~N or ^N from the end. Without one, op is 0. If it has too many digits, n is math.MaxInt.
func cutStep(text string) (base string, op byte, n int) {
	at := len(text)
	for at > 0 && '0' <= text[at-1] && text[at-1] <= '9' {
		at--
	}
	if at == 0 || text[at-1] != '~' && text[at-1] != '^' {
		return "", 0, 0
	}
	base, op = text[:at-1], text[at-1]
	if at == len(text) {
		return base, op, 1
	}
	for _, digit := range []byte(text[at:]) {
		if n = 10*n + int(digit-'0'); n > math.MaxInt32 {
			return base, op, math.MaxInt
		}
	}
	return base, op, n
}

// target is the text between ^{ and }.
type target uint8

const (
	toAny    target = iota // object
	toCommit        = target(git.Commit)
	toTree          = target(git.Tree)
	toBlob          = target(git.Blob)
	toTag           = target(git.Tag)
	untagged        = target(255) // nothing: no tag
)

// cutPeel removes ^{...} from the end. As in git, text after the first closing brace is ignored.
func cutPeel(text string) (base string, to target, ok bool) {
	at := strings.LastIndex(text, "^{")
	if at < 0 || text[len(text)-1] != '}' {
		return "", 0, false
	}
	switch inside, _, _ := strings.Cut(text[at+2:], "}"); inside {
	case "commit":
		to = toCommit
	case "tree":
		to = toTree
	case "blob":
		to = toBlob
	case "tag":
		to = toTag
	case "object":
		to = toAny
	case "":
		to = untagged
	default:
		return "", 0, false
	}
	return text[:at], to, true
}

// readType sets the type of a Revision, and returns its target if it is a tag. referenced reports whether the
// repository refers to the object, so that a missing one is damage.
func (v *Revisions) readType(r *Revision, referenced bool) (named git.ObjectID, err error) {
	r.Type, named, err = v.repo.Graph.TypeOf(v.ctx, r.ID)
	if referenced && fault.Is(err, fault.NotFound) {
		of := "object " + r.ID.String()
		if r.Ref != "" {
			of += ", to which " + string(r.Ref) + " points,"
		}
		err = fault.Wrap(fault.Corrupt, "the repository is incomplete: "+of+" is missing", err)
	}
	return named, err
}

// peel follows tags, and commits to their trees, to an object of the wanted type.
func (v *Revisions) peel(r *Revision, text string, to target) error {
	first := git.ObjectType(0)
	for i := range maxTags {
		named, err := v.readType(r, i > 0 || r.Ref != "")
		if err != nil {
			return err
		}
		if i == 0 {
			first = r.Type
		}
		switch {
		case to == toAny || to == target(r.Type) || to == untagged && r.Type != git.Tag:
			return nil
		case r.Type == git.Tag:
			r.ID, r.Type = named, 0
		case r.Type == git.Commit && to != untagged:
			commit, err := v.commitHeaders(r.ID)
			if err != nil {
				return err
			}
			r.ID, r.Type = commit.Tree, 0
		default:
			return fault.New(fault.NotFound, "%.200q is a %s, and leads to no %s", text, first, git.ObjectType(to))
		}
	}
	return fault.New(fault.Invalid, "%.200q leads through more than %d tags", text, maxTags)
}

// step goes from a commit to its n-th parent ('^'), or n times to the first ('~').
func (v *Revisions) step(r *Revision, text string, op byte, n int) error {
	if err := v.peel(r, text, toCommit); err != nil || n == 0 {
		return err
	}
	if err := v.graft(); err != nil {
		return err
	}
	if op == '^' {
		parent, err := v.repo.Graph.Parent(v.ctx, r.ID, n, v.shallow)
		if err == nil && parent.IsZero() {
			err = fault.New(fault.NotFound, "%.200q has no parent %d", text, n)
		}
		*r = Revision{ID: parent, Ref: r.Ref}
		return err
	}
	most := maxSteps - v.steps
	ancestor, steps, err := v.repo.Graph.Ancestor(v.ctx, r.ID, min(n, most), v.shallow)
	v.steps += steps
	switch {
	case err != nil:
		return err
	case steps < n && steps == most:
		return fault.New(fault.Invalid, "more than %d steps through history: name commits by their IDs", maxSteps)
	case steps < n:
		return fault.New(fault.NotFound, "the history of %.200q has no more than %d commits before it", text, steps)
	}
	*r = Revision{ID: ancestor, Ref: r.Ref}
	return nil
}

// graft reads the boundary of a shallow repository.
func (v *Revisions) graft() (err error) {
	if !v.grafted {
		v.shallow, err = v.repo.ShallowSet()
		v.grafted = err == nil
	}
	return err
}

// visible returns the objects that the caller may know of.
func (v *Revisions) visible(ids []git.ObjectID) ([]git.ObjectID, error) {
	if !v.Own || len(ids) == 0 || !v.repo.Objects.HasAlternates() {
		return ids, nil
	}
	if v.tips == nil {
		v.tips = make([]git.ObjectID, 0, 64)
		if head := v.snapshot.Head(); !head.ID.IsZero() {
			v.tips = append(v.tips, head.ID)
		}
		err := v.snapshot.Each("", func(ref refs.Ref) error { v.tips = append(v.tips, ref.ID); return nil })
		if err != nil {
			return nil, err
		}
	}
	if v.walks++; v.walks > maxWalks {
		return nil, fault.New(fault.Invalid,
			"too many object IDs: the repository borrows objects, so one call can resolve %d", maxWalks)
	}
	if err := v.graft(); err != nil {
		return nil, err
	}
	hidden, _, err := v.repo.Graph.Unreachable(v.ctx, v.tips, ids, v.shallow, true)
	return slices.DeleteFunc(slices.Clone(ids), hidden.Has), err
}

// name resolves a revision without operators: an ID, the name of a ref, the output of git describe, or an abbreviation.
func (v *Revisions) name(text string, want wanted) (Revision, error) {
	format := v.repo.Format
	if len(text) == format.HexSize() {
		if id, err := git.ParseObjectID(text); err == nil {
			seen, err := v.visible([]git.ObjectID{id})
			if err == nil && len(seen) == 0 {
				err = fault.New(fault.NotFound, "no object %s", id)
			}
			return Revision{ID: id}, err
		}
	}
	if text == "@" {
		text = string(git.HEAD)
	}
	isName := text == string(git.HEAD) || git.IsSafeRefName("refs/"+text)
	if isName {
		found, err := v.snapshot.Expand(text)
		if err != nil {
			return Revision{}, err
		}
		if len(found) > 0 {
			ref := found[0].Name
			if found[0].Target != "" {
				ref = found[0].Target
			}
			return Revision{ID: found[0].ID, Ref: ref}, nil
		}
	}
	if at := strings.LastIndex(text, "-g"); at > 0 {
		if found, err := v.abbreviated(text[at+2:], commitOnly); !fault.Is(err, fault.NotFound) {
			return found, err
		}
	}
	if found, err := v.abbreviated(text, want); !fault.Is(err, fault.NotFound) {
		return found, err
	}
	if head := v.snapshot.Head().Target; text == string(git.HEAD) && head != "" {
		return Revision{}, fault.New(fault.NotFound, "HEAD leads to %s, which does not exist", head)
	}
	if isName {
		return Revision{}, fault.New(fault.NotFound, "no revision %q in this repository", fault.Short(text))
	}
	return Revision{}, notRevision(text)
}

// notRevision returns the error for a malformed revision.
func notRevision(text string) error {
	why := "it can be an object ID, HEAD or the name of a ref, with ^{TYPE}, ~N and ^N behind it"
	switch {
	case text == "":
		why = "no name before ~, ^ or ^{}"
	case strings.Contains(text, "@{"):
		why = "reflogs and upstreams are not supported"
	case strings.Contains(text, ":"):
		why = "paths and searches are not supported"
	case strings.Contains(text, "..") || text[0] == '^' || strings.HasSuffix(text, "^@") || strings.HasSuffix(text,
		"^!"):
		why = "it stands for a range of commits"
	}
	return fault.New(fault.Invalid, "%.200q is not a revision: %s", text, why)
}

// abbreviated finds the one object whose ID begins with digits. The error is NotFound if there is no such object, or if
// digits are not hexadecimal, and Exists if there are several.
func (v *Revisions) abbreviated(digits string, want wanted) (Revision, error) {
	prefix, ok := pack.ParsePrefix(digits, v.repo.Format)
	if !ok || len(digits) < leastDigits {
		return Revision{}, fault.New(fault.NotFound, "%.200q is not an abbreviated object ID", digits)
	}
	ids, err := v.repo.Objects.WithPrefix(prefix)
	if err == nil {
		ids, err = v.visible(ids)
	}
	switch {
	case err != nil:
		return Revision{}, err
	case len(ids) == 0:
		return Revision{}, fault.New(fault.NotFound, "no object %s", digits)
	case len(ids) == 1:
		return Revision{ID: ids[0]}, nil
	}
	if want == anyType {
		want = defaultWanted(v.repo.Config())
	}
	var fit []git.ObjectID
	for _, id := range ids {
		fits, err := v.fits(id, want)
		if err != nil {
			return Revision{}, err
		}
		if fits {
			fit = append(fit, id)
		}
	}
	switch {
	case len(fit) == 1:
		return Revision{ID: fit[0]}, nil
	case len(fit) == 0:
		fit = ids
	}
	return Revision{}, v.ambiguous(digits, fit)
}

// fits reports whether an object has a wanted type. An unreadable object does not fit.
func (v *Revisions) fits(id git.ObjectID, want wanted) (bool, error) {
	if want == anyType {
		return true, v.ctx.Err()
	}
	typ, _, err := v.repo.Objects.Header(id)
	if err == nil && typ == git.Tag && (want == committish || want == treeish) {
		_, typ, err = v.repo.Graph.Peel(id)
	}
	switch fault.KindOf(err) {
	case fault.NotFound, fault.Corrupt, fault.Invalid:
		return false, v.ctx.Err()
	}
	switch want {
	case commitOnly, committish:
		return typ == git.Commit, err
	case treeish:
		return typ == git.Commit || typ == git.Tree, err
	case treeOnly:
		return typ == git.Tree, err
	}
	return typ == git.Blob, err
}

// ambiguous lists the objects of an abbreviation in git's order: tags, commits, trees, blobs.
func (v *Revisions) ambiguous(digits string, ids []git.ObjectID) error {
	var listed []string
	for _, want := range []git.ObjectType{git.Tag, git.Commit, git.Tree, git.Blob} {
		for _, id := range ids[:min(len(ids), maxSorted)] {
			if typ, _, err := v.repo.Objects.Header(id); err == nil && typ == want && len(listed) < maxListed {
				listed = append(listed, fmt.Sprintf("%s %s", typ, id))
			}
		}
	}
	more := ""
	if n := len(ids) - len(listed); n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	return fault.New(fault.Exists, "the object ID %s is ambiguous; it may be %s%s", digits,
		strings.Join(listed, ", "), more)
}
