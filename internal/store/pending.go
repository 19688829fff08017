package store

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// errPending is the error of what a store cannot do yet.
var errPending = fault.New(fault.Invalid, "this is not possible with a store yet")

// Maintain implements storage.Place.
func (p *place) Maintain(context.Context, func(ctx context.Context, dir string) error) error {
	return errPending
}
