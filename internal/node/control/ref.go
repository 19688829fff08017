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
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/watch"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// refService serves RefService.
type refService struct{ *Server }

var _ packhorsev1connect.RefServiceHandler = (*refService)(nil)

func (s *refService) Resolve(ctx context.Context,
	r *connect.Request[packhorsev1.ResolveRequest]) (*connect.Response[packhorsev1.ResolveResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.ResolveResponse, error) {
		found, err := s.Node.Resolve(ctx, path, r.Msg.GetName())
		if err != nil {
			return nil, err
		}
		return resolved(found)
	})
}

// Limits of messages in bytes. By default gRPC clients accept 4 MiB.
const (
	maxNames    = 1 << 20    // names in one call, so that the results mostly fit into one response
	maxResolved = 3584 << 10 // the response, without up to 5 bytes for each result
	maxPart     = 1 << 20    // changes or refs in one message
)

// checkNames refuses too many or too long names, before their results are allocated.
func checkNames[Q any](what string, requests []Q, name func(Q) string) error {
	if n := len(requests); n > storage.MaxNames {
		return fault.New(fault.Invalid, "too many %s: got %d, one call can resolve %d", what, n, storage.MaxNames)
	}
	size := 0 // bytes
	for _, q := range requests {
		size += len(name(q))
	}
	if size > maxNames {
		return fault.New(fault.Invalid, "%s too long: got %d bytes, one call can resolve %d", what, size, maxNames)
	}
	return nil
}

func (s *refService) ResolveMany(ctx context.Context, r *connect.Request[packhorsev1.ResolveManyRequest]) (
	*connect.Response[packhorsev1.ResolveManyResponse], error) {
	requests, resultBytes := r.Msg.GetRequests(), 0
	if err := checkNames("names", requests, (*packhorsev1.ResolveRequest).GetName); err != nil {
		return nil, err
	}
	results := make([]*packhorsev1.ResolveResult, len(requests))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	add := func(i int, result *packhorsev1.ResolveResult) {
		if resultBytes += proto.Size(result); resultBytes > maxResolved {
			cancel()
			return
		}
		results[i] = result
	}
	failed := func(i int, err error) {
		add(i, &packhorsev1.ResolveResult{Result: &packhorsev1.ResolveResult_Fault{Fault: faultrpc.Message(err)}})
	}
	var questions []storage.Question
	var at []int // indexes in results
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
		add(at[i], &packhorsev1.ResolveResult{Result: &packhorsev1.ResolveResult_Found{Found: answer},
			Purges: found.Purges})
	})
	if resultBytes > maxResolved {
		return nil, fault.New(fault.Invalid, "response longer than %d bytes: resolve fewer names at once", maxResolved)
	}
	return responseOf(&packhorsev1.ResolveManyResponse{Results: results}, err)
}

func (s *refService) Exists(ctx context.Context,
	r *connect.Request[packhorsev1.ExistsRequest]) (*connect.Response[packhorsev1.ExistsResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.ExistsResponse, error) {
		exists, v, err := s.Node.Exists(ctx, path, r.Msg.GetName())
		return &packhorsev1.ExistsResponse{Exists: exists, Version: version(v)}, err
	})
}

func (s *refService) List(ctx context.Context, r *connect.Request[packhorsev1.RefServiceListRequest],
	stream *connect.ServerStream[packhorsev1.RefServiceListResponse]) error {
	admission, err := s.enter()
	if err != nil {
		return err
	}
	defer admission.end()
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
		Prefix: r.Msg.GetPrefix(), Pattern: r.Msg.GetPattern(), After: git.RefName(after), Limit: limit,
		Peel: r.Msg.GetPeel(),
	}
	send := func(answer *packhorsev1.RefServiceListResponse) error {
		if err := admission.next(); err != nil {
			return err
		}
		return stream.Send(answer)
	}
	return s.Node.ListRefs(ctx, path, query, func(found storage.RefBatch) error {
		version := version(found.Version)
		refs := batch[*packhorsev1.Ref]{bytes: maxPart, send: func(list []*packhorsev1.Ref) error {
			return send(&packhorsev1.RefServiceListResponse{Version: version, Refs: list})
		}}
		for _, f := range found.Refs {
			if ref, ok := message(f); ok {
				if err := refs.add(ref, proto.Size(ref)); err != nil {
					return err
				}
			}
		}
		return send(&packhorsev1.RefServiceListResponse{Version: version, Refs: refs.list,
			NextPageToken: pageToken(refToken, of, string(found.Next))})
	})
}

