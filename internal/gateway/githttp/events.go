package githttp

import (
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	maxEvents        = 1000
	eventPoll        = time.Second
	streamTime       = 10 * time.Minute // the length of a stream of events
	maxStreams       = 100              // half of them of anonymous callers
	maxCallerStreams = 10
	tooManyStreams   = "too many streams of events: a caller has at most 10, and all together 100; end one of them or " +
		"try again"
)

// nodeCall answers a request of ServerRoutes that nodes answer: events for all callers, webhooks for administrators.
func (a *apiRequest) nodeCall(m proto.Message) {
	asked, isEvents := m.(*packhorsev1.EventServiceListRequest)
	if isEvents && strings.Contains(a.r.Header.Get("Accept"), typeLines) {
		a.streamEvents(asked)
		return
	}
	seat, err := a.Enter()
	if err != nil {
		a.fail(err)
		return
	}
	defer seat.Leave()
	a.Publish()
	a.At(inflight.Working)
	response := a.NewResponse()
	if isEvents {
		response, err = a.currentEvents(asked)
	} else {
		err = a.CallServer(a.Procedure(), m, response)
	}
	if err != nil {
		a.fail(err)
		return
	}
	a.w.Header().Set("Cache-Control", "private, no-store")
	a.json(http.StatusOK, typeJSON, rest.NewObject(response, true))
}

// mayReadAny returns the error of a list of repositories for an anonymous caller that may read none.
func (a *apiRequest) mayReadAny() error {
	if !a.ID.Anonymous() {
		return nil
	}
	_, err := a.List(&packhorsev1.ListRequest{PageSize: 1})
	return err
}

// streamEvents sends events as JSON lines, for some minutes. The last line has the position to continue with, or the
// error. The caller is identified again before each page, so that a stream ends with its credential.
func (a *apiRequest) streamEvents(asked *packhorsev1.EventServiceListRequest) {
	leave, err := a.handler.streams.enter(a.Caller())
	if err != nil {
		a.fail(err)
		return
	}
	defer leave()
	a.Publish()
	asked.Limit = maxEvents
	send := func(line []byte) error {
		if a.Status == 0 {
			a.header()
			a.w.Header().Set("Content-Type", typeLines)
			a.w.Header().Set("Cache-Control", "private, no-store")
			a.begin(http.StatusOK)
		}
		n, err := a.w.Write(line)
		a.Sent(n)
		return err
	}
	for end := time.Now().Add(streamTime); ; {
		page, err := a.currentEvents(asked)
		for i := 0; err == nil && i < len(page.Events); i++ {
			err = send(rest.Encode(rest.NewObject(page.Events[i], false)))
		}
		if err != nil {
			a.endStream(err, typeLines, rest.Encode(rest.Object{"error": rest.NewError(err)}))
			return
		}
		isLast := page.Next == asked.After
		if asked.After = page.Next; !isLast {
			continue
		}
		var last []byte
		isOver := time.Now().After(end) || a.handler.streams.ending.Err() != nil
		if isOver {
			last = rest.Encode(rest.Object{"next": page.Next})
		}
		if err := send(last); err != nil || http.NewResponseController(a.w).Flush() != nil || isOver ||
			retry.Sleep(a.Ctx, eventPoll) != nil {
			return
		}
	}
}

// currentEvents identifies the caller again, and returns a page of the events that it may see now.
func (a *apiRequest) currentEvents(asked *packhorsev1.EventServiceListRequest) (
	page *packhorsev1.EventServiceListResponse, err error) {
	if a.Auth != nil {
		if a.ID, err = a.Auth.HTTP(a.r); err != nil {
			return nil, err
		}
	}
	if _, err = a.handler.Access.For(a.Ctx, a.ID); err != nil && !fault.Is(err, fault.Denied) {
		return nil, err
	}
	isAdmin := err == nil
	if err = a.mayReadAny(); err != nil {
		return nil, err
	}
	return a.Events(asked, isAdmin)
}
