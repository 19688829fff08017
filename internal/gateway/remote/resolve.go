package remote

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

var _ node.Resolver = (*Node)(nil)

// Resolve is Resolve of storage.Resolver, through the node's control API. One call can have up to 10,000 revisions of
// 1 MiB together.
func (n *Node) Resolve(ctx context.Context, questions []node.Question) (results []node.Result, err error) {
	revisions := make([]*packhorsev1.Revision, len(questions))
	for i, q := range questions {
		revisions[i] = &packhorsev1.Revision{Repository: q.Repository.String(), Revision: q.Revision}
	}
	response, err := call(ctx, n, n.link.Load().refs.ResolveRevisions,
		&packhorsev1.ResolveRevisionsRequest{Revisions: revisions})
	if err != nil {
		return nil, err
	}
	answers := response.GetResults()
	if len(answers) != len(questions) {
		return nil, n.invalidResponse(fmt.Errorf("got %d results, want %d", len(answers), len(questions)))
	}
	results = make([]node.Result, len(questions))
	for i, answer := range answers {
		if f := answer.GetFault(); f != nil {
			results[i].Err = faultrpc.Fault(f)
			continue
		}
		found := answer.GetFound()
		id, err := git.ParseObjectID(found.GetOid())
		typ, typeErr := git.ParseObjectType(found.GetType())
		if err = errors.Join(err, typeErr); err != nil {
			return nil, n.invalidResponse(err)
		}
		results[i].Answer = node.Answer{ID: id, Type: typ, Ref: found.GetRef(),
			Version: versionOf(found.GetVersion()), Purges: found.GetPurges()}
	}
	return results, nil
}

// invalidResponse returns the error for a response that violates the protocol.
func (n *Node) invalidResponse(err error) error {
	return fault.Wrap(fault.Internal, "the storage node "+n.Name+" sent an invalid response", err)
}

func versionOf(v *packhorsev1.Version) git.Version {
	return git.Version{Incarnation: v.GetIncarnation(), Epoch: v.GetEpoch(), Generation: v.GetGeneration()}
}

// Watch is Watch of storage.Resolver, through the node's control API. One call can have up to 10,000 repositories. It
// ends with the connection, and is not resumed.
func (n *Node) Watch(ctx context.Context, from []node.Known, send func(node.Event) error) error {
	if s := n.state.Load(); !s.reachable {
		return s.err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of the call
	request := connect.NewRequest(&packhorsev1.WatchRequest{Repositories: make([]*packhorsev1.WatchedRepository,
		len(from))})
	for i, f := range from {
		w := &packhorsev1.WatchedRepository{Repository: f.Repository.String()}
		if v := f.Version; v != (git.Version{}) {
			w.Version = &packhorsev1.Version{Incarnation: v.Incarnation, Epoch: v.Epoch, Generation: v.Generation}
		}
		request.Msg.Repositories[i] = w
	}
	n.addHeaders(ctx, request.Header())
	stream, err := n.link.Load().refs.Watch(ctx, request)
	if err != nil {
		return n.failed(ctx, err)
	}
	defer stream.Close()
	for stream.Receive() {
		m := stream.Msg()
		if m.GetContinued() { // the last message of the event has the same fields
			continue
		}
		path, err := git.ParseRepoPath(m.GetRepository())
		if err != nil {
			return n.invalidResponse(err)
		}
		if err := send(node.Event{Repository: path, Version: versionOf(m.GetVersion()),
			Gone: m.GetMissing()}); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return n.failed(ctx, err)
	}
	return fault.New(fault.Unavailable, "the storage node %s ended a watch", n.Name)
}
