// Package ingest brings a repository to the state of another one: it fetches missing objects, checks them, and then
// moves all refs at once and HEAD. All other refs are deleted. Hooks do not run.
//
// The objects stay in a quarantine until Git has checked each of them and their connectivity. Everything is on disk
// before it is visible.
package ingest

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Class is the class of Git commands that take over objects of another server. They can take long.
const Class process.Class = "ingest"

// State is a state of a repository on another server.
type State struct {
	Format git.ObjectFormat
	Refs   []refs.Ref  // all refs by name and ID, in any order
	Head   git.RefName // the branch that HEAD points to; "" does not change HEAD

	// Fetch returns a pack with all objects that the wants reach, except those that the haves reach. It is called at
	// most once, and only if objects are missing.
	Fetch func(ctx context.Context, wants, haves []git.ObjectID) (io.ReadCloser, error)
	// MaxPack is the maximum size of the pack in bytes. Zero means no limit.
	MaxPack int64
	// Fsck has the severities of Git's object checks by name. Nil means receivepack.DefaultFsck.
	Fsck map[string]string
	// Progress gets the progress of Git as text, in pieces as they arrive; nil: none.
	Progress func([]byte)
}

// Result is the result of Run.
type Result struct {
	Created, Changed, Deleted int   // refs
	Head                      bool  // HEAD was changed
	Bytes                     int64 // of the pack
	// Skipped are names of refs that no repository can have: two of the same name, or a branch that is not a commit.
	Skipped []git.RefName
}

// IsChange reports whether the repository was changed.
func (r *Result) IsChange() bool { return r.Created+r.Changed+r.Deleted > 0 || r.Head }

// Target is the repository to change.
type Target struct {
	*repo.Repo
	Place  places.Place
	Runner *process.Runner
	Log    *slog.Logger
}

// ingestion is a call of Run.
type ingestion struct {
	State
	Target
	quarantine string         // directory of the new objects; "": there are none
	packed     []refs.Ref     // refs of the new state, sorted by name
	changed    []int          // indexes in packed of created and changed refs
	old        []git.ObjectID // previous IDs of changed and deleted refs
	other      []git.ObjectID // IDs of some unchanged refs
	result     Result
}

// maxOtherHaves is the maximum number of haves from refs that have not changed.
const maxOtherHaves = 256

// Run brings a repository to a state. Run must not be called concurrently for one repository, and no one else may
// change its refs. After an error the refs are unchanged, unless only HEAD could not be set.
//
// The error is Corrupt if Git refuses the objects, Invalid for another object format or a pack that is too large, and
// Unavailable if the disk is full. Others are those of Fetch.
func Run(ctx context.Context, t Target, s State) (Result, error) {
	if s.Fsck == nil {
		s.Fsck = receivepack.DefaultFsck()
	}
	i := &ingestion{State: s, Target: t}
	defer i.removeQuarantine()
	err := i.run(ctx)
	return i.result, err
}

func (i *ingestion) run(ctx context.Context) error {
	if err := i.checkRepository(ctx); err != nil {
		return err
	}
	if err := i.compare(ctx); err != nil {
		return err
	}
	if len(i.changed) > 0 {
		if err := i.takeObjects(ctx); err != nil {
			return err
		}
		if err := i.peel(); err != nil {
			return err
		}
	}
	if len(i.changed)+i.result.Deleted > 0 {
		if err := i.moveRefs(ctx); err != nil {
			return err
		}
	}
	return i.moveHead(ctx)
}

func (i *ingestion) checkRepository(ctx context.Context) error {
	if i.State.Format != i.Repo.Format {
		return fault.New(fault.Invalid, "the object format of the origin is %s, and that of the mirror is %s: remove the "+
			"mirror and add it again", i.State.Format, i.Repo.Format)
	}
	if format, _ := i.Config().Get("extensions.refstorage"); format == "reftable" ||
		i.Common != i.Dir {
		return fault.New(fault.Invalid, "a repository with reftables or a worktree cannot be a mirror")
	}
	return i.packLooseRefs(ctx)
}

