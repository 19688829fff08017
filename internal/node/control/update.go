package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/write"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Limits of an update of refs.
const (
	maxUpdates       = 10_000
	maxReflogMessage = 4 << 10 // bytes
)

// updateCall is one call of Update.
type updateCall struct {
	wanted  []*packhorsev1.UpdatedRef
	updates []receivepack.Update // their names and new values
	atomic  bool
	repeats bool // an update whose ref has the new value already is made

	results []*packhorsev1.UpdateResult
	planned []int // by update of the plan: its index
}

// Update implements packhorsev1connect.RefServiceHandler.
func (s *refService) Update(ctx context.Context, r *connect.Request[packhorsev1.UpdateRequest]) (
	*connect.Response[packhorsev1.UpdateResponse], error) {
	change, err := changeOf(r.Msg, r.Header().Get(callerHeader))
	if err != nil {
		return nil, err
	}
	c, err := newUpdateCall(r.Msg)
	if err != nil {
		return nil, err
	}
	change.Atomic, change.Build = c.atomic, c.build
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.UpdateResponse, error) {
		made, err := s.Node.Write(ctx, path, change)
		if err != nil {
			return nil, err
		}
		for i, err := range made.Refused {
			if err != nil {
				c.results[c.planned[i]].Fault = faultrpc.Message(err)
			}
		}
		return &packhorsev1.UpdateResponse{Results: c.results, Version: version(made.Version), Messages: made.Messages}, nil
	})
}

// newUpdateCall checks a request.
func newUpdateCall(r *packhorsev1.UpdateRequest) (*updateCall, error) {
	c := &updateCall{wanted: r.GetUpdates(), atomic: r.GetAtomic(), repeats: r.GetIdempotencyKey() != ""}
	switch n := len(c.wanted); {
	case n == 0 || n > maxUpdates:
		return nil, fault.InField("updates", fault.New(fault.Invalid, "got %d, want 1 to %d", n, maxUpdates))
	case len(r.GetMessage()) > maxReflogMessage || strings.ContainsAny(r.GetMessage(), "\n\x00"):
		return nil, fault.InField("message", fault.New(fault.Invalid, "it is longer than %d bytes, or not a single line",
			maxReflogMessage))
	}
	if _, err := edit.NewKey(r.GetIdempotencyKey(), nil); err != nil {
		return nil, err
	}
	seen := make(map[git.RefName]bool, len(c.wanted))
	for i, u := range c.wanted {
		field := func(name string) string { return fmt.Sprintf("updates[%d].%s", i, name) }
		name, err := git.ParseRefName(u.GetName())
		switch {
		case err != nil || name == git.HEAD:
			err = fault.Wrap(fault.Invalid, "invalid name: want a full name such as refs/heads/main", err)
			return nil, fault.InField(field("name"), cmp.Or(err, fault.New(fault.Invalid, "SetHead changes HEAD")))
		case seen[name]:
			return nil, fault.InField(field("name"), fault.New(fault.Invalid, "%s is updated twice", fault.Short(name)))
		}
		seen[name] = true
		id, err := expectedID(field("new_oid"), u.GetNewOid())
		if err != nil {
			return nil, err
		}
		c.updates = append(c.updates, receivepack.Update{Ref: name, New: id})
		if expected := u.GetExpected(); expected != fault.Absent {
			if _, err := expectedID(field("expected"), expected); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// build is write.Change.Build.
func (c *updateCall) build(_ context.Context, s write.State) (plan write.Plan, err error) {
	c.results, c.planned = make([]*packhorsev1.UpdateResult, len(c.wanted)), nil
	var failed []error
	for i, u := range c.wanted {
		update, err := c.update(s, i)
		c.results[i] = &packhorsev1.UpdateResult{OldOid: oid(update.Old)}
		switch {
		case err == nil && update.Old != update.New:
			plan.Updates, c.planned = append(plan.Updates, update), append(c.planned, i)
			continue
		case err == nil, c.repeats && update.Old == update.New,
			u.GetNewOid() == "" && update.Old.IsZero() && u.GetExpected() == "":
			continue
		}
		c.results[i].Fault = faultrpc.Message(err)
		failed = append(failed, err)
	}
	if len(failed) > 0 && (c.atomic || len(c.wanted) == 1) {
		return write.Plan{}, mismatched(failed)
	}
	return plan, nil
}

// update returns an update with the present value of its ref, or why it is not possible.
func (c *updateCall) update(s write.State, i int) (u receivepack.Update, err error) {
	u = c.updates[i]
	if u.Old, err = s.Ref(u.Ref); err != nil {
		return u, err
	}
	field := func(err error) error { return fault.InField(fmt.Sprintf("updates[%d].new_oid", i), err) }
	actual := cmp.Or(oid(u.Old), fault.Absent)
	switch expected := c.wanted[i].GetExpected(); {
	case expected != "" && expected != actual:
		return u, &fault.Error{Kind: fault.Aborted, Msg: fmt.Sprintf("%s is %s, expected %s", fault.Short(u.Ref), actual,
			expected), Mismatches: []fault.Mismatch{{Name: string(u.Ref), Expected: expected, Actual: actual}}}
	case u.New.IsZero():
		return u, nil
	case u.New.Format() != s.Repo().Format:
		return u, field(fault.New(fault.Invalid, "want an object ID in %s", s.Repo().Format))
	}
	typ, _, err := s.Repo().Objects.Header(u.New)
	if err == nil && typ != git.Commit && strings.HasPrefix(string(u.Ref), places.BranchPrefix) {
		err = fault.New(fault.Invalid, "%s is a %s, want a commit", u.New, typ)
	}
	return u, field(err)
}

// mismatched returns the first error, with the mismatches of all.
func mismatched(errs []error) error {
	first, ok := errors.AsType[*fault.Error](errs[0])
	if !ok || first.Kind != fault.Aborted {
		return errs[0]
	}
	all := *first
	for _, err := range errs[1:] {
		if e, ok := errors.AsType[*fault.Error](err); ok {
			all.Mismatches = append(all.Mismatches, e.Mismatches...)
		}
	}
	return &all
}
