package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
)

// permissionInterval is the time between two checks of the rights of a running push.
const permissionInterval = time.Second

// whilePermitted returns a context for a push. It ends when the caller may not push any more, or when other rules apply
// to its refs. The caller of end gets the error for the client, from that of the push.
func (r *Request) whilePermitted() (ctx context.Context, end func(error) error) {
	whole := r.Ctx
	ctx, cancel := context.WithCancelCause(whole)
	var checks sync.WaitGroup
	if r.Auth != nil && r.Reidentify != nil && !r.hidden {
		checks.Go(func() {
			tick := time.NewTicker(permissionInterval)
			defer tick.Stop()
			for err := error(nil); err == nil; {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if err = r.lostPermission(ctx); err != nil {
					cancel(err)
				}
			}
		})
	}
	return ctx, func(err error) error {
		cancel(nil)
		checks.Wait()
		if cause := context.Cause(ctx); err != nil && whole.Err() == nil && fault.Is(cause, fault.Denied) {
			return cause
		}
		return err
	}
}

// lostPermission returns an error of kind Denied if the caller may not push any more. A credential that expires and a
// source of identities that fails do not end a push.
func (r *Request) lostPermission(ctx context.Context) error {
	id, err := r.Reidentify(ctx)
	if auth.HasExpired(err) {
		return nil
	}
	if err == nil {
		err = r.Auth.May(ctx, id, r.Repo, auth.Write)
	}
	if err == nil {
		rules, failed := r.Auth.RefRules(ctx, id, r.Repo)
		if failed == nil && !rules.Same(&r.RefRules) {
			err = fault.New(fault.Denied, "the rules for this repository have changed; push again")
		}
	}
	switch fault.KindOf(err) {
	case fault.Unauthenticated, fault.Denied, fault.NotFound:
		return fault.New(fault.Denied, "the push was ended: %s", fault.Message(err))
	}
	return nil
}
