package control

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node/places"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func (s *repositoryService) Purge(ctx context.Context, r *connect.Request[packhorsev1.PurgeRequest]) (
	*connect.Response[packhorsev1.PurgeResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.PurgeResponse, error) {
		names := r.Msg.GetObjectIds()
		switch {
		case len(names) == 0 || len(names) > places.MaxPurged:
			return nil, fault.InvalidField("object_ids", "%d objects: want 1 to %d", len(names), places.MaxPurged)
		case r.Msg.GetVerify() && r.Msg.GetLift():
			return nil, fault.InvalidField("lift", "a verification changes nothing")
		}
		var o places.PurgeOptions
		for _, name := range names {
			if digits, isLFS := strings.CutPrefix(name, "sha256:"); isLFS {
				id, err := lfs.ParseOID(digits)
				if err != nil {
					return nil, fault.InField("object_ids", err)
				}
				o.LFS = append(o.LFS, id)
				continue
			}
			id, err := git.ParseObjectID(name)
			if err != nil || id.IsZero() {
				return nil, fault.InvalidField("object_ids", "invalid object ID %q: want all digits", fault.Short(name))
			}
			o.IDs = append(o.IDs, id)
		}
		m := &packhorsev1.PurgeResponse{Repository: path.String(), ObjectIds: names, Started: timestamppb.Now()}
		var err error
		switch {
		case r.Msg.GetVerify():
			var x places.Search
			x, err = s.Node.FindCopies(ctx, path, o)
			m.Copies, m.Problems, m.Searched = printables(x.Copies), printables(x.Problems), x.Searched
			m.Ended = timestamppb.Now()
		case r.Msg.GetLift():
			err = s.Node.Lift(ctx, path, o)
		default:
			done, purgeErr := s.Node.Purge(ctx, path, o)
			err = purgeErr
			m.Started, m.Hidden, m.Ended = timestampOf(done.Started), timestampOf(done.Hidden), timestampOf(done.Ended)
			m.ReflogValues = int64(done.Reflogs)
			m.Objects, m.CachedPacks, m.Files = int64(done.Objects), int64(done.CachedPacks), printables(done.Files)
			m.Notes = printables(done.Notes)
			m.Nodes, m.Outstanding, m.Problems = printables(done.Nodes), printables(done.Outstanding), printables(done.Problems)
		}
		return m, err
	})
}

func printables(texts []string) (list []string) {
	for _, text := range texts {
		list = append(list, printable(text))
	}
	return list
}

func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
