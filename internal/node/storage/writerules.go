package storage

import (
	"bytes"
	"errors"
	"strings"
	"unicode"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// needsGit reports whether Git has to decide about a plan. Git decides about deletions of refs, large packs, and files
// with a meaning for Git or Git LFS. It also does if the plan refers to objects that may be missing or incomplete.
func (b *writeBatch) needsGit(plan write.Plan) bool {
	added := make(map[git.ObjectID]bool, len(plan.Objects))
	var size int64
	for _, o := range plan.Objects {
		added[o.ID] = true
		size += o.StreamSize() + 10
	}
	w := b.writer
	if !w.node.pushes.FitsPush(b.state.policy, size) {
		return true
	}
	for _, u := range plan.Updates {
		if u.New.IsZero() || b.state.snap.Unhidden().TargetOf(u.Ref) != "" || !added[u.New] && !b.isReachable(u.New) {
			return true
		}
		if !u.Old.IsZero() {
			added[u.Old] = true // it is reachable
		}
		b.learn(u.Old)
	}
	for _, o := range plan.Objects {
		if o.Type != git.Commit {
			continue
		}
		c, _ := pack.ParseCommit(o.Data, b.target.Format) // an error is found below
		for _, parent := range c.Parents {                // a new branch has no old value
			if !added[parent] && b.isReachable(parent) {
				b.learn(parent)
			}
		}
	}
	for _, o := range plan.Objects {
		isPlain := false
		switch o.Type {
		case git.Blob:
			isPlain = !w.node.pushes.ChecksLFS(b.target) || !isPointer(o)
		case git.Tree:
			isPlain = b.isPlainTree(o, added)
		case git.Commit:
			c, err := pack.ParseCommit(o.Data, b.target.Format)
			isPlain = err == nil && b.has(c.Tree, added)
			for _, parent := range c.Parents {
				isPlain = isPlain && (added[parent] || b.isReachable(parent))
			}
		}
		if !isPlain {
			return true
		}
	}
	return false
}

// isReachable reports whether an object is known to be reachable: a ref or an earlier change of the batch has it.
func (b *writeBatch) isReachable(id git.ObjectID) bool {
	if b.state.objects[id] != nil {
		return true
	}
	isTip, err := b.state.snap.HasTips([]git.ObjectID{id})
	return isTip && err == nil
}

// has reports whether an object exists or is about to.
func (b *writeBatch) has(id git.ObjectID, added map[git.ObjectID]bool) bool {
	known := b.writer.known
	if added[id] || known[id] || b.state.objects[id] != nil {
		return true
	}
	found, err := b.target.Objects.Has(id)
	if found && err == nil {
		if len(known) >= maxKnown {
			clear(known)
		}
		known[id] = true
	}
	return found && err == nil
}

// isPointer reports whether a blob may be a pointer file of Git LFS.
func isPointer(o *write.Object) bool {
	return o.Size <= lfs.MaxPointer && bytes.HasPrefix(o.Data, []byte("version "))
}

// isPlainTree reports whether the entries of a tree exist, and Git need not check the content of any of them.
func (b *writeBatch) isPlainTree(o *write.Object, added map[git.ObjectID]bool) bool {
	err := pack.Entries(o.Data, b.target.Format, func(mode uint32, name []byte, id git.ObjectID) error {
		if isSpecial(name) && !b.writer.special[string(name)+id.String()] || mode != pack.ModeGitlink && !b.has(id, added) {
			return errNeedsGit
		}
		return nil
	})
	return err == nil
}

// errNeedsGit ends a check whose result Git has to find.
var errNeedsGit = errors.New("git has to check the change")

// isSpecial reports whether a file may be configuration of Git on some file system. A file system can ignore characters
// that are not ASCII, and short names have a tilde.
func isSpecial(name []byte) bool {
	plain := strings.Map(func(r rune) rune {
		if r >= 0x80 {
			return -1
		}
		return unicode.ToLower(r)
	}, string(name))
	return strings.HasPrefix(plain, ".git") || strings.HasPrefix(plain, ".mailmap") || strings.Contains(plain, "~")
}

// learn notes the special files in the top directory of a commit that a ref has. Git has checked them before.
func (b *writeBatch) learn(commit git.ObjectID) {
	if commit.IsZero() || b.writer.learned == commit {
		return
	}
	b.writer.learned = commit
	_, data, err := b.state.Read(commit, 0)
	if err != nil {
		return
	}
	c, err := pack.ParseCommit(data, b.target.Format)
	if err == nil {
		_, data, err = b.state.Read(c.Tree, 0)
	}
	if err != nil {
		return
	}
	_ = pack.Entries(data, b.target.Format, func(_ uint32, name []byte, id git.ObjectID) error {
		if isSpecial(name) && len(b.writer.special) < maxKnown {
			b.writer.special[string(name)+id.String()] = true
		}
		return nil
	})
}