// compare finds the differences between the present and the new refs.
func (i *ingestion) compare(ctx context.Context) error {
	snap, err := i.Repo.Refs.Snapshot(ctx)
	if err != nil {
		return err
	}
	i.packed = make([]refs.Ref, 0, len(i.State.Refs))
	for _, ref := range i.State.Refs {
		i.packed = append(i.packed, refs.Ref{Name: ref.Name, ID: ref.ID})
	}
	slices.SortFunc(i.packed, func(a, b refs.Ref) int { return strings.Compare(string(a.Name), string(b.Name)) })
	i.packed = i.skipInvalid(i.packed)
	next := 0 // in i.packed: refs before it are classified
	create := func(to int) {
		for ; next < to; next++ {
			i.changed = append(i.changed, next)
			i.result.Created++
		}
	}
	err = snap.Unhidden().Each("", func(ref refs.Ref) error {
		at := next
		for at < len(i.packed) && i.packed[at].Name < ref.Name {
			at++
		}
		create(at)
		if at == len(i.packed) || i.packed[at].Name != ref.Name {
			i.old = append(i.old, ref.ID)
			i.result.Deleted++
			return nil
		}
		if i.packed[at].ID == ref.ID {
			i.packed[at].Peeled, i.packed[at].PeelKnown = ref.Peeled, ref.PeelKnown
			if len(i.other) < maxOtherHaves {
				i.other = append(i.other, ref.ID)
			}
		} else {
			i.old = append(i.old, ref.ID)
			i.changed = append(i.changed, at)
			i.result.Changed++
		}
		next = at + 1
		return nil
	})
	create(len(i.packed))
	return err
}

// skipInvalid removes refs that a repository cannot have.
func (i *ingestion) skipInvalid(list []refs.Ref) []refs.Ref {
	kept := list[:0]
	for _, ref := range list {
		if len(kept) > 0 && kept[len(kept)-1].Name == ref.Name || ref.ID.IsZero() || ref.ID.Format() != i.State.Format {
			i.result.Skipped = append(i.result.Skipped, ref.Name)
			continue
		}
		kept = append(kept, ref)
	}
	return kept
}

// wants returns the IDs of changed refs whose objects the repository does not have.
func (i *ingestion) wants() ([]git.ObjectID, error) {
	lookups := i.Objects.Lookups()
	seen := make(map[git.ObjectID]bool)
	var wants []git.ObjectID
	for _, at := range i.changed {
		id := i.packed[at].ID
		if seen[id] {
			continue
		}
		seen[id] = true
		found, err := lookups.Has(id)
		if err != nil {
			return nil, err
		}
		if !found {
			wants = append(wants, id)
		}
	}
	return wants, nil
}

const (
	maxOldHaves = 512 // previous IDs of refs among the haves
	// maxRewritten is the number of previous IDs whose ancestors are also among the haves, at distances up to
	// maxDistance. The origin may have forgotten the previous commits of a branch that was rewritten.
	maxRewritten = 16
	maxDistance  = 1 << 10
)

// haves returns IDs that the repository has and the origin probably knows.
func (i *ingestion) haves(ctx context.Context) []git.ObjectID {
	old := i.old[:min(len(i.old), maxOldHaves)]
	haves := slices.Clone(old)
	for _, id := range old[:min(len(old), maxRewritten)] {
		for distance := 1; distance <= maxDistance; distance *= 4 {
			ancestor, steps, err := i.Graph.Ancestor(ctx, id, distance, nil)
			if err != nil { // such as an annotated tag
				break
			}
			if haves = append(haves, ancestor); steps < distance {
				break
			}
		}
	}
	haves = append(haves, i.other...)
	slices.SortFunc(haves, git.ObjectID.Compare)
	return slices.Compact(haves)
}

// moveHead sets HEAD to the branch of the new state.
func (i *ingestion) moveHead(ctx context.Context) (err error) {
	if i.Head == "" || !strings.HasPrefix(string(i.Head), places.BranchPrefix) {
		return nil
	}
	snap, err := i.Repo.Refs.Snapshot(ctx)
	if err != nil || snap.Unhidden().Head().Target == i.Head {
		return err
	}
	i.result.Head, err = i.Place.SetHead(ctx, i.Head, nil)
	return err
}

// fsckList returns the severities of object checks as git index-pack takes them.
func fsckList(severities map[string]string) string {
	var list []string
	for _, check := range slices.Sorted(maps.Keys(severities)) {
		list = append(list, check+"="+severities[check])
	}
	return strings.Join(list, ",")
}
