package e2e

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"

	api "github.com/packhorse-git/packhorse/client"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// call makes a change by a call of the control API: a commit on one ref, or an update of refs to objects that the
// repository has.
func (a *actor) call(atomic bool, refs []int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	old := func(ref int) string {
		if a.random.IntN(3) == 0 {
			return a.latest(ref)
		}
		return a.seen[ref]
	}
	if !atomic {
		return a.create(ctx, refs[0], old(refs[0]))
	}
	list := make([]action, len(refs))
	for i, ref := range refs {
		pooled, err := a.api.CommitService().Create(ctx, connect.NewRequest(a.newCommit(fmt.Sprintf("pool-%d", a.number))))
		if err != nil {
			return nil // no server
		}
		list[i] = action{ref: ref, old: old(ref), new: pooled.Msg.GetCommit()}
	}
	request := &packhorsev1.UpdateRequest{Repository: "r", Atomic: true}
	for _, do := range list {
		request.Updates = append(request.Updates, &packhorsev1.UpdatedRef{Name: refName(do.ref), NewOid: do.new,
			Expected: expected(do.old)})
	}
	begun := a.now()
	_, err := a.api.Refs().Update(ctx, connect.NewRequest(request))
	return a.called(begun, atomic, outcomeOf(err), err, list...)
}

// expected is how a call names the expected value of a ref.
func expected(old string) string {
	if old == "" {
		return "absent"
	}
	return old
}

// create makes a commit. Its ID is known before, from the same call without effect.
func (a *actor) create(ctx context.Context, ref int, old string) error {
	request := a.newCommit(fmt.Sprintf("try-%d", a.number))
	request.Create, request.Start, request.DryRun = true, old, true
	tried, err := a.api.CommitService().Create(ctx, connect.NewRequest(request))
	if err != nil {
		return nil // no server, or the old value is gone
	}
	do := action{ref: ref, old: old, new: tried.Msg.GetCommit()}
	request.Branch, request.DryRun, request.Start = refName(ref), false, ""
	if request.Create = old == ""; !request.Create {
		request.ExpectedHead = old
	}
	begun := a.now()
	made, err := a.api.CommitService().Create(ctx, connect.NewRequest(request))
	if err == nil && made.Msg.GetCommit() != do.new {
		return fmt.Errorf("a call made commit %s, and without effect %s", made.Msg.GetCommit(), do.new)
	}
	return a.called(begun, false, outcomeOf(err), err, do)
}

// newCommit returns a request for a unique commit on a branch.
func (a *actor) newCommit(branch string) *packhorsev1.CommitServiceCreateRequest {
	a.made++
	text := fmt.Sprint("call ", a.number, a.made)
	return &packhorsev1.CommitServiceCreateRequest{
		Repository: "r", Branch: branch, Message: text,
		Author: &packhorsev1.Author{Name: "C", Email: "c@example.com", Date: "1700000000 +0000"},
		Changes: []*packhorsev1.FileChange{{Change: &packhorsev1.FileChange_Put{Put: &packhorsev1.PutFile{Path: "file",
			Source: &packhorsev1.PutFile_Text{Text: text}}}}},
	}
}

// outcomeOf returns the result of a call. A call that found another value is one that changed nothing because of it.
func outcomeOf(err error) outcome {
	if err == nil {
		return done
	}
	switch api.KindOf(err) {
	case packhorsev1.FaultKind_FAULT_KIND_ABORTED:
		return stale
	case packhorsev1.FaultKind_FAULT_KIND_INVALID, packhorsev1.FaultKind_FAULT_KIND_NOT_FOUND,
		packhorsev1.FaultKind_FAULT_KIND_DENIED, packhorsev1.FaultKind_FAULT_KIND_EXHAUSTED:
		return refused
	}
	return unknown
}

// called notes the result of a call.
func (a *actor) called(begun int64, atomic bool, kind outcome, err error, list ...action) error {
	back := a.now()
	if kind == stale && atomic { // one of the refs had another value: which one is not noted
		kind = refused
	}
	if kind == unknown && atomic {
		a.mu.Lock()
		a.open = append(a.open, list)
		a.mu.Unlock()
	}
	for _, do := range list {
		if kind == done {
			a.seen[do.ref] = do.new
		} else {
			a.seen[do.ref] = a.latest(do.ref)
		}
		op := porcupine.Operation{ClientId: a.number, Input: do, Call: begun, Output: result{kind: kind}, Return: back}
		if kind == unknown {
			op.Return = 0 // until what served it has ended
		}
		a.note(op)
	}
	if kind == refused && api.KindOf(err) == packhorsev1.FaultKind_FAULT_KIND_INVALID {
		return fmt.Errorf("a call was refused as invalid: %w", err)
	}
	return nil
}
