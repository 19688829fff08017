package store

import (
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const branches = "refs/heads/"

// batch is the next record while it is made from pushes.
type batch struct {
	head    *state
	refs    *refs.Snapshot // of head
	next    *replog.Record
	events  []event.Event
	changed map[git.RefName]replog.RefChange // the changes of this record so far
	created map[string]int                   // number of created refs in it below a name
	undo    []replog.RefChange               // what rollBack restores

	checkpoint *checkpoint // of a record with many changes; see repository.finish
}

func (r *repository) newBatch(head *state) (*batch, error) {
	snapshot, err := snapshotOf(head.layers, head.record.ObjectFormat)
	if err != nil {
		return nil, err
	}
	next := head.record.Next(replog.KindPush, r.store.options.Node, time.Now())
	next.PushedAt = next.At
	return &batch{head: head, refs: snapshot, next: next,
		changed: make(map[git.RefName]replog.RefChange), created: make(map[string]int)}, nil
}

// add adds a push to the record. It sets the reasons for the updates that the head does not allow. An error ends the
// push, and the record has nothing of it.
func (b *batch) add(p *pendingPush) error {
	if err := b.check(p); err != nil {
		return err
	}
	if p.after != nil && !p.after.isMade() {
		p.refused = slices.Repeat([]*receivepack.Refusal{receivepack.RefusedAtomic}, len(p.Updates))
		return nil
	}
	packs := b.missingPacks(p)
	if quota := b.head.record.Quota; quota > 0 && len(packs) > 0 && b.next.Bytes()+bytesOf(packs) > quota {
		p.refused = slices.Repeat([]*receivepack.Refusal{receivepack.RefusedQuota}, len(p.Updates))
		return nil
	}
	isEmpty, err := b.isEmpty()
	if err != nil {
		return err
	}
	b.undo = b.undo[:0]
	p.refused = make([]*receivepack.Refusal, len(p.Updates))
	var accepted []receivepack.Update
	for i, u := range p.Updates {
		if p.refused[i], err = b.update(p, u, p.peeled[i]); err != nil {
			b.rollBack()
			return err
		}
		if p.refused[i] == nil {
			accepted = append(accepted, u)
		}
	}
	if p.Atomic && len(accepted) < len(p.Updates) {
		b.rollBack()
		for i, refusal := range p.refused {
			if refusal == nil {
				p.refused[i] = receivepack.RefusedAtomic
			}
		}
		return nil
	}
	if len(accepted) == 0 {
		return nil
	}
	b.next.Packs = append(b.next.Packs, packs...)
	b.next.Pushes = append(b.next.Pushes,
		replog.Push{ID: p.Push.ID, By: git.Text(p.Push.Pusher.Name), Refs: len(accepted)})
	p.Push.Record = b.next.Number
	b.events = append(b.events, event.OfPush(p.Push, accepted, time.Now()))
	if isEmpty {
		if branch := receivepack.FirstBranch(accepted, b.next.Head); branch != "" {
			b.next.Head = branch
		}
	}
	return nil
}

// check returns why a push cannot be committed at all.
func (b *batch) check(p *pendingPush) error {
	head, base := b.head.record, p.shadow.base.record
	switch {
	case p.ctx.Err() != nil:
		return p.ctx.Err()
	case !b.head.has(p.shadow.place.path):
		return notFound(p.shadow.place.path)
	case head.ObjectsEpoch != base.ObjectsEpoch && slices.ContainsFunc(p.Updates, isNotDeletion):
		return fault.Retry(fault.Unavailable, fault.RetrySoon,
			"push not accepted: unreachable objects of the repository were removed during the push; try again")
	case !sameRules(head.Config, base.Config):
		return fault.Retry(fault.Unavailable, fault.RetrySoon,
			"push not accepted: the repository's configuration was changed during the push; try again")
	}
	for _, u := range p.shadow.uploads {
		if u.gc != head.GC {
			return errUploadAgain
		}
	}
	return nil
}

// isNotDeletion reports whether an update needs an object.
func isNotDeletion(u receivepack.Update) bool { return !u.New.IsZero() }

// missingPacks returns the packs of a push that the record does not have. Two pushes of the same objects upload the
// same pack.
func (b *batch) missingPacks(p *pendingPush) []replog.Pack {
	var missing []replog.Pack
	for _, u := range p.shadow.uploads {
		isSame := func(has replog.Pack) bool { return has.SHA256 == u.result.SHA256 }
		if !slices.ContainsFunc(b.next.Packs, isSame) {
			pack := u.result
			pack.Since = b.next.Number
			missing = append(missing, pack)
		}
	}
	return missing
}

func bytesOf(packs []replog.Pack) (total int64) {
	for i := range packs {
		total += packs[i].Bytes
	}
	return total
}

// isEmpty reports whether HEAD's branch does not exist, and no other branch does.
func (b *batch) isEmpty() (bool, error) {
	if id, err := b.value(b.next.Head); err != nil || !id.IsZero() {
		return false, err
	}
	for name, c := range b.changed {
		if strings.HasPrefix(string(name), branches) && !c.New.IsZero() {
			return false, nil
		}
	}
	return b.isFree(branches)
}

// value returns the object ID of a ref; zero if it does not exist.
func (b *batch) value(name git.RefName) (git.ObjectID, error) {
	if c, ok := b.changed[name]; ok {
		return c.New, nil
	}
	ref, _, err := b.refs.Lookup(name)
	return ref.ID, err
}

// isFree reports whether no ref of the head exists below a prefix.
func (b *batch) isFree(prefix string) (bool, error) {
	free := true
	err := b.refs.Each(prefix, func(ref refs.Ref) error {
		if c, ok := b.changed[ref.Name]; ok && c.New.IsZero() {
			return nil
		}
		free = false
		return refs.ErrStop
	})
	return free, err
}

// update adds one update, or returns why it is refused.
func (b *batch) update(p *pendingPush, u receivepack.Update, peeled git.ObjectID) (*receivepack.Refusal, error) {
	current, err := b.value(u.Ref)
	if err != nil {
		return nil, err
	}
	if current != u.Old && !(current.IsZero() && u.Old.IsZero()) {
		// If the old object of a deletion does not exist, Git deletes whatever value it finds.
		if seen, err := p.shadow.value(u.Ref); err != nil || seen != current || !u.New.IsZero() || current.IsZero() {
			return receivepack.RefusedValue, err
		}
	}
	switch {
	case current.IsZero() && !u.New.IsZero():
		if free, err := b.isNameFree(string(u.Ref)); !free || err != nil {
			return receivepack.RefusedName, err
		}
	case u.New.IsZero() && b.isCurrent(p, u.Ref):
		return receivepack.RefusedCurrent, nil
	}
	before, ok := b.changed[u.Ref]
	if !ok {
		before = replog.RefChange{Name: u.Ref, Old: current, New: current}
	}
	b.undo = append(b.undo, before)
	b.set(replog.RefChange{Name: u.Ref, Old: before.Old, New: u.New, Peeled: peeled})
	return nil, nil
}

// set replaces the change of a ref in the record.
func (b *batch) set(c replog.RefChange) {
	switch before := b.changed[c.Name]; {
	case creates(c) && !creates(before):
		b.count(string(c.Name), 1)
	case !creates(c) && creates(before):
		b.count(string(c.Name), -1)
	}
	b.changed[c.Name] = c
}

// creates reports whether a change creates a ref that the head does not have.
func creates(c replog.RefChange) bool { return c.Old.IsZero() && !c.New.IsZero() }

// rollBack takes the updates of the last push back.
func (b *batch) rollBack() {
	for _, c := range slices.Backward(b.undo) {
		b.set(c)
	}
}

// isNameFree reports whether a ref can be created: no ref has its name as a directory, or is one of its directories.
func (b *batch) isNameFree(name string) (bool, error) {
	for i, c := range name {
		if c == '/' && i > 0 {
			if id, err := b.value(git.RefName(name[:i])); err != nil || !id.IsZero() {
				return false, err
			}
		}
	}
	if b.created[name] > 0 {
		return false, nil
	}
	return b.isFree(name + "/")
}

// count counts a created ref in its directories.
func (b *batch) count(name string, n int) {
	for i, c := range name {
		if c == '/' {
			b.created[name[:i]] += n
		}
	}
}

// isCurrent reports whether a branch is that of HEAD now, must therefore not be deleted, and was not HEAD's when Git
// decided.
func (b *batch) isCurrent(p *pendingPush, name git.RefName) bool {
	if name != b.next.Head || name == p.shadow.base.record.Head {
		return false
	}
	denied := true
	for _, s := range b.head.record.Config {
		if s.Key == "receive.denydeletecurrent" {
			denied = !slices.Contains([]string{"ignore", "warn", "false", "no", "off", "0"}, strings.ToLower(s.Value))
		}
	}
	return denied
}

// changes returns the changes of the record, sorted by name.
func (b *batch) changes() []replog.RefChange {
	changes := make([]replog.RefChange, 0, len(b.changed))
	for _, c := range b.changed {
		if c.Old != c.New && !(c.Old.IsZero() && c.New.IsZero()) {
			changes = append(changes, c)
		}
	}
	slices.SortFunc(changes, func(x, y replog.RefChange) int { return strings.Compare(string(x.Name), string(y.Name)) })
	return changes
}
