package control

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// eventService serves EventService.
type eventService struct {
	*Server
}

var _ packhorsev1connect.EventServiceHandler = eventService{}

const (
	defaultEvents = 100
	maxEvents     = 1000
	// eventBeat is the time between responses of a Watch without events.
	eventBeat = 30 * time.Second
)

func (s eventService) List(ctx context.Context, r *connect.Request[packhorsev1.EventServiceListRequest]) (
	*connect.Response[packhorsev1.EventServiceListResponse], error) {
	limit, err := pageSize(r.Msg.GetLimit())
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = defaultEvents
	}
	events, next, err := s.Events.Read(ctx, r.Msg.GetAfter(), min(limit, maxEvents))
	if r.Msg.GetOnlyPresent() {
		events = s.present(ctx, events)
	}
	return responseOf(&packhorsev1.EventServiceListResponse{Events: eventMessages(events), Next: next}, err)
}

// present returns the events of repositories that exist at their path now, without refs that are hidden now.
func (s eventService) present(ctx context.Context, events []event.Event) (kept []event.Event) {
	type state struct {
		incarnation string
		hides       func(git.RefName) bool
	}
	now := make(map[git.Text]state)
	for _, e := range events {
		at, ok := now[e.Repository]
		if !ok {
			if path, err := git.ParseRepoPath(string(e.Repository)); err == nil {
				at.incarnation, at.hides = s.Node.Shown(ctx, path)
			}
			now[e.Repository] = at
		}
		if at.incarnation == "" || at.incarnation != e.Incarnation {
			continue
		}
		e.Refs = slices.Clone(e.Refs)
		for i := range e.Refs {
			e.Refs[i].Hidden = e.Refs[i].Hidden || at.hides(git.RefName(e.Refs[i].Name))
		}
		kept = append(kept, e)
	}
	return kept
}

func (s eventService) Watch(ctx context.Context, r *connect.Request[packhorsev1.EventServiceWatchRequest],
	stream *connect.ServerStream[packhorsev1.EventServiceWatchResponse]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	beat := time.NewTimer(0)
	defer beat.Stop()
	for after := r.Msg.GetAfter(); ; {
		changed := s.Events.Changed()
		events, next, err := s.Events.Read(ctx, after, maxEvents)
		if err == nil && (len(events) > 0 || next != after || after == "") {
			after = next
			err = stream.Send(&packhorsev1.EventServiceWatchResponse{Events: eventMessages(events), Next: next})
		}
		switch {
		case s.ending.Err() != nil:
			return fault.Retry(fault.Unavailable, fault.RetrySoon, "the node is shutting down")
		case err != nil:
			return err
		case len(events) > 0:
			continue
		}
		beat.Reset(eventBeat)
		select {
		case <-changed:
		case <-ctx.Done():
		case <-beat.C:
			if err := stream.Send(&packhorsev1.EventServiceWatchResponse{Next: after}); err != nil {
				return err
			}
		}
	}
}

// eventMessages converts events, without hidden refs and pushes of these alone. Texts become valid UTF-8.
func eventMessages(events []event.Event) (list []*packhorsev1.Event) {
	for i := range events {
		e := &events[i]
		m := &packhorsev1.Event{Position: e.Position, Id: e.ID, Time: timestamppb.New(e.Time), Kind: string(e.Kind),
			Repository: printable(string(e.Repository)), FormerRepository: printable(string(e.Former)),
			Incarnation: e.Incarnation, Actor: printable(string(e.Actor)), Record: e.Record}
		for _, r := range e.Refs {
			if !r.Hidden {
				m.Refs = append(m.Refs, &packhorsev1.EventRef{Name: printable(string(r.Name)), OldOid: string(r.Old),
					NewOid: string(r.New), Kind: string(r.Kind)})
			}
		}
		if e.Kind != event.Push || len(m.Refs) > 0 {
			list = append(list, m)
		}
	}
	return list
}