func (s *refService) Watch(ctx context.Context, r *connect.Request[packhorsev1.WatchRequest],
	stream *connect.ServerStream[packhorsev1.WatchResponse]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	if len(r.Msg.GetRepositories()) > watch.MaxRepositories {
		return fault.New(fault.Invalid, "more than %d repositories", watch.MaxRepositories)
	}
	names := make(map[git.RepoPath]string, len(r.Msg.GetRepositories()))
	known := make(map[git.RepoPath]*packhorsev1.Version, len(r.Msg.GetRepositories()))
	var from []watch.From
	for _, w := range r.Msg.GetRepositories() {
		path, err := parsePath(w.GetRepository())
		if err != nil {
			return err
		}
		names[path], known[path] = w.GetRepository(), w.GetVersion() // as the caller knows it
		f := watch.From{Path: path, Patient: w.GetLowPriority()}
		if v := w.GetVersion(); v != nil {
			f.Known = &git.Version{Incarnation: v.GetIncarnation(), Epoch: v.GetEpoch(), Generation: v.GetGeneration()}
		}
		from = append(from, f)
	}
	if err := stream.Send(nil); err != nil { // sends the headers, so that the caller knows that the watch has begun
		return err
	}
	err := s.Node.Watch(ctx, from, func(e watch.Event) error {
		err := sendEvent(names[e.Path], known[e.Path], e, stream.Send)
		known[e.Path] = version(e.Version)
		return err
	})
	if s.ending.Err() != nil {
		err = fault.New(fault.Unavailable, "the storage node is shutting down")
	}
	return err
}

// sendEvent sends an event, in several messages if there are many changes. All but the last have the version before it.
func sendEvent(name string, before *packhorsev1.Version, e watch.Event,
	send func(*packhorsev1.WatchResponse) error) error {
	changes := batch[*packhorsev1.RefChange]{bytes: maxPart, send: func(list []*packhorsev1.RefChange) error {
		return send(&packhorsev1.WatchResponse{Repository: name, Changes: list, Version: before, Continued: true})
	}}
	for _, c := range e.Changes {
		if !utf8.ValidString(string(c.New.Name)) || !utf8.ValidString(string(c.New.Target)) {
			continue
		}
		change := &packhorsev1.RefChange{
			Name: string(c.New.Name), OldOid: oid(c.Old.ID), NewOid: oid(c.New.ID), NewTarget: string(c.New.Target),
		}
		if err := changes.add(change, proto.Size(change)); err != nil {
			return err
		}
	}
	return send(&packhorsev1.WatchResponse{Repository: name, Changes: changes.list, Version: version(e.Version),
		Reset_: e.Reset, Missing: e.Gone})
}

// message converts a ref. ok is false if its name is not UTF-8, which a message cannot hold.
func message(r gitrefs.Ref) (ref *packhorsev1.Ref, ok bool) {
	if !utf8.ValidString(string(r.Name)) || !utf8.ValidString(string(r.Target)) {
		return nil, false
	}
	return &packhorsev1.Ref{Name: string(r.Name), Oid: oid(r.ID), Peeled: oid(r.Peeled), Target: string(r.Target)}, true
}

func resolved(found storage.Resolved) (*packhorsev1.ResolveResponse, error) {
	ref, ok := message(found.Ref)
	if !ok {
		return nil, fault.New(fault.Invalid, "the name of the ref is not UTF-8")
	}
	return &packhorsev1.ResolveResponse{Ref: ref, Version: version(found.Version)}, nil
}
