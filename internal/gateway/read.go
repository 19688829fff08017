package gateway

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Read is a call of a storage node that changes nothing, for a page.
type Read struct {
	Procedure string
	Known     []string      // full IDs that refs led to: the caller may see them
	Request   proto.Message // Request.Read sets its field repository
	Response  proto.Message // an empty message of the response's type
	Limit     time.Duration // of the time; the error is Deadline. 0: as for all calls
	Receive   func(proto.Message) error
}

// Read has a storage node answer a call about the request's repository. Revisions have to be those that a visible ref
// reaches, also where fetches may request others. The request itself does not fail with the call.
func (r *Request) Read(c Read) error {
	whole := r.Ctx
	if c.Limit > 0 {
		ctx, cancel := context.WithTimeout(whole, c.Limit)
		defer cancel()
		r.Ctx = ctx
	}
	r.received = false
	var bad error // of the request's encoding
	r.Call(node.Call{Procedure: c.Procedure, Reachable: strings.Join(append([]string{"1"}, c.Known...), " ")},
		false, func(repo git.RepoPath) []byte {
			m := c.Request.ProtoReflect()
			m.Set(m.Descriptor().Fields().ByName("repository"), protoreflect.ValueOfString(repo.String()))
			var text []byte
			text, bad = proto.Marshal(c.Request)
			return text
		}, func(text []byte) error {
			m := c.Response.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(text, m); err != nil {
				return fault.Wrap(fault.Internal, "the storage node sent an invalid message", err)
			}
			return c.Receive(m)
		})
	err, late := r.Err, r.Ctx.Err() != nil
	r.Ctx, r.Err = whole, nil
	if bad != nil {
		return fault.Wrap(fault.Internal, "cannot encode a call", bad)
	}
	if err != nil && late && whole.Err() == nil {
		return fault.Wrap(fault.Deadline, "the call took too long", err)
	}
	return err
}
