package control

import (
	"context"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/node"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func (s *refService) ResolveRevisions(ctx context.Context, r *connect.Request[packhorsev1.ResolveRevisionsRequest]) (
	*connect.Response[packhorsev1.ResolveRevisionsResponse], error) {
	revisions := r.Msg.GetRevisions()
	if err := checkNames("revisions", revisions, (*packhorsev1.Revision).GetRevision); err != nil {
		return nil, err
	}
	answer := &packhorsev1.ResolveRevisionsResponse{Results: make([]*packhorsev1.RevisionResult, len(revisions))}
	// at: indexes in the results
	questions, at := make([]node.Question, 0, len(revisions)), make([]int, 0, len(revisions))
	for i, q := range revisions {
		path, err := parsePath(q.GetRepository())
		if err != nil {
			answer.Results[i] = revisionResult(node.Result{Err: err})
			continue
		}
		questions, at = append(questions, node.Question{Repository: path, Revision: q.GetRevision()}), append(at, i)
	}
	results, err := s.Node.ResolveRevisions(ctx, questions)
	if err != nil {
		return nil, err
	}
	for i, result := range results {
		answer.Results[at[i]] = revisionResult(result)
	}
	if proto.Size(answer) > maxResolved {
		return nil, fault.New(fault.Invalid, "response longer than %d bytes: resolve fewer revisions at once", maxResolved)
	}
	return connect.NewResponse(answer), nil
}

func revisionResult(r node.Result) *packhorsev1.RevisionResult {
	if r.Err == nil && !utf8.ValidString(r.Ref) {
		r.Err = fault.New(fault.Invalid, "the name of the ref is not UTF-8")
	}
	if r.Err != nil {
		return &packhorsev1.RevisionResult{Result: &packhorsev1.RevisionResult_Fault{Fault: faultrpc.Message(r.Err)}}
	}
	return &packhorsev1.RevisionResult{Result: &packhorsev1.RevisionResult_Found{Found: &packhorsev1.RevisionFound{
		Oid: r.ID.String(), Type: r.Type.String(), Ref: r.Ref, Version: version(r.Version), Purges: r.Purges,
	}}}
}
