package receivepack

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Shadow is a temporary repository in which Git runs one push. It has the refs of the real repository and borrows its
// objects. Its changes take effect when Commit succeeds.
type Shadow interface {
	// Repo returns the shadow. It is open until Close.
	Repo() *repo.Repo
	// Own returns the object directory with the real repository's own objects, if it also borrows those of others. It is
	// "" if the repository borrows none.
	Own() string
	// Quarantined is called when Git has a pack with the new objects, so that the preparation of Commit can begin while
	// Git checks them and hooks decide. The directory has the pack until Git moves it into the shadow, which may be at any
	// time. It does not wait.
	Quarantined(dir string)
	// Commit changes the refs of the real repository, when Git has ended. Proposals are made in their order, if possible
	// together. Each has its own result, but one is refused (RefusedAtomic) if one before it was not made. The end of ctx
	// ends the preparation, but not a change that has begun.
	Commit(ctx context.Context, proposals []Proposal) []CommitResult
	// Close removes the shadow.
	Close()
}

// ErrUnknown is in the chain of CommitResult.Err if refs may have changed.
var ErrUnknown = errors.New("the result is not known")

// Proposal is what Shadow.Commit is to change: the updates that Git has made in the shadow.
type Proposal struct {
	Push    *Push
	Updates []Update
	Atomic  bool // all updates or none
}

// FirstBranch returns the branch to which the first push to a repository sets HEAD: main, master, or the first one that
// it creates. It is "" if the push creates none, or HEAD's own.
func FirstBranch(updates []Update, head git.RefName) git.RefName {
	var created []git.RefName
	for _, u := range updates {
		if strings.HasPrefix(string(u.Ref), "refs/heads/") && !u.New.IsZero() {
			created = append(created, u.Ref)
		}
	}
	if len(created) == 0 || slices.Contains(created, head) {
		return ""
	}
	for _, usual := range []git.RefName{"refs/heads/main", "refs/heads/master"} {
		if slices.Contains(created, usual) {
			return usual
		}
	}
	return created[0]
}

// Refusal is why an update that Git has accepted in the shadow was not made.
type Refusal struct {
	text   string // in the report, for the client
	reason string // for metrics and logs
}

// Reasons against an update.
var (
	RefusedValue   = &Refusal{"changed meanwhile", reasonConflict}
	RefusedName    = &Refusal{"reference conflict", reasonConflict} // with the name of another ref
	RefusedAtomic  = &Refusal{"atomic push failed", reasonConflict} // because of another update or proposal
	RefusedCurrent = &Refusal{"deletion of the current branch prohibited", reasonPolicy}
	RefusedQuota   = &Refusal{"quota exceeded (" + repo.QuotaKey + ")", reasonQuota}

	refusedLFS = &Refusal{reasonMissingLFS, reasonLFS}
)

// String returns the reason as the client gets it; "" if r is nil.
func (r *Refusal) String() string {
	if r == nil {
		return ""
	}
	return r.text
}

// CommitResult is the result of Shadow.Commit.
type CommitResult struct {
	// Err means that no ref has changed, except that with ErrUnknown the result is not known.
	Err error
	// Refused has the reason for each update of the proposal that was not made, and nil for the others.
	Refused []*Refusal
	// Stored has the number of the record with the updates, the duration of the append, and the tries.
	Stored node.Stored
}
