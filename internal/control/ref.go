package control

import (
	"context"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	gitrefs "github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/storage"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// refs serves RefService.
type refs struct{ *Server }

var _ packhorsev1connect.RefServiceHandler = (*refs)(nil)

func (s *refs) Resolve(ctx context.Context, r *connect.Request[packhorsev1.ResolveRequest]) (*connect.Response[packhorsev1.ResolveResponse], error) {
	path, err := parsePath(r.Msg.GetRepository())
	if err != nil {
		return nil, err
	}
	found, err := s.Node.Resolve(ctx, path, r.Msg.GetName())
	if err != nil {
		return nil, err
	}
	answer, err := resolved(found)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(answer), nil
}

// What a message may be long, in bytes: a caller that says nothing of it takes 4 MiB (gRPC's own default).
const (
	maxNames    = 1 << 20    // the names that one ResolveMany asks for: what is found under them fits into an answer, but for long targets
	maxResolved = 3584 << 10 // the answer to it; each result takes up to 5 bytes beside
	maxPart     = 1 << 20    // changes or refs of one message, from when on more go into the next
)

func (s *refs) ResolveMany(ctx context.Context, r *connect.Request[packhorsev1.ResolveManyRequest]) (
	*connect.Response[packhorsev1.ResolveManyResponse], error) {
	requests := r.Msg.GetRequests()
	if len(requests) > storage.MaxResolve { // before room is made for the answers
		return nil, fault.New(fault.Invalid, "%d names are more than the %d that can be resolved at once", len(requests), storage.MaxResolve)
	}
	asked, answered := 0, 0 // bytes
	for _, q := range requests {
		asked += len(q.GetName())
	}
	if asked > maxNames {
		return nil, fault.New(fault.Invalid, "names of %d bytes are more than the %d that can be resolved at once", asked, maxNames)
	}
	results := make([]*packhorsev1.ResolveResult, len(requests))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tell := func(i int, result *packhorsev1.ResolveResult) {
		if answered += proto.Size(result); answered > maxResolved {
			cancel()
			return
		}
		results[i] = result
	}
	failed := func(i int, err error) {
		tell(i, &packhorsev1.ResolveResult{Result: &packhorsev1.ResolveResult_Fault{Fault: faultrpc.Message(err)}})
	}
	var questions []storage.Question
	var at []int // where the answers belong
	for i, q := range requests {
		path, err := parsePath(q.GetRepository())
		if err != nil {
			failed(i, err)
			continue
		}
		questions, at = append(questions, storage.Question{Path: path, Name: q.GetName()}), append(at, i)
	}
	err := s.Node.ResolveMany(ctx, questions, func(i int, found storage.Resolved, err error) {
		var answer *packhorsev1.ResolveResponse
		if err == nil {
			answer, err = resolved(found)
		}
		if err != nil {
			failed(at[i], err)
			return
		}
		tell(at[i], &packhorsev1.ResolveResult{Result: &packhorsev1.ResolveResult_Found{Found: answer}})
	})
	if answered > maxResolved {
		return nil, fault.New(fault.Invalid, "the answer would be longer than %d bytes; ask for fewer names at once", maxResolved)
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&packhorsev1.ResolveManyResponse{Results: results}), nil
}

func (s *refs) Exists(ctx context.Context, r *connect.Request[packhorsev1.ExistsRequest]) (*connect.Response[packhorsev1.ExistsResponse], error) {
	path, err := parsePath(r.Msg.GetRepository())
	if err != nil {
		return nil, err
	}
	exists, v, err := s.Node.Exists(ctx, path, r.Msg.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&packhorsev1.ExistsResponse{Exists: exists, Version: version(v)}), nil
}

func (s *refs) List(ctx context.Context, r *connect.Request[packhorsev1.RefServiceListRequest],
	stream *connect.ServerStream[packhorsev1.RefServiceListResponse]) error {
	place, err := s.enter()
	if err != nil {
		return err
	}
	defer place.end()
	path, err := parsePath(r.Msg.GetRepository())
	if err != nil {
		return err
	}
	limit, err := pageSize(r.Msg.GetPageSize())
	if err != nil {
		return err
	}
	of := path.String() + "\x00" + r.Msg.GetPrefix() + "\x00" + r.Msg.GetPattern()
	after, err := readToken(refToken, of, r.Msg.GetPageToken())
	if err != nil {
		return err
	}
	query := storage.RefQuery{
		Prefix: r.Msg.GetPrefix(), Pattern: r.Msg.GetPattern(), After: git.RefName(after), Limit: limit, Peel: r.Msg.GetPeel(),
	}
	send := func(answer *packhorsev1.RefServiceListResponse) error {
		if err := place.next(); err != nil {
			return err
		}
		return stream.Send(answer)
	}
	return s.Node.ListRefs(ctx, path, query, func(batch storage.RefBatch) error {
		answer := &packhorsev1.RefServiceListResponse{Version: version(batch.Version), Refs: make([]*packhorsev1.Ref, 0, len(batch.Refs))}
		size := 0
		for _, found := range batch.Refs {
			ref, ok := message(found)
			if !ok {
				continue
			}
			if size += proto.Size(ref); size > maxPart && len(answer.Refs) > 0 {
				if err := send(answer); err != nil {
					return err
				}
				answer.Refs, size = answer.Refs[:0], proto.Size(ref)
			}
			answer.Refs = append(answer.Refs, ref)
		}
		answer.NextPageToken = pageToken(refToken, of, string(batch.Next))
		return send(answer)
	})
}

func (s *refs) Watch(ctx context.Context, r *connect.Request[packhorsev1.WatchRequest], stream *connect.ServerStream[packhorsev1.WatchResponse]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	if len(r.Msg.GetRepositories()) > storage.MaxWatched {
		return fault.New(fault.Invalid, "more than %d repositories", storage.MaxWatched)
	}
	names := make(map[git.RepoPath]string, len(r.Msg.GetRepositories()))
	known := make(map[git.RepoPath]*packhorsev1.Version, len(r.Msg.GetRepositories()))
	var from []storage.WatchFrom
	for _, w := range r.Msg.GetRepositories() {
		path, err := parsePath(w.GetRepository())
		if err != nil {
			return err
		}
		names[path], known[path] = w.GetRepository(), w.GetVersion() // as the caller knows it
		f := storage.WatchFrom{Path: path, Patient: w.GetLowPriority()}
		if v := w.GetVersion(); v != nil {
			f.Known = &git.Version{Incarnation: v.GetIncarnation(), Epoch: v.GetEpoch(), Generation: v.GetGeneration()}
		}
		from = append(from, f)
	}
	if err := stream.Send(nil); err != nil { // the headers: the watch has begun
		return err
	}
	err := s.Node.Watch(ctx, from, func(e storage.Event) error {
		err := sendEvent(names[e.Path], known[e.Path], e, stream.Send)
		known[e.Path] = version(e.Version)
		return err
	})
	if s.ending.Err() != nil {
		err = fault.New(fault.Unavailable, "the storage node is shutting down")
	}
	return err
}

// sendEvent tells of a repository, in several messages if there is much to tell: all but the last have the version before it.
func sendEvent(name string, before *packhorsev1.Version, e storage.Event, send func(*packhorsev1.WatchResponse) error) error {
	answer := &packhorsev1.WatchResponse{Repository: name}
	size := 0
	for _, c := range e.Changes {
		if !utf8.ValidString(string(c.New.Name)) || !utf8.ValidString(string(c.New.Target)) {
			continue
		}
		change := &packhorsev1.RefChange{
			Name: string(c.New.Name), OldOid: oid(c.Old.ID), NewOid: oid(c.New.ID), NewTarget: string(c.New.Target),
		}
		if size += proto.Size(change); size > maxPart && len(answer.Changes) > 0 {
			answer.Version, answer.Continued = before, true
			if err := send(answer); err != nil {
				return err
			}
			answer, size = &packhorsev1.WatchResponse{Repository: name}, proto.Size(change)
		}
		answer.Changes = append(answer.Changes, change)
	}
	answer.Version, answer.Reset_, answer.Missing = version(e.Version), e.Reset, e.Gone
	return send(answer)
}

// message is a ref as the API tells it; not ok: a message cannot hold its name, which is not UTF-8.
func message(r gitrefs.Ref) (ref *packhorsev1.Ref, ok bool) {
	if !utf8.ValidString(string(r.Name)) || !utf8.ValidString(string(r.Target)) {
		return nil, false
	}
	return &packhorsev1.Ref{Name: string(r.Name), Oid: oid(r.ID), Peeled: oid(r.Peeled), Target: string(r.Target)}, true
}

func resolved(found storage.Resolved) (*packhorsev1.ResolveResponse, error) {
	ref, ok := message(found.Ref)
	if !ok {
		return nil, fault.New(fault.Invalid, "the ref's name is not UTF-8 and cannot be told")
	}
	return &packhorsev1.ResolveResponse{Ref: ref, Version: version(found.Version)}, nil
}
