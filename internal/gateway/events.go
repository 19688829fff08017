package gateway

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// CallServer has a node make a call that is not about one repository. All nodes must have the same repositories.
func (r *Request) CallServer(procedure string, request, response proto.Message) error {
	prefixes := r.Router.Prefixes()
	if len(prefixes) != 1 {
		return fault.New(fault.Precondition, "the gateway has %d routes, and this request is for one: ask the storage nodes",
			len(prefixes))
	}
	return r.callRoute(prefixes[0], procedure, request, response)
}

// callRoute has a node of a route make a call that is not about one repository.
func (r *Request) callRoute(prefix, procedure string, request, response proto.Message) error {
	path, err := git.ParseRepoPath(prefix)
	if err != nil {
		path = AbsentPath(path) // of no other route
	}
	text, err := proto.Marshal(request) // all texts are UTF-8
	if err != nil {
		return fault.Wrap(fault.Invalid, "a text is not UTF-8", err)
	}
	r.Repo, r.authorized, r.hidden, r.received = path, true, false, false
	r.Call(node.Call{Procedure: procedure}, false, func(git.RepoPath) []byte { return text }, func(message []byte) error {
		return fault.Wrap(fault.Internal, "the storage node sent an invalid message", proto.Unmarshal(message, response))
	})
	r.Repo = git.RepoPath{}
	return r.Err
}

// Events returns a page of the events that the caller may see: those of repositories that exist and that it may read,
// and with seesAll also those of others.
func (r *Request) Events(asked *packhorsev1.EventServiceListRequest, seesAll bool) (
	*packhorsev1.EventServiceListResponse, error) {
	page := &packhorsev1.EventServiceListResponse{}
	asked.OnlyPresent = !seesAll
	err := r.CallServer(packhorsev1connect.EventServiceListProcedure, asked, page)
	if err != nil || seesAll {
		return page, err
	}
	var names []string
	for _, e := range page.Events {
		if !slices.Contains(names, e.GetRepository()) {
			names = append(names, e.GetRepository())
		}
	}
	if names, err = r.listable(r.Router.Prefixes()[0], names); err != nil {
		return nil, err
	}
	page.Events = slices.DeleteFunc(page.Events, func(e *packhorsev1.Event) bool {
		e.FormerRepository = "" // the caller may not have read it there
		return !slices.Contains(names, e.GetRepository())
	})
	return page, nil
}
