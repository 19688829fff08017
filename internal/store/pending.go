package store

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/receivepack"
)

// errPending is the error of what a store cannot do yet.
var errPending = fault.New(fault.Invalid, "this is not possible with a store yet")

// Push implements storage.Place.
func (p *place) Push(context.Context) (receivepack.Shadow, error) { return nil, errPending }

// Maintain implements storage.Place.
func (p *place) Maintain(context.Context, func(ctx context.Context, dir string) error) error {
	return errPending
}
