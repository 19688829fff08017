package control

import (
	"context"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/resolve"
	"github.com/packhorse-git/packhorse/internal/storage"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func (s *refs) ResolveRevisions(ctx context.Context, r *connect.Request[packhorsev1.ResolveRevisionsRequest]) (
	*connect.Response[packhorsev1.ResolveRevisionsResponse], error) {
	revisions := r.Msg.GetRevisions()
	if len(revisions) > storage.MaxRevisions { // before room is made for the answers
		return nil, fault.New(fault.Invalid, "%d revisions are more than the %d that can be resolved at once", len(revisions), storage.MaxRevisions)
	}
	asked := 0 // bytes
	for _, q := range revisions {
		asked += len(q.GetRevision())
	}
	if asked > maxNames {
		return nil, fault.New(fault.Invalid, "revisions of %d bytes are more than the %d that can be resolved at once", asked, maxNames)
	}
	answer := &packhorsev1.ResolveRevisionsResponse{Results: make([]*packhorsev1.RevisionResult, len(revisions))}
	questions, at := make([]resolve.Question, 0, len(revisions)), make([]int, 0, len(revisions)) // at: where the answers belong
	for i, q := range revisions {
		path, err := parsePath(q.GetRepository())
		if err != nil {
			answer.Results[i] = revisionResult(resolve.Result{Err: err})
			continue
		}
		questions, at = append(questions, resolve.Question{Repository: path, Revision: q.GetRevision()}), append(at, i)
	}
	results, err := s.Node.ResolveRevisions(ctx, questions)
	if err != nil {
		return nil, err
	}
	for i, result := range results {
		answer.Results[at[i]] = revisionResult(result)
	}
	if proto.Size(answer) > maxResolved {
		return nil, fault.New(fault.Invalid, "the answer would be longer than %d bytes; ask for fewer revisions at once", maxResolved)
	}
	return connect.NewResponse(answer), nil
}

func revisionResult(r resolve.Result) *packhorsev1.RevisionResult {
	if r.Err == nil && !utf8.ValidString(r.Ref) {
		r.Err = fault.New(fault.Invalid, "the ref's name is not UTF-8 and cannot be told")
	}
	if r.Err != nil {
		return &packhorsev1.RevisionResult{Result: &packhorsev1.RevisionResult_Fault{Fault: faultrpc.Message(r.Err)}}
	}
	return &packhorsev1.RevisionResult{Result: &packhorsev1.RevisionResult_Found{Found: &packhorsev1.RevisionFound{
		Oid: r.ID.String(), Type: r.Type.String(), Ref: r.Ref, Version: version(r.Version),
	}}}
}
