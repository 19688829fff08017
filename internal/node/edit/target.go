package edit

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// Target is the branch that a request changes, and its expected state.
type Target struct {
	Branch   git.RefName
	Field    string       // of the request with the branch, for errors
	Create   bool         // the branch must not exist
	Start    git.ObjectID // of a new branch; zero: it has no commit
	StartRef git.RefName  // the branch from which it starts, whose present value replaces Start; may be ""
	Expected git.ObjectID // zero: any
	Reapply  bool         // the branch may have another value than Expected
}

// ParseBranch returns the full name of a branch, which may be given with or without refs/heads/.
func ParseBranch(name string) (git.RefName, error) {
	short := strings.TrimPrefix(name, places.BranchPrefix)
	full := places.BranchPrefix + short
	if short == "" || short[0] == '-' || short == string(git.HEAD) || strings.HasPrefix(short, "refs/") ||
		!git.IsSafeRefName(full) {
		return "", fault.New(fault.Invalid, "%q is not the name of a branch", fault.Short(name))
	}
	return git.RefName(full), nil
}

// Position is the state of a Target.
type Position struct {
	Old  git.ObjectID // the value of the branch; zero: it does not exist
	Base git.ObjectID // the commit to change; zero: there is none
}

// Resolve returns the present state of the branch. The error is NotFound if the branch does not exist, and Aborted if
// its value is not the expected one.
func (t *Target) Resolve(s write.State) (Position, error) {
	old, err := s.Ref(t.Branch)
	if err != nil {
		return Position{}, err
	}
	switch {
	case t.Create && !old.IsZero():
		return Position{}, t.mismatch(fault.Absent, old.String())
	case t.Create && t.StartRef != "":
		start, err := s.Ref(t.StartRef)
		if err == nil && start.IsZero() {
			err = fault.InField("start", fault.New(fault.NotFound, "%s does not exist", t.StartRef))
		}
		return Position{Base: start}, err
	case t.Create:
		return Position{Base: t.Start}, nil
	case old.IsZero() && !t.Expected.IsZero():
		return Position{}, t.mismatch(t.Expected.String(), fault.Absent)
	case old.IsZero():
		return Position{}, fault.InField(t.Field, fault.New(fault.NotFound,
			"%s does not exist: set create to make the branch", t.Branch))
	case t.Moved(old) && !t.Reapply:
		return Position{}, t.mismatch(t.Expected.String(), old.String())
	}
	return Position{old, old}, nil
}

// Moved reports whether a value of the branch is not the expected one.
func (t *Target) Moved(old git.ObjectID) bool { return !t.Expected.IsZero() && old != t.Expected }

func (t *Target) mismatch(expected, actual string) error {
	return Mismatch(t.Field, string(t.Branch), expected, actual)
}

// Mismatch returns the Aborted error of a name whose value is not the expected one.
func Mismatch(field, name, expected, actual string) error {
	return &fault.Error{Kind: fault.Aborted, Field: field,
		Msg:        fault.Short(name) + " is not as expected: it is " + actual + ", not " + expected,
		Mismatches: []fault.Mismatch{{Name: name, Expected: expected, Actual: actual}}}
}
